"""The audit of one operator's Python implementations, on a device's memory.

The auditor's process owns the device's memory and the clock and never imports torch. A candidate runs in processes
forked from the zygote. The device's lock is held while anything runs on it, checks included: another audit's kernels
would be in the way of the clock.
"""

import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernelbraid.kernels.audit import environment as machine
from kernelbraid.kernels.audit import lock, stages, statistics
from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.auditor import RUNNER_FAULTS, Auditor
from kernelbraid.kernels.audit.checks import Case, timed_cases
from kernelbraid.kernels.audit.clock import Pace
from kernelbraid.kernels.audit.cores import on_cores
from kernelbraid.kernels.audit.cuda.build import CompilerFacts, MakeBuilder, bare
from kernelbraid.kernels.audit.cuda.ceilings import device_ceilings
from kernelbraid.kernels.audit.cuda.checking import CHECKED_MESSAGES, BatchedChecker
from kernelbraid.kernels.audit.cuda.clock import BESIDE_ROOT, CONFIRMATION, CONFIRMING_SETS, SCREEN, DeviceSession
from kernelbraid.kernels.audit.cuda.cores import timing_cores
from kernelbraid.kernels.audit.cuda.device import Device
from kernelbraid.kernels.audit.cuda.launcher import Settings, Zygote
from kernelbraid.kernels.audit.cuda.memory import GUARD_BYTES, DeviceInputs, DeviceOutputs
from kernelbraid.kernels.audit.cuda.profile import Profile
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner, Starter
from kernelbraid.kernels.audit.cuda.sanitizer import Sanitizer
from kernelbraid.kernels.audit.cuda.spares import Spares
from kernelbraid.kernels.audit.cuda.twins import broken_twin
from kernelbraid.kernels.audit.cuda.vault import Vault
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    ROOT,
    AuditOutcome,
    Blocks,
    Candidate,
    Correctness,
    Infrastructure,
    TimingOutcome,
)
from kernelbraid.kernels.audit.progress import Progress
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind
from kernelbraid.kernels.audit.stages import Repeatable
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain

HERE = Path(__file__).resolve().parent
MOST_FLOOR_NS = 2_000_000
"""An empty message takes a tenth to a quarter of a millisecond where nothing else is on the device."""
SPARES = 11
"""Two processes that check a candidate, two that screen it, two sets of three that confirm it, and the empty one's."""


class DeviceHarness(Auditor):
    """Audits for one operator on one device; several threads may audit, the device's lock makes them take turns.

    `sandbox` None takes Landlock, and nothing at all where that does not work; `environment().sandbox` says which.
    `sanitizer` is compute-sanitizer's path where a candidate that might be promoted is to pass it first.
    Raises MissingToolchain without a C compiler (for the box), DeviceLost when the device cannot be used.
    """

    _confirming = CONFIRMATION

    def __init__(
        self,
        operator: Operator,
        device: Device,
        compiler: CompilerFacts,
        make_builder: MakeBuilder,
        backend: str = "cuda",
        sandbox: Sandbox | None = None,
        timing_lock: Path | None = None,
        limits: Limits | None = None,
        sanitizer: Path | None = None,
    ) -> None:
        super().__init__(operator, timing_lock or lock.device_lock_path(device.facts.uuid), limits)
        self.device = device
        self._timing_cores = timing_cores()
        self._building_cores = os.sched_getaffinity(0) - set().union(*self._timing_cores)
        self._facts, self._backend = compiler, backend
        self._sanitizer = sanitizer
        self.profile = Profile()
        """Of the last audit or timing, where one runs at a time."""
        rng = np.random.default_rng(secrets.randbits(128))
        self._vault = Vault(device, operator, self._reference, rng, CHECKED_MESSAGES * self._limits.message_bytes)
        self._inputs, self._outputs = self._allocate()
        self._empty = bare(self._empty_candidate().sources)
        self._zygote: Zygote | None = None
        self._spares = Spares(self._blank, self._reap)
        self._sandbox, self._refusal = self._start(sandbox)
        self._candidate_builder = make_builder(self._native, self._sandbox, self._limits, self._scratch)

    def environment(self) -> machine.Environment:
        """Machine, device, packages and sandbox."""
        facts, toolchain = self.device.facts, self._facts
        versions = self._zygote.versions if self._zygote else {}
        return machine.Environment(
            machine=platform.machine(),
            cpu_model=machine.cpu_model(),
            simd_bits=0,
            l1_bytes=machine.l1_bytes(),
            compiler=toolchain.name,
            compiler_version=toolchain.version,
            flags=toolchain.flags,
            kernel_release=platform.release(),
            sandbox=self._sandbox.kind.value,
            harness_digest=machine.harness_digest(HERE),
            toolchain_digest=toolchain.digest,
            device=f"{facts.name} {facts.uuid}",
            packages={"driver": facts.driver, **versions},
            physics=self._ceilings,
        )

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """As on the CPU, but all of it under the device's lock once the candidate is built.

        What will be timed is loaded and captured beside the checks.
        """
        progress = Progress()
        with self._profiled():
            try:
                self._ready()
                self._build(candidate, progress)
                with self._device_held():
                    self._check_and_time(root, incumbent, progress)
            except AuditFailure as failure:
                return progress.failed(self._judged(failure))
            return progress.verified(CANDIDATE)

    def time(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> TimingOutcome:
        """As on the CPU, with a profile."""
        with self._profiled():
            return super().time(candidate, root, incumbent)

    def _check_and_time(self, root: Candidate, incumbent: Callable[[], Candidate], progress: Progress) -> None:
        arms = self._arms(root, incumbent, progress)
        with ExitStack() as stack, self._session(arms) as session:
            with session.starting(SCREEN):
                runners = self._checkers(stack, progress)
                self._check_in(runners, progress)
            session.repeating = runners[1]
            started = time.perf_counter()
            try:
                self._time_in(session, arms, progress, lambda: self._check_before_promotion(runners, progress))
            finally:
                progress.timing_s = time.perf_counter() - started

    def _arms(self, root: Candidate, incumbent: Callable[[], Candidate], progress: Progress) -> dict[str, Artifact]:
        assert progress.artifact is not None, "it was just built"
        best = incumbent()
        progress.incumbent = best.name
        known = {name: self._known_artifact(name, arm) for name, arm in ((ROOT, root), (INCUMBENT, best))}
        return {**known, CANDIDATE: progress.artifact}

    @contextmanager
    def _profiled(self) -> Iterator[None]:
        self.profile.clear()
        with self.profile.phase("all"):
            yield

    @contextmanager
    def _device_held(self) -> Iterator[None]:
        """The device's lock; processes for whoever holds it next begin to start before it is given back."""
        with lock.held(self._timing_lock):
            try:
                yield
            finally:
                with suppress(AuditFailure):
                    self._spares.prepare(SPARES)

    def close(self) -> None:
        """End every process, give the device's memory back and remove the temporary files."""
        self._spares.close()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        self.device.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _allocate(self) -> tuple[DeviceInputs, DeviceOutputs]:
        """The two buffers that processes share with us: checks' messages first, then those that are timed."""
        inputs, outputs = self._vault.shared_bytes()
        return (
            DeviceInputs(self.device, self.device.allocate(inputs)),
            DeviceOutputs(self.device, self.device.allocate(outputs + GUARD_BYTES)),
        )

    def _start(self, wanted: Sandbox | None) -> tuple[Sandbox, str | None]:
        """The box in use and why a wanted one does not work. Raises MissingToolchain when nothing starts at all."""
        refusal = "no sandbox was tried"
        for box in (wanted,) if wanted is not None else (Sandbox(SandboxKind.LANDLOCK), Sandbox(SandboxKind.NONE)):
            try:
                self._zygote = Zygote(self._settings(box))
                self._prove_health()
                self._ceilings = self._measured()
                self._spares.prepare(SPARES)
                return box, None
            except AuditFailure as failure:
                refusal = failure.evidence
                if self._zygote is not None:
                    self._zygote.close()
                    self._zygote = None
        if wanted is None:
            raise MissingToolchain(f"no process for candidates starts here: {refusal}")
        return wanted, refusal

    def _measured(self) -> Mapping[str, float]:
        assert self._zygote is not None, "a process was just seen to start"
        with self._blank() as runner:
            runner.started()
            return device_ceilings(self.device, runner, self._zygote.versions)

    def _settings(self, box: Sandbox) -> Settings:
        facts = self.device.facts
        library = None if box.kind is SandboxKind.NONE else self._native.box
        return Settings(self._backend, library, self._scratch, self._facts.flags, facts.visible, facts.paths)

    def _starter(self) -> Starter:
        assert self._zygote is not None, "a refused sandbox ends an audit before anything starts"
        shared = self.device.share((self._inputs.buffer, self._outputs.buffer))
        return Starter(self._zygote, self._limits, self._scratch, shared, self.profile)

    def _empty_candidate(self) -> Candidate:
        """Every entry, doing nothing: what is left is the price of a message."""
        return Candidate("empty", {"kernel.py": "".join(f"def {name}(*tensors): pass\n" for name in self._symbols)})

    def _blank(self) -> DeviceRunner:
        """A process without a candidate, on buffers that all processes share; its own record of the poison."""
        return DeviceRunner(self._starter(), self._inputs, DeviceOutputs(self.device, self._outputs.buffer))

    def _reap(self) -> None:
        if self._zygote is not None:
            self._zygote.reap_abandoned()

    def _prove_health(self) -> None:
        """Load the empty candidate in a fresh process and see a word through the device."""
        with self._blank() as runner:
            runner.load(self._empty, self._symbols)
        self.device.fill(self._outputs.buffer, 0, 4, 0x5AFE5AFE)
        self.device.settle()
        if bytes(self.device.download(self._outputs.buffer, 0, 4)) != b"\xfe\x5a\xfe\x5a":
            raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, "the device does not give back what was written")

    def _ready(self) -> None:
        """Raises InfrastructureFailed when the box is refused; starts the zygote again when it has died."""
        if self._refusal is not None:
            evidence = f"{self._sandbox.kind.value} does not work here: {self._refusal}"
            raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, evidence)
        with self._building:
            if self._zygote is not None and not self._zygote.alive:
                self._restart()

    def _built(self, candidate: Candidate, due: Sequence[Case]) -> Artifact:
        """Away from the cores that time; a shape that is due and was not compiled for is compiled as it runs."""
        with self.profile.phase("build"), on_cores(self._building_cores):
            return self._candidate_builder.build(candidate, due)

    def _build(self, candidate: Candidate, progress: Progress) -> None:
        """Compiled for what is due."""
        progress.due = self._due(candidate, progress)
        progress.built(self._artifact(candidate, progress.due))

    def _check(self, candidate: Candidate, progress: Progress) -> None:
        self._build(candidate, progress)
        with self._device_held(), ExitStack() as stack:
            self._check_in(self._checkers(stack, progress), progress)

    def _checkers(self, stack: ExitStack, progress: Progress) -> tuple[DeviceRunner, DeviceRunner]:
        """Two processes of the candidate that are never timed; the second one runs it without graphs."""
        assert progress.artifact is not None, "checks follow the build"
        started = time.perf_counter()
        try:
            first, second = (stack.enter_context(self._spares.take(graphs)) for graphs in (True, False))
            for runner in (first, second):
                runner.load(progress.artifact, self._symbols)
                progress.tally.passed["identity"] += 1
            return first, second
        finally:
            progress.check_s += time.perf_counter() - started

    def _check_in(self, runners: tuple[DeviceRunner, DeviceRunner], progress: Progress) -> None:
        """Every case that is due. The processes are stopped afterwards."""
        started = time.perf_counter()
        parts = (self.operator, self._reference, *runners, self._inputs, self._limits.message_bytes)
        try:
            for runner in runners:
                runner.thaw()
            with self.profile.phase("checks"):
                BatchedChecker(*parts, progress.tally).run(progress.due)
        finally:
            for runner in runners:
                runner.freeze()
            progress.printed = runners[0].printed()
            progress.check_s += time.perf_counter() - started

    def _check_before_promotion(self, runners: tuple[DeviceRunner, DeviceRunner], progress: Progress) -> None:
        """All timed shapes, of which every audit checks a few drawn in secret; compute-sanitizer where one is used."""
        assert progress.artifact is not None, "it was timed"
        progress.due = tuple(timed_cases(self.operator))
        self._check_in(runners, progress)
        if self._sanitizer is not None:
            with self.profile.phase("sanitizer"):
                parts = (self._settings(self._sandbox), self.operator, self._reference)
                progress.tally.passed["sanitizer"] += Sanitizer(self._sanitizer, *parts).check(progress.artifact)

    def _time_stages(self, arms: Mapping[str, Artifact], progress: Progress) -> None:
        """Under the device's lock."""
        try:
            with self._session(arms) as session:
                self._time_in(session, arms, progress)
        finally:
            with suppress(AuditFailure):
                self._spares.prepare(SPARES)

    def _time_in(
        self,
        session: DeviceSession,
        arms: Mapping[str, Artifact],
        progress: Progress,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """A screen, and a confirmation of what it leaves, for which processes start beside a last `check`.

        The root is an arm of its own unless it is the incumbent.
        """
        with self.profile.phase("screen"):
            progress.screen = stages.screen(session, self._weights, SCREEN)
        self._believe(session, progress.screen, progress)
        if not statistics.screen(progress.screen, self._weights):
            return
        wanted = CONFIRMATION if arms[ROOT].digest == arms[INCUMBENT].digest else BESIDE_ROOT
        with session.starting(wanted, CONFIRMING_SETS):
            check()
        with self.profile.phase("confirmation"):
            progress.confirmation = stages.confirm(session, self._weights, self._bounds, wanted)
        self._believe(session, progress.confirmation, progress)

    def _judged(self, failure: AuditFailure) -> AuditFailure:
        """As on the CPU, with a second look from a new zygote before the device is called faulty.

        Under the device's lock: a healthy process writes where another audit's checks would, and a new zygote ends the
        processes of the old one.
        """
        if failure.verdict not in RUNNER_FAULTS:
            return failure
        with lock.held(self._timing_lock):
            judged = super()._judged(failure)
            if judged is failure or self._zygote is None:
                return judged
            with self._building:
                self._restart()
            return super()._judged(failure)

    def _restart(self) -> None:
        assert self._zygote is not None, "there was one"
        self._spares.waiting.clear()
        self._zygote.close()
        self._zygote = Zygote(self._settings(self._sandbox))

    @contextmanager
    def _session(self, arms: Mapping[str, Artifact]) -> Iterator[DeviceSession]:
        parts = (self._spares, arms, self._empty, self._vault, self._inputs, self._outputs, self.profile)
        own = DeviceSession(self.operator, self._reference, *parts, self._timing_cores, self._pace(arms))
        try:
            yield own
        finally:
            own.close()
        if own.pace is not None:
            self._paces[_pacer(arms)] = own.pace

    def _pace(self, arms: Mapping[str, Artifact]) -> Pace | None:
        """What an earlier session measured of the arm that sets the pace."""
        return self._paces.get(_pacer(arms))

    def _broken_twin(self, root: Candidate) -> Candidate:
        """As on the CPU; it is ours, so that its source is not asked, and it is compiled as it runs."""
        twin = broken_twin(root, [entry for entry in self.operator.entries if entry.path == "decode"])
        with self._building:
            self._artifacts[twin.digest] = bare(twin.sources)
        return twin

    def _sound_baseline(self, baseline: Candidate) -> Artifact:
        with lock.held(self._timing_lock):
            return super()._sound_baseline(baseline)

    def _believe(self, session: Repeatable, blocks: Blocks, progress: Progress) -> None:
        """As on the CPU; besides, the candidate's own clock must agree and the device must be idle after it.

        Raises InfrastructureFailed before anything is laid at the candidate's door where others were on the device.
        """
        assert isinstance(session, DeviceSession), "the sessions of this harness are"
        record, floor_ns = session.record, float(np.median(blocks.floor_ns))
        if floor_ns > MOST_FLOOR_NS:
            others = f"an empty message took {floor_ns / 1e6:.1f} ms: something else is using the device or the cores"
            raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, others)
        if progress.artifact is not None:
            facts = {**progress.artifact.resources, **record.summary()}
            progress.artifact = replace(progress.artifact, resources=facts)
        super()._believe(session, blocks, progress)
        # First, as what a candidate leaves running is in the way of the other arms too.
        if evidence := record.kept_busy():
            raise CandidateFailed(Correctness.CLOCK_DISPUTED, evidence)
        if evidence := record.disturbed(floor_ns):
            raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, evidence)
        if evidence := record.disputed(CANDIDATE, floor_ns):
            raise CandidateFailed(Correctness.CLOCK_DISPUTED, evidence)
        progress.tally.passed["clock"] += 1


def _pacer(arms: Mapping[str, Artifact]) -> str:
    """The digest of the artifact whose speed decides how many calls fill a message."""
    return (arms.get(INCUMBENT) or next(iter(arms.values()))).digest
