"""Log-probabilities of labels, in float32."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register

BACKWARD_ROWS = 1024
"""Rows whose probabilities are held in float32 at once."""


def log_softmax_gather(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(label) and the log-sum-exp, both [...] float32, from logits [..., vocab] and labels [...] int64.

    logits are bfloat16 or float32. A negative label leaves its token out: the log-probability is 0.
    """
    flat = logits.reshape(-1, logits.shape[-1]).contiguous()
    chosen, lse = call("log_softmax_gather", flat, labels.reshape(-1).contiguous())
    return chosen.view(labels.shape), lse.view(labels.shape)


def _log_softmax_gather(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen, lse = _log_softmax_gather_fake(logits, labels)
    dtype = "bf16" if logits.dtype == torch.bfloat16 else "f32"
    entry("log_softmax_gather", by_rows("log_softmax_gather", len(logits), dtype))(logits, labels, chosen, lse)
    return chosen, lse


def _log_softmax_gather_fake(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    name = "log_softmax_gather"
    tensors.of_dtype(name, torch.float32 if logits.dtype == torch.float32 else torch.bfloat16, logits=logits)
    tensors.of_dtype(name, torch.int64, labels=labels)
    tensors.shaped(name, "logits", logits, ("tokens", "vocab"))
    tensors.shaped(name, "labels", labels, (logits.shape[0],))
    return tuple(logits.new_empty(labels.shape, dtype=torch.float32) for _ in range(2))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, of_chosen: torch.Tensor, of_lse: torch.Tensor) -> tuple[Any, ...]:
    logits, labels, lse = ctx.saved_tensors
    of_chosen = of_chosen.where(labels >= 0, 0.0)
    gradient = torch.empty_like(logits)
    for first in range(0, len(logits), BACKWARD_ROWS):
        part = slice(first, first + BACKWARD_ROWS)
        share = (logits[part].float() - lse[part, None]).exp_().mul_((of_lse - of_chosen)[part, None])
        share.scatter_add_(1, labels[part, None].clamp(min=0), of_chosen[part, None])
        gradient[part] = share
    return gradient, None


register(_log_softmax_gather, _log_softmax_gather_fake, _backward, _keep)
