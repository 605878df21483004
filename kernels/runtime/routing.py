"""A mixture of experts: which experts a token goes to, the tokens sorted by expert, and their results added up."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register

BLOCKS = (64, 128)


def topk_softmax(logits: torch.Tensor, k: int, of_chosen: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights float32 and experts int32, both [tokens, k], from logits [tokens, experts] bfloat16.

    Weights add up to 1 over the chosen experts, or over all of them when not `of_chosen`. The lower index wins ties.
    """
    weights, ids = call("topk_softmax", logits.contiguous(), k, of_chosen)
    return weights, ids


def moe_align(ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slots (token * k + j) of ids [tokens, k] int32 sorted by expert, each expert's in whole blocks; all int32.

    order [blocks, block] holds tokens * k in empty places, block_expert [blocks] -1 where a block is not needed, and
    ends [experts] where each expert's places end.
    """
    order, block_expert, ends = call("moe_align", ids.contiguous(), experts, block)
    return order, block_expert, ends


def moe_linear(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor
) -> torch.Tensor:
    """Each slot's row of x [rows, in] times its expert's weight [experts, out, in]: [rows, each, out], bfloat16.

    ids [rows, each] int32 are the slots' experts, order and block_expert those of `moe_align` in blocks of 64 or 128.
    A result has the same bits whatever else is in the batch. in and out are multiples of 16.
    """
    return call("moe_linear", x.contiguous(), weight, ids, order, block_expert)


def moe_combine(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum over slots of weights [tokens, k] float32 times outputs [tokens, k, hidden] bfloat16, first slot to last."""
    return call("moe_combine", outputs.contiguous(), weights.contiguous())


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


def _moe_align(ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    order, block_expert, ends = _moe_align_fake(ids, experts, block)
    entry("moe_align", by_rows("moe_align", len(ids), "i32"))(ids, order, block_expert, ends)
    return order, block_expert, ends


def _moe_align_fake(ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tensors.of_dtype("moe_align", torch.int32, ids=ids)
    tensors.shaped("moe_align", "ids", ids, ("tokens", "k"))
    slots = ids.shape[0] * ids.shape[1]
    blocks = slots if block == 1 else slots // block + min(experts, slots)
    return ids.new_empty((blocks, block)), ids.new_empty((blocks,)), ids.new_empty((experts,))


def _moe_linear(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor
) -> torch.Tensor:
    y = _moe_linear_fake(x, weight, ids, order, block_expert)
    entry("moe_linear", by_rows("moe_linear", len(x)))(x, weight, order, block_expert, y)
    return y


def _moe_linear_fake(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor
) -> torch.Tensor:
    name = "moe_linear"
    tensors.bfloat16(name, x=x, weight=weight)
    tensors.of_dtype(name, torch.int32, ids=ids, order=order, block_expert=block_expert)
    tensors.shaped(name, "weight", weight, ("experts", "out", x.shape[-1]))
    tensors.shaped(name, "ids", ids, (x.shape[0], "each"))
    tensors.shaped(name, "order", order, (block_expert.shape[0], "block"))
    if order.shape[1] not in BLOCKS:
        raise ValueError(f"{name} takes blocks of 64 or 128 slots, not {order.shape[1]}: moe_align makes them")
    if weight.shape[1] % 16 or weight.shape[2] % 16 or not weight.is_contiguous():
        raise ValueError(f"{name} takes contiguous weights of multiples of 16, not {list(weight.shape)}: pad them")
    return x.new_empty((*ids.shape, weight.shape[1]))


def _moe_linear_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])


def _moe_linear_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """PyTorch's grouped products, over slots sorted by expert."""
    x, weight, ids = ctx.saved_tensors
    order, _, ends = moe_align(ids, len(weight), 1)
    place = order.flatten().long()
    passed, rows = gradient.flatten(0, 1)[place], x[place // ids.shape[1]]
    of_weight = torch.nn.functional.grouped_mm(passed.t(), rows, offs=ends)
    of_slots = torch.empty_like(rows).index_copy(0, place, torch.nn.functional.grouped_mm(passed, weight, offs=ends))
    return of_slots.view(*ids.shape, -1).sum(1), of_weight, None, None, None


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
register(_moe_linear, _moe_linear_fake, _moe_linear_backward, _moe_linear_keep)
register(_moe_combine, _moe_combine_fake, _combine_backward, _combine_keep)
