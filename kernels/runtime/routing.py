"""A mixture of experts: which experts a token goes to, the tokens sorted by expert, and their results added up."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, register


def topk_softmax(logits: torch.Tensor, k: int, of_chosen: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights float32 and experts int32, both [tokens, k], from logits [tokens, experts] bfloat16.

    Weights add up to 1 over the chosen experts, or over all of them when not `of_chosen`. The lower index wins ties.
    """
    weights, ids = torch.ops.kernelbraid.topk_softmax(logits.contiguous(), k, of_chosen)
    return weights, ids


def moe_align(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots (token * k + j) sorted by expert [tokens * k], and where each expert's end [experts], both int32."""
    order, ends = torch.ops.kernelbraid.moe_align(ids.contiguous(), experts)
    return order, ends


def moe_combine(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum over slots of weights [tokens, k] float32 times outputs [tokens, k, hidden] bfloat16, first slot to last."""
    return torch.ops.kernelbraid.moe_combine(outputs.contiguous(), weights.contiguous())


def _topk_softmax(logits: torch.Tensor, k: int, of_chosen: bool) -> tuple[torch.Tensor, torch.Tensor]:
    weights, ids = _topk_softmax_fake(logits, k, of_chosen)
    kind = "topk_softmax" if of_chosen else "topk_probabilities"
    entry("topk_softmax", by_rows(kind, len(logits)))(logits, weights, ids)
    return weights, ids


def _topk_softmax_fake(logits: torch.Tensor, k: int, of_chosen: bool) -> tuple[torch.Tensor, torch.Tensor]:
    tensors.bfloat16("topk_softmax", logits=logits)
    tensors.shaped("topk_softmax", "logits", logits, ("tokens", "experts"))
    if not 0 < k <= logits.shape[1]:
        raise ValueError(f"topk_softmax takes 1 to {logits.shape[1]} of {logits.shape[1]} experts, not {k}")
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


def _topk_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.of_chosen = inputs[2]
    ctx.save_for_backward(inputs[0], *output)
    ctx.mark_non_differentiable(output[1])


def _topk_backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    logits, weights, ids = ctx.saved_tensors
    passed = gradient * weights
    total = passed.sum(-1, keepdim=True)
    of_logits = torch.zeros_like(logits, dtype=torch.float32)
    if ctx.of_chosen:
        of_logits.scatter_(-1, ids.long(), passed - weights * total)
    else:
        of_logits.scatter_(-1, ids.long(), passed).sub_(logits.float().softmax(-1) * total)
    return of_logits.to(logits.dtype), None, None


def _moe_align(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    order, ends = _moe_align_fake(ids, experts)
    expert_of = torch.empty_like(order)
    entry("moe_align", by_rows("moe_align", len(ids), "i32"))(ids, order[:, None], expert_of, ends)
    return order, ends


def _moe_align_fake(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    tensors.of_dtype("moe_align", torch.int32, ids=ids)
    tensors.shaped("moe_align", "ids", ids, ("tokens", "k"))
    return ids.new_empty((ids.shape[0] * ids.shape[1],)), ids.new_empty((experts,))


def _moe_combine(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    y = _moe_combine_fake(outputs, weights)
    entry("moe_combine", by_rows("moe_combine", len(outputs)))(outputs, weights, y)
    return y


def _moe_combine_fake(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    tensors.bfloat16("moe_combine", outputs=outputs)
    tensors.of_dtype("moe_combine", torch.float32, weights=weights)
    tensors.shaped("moe_combine", "outputs", outputs, ("tokens", "k", "hidden"))
    tensors.shaped("moe_combine", "weights", weights, outputs.shape[:2])
    return outputs.new_empty((outputs.shape[0], outputs.shape[2]))


def _combine_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _combine_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    outputs, weights = ctx.saved_tensors
    of_outputs = (weights[:, :, None] * gradient[:, None].float()).to(outputs.dtype)
    of_weights = torch.einsum("tkh,th->tk", outputs.float(), gradient.float())
    return of_outputs, of_weights


register(_topk_softmax, _topk_softmax_fake, _topk_backward, _topk_keep)
register(_moe_align, _moe_align_fake)
register(_moe_combine, _moe_combine_fake, _combine_backward, _combine_keep)
