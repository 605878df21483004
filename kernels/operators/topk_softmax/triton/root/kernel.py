"""topk_softmax for Triton, plain: some tokens for each program, k times the largest logit that is left.

Choosing is exact whatever the tile. Weights that add up to 1 are computed from the chosen logits alone, slot by slot;
the others from a sum over all experts, whose order follows from the tile (ROWS, WARPS), the same for both paths.
"""

import torch
import triton
import triton.language as tl

# region choice
ROWS, WARPS = 4, 4


@triton.jit
def routed(logits, K: tl.constexpr, SLOTS: tl.constexpr, RENORMALISED: tl.constexpr):
    """Weights and ids [rows, SLOTS] of the K largest logits [rows, experts], the lower expert first of equals."""
    left = logits.to(tl.float32)
    expert = tl.arange(0, left.shape[1])[None, :]
    slot = tl.arange(0, SLOTS)[None, :]
    largest = tl.max(left, 1)
    total = tl.zeros_like(largest)
    if not RENORMALISED:
        total = tl.sum(tl.exp(left - largest[:, None]), 1)
    weights = tl.zeros([left.shape[0], SLOTS], tl.float32)
    ids = tl.zeros([left.shape[0], SLOTS], tl.int32)
    for k in tl.static_range(K):
        best = tl.max(left, 1)
        found = tl.min(tl.where(left == best[:, None], expert, left.shape[1]), 1)
        weight = tl.exp(best - largest)
        if RENORMALISED:
            total += weight
        weights = tl.where(slot == k, weight[:, None], weights)
        ids = tl.where(slot == k, found[:, None], ids)
        left = tl.where(expert == found[:, None], float("-inf"), left)
    return tl.div_rn(weights, tl.broadcast_to(total[:, None], weights.shape)), ids


@triton.jit(do_not_specialize=["tokens"])
def routing(
    logits,
    weights,
    ids,
    tokens,
    experts,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    RENORMALISED: tl.constexpr,
):
    """ROWS tokens."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert, slot = tl.arange(0, EXPERTS), tl.arange(0, SLOTS)
    inside = (row < tokens)[:, None]
    at = row.to(tl.int64)[:, None]
    own = tl.load(logits + at * experts + expert, mask=inside & (expert < experts), other=float("-inf"))
    chosen, found = routed(own, K, SLOTS, RENORMALISED)
    tl.store(weights + at * K + slot, chosen, mask=inside & (slot < K))
    tl.store(ids + at * K + slot, found, mask=inside & (slot < K))


def route(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, renormalised: bool) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]."""
    (tokens, experts), (_, k) = logits.shape, ids.shape
    routing[(triton.cdiv(tokens, ROWS),)](
        *(logits, weights, ids, tokens, experts),
        K=k,
        SLOTS=triton.next_power_of_2(k),
        EXPERTS=triton.next_power_of_2(experts),
        ROWS=ROWS,
        RENORMALISED=renormalised,
        num_warps=WARPS,
    )


# endregion choice


# region full
def topk_softmax_full_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, True)


def topk_softmax_full_f32(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, True)


def topk_probabilities_full_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; all experts' weights would add up to 1."""
    route(logits, weights, ids, False)


# endregion full


# region decode
def topk_softmax_decode_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, True)


def topk_softmax_decode_f32(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, True)


def topk_probabilities_decode_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; all experts' weights would add up to 1."""
    route(logits, weights, ids, False)


# endregion decode
