"""Linear layers that read the same rows, computed as one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.runtime.projection import linear


@dataclass(frozen=True)
class Joined:
    """Weights [sum of outs, in] in one piece of memory; the layers' parameters are views of it and stay trainable."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    layers: tuple[torch.nn.Module, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """All layers' results side by side. Raises Refusal when a parameter has left the shared memory."""
        if not torch.compiler.is_compiling():
            self._require_shared()
        return linear(x, self.weight, [layer.weight for layer in self.layers], self._biases())

    def _biases(self) -> torch.Tensor | None:
        """All biases side by side, as the parameters where a gradient is wanted."""
        if self.bias is None or not torch.is_grad_enabled():
            return self.bias
        return torch.cat([layer.bias for layer in self.layers])

    def _require_shared(self) -> None:
        at = self.weight.data_ptr()
        for layer in self.layers:
            if layer.weight.data_ptr() != at:
                raise Refusal("weights were moved or replaced after unify: call unify(model) again")
            at += layer.weight.nbytes


def join(layers: Sequence[torch.nn.Module]) -> Joined:
    """Move the layers' weights, and biases where all have one, into one piece of memory. Values stay as they are."""
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
