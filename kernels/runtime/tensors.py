"""What an operator asks of its tensors, said before anything is launched."""

from collections.abc import Sequence

import torch

DEVICE = "cuda"


def bfloat16(operator: str, **tensors: torch.Tensor) -> None:
    """Raise TypeError unless every tensor is bfloat16, ValueError unless all are on one CUDA device."""
    of_dtype(operator, torch.bfloat16, **tensors)


def of_dtype(operator: str, dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    """Raise TypeError unless every tensor has this dtype, ValueError unless all are on one CUDA device."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(
                f"{operator} takes {name} in {_plain(dtype)}, not {_plain(tensor.dtype)}: "
                f"convert it with {name}.to({dtype})"
            )
        if tensor.device.type != DEVICE:
            raise ValueError(f"{operator} runs on a {DEVICE} device and {name} is on {tensor.device}: move it there")
    if len({tensor.device for tensor in tensors.values()}) > 1:
        places = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise ValueError(f"{operator} takes tensors of one device, not {places}: move them together")


def shaped(operator: str, name: str, tensor: torch.Tensor, shape: Sequence[int | str]) -> None:
    """Raise ValueError unless the tensor has this shape; a dim given as a name may be anything."""
    if len(shape) != tensor.dim() or not all(map(_fits, shape, tensor.shape)):
        wanted = "[" + ", ".join(str(dim) for dim in shape) + "]"
        raise ValueError(f"{operator} takes {name} of shape {wanted}, not {list(tensor.shape)}")


def _fits(dim: int | str, actual: int) -> bool:
    return dim == actual or isinstance(dim, str)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
