"""qk_norm for Triton, plain: a program for every few heads, of q or of k; each head in registers."""

import torch
import triton
import triton.language as tl

# region row
HEADS, WARPS = 16, 4


@triton.jit
def normalise(heads, weight, out, first, count, head_dim, epsilon, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """HEADS heads from the first on, each scaled by itself.

    tl.sum adds in an order that follows from the tile's shape, its dtype and the warps.
    """
    head = first + tl.arange(0, HEADS)
    k = tl.arange(0, BLOCK)
    inside = (head < count)[:, None] & (k < head_dim)[None, :]
    at = head.to(tl.int64)[:, None] * head_dim + k[None, :]
    values = tl.load(heads + at, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + k, mask=k < head_dim, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(values * values, axis=1), tl.cast(head_dim, tl.float32))
    inverse = tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))
    tl.store(out + at, (values * inverse[:, None] * weights[None, :]).to(out.dtype.element_ty), mask=inside)


# endregion row


# region full
@triton.jit(do_not_specialize=["q_heads", "k_heads"])
def full(
    q,
    k,
    q_weight,
    k_weight,
    q_out,
    k_out,
    q_heads,
    k_heads,
    head_dim,
    epsilon,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of q, or of k where q has no more; heads of all tokens are counted through."""
    first = tl.program_id(0) * HEADS
    in_q = tl.cdiv(q_heads, HEADS) * HEADS
    if first < in_q:
        normalise(q, q_weight, q_out, first, q_heads, head_dim, epsilon, HEADS, BLOCK)
    else:
        normalise(k, k_weight, k_out, first - in_q, k_heads, head_dim, epsilon, HEADS, BLOCK)


def qk_norm_full_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """q_out [tokens, query_heads, head_dim] and k_out [tokens, kv_heads, head_dim] from q, k and the two weights."""
    tokens, query_heads, head_dim = q.shape
    q_heads, k_heads = tokens * query_heads, tokens * k.shape[1]
    grid = (triton.cdiv(q_heads, HEADS) + triton.cdiv(k_heads, HEADS),)
    sizes = (q_heads, k_heads, head_dim, epsilon, HEADS, triton.next_power_of_2(head_dim))
    full[grid](q, k, q_weight, k_weight, q_out, k_out, *sizes, num_warps=WARPS)


# endregion full


# region decode
@triton.jit(do_not_specialize=["q_heads", "k_heads"])
def decode(
    q,
    k,
    q_weight,
    k_weight,
    q_out,
    k_out,
    q_heads,
    k_heads,
    head_dim,
    epsilon,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A few heads of q, or of k where q has no more; heads of all tokens are counted through."""
    first = tl.program_id(0) * HEADS
    in_q = tl.cdiv(q_heads, HEADS) * HEADS
    if first < in_q:
        normalise(q, q_weight, q_out, first, q_heads, head_dim, epsilon, HEADS, BLOCK)
    else:
        normalise(k, k_weight, k_out, first - in_q, k_heads, head_dim, epsilon, HEADS, BLOCK)


def qk_norm_decode_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    epsilon: float = 1e-6,
) -> None:
    """q_out [tokens, query_heads, head_dim] and k_out [tokens, kv_heads, head_dim] from q, k and the two weights."""
    tokens, query_heads, head_dim = q.shape
    q_heads, k_heads = tokens * query_heads, tokens * k.shape[1]
    grid = (triton.cdiv(q_heads, HEADS) + triton.cdiv(k_heads, HEADS),)
    sizes = (q_heads, k_heads, head_dim, epsilon, HEADS, triton.next_power_of_2(head_dim))
    decode[grid](q, k, q_weight, k_weight, q_out, k_out, *sizes, num_warps=WARPS)


# endregion decode
