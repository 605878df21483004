"""One candidate's process, seen from the auditor: told what to load and call, timed from outside, believed in nothing.

It offers what the CPU's runner offers, so that the same checks run over both.
"""

import json
import os
import select
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.cuda import frames
from kernelbraid.kernels.audit.cuda.device import Shared
from kernelbraid.kernels.audit.cuda.frames import Kind, PlacedCall, Space, TensorPlace, Trouble
from kernelbraid.kernels.audit.cuda.launcher import Zygote, kill_group
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs, DeviceOutputs
from kernelbraid.kernels.audit.cuda.profile import Profile
from kernelbraid.kernels.audit.cuda.sources import CACHE, SOURCES, unpacked
from kernelbraid.kernels.audit.failure import CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.layout import Layout, Place
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.outcome import LOG_LIMIT_BYTES, Correctness, Infrastructure

DATA_BYTES = 16 << 30
"""Writable private memory of one process; a device's driver reserves far more address space than it writes."""
PRINTED_BYTES = 16 << 20
"""Largest file, what it prints included; a compiler's files are smaller."""
_REPLY_BYTES = 512
_END_S = 1.0
_REQUESTS = {int(kind): kind.name.lower() for kind in Kind}
_SETTLE_S = 0.0005
"""What a late writer gets after it was let go on and before the outputs are read again."""
_VERDICTS: Mapping[Trouble, Correctness] = {
    Trouble.LOAD: Correctness.LOAD_FAILED,
    Trouble.CALL: Correctness.CRASHED,
    Trouble.CAPTURE: Correctness.FORBIDDEN_CALL,
    Trouble.DEVICE: Correctness.CRASHED,
    Trouble.MEMORY: Correctness.OUT_OF_MEMORY,
    Trouble.COMPILE: Correctness.BUILD_FAILED,
}
_MEANING: Mapping[Trouble, str] = {
    Trouble.LOAD: "it could not be loaded",
    Trouble.CALL: "its host code failed",
    Trouble.CAPTURE: "it cannot be captured into a CUDA graph, so it waits, copies to the host or uses another stream",
    Trouble.DEVICE: "the device reported",
    Trouble.MEMORY: "memory ran out",
    Trouble.COMPILE: "its kernel does not compile",
}


class Answered(NamedTuple):
    """A DONE: the auditor's clock from the message to the last byte read back, and the child's own, advisory."""

    wall_ns: int
    advisory_ns: int


@dataclass(frozen=True, slots=True)
class Starter:
    """What every process of one harness shares."""

    zygote: Zygote
    limits: Limits
    scratch: Path
    shared: Shared
    profile: Profile = field(default_factory=Profile)


class DeviceRunner:
    """A candidate's process. Use as a context manager; nothing that it started outlives it.

    It starts blank, so that several can open the device side by side before anything is known of a candidate. With
    `graphs` every layout is captured once its first inputs are there and replayed ever after, which is how it is
    timed; without, it runs as it is.
    """

    def __init__(self, starter: Starter, inputs: DeviceInputs, outputs: DeviceOutputs, graphs: bool = True) -> None:
        self._starter, self.graphs = starter, graphs
        self.inputs, self.outputs = inputs, outputs
        self._entry_index: dict[str, int] = {}
        self._warm: set[int] = set()
        self._loaded = ""
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=starter.scratch))
        for name in (SOURCES, CACHE):
            (self._folder / name).mkdir()
        self._printed = os.memfd_create("printed", os.MFD_CLOEXEC)
        self._command, self._reply = -1, -1
        self._reaped = self._open = False
        self._status: int | None = None
        self.pid = self._start()

    def started(self) -> None:
        """Wait until its device is open and its box is closed.

        Raises InfrastructureFailed: nothing of the candidate has run yet.
        """
        if self._open:
            return
        answer = self._receive(self._starter.limits.load_s)
        if frames.FRAME.unpack_from(answer)[0] != Kind.READY:
            text = answer[frames.FRAME.size + 1 :].decode("utf-8", errors="replace")
            evidence = f"a candidate's process does not start: {text}"
            raise InfrastructureFailed(Infrastructure.SANDBOX_REFUSED, evidence, self.printed())
        self._open = True

    def load(self, artifact: Artifact, symbols: Sequence[str]) -> None:
        """Lay the candidate out, import its kernel.py and find its entries, unless that is done already."""
        if self._loaded == artifact.digest:
            return
        self.started()
        unpacked(artifact, self._folder)
        self._entry_index = {symbol: index for index, symbol in enumerate(symbols)}
        self._expect(Kind.READY, frames.frame(Kind.LOAD, "\0".join(symbols).encode()), self._starter.limits.load_s)
        self._loaded = artifact.digest

    def prepare(self, layout: Layout, packed: bytes | None = None) -> None:
        """Bind a layout's tensors; `packed` is what `packed_layout` made of it. Runs nothing of the candidate."""
        self._warm.discard(layout.index)
        message = frames.frame(Kind.PREPARE, packed or packed_layout(layout, self._entry_index))
        self._expect(Kind.READY, message, self._starter.limits.load_s)

    def capture(self, layout: Layout) -> None:
        """Run a call of each kind on the inputs that are there, then record all; every later GO replays."""
        message = frames.frame(Kind.CAPTURE, struct.pack("<I", layout.index))
        self._expect(Kind.READY, message, self._starter.limits.build_s)
        self._warm.add(layout.index)

    def go(self, layout: Layout, freeze: bool, limit_s: float | None = None) -> Answered:
        """One checked message, captured first where it is to be replayed; all is read back.

        Nothing of the run before a capture is left: outputs are poisoned again, and so is all memory of its own.
        `limit_s` is for calls that may still have to be compiled.
        Raises CandidateFailed when it crashed, hung, ended, or wrote to an input.
        """
        self.inputs.upload(layout)
        if self.graphs and layout.index not in self._warm:
            self.capture(layout)
            self.outputs.poison(layout)
        self.outputs.device.settle()
        self.sweep()
        answered = self.release(layout, lambda: None, limit_s)
        if freeze:
            self.freeze()
            self.outputs.hold(layout)
        self._inputs_whole(layout)
        return answered

    def release(self, layout: Layout, read_back: Callable[[], object], limit_s: float | None = None) -> Answered:
        """Send GO and wait for DONE; the clock stops once `read_back` has returned."""
        message = frames.frame(Kind.GO, struct.pack("<I", layout.index))
        warm = not self.graphs or layout.index in self._warm
        limit_s = limit_s or (self._starter.limits.call_s if warm else self._starter.limits.build_s)
        started_ns = time.monotonic_ns()
        payload = self._expect(Kind.DONE, message, limit_s)
        read_back()
        return Answered(time.monotonic_ns() - started_ns, frames.advisory_ns(payload))

    @property
    def build_s(self) -> float:
        """What a call may take that still has to be compiled."""
        return self._starter.limits.build_s

    def sweep(self) -> None:
        """Have it overwrite all memory that the candidate can have allocated; its kernels could keep state there."""
        self.begin_sweep()
        self.end_sweep()

    def begin_sweep(self) -> None:
        """The first half, so that the auditor can prepare its own memory meanwhile."""
        self._send(frames.frame(Kind.SWEEP), self._starter.limits.call_s)

    def end_sweep(self) -> None:
        """The second half; it looks out for the next message from here on."""
        self._await(Kind.READY, self._starter.limits.call_s)

    def measured(self) -> Mapping[str, float]:
        """The device's ceilings by trusted code; only in a process that loads no candidate."""
        payload = self._expect(Kind.READY, frames.frame(Kind.MEASURE), self._starter.limits.load_s)
        found: Mapping[str, float] = json.loads(payload)
        return found

    def freeze(self) -> None:
        """Stop its host code. What it launched on the device runs on: that is what reading again is for."""
        kill_group(self.pid, signal.SIGSTOP)

    def thaw(self, settle: bool = False) -> None:
        """Let it go on, and with `settle` give it a moment; one that is gone is noticed at the next message."""
        self.outputs.release()
        kill_group(self.pid, signal.SIGCONT)
        if settle:
            time.sleep(_SETTLE_S)

    def printed(self) -> bytes:
        """What it printed, from the start."""
        return os.pread(self._printed, LOG_LIMIT_BYTES, 0)

    def close(self) -> None:
        """Kill it and all that it started, and give everything back."""
        if not self._reaped:
            self._starter.zygote.abandon(self.pid)
        for descriptor in (self._command, self._reply, self._printed):
            os.close(descriptor)
        self.outputs.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        """The runner itself, started."""
        try:
            self.started()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it."""
        self.close()

    def _start(self) -> int:
        theirs, self._command = os.pipe()
        os.set_blocking(self._command, False)
        self._reply, their_reply = os.pipe()
        shared = self._starter.shared
        try:
            return self._starter.zygote.fork(self._config(), (theirs, their_reply, self._printed, *shared.descriptors))
        finally:
            for descriptor in (theirs, their_reply):
                os.close(descriptor)

    def _config(self) -> dict[str, object]:
        settings, cache = self._starter.zygote.settings, self._folder / CACHE
        sources = str(self._folder / SOURCES)
        return {
            "sources": sources,
            "cache": str(cache),
            "box": str(settings.library or ""),
            "reads": [*settings.reads, sources],
            "writes": [*settings.writes, str(cache)],
            "shared": dict(self._starter.shared.facts),
            "data_bytes": DATA_BYTES,
            "printed_bytes": PRINTED_BYTES,
            "cpu_s": self._starter.limits.cpu_s,
        }

    def _inputs_whole(self, layout: Layout) -> None:
        if written := self.inputs.first_written(layout):
            place, at = written
            evidence = f"it wrote to its input {place.tensor.name}, first at byte {at} of {place.bytes}"
            raise CandidateFailed(Correctness.INPUT_WRITTEN, evidence, self.printed())

    def _expect(self, kind: Kind, message: bytes, timeout_s: float) -> bytes:
        """Send a message and wait for a frame of that kind: its payload."""
        with self._starter.profile.phase(f"wait for {_REQUESTS[message[0]]}"):
            self._send(message, timeout_s)
            return self._await(kind, timeout_s)

    def _send(self, message: bytes, timeout_s: float) -> None:
        self._refuse_leftovers()
        if not _written(self._command, message, timeout_s):
            raise CandidateFailed(Correctness.HUNG, f"it took no message within {timeout_s:g} s", self.printed())

    def _await(self, kind: Kind, timeout_s: float) -> bytes:
        answer = self._receive(timeout_s, soon=kind is Kind.DONE)
        found, size = frames.FRAME.unpack_from(answer)
        payload = answer[frames.FRAME.size :]
        if found == kind and size == len(payload):
            return payload
        raise self._failure(found, payload)

    def _refuse_leftovers(self) -> None:
        """Nothing may lie in the reply pipe before a question is asked."""
        if _readable(self._reply, 0) and (found := os.read(self._reply, _REPLY_BYTES)):
            evidence = f"{len(found)} bytes more than its answer lay in the reply pipe, from {found[:16].hex(' ')}"
            raise CandidateFailed(Correctness.FORGED_REPLY, evidence, self.printed())

    def _receive(self, timeout_s: float, soon: bool = False) -> bytes:
        """One reply, `soon` where it is worth looking out for. Raises CandidateFailed when none comes."""
        if not (_soon_readable if soon else _readable)(self._reply, timeout_s):
            raise CandidateFailed(Correctness.HUNG, f"no answer within {timeout_s:g} s", self.printed())
        answer = os.read(self._reply, _REPLY_BYTES)
        if len(answer) < frames.FRAME.size:
            raise self._exit_failure()
        return answer

    def _failure(self, found: int, payload: bytes) -> CandidateFailed:
        """Why another frame came than the expected one."""
        trouble = payload[0] if found == Kind.ERR and payload else 0
        if trouble not in set(_VERDICTS):
            evidence = f"it answered {found:#x} with {payload[:16].hex(' ')} where that is no answer"
            return CandidateFailed(Correctness.FORGED_REPLY, evidence, self.printed())
        text = payload[1:].decode("utf-8", errors="replace")
        known = Trouble(trouble)
        return CandidateFailed(_VERDICTS[known], f"{_MEANING[known]}: {text}", self.printed())

    def _exit_failure(self) -> CandidateFailed:
        """It closed its end of the pipe: its own status says more than our signal's."""
        if not _ends(self.pid, _END_S):
            evidence = "it closed the pipe for its answers and went on"
            return CandidateFailed(Correctness.EXITED_EARLY, evidence, self.printed())
        status = self._end()
        if status is None:
            return CandidateFailed(Correctness.HUNG, "the process could not be ended", self.printed())
        return CandidateFailed(*_exit_verdict(status), self.printed())

    def _end(self) -> int | None:
        """Its wait status once it and its group are gone; None when it would not end."""
        if not self._reaped:
            self._reaped = True
            self._status = self._starter.zygote.reap(self.pid)
        return self._status


def _ends(pid: int, timeout_s: float) -> bool:
    """Whether the process ends by itself in time."""
    descriptor = os.pidfd_open(pid)
    try:
        return _readable(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def _readable(descriptor: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))


def _soon_readable(descriptor: int, timeout_s: float) -> bool:
    """As `_readable`, without going to sleep at once: to wake up takes longer than most answers, and varies."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    until_ns = time.monotonic_ns() + frames.LOOK_OUT_NS
    while not waiting.poll(0):
        if time.monotonic_ns() > until_ns:
            return bool(waiting.poll(timeout_s * 1000))
        os.sched_yield()
    return True


def _exit_verdict(status: int) -> tuple[Correctness, str]:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Correctness.EXITED_EARLY, f"the process ended with status {code} before its call was done"
    if -code == signal.SIGXFSZ:
        return Correctness.OUTPUT_FLOOD, "it wrote more than a candidate may"
    if -code == signal.SIGXCPU:
        return Correctness.HUNG, "it used up its processor time"
    if -code == signal.SIGKILL:
        return Correctness.OUT_OF_MEMORY, "the system killed it, as it does when the machine's memory runs out"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return Correctness.CRASHED, f"the process was killed by {name}"


def packed_layout(layout: Layout, entry_index: Mapping[str, int]) -> bytes:
    """What PREPARE says of a layout; the same for every process whose entries have these indices."""
    calls = tuple(
        PlacedCall(entry_index[call.entry.symbol], tuple(map(_tensor, (*call.inputs, *call.outputs))))
        for call in layout.calls
    )
    return frames.packed_calls(layout.index, calls)


def _tensor(place: Place) -> TensorPlace:
    space = Space.INPUT if place.window is None else Space.OUTPUT
    return TensorPlace(space, place.tensor.dtype, place.offset, place.shape)


def _written(descriptor: int, message: bytes, timeout_s: float) -> bool:
    """Whether the other side took the message in time; one that is gone shows when its answer is read."""
    view, deadline = memoryview(message), time.monotonic() + timeout_s
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    with suppress(BrokenPipeError):
        while view:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
            with suppress(BlockingIOError):
                view = view[os.write(descriptor, view) :]
    return True
