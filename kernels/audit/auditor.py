"""What the audits of all targets share: one artifact a candidate, who is to blame, and when a time is believed.

A target adds how a candidate is built, which processes check it, and whose clock times it.
"""

import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Self

from kernelbraid.kernels.audit import lock, physics, plan, stages, twins
from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.checks import SIZES, Case, cases_of, sized_cases
from kernelbraid.kernels.audit.clock import Pace, drowned
from kernelbraid.kernels.audit.cores import on_cores, threads_of_core
from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.native import native_programs
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    ROOT,
    AuditOutcome,
    Blocks,
    Candidate,
    Correctness,
    Infrastructure,
    Qualification,
    TimingOutcome,
)
from kernelbraid.kernels.audit.progress import Progress
from kernelbraid.kernels.audit.scratch import scratch_folder
from kernelbraid.kernels.audit.sizes import Sizes
from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.kernels.toolchains.cc import find_compiler

MOST_REFERENCES = 4
"""Timed calls of a screen, and of a confirmation, that are compared with float64 too."""
RUNNER_FAULTS = (Correctness.CRASHED, Correctness.HUNG, Correctness.EXITED_EARLY, Correctness.OUT_OF_MEMORY)


class Auditor(ABC):
    """Audits for one operator. Several threads may audit different candidates; timing is one at a time.

    It never loads a candidate. It owns the seeds, the reference, the clock and the lock, and returns what happened as
    an outcome; only a machine without a usable compiler raises, at construction: MissingToolchain.
    """

    _confirming: plan.Plan

    def __init__(self, operator: Operator, timing_lock: Path, limits: Limits | None) -> None:
        self.operator = operator
        self._reference = load_reference(operator)
        self._sizes = Sizes(operator)
        self._limits = limits or Limits()
        self._timing_lock = timing_lock
        self._compiler = find_compiler()
        self._native = native_programs(self._compiler)
        self._scratch = scratch_folder()
        self._weights = {workload.name: workload.weight for workload in operator.workloads}
        self._bounds = {workload.name: workload.limit_ratio for workload in operator.workloads}
        self._symbols = [entry.symbol for entry in operator.entries]
        self._artifacts: dict[str, Artifact] = {}
        self._paces: dict[str, Pace] = {}
        self._building = threading.Lock()
        self._timing_cpu, self._other_cpus = _divide(sorted(os.sched_getaffinity(0)))
        self._ceilings: Mapping[str, float] = {}

    @abstractmethod
    def environment(self) -> Environment:
        """Machine, compiler and sandbox."""

    def qualify(self, root: Candidate, baselines: Sequence[Candidate]) -> Qualification:
        """Audit the root and time it beside its baselines in one session.

        A baseline that does not build or run is left out with its reason; no baseline is ever checked.
        """
        progress = Progress()
        left_out: dict[str, str] = {}
        try:
            self._ready()
            self._check(root, progress)
            self._prove_that_checks_fail(root, progress)
            blocks = self._time_baselines(progress, baselines, left_out)
        except AuditFailure as failure:
            return Qualification(progress.failed(self._judged(failure)), {}, left_out)
        arms = [arm for arm in blocks.arms if arm != ROOT]
        return Qualification(progress.verified(ROOT), {arm: blocks.medians_s(arm) for arm in arms}, left_out)

    @abstractmethod
    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """Build and check, then time against root and incumbent under the lock, in the target's own order.

        `incumbent` is called only once the lock is held, so that it names the best of that moment.
        """

    def time(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> TimingOutcome:
        """Time a candidate that was verified before."""
        progress = Progress()
        try:
            self._ready()
            self._time_arms(candidate, root, incumbent, progress)
        except AuditFailure as failure:
            return progress.timing(self._judged(failure))
        return progress.timing(None)

    def compare(self, candidate: Candidate, incumbent: Candidate, groups: int) -> Blocks:
        """Two artifacts beside each other in so many groups of a confirmation; nothing is decided or checked.

        Raises AuditFailure.
        """
        self._ready()
        arms = {INCUMBENT: self._artifact(incumbent), CANDIDATE: self._artifact(candidate)}
        cpu = frozenset([self._timing_cpu])
        with lock.held(self._timing_lock), on_cores(cpu), self._session(arms) as session:
            return session.run(replace(self._confirming.alone(), groups=groups, copies=0))

    @abstractmethod
    def close(self) -> None:
        """End every process and remove the temporary files."""

    def __enter__(self) -> Self:
        """The harness itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    @abstractmethod
    def _ready(self) -> None:
        """Raises InfrastructureFailed where nothing can be audited now."""

    @abstractmethod
    def _prove_health(self) -> None:
        """Raises AuditFailure when an empty candidate cannot run in a fresh process."""

    def _judged(self, failure: AuditFailure) -> AuditFailure:
        """The failure, or a device fault when an empty candidate cannot run in a fresh process either."""
        if failure.verdict in RUNNER_FAULTS:
            try:
                self._prove_health()
            except AuditFailure as sick:
                evidence = f"an empty candidate fails too ({sick.evidence}); first seen as {failure.evidence}"
                return InfrastructureFailed(Infrastructure.DEVICE_FAULT, evidence, failure.log)
        return failure

    @abstractmethod
    def _built(self, candidate: Candidate, due: Sequence[Case]) -> Artifact:
        """A fresh artifact. Raises CandidateFailed or InfrastructureFailed."""

    def _artifact(self, candidate: Candidate, due: Sequence[Case] = ()) -> Artifact:
        """The candidate's artifact, built once, for what every audit calls and these cases. Raises as `_built`."""
        with self._building:
            found = self._artifacts.get(candidate.digest)
        if found is None:
            found = self._built(candidate, due)
            with self._building:
                self._artifacts.setdefault(candidate.digest, found)
        return found

    def _known_artifact(self, name: str, candidate: Candidate) -> Artifact:
        """As _artifact for one that was verified before: its failure is the machine's."""
        try:
            return self._artifact(candidate)
        except CandidateFailed as error:
            evidence = f"{name} ({candidate.name}) no longer builds: {error.evidence}"
            raise InfrastructureFailed(Infrastructure.ENVIRONMENT_CHANGED, evidence, error.log) from error

    def _due(self, candidate: Candidate, progress: Progress) -> tuple[Case, ...]:
        """Every case of an audit: declared ones, hidden ones, and those at sizes that the sources name."""
        drawn = self._sizes.drawn(candidate.sources, secrets.randbits(63))
        progress.tally.notes[SIZES] = str(drawn)
        return (*cases_of(self.operator), *sized_cases(self.operator, drawn))

    @abstractmethod
    def _check(self, candidate: Candidate, progress: Progress) -> None:
        """Build it and run every check. Raises AuditFailure."""

    def _prove_that_checks_fail(self, root: Candidate, progress: Progress) -> None:
        """Raises CandidateFailed when a twin of the root with a wrong bit on the decode path passes, or zeros would."""
        if forged := twins.accepted_forgeries(self.operator, self._reference, secrets.randbits(63)):
            evidence = f"the declared tolerances take answers that need no work: {'; '.join(forged)}"
            raise CandidateFailed(Correctness.INACCURATE, evidence)
        try:
            self._check(self._broken_twin(root), Progress())
        except CandidateFailed as failure:
            if failure.verdict in (Correctness.DISAGREEMENT, Correctness.INACCURATE):
                progress.tally.passed["broken_twin"] += 1
                return
            raise
        evidence = f"a twin of {root.name} with one wrong bit in every decode call was verified: the checks cannot fail"
        raise CandidateFailed(Correctness.WRONG_ARTIFACT, evidence)

    @abstractmethod
    def _broken_twin(self, root: Candidate) -> Candidate:
        """The root with one wrong bit in every decode call."""

    @abstractmethod
    def _session(self, arms: Mapping[str, Artifact]) -> AbstractContextManager[stages.Repeatable]:
        """These arms' processes and their clock."""

    def _time_arms(
        self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate], progress: Progress
    ) -> None:
        progress.built(self._artifact(candidate))
        arms = {ROOT: self._known_artifact(ROOT, root)}
        with lock.held(self._timing_lock):
            started = time.perf_counter()
            try:
                best = incumbent()
                progress.incumbent = best.name
                assert progress.artifact is not None, "it was just built"
                arms |= {INCUMBENT: self._known_artifact(INCUMBENT, best), CANDIDATE: progress.artifact}
                self._time_stages(arms, progress)
            finally:
                progress.timing_s = time.perf_counter() - started

    @abstractmethod
    def _time_stages(self, arms: Mapping[str, Artifact], progress: Progress) -> None:
        """Screen, and confirm what the screen leaves, under the lock. Raises AuditFailure."""

    def _believe(self, session: stages.Repeatable, blocks: Blocks, progress: Progress) -> None:
        """Raises CandidateFailed when timed outputs differ from untimed ones, or a time is impossible."""
        progress.tally.passed["timed_outputs"] += session.verify_copies(MOST_REFERENCES)
        if evidence := drowned(blocks):
            raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, evidence)
        if evidence := physics.impossible(self.operator, blocks, CANDIDATE, self._ceilings):
            raise CandidateFailed(Correctness.FASTER_THAN_POSSIBLE, evidence)

    def _time_baselines(self, progress: Progress, baselines: Sequence[Candidate], left_out: dict[str, str]) -> Blocks:
        assert progress.artifact is not None, "the root was built"
        arms = {ROOT: progress.artifact}
        for baseline in baselines:
            try:
                arms[baseline.name] = self._sound_baseline(baseline)
            except CandidateFailed as error:
                left_out[baseline.name] = f"{error.verdict.value}: {error.evidence}"
        cpu = frozenset([self._timing_cpu])
        with lock.held(self._timing_lock), on_cores(cpu), self._session(arms) as session:
            started = time.perf_counter()
            progress.confirmation = session.run(plan.qualification(tuple(arms)[1:]))
            progress.timing_s = time.perf_counter() - started
        return progress.confirmation

    def _sound_baseline(self, baseline: Candidate) -> Artifact:
        """Its artifact, once every workload has run. Raises CandidateFailed."""
        artifact = self._artifact(baseline)
        with self._session({CANDIDATE: artifact}) as session:
            session.run(plan.Plan(groups=1, blocks=1, paired=(CANDIDATE,)))
        return artifact


def _divide(cpus: Sequence[int]) -> tuple[int, frozenset[int]]:
    """The CPU for timing, and those for everything else: not what shares its core, unless there is nothing else."""
    return cpus[-1], (frozenset(cpus) - threads_of_core(cpus[-1])) or frozenset(cpus)
