"""The audit's own native programs, compiled once per toolchain into the user's cache.

They are trusted: builder and runner box themselves in before they touch anything of a candidate's, and the
stopwatch is loaded into the auditor.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.toolchains.cc import CCompiler
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain

HERE = Path(__file__).parent
_FLAGS = ("-std=gnu17", "-O2", "-Wall", "-Wextra")
_SHARED = ("-shared", "-fPIC", "-Wl,-Bsymbolic")
_FASTEST = ("-O3", "-march=native", "-ffp-contract=fast")
_ALWAYS_NS = 2**63 - 1
_PROGRAMS = {"runner": (), "builder": (), "stopwatch": (*_SHARED, "-O3"), "box": _SHARED, "ceilings": _FASTEST}


@dataclass(frozen=True, slots=True)
class Native:
    """Paths of the compiled programs."""

    runner: Path
    builder: Path
    stopwatch: Path
    box: Path
    """For processes that run a candidate's Python."""
    ceilings: Path
    """Measures what no kernel can beat here."""


def native_programs(compiler: CCompiler) -> Native:
    """Compile what the cache lacks.

    Raises MissingToolchain when the compiler cannot build them (Linux headers missing, say).
    """
    folder = cache_folder() / "native" / _digest(compiler)
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in _PROGRAMS.items():
        if not (folder / name).is_file():
            _compile(compiler, name, flags, folder)
    return Native(*(folder / name for name in _PROGRAMS))


def cache_folder() -> Path:
    """A folder that only this user can write: XDG_CACHE_HOME, else ~/.cache, else one under the temporary folder."""
    wanted = [Path(os.environ["XDG_CACHE_HOME"])] if os.environ.get("XDG_CACHE_HOME") else []
    if os.environ.get("HOME"):
        wanted.append(Path(os.environ["HOME"]) / ".cache")
    for base in wanted:
        if _usable(base / "kernelbraid"):
            return base / "kernelbraid"
    fallback = Path(tempfile.gettempdir()) / f"kernelbraid-{os.getuid()}"
    if not _usable(fallback):
        raise MissingToolchain(f"no folder for compiled programs: set XDG_CACHE_HOME to one you can write ({fallback})")
    return fallback


def _usable(folder: Path) -> bool:
    """Whether the folder is there (it is made), ours, and closed to other writers."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK)


def _digest(compiler: CCompiler) -> str:
    digest = hashlib.sha256(compiler.digest.encode())
    for path in sorted(HERE.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _compile(compiler: CCompiler, name: str, flags: tuple[str, ...], folder: Path) -> None:
    """Under a name of its own and renamed, so that two processes starting together do no harm."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        output = Path(scratch) / name
        arguments = [*compiler.prefix, *_FLAGS, *flags, "-o", str(output), str(HERE / f"{name}.c"), "-lm", "-ldl"]
        done = subprocess.run(
            arguments, env=compiler.environment(Path(scratch)), capture_output=True, text=True, timeout=300
        )
        if done.returncode != 0:
            raise MissingToolchain(f"{compiler.name} cannot build the audit's {name}: {done.stderr.strip()[-600:]}")
        os.rename(output, folder / name)


class Elapsed(NamedTuple):
    """One message by the auditor's clock, and the part of it that the runner spent on a processor."""

    wall_ns: int
    used_ns: int

    @property
    def undisturbed_ns(self) -> int:
        """About what it takes when nothing else runs: the runner's processor time, where the kernel counted any."""
        return self.used_ns if 0 < self.used_ns < self.wall_ns else self.wall_ns


class Span(ctypes.Structure):
    """A stretch of this process's memory."""

    _fields_ = (("start", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class Swapped(ctypes.Structure):
    """An input in place and another one of the same shape, parts of which are swapped; see stopwatch.c."""

    _fields_ = (
        *(("here", ctypes.c_void_p), ("there", ctypes.c_void_p), ("finite", ctypes.c_void_p)),
        *(("elements", ctypes.c_uint64), ("width", ctypes.c_uint64), ("element_bytes", ctypes.c_uint64)),
    )


class _Errand(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("command", "reply", "process", "timeout_ms")),
        *(("message", ctypes.c_char_p), ("due", ctypes.c_char_p)),
        *((name, ctypes.c_uint64) for name in ("message_bytes", "due_bytes", "answer_bytes")),
        *(("inputs", ctypes.c_void_p), ("input_count", ctypes.c_uint64)),
        *(("spans", ctypes.c_void_p), ("span_count", ctypes.c_uint64)),
    )


@dataclass(frozen=True)
class Errand:
    """One message to one process, to be sent often: pipes, process, and the memory that it is about."""

    command: int
    reply: int
    process: int
    timeout_s: float
    message: bytes
    due: bytes
    """How its answer begins."""
    answer_bytes: int
    inputs: "ctypes.Array[Swapped]"
    spans: "ctypes.Array[Span]"

    @cached_property
    def native(self) -> _Errand:
        """As stopwatch.c takes it."""
        sizes = (len(self.message), len(self.due), self.answer_bytes)
        inputs, spans = ctypes.addressof(self.inputs), ctypes.addressof(self.spans)
        parts = (self.message, self.due, *sizes, inputs, len(self.inputs), spans, len(self.spans))
        return _Errand(self.command, self.reply, self.process, int(self.timeout_s * 1000), *parts)


class _Elapsed(ctypes.Structure):
    _fields_ = (("wall_ns", ctypes.c_int64), ("used_ns", ctypes.c_int64))


_ANSWER_ROOM = 512


class _Stop(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("errand", "draws", "answered_ns", "elapsed")),
        *(("count", ctypes.c_uint64), ("near", ctypes.c_int32), ("freeze", ctypes.c_int32)),
        *((name, ctypes.c_int64) for name in ("freeze_below_ns", "waited_ns", "between_ns")),
        *(("sent", ctypes.c_uint64), ("frozen", ctypes.c_int64), ("received", ctypes.c_int64)),
        ("answer", ctypes.c_char * _ANSWER_ROOM),
    )


@dataclass(frozen=True)
class Stop:
    """One stop of a tour: so many messages to one process, each with other inputs."""

    errand: Errand
    draws: NDArray[np.float64]
    """[messages, inputs, 3]; twice as many with `waited_ns`."""
    messages: int
    answered: ctypes.c_int64
    """Processor time in nanoseconds that the process had used at its last answer, kept up to date."""
    near: bool = True
    """All that they are about is brought into this core's caches before."""
    freeze: bool = False
    """The process is stopped after the last message."""
    below_ns: int = 0
    """It is stopped, and the tour ends, after the first message that took less."""
    waited_ns: int = 0
    """They are sent once more when the process was off its core for so long during all of them; never when 0."""

    @cached_property
    def elapsed(self) -> "ctypes.Array[_Elapsed]":
        """How long each message took."""
        return (_Elapsed * len(self.draws))()

    @cached_property
    def native(self) -> _Stop:
        """As stopwatch.c takes it."""
        places = (ctypes.addressof(self.errand.native), self.draws.ctypes.data, ctypes.addressof(self.answered))
        numbers = (self.messages, self.near, self.freeze, self.below_ns, self.waited_ns)
        return _Stop(*places, ctypes.addressof(self.elapsed), *numbers)


class Visit(NamedTuple):
    """What came of one stop."""

    answer: bytes
    """The last one."""
    elapsed: list[Elapsed]
    between_ns: int
    """Processor time that the process used between its answer before and the first message."""
    frozen: bool
    """Whether it was stopped after the last message."""
    error: int
    """Why the last message got no answer, as in errno: EBADMSG when bytes lay in the reply pipe before; 0 for none."""


class Stopwatch:
    """The clock: sends messages and times the replies, outside the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        u64, pointer, number = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
        self._round_trip, self._splice, self._tour = library.round_trip, library.change_inputs, library.tour
        self._round_trip.restype, self._tour.restype = ctypes.c_int64, u64
        self._round_trip.argtypes = [
            *(number, number, ctypes.c_char_p, u64, pointer, u64),
            *(number, number, ctypes.c_int64, pointer),
        ]
        self._splice.restype, self._splice.argtypes = None, [pointer, u64, pointer]
        self._tour.argtypes = [pointer, u64]

    def splice(self, inputs: "ctypes.Array[Swapped]", draws: NDArray[np.float64]) -> None:
        """Change a stretch of every input and an element of each of its rows; `draws` [inputs, 3] in [0, 1)."""
        self._splice(inputs, len(inputs), draws.ctypes.data)

    def tour(self, stops: Sequence[Stop]) -> list[Visit]:
        """Stop after stop, up to the first that froze its process or did not get the due answer, that one included."""
        places = (ctypes.c_void_p * len(stops))(*(ctypes.addressof(stop.native) for stop in stops))
        return [_visit(stop) for stop in stops[: self._tour(places, len(stops))]]

    def round_trip(
        self, command: int, reply: int, message: bytes, timeout_s: float, process: int, freeze: bool
    ) -> tuple[bytes, Elapsed]:
        """The reply and how long it took; empty at end of file. With `freeze` the process is stopped then.

        Raises TimeoutError when no reply came in time and OSError when the pipe failed.
        """
        answer, elapsed = ctypes.create_string_buffer(512), _Elapsed()
        timeout_ms, below_ns = int(timeout_s * 1000), _ALWAYS_NS if freeze else 0
        received = self._round_trip(
            command, reply, message, len(message), answer, 512, timeout_ms, process, below_ns, ctypes.byref(elapsed)
        )
        if received < 0:
            raise OSError(-received, os.strerror(-received))
        return answer.raw[:received], Elapsed(elapsed.wall_ns, elapsed.used_ns)


def _visit(stop: Stop) -> Visit:
    told = stop.native
    answer = ctypes.string_at(ctypes.addressof(told) + _Stop.answer.offset, max(0, told.received))
    elapsed = [Elapsed(each.wall_ns, each.used_ns) for each in stop.elapsed[: told.sent]]
    return Visit(answer, elapsed, told.between_ns, bool(told.frozen), max(0, -told.received))
