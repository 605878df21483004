"""What a Triton candidate's host code may use of torch, without data, device or torch itself.

The compiling process puts this folder first on its path, so that `import torch` in a candidate finds this module. A
tensor here has a dtype, a shape, strides and an aligned address, and no elements.
"""

from collections.abc import Sequence
from itertools import count
from math import prod
from typing import Any, overload

_ADDRESSES = count(1)


class dtype:
    """A tensor's element type; its text is torch's, which is what Triton reads."""

    def __init__(self, name: str, itemsize: int, is_floating_point: bool) -> None:
        self.name = name
        self.itemsize = itemsize
        self.is_floating_point = is_floating_point

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32 = dtype("float32", 4, True)
bfloat16 = dtype("bfloat16", 2, True)
float16 = dtype("float16", 2, True)
int64 = dtype("int64", 8, False)
int32 = dtype("int32", 4, False)
int16 = dtype("int16", 2, False)
int8 = dtype("int8", 1, False)
uint8 = dtype("uint8", 1, False)


class device:
    """The one device there is."""

    type = "cuda"
    index = 0

    def __init__(self, name: str = "cuda") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"device(type={self.name!r})"


class Size(tuple[int, ...]):
    """A shape in elements."""

    def numel(self) -> int:
        """The product of all sizes."""
        return prod(self)


class Tensor:
    """A contiguous tensor without elements."""

    def __init__(self, shape: Sequence[int], dtype: dtype) -> None:
        self.shape = Size(shape)
        self.dtype = dtype
        self.device = device()
        self._address = next(_ADDRESSES) << 32

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    @overload
    def size(self) -> Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Size | int:
        """The shape, or one size of it."""
        return self.shape if dim is None else self.shape[dim]

    @overload
    def stride(self) -> tuple[int, ...]: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Strides in elements, or one of them."""
        strides = tuple(max(1, prod(self.shape[at + 1 :])) for at in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def numel(self) -> int:
        """How many elements."""
        return prod(self.shape)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Always, here."""
        return True

    def data_ptr(self) -> int:
        """An address that is a multiple of 4 GiB and never read."""
        return self._address

    def view(self, *shape: int) -> "Tensor":
        """The same elements under another shape; one size may be -1."""
        known = prod(size for size in shape if size != -1)
        sizes = [self.numel() // max(1, known) if size == -1 else size for size in shape]
        if prod(sizes) != self.numel():
            raise RuntimeError(f"shape {list(shape)} is invalid for a tensor of {self.numel()} elements")
        return Tensor(sizes, self.dtype)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a tensor's {name!r} is not among what host code may use")


def empty(*size: Any, dtype: dtype = float32, device: Any = None) -> Tensor:
    """A new tensor of that shape."""
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return Tensor(tuple(shape), dtype)


def empty_like(tensor: Tensor, *, dtype: dtype | None = None) -> Tensor:
    """A new tensor of another's shape."""
    return Tensor(tensor.shape, dtype or tensor.dtype)


def zeros(*size: Any, dtype: dtype = float32, device: Any = None) -> Tensor:
    """A new tensor of that shape."""
    return empty(*size, dtype=dtype)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch.{name} is not among what host code may use")
