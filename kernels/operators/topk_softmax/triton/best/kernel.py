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
def keyed(logits, expert):
    """Whole numbers in the order of the logits, of equal ones the lower expert larger; -0 counts as 0."""
    word = (logits.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    word = word ^ ((word >> 31) & 0x7FFFFFFF)
    wide = (word.to(tl.int64) << 32) | (65535 - expert).to(tl.int64)
    return (word & -65536) | (65535 - expert) if logits.dtype == tl.bfloat16 else wide


@triton.jit
def logit_of(key):
    """The logit that a key was made of."""
    word = tl.where(key < 0, key | 65535, key & -65536) if key.dtype == tl.int32 else (key >> 32).to(tl.int32)
    return (word ^ ((word >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def without(keys, top):
    """The keys, with the one that was chosen below all others."""
    least = -2147483648 if keys.dtype == tl.int32 else -9223372036854775808
    return tl.where(keys == top, least, keys)


@triton.jit
def routed(logits, K: tl.constexpr, SLOTS: tl.constexpr, RENORMALISED: tl.constexpr):
    """Weights and ids [rows, SLOTS] of the K largest logits [rows, experts], the lower expert first of equals."""
    left = logits.to(tl.float32)
    expert = tl.arange(0, left.shape[1])[None, :]
    slot = tl.arange(0, SLOTS)[None, :]
    keys = keyed(logits, expert)
    largest = tl.max(left, 1)
    total = tl.zeros_like(largest)
    if not RENORMALISED:
        total = tl.sum(tl.exp(left - largest[:, None]), 1)
    weights = tl.zeros([left.shape[0], SLOTS], tl.float32)
    ids = tl.zeros([left.shape[0], SLOTS], tl.int32)
    for k in tl.static_range(K):
        top = tl.max(keys, 1)
        best = logit_of(top)
        found = (65535 - (top & 65535)).to(tl.int32)
        weight = tl.exp(best - largest)
        if RENORMALISED:
            total += weight
        weights = tl.where(slot == k, weight[:, None], weights)
        ids = tl.where(slot == k, found[:, None], ids)
        keys = without(keys, top[:, None])
    return tl.div_rn(weights, tl.broadcast_to(total[:, None], weights.shape)), ids


# endregion choice


# region full
@triton.jit(do_not_specialize=["tokens"])
def full(
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


def _full(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, renormalised: bool) -> None:
    (tokens, experts), (_, k) = logits.shape, ids.shape
    full[(triton.cdiv(tokens, ROWS),)](
        *(logits, weights, ids, tokens, experts),
        K=k,
        SLOTS=triton.next_power_of_2(k),
        EXPERTS=triton.next_power_of_2(experts),
        ROWS=ROWS,
        RENORMALISED=renormalised,
        num_warps=WARPS,
    )


def topk_softmax_full_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    _full(logits, weights, ids, True)


def topk_softmax_full_f32(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    _full(logits, weights, ids, True)


def topk_probabilities_full_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; all experts' weights would add up to 1."""
    _full(logits, weights, ids, False)


# endregion full


# region decode
@triton.jit(do_not_specialize=["tokens"])
def decode(
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


def _decode(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, renormalised: bool) -> None:
    (tokens, experts), (_, k) = logits.shape, ids.shape
    decode[(triton.cdiv(tokens, ROWS),)](
        *(logits, weights, ids, tokens, experts),
        K=k,
        SLOTS=triton.next_power_of_2(k),
        EXPERTS=triton.next_power_of_2(experts),
        ROWS=ROWS,
        RENORMALISED=renormalised,
        num_warps=WARPS,
    )


def topk_softmax_decode_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    _decode(logits, weights, ids, True)


def topk_softmax_decode_f32(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    _decode(logits, weights, ids, True)


def topk_probabilities_decode_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; all experts' weights would add up to 1."""
    _decode(logits, weights, ids, False)


# endregion decode
