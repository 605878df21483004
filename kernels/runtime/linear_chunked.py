"""Launching linear.cu: compiled by NVRTC once for each tile and device, launched on torch's current stream."""

import ctypes
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context

import torch

from kernelbraid.kernels.runtime.linear_tiles import (
    ARCHITECTURE,
    ENTRY,
    PORTABLE_CLUSTER,
    STEP,
    Layout,
    Tile,
    layout,
    source,
)
from kernelbraid.kernels.toolchains.nvrtc import find_nvrtc

_MAP_BYTES = 128
_MAP_ALIGNMENT_BYTES = 64
_BFLOAT16, _NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE = 9, 0, 3, 2, 0
_SHARED_BYTES_ATTRIBUTE, _ANY_CLUSTER_ATTRIBUTE = 8, 14
_OVERLAPPED_LAUNCH = 6


class LaunchFailed(RuntimeError):
    """The driver refused a module, a tensor or a launch; the message names the call and the error."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("_", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class _Problem(ctypes.Structure):
    """linear.cu's Problem."""

    _fields_ = (
        ("y", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("tokens", ctypes.c_int),
        ("outs", ctypes.c_int),
        ("steps", ctypes.c_int),
        ("chunk", ctypes.c_int),
        ("first_tiles", ctypes.c_int),
        ("second_tiles", ctypes.c_int),
        ("sums_at", ctypes.c_int),
    )


@dataclass(frozen=True)
class _Map:
    """An encoded CUtensorMap and the memory that holds it."""

    memory: ctypes.Array[ctypes.c_char]
    address: int


def run(
    tile: Tile,
    chunk_steps: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """out [rows, outs] from x [rows, width], weight [outs, width] and bias [outs], contiguous bfloat16.

    Raises TileError for a call that the tile cannot take, LaunchFailed for what the driver says.
    """
    (rows, width), outs = x.shape, weight.shape[0]
    device = x.device.index
    kernel = _kernel(tile, device)
    plan = layout(tile, rows, outs, width, chunk_steps, _multiprocessors(device))
    kernel.allow(plan.shared_bytes)
    tokens = _map(x.data_ptr(), rows, width, tile.columns // tile.shared if tile.swapped else tile.rows)
    weights = _map(weight.data_ptr(), outs, width, tile.rows if tile.swapped else tile.columns // tile.shared)
    first, second = (weights, tokens) if tile.swapped else (tokens, weights)
    problem = _Problem(
        *(out.data_ptr(), None if bias is None else bias.data_ptr(), rows, outs),
        *(plan.steps, plan.chunk_steps, plan.first_tiles, plan.second_tiles, plan.sums_at),
    )
    kernel.launch(plan, (first, second), problem, torch.cuda.current_stream(device).cuda_stream)


class _Kernel:
    """One compiled tile in one device's context."""

    def __init__(self, tile: Tile, device: int) -> None:
        self._tile, self._allowed_bytes = tile, 0
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            _call("cuModuleLoadData", ctypes.byref(module), _cubin(tile))
            _call("cuModuleGetFunction", ctypes.byref(self._function), module, ENTRY.encode())
            if tile.split > PORTABLE_CLUSTER:
                _call("cuFuncSetAttribute", self._function, _ANY_CLUSTER_ATTRIBUTE, 1)

    def allow(self, shared_bytes: int) -> None:
        """Let a block have so much shared memory."""
        if shared_bytes > self._allowed_bytes:
            _call("cuFuncSetAttribute", self._function, _SHARED_BYTES_ATTRIBUTE, shared_bytes)
            self._allowed_bytes = shared_bytes

    def launch(self, plan: Layout, maps: tuple[_Map, _Map], problem: _Problem, stream: int) -> None:
        """On the stream; may begin while the kernel before ends, whose results it waits for."""
        overlapped = _Attribute(_OVERLAPPED_LAUNCH, 0, 1)
        grid, block = (plan.blocks, 1, 1), (self._tile.threads, 1, 1)
        launch = _Launch(grid, block, plan.shared_bytes, stream, ctypes.addressof(overlapped), 1)
        places = (maps[0].address, maps[1].address, ctypes.addressof(problem))
        _call("cuLaunchKernelEx", ctypes.byref(launch), self._function, (ctypes.c_void_p * 3)(*places), None)


@cache
def _kernel(tile: Tile, device: int) -> _Kernel:
    return _Kernel(tile, device)


def compile_ahead(tiles: Iterable[Tile]) -> None:
    """Compile tiles side by side in processes of their own; before this process uses CUDA, which no fork survives."""
    todo = [tile for tile in dict.fromkeys(tiles) if tile not in _cubins]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        _cubins.update(zip(todo, pool.map(_compiled, todo), strict=True))


_cubins: dict[Tile, bytes] = {}


def _cubin(tile: Tile) -> bytes:
    if tile not in _cubins:
        _cubins[tile] = _compiled(tile)
    return _cubins[tile]


def _compiled(tile: Tile) -> bytes:
    return find_nvrtc().cubin(source(tile), ARCHITECTURE)


@cache
def _multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache(maxsize=8192)
def _map(pointer: int, rows: int, width: int, box_rows: int) -> _Map:
    """How the copy engine reads boxes of `box_rows` by one step from a matrix: a function of these numbers alone."""
    memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT_BYTES)
    address = ctypes.addressof(memory) + -ctypes.addressof(memory) % _MAP_ALIGNMENT_BYTES
    _call(
        "cuTensorMapEncodeTiled",
        *(ctypes.c_void_p(address), _BFLOAT16, 2, ctypes.c_void_p(pointer)),
        (ctypes.c_uint64 * 2)(width, rows),
        (ctypes.c_uint64 * 1)(width * 2),
        (ctypes.c_uint32 * 2)(STEP, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        *(_NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE),
    )
    return _Map(memory, address)


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    error = getattr(_driver(), name)(*arguments)
    if error:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(error, ctypes.byref(text))
        raise LaunchFailed(f"{name}: {(text.value or b'unknown error').decode()} ({error})")
