"""One runner process: started in its box, told what to load and call, believed in nothing.

Every way in which it can fail becomes a CandidateFailed with a verdict, or an InfrastructureFailed when its box
was refused.
"""

import ctypes
import errno
import os
import re
import select
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.failure import CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.layout import Layout
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.memory import Inputs, Outputs
from kernelbraid.kernels.audit.native import Elapsed, Errand, Native, Span, Stop, Stopwatch, Swapped, Visit
from kernelbraid.kernels.audit.outcome import LOG_LIMIT_BYTES, Correctness, Infrastructure
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind

LOAD, PREPARE, GO, DROP, READY, DONE, ERR = 1, 2, 3, 4, 16, 17, 18
REFUSED = 125
_FRAME = struct.Struct("<II")
_FAULT = struct.Struct("<iiiiiiQq")
_PAYLOAD_BYTES = {READY: 0, DONE: 8}
_IN_INPUT, _IN_GUARD = 1, 2
_STOP_WAIT_S = 1.0
_WORKED_NS = 50_000
"""Processor time between an answer and the next message that no runner needs: it only goes to wait there."""
_WORKED_TIMES, _WORKED_RATIO = 5, 0.15
"""So often and so often a visit, as a machine that stops for a moment looks like work once or twice."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """What every runner of a harness shares."""

    native: Native
    stopwatch: Stopwatch
    sandbox: Sandbox
    limits: Limits


class Runner:
    """A candidate's process. Use as a context manager; it dies with it, and with this process."""

    def __init__(self, launcher: Launcher, artifact: Artifact, inputs: Inputs, cpu: int, output_bytes: int) -> None:
        self._launcher = launcher
        self._cpu = cpu
        self._entry_index: dict[str, int] = {}
        self.outputs = Outputs(output_bytes)
        self._printed = os.memfd_create("printed", os.MFD_CLOEXEC)
        self._process, self.pid, self._command, self._reply = self._start(artifact, inputs)
        self._boxed = False
        self._answered_ns = ctypes.c_int64()
        """Processor time that it had used at its last answer."""
        self._visits = self._worked = 0
        self._thawed = False
        self._leftover = select.poll()
        self._leftover.register(self._reply, select.POLLIN)
        try:
            self._expect(READY, b"", launcher.limits.load_s)
            self._boxed = True
        except BaseException:
            self.close()
            raise

    def load(self, symbols: Sequence[str]) -> None:
        """Load the artifact and find its entries; its constructors run now. Returns when it is ready."""
        self._entry_index = {symbol: index for index, symbol in enumerate(symbols)}
        names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
        payload = struct.pack("<I", len(symbols)) + names
        self._expect(READY, _FRAME.pack(LOAD, len(payload)) + payload, self._launcher.limits.load_s)

    def prepare(self, layout: Layout) -> None:
        """Map a layout. Returns when the runner is ready for its inputs."""
        payload = layout.frame(self._entry_index)
        self._expect(READY, _FRAME.pack(PREPARE, len(payload)) + payload, self._launcher.limits.load_s)

    def go(self, layout: Layout, freeze: bool) -> Elapsed:
        """Release the layout's calls. The time until DONE; a frozen runner is stopped before this returns.

        Raises CandidateFailed when it crashed, hung, ended, printed too much, ran out of memory, forged a reply or
        kept working between its answers and the next messages.
        """
        self._refuse_work(self._used_ns() - self._answered_ns.value)
        elapsed = self._expect(DONE, _release(layout), self._launcher.limits.call_s, freeze)
        if freeze:
            self._wait_for_state("TtZX", Correctness.HUNG, "it could not be stopped")
        return elapsed

    def errand(self, layout: Layout, inputs: "ctypes.Array[Swapped]", spans: "ctypes.Array[Span]") -> Errand:
        """What a visit takes: the layout's message, the inputs that change before it, the memory that it is about."""
        due, call_s = _FRAME.pack(DONE, _PAYLOAD_BYTES[DONE]), self._launcher.limits.call_s
        answer_bytes = len(due) + _PAYLOAD_BYTES[DONE]
        pipes = (self._command, self._reply, self.pid)
        return Errand(*pipes, call_s, _release(layout), due, answer_bytes, inputs, spans)

    def stop(
        self,
        errand: Errand,
        draws: NDArray[np.float64],
        messages: int,
        near: bool = True,
        freeze: bool = False,
        below_ns: int = 0,
        waited_ns: int = 0,
    ) -> Stop:
        """A stop at this runner on the stopwatch's tour, as `Stop` says; `heard` judges what came of it."""
        return Stop(errand, draws, messages, self._answered_ns, near, freeze, below_ns, waited_ns)

    def heard(self, errand: Errand, visit: Visit) -> None:
        """Take what came of a stop at this runner. A frozen runner is stopped before this returns. Raises as `go`."""
        if visit.error == errno.EBADMSG:
            self._refuse_leftovers()
        if visit.error == errno.ETIMEDOUT:
            raise self._hung(errand.timeout_s)
        if visit.error:
            raise OSError(visit.error, os.strerror(visit.error))
        self._refuse_work(visit.between_ns)
        self._refuse_other(DONE, visit.answer)
        if visit.frozen:
            self._wait_for_state("TtZX", Correctness.HUNG, "it could not be stopped")

    def thaw(self, settle: bool = False) -> None:
        """Let a frozen runner go on, and with `settle` wait until it waits for its next message.

        One that is gone is noticed at the next message. Raises CandidateFailed when it does not come to rest.
        """
        self._thawed = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        if settle:
            self._wait_for_state("SZX", Correctness.CLOCK_DISPUTED, "it went on working after its answer")

    def printed(self) -> bytes:
        """What it printed, from the start."""
        return os.pread(self._printed, LOG_LIMIT_BYTES, 0)

    def close(self) -> None:
        """Kill it and give everything back."""
        self._process.kill()
        self._process.wait()
        for descriptor in (self._command, self._reply, self._printed):
            os.close(descriptor)
        self.outputs.close()

    def __enter__(self) -> Self:
        """The runner itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it."""
        self.close()

    def _start(self, artifact: Artifact, inputs: Inputs) -> "tuple[subprocess.Popen[bytes], int, int, int]":
        """The process, the runner's own id (in bubblewrap that is its child's), and our ends of the pipes."""
        theirs, command = os.pipe()
        reply, their_reply = os.pipe()
        told, report = os.pipe()
        image = artifact.open()
        passed = (theirs, their_reply, image, inputs.descriptor, self.outputs.descriptor, report)
        try:
            process = self._spawn(passed, inputs.size_bytes + self.outputs.size_bytes)
        except OSError as error:
            for descriptor in (command, reply, told):
                os.close(descriptor)
            raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, f"no process starts: {error}") from error
        finally:
            for descriptor in (theirs, their_reply, image, report):
                os.close(descriptor)
        return process, self._told_pid(process, told), command, reply

    def _spawn(self, passed: tuple[int, ...], mapped_bytes: int) -> "subprocess.Popen[bytes]":
        limits, launcher = self._launcher.limits, self._launcher
        *files, report = passed
        bounds = (self._cpu, limits.address_bytes + mapped_bytes, limits.cpu_s, limits.printed_bytes)
        numbers = map(str, (*files, launcher.sandbox.box, *bounds))
        return subprocess.Popen(
            [*launcher.sandbox.prefix((launcher.native.runner,), (), report), str(launcher.native.runner), *numbers],
            pass_fds=passed,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=self._printed,
            # Out of the terminal's group: Ctrl-C is a request to the driver, not a verdict on a candidate.
            start_new_session=True,
        )

    def _told_pid(self, process: "subprocess.Popen[bytes]", told: int) -> int:
        """The process to stop and to time."""
        with os.fdopen(told, "rb") as report:
            if self._launcher.sandbox.kind is not SandboxKind.BUBBLEWRAP:
                return process.pid
            match = re.search(rb'"child-pid":\s*(\d+)', _said(report.fileno(), self._launcher.limits.load_s))
            return int(match[1]) if match else process.pid

    def _expect(self, kind: int, message: bytes, timeout_s: float, freeze: bool = False) -> Elapsed:
        """Send a message (none is sent when empty), wait for a frame of that kind; how long it took."""
        if message:
            self._refuse_leftovers()
        try:
            process = self.pid if kind == DONE else 0
            answer, elapsed = self._launcher.stopwatch.round_trip(
                self._command, self._reply, message, timeout_s, process, freeze
            )
        except TimeoutError as error:
            raise self._hung(timeout_s) from error
        self._answered_ns.value = self._used_ns()
        self._refuse_other(kind, answer)
        return elapsed

    def _hung(self, timeout_s: float) -> CandidateFailed:
        return CandidateFailed(Correctness.HUNG, f"no answer within {timeout_s:g} s", self.printed())

    def _refuse_other(self, kind: int, answer: bytes) -> None:
        """Raises unless the answer is a frame of that kind and of its size."""
        due = _FRAME.pack(kind, _PAYLOAD_BYTES[kind])
        if not answer.startswith(due) or len(answer) != len(due) + _PAYLOAD_BYTES[kind]:
            raise self._failure(kind, answer)

    def _refuse_leftovers(self) -> None:
        """Nothing may lie in the reply pipe before a question is asked."""
        if self._leftover.poll(0) == [(self._reply, select.POLLIN)]:
            found = os.read(self._reply, 512)
            evidence = f"{len(found)} bytes more than its answer lay in the reply pipe, from {found[:16].hex(' ')}"
            raise CandidateFailed(Correctness.FORGED_REPLY, evidence, self.printed())

    def _refuse_work(self, worked_ns: int) -> None:
        """A runner has nothing to do between an answer and the next visit: what it does then escapes the clock.

        Within a visit the next message is sent at once, and its time tells of any work before it. To be stopped and to
        go on again is work too, of a busy machine's, so that a visit after that does not count against it.
        """
        self._visits += 1
        self._worked += worked_ns > _WORKED_NS and not self._thawed
        self._thawed = False
        if self._worked >= max(_WORKED_TIMES, _WORKED_RATIO * self._visits):
            evidence = (
                f"it used {worked_ns / 1000:.0f} us of processor time between its answer and the next message, "
                f"and more than {_WORKED_NS / 1000:.0f} us {self._worked} times in {self._visits} visits"
            )
            raise CandidateFailed(Correctness.CLOCK_DISPUTED, evidence, self.printed())

    def _used_ns(self) -> int:
        """The kernel's account of the processor time that the runner has used."""
        try:
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        except OSError:
            return self._answered_ns.value

    def _failure(self, due: int, answer: bytes) -> CandidateFailed | InfrastructureFailed:
        """Why the expected frame did not come. What a runner says of its box counts only before it loads anything."""
        found, size = _FRAME.unpack_from(answer) if len(answer) >= _FRAME.size else (0, 0)
        payload = answer[_FRAME.size :]
        whole = found == ERR and len(payload) == size
        fault = _FAULT.unpack(payload) if whole and size == _FAULT.size else None
        text = payload.decode("utf-8", errors="replace") if whole and fault is None else ""
        if text.startswith("refused:") and not self._boxed:
            return InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, f"the runner's box was {text}")
        if text and due == READY:
            verdict = Correctness.OUT_OF_MEMORY if text.startswith("no memory") else Correctness.LOAD_FAILED
            return CandidateFailed(verdict, text, self.printed())
        status = self._end()
        if status == REFUSED and not self._boxed:
            return InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, f"the runner's box: {self.printed()[-300:]!r}")
        verdict, evidence = _fault_verdict(fault) if fault else _exit_verdict(status, answer)
        return CandidateFailed(verdict, evidence, self.printed())

    def _end(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None when it had to be killed.

        It may have been frozen, as after an answer, between closing its pipe and its end.
        """
        self.thaw()
        try:
            code = self._process.wait(_STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        boxed = self._launcher.sandbox.kind is SandboxKind.BUBBLEWRAP and code > 128
        return 128 - code if boxed else code

    def _wait_for_state(self, states: str, otherwise: Correctness, evidence: str) -> None:
        deadline = time.monotonic() + _STOP_WAIT_S
        while (state := _state(self.pid)) not in states:
            if time.monotonic() > deadline:
                raise CandidateFailed(otherwise, f"{evidence} (state {state})", self.printed())
            os.sched_yield()


def _release(layout: Layout) -> bytes:
    """The message that releases the layout's calls."""
    return _FRAME.pack(GO, 4) + struct.pack("<I", layout.index)


def _fault_verdict(fault: tuple[int, ...]) -> tuple[Correctness, str]:
    number, code, region, write, system_call, out_of_memory, address, beyond = fault
    if number in (signal.SIGXFSZ, signal.SIGXCPU):
        return _exit_verdict(-number)
    if number == signal.SIGSYS:
        return Correctness.FORBIDDEN_CALL, f"system call {system_call} is not allowed to a kernel"
    if region == _IN_INPUT and write:
        return Correctness.INPUT_WRITTEN, f"it wrote to an input at {address:#x}, which is mapped read-only"
    if region == _IN_GUARD and write:
        where = f"{_beyond(beyond)}, at {address:#x}"
        return Correctness.GUARD_OVERWRITTEN, f"it wrote into the guard pages beside an output, {where}"
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if out_of_memory:
        return Correctness.OUT_OF_MEMORY, f"memory ran out, then {name} at address {address:#x}"
    return Correctness.CRASHED, f"{name} (code {code}) at address {address:#x}"


def _beyond(offset: int) -> str:
    return f"{-offset} bytes before its window" if offset < 0 else f"{offset} bytes past the end of its window"


def _exit_verdict(status: int | None, answer: bytes = b"") -> tuple[Correctness, str]:
    if answer:
        return Correctness.FORGED_REPLY, f"{len(answer)} bytes that are no answer came, from {answer[:16].hex(' ')}"
    if status is None:
        return Correctness.FORGED_REPLY, "it closed the pipe of its replies and ran on"
    if status >= 0:
        return Correctness.EXITED_EARLY, f"the process ended with status {status} before its call was done"
    if -status == signal.SIGXFSZ:
        return Correctness.OUTPUT_FLOOD, "it printed more than a candidate may"
    if -status == signal.SIGXCPU:
        return Correctness.HUNG, "it used up its processor time"
    if -status == signal.SIGSYS:
        return Correctness.FORBIDDEN_CALL, "it asked the system for what a kernel may not"
    if -status == signal.SIGKILL:
        return Correctness.OUT_OF_MEMORY, "the system killed it, as it does when the machine's memory runs out"
    return Correctness.CRASHED, f"the process was killed by signal {-status}"


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


def _said(descriptor: int, timeout_s: float) -> bytes:
    """All that bubblewrap says of its child (one JSON object), which it does before the runner starts.

    Read to its end, because bubblewrap dies of a pipe that nobody reads.
    """
    said, deadline = b"", time.monotonic() + timeout_s
    while b"}" not in said:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(descriptor, 4096) if ready else b""
        if not part:
            break
        said += part
    return said
