"""Backward passes of what memory bounds, by PyTorch's own kernels; a turn is made back by `rope` itself."""

from collections.abc import Sequence

import torch

from kernelbraid.kernels.runtime.rotary import rope

Turn = tuple[torch.Tensor, torch.Tensor]
"""Positions [tokens] int64, and cosines and sines [max_position, head_dim] float32."""


def of_norm(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x [..., width] and weight [width], in their dtypes, computed in float32; on a GPU by torch's fused kernel."""
    if x.is_cuda:
        return _of_norm_fused(x.contiguous(), weight, gradient.contiguous(), epsilon)
    wide, passed = x.float(), gradient.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    unit = wide * inverse
    of_weight = (passed * unit).flatten(0, -2).sum(0)
    passed = passed * weight.float()
    of_x = inverse * (passed - unit * (passed * unit).mean(-1, keepdim=True))
    return of_x.to(x.dtype), of_weight.to(weight.dtype)


def of_heads(
    heads: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor | None],
    gradients: Sequence[torch.Tensor],
    turn: Turn,
    epsilon: float,
    into: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """Fill `into` with the gradients of q, k and v [tokens, heads, head_dim], and give those of q's and k's weights.

    gradients are those after norm and turn: the turn is made the other way round.
    """
    back = turn[1][turn[0]]
    back[:, back.shape[1] // 2 :].neg_()
    of_q, of_k, of_v = gradients
    turned = (*rope(of_q, of_k, torch.arange(len(back), device=back.device), back), of_v)
    of_weights: list[torch.Tensor | None] = [None, None]
    for i, (x, gradient, of_x) in enumerate(zip(heads, turned, into, strict=True)):
        weight = weights[i] if i < len(weights) else None
        if weight is not None:
            gradient, of_weights[i] = of_norm(x, weight, gradient, epsilon)
        of_x.copy_(gradient)
    return of_weights


def of_gated(gate_up: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Of gate_up [tokens, 2 * inter] from the gradient [tokens, inter] of silu(gate) * up."""
    gate, up = gate_up.chunk(2, -1)
    result = torch.empty_like(gate_up)
    of_gate, of_up = result.chunk(2, -1)
    torch.mul(gradient, torch.nn.functional.silu(gate), out=of_up)
    torch.ops.aten.silu_backward(gradient * up, gate, grad_input=of_gate)
    return result


def _of_norm_fused(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    width = [x.shape[-1]]
    _, inverse = torch.ops.aten._fused_rms_norm(x, width, weight, epsilon)
    of_x, of_weight = torch.ops.aten._fused_rms_norm_backward(gradient, x, width, inverse, weight, [True, True])
    return of_x, of_weight
