"""One candidate's process: opens the auditor's buffers, boxes itself in, loads the candidate, calls it when told to.

It reports neither times that count nor verdicts. Forked from the zygote, which has imported what a candidate needs
but touched no device. Everything a candidate runs in here can change everything in here, so the auditor believes
nothing that this process says, but for what speaks against the candidate.
"""

import ctypes
import importlib.util
import json
import os
import resource
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernelbraid.kernels.audit.cuda import frames
from kernelbraid.kernels.audit.cuda.frames import Kind, TensorPlace, Trouble

Run = Callable[[], None]


class Backend(Protocol):
    """Where tensors live and kernels run: a CUDA device, or this machine's memory in tests."""

    def versions(self) -> Mapping[str, str]:
        """Of the packages that a candidate's speed and bits depend on."""

    def warm(self) -> None:
        """Before any fork: what every process would else work out for itself, and is the same for all of them."""

    def open(self, shared: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start the device here and map the auditor's buffers."""

    def tensor(self, place: TensorPlace) -> Any:
        """A tensor over a buffer's bytes."""

    def captured(self, run: Run) -> Run:
        """Record what `run` launches; the result replays it."""

    def timed(self, run: Run) -> int:
        """Run, wait for the device, and return the nanoseconds between by the device's own clock."""

    def sweep(self) -> None:
        """Overwrite all memory that a candidate can have allocated, so that no call finds what another left there."""

    def trouble(self, error: BaseException) -> Trouble | None:
        """What kind of failure an exception is, where the backend knows."""

    def measured(self) -> Mapping[str, float]:
        """Ceilings of the device that only its own programs can measure."""


@dataclass(frozen=True, slots=True)
class Config:
    """What the auditor asks of one child; all of it arrives as JSON."""

    sources: str
    cache: str
    box: str
    """Path of the native box, empty for none."""
    reads: Sequence[str]
    writes: Sequence[str]
    shared: Mapping[str, Any]
    data_bytes: int
    printed_bytes: int
    cpu_s: int


@dataclass
class Layout:
    """One PREPARE: bound calls, one call of each kind among them, and the replay once captured."""

    run: Run
    sample: Run
    calls: int
    replay: Run | None = None


@dataclass
class Child:
    """The request loop. `entries` are the candidate's functions, in LOAD's order."""

    backend: Backend
    config: Config
    command: int
    reply: int
    entries: list[Callable[..., object]] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)

    def serve(self) -> None:
        """Answer requests until the auditor closes its end."""
        while True:
            number, size = frames.FRAME.unpack(frames.read_exactly(self.command, frames.FRAME.size))
            kind = Kind(number)
            self._answer(kind, frames.read_exactly(self.command, size))
            if kind is Kind.SWEEP:
                frames.await_frame(self.command)

    def _answer(self, kind: Kind, payload: bytes) -> None:
        stage = Trouble.LOAD if kind is Kind.LOAD else Trouble.CALL
        try:
            answer = self._done(kind, payload)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
            # The edge between candidate and auditor: whatever it raised is evidence, SystemExit included.
            traceback.print_exc()
            sys.stderr.flush()
            answer = frames.frame(Kind.ERR, _trouble(self.backend, error, stage))
        os.write(self.reply, answer)

    def _done(self, kind: Kind, payload: bytes) -> bytes:
        match kind:
            case Kind.LOAD:
                self._load(payload.decode().split("\0"))
            case Kind.PREPARE:
                self._prepare(payload)
            case Kind.CAPTURE:
                self._capture(_index(payload))
            case Kind.SWEEP:
                self.backend.sweep()
            case Kind.GO:
                return self._go(_index(payload))
            case Kind.MEASURE:
                return frames.frame(Kind.READY, json.dumps(dict(self.backend.measured())).encode())
            case _:
                raise ValueError(f"no request of kind {kind}")
        return frames.frame(Kind.READY)

    def _load(self, symbols: Sequence[str]) -> None:
        sys.path.insert(0, self.config.sources)
        spec = importlib.util.spec_from_file_location("kernel", Path(self.config.sources) / "kernel.py")
        if spec is None or spec.loader is None:
            raise ImportError("there is no kernel.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["kernel"] = module
        spec.loader.exec_module(module)
        self.entries = [getattr(module, symbol) for symbol in symbols]

    def _prepare(self, payload: bytes) -> None:
        index, calls = frames.unpacked_calls(payload)
        self.layouts.pop(index, None)
        bound = [(self.entries[call.entry], [self.backend.tensor(place) for place in call.tensors]) for call in calls]
        kinds = {
            (call.entry, *(place.shape for place in call.tensors)): pair
            for call, pair in zip(calls, bound, strict=True)
        }
        sample = list(kinds.values())
        self.layouts[index] = Layout(lambda: _call_each(bound), lambda: _call_each(sample), len(bound))

    def _capture(self, index: int) -> None:
        """One call of each kind as it is, so that everything is compiled and loaded, then all for the record."""
        layout = self.layouts[index]
        self.backend.timed(layout.sample)
        layout.replay = self.backend.captured(layout.run)

    def _go(self, index: int) -> bytes:
        layout = self.layouts[index]
        advisory_ns = self.backend.timed(layout.replay or layout.run)
        return frames.frame(Kind.DONE, frames.packed_done(layout.calls, advisory_ns))


def _call_each(bound: Sequence[tuple[Callable[..., object], Sequence[Any]]]) -> None:
    for entry, tensors in bound:
        entry(*tensors)


def _index(payload: bytes) -> int:
    return int(struct.unpack("<I", payload)[0])


def _trouble(backend: Backend, error: BaseException, stage: Trouble) -> bytes:
    text = f"{type(error).__name__}: {error}".strip()
    return frames.packed_trouble(backend.trouble(error) or stage, text)


def main(backend: Backend, config: Config, command: int, reply: int, descriptors: Sequence[int]) -> None:
    """Become the candidate's process; returns when the auditor is done with it."""
    try:
        _settle_in(config)
        backend.open(config.shared, descriptors)
        _give_up(config)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
        # Nothing of the candidate has run yet: this is the machine's failure, and the auditor must hear of it.
        traceback.print_exc()
        sys.stderr.flush()
        os.write(reply, frames.frame(Kind.ERR, _trouble(backend, error, Trouble.REFUSED)))
        return
    os.write(reply, frames.frame(Kind.READY))
    try:
        Child(backend, config, command, reply).serve()
    except EOFError:
        return


def _settle_in(config: Config) -> None:
    sys.dont_write_bytecode = True
    tempfile.tempdir = None
    os.chdir(config.cache)
    os.environ |= dict.fromkeys(("TRITON_CACHE_DIR", "TRITON_HOME", "TMPDIR", "HOME"), config.cache)


def _give_up(config: Config) -> None:
    """Bounds of memory, time and output, then the box. A device's start needs more than a candidate may have."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: config.cpu_s,
        resource.RLIMIT_FSIZE: config.printed_bytes,
        resource.RLIMIT_DATA: config.data_bytes,
    }
    for which, value in limits.items():
        _, most = resource.getrlimit(which)
        bounded = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (bounded, bounded))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if config.box:
        # The driver goes on naming threads of its own, through /proc; no other process's entry is open to it.
        enter_box(config.box, "box_candidate", config.reads, [*config.writes, f"/proc/{os.getpid()}"])


def enter_box(library: str, step: str, reads: Sequence[str], writes: Sequence[str]) -> None:
    """One step of box.c. Raises PermissionError naming what was refused."""
    function = getattr(ctypes.CDLL(library), step)
    function.restype = ctypes.c_char_p
    refused = function(_paths(reads), _paths(writes))
    if refused is not None:
        raise PermissionError(f"the box was refused: {refused.decode()} (errno {ctypes.get_errno()})")


def _paths(paths: Sequence[str]) -> Any:
    return (ctypes.c_char_p * (len(paths) + 1))(*[path.encode() for path in paths], None)
