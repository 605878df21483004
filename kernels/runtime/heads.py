"""What lies between the product for query, key and value and attention: bias or norms, rotary embedding, the cache."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.norms import gradients
from kernelbraid.kernels.runtime.registering import register
from kernelbraid.kernels.runtime.rotary import rope

NAME = "qkv_rope"


def qkv_rope(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, each [tokens, own heads, head_dim], of qkv [tokens, heads, head_dim] bfloat16.

    q and k are normalised by `norms` (two weights [head_dim] and epsilon), or a bias [heads, head_dim] is added to all;
    then they are turned to positions [tokens] int64 of cos_sin [max_position, head_dim] float32.
    """
    weights, epsilon = _weights(qkv, norms, bias)
    q, k, v = torch.ops.kernelbraid.qkv_rope(qkv, query_heads, positions, cos_sin, weights, epsilon)
    return q, k, v


def qkv_rope_store(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The queries alone; keys and values go to slots [tokens] int64 of caches [slots, kv_heads, head_dim].

    A token whose slot is -1 is padding and is stored nowhere. No backward.
    """
    weights, epsilon = _weights(qkv, norms, bias)
    return torch.ops.kernelbraid.qkv_rope_store(
        qkv, query_heads, positions, cos_sin, weights, epsilon, slots, k_cache, v_cache
    )


def _weights(
    qkv: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor, float] | None, bias: torch.Tensor | None
) -> tuple[list[torch.Tensor], float]:
    """Two weights, or one bias, of zeros where there is neither; and epsilon."""
    if norms is not None and bias is not None:
        raise ValueError(f"{NAME} normalises heads or adds a bias, not both: add the bias before")
    if norms is not None:
        return [norms[0], norms[1]], norms[2]
    return [torch.zeros_like(qkv[0]) if bias is None else bias], 0.0


def _qkv_rope(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: list[torch.Tensor],
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out = _qkv_rope_fake(qkv, query_heads, positions, cos_sin, weights, epsilon)
    if len(weights) == 2:
        entry(NAME, "qkv_rope_full_bf16")(qkv, *weights, positions, cos_sin, *out, epsilon)
    else:
        entry(NAME, "qkv_bias_rope_full_bf16")(qkv, *weights, positions, cos_sin, *out)
    return out


def _qkv_rope_fake(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: list[torch.Tensor],
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kv_heads = _check(qkv, query_heads, positions, cos_sin, weights)
    q, k, v = (qkv.new_empty((qkv.shape[0], heads, qkv.shape[2])) for heads in (query_heads, kv_heads, kv_heads))
    return q, k, v


def _check(
    qkv: torch.Tensor, query_heads: int, positions: torch.Tensor, cos_sin: torch.Tensor, weights: list[torch.Tensor]
) -> int:
    """How many KV heads there are."""
    tensors.bfloat16(NAME, qkv=qkv, **{f"weight_{at}": weight for at, weight in enumerate(weights)})
    tensors.of_dtype(NAME, torch.int64, positions=positions)
    tensors.of_dtype(NAME, torch.float32, cos_sin=cos_sin)
    tensors.shaped(NAME, "qkv", qkv, ("tokens", "heads", "head_dim"))
    tensors.shaped(NAME, "positions", positions, (qkv.shape[0],))
    tensors.shaped(NAME, "cos_sin", cos_sin, ("max_position", qkv.shape[2]))
    for weight in weights:
        tensors.shaped(NAME, "weight", weight, qkv.shape[2:] if len(weights) == 2 else qkv.shape[1:])
    rest = int(qkv.shape[1]) - query_heads
    if rest < 2 or rest % 2:
        raise ValueError(f"{NAME} takes as many key as value heads: {qkv.shape[1]} heads less {query_heads} are {rest}")
    if not qkv.is_contiguous():
        raise ValueError(f"{NAME} takes a contiguous qkv: pass it as the product gave it")
    return rest // 2


def _qkv_rope_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    qkv, ctx.query_heads, positions, cos_sin, weights, ctx.epsilon = inputs
    ctx.save_for_backward(qkv, positions, cos_sin, *weights)


def _qkv_rope_backward(ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor, of_v: torch.Tensor) -> tuple[Any, ...]:
    qkv, positions, cos_sin, *weights = ctx.saved_tensors
    back = cos_sin[positions]
    back[:, back.shape[1] // 2 :].neg_()
    of_q, of_k = rope(of_q, of_k, torch.arange(len(back), device=back.device), back)
    if len(weights) == 1:
        of_qkv = torch.cat((of_q, of_k, of_v), 1)
        return of_qkv, None, None, None, [of_qkv.sum(0)], None
    q, k = qkv[:, : ctx.query_heads], qkv[:, ctx.query_heads : ctx.query_heads + of_k.shape[1]]
    of_q, of_q_weight = gradients(q, weights[0], of_q, ctx.epsilon)
    of_k, of_k_weight = gradients(k, weights[1], of_k, ctx.epsilon)
    return torch.cat((of_q, of_k, of_v), 1), None, None, None, [of_q_weight, of_k_weight], None


def _qkv_rope_store(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: list[torch.Tensor],
    epsilon: float,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:
    q = _qkv_rope_store_fake(qkv, query_heads, positions, cos_sin, weights, epsilon, slots, k_cache, v_cache)
    if len(weights) == 2:
        stored = (qkv, *weights, positions, cos_sin, slots, q, k_cache, v_cache, epsilon)
        entry(NAME, "qkv_rope_decode_bf16")(*stored)
    else:
        entry(NAME, "qkv_bias_rope_decode_bf16")(qkv, *weights, positions, cos_sin, slots, q, k_cache, v_cache)
    return q


def _qkv_rope_store_fake(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: list[torch.Tensor],
    epsilon: float,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:
    kv_heads = _check(qkv, query_heads, positions, cos_sin, weights)
    tensors.bfloat16(NAME, k_cache=k_cache, v_cache=v_cache)
    tensors.of_dtype(NAME, torch.int64, slots=slots)
    tensors.shaped(NAME, "slots", slots, (qkv.shape[0],))
    tensors.shaped(NAME, "k_cache", k_cache, ("slots", kv_heads, qkv.shape[2]))
    tensors.shaped(NAME, "v_cache", v_cache, k_cache.shape)
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError(f"{NAME} takes contiguous caches: allocate them as [slots, kv_heads, head_dim]")
    return qkv.new_empty((qkv.shape[0], query_heads, qkv.shape[2]))


register(_qkv_rope, _qkv_rope_fake, _qkv_rope_backward, _qkv_rope_keep)
register(_qkv_rope_store, _qkv_rope_store_fake, mutates=("k_cache", "v_cache"))
