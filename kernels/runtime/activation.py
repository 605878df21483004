"""The gated activation of an MLP."""

from typing import Any

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.gradients import of_gated
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [tokens, inter] from gate_up [tokens, 2 * inter] bfloat16, the gate first."""
    return call("silu_and_mul", gate_up.contiguous())


def _silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    y = _silu_and_mul_fake(gate_up)
    paired = gate_up.view(len(gate_up), 2, -1)
    entry("silu_and_mul", by_rows("silu_and_mul", len(gate_up)))(paired, y)
    return y


def _silu_and_mul_fake(gate_up: torch.Tensor) -> torch.Tensor:
    tensors.bfloat16("silu_and_mul", gate_up=gate_up)
    tensors.shaped("silu_and_mul", "gate_up", gate_up, ("tokens", "2 * inter"))
    if gate_up.shape[1] % 2:
        raise ValueError(f"silu_and_mul takes gate and up of one width each, not {gate_up.shape[1]} in all")
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (gate_up,) = ctx.saved_tensors
    return of_gated(gate_up, gradient)


register(_silu_and_mul, _silu_and_mul_fake, _backward, _keep)
