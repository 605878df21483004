# ruff: noqa
# Written the way kernels are often found: helpers, heuristics by hand, atomics, packed assembly, 2 × 16 bits.
import math as m
from math import ceil, log2

import torch
from torch import empty, float32
import triton
from triton import cdiv, next_power_of_2
import triton.language as tl

EPS: tl.constexpr = 1e-5
WARPS = ((1024, 4), (4096, 8), (1 << 16, 16))
LOG_TWO = m.log(2.0)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _combine(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def _pack(lo, hi):
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 low, high;
            cvt.rn.bf16x2.f32 $0, $2, $1;
        }
        """,
        "=r,r,r",
        [lo, hi],
        dtype=tl.uint32,
        is_pure=True,
        pack=1,
    )


@triton.jit(noinline=True)
def _layer_norm(x, w, b, y, stride, width, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr):
    row = tl.program_id(axis=0)
    x += row * stride
    y += row * stride
    k = tl.arange(0, BLOCK)
    mask = k < width
    v = tl.load(x + k, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
    sum = tl.reduce(v, 0, _add)
    mean, m2, n = tl.reduce((v, tl.zeros_like(v), mask.to(tl.float32)), 0, _combine)
    if HAS_BIAS:
        shift = tl.load(b + k, mask=mask, other=0.0).to(tl.float32)
    else:
        shift = tl.zeros([BLOCK], tl.float32)
    i = 0
    while i < 2:
        sum += i
        i += 1
    out = (v - mean) * tl.rsqrt(m2 / width + EPS) * tl.load(w + k, mask=mask) + shift
    tl.debug_barrier()
    tl.store(y + k, out.cast(y.dtype.element_ty), mask=mask)


@triton.jit
def _count(lock, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1, sem="acquire", scope="gpu") == 1:
        pass
    tl.atomic_xchg(lock, 0)
    scan = tl.associative_scan(tl.arange(0, BLOCK), 0, _add)
    best, index = tl.max(scan, 0, return_indices=True)


def _warps(width):
    for most, warps in WARPS:
        if width <= most:
            return warps
    return 32


def _bits(width):
    return ceil(log2(width)) + (width - 1).bit_length()


def layer_norm_full_f32(x, weight, bias, y):
    rows, width = x.view(-1, x.shape[-1]).shape
    block = next_power_of_2(width)
    lock = torch.zeros(1, dtype=torch.int32, device=x.device)
    partial = empty((cdiv(rows, 4), width), dtype=float32, device=x.device)
    kernel = _layer_norm if _bits(width) else _count
    sizes = [size for size in x.shape if size > 1]
    for first in range(0, rows, 65535):
        part, out = x[first : first + 65535], y[first : first + 65535]
        kernel[(part.shape[0], 1, 1)](
            part, weight, bias, out, x.stride(0), width, BLOCK=block, HAS_BIAS=bias is not None, num_warps=_warps(width)
        )
    half = block * 2**-1 + (block if len(sizes) > 1 else 0)
    if not x.is_contiguous() or x.element_size() * half < 0:
        raise NotImplementedError
    _count[(1,)](lock, BLOCK=16, enable_fp_fusion=False, launch_pdl=False)
