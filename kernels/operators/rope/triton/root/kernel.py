"""rope for Triton, plain: one program for each token, a few heads at a time."""

import torch
import triton
import triton.language as tl


# region row
@triton.jit
def rotate(heads, out, token, stride, first, count, cos, sin, half, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """HEADS heads of one token: pairs are half a head apart; both products are rounded before they are added."""
    head = first + tl.arange(0, HEADS)
    i = tl.arange(0, BLOCK)
    inside = (head < count)[:, None] & (i < half)[None, :]
    at = token.to(tl.int64) * stride + head[:, None] * (2 * half) + i[None, :]
    left = tl.load(heads + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(heads + at + half, mask=inside, other=0.0).to(tl.float32)
    at = (token.to(tl.int64) * count + head)[:, None] * (2 * half) + i[None, :]
    tl.store(out + at, (left * cos - right * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(out + at + half, (right * cos + left * sin).to(out.dtype.element_ty), mask=inside)


# endregion row


# region full
FULL_HEADS, FULL_WARPS = 16, 4


@triton.jit
def full(
    q,
    k,
    positions,
    cos_sin,
    q_out,
    k_out,
    query_heads,
    kv_heads,
    q_stride,
    k_stride,
    half,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token's heads of q, then those of k."""
    token = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * half) + i
    cos = tl.load(angle, mask=i < half, other=0.0)[None, :]
    sin = tl.load(angle + half, mask=i < half, other=0.0)[None, :]
    for first in range(0, query_heads, HEADS):
        rotate(q, q_out, token, q_stride, first, query_heads, cos, sin, half, HEADS, BLOCK)
    for first in range(0, kv_heads, HEADS):
        rotate(k, k_out, token, k_stride, first, kv_heads, cos, sin, half, HEADS, BLOCK)


def rope_full_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """q and k [tokens, heads, head_dim], turned to positions [tokens] of cos_sin [max_position, head_dim].

    Tokens of q and of k may be any stride apart.
    """
    tokens, query_heads, head_dim = q.shape
    kv_heads, half = k.shape[1], head_dim // 2
    sizes = (query_heads, kv_heads, q.stride(0), k.stride(0), half, FULL_HEADS, triton.next_power_of_2(half))
    full[(tokens,)](q, k, positions, cos_sin, q_out, k_out, *sizes, num_warps=FULL_WARPS)


# endregion full


# region decode
DECODE_HEADS, DECODE_WARPS = 16, 4


@triton.jit
def decode(
    q,
    k,
    positions,
    cos_sin,
    q_out,
    k_out,
    query_heads,
    kv_heads,
    q_stride,
    k_stride,
    half,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token's heads of q, then those of k."""
    token = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * half) + i
    cos = tl.load(angle, mask=i < half, other=0.0)[None, :]
    sin = tl.load(angle + half, mask=i < half, other=0.0)[None, :]
    for first in range(0, query_heads, HEADS):
        rotate(q, q_out, token, q_stride, first, query_heads, cos, sin, half, HEADS, BLOCK)
    for first in range(0, kv_heads, HEADS):
        rotate(k, k_out, token, k_stride, first, kv_heads, cos, sin, half, HEADS, BLOCK)


def rope_decode_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """q and k [tokens, heads, head_dim], turned to positions [tokens] of cos_sin [max_position, head_dim].

    Tokens of q and of k may be any stride apart.
    """
    tokens, query_heads, head_dim = q.shape
    kv_heads, half = k.shape[1], head_dim // 2
    sizes = (query_heads, kv_heads, q.stride(0), k.stride(0), half, DECODE_HEADS, triton.next_power_of_2(half))
    decode[(tokens,)](q, k, positions, cos_sin, q_out, k_out, *sizes, num_warps=DECODE_WARPS)


# endregion decode
