# ruff: noqa
"""A persistent matrix product through TMA descriptors, made on the host or in the kernel, and a split-K sibling."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

GROUP_M = 8
TILE_M, TILE_N = 128, 256
CHUNK = 4 * 64


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    wide = GROUP * tiles_n
    group = tile // wide
    first = group * GROUP
    rows = min(tiles_m - first, GROUP)
    return first + (tile % rows), (tile % wide) // rows


@triton.jit
def _product(a, b, c, m, n, k, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, PROGRAMS: tl.constexpr):
    tiles_m, tiles_n = tl.cdiv(m, TM), tl.cdiv(n, TN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        i, j = _place(tile, tiles_m, tiles_n, 8)
        acc = tl.zeros((TM, TN), dtype=tl.float32)
        for step in range(tl.cdiv(k, TK)):
            acc = tl.dot(a.load([i * TM, step * TK]), b.load([j * TN, step * TK]).T, acc)
        c.store([i * TM, j * TN], acc.to(tl.bfloat16))


@triton.jit
def _device_made(a_ptr, b_ptr, c_ptr, m, n, k, TM: tl.constexpr, TK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[m, k], strides=[k, 1], block_shape=[TM, TK])
    b = tl.make_tensor_descriptor(b_ptr, shape=[n, k], strides=[k, 1], block_shape=[TM, TK])
    i, j = tl.program_id(0) * TM, tl.program_id(1) * TM
    i = tl.multiple_of(i, TM)
    acc = tl.zeros((TM, TM), tl.float32)
    for step in tl.static_range(4):
        acc += tl.dot(a.load([i, step * TK]), b.load([j, step * TK]).T, input_precision="ieee")
    at = c_ptr + (i + tl.arange(0, TM))[:, None] * n + (j + tl.arange(0, TM))[None, :]
    tl.store(at, acc.to(c_ptr.dtype.element_ty), mask=(at < c_ptr + m * n), eviction_policy="evict_first")


def _workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _programs(x: torch.Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def linear_full_bf16(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
    """y [m, n] of x [m, k] and weight [n, k]."""
    m, k = x.shape
    n = weight.shape[0]
    if m >= TILE_M:
        a = TensorDescriptor.from_tensor(x, [TILE_M, 64])
        b = TensorDescriptor(weight, shape=[n, k], strides=[k, 1], block_shape=[TILE_N, 64])
        c = TensorDescriptor.from_tensor(y, [TILE_M, TILE_N])
        tiles = triton.cdiv(m, TILE_M) * triton.cdiv(n, TILE_N)
        programs = min(_programs(x), tiles)
        _product[(programs,)](a, b, c, m, n, k, TM=TILE_M, TN=TILE_N, TK=64, PROGRAMS=programs, num_warps=8)
    else:
        triton.set_allocator(_workspace)
        _device_made[lambda meta: (triton.cdiv(m, meta["TM"]), n // meta["TM"])](x, weight, y, m, n, k, TM=16, TK=64)


def linear_decode_bf16(x, weight, y):
    """The same rows, fewer of them."""
    linear_full_bf16(x, weight, y)
