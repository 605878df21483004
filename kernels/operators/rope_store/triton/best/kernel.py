"""rope_store for Triton: a program for every few heads, counted through all tokens, of q or of k with v.

Where heads are normalised first, a head's squares are added in the order of qk_norm's tile, but from the halves that
are turned: eight neighbours, then the two halves, then across lanes. Each launch is begun before the kernel ahead of it
has ended.
"""

import torch
import triton
import triton.language as tl

# region row
HEADS, WARPS = 16, 4


def stride_of(heads: torch.Tensor) -> int:
    """Elements from one token's heads to the next one's. Another alignment would add squares in another order."""
    tokens, count, head_dim = heads.shape
    if tokens < 2:
        return count * head_dim
    if head_dim % 16 == 0 and heads.stride(0) % 16 > 0:
        raise ValueError("tokens must be a multiple of 16 elements apart")
    return heads.stride(0)


@triton.jit
def rounded(values):
    """As bfloat16 has them, in float32, by a packed conversion whose lower half is zero; a single one is slower."""
    whole = tl.inline_asm_elementwise(
        "{ .reg .f32 zero; mov.f32 zero, 0f00000000; cvt.rn.bf16x2.f32 $0, $1, zero; }",
        "=r,f",
        [values],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return whole.to(tl.float32, bitcast=True)


@triton.jit
def squares(values, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of every eight neighbours' squares [HEADS, BLOCK / 8]."""
    return tl.sum(tl.reshape(values * values, [HEADS, BLOCK // 8, 8]), axis=2)


@triton.jit
def inverse_of(
    heads, left, right, there, head_dim, epsilon, HALVES: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """What each head is scaled by [HEADS, 1]. Without HALVES its squares are those of the whole head, loaded again."""
    if HALVES:
        total = tl.sum(squares(left, HEADS, BLOCK) + squares(right, HEADS, BLOCK), axis=1)
    else:
        k = tl.arange(0, 2 * BLOCK)[None, :]
        values = tl.load(heads + k, mask=there & (k < head_dim), other=0.0).to(tl.float32)
        total = tl.sum(values * values, axis=1)
    mean = tl.div_rn(total, tl.cast(head_dim, tl.float32))
    return tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))[:, None]


@triton.jit
def turned(
    heads,
    weight,
    out,
    angle,
    there,
    stored,
    head_dim,
    half,
    epsilon,
    NORM: tl.constexpr,
    HALVES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """HEADS heads, pointers and masks [HEADS, 1]: normalised where NORM is set, turned, stored where they may be."""
    i = tl.arange(0, BLOCK)[None, :]
    inside = there & (i < half)
    left = tl.load(heads + i, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(heads + half + i, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(angle + i, mask=inside, other=0.0)
    sin = tl.load(angle + half + i, mask=inside, other=0.0)
    if NORM:
        inverse = inverse_of(heads, left, right, there, head_dim, epsilon, HALVES, HEADS, BLOCK)
        row = tl.zeros([HEADS, 1], tl.int32)  # in the layout of the heads, or it would be moved there
        first = tl.load(weight + row + i, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(weight + row + half + i, mask=inside, other=0.0).to(tl.float32)
        left = rounded(left * inverse * first)
        right = rounded(right * inverse * second)
    inside = inside & stored
    tl.store(out + i, (left * cos - right * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(out + half + i, (right * cos + left * sin).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def every(
    q,
    k,
    v,
    q_weight,
    k_weight,
    positions,
    cos_sin,
    slot_mapping,
    q_out,
    k_cache,
    v_cache,
    tokens,
    query_heads,
    kv_heads,
    q_stride,
    k_stride,
    v_stride,
    head_dim,
    half,
    epsilon,
    NORM: tl.constexpr,
    HALVES: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of q, or of k and v into their slots where q has no more; padding has none."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    first = tl.program_id(0) * HEADS
    in_q = tl.cdiv(tokens * query_heads, HEADS) * HEADS
    head = first + tl.arange(0, HEADS)[:, None]
    if first < in_q:
        there = head < tokens * query_heads
        token = head // query_heads
        angle = cos_sin + tl.load(positions + token, mask=there, other=0).to(tl.int64) * head_dim
        heads = q + token.to(tl.int64) * q_stride + head % query_heads * head_dim
        out = q_out + head.to(tl.int64) * head_dim
        turned(heads, q_weight, out, angle, there, there, head_dim, half, epsilon, NORM, HALVES, HEADS, BLOCK)
    else:
        head -= in_q
        there = head < tokens * kv_heads
        token = head // kv_heads
        angle = cos_sin + tl.load(positions + token, mask=there, other=0).to(tl.int64) * head_dim
        slot = tl.load(slot_mapping + token, mask=there, other=-1).to(tl.int64)
        own = head % kv_heads * head_dim
        to = slot * kv_heads * head_dim + own
        d = tl.arange(0, 2 * BLOCK)[None, :]
        inside = (slot >= 0) & (d < head_dim)
        values = tl.load(v + token.to(tl.int64) * v_stride + own + d, mask=inside)
        heads = k + token.to(tl.int64) * k_stride + own
        turned(
            heads, k_weight, k_cache + to, angle, there, slot >= 0, head_dim, half, epsilon, NORM, HALVES, HEADS, BLOCK
        )
        tl.store(v_cache + to + d, values, mask=inside)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    norm: bool,
    epsilon: float,
) -> None:
    """Both entries of both paths: where norm is False, nothing is read of the weights."""
    tokens, query_heads, head_dim = q.shape
    kv_heads, half = k.shape[1], head_dim // 2
    grid = (triton.cdiv(tokens * query_heads, HEADS) + triton.cdiv(tokens * kv_heads, HEADS),)
    sizes = (tokens, query_heads, kv_heads, stride_of(q), stride_of(k), stride_of(v), head_dim, half, epsilon)
    tile = (norm, head_dim in (128, 256), HEADS, triton.next_power_of_2(half))
    given = (q, k, v, q_weight, k_weight, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)
    every[grid](*given, *sizes, *tile, launch_pdl=True, num_warps=WARPS)


# endregion row


# region full
def rope_store_full_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> None:
    """q [tokens, query_heads, head_dim] turned; k turned and v [tokens, kv_heads, head_dim] into their slots.

    Tokens of q, k and v may be any multiple of 16 elements apart. Raises ValueError for another one.
    """
    given = (q, k, v, q, k, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)
    launch(*given, False, 0.0)


def qk_norm_rope_store_full_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """The same after each head of q and k is normalised with its weight [head_dim]."""
    given = (q, k, v, q_weight, k_weight, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)
    launch(*given, True, epsilon)


# endregion full


# region decode
def rope_store_decode_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> None:
    """q [tokens, query_heads, head_dim] turned; k turned and v [tokens, kv_heads, head_dim] into their slots.

    Tokens of q, k and v may be any multiple of 16 elements apart. Raises ValueError for another one.
    """
    given = (q, k, v, q, k, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)
    launch(*given, False, 0.0)


def qk_norm_rope_store_decode_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """The same after each head of q and k is normalised with its weight [head_dim]."""
    given = (q, k, v, q_weight, k_weight, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)
    launch(*given, True, epsilon)


# endregion decode
