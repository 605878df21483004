"""Linear layers that read the same rows, computed as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.runtime.projection import linear


@dataclass(frozen=True)
class Joined:
    """Weights [sum of outs, in] in one piece of memory; the layers' parameters are views of it and stay trainable."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    layers: tuple[torch.nn.Module, ...]

    def __call__(self, x: torch.Tensor, *now: torch.nn.Module) -> torch.Tensor:
        """All layers' results side by side; `now` are the modules that stand in their places.

        Raises Refusal when one is another, such as an adapter, or a parameter has left the shared memory.
        """
        if now != self.layers:
            raise Refusal("a linear layer was replaced after unify and would be left out: adapters are not supported")
        if not torch.compiler.is_compiling():
            self._require_shared()
        weights, biases = ([getattr(layer, name) for layer in self.layers] for name in ("weight", "bias"))
        return linear(x, _trained(self.weight, weights), None if self.bias is None else _trained(self.bias, biases))

    def _require_shared(self) -> None:
        at = self.weight.data_ptr()
        for layer in self.layers:
            if layer.weight.data_ptr() != at:
                raise Refusal("weights were moved or replaced after unify: call unify(model) again")
            at += layer.weight.nbytes


def _trained(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The whole, whose gradient goes to its parts where one is wanted. Nothing is copied."""
    return _AsParts.apply(whole, *parts) if torch.is_grad_enabled() else whole


def _forward(ctx: Any, whole: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
    ctx.rows = [len(part) for part in parts]
    return whole.detach()


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (None, *gradient.split(ctx.rows))


_AsParts: Any = type(
    "_AsParts",
    (torch.autograd.Function,),
    {"forward": staticmethod(_forward), "backward": staticmethod(_backward), "__doc__": _trained.__doc__},
)


def join(layers: Sequence[torch.nn.Module]) -> Joined:
    """Move the layers' weights, and biases where all have one, into one piece of memory. Values stay as they are."""
    for layer in layers:
        if not isinstance(layer, torch.nn.Linear):
            raise Refusal(
                f"{type(layer).__name__} is no plain linear layer: adapters and quantised ones are not supported"
            )
    with torch.no_grad():
        biased = [layer.bias is not None for layer in layers]
        if any(biased) and not all(biased):
            raise Refusal("of layers that are computed together some have a bias and some have none")
        bias = _share([layer.bias for layer in layers]) if all(biased) else None
        return Joined(_share([layer.weight for layer in layers]), bias, tuple(layers))


def _share(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(each) for each in parameters]), strict=True):
        parameter.data = part
    return whole
