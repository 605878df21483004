"""Tensors on a CUDA device, through torch; Triton compiles what a candidate launches.

Imported by the zygote before it forks, so nothing at module level may start CUDA: a forked child then hangs.
"""

import ctypes
import os
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import triton
import triton.experimental.gluon
from triton.backends.nvidia import compiler, driver
from triton.compiler.errors import CompilationError
from triton.runtime.cache import triton_key
from triton.runtime.errors import OutOfResources, PTXASError

from kernelbraid.kernels.audit.cuda.child import Run
from kernelbraid.kernels.audit.cuda.frames import ITEM_BYTES, Space, TensorPlace, Trouble

_TYPES = {"float32": "<f4", "bfloat16": "<i2", "int32": "<i4", "int64": "<i8"}
_ARCHITECTURES = (80, 90)
_LAZY_PEER_ACCESS = 1
_PRODUCT_SIZE = 8192
_LAUNCHES = 256
_TRIES = 6


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * 64),)


class _Raw:
    """Device memory that another process owns, as torch takes it."""

    def __init__(self, pointer: int, place: TensorPlace) -> None:
        self.__cuda_array_interface__ = {
            "shape": place.shape,
            "typestr": _TYPES[place.dtype],
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


class CudaBackend:
    """The device that CUDA_VISIBLE_DEVICES leaves."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._sizes: list[int] = []
        self._wholes: dict[tuple[int, str], Any] = {}
        self._driver: Any = None
        self._reserved = 0
        self._segments: list[tuple[int, int]] = []
        self._began: Any = None
        self._ended: Any = None

    def versions(self) -> Mapping[str, str]:
        """Of torch, the CUDA it was built with, and Triton."""
        return {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}

    def warm(self) -> None:
        """Triton's digest of itself, its assembler's version, where its libraries lie, digests of its own functions.

        Half a second in every process that launches a kernel, otherwise.
        """
        triton_key()
        for found in vars(triton.language).values():
            if isinstance(found, triton.JITFunction):
                found.cache_key  # noqa: B018 it is kept
        # Where a program may not be started here, each process asks for itself.
        with suppress(OSError, AssertionError, subprocess.SubprocessError):
            driver.library_dirs()
            for architecture in _ARCHITECTURES:
                compiler.get_ptxas_version(architecture)

    def open(self, shared: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start CUDA here and open the owner's allocations."""
        warnings.simplefilter("ignore")  # of an empty graph, which is what the floor is
        torch.set_grad_enabled(False)
        torch.empty(1, device="cuda")
        self._driver = ctypes.CDLL("libcuda.so.1")
        torch.cuda.set_stream(torch.cuda.Stream())  # the default one cannot be captured
        self._bases = [_opened(self._driver, bytes.fromhex(handle)) for handle in shared["handles"]]
        self._sizes = list(shared["sizes"])
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.timed(_nothing)

    def tensor(self, place: TensorPlace) -> Any:
        """A torch tensor over the owner's memory: a view of all of it, as that is made in a microsecond."""
        if not place.size_bytes:
            return torch.empty(place.shape, dtype=vars(torch)[place.dtype], device="cuda")
        strides, items = [1], ITEM_BYTES[place.dtype]
        for size in reversed(place.shape[1:]):
            strides.insert(0, strides[0] * size)
        whole = self._whole(place.space, place.dtype)
        return whole.as_strided(place.shape, strides[: len(place.shape)], place.offset // items)

    def _whole(self, space: Space, dtype: str) -> Any:
        """One of the owner's buffers as elements of a type."""
        if (space, dtype) not in self._wholes:
            count = self._sizes[space] // ITEM_BYTES[dtype]
            raw = torch.as_tensor(_Raw(self._bases[space], TensorPlace(space, dtype, 0, (count,))), device="cuda")
            self._wholes[space, dtype] = raw.view(torch.bfloat16) if dtype == "bfloat16" else raw
        return self._wholes[space, dtype]

    def captured(self, run: Run) -> Run:
        """As a CUDA graph. By hand, as torch's context manager collects garbage for every graph."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        run()
        graph.capture_end()
        replay: Run = graph.replay
        self.timed(replay)
        return replay

    def timed(self, run: Run) -> int:
        """By events around it, and only once every stream is idle."""
        self._began.record()
        run()
        self._ended.record()
        torch.cuda.synchronize()
        elapsed_ms: float = self._began.elapsed_time(self._ended)
        return round(elapsed_ms * 1e6)

    def sweep(self) -> None:
        """Every segment of torch's allocator, the graphs' private pools included, with a word that changes."""
        reserved = torch.cuda.memory_reserved()
        if reserved != self._reserved:
            self._reserved = reserved
            self._segments = [(part["address"], part["total_size"]) for part in torch.cuda.memory_snapshot()]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        word = ctypes.c_uint(int.from_bytes(os.urandom(4), "little"))
        for address, size in self._segments:
            if self._driver.cuMemsetD32Async(ctypes.c_uint64(address), word, ctypes.c_size_t(size // 4), stream):
                raise RuntimeError("CUDA error: the candidate's own memory cannot be overwritten")
        torch.cuda.synchronize()

    def trouble(self, error: BaseException) -> Trouble | None:
        """A compiler's, memory's, or the device's failure."""
        text = str(error)
        if isinstance(error, (CompilationError, OutOfResources, PTXASError)):
            return Trouble.COMPILE
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return Trouble.MEMORY
        if "captur" in text:
            return Trouble.CAPTURE
        return Trouble.DEVICE if "CUDA error" in text or "Triton Error [CUDA]" in text else None

    def measured(self) -> Mapping[str, float]:
        """The rate of a large bfloat16 product of random values, and seconds a launch in a graph; the best of a few."""
        one, other = (torch.randn(_PRODUCT_SIZE, _PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        product_ns = min(self.timed(lambda: torch.matmul(one, other)) for _ in range(_TRIES))
        word = torch.zeros(1, device="cuda")
        launches = self.captured(lambda: _launch_often(word))
        launch_ns = min(self.timed(launches) for _ in range(_TRIES)) / _LAUNCHES
        return {"flop_per_s": 2 * _PRODUCT_SIZE**3 / (product_ns * 1e-9), "call_floor_s": launch_ns * 1e-9}


def _launch_often(word: Any) -> None:
    for _ in range(_LAUNCHES):
        word.zero_()


def _nothing() -> None:
    """What the first events are recorded around."""


def _opened(driver: Any, handle: bytes) -> int:
    """The device address of an allocation of the owner's, here. Raises OSError with the driver's error."""
    pointer = ctypes.c_uint64()
    opaque = _IpcHandle.from_buffer_copy(handle)
    error = driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), opaque, ctypes.c_uint(_LAZY_PEER_ACCESS))
    if error:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(error, ctypes.byref(name))
        raise OSError(f"cuIpcOpenMemHandle: {(name.value or b'?').decode()} ({error}), process {os.getpid()}")
    return int(pointer.value or 0)
