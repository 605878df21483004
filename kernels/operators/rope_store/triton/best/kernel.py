"""rope_store for Triton: a program for a few heads of a group of tokens, of q or of k with v, found without a division.

Where heads are normalised first, a head's squares are added in the order of qk_norm's tile, but from the halves that
are turned: eight neighbours, then the two halves, then across lanes. On the full path a program then takes more heads
of a few tokens, one after another, and reads what they share once. Each launch is begun before the kernel ahead of it
has ended.
"""

import torch
import triton
import triton.language as tl

# region row
HEADS, WARPS = 16, 4
# Of a program of one warp that reads angles and weights once: heads at a time, and in all.
TILE_HEADS, PROGRAM_HEADS = 2, 8


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
def squares(values):
    """The sums of every eight neighbours' squares [tokens, heads, n / 8]."""
    return tl.sum(tl.reshape(values * values, [values.shape[0], values.shape[1], values.shape[2] // 8, 8]), axis=3)


@triton.jit
def inverse_of(heads, left, right, head_dim, epsilon, EXACT: tl.constexpr):
    """What each head is scaled by [tokens, heads, 1]. Where it is not EXACT, its squares are read again as a whole.

    A sum divided by a power of two is the sum times its inverse, in every bit.
    """
    if EXACT:
        mean = tl.sum(squares(left) + squares(right), axis=2) * (0.5 / left.shape[2])
    else:
        k = tl.arange(0, 2 * left.shape[2])[None, None, :]
        values = tl.load(heads + k, mask=k < head_dim, other=0.0).to(tl.float32)
        mean = tl.div_rn(tl.sum(values * values, axis=2), tl.cast(head_dim, tl.float32))
    return tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))[:, :, None]


@triton.jit
def part(values, half, EXACT: tl.constexpr, BLOCK: tl.constexpr):
    """Half a head, or what belongs to it, in float32, from pointers to its begin."""
    i = tl.arange(0, BLOCK)[None, None, :]
    found = tl.load(values + i) if EXACT else tl.load(values + i, mask=i < half, other=0.0)
    return found.to(tl.float32)


@triton.jit
def turned(
    heads,
    halves,
    out,
    stored,
    weights,
    angles,
    head_dim,
    half,
    epsilon,
    NORM: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Heads, pointers and mask [tokens, heads, 1]: normalised where NORM is set, turned, stored where they may be."""
    left, right = halves
    if NORM:
        inverse = inverse_of(heads, left, right, head_dim, epsilon, EXACT)
        left, right = rounded(left * inverse * weights[0]), rounded(right * inverse * weights[1])
    i = tl.arange(0, BLOCK)[None, None, :]
    inside = stored if EXACT else stored & (i < half)
    cos, sin = angles
    tl.store(out + i, (left * cos - right * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(out + half + i, (right * cos + left * sin).to(out.dtype.element_ty), mask=inside)


@triton.jit
def quotient(number, inverse):
    """The number over what this is the inverse of, their product less than 2^30."""
    return tl.umulhi(4 * number, inverse)


@triton.jit(do_not_specialize=["tokens", "q_inverse", "kv_inverse", "tiles_inverse"])
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
    group,
    q_inverse,
    kv_inverse,
    tiles_inverse,
    NORM: tl.constexpr,
    EXACT: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of a group of tokens: of q, or of k and v into their slots; padding has none."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    q_tiles = group * query_heads // HEADS
    tiles = q_tiles + group * kv_heads // HEADS
    number = quotient(tl.program_id(0), tiles_inverse)
    tile = tl.program_id(0) - number * tiles
    first = number * group
    row = tl.arange(0, HEADS)[None, :, None]
    # What needs no position or slot is asked for first.
    if tile < q_tiles:
        row += tile * HEADS
        own = quotient(row, q_inverse)
        token = tl.minimum(first + own, tokens - 1).to(tl.int64)
        at = (row - own * query_heads) * head_dim
        heads = q + token * q_stride + at
        halves = part(heads, half, EXACT, BLOCK), part(heads + half, half, EXACT, BLOCK)
        weights = halves
        if NORM:
            weight = q_weight + row * 0  # in the layout of the heads, or it would be moved there
            weights = part(weight, half, EXACT, BLOCK), part(weight + half, half, EXACT, BLOCK)
        angle = cos_sin + tl.load(positions + token).to(tl.int64) * head_dim
        angles = part(angle, half, EXACT, BLOCK), part(angle + half, half, EXACT, BLOCK)
        out = q_out + token * (query_heads * head_dim) + at
        stored = first + own < tokens
        turned(heads, halves, out, stored, weights, angles, head_dim, half, epsilon, NORM, EXACT, BLOCK)
    else:
        row += (tile - q_tiles) * HEADS
        own = quotient(row, kv_inverse)
        token = tl.minimum(first + own, tokens - 1).to(tl.int64)
        at = (row - own * kv_heads) * head_dim
        heads = k + token * k_stride + at
        halves = part(heads, half, EXACT, BLOCK), part(heads + half, half, EXACT, BLOCK)
        d = tl.arange(0, 2 * BLOCK)[None, None, :]
        values = tl.load(v + token * v_stride + at + d, mask=d < head_dim)
        weights = halves
        if NORM:
            weight = k_weight + row * 0
            weights = part(weight, half, EXACT, BLOCK), part(weight + half, half, EXACT, BLOCK)
        angle = cos_sin + tl.load(positions + token).to(tl.int64) * head_dim
        slot = tl.load(slot_mapping + token).to(tl.int64)
        angles = part(angle, half, EXACT, BLOCK), part(angle + half, half, EXACT, BLOCK)
        to = slot * (kv_heads * head_dim) + at
        stored = (first + own < tokens) & (slot >= 0)
        turned(heads, halves, k_cache + to, stored, weights, angles, head_dim, half, epsilon, NORM, EXACT, BLOCK)
        tl.store(v_cache + to + d, values, mask=stored & (d < head_dim))


@triton.jit(do_not_specialize=["tokens"])
def by_tokens(
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
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    ALL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ALL heads of a few tokens, HEADS at a time, normalised: of q, or of k and v into their slots."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    in_q = tl.cdiv(query_heads, ALL)
    parts = in_q + tl.cdiv(kv_heads, ALL)
    number = tl.program_id(0) % parts
    token = tl.program_id(0) // parts * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    there = token < tokens
    token = tl.minimum(token, tokens - 1).to(tl.int64)
    one = tl.arange(0, HEADS)[None, :, None]
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * head_dim
    angles = part(angle, half, True, BLOCK), part(angle + half, half, True, BLOCK)
    if number < in_q:
        weight = q_weight + token * 0  # in the layout of the heads, or it would be moved there
        weights = part(weight, half, True, BLOCK), part(weight + half, half, True, BLOCK)
        for first in range(number * ALL, tl.minimum(number * ALL + ALL, query_heads), HEADS):
            head = first + one
            at = tl.minimum(head, query_heads - 1) * head_dim
            out = q_out + token * (query_heads * head_dim) + at
            stored = there & (head < query_heads)
            heads = q + token * q_stride + at
            halves = part(heads, half, True, BLOCK), part(heads + half, half, True, BLOCK)
            turned(heads, halves, out, stored, weights, angles, head_dim, half, epsilon, True, True, BLOCK)
    else:
        weight = k_weight + token * 0
        weights = part(weight, half, True, BLOCK), part(weight + half, half, True, BLOCK)
        slot = tl.load(slot_mapping + token).to(tl.int64)
        d = tl.arange(0, 2 * BLOCK)[None, None, :]
        begin = (number - in_q) * ALL
        for first in range(begin, tl.minimum(begin + ALL, kv_heads), HEADS):
            head = first + one
            at = tl.minimum(head, kv_heads - 1) * head_dim
            to = slot * (kv_heads * head_dim) + at
            stored = there & (slot >= 0) & (head < kv_heads)
            values = tl.load(v + token * v_stride + at + d)
            heads = k + token * k_stride + at
            halves = part(heads, half, True, BLOCK), part(heads + half, half, True, BLOCK)
            turned(heads, halves, k_cache + to, stored, weights, angles, head_dim, half, epsilon, True, True, BLOCK)
            tl.store(v_cache + to + d, values, mask=stored)


def group_of(query_heads: int, kv_heads: int) -> int:
    """How many tokens fill whole tiles, with their heads of q and with those of k."""
    group = 1
    while group * query_heads % HEADS or group * kv_heads % HEADS:
        group *= 2
    return group


def inverse_number(number: int) -> int:
    """What `quotient` multiplies by."""
    return -(-(1 << 30) // number)


def launch(given: tuple[torch.Tensor, ...], norm: bool, full: bool, epsilon: float) -> None:
    """Both entries of both paths, of every tensor that qk_norm_rope_store takes: weights are read where norm is set."""
    q, k, v = given[:3]
    tokens, query_heads, head_dim = q.shape
    kv_heads, half = k.shape[1], head_dim // 2
    exact = head_dim in (128, 256)
    block = triton.next_power_of_2(half)
    strides = (stride_of(q), stride_of(k), stride_of(v))
    sizes = (tokens, query_heads, kv_heads, *strides, head_dim, half, epsilon)
    if norm and full and exact:
        at_once = 512 // head_dim
        parts = triton.cdiv(query_heads, PROGRAM_HEADS) + triton.cdiv(kv_heads, PROGRAM_HEADS)
        tile = (at_once, TILE_HEADS, PROGRAM_HEADS, block)
        by_tokens[(triton.cdiv(tokens, at_once) * parts,)](*given, *sizes, *tile, launch_pdl=True, num_warps=1)
        return
    group = group_of(query_heads, kv_heads)
    tiles = group * (query_heads + kv_heads) // HEADS
    inverses = (inverse_number(query_heads), inverse_number(kv_heads), inverse_number(tiles))
    tile = (group, *inverses, norm, exact, HEADS, block)
    every[(triton.cdiv(tokens, group) * tiles,)](*given, *sizes, *tile, launch_pdl=True, num_warps=WARPS)


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
    launch(given, False, True, 0.0)


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
    launch(given, True, True, epsilon)


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
    launch(given, False, False, 0.0)


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
    launch(given, True, False, epsilon)


# endregion decode
