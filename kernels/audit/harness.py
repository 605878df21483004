"""The audit of one operator's C implementations on this machine's processor.

The harness never loads a candidate. It owns the seeds, the reference, the clock and the lock, and returns what
happened as an outcome; only a machine without a usable compiler raises, at construction.
"""

import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from kernelbraid.kernels.audit import environment as machine
from kernelbraid.kernels.audit import lock, physics, plan, stages, statistics, twins
from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.auditor import Auditor
from kernelbraid.kernels.audit.beside import Beside
from kernelbraid.kernels.audit.build import Builder
from kernelbraid.kernels.audit.checks import Case, Checker, timed_cases
from kernelbraid.kernels.audit.clock import Session
from kernelbraid.kernels.audit.cores import on_cores
from kernelbraid.kernels.audit.failure import AuditFailure, InfrastructureFailed
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.memory import Inputs
from kernelbraid.kernels.audit.native import Stopwatch
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    ROOT,
    AuditOutcome,
    Candidate,
    Infrastructure,
)
from kernelbraid.kernels.audit.progress import Progress
from kernelbraid.kernels.audit.runner import Launcher, Runner
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind, candidates
from kernelbraid.kernels.audit.timed_inputs import TimedInputs
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain


class Harness(Auditor):
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
        super().__init__(operator, timing_lock or lock.machine_lock_path(), limits)
        self._compiler_stamp = _stamp(Path(self._compiler.prefix[0]))
        self._stopwatch = Stopwatch(self._native.stopwatch)
        self._ceilings = physics.ceilings(self._native.ceilings)
        self._timed = TimedInputs(operator, self._reference, Inputs(self._limits.input_bytes))
        self._one_session = threading.Lock()
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

    def audit(self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate]) -> AuditOutcome:
        """Build it, then check it and beside that time it against root and incumbent under the machine's lock.

        `incumbent` is called only once the lock is held, so that it names the best of that moment.
        """
        progress = Progress()
        try:
            self._ready()
            progress.built(self._artifact(candidate))
            self._check_and_time(candidate, root, incumbent, progress)
        except AuditFailure as failure:
            return progress.failed(self._judged(failure))
        return progress.verified(CANDIDATE)

    def _check_and_time(
        self, candidate: Candidate, root: Candidate, incumbent: Callable[[], Candidate], progress: Progress
    ) -> None:
        """Beside each other where there are cores for both. What a check finds counts before what timing finds, which
        it ends. Raises AuditFailure."""
        checks = Beside()
        try:
            with checks:
                checks.start(lambda: self._run_checks(self._due(candidate, progress), progress))
                if self._timing_cpu in self._other_cpus:
                    checks.wait()
                else:
                    progress.checks = checks
                self._time_arms(candidate, root, incumbent, progress)
                if progress.checks is None and progress.confirmation is not None:
                    self._check_timed_shapes(checks, progress)
        except AuditFailure:
            if checks.failed:
                progress.forget_times()
            raise
        finally:
            progress.check_s += checks.waited_s

    def close(self) -> None:
        """Remove the temporary files; processes end with the audit that started them."""
        self._timed.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

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

    def _prove_health(self) -> None:
        if self._floor is not None:
            self._health_check(self._sandbox, self._floor)

    def _built(self, candidate: Candidate, due: Sequence[Case]) -> Artifact:
        return self._builder(self._sandbox).build(candidate)

    def _ready(self) -> None:
        """Raises InfrastructureFailed when the box is refused or the compiler is another than at the start."""
        if self._refusal is not None:
            evidence = f"{self._sandbox.kind.value} does not work here: {self._refusal}"
            raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, evidence)
        if _stamp(Path(self._compiler.prefix[0])) != self._compiler_stamp:
            evidence = f"{self._compiler.prefix[0]} was replaced while this harness was in use"
            raise InfrastructureFailed(Infrastructure.ENVIRONMENT_CHANGED, evidence)

    def _check(self, candidate: Candidate, progress: Progress) -> None:
        progress.built(self._artifact(candidate))
        started = time.perf_counter()
        try:
            self._run_checks(self._due(candidate, progress), progress)
        finally:
            progress.check_s += time.perf_counter() - started

    def _broken_twin(self, root: Candidate) -> Candidate:
        return twins.broken_twin(root, [entry for entry in self.operator.entries if entry.path == "decode"])

    def _check_timed_shapes(self, checks: Beside, progress: Progress) -> None:
        """All of them for whom a confirmation is worth its time; anyone else had some, drawn in secret."""
        if due := tuple(timed_cases(self.operator)):
            checks.start(lambda: self._run_checks(due, progress))

    def _run_checks(self, due: Sequence[Case], progress: Progress) -> None:
        assert progress.artifact is not None, "checks follow the build"
        launcher, size = self._launcher(self._sandbox), self._limits.output_bytes
        with on_cores(self._other_cpus), _inputs(self._limits.input_bytes) as inputs:
            first = Runner(launcher, progress.artifact, inputs, -1, size)
            with first, Runner(launcher, progress.artifact, inputs, -1, size) as second:
                first.load(self._symbols)
                second.load(self._symbols)
                progress.tally.passed["identity"] += 2
                parts = (self.operator, self._reference, first, second, inputs, self._limits.message_bytes)
                try:
                    Checker(*parts, progress.tally).run(due)
                finally:
                    progress.printed = first.printed()

    def _time_stages(self, arms: Mapping[str, Artifact], progress: Progress) -> None:
        rooted = arms[ROOT].digest == arms[INCUMBENT].digest
        with on_cores(frozenset([self._timing_cpu])), self._session(arms) as session:
            if progress.checks is not None:
                session.look = progress.checks.look
            progress.screen = stages.screen(session, self._weights, self._screening)
            self._believe(session, progress.screen, progress)
            session.copies.clear()
            if statistics.screen(progress.screen, self._weights):
                if progress.checks is not None:
                    self._check_timed_shapes(progress.checks, progress)
                wanted = self._confirming
                progress.confirmation = stages.confirm(
                    session, self._weights, self._bounds, wanted, beside_root=not rooted
                )
                self._believe(session, progress.confirmation, progress)

    @contextmanager
    def _session(self, arms: Mapping[str, Artifact]) -> Iterator[Session]:
        assert self._floor is not None, "a refused sandbox ends an audit before it is timed"
        launcher = self._launcher(self._sandbox)
        parts = (arms, self._floor, self._timing_cpu, self._timed, self._paces)
        with self._one_session, closing(Session(self.operator, self._reference, launcher, *parts)) as session:
            yield session


@contextmanager
def _inputs(size_bytes: int) -> Iterator[Inputs]:
    inputs = Inputs(size_bytes)
    try:
        yield inputs
    finally:
        inputs.close()


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.resolve().stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
