"""qkv_rope for Triton, plain: a program for every few heads of a token, whatever they are heads of.

A head lies in registers as its two halves, so that pairs meet without a shuffle. Queries, keys and values go through
the same steps, and what a head is decides which of the results is stored: no batch and no cache decides a bit.
"""

import torch
import triton
import triton.language as tl

# region head
HEADS, WARPS = 8, 4


@triton.jit
def loaded(rows, at, inside):
    """Heads of a product's rows, widened."""
    return tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def with_bias(values, bias):
    """The bias added as a model's linear layer does after its product was rounded."""
    return (values + bias).to(tl.bfloat16).to(tl.float32)


@triton.jit
def inverse_rms(left, right, width, epsilon):
    """1 / sqrt(mean square + epsilon) of each head. Sums of halves; their order follows from the tile and the warps."""
    total = tl.sum(left * left, axis=1) + tl.sum(right * right, axis=1)
    mean = tl.div_rn(total, tl.cast(width, tl.float32))
    return tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))[:, None]


@triton.jit
def scaled(values, inverse, weight):
    """One half, normalised and rounded as qk_norm stores it."""
    return (values * inverse * weight).to(tl.bfloat16).to(tl.float32)


@triton.jit
def turned(left, right, cos, sin):
    """Pairs turned; both products are rounded before they are added."""
    return left * cos - right * sin, right * cos + left * sin


# endregion head


# region tile
@triton.jit
def tile(
    qkv,
    q_weight,
    k_weight,
    bias,
    positions,
    cos_sin,
    q_out,
    k_out,
    v_out,
    token,
    first,
    row,
    query_heads,
    kv_heads,
    half,
    epsilon,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """HEADS heads of one token, of queries, keys and values. Keys and values go to `row`; below 0, nowhere."""
    head, i = first + tl.arange(0, HEADS), tl.arange(0, BLOCK)
    heads = query_heads + 2 * kv_heads
    is_q, is_v = head < query_heads, head >= query_heads + kv_heads
    inside = (head < heads)[:, None] & (i < half)[None, :]
    at = (token.to(tl.int64) * heads + head)[:, None] * (2 * half) + i[None, :]
    left, right = loaded(qkv, at, inside), loaded(qkv, at + half, inside)
    plain_left, plain_right = left, right
    if NORM:
        own = tl.where(is_q, 0, 1)[:, None]
        low, high = i[None, :], i[None, :] + half
        w_left = tl.where(own == 0, loaded(q_weight, low, low < half), loaded(k_weight, low, low < half))
        w_right = tl.where(own == 0, loaded(q_weight, high, low < half), loaded(k_weight, high, low < half))
        inverse = inverse_rms(left, right, 2 * half, epsilon)
        left, right = scaled(left, inverse, w_left), scaled(right, inverse, w_right)
    else:
        of = head[:, None] * (2 * half) + i[None, :]
        left, right = with_bias(left, loaded(bias, of, inside)), with_bias(right, loaded(bias, of + half, inside))
        plain_left, plain_right = left, right
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * half) + i
    cos = tl.load(angle, mask=i < half, other=0.0)[None, :]
    sin = tl.load(angle + half, mask=i < half, other=0.0)[None, :]
    left, right = turned(left, right, cos, sin)
    left = tl.where(is_v[:, None], plain_left, left).to(tl.bfloat16)
    right = tl.where(is_v[:, None], plain_right, right).to(tl.bfloat16)
    to = (token.to(tl.int64) * query_heads + head)[:, None] * (2 * half) + i[None, :]
    tl.store(q_out + to, left, mask=inside & is_q[:, None])
    tl.store(q_out + to + half, right, mask=inside & is_q[:, None])
    kept = inside & (row >= 0)
    to = (row * kv_heads + head - query_heads)[:, None] * (2 * half) + i[None, :]
    is_k = kept & (head >= query_heads)[:, None] & (head < query_heads + kv_heads)[:, None]
    tl.store(k_out + to, left, mask=is_k)
    tl.store(k_out + to + half, right, mask=is_k)
    to -= kv_heads * (2 * half)
    tl.store(v_out + to, left, mask=kept & is_v[:, None])
    tl.store(v_out + to + half, right, mask=kept & is_v[:, None])


# endregion tile


# region full
@triton.jit(do_not_specialize=["tokens"])
def full(
    qkv,
    q_weight,
    k_weight,
    bias,
    positions,
    cos_sin,
    q_out,
    k_out,
    v_out,
    tokens,
    query_heads,
    kv_heads,
    half,
    epsilon,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of one token; its keys and values go where it stands."""
    tiles = tl.cdiv(query_heads + 2 * kv_heads, HEADS)
    token, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * HEADS
    row = token.to(tl.int64)
    tile(
        *(qkv, q_weight, k_weight, bias, positions, cos_sin, q_out, k_out, v_out, token, first, row),
        *(query_heads, kv_heads, half, epsilon, NORM, HEADS, BLOCK),
    )


def launch_full(qkv, q_weight, k_weight, bias, positions, cos_sin, q_out, k_out, v_out, epsilon, norm):
    (tokens, heads, head_dim), query_heads = qkv.shape, q_out.shape[1]
    half = head_dim // 2
    full[(tokens * triton.cdiv(heads, HEADS),)](
        *(qkv, q_weight, k_weight, bias, positions, cos_sin, q_out, k_out, v_out),
        *(tokens, query_heads, (heads - query_heads) // 2, half, epsilon),
        *(norm, HEADS, triton.next_power_of_2(half)),
        num_warps=WARPS,
    )


def qkv_rope_full_bf16(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    v_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """q_out, k_out, v_out [tokens, own heads, head_dim] from qkv [tokens, heads, head_dim]; q and k normalised."""
    launch_full(qkv, q_weight, k_weight, qkv, positions, cos_sin, q_out, k_out, v_out, epsilon, True)


def qkv_bias_rope_full_bf16(
    qkv: torch.Tensor,
    bias: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    v_out: torch.Tensor,
) -> None:
    """The same without norms, after a bias [all heads, head_dim] is added."""
    launch_full(qkv, qkv, qkv, bias, positions, cos_sin, q_out, k_out, v_out, 0.0, False)


# endregion full


# region decode
@triton.jit(do_not_specialize=["tokens"])
def decode(
    qkv,
    q_weight,
    k_weight,
    bias,
    positions,
    cos_sin,
    slot_mapping,
    q_out,
    k_out,
    v_out,
    tokens,
    query_heads,
    kv_heads,
    half,
    epsilon,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of one token; its keys and values go to its slot of a cache."""
    tiles = tl.cdiv(query_heads + 2 * kv_heads, HEADS)
    token, first = tl.program_id(0) // tiles, tl.program_id(0) % tiles * HEADS
    row = tl.load(slot_mapping + token).to(tl.int64)
    tile(
        *(qkv, q_weight, k_weight, bias, positions, cos_sin, q_out, k_out, v_out, token, first, row),
        *(query_heads, kv_heads, half, epsilon, NORM, HEADS, BLOCK),
    )


def launch_decode(qkv, q_weight, k_weight, bias, positions, cos_sin, slots, q_out, k_out, v_out, epsilon, norm):
    (tokens, heads, head_dim), query_heads = qkv.shape, q_out.shape[1]
    half = head_dim // 2
    decode[(tokens * triton.cdiv(heads, HEADS),)](
        *(qkv, q_weight, k_weight, bias, positions, cos_sin, slots, q_out, k_out, v_out),
        *(tokens, query_heads, (heads - query_heads) // 2, half, epsilon),
        *(norm, HEADS, triton.next_power_of_2(half)),
        num_warps=WARPS,
    )


def qkv_rope_decode_bf16(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    v_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """q_out [tokens, query_heads, head_dim], and keys and values into their slots of [slots, kv_heads, head_dim]."""
    launch_decode(qkv, q_weight, k_weight, qkv, positions, cos_sin, slot_mapping, q_out, k_out, v_out, epsilon, True)


def qkv_bias_rope_decode_bf16(
    qkv: torch.Tensor,
    bias: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    v_out: torch.Tensor,
) -> None:
    """The same without norms, after a bias [all heads, head_dim] is added."""
    launch_decode(qkv, qkv, qkv, bias, positions, cos_sin, slot_mapping, q_out, k_out, v_out, 0.0, False)


# endregion decode
