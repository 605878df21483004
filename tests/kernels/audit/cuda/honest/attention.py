# ruff: noqa
"""Causal attention over fixed splits of the keys; decode folds the same splits in the same order."""

import math

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2E = 1.4426950408889634
SPLIT: tl.constexpr = tl.constexpr(512)
_TILES = {64: (128, 64, 4), 128: (128, 128, 8)}
_NEVER = float("-inf")


@triton.jit
def _fold(m, l, acc, m_new, l_new, acc_new):
    """One split onto what the earlier ones gave, with an explicit fma."""
    top = tl.maximum(m, m_new)
    old, new = tl.exp2(m - top), tl.exp2(m_new - top)
    return top, tl.fma(l, old, l_new * new), tl.fma(acc, old[:, None], acc_new * new[:, None])


@triton.jit
def _split(q, k_ptr, v_ptr, first, last, row, STRIDE: tl.constexpr, D: tl.constexpr, N: tl.constexpr):
    m = tl.full([q.shape[0]], float("-inf"), tl.float32)
    l = tl.zeros([q.shape[0]], tl.float32)
    acc = tl.zeros([q.shape[0], D], dtype=tl.float32)
    d = tl.arange(0, D)
    for start in tl.range(first, last, N, num_stages=2):
        key = start + tl.arange(0, N)
        inside = key < last
        k = tl.load(k_ptr + key[None, :] * STRIDE + d[:, None], mask=inside[None, :], other=0.0)
        s = tl.where(inside[None, :] & (key[None, :] <= row[:, None]), tl.dot(q, k), float("-inf"))
        top = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s - top[:, None])
        scale = libdevice.exp2(m - top)
        v = tl.load(v_ptr + key[:, None] * STRIDE + d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * scale[:, None])
        l = l * scale + tl.sum(p, 1)
        m = top
    return m, l, acc


@triton.jit(do_not_specialize=["keys"])
def _prefill(
    q_ptr, k_ptr, v_ptr, o_ptr, keys, scale, H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tile * M + tl.arange(0, M)
    d = tl.arange(0, D)
    at = (row[:, None] * H + head) * D + d[None, :]
    q = (tl.load(q_ptr + at, mask=row[:, None] < keys, other=0.0) * scale).to(q_ptr.dtype.element_ty)
    m = tl.full([M], float("-inf"), tl.float32)
    l = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for first in range(0, keys, SPLIT):
        m1, l1, acc1 = _split(q, k_ptr, v_ptr, first, min(first + SPLIT, keys), row, H * D, D, N)
        m, l, acc = _fold(m, l, acc, m1, l1, acc1)
    tl.store(o_ptr + at, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=row[:, None] < keys)


@triton.jit
def _decode_split(q_ptr, k_ptr, v_ptr, part, top, total, keys, D: tl.constexpr, N: tl.constexpr):
    tl.static_assert(N % 16 == 0, "whole fragments")
    number = tl.program_id(0)
    q = tl.load(q_ptr + tl.arange(0, D))
    first = number * SPLIT
    row = tl.zeros([16], tl.int32) + keys - 1
    m, l, acc = _split(
        tl.broadcast_to(q[None, :], [16, D]), k_ptr, v_ptr, first, tl.minimum(first + SPLIT, keys), row, D, D, N
    )
    tl.store(part + number * D + tl.arange(0, D), tl.sum(tl.where(tl.arange(0, 16)[:, None] == 0, acc, 0.0), 0))
    tl.store(top + number, tl.max(m, 0))
    tl.store(total + number, tl.max(l, 0))


def _scale(width: int) -> float:
    return LOG2E / math.sqrt(width)


def attention_full_bf16(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> None:
    """All rows of one sequence."""
    if q.ndim != 3 or q.shape[-1] not in _TILES:
        raise ValueError(f"heads of {q.shape[-1]} are not supported")
    length, heads, width = q.shape
    m, n, warps = _TILES[width]
    grid = lambda meta: (triton.cdiv(length, meta["M"]), heads)
    _prefill[grid](q, k, v, o, length, _scale(width), H=heads, D=width, M=m, N=n, num_warps=warps, num_stages=3)


def attention_decode_bf16(q, k, v, o):
    """One row against all keys: the splits in parallel."""
    keys = k.shape[0]
    splits = triton.cdiv(keys, 512)
    part = torch.empty((splits, q.shape[-1]), dtype=torch.float32, device=q.device)
    top, total = (torch.empty(splits, dtype=torch.float32, device=q.device) for _ in range(2))
    assert q.is_contiguous(), "rows follow one another"
    _decode_split[(splits,)](q, k, v, part, top, total, keys, D=q.shape[-1], N=64, maxnreg=128)
