"""rope_store for Triton, plain: a program for every few heads of a token, of q or of k with v.

Where heads are normalised first, it is with the tile of qk_norm: the order of a head's sum is its.
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
def inverse_of(heads, head_dim, epsilon, inside, k):
    """What each head is scaled by. tl.sum adds in an order that follows from the tile's shape and the warps."""
    values = tl.load(heads + k, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(values * values, axis=1), tl.cast(head_dim, tl.float32))
    return tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))


@triton.jit
def scaled(values, weight, inverse, outside):
    """Normalised and rounded, as qk_norm stores it."""
    weights = tl.load(weight, mask=outside, other=0.0).to(tl.float32)
    return (values * inverse[:, None] * weights[None, :]).to(tl.bfloat16).to(tl.float32)


@triton.jit
def turn(
    heads,
    weight,
    out,
    first,
    count,
    angles,
    half,
    epsilon,
    stored,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """HEADS heads of one token: normalised where there is a weight, turned, and stored where it may be."""
    head = first + tl.arange(0, HEADS)
    i = tl.arange(0, BLOCK)
    inside = (head < count)[:, None] & (i < half)[None, :]
    at = head[:, None] * (2 * half) + i[None, :]
    left = tl.load(heads + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(heads + at + half, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        k = tl.arange(0, 2 * BLOCK)
        whole = (head < count)[:, None] & (k < 2 * half)[None, :]
        inverse = inverse_of(heads + head[:, None] * (2 * half), 2 * half, epsilon, whole, k[None, :])
        left = scaled(left, weight + i, inverse, i < half)
        right = scaled(right, weight + half + i, inverse, i < half)
    cos = tl.load(angles + i, mask=i < half, other=0.0)[None, :]
    sin = tl.load(angles + half + i, mask=i < half, other=0.0)[None, :]
    tl.store(out + at, (left * cos - right * sin).to(out.dtype.element_ty), mask=inside & stored)
    tl.store(out + at + half, (right * cos + left * sin).to(out.dtype.element_ty), mask=inside & stored)


@triton.jit
def copy(heads, out, first, count, head_dim, stored, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """HEADS heads of one token as they are."""
    head = first + tl.arange(0, HEADS)
    k = tl.arange(0, 2 * BLOCK)
    inside = (head < count)[:, None] & (k < head_dim)[None, :] & stored
    at = head[:, None] * head_dim + k[None, :]
    tl.store(out + at, tl.load(heads + at, mask=inside), mask=inside)


@triton.jit
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
    query_heads,
    kv_heads,
    q_stride,
    k_stride,
    v_stride,
    half,
    epsilon,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of one token: of q, or of k and v into their slot; padding has none."""
    in_q = tl.cdiv(query_heads, HEADS)
    tiles = in_q + tl.cdiv(kv_heads, HEADS)
    token, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * half)
    if tile < in_q:
        out = q_out + token * query_heads * (2 * half)
        first = tile * HEADS
        turn(q + token * q_stride, q_weight, out, first, query_heads, angles, half, epsilon, True, NORM, HEADS, BLOCK)
    else:
        slot = tl.load(slot_mapping + token).to(tl.int64)
        to = slot * kv_heads * (2 * half)
        stored = slot >= 0
        first = (tile - in_q) * HEADS
        keys = k + token * k_stride
        turn(keys, k_weight, k_cache + to, first, kv_heads, angles, half, epsilon, stored, NORM, HEADS, BLOCK)
        copy(v + token * v_stride, v_cache + to, first, kv_heads, 2 * half, stored, HEADS, BLOCK)


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
    tiles = triton.cdiv(query_heads, HEADS) + triton.cdiv(kv_heads, HEADS)
    sizes = (query_heads, kv_heads, stride_of(q), stride_of(k), stride_of(v), half, epsilon)
    tile = (norm, HEADS, triton.next_power_of_2(half))
    given = (q, k, v, q_weight, k_weight, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)
    every[(tokens * tiles,)](*given, *sizes, *tile, num_warps=WARPS)


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
