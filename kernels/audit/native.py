"""The audit's own native programs, compiled once per toolchain into the user's cache.

They are trusted: builder and runner box themselves in before they touch anything of a candidate's, and the
stopwatch is loaded into the auditor.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kernelbraid.kernels.toolchains.cc import CCompiler
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain

HERE = Path(__file__).parent
_FLAGS = ("-std=gnu17", "-O2", "-Wall", "-Wextra")
_SHARED = ("-shared", "-fPIC")
_FASTEST = ("-O3", "-march=native", "-ffp-contract=fast")
_PROGRAMS = {"runner": (), "builder": (), "stopwatch": _SHARED, "box": _SHARED, "ceilings": _FASTEST}


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


class Stopwatch:
    """The clock: sends one message and times the reply, outside the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._bring_near = library.bring_near
        self._bring_near.restype, self._bring_near.argtypes = None, [ctypes.c_void_p, ctypes.c_uint64]
        self._round_trip = library.round_trip
        self._round_trip.restype = ctypes.c_int64
        u64, pointer = ctypes.c_uint64, ctypes.c_void_p
        self._round_trip.argtypes = [
            *(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, u64, pointer, u64),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_int, pointer),
        ]

    def bring_near(self, spans: "ctypes.Array[Span]") -> None:
        """Read all of it, so that it is in this core's caches."""
        self._bring_near(spans, len(spans))

    def round_trip(
        self, command: int, reply: int, message: bytes, timeout_s: float, process: int, freeze: bool
    ) -> tuple[bytes, Elapsed]:
        """The reply and how long it took; empty at end of file. With `freeze` the process is stopped then.

        Raises TimeoutError when no reply came in time and OSError when the pipe failed.
        """
        answer, elapsed = ctypes.create_string_buffer(512), (ctypes.c_int64 * 2)(0, 0)
        timeout_ms = int(timeout_s * 1000)
        received = self._round_trip(
            command, reply, message, len(message), answer, 512, timeout_ms, process, freeze, ctypes.byref(elapsed)
        )
        if received < 0:
            raise OSError(-received, os.strerror(-received))
        return answer.raw[:received], Elapsed(elapsed[0], elapsed[1])
