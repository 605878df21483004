"""RMS normalisation: of rows, of a sum with its residual, and of query and key heads. Backward in float32."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.gradients import of_norm
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """Rows of x [..., hidden] bfloat16, scaled to a mean square of 1 and by weight [hidden]."""
    return call("rms_norm", x.reshape(-1, x.shape[-1]), weight, epsilon).view(x.shape)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm of x + residual, and the sum itself, both [..., hidden] bfloat16."""
    width = x.shape[-1]
    y, total = call("fused_add_rms_norm", x.reshape(-1, width), residual.reshape(-1, width), weight, epsilon)
    return y.view(x.shape), total.view(x.shape)


def qk_norm(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every head of q [tokens, query_heads, head_dim] and k [tokens, kv_heads, head_dim], normalised by itself."""
    q_out, k_out = call("qk_norm", q.contiguous(), k.contiguous(), q_weight, k_weight, epsilon)
    return q_out, k_out


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    y = _rms_norm_fake(x, weight, epsilon)
    entry("rms_norm", by_rows("rms_norm", len(x)))(x.contiguous(), weight, y, epsilon)
    return y


def _rms_norm_fake(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    tensors.bfloat16("rms_norm", x=x, weight=weight)
    tensors.shaped("rms_norm", "weight", weight, (x.shape[-1],))
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _rms_norm_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, ctx.epsilon = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    return (*of_norm(x, weight, gradient, ctx.epsilon), None)


def _fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    y, total = _fused_add_rms_norm_fake(x, residual, weight, epsilon)
    name = "fused_add_rms_norm"
    entry(name, by_rows(name, len(x)))(x.contiguous(), residual.contiguous(), weight, y, total, epsilon)
    return y, total


def _fused_add_rms_norm_fake(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    name = "fused_add_rms_norm"
    tensors.bfloat16(name, x=x, residual=residual, weight=weight)
    tensors.shaped(name, "residual", residual, x.shape)
    tensors.shaped(name, "weight", weight, (x.shape[-1],))
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))


def _fused_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(output[1], inputs[2])
    ctx.epsilon = inputs[3]


def _fused_backward(ctx: Any, gradient: torch.Tensor, of_total: torch.Tensor) -> tuple[Any, ...]:
    total, weight = ctx.saved_tensors
    of_sum, of_weight = of_norm(total, weight, gradient, ctx.epsilon)
    of_sum = of_sum + of_total
    return of_sum, of_sum, of_weight, None


def _qk_norm(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    q_out, k_out = _qk_norm_fake(q, k, q_weight, k_weight, epsilon)
    entry("qk_norm", by_rows("qk_norm", len(q)))(q, k, q_weight, k_weight, q_out, k_out, epsilon)
    return q_out, k_out


def _qk_norm_fake(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    name = "qk_norm"
    tensors.bfloat16(name, q=q, k=k, q_weight=q_weight, k_weight=k_weight)
    tensors.shaped(name, "q", q, ("tokens", "query_heads", "head_dim"))
    tensors.shaped(name, "k", k, (q.shape[0], "kv_heads", q.shape[2]))
    tensors.shaped(name, "q_weight", q_weight, (q.shape[2],))
    tensors.shaped(name, "k_weight", k_weight, (q.shape[2],))
    return torch.empty_like(q), torch.empty_like(k)


def _qk_norm_keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.epsilon = inputs[4]


def _qk_norm_backward(ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor) -> tuple[Any, ...]:
    q, k, q_weight, k_weight = ctx.saved_tensors
    of_q, of_q_weight = of_norm(q, q_weight, of_q, ctx.epsilon)
    of_k, of_k_weight = of_norm(k, k_weight, of_k, ctx.epsilon)
    return of_q, of_k, of_q_weight, of_k_weight, None


register(_rms_norm, _rms_norm_fake, _rms_norm_backward, _rms_norm_keep)
register(_fused_add_rms_norm, _fused_add_rms_norm_fake, _fused_backward, _fused_keep)
register(_qk_norm, _qk_norm_fake, _qk_norm_backward, _qk_norm_keep)
