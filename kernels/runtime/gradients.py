"""Backward passes of what memory bounds: on a GPU by `backward_kernels`, elsewhere by their formulas, in float32."""

from collections.abc import Sequence

import torch

Turn = tuple[torch.Tensor, torch.Tensor]
"""Positions [tokens] int64, and cosines and sines [max_position, head_dim] float32."""


def of_norm(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, epsilon: float, more: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x [..., width] and weight [width], in their dtypes; `more` [..., width] is added to the first."""
    if not x.is_cuda:
        of_x, of_weight = _of_norm(x, weight, gradient, epsilon)
        return of_x if more is None else of_x + more, of_weight
    from kernelbraid.kernels.runtime.backward_kernels import rows_backward

    x = x.contiguous()
    of_x = torch.empty_like(x)
    rows = (-1, 1, x.shape[-1])
    added = None if more is None else more.contiguous().view(rows)
    of_weight = rows_backward(x.view(rows), weight, gradient.contiguous().view(rows), of_x.view(rows), epsilon, added)
    return of_x, of_weight


def of_heads(
    heads: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor | None],
    gradients: Sequence[torch.Tensor],
    turn: Turn,
    epsilon: float,
    of_heads: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """Fill of_heads with the gradients of q, k and v [tokens, heads, head_dim], and give those of q's and k's weights.

    gradients are those after norm and turn. Each of of_heads lies as its heads do, so that they can be one product's.
    """
    of_weights = [
        _of_turned(x, weight, gradient, turn, epsilon, of_x)
        for x, weight, gradient, of_x in zip(heads[:2], weights, gradients[:2], of_heads[:2], strict=True)
    ]
    of_heads[2].copy_(gradients[2])
    return of_weights


def of_gated(gate_up: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Of gate_up [tokens, 2 * inter] from the gradient [tokens, inter] of silu(gate) * up."""
    if gate_up.is_cuda:
        from kernelbraid.kernels.runtime.backward_kernels import gated_backward

        return gated_backward(gate_up, gradient.contiguous())
    gate, up = gate_up.float().chunk(2, -1)
    passed, share = gradient.float(), gate.sigmoid()
    of_gate = passed * up * share * (1 + gate * (1 - share))
    return torch.cat((of_gate, passed * gate * share), -1).to(gate_up.dtype)


def _of_turned(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    gradient: torch.Tensor,
    turn: Turn,
    epsilon: float,
    of_x: torch.Tensor,
) -> torch.Tensor | None:
    if x.is_cuda:
        from kernelbraid.kernels.runtime.backward_kernels import rows_backward

        return rows_backward(x, weight, gradient.contiguous(), of_x, epsilon, turn=turn)
    cos, sin = turn[1][turn[0]][:, None].chunk(2, -1)
    left, right = gradient.float().chunk(2, -1)
    gradient = torch.cat((left * cos + right * sin, right * cos - left * sin), -1)
    of_weight = None
    if weight is not None:
        gradient, of_weight = _of_norm(x, weight, gradient, epsilon)
    of_x.copy_(gradient)
    return of_weight


def _of_norm(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    wide, passed = x.float(), gradient.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    unit = wide * inverse
    of_weight = (passed * unit).flatten(0, -2).sum(0)
    passed = passed * weight.float()
    of_x = inverse * (passed - unit * (passed * unit).mean(-1, keepdim=True))
    return of_x.to(x.dtype), of_weight.to(weight.dtype)
