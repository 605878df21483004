"""The CUDA driver by ctypes, for the process that owns the device's memory: no torch, nothing of a candidate's.

One primary context, used from any thread. Shared buffers are allocations of whole 2 MiB blocks, because an IPC handle
opens the block that an allocation lies in.
"""

import ctypes
import glob
from ctypes import c_size_t, c_void_p
from dataclasses import replace
from typing import Any

import numpy as np

from kernelbraid.kernels.audit.cuda.device import Buffer, Bytes, Conditions, DeviceFacts, DeviceLost, Rows, Shared
from kernelbraid.kernels.audit.cuda.nvml import Sensors, open_sensors

BLOCK_BYTES = 2 << 20
STAGING_BYTES = 8 << 20
BLOCKS, THREADS = (1024, 1, 1), (256, 1, 1)
COMPARISON = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry differing(.param .u64 one, .param .u64 other, .param .u64 words, .param .u64 count)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<12>;
    ld.param.u64 %rd1, [one];
    ld.param.u64 %rd2, [other];
    ld.param.u64 %rd3, [words];
    ld.param.u64 %rd4, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mad.wide.u32 %rd5, %r1, %r2, 0;
    cvt.u64.u32 %rd6, %r3;
    add.u64 %rd5, %rd5, %rd6;
    mul.wide.u32 %rd7, %r2, %r4;
    mov.u32 %r7, 0;
more:
    setp.ge.u64 %p1, %rd5, %rd3;
    @%p1 bra done;
    shl.b64 %rd8, %rd5, 2;
    add.u64 %rd9, %rd1, %rd8;
    add.u64 %rd10, %rd2, %rd8;
    ld.global.u32 %r5, [%rd9];
    ld.global.u32 %r6, [%rd10];
    setp.ne.u32 %p2, %r5, %r6;
    @%p2 add.u32 %r7, %r7, 1;
    add.u64 %rd5, %rd5, %rd7;
    bra more;
done:
    setp.eq.u32 %p1, %r7, 0;
    @%p1 bra out;
    red.global.add.u32 [%rd4], %r7;
out:
    ret;
}
\0"""
"""Counts the 32-bit words in which two stretches of memory differ."""
_SPIN = 1
_ON_DEVICE = 2
_L2_ATTRIBUTE, _MAJOR_ATTRIBUTE, _MINOR_ATTRIBUTE = 38, 75, 76


def _side(name: str) -> tuple[tuple[str, type], ...]:
    kinds = (c_size_t, c_size_t, ctypes.c_uint, c_void_p, ctypes.c_uint64, c_void_p, c_size_t)
    words = ("XInBytes", "Y", "MemoryType", "Host", "Device", "Array", "Pitch")
    return tuple((name + word, kind) for word, kind in zip(words, kinds, strict=True))


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (*_side("src"), *_side("dst"), ("WidthInBytes", c_size_t), ("Height", c_size_t))


class Driver:
    """libcuda, with errors as DeviceLost. Raises OSError when there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: Any) -> None:
        """One driver call. Raises DeviceLost with its name and the error's."""
        error = getattr(self._library, name)(*arguments)
        if error:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(error, ctypes.byref(text))
            raise DeviceLost(f"{name}: {(text.value or b'unknown error').decode()} ({error})")

    def attempt(self, name: str) -> None:
        """A call without arguments that some devices do not know."""
        getattr(self._library, name)()


class CudaDevice:
    """One GPU. Raises OSError without a driver, DeviceLost when it cannot be used."""

    def __init__(self, ordinal: int = 0) -> None:
        self._driver = Driver()
        self._device = ctypes.c_int()
        self._driver.call("cuDeviceGet", ctypes.byref(self._device), ordinal)
        self.facts = _facts(self._driver, self._device)
        self._context = ctypes.c_void_p()
        self._driver.call("cuDevicePrimaryCtxSetFlags_v2", self._device, ctypes.c_uint(_SPIN))
        self._driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._buffers: dict[int, Buffer] = {}
        self._staging = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(self._staging), ctypes.c_size_t(STAGING_BYTES))
        self._sensors: Sensors | None = open_sensors(self.facts.uuid)
        if self._sensors:
            self.facts = replace(self.facts, driver=f"{self._sensors.driver}, {self.facts.driver}")
        self._swept = self.allocate(2 * self.facts.l2_bytes)
        self._sweeps = 0
        self._comparison = self._loaded(COMPARISON, b"differing")
        self._differing = self.allocate(BLOCK_BYTES)

    def allocate(self, size_bytes: int) -> Buffer:
        """Whole blocks of device memory."""
        size_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        buffer = Buffer(int(pointer.value), size_bytes)
        self._buffers[buffer.pointer] = buffer
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Free it."""
        self._buffers.pop(buffer.pointer)
        self._call("cuMemFree_v2", ctypes.c_uint64(buffer.pointer))

    def share(self, buffers: tuple[Buffer, ...]) -> Shared:
        """By IPC handles, in hexadecimal."""
        sizes = [buffer.size_bytes for buffer in buffers]
        return Shared({"handles": [self._handle(buffer) for buffer in buffers], "sizes": sizes})

    def upload(self, buffer: Buffer, offset: int, values: Bytes) -> None:
        """From pageable memory; large uploads are few. The driver's own call returns once the bytes are staged, and a
        candidate's process that starts then could read what lay there before: positions that are none, say."""
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        source = ctypes.c_void_p(flat.ctypes.data)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(buffer.pointer + offset), source, ctypes.c_size_t(flat.nbytes))
        self.settle()

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> Bytes:
        """Through pinned memory: fastest for the slices that a clock waits for, and no slower for much."""
        taken = np.empty(size_bytes, np.uint8)
        assert self._staging.value, "it was allocated"
        for start in range(0, size_bytes, STAGING_BYTES):
            count = min(STAGING_BYTES, size_bytes - start)
            place = ctypes.c_uint64(buffer.pointer + offset + start)
            self._call("cuMemcpyDtoH_v2", self._staging, place, ctypes.c_size_t(count))
            ctypes.memmove(taken.ctypes.data + start, self._staging.value, count)
        return taken

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, size_bytes: int) -> None:
        """On the context's default stream."""
        to, start = (ctypes.c_uint64(at) for at in (target.pointer + target_offset, source.pointer + source_offset))
        self._call("cuMemcpyDtoDAsync_v2", to, start, ctypes.c_size_t(size_bytes), None)

    def copy_rows(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, rows: Rows) -> None:
        """On the context's default stream."""
        to, start = target.pointer + target_offset, source.pointer + source_offset
        plan = _Copy2D(
            *(0, 0, _ON_DEVICE, None, start, None, rows.pitch),
            *(0, 0, _ON_DEVICE, None, to, None, rows.pitch),
            *(rows.width, rows.count),
        )
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(plan), None)

    def fill(self, buffer: Buffer, offset: int, size_bytes: int, pattern: int) -> None:
        """On the context's default stream."""
        start, count = ctypes.c_uint64(buffer.pointer + offset), ctypes.c_size_t(size_bytes // 4)
        self._call("cuMemsetD32Async", start, ctypes.c_uint(pattern), count, None)

    def differs(self, one: Buffer, one_offset: int, other: Buffer, other_offset: int, size_bytes: int) -> bool:
        """By a kernel of our own over whole words; the bytes after the last one are read."""
        words, rest = divmod(size_bytes, 4)
        self.fill(self._differing, 0, 4, 0)
        starts = (one.pointer + one_offset, other.pointer + other_offset)
        if words:
            self._launch(self._comparison, (*starts, words, self._differing.pointer))
        tails = (
            self.download(buffer, offset + 4 * words, rest).tobytes() if rest else b""
            for buffer, offset in ((one, one_offset), (other, other_offset))
        )
        return bool(self.download(self._differing, 0, 4).any()) or len(set(tails)) > 1

    def flush(self) -> None:
        """Twice the L2's size, with another value every time; lines that a kernel asked to persist are reset too."""
        self._sweeps = (self._sweeps + 1) & 0xFFFFFFFF
        self.fill(self._swept, 0, self._swept.size_bytes, self._sweeps)
        self._driver.attempt("cuCtxResetPersistingL2Cache")

    def settle(self) -> None:
        """Wait for the context."""
        self._call("cuCtxSynchronize")

    def conditions(self) -> Conditions | None:
        """By NVML; None where that is not installed."""
        return self._sensors.read() if self._sensors else None

    def close(self) -> None:
        """Free every buffer and the context."""
        for buffer in list(self._buffers.values()):
            self.release(buffer)
        self._call("cuMemFreeHost", self._staging)
        self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _call(self, name: str, *arguments: Any) -> None:
        """A call in our context, whichever thread makes it."""
        self._driver.call("cuCtxSetCurrent", self._context)
        self._driver.call(name, *arguments)

    def _loaded(self, ptx: bytes, name: bytes) -> ctypes.c_void_p:
        """A kernel out of PTX text, which the driver compiles."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name))
        return function

    def _launch(self, function: ctypes.c_void_p, arguments: tuple[int, ...]) -> None:
        """A kernel of 64-bit arguments that strides over its work, on the context's default stream."""
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        grid, block = map(ctypes.c_uint, (*BLOCKS, *THREADS)), (ctypes.c_uint(0), None, pointers, None)
        self._call("cuLaunchKernel", function, *grid, *block)

    def _handle(self, buffer: Buffer) -> str:
        handle = (ctypes.c_byte * 64)()
        self._call("cuIpcGetMemHandle", handle, ctypes.c_uint64(buffer.pointer))
        return bytes(handle).hex()


def device_count() -> int:
    """GPUs that this process may use; 0 without a driver."""
    count = ctypes.c_int()
    try:
        Driver().call("cuDeviceGetCount", ctypes.byref(count))
    except (OSError, DeviceLost):
        return 0
    return count.value


def _facts(driver: Driver, device: ctypes.c_int) -> DeviceFacts:
    name, raw, memory, version = ctypes.create_string_buffer(128), (ctypes.c_ubyte * 16)(), ctypes.c_size_t(), _int()
    driver.call("cuDeviceGetName", name, 128, device)
    driver.call("cuDeviceGetUuid_v2", raw, device)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    l2, major, minor = (_attribute(driver, device, key) for key in (_L2_ATTRIBUTE, _MAJOR_ATTRIBUTE, _MINOR_ATTRIBUTE))
    uuid = f"GPU-{_dashed(bytes(raw).hex())}"
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return DeviceFacts(
        name=name.value.decode(),
        uuid=uuid,
        driver=cuda,
        l2_bytes=l2,
        memory_bytes=memory.value,
        compute_capability=f"{major}.{minor}",
        visible=uuid,
        paths=tuple(sorted(glob.glob("/dev/nvidia*"))),
    )


def _int() -> ctypes.c_int:
    return ctypes.c_int()


def _attribute(driver: Driver, device: ctypes.c_int, key: int) -> int:
    value = ctypes.c_int()
    driver.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(key), device)
    return value.value


def _dashed(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
