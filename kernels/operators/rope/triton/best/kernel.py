"""rope for Triton: a program for every few heads, counted through all tokens, of q or of k.

Where a token has few heads, a program has those of several; none of its lanes is idle. Each launch is begun before the
kernel ahead of it has ended.
"""

import torch
import triton
import triton.language as tl


# region row
@triton.jit
def turned(
    heads, out, first, count, each, stride, positions, cos_sin, head_dim, half, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """HEADS heads from the first on: pairs are half a head apart; both products are rounded before they are added.

    A token has so many heads each, and the next token is a stride on.
    """
    head = first + tl.arange(0, HEADS)
    i = tl.arange(0, BLOCK)[None, :]
    there = head < count
    inside = there[:, None] & (i < half)
    token = head // each
    angle = cos_sin + tl.load(positions + token, mask=there, other=0).to(tl.int64)[:, None] * head_dim + i
    at = token.to(tl.int64)[:, None] * stride + (head % each * head_dim)[:, None] + i
    left = tl.load(heads + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(heads + at + half, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(angle, mask=inside, other=0.0)
    sin = tl.load(angle + half, mask=inside, other=0.0)
    to = head.to(tl.int64)[:, None] * head_dim + i
    tl.store(out + to, (left * cos - right * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(out + to + half, (right * cos + left * sin).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def turn(
    q,
    k,
    positions,
    cos_sin,
    q_out,
    k_out,
    tokens,
    query_heads,
    kv_heads,
    q_stride,
    k_stride,
    head_dim,
    half,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of q, or of k where q has no more."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    first = tl.program_id(0) * HEADS
    in_q = tl.cdiv(tokens * query_heads, HEADS) * HEADS
    if first < in_q:
        count = tokens * query_heads
        turned(q, q_out, first, count, query_heads, q_stride, positions, cos_sin, head_dim, half, HEADS, BLOCK)
    else:
        count = tokens * kv_heads
        turned(k, k_out, first - in_q, count, kv_heads, k_stride, positions, cos_sin, head_dim, half, HEADS, BLOCK)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    heads: int,
    warps: int,
) -> None:
    """q and k [tokens, heads, head_dim], turned to positions [tokens] of cos_sin [max_position, head_dim]."""
    tokens, query_heads, head_dim = q.shape
    kv_heads, half = k.shape[1], head_dim // 2
    grid = (triton.cdiv(tokens * query_heads, heads) + triton.cdiv(tokens * kv_heads, heads),)
    sizes = (
        tokens,
        query_heads,
        kv_heads,
        q.stride(0),
        k.stride(0),
        head_dim,
        half,
        heads,
        triton.next_power_of_2(half),
    )
    turn[grid](q, k, positions, cos_sin, q_out, k_out, *sizes, launch_pdl=True, num_warps=warps)


# endregion row


# region full
FULL_HEADS, FULL_WARPS = 16, 2


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
    launch(q, k, positions, cos_sin, q_out, k_out, FULL_HEADS, FULL_WARPS)


# endregion full


# region decode
DECODE_HEADS, DECODE_WARPS = 8, 4


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
    launch(q, k, positions, cos_sin, q_out, k_out, DECODE_HEADS, DECODE_WARPS)


# endregion decode
