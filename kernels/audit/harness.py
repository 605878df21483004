"""The audit of one operator on one target: build, check, time; each candidate in processes of its own.

The harness never loads a candidate. It owns the seeds, the reference, the clock and the lock, and returns what
happened as an outcome; only a machine without a usable compiler raises, at construction.
"""

import os
import platform
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kernelbraid.kernels.audit import environment as machine
from kernelbraid.kernels.audit import lock, physics, plan, stages, statistics, twins
from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.build import Builder
from kernelbraid.kernels.audit.checks import Case, Checker, Tally, cases_of, timed_cases
from kernelbraid.kernels.audit.clock import Pace, Session, drowned
from kernelbraid.kernels.audit.cores import on_cores
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.memory import Inputs
from kernelbraid.kernels.audit.native import Stopwatch, native_programs
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
    capped_log,
)
from kernelbraid.kernels.audit.runner import Launcher, Runner
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind, candidates
from kernelbraid.kernels.audit.scratch import scratch_folder
from kernelbraid.kernels.audit.timed_inputs import TimedInputs
from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.kernels.toolchains.cc import find_compiler
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain

MOST_REFERENCES = 4
"""Timed calls of a screen, and of a confirmation, that are compared with float64 too."""
RUNNER_FAULTS = (Correctness.CRASHED, Correctness.HUNG, Correctness.EXITED_EARLY, Correctness.OUT_OF_MEMORY)


class Harness:
    """Audits for one operator. Several threads may audit different candidates; timing is one at a time.

    `sandbox` None takes the best box that works here; `environment().sandbox` says which, `none` included. A box
    that is asked for and does not work makes every audit `sandbox_refused`. Raises MissingToolchain.
    """

    _screening, _confirming = plan.SCREEN, plan.CONFIRMATION

    def __init__(
        self,
        operator: Operator,
        target: str = "cpu",
        sandbox: Sandbox | None = None,
        timing_lock: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        if target != "cpu":
            raise ValueError(f"this harness audits target cpu, not {target}")
        self.operator = operator
        self._reference = load_reference(operator)
        self._limits = limits or Limits()
        self._timing_lock = timing_lock or lock.machine_lock_path()
        self._compiler = find_compiler()
        self._compiler_stamp = _stamp(Path(self._compiler.prefix[0]))
        self._native = native_programs(self._compiler)
        self._stopwatch = Stopwatch(self._native.stopwatch)
        self._ceilings = physics.ceilings(self._native.ceilings)
        self._timed = TimedInputs(operator, self._reference, Inputs(self._limits.input_bytes))
        self._one_session = threading.Lock()
        self._paces: dict[str, Pace] = {}
        self._scratch = scratch_folder()
        self._weights = {workload.name: workload.weight for workload in operator.workloads}
        self._bounds = {workload.name: workload.limit_ratio for workload in operator.workloads}
        self._symbols = [entry.symbol for entry in operator.entries]
        self._artifacts: dict[str, Artifact] = {}
        self._building = threading.Lock()
        self._timing_cpu, self._other_cpus = _divide(sorted(os.sched_getaffinity(0)))
        self._sandbox, self._floor, self._refusal = self._settle(sandbox)

    def environment(self) -> machine.Environment:
        """Machine, compiler and sandbox."""
        return machine.Environment(
            machine=platform.machine(),
            cpu_model=machine.cpu_model(),
            simd_bits=self._compiler.simd_bits,
            l1_bytes=machine.l1_bytes(),
            compiler=self._compiler.name,
            compiler_version=self._compiler.version,
            flags=(*self._compiler.flags, *self._compiler.large_flags),
            kernel_release=platform.release(),
            sandbox=self._sandbox.kind.value,
            harness_digest=machine.harness_digest(),
            toolchain_digest=self._compiler.digest,
            physics=self._ceilings,
        )

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

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """Build and check, then time against root and incumbent under the machine's lock.

        `incumbent` is called only once the lock is held, so that it names the best of that moment.
        """
        progress = Progress()
        try:
            self._ready()
            self._check(candidate, progress)
            self._time_arms(candidate, root, incumbent, progress)
            self._check_timed_shapes(progress)
        except AuditFailure as failure:
            return progress.failed(self._judged(failure))
        return progress.verified(CANDIDATE)

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

    def close(self) -> None:
        """Remove the temporary files; processes end with the audit that started them."""
        self._timed.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        """The harness itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def _settle(self, wanted: Sandbox | None) -> tuple[Sandbox, Artifact | None, str | None]:
        """The box to use, an empty candidate built in it, and why a wanted box does not work."""
        refusal = "no sandbox was tried"
        for box in (wanted,) if wanted is not None else (*candidates(), Sandbox(SandboxKind.NONE)):
            try:
                floor = self._builder(box).build(self._empty_candidate())
                self._health_check(box, floor)
                return box, floor, None
            except AuditFailure as failure:
                refusal = failure.evidence
        if wanted is None:
            raise MissingToolchain(f"{self._compiler.name} builds nothing that runs here: {refusal}")
        return wanted, None, refusal

    def _empty_candidate(self) -> Candidate:
        """Every entry, doing nothing: what is left is the price of a message."""
        return Candidate("empty", {"empty.c": "".join(f"void {symbol}(void) {{}}\n" for symbol in self._symbols)})

    def _builder(self, box: Sandbox) -> Builder:
        return Builder(self._compiler, self._native, box, self._limits, self._scratch, self._compiler.large_flags)

    def _launcher(self, box: Sandbox) -> Launcher:
        return Launcher(self._native, self._stopwatch, box, self._limits)

    def _health_check(self, box: Sandbox, floor: Artifact) -> None:
        """Load the empty candidate in a fresh process. Raises AuditFailure when even that fails."""
        inputs = Inputs(4096)
        try:
            with Runner(self._launcher(box), floor, inputs, -1, 4096) as runner:
                runner.load(self._symbols)
        finally:
            inputs.close()

    def _ready(self) -> None:
        """Raises InfrastructureFailed when the box is refused or the compiler is another than at the start."""
        if self._refusal is not None:
            evidence = f"{self._sandbox.kind.value} does not work here: {self._refusal}"
            raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, evidence)
        if _stamp(Path(self._compiler.prefix[0])) != self._compiler_stamp:
            evidence = f"{self._compiler.prefix[0]} was replaced while this harness was in use"
            raise InfrastructureFailed(Infrastructure.ENVIRONMENT_CHANGED, evidence)

    def _judged(self, failure: AuditFailure) -> AuditFailure:
        """The failure, or a device fault when an empty candidate cannot run in a fresh process either."""
        if failure.verdict in RUNNER_FAULTS and self._floor is not None:
            try:
                self._health_check(self._sandbox, self._floor)
            except AuditFailure as sick:
                evidence = f"an empty candidate fails too ({sick.evidence}); first seen as {failure.evidence}"
                return InfrastructureFailed(Infrastructure.DEVICE_FAULT, evidence, failure.log)
        return failure

    def _artifact(self, candidate: Candidate) -> Artifact:
        """The candidate's artifact, built once. Raises as Builder.build."""
        with self._building:
            found = self._artifacts.get(candidate.digest)
        if found is None:
            found = self._builder(self._sandbox).build(candidate)
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

    def _check(self, candidate: Candidate, progress: "Progress") -> None:
        progress.built(self._artifact(candidate))
        progress.due = tuple(cases_of(self.operator))
        self._check_due(progress)

    def _prove_that_checks_fail(self, root: Candidate, progress: "Progress") -> None:
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

    def _broken_twin(self, root: Candidate) -> Candidate:
        return twins.broken_twin(root, [entry for entry in self.operator.entries if entry.path == "decode"])

    def _check_timed_shapes(self, progress: "Progress") -> None:
        """All of them for whom a confirmation was worth its time; anyone else had some, drawn in secret."""
        progress.due = tuple(timed_cases(self.operator)) if progress.confirmation is not None else ()
        if progress.due:
            self._check_due(progress)

    def _check_due(self, progress: "Progress") -> None:
        started = time.perf_counter()
        try:
            with on_cores(self._other_cpus):
                self._run_checks(progress)
        finally:
            progress.check_s += time.perf_counter() - started

    def _run_checks(self, progress: "Progress") -> None:
        assert progress.artifact is not None, "checks follow the build"
        launcher, size = self._launcher(self._sandbox), self._limits.output_bytes
        with _inputs(self._limits.input_bytes) as inputs:
            first = Runner(launcher, progress.artifact, inputs, -1, size)
            with first, Runner(launcher, progress.artifact, inputs, -1, size) as second:
                first.load(self._symbols)
                second.load(self._symbols)
                progress.tally.passed["identity"] += 2
                parts = (self.operator, self._reference, first, second, inputs, self._limits.message_bytes)
                try:
                    Checker(*parts, progress.tally).run(progress.due)
                finally:
                    progress.printed = first.printed()

    def _time_arms(
        self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate], progress: "Progress"
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

    def _time_stages(self, arms: Mapping[str, Artifact], progress: "Progress") -> None:
        rooted = arms[ROOT].digest == arms[INCUMBENT].digest
        with on_cores(frozenset([self._timing_cpu])), self._session(arms) as session:
            progress.screen = stages.screen(session, self._weights, self._screening)
            self._believe(session, progress.screen, progress)
            session.copies.clear()
            if statistics.screen(progress.screen, self._weights):
                wanted = self._confirming
                progress.confirmation = stages.confirm(
                    session, self._weights, self._bounds, wanted, beside_root=not rooted
                )
                self._believe(session, progress.confirmation, progress)

    def _believe(self, session: stages.Repeatable, blocks: Blocks, progress: "Progress") -> None:
        """Raises CandidateFailed when timed outputs differ from untimed ones, or a time is impossible."""
        progress.tally.passed["timed_outputs"] += session.verify_copies(MOST_REFERENCES)
        if evidence := drowned(blocks):
            raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, evidence)
        if evidence := physics.impossible(self.operator, blocks, CANDIDATE, self._ceilings):
            raise CandidateFailed(Correctness.FASTER_THAN_POSSIBLE, evidence)

    def _time_baselines(self, progress: "Progress", baselines: Sequence[Candidate], left_out: dict[str, str]) -> Blocks:
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

    @contextmanager
    def _session(self, arms: Mapping[str, Artifact]) -> Iterator[stages.Repeatable]:
        assert self._floor is not None, "a refused sandbox ends an audit before it is timed"
        launcher = self._launcher(self._sandbox)
        parts = (arms, self._floor, self._timing_cpu, self._timed, self._paces)
        with self._one_session, closing(Session(self.operator, self._reference, launcher, *parts)) as session:
            yield session


@dataclass
class Progress:
    """What one audit has found so far."""

    tally: Tally = field(default_factory=Tally)
    artifact: Artifact | None = None
    due: tuple[Case, ...] = ()
    """The cases that the next run of the checks makes."""
    screen: Blocks | None = None
    confirmation: Blocks | None = None
    incumbent: str | None = None
    printed: bytes = b""
    check_s: float = 0.0
    timing_s: float = 0.0

    def built(self, artifact: Artifact) -> None:
        """The build is done."""
        self.artifact = artifact

    def failed(self, failure: AuditFailure) -> AuditOutcome:
        """The outcome of an audit that ended early."""
        log = capped_log(self.artifact.log if self.artifact else b"", failure.log or self.printed)
        return AuditOutcome(
            verdict=failure.verdict,
            evidence=failure.evidence,
            checks=self.tally.results(failure),
            screen=self.screen,
            confirmation=self.confirmation,
            incumbent=self.incumbent,
            resources=self.artifact.resources if self.artifact else MappingProxyType({}),
            artifact_digest=self.artifact.digest if self.artifact else None,
            log=log,
            build_s=self.artifact.build_s if self.artifact else 0.0,
            check_s=self.check_s,
            timing_s=self.timing_s,
        )

    def verified(self, arm: str) -> AuditOutcome:
        """The outcome of an audit in which every check passed and every workload was timed as `arm`."""
        assert self.artifact is not None, "nothing is verified that was not built"
        return AuditOutcome(
            verdict=Correctness.VERIFIED,
            evidence=self._summary(),
            checks=self.tally.results(),
            screen=self.screen,
            confirmation=self.confirmation,
            incumbent=self.incumbent,
            latencies_s=self._latencies_s(arm),
            resources=self.artifact.resources,
            artifact_digest=self.artifact.digest,
            log=capped_log(self.artifact.log, self.printed),
            build_s=self.artifact.build_s,
            check_s=self.check_s,
            timing_s=self.timing_s,
        )

    def timing(self, failure: AuditFailure | None) -> TimingOutcome:
        """The outcome of a timing."""
        verdict = Correctness.VERIFIED if failure is None else failure.verdict
        evidence = self._summary() if failure is None else failure.evidence
        latencies_s = self._latencies_s(CANDIDATE) if failure is None else MappingProxyType({})
        parts = (self.screen, self.confirmation, self.incumbent, latencies_s, self.timing_s)
        return TimingOutcome(verdict, evidence, *parts)

    def _summary(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.tally.passed.items())

    def _latencies_s(self, arm: str) -> Mapping[str, float]:
        blocks = self.confirmation or self.screen
        assert blocks is not None, "a verified candidate was timed"
        return blocks.medians_s(arm)


@contextmanager
def _inputs(size_bytes: int) -> Iterator[Inputs]:
    inputs = Inputs(size_bytes)
    try:
        yield inputs
    finally:
        inputs.close()


def _divide(cpus: Sequence[int]) -> tuple[int, frozenset[int]]:
    """The core for timing, and those for everything else (the same one where there is no other)."""
    return cpus[-1], frozenset(cpus[:-1] or cpus)


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.resolve().stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
