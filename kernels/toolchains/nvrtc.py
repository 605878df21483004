"""CUDA C++ compiled while a program runs: NVRTC, the library that comes with torch; no nvcc, no headers, no GPU needed.

A source is one text without includes. Contraction is off, so that a source alone decides where a product is rounded
before it is added.
"""

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kernelbraid.kernels.toolchains.toolchain import MissingToolchain

FLAGS = ("--std=c++17", "--fmad=false")
NAME = "libnvrtc.so.13"
BUILTINS = "libnvrtc-builtins.so.13*"
NEXT_STEP = "pip install 'kernelbraid[gpu]' (torch brings it), or: pip install nvidia-cuda-nvrtc"


class CompilationFailed(Exception):
    """A CUDA source did not compile; the message is the compiler's own."""


@dataclass(frozen=True)
class Nvrtc:
    """One NVRTC library. `version` is CUDA's, such as 13.0."""

    version: str
    library: ctypes.CDLL = field(repr=False, compare=False)
    flags: tuple[str, ...] = FLAGS
    name: str = "nvrtc"

    def cubin(self, source: str, architecture: str) -> bytes:
        """Machine code of a source for an architecture such as sm_90a. Raises CompilationFailed."""
        program = ctypes.c_void_p()
        self._checked(
            self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"source.cu", 0, None, None)
        )
        try:
            options = [flag.encode() for flag in (f"--gpu-architecture={architecture}", *self.flags)]
            status = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            if status:
                raise CompilationFailed(self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
            return self._text(program, "CUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._checked(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._checked(getattr(self.library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _checked(self, status: int) -> None:
        if status:
            explain = self.library.nvrtcGetErrorString
            explain.restype = ctypes.c_char_p
            raise CompilationFailed(f"NVRTC: {explain(status).decode()}")


@lru_cache(maxsize=1)
def find_nvrtc() -> Nvrtc:
    """The NVRTC beside torch, else the system's. Raises MissingToolchain."""
    for path in (*_bundled(), Path(NAME)):
        try:
            # Loaded by itself, the library looks for its builtins on the system's paths alone.
            for builtins in path.parent.glob(BUILTINS) if path.is_absolute() else ():
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        return Nvrtc(_version(library), library)
    raise MissingToolchain(f"NVRTC ({NAME}) is not installed; {NEXT_STEP}")


def _bundled() -> Iterator[Path]:
    for folder in sys.path:
        yield from Path(folder or ".").resolve().glob(f"nvidia/*/lib/{NAME}")


def _version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"
