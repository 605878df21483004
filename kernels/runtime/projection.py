"""Linear layers whose rows do not depend on how many there are."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernelbraid.kernels.runtime import linear as tabled
from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import Ran, count, digest, entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias [..., out] from x [..., in], weight [out, in] and bias [out], bfloat16, summed in float32."""
    y = call("linear", x.reshape(-1, x.shape[-1]).contiguous(), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def product(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """y [rows, out] from x [rows, in], weight [out, in] and bias [out], all contiguous.

    On compute capability 9.0 as a table of measurements says, or a rule for shapes, devices and libraries that nobody
    measured, with one rounding; elsewhere by the packaged Triton kernel, and the bias is added to what it rounded.
    `ran()` says which of the three it was.
    """
    if not _by_table(x.device):
        entry("linear", by_rows("linear", len(x)))(x, weight, y)
        if bias is not None:
            y.add_(bias)
        return
    tabled.linear(x, weight, y, bias)
    outs, width = weight.shape
    way, origin = tabled.way_of(outs, width, len(x), x.device.index)
    count(Ran("linear", way, origin, "best", _digest()))


def prepare(weight: torch.Tensor, biased: bool = False) -> None:
    """Choose how a weight [out, in] is multiplied on its device, and check there that no number of rows matters.

    `biased`: that it does not with a bias either. Where a table chooses; once for each shape, in a fraction of a
    second. Raises tabled.LinearBitsDiffer.
    """
    if _by_table(weight.device):
        outs, width = weight.shape
        tabled.prepare(outs, width, weight.device.index)
        if biased:
            tabled.prepare(outs, width, weight.device.index, biased)


@cache
def _by_table(device: torch.device) -> bool:
    return bool(device.type == "cuda" and torch.cuda.get_device_capability(device) == tabled.CAPABILITY)


@cache
def _digest() -> str:
    """Over what decides how a linear layer runs, the table included."""
    return digest({file.name: file.read_text() for file in Path(__file__).parent.glob("linear*.*")})


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = _linear_fake(x, weight, bias)
    product(x, weight, y, bias)
    return y


def _linear_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    tensors.bfloat16("linear", x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    tensors.shaped("linear", "weight", weight, ("out", x.shape[-1]))
    if bias is not None:
        tensors.shaped("linear", "bias", bias, weight.shape[:1])
    return x.new_empty((x.shape[0], weight.shape[0]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.biased = inputs[2] is not None


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    return gradient @ weight, gradient.t() @ x, gradient.sum(0) if ctx.biased else None


register(_linear, _linear_fake, _backward, _keep)
