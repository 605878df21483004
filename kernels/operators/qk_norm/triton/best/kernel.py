"""qk_norm for Triton: a program for every few heads, of q or of k, launched before the kernel ahead of it has ended.

The full path has fewer warps a program than decode where a thread loads eight elements of a head with either: then the
order of a head's sum is the same.
"""

import torch
import triton
import triton.language as tl

# region row
HEADS, FULL_WARPS, DECODE_WARPS = 16, 2, 4


def warps_of(head_dim: int, warps: int) -> int:
    """So many where the order of a head's sum does not follow from it, else what decode has."""
    return warps if head_dim in (64, 128, 256) else DECODE_WARPS


def stride_of(heads: torch.Tensor) -> int:
    """Elements from one token's heads to the next one's. Another alignment would add squares in another order."""
    tokens, count, head_dim = heads.shape
    if tokens < 2:
        return count * head_dim
    if head_dim % 16 == 0 and heads.stride(0) % 16 > 0:
        raise ValueError("tokens must be a multiple of 16 elements apart")
    return heads.stride(0)


@triton.jit
def normalise(
    heads, weight, out, first, count, each, stride, head_dim, epsilon, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    """HEADS heads from the first on, each scaled by itself; a token has so many each, and the next one is a stride on.

    tl.sum adds in an order that follows from the tile's shape, its dtype and the warps.
    """
    head = first + tl.arange(0, HEADS)
    k = tl.arange(0, BLOCK)
    inside = (head < count)[:, None] & (k < head_dim)[None, :]
    at = (head // each).to(tl.int64) * stride + head % each * head_dim
    values = tl.load(heads + at[:, None] + k[None, :], mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + k, mask=k < head_dim, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(values * values, axis=1), tl.cast(head_dim, tl.float32))
    inverse = tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))
    result = (values * inverse[:, None] * weights[None, :]).to(out.dtype.element_ty)
    tl.store(out + head.to(tl.int64)[:, None] * head_dim + k[None, :], result, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def norm(
    q,
    k,
    q_weight,
    k_weight,
    q_out,
    k_out,
    tokens,
    query_heads,
    kv_heads,
    q_stride,
    k_stride,
    head_dim,
    epsilon,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of q, or of k where q has no more; heads of all tokens are counted through."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    first = tl.program_id(0) * HEADS
    in_q = tl.cdiv(tokens * query_heads, HEADS) * HEADS
    if first < in_q:
        count = tokens * query_heads
        normalise(q, q_weight, q_out, first, count, query_heads, q_stride, head_dim, epsilon, HEADS, BLOCK)
    else:
        count = tokens * kv_heads
        normalise(k, k_weight, k_out, first - in_q, count, kv_heads, k_stride, head_dim, epsilon, HEADS, BLOCK)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    warps: int,
    epsilon: float,
) -> None:
    """q_out [tokens, query_heads, head_dim] and k_out [tokens, kv_heads, head_dim] from q, k and the two weights."""
    tokens, query_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    grid = (triton.cdiv(tokens * query_heads, HEADS) + triton.cdiv(tokens * kv_heads, HEADS),)
    sizes = (tokens, query_heads, kv_heads, stride_of(q), stride_of(k), head_dim, epsilon)
    tile = (HEADS, triton.next_power_of_2(head_dim))
    warps = warps_of(head_dim, warps)
    norm[grid](q, k, q_weight, k_weight, q_out, k_out, *sizes, *tile, launch_pdl=True, num_warps=warps)


# endregion row


# region full
def qk_norm_full_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """q_out [tokens, query_heads, head_dim] and k_out [tokens, kv_heads, head_dim] from q, k and the two weights.

    Tokens of q and of k may be any multiple of 16 elements apart. Raises ValueError for another one.
    """
    launch(q, k, q_weight, k_weight, q_out, k_out, FULL_WARPS, epsilon)


# endregion full


# region decode
def qk_norm_decode_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """q_out [tokens, query_heads, head_dim] and k_out [tokens, kv_heads, head_dim] from q, k and the two weights.

    Tokens of q and of k may be any multiple of 16 elements apart. Raises ValueError for another one.
    """
    launch(q, k, q_weight, k_weight, q_out, k_out, DECODE_WARPS, epsilon)


# endregion decode
