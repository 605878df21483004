"""What stock PyTorch does for an operator: the formulas of Hugging Face's eager models, to compare with and to time.

They round where those models round, which is not always where an operator does: results agree to a rounding, not bit
for bit. Importing this module imports torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-6

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of tensors, and which tensors it takes, made from an entry's inputs and outputs by name."""

    function: Callable[..., Any]
    arguments: Callable[[Tensors], tuple[Tensor, ...]]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Normalised in float32, cast before the weight. x [..., hidden], weight [hidden]."""
    values = x.float()
    inverse = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + EPSILON)
    return weight * (values * inverse).to(x.dtype)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum. x and residual [rows, hidden]."""
    total = x + residual
    return rms_norm(total, weight), total


def qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each head of q and k [tokens, heads, head_dim] normalised."""
    return rms_norm(q, q_weight), rms_norm(k, k_weight)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q and k [tokens, heads, head_dim], turned by cos and sin [tokens, 1, head_dim] in the model's dtype."""
    return q * cos + _half_turned(q) * sin, k * cos + _half_turned(k) * sin


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _rope_arguments(tensors: Tensors) -> tuple[Tensor, ...]:
    """The rows of the table in bfloat16: a model makes them once for all its layers."""
    rows = tensors["cos_sin"][tensors["positions"]].to(tensors["q"].dtype)[:, None]
    cos, sin = rows.chunk(2, dim=-1)
    return tensors["q"], tensors["k"], torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gate and up [tokens, inter]."""
    return torch.nn.functional.silu(gate) * up


def kv_cache_store(k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """k and v [tokens, kv_heads, head_dim] into the caches [slots, kv_heads, head_dim]; there is no padding."""
    return k_cache.index_copy_(0, slots, k), v_cache.index_copy_(0, slots, v)


def _kv_cache_store_arguments(tensors: Tensors) -> tuple[Tensor, ...]:
    stored = tensors["slot_mapping"] >= 0
    taken = (tensors[name][stored] for name in ("k", "v", "slot_mapping"))
    return (*taken, tensors["k_cache"], tensors["v_cache"])


def rope_store(q: Tensor, k: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rope of q and k, the norm before it where there are weights, and kv_cache_store."""
    v, slots, k_cache, v_cache, cos, sin, *weights = others
    q, k = qk_norm(q, k, *weights) if weights else (q, k)
    q, k = rope(q, k, cos, sin)
    return (q, *kv_cache_store(k, v, slots, k_cache, v_cache))


def _rope_store_arguments(tensors: Tensors) -> tuple[Tensor, ...]:
    """Without padding, for which the formula has no word."""
    if bool((tensors["slot_mapping"] < 0).any()):
        raise RuntimeError("the formula stores every token")
    q, k, cos, sin = _rope_arguments(tensors)
    weights = tuple(tensors[name] for name in ("q_weight", "k_weight") if name in tensors)
    cache = (tensors[name] for name in ("v", "slot_mapping", "k_cache", "v_cache"))
    return (q, k, *cache, cos, sin, *weights)


def topk_softmax(logits: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and ids [tokens, k] of logits [tokens, experts]; k is that of `like`."""
    weights, ids = logits.softmax(-1, dtype=torch.float32).topk(like.shape[1])
    return weights / weights.sum(-1, keepdim=True), ids


def moe_align(ids: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Slots in the order of their experts, and where each expert's end: without padding to whole blocks."""
    slots = ids.flatten()
    return slots.sort(stable=True).indices, torch.histc(slots.float(), len(ends), 0, len(ends) - 1).cumsum(0)


def moe_combine(outputs: Tensor, weights: Tensor) -> Tensor:
    """outputs [tokens, k, hidden], weights [tokens, k]."""
    return (outputs * weights[:, :, None].to(outputs.dtype)).sum(1)


def moe_linear(x: Tensor, w: Tensor, place: Tensor, ends: Tensor, like: Tensor) -> Tensor:
    """Rows gathered by expert, torch's grouped product, and results put where their slots are."""
    results = torch.nn.functional.grouped_mm(x[place // like.shape[1]], w.transpose(1, 2), offs=ends)
    return torch.empty_like(results).index_copy(0, place, results)


def _moe_linear_arguments(tensors: Tensors) -> tuple[Tensor, ...]:
    slots = tensors["y"].shape[0] * tensors["y"].shape[1]
    place = tensors["order"][tensors["order"] < slots].long()
    counts = (tensors["order"] < slots).sum(1)
    used = tensors["block_expert"] >= 0
    of_expert = counts.new_zeros(len(tensors["w"])).index_add(0, tensors["block_expert"][used].long(), counts[used])
    return tensors["x"], tensors["w"], place, of_expert.cumsum(0).int(), tensors["y"]


def log_softmax_gather(logits: Tensor, labels: Tensor) -> Tensor:
    """The labels' log-probabilities [tokens] alone, of logits [tokens, vocab]; no label marks a token to leave out."""
    return logits.float().log_softmax(-1).gather(-1, labels[:, None])[:, 0]


def _named(*names: str) -> Callable[[Tensors], tuple[Tensor, ...]]:
    return lambda tensors: tuple(tensors[name] for name in names)


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "rms_norm": Peer(rms_norm, _named("x", "weight")),
        "fused_add_rms_norm": Peer(fused_add_rms_norm, _named("x", "residual", "weight")),
        "qk_norm": Peer(qk_norm, _named("q", "k", "q_weight", "k_weight")),
        "rope": Peer(rope, _rope_arguments),
        "silu_and_mul": Peer(silu_and_mul, lambda tensors: tensors["gate_up"].unbind(1)),
        "kv_cache_store": Peer(kv_cache_store, _kv_cache_store_arguments),
        "rope_store": Peer(rope_store, _rope_store_arguments),
        "embedding": Peer(torch.nn.functional.embedding, _named("ids", "table")),
        "topk_softmax": Peer(topk_softmax, _named("logits", "weights")),
        "moe_align": Peer(moe_align, _named("ids", "ends")),
        "moe_combine": Peer(moe_combine, _named("outputs", "weights")),
        "moe_linear": Peer(moe_linear, _moe_linear_arguments),
        "log_softmax_gather": Peer(log_softmax_gather, _named("logits", "labels")),
    }
)
"""By operator. A function's results are the entry's outputs in their order, as many as the formula has."""
