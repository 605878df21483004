"""Tensors that were set aside on the device: what a timed call was given and what it left, at no cost to the clock."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.cuda.device import Buffer, Device
from kernelbraid.kernels.audit.layout import ALIGN_BYTES, Place

MOST_ROWS = 256


class Stash(Mapping[str, NDArray[Any]]):
    """One call's inputs or outputs by name, in memory that no candidate's process can map; read here when asked for."""

    def __init__(self, device: Device, places: Sequence[Place]) -> None:
        self._device = device
        self._places: dict[str, tuple[int, Place]] = {}
        end = 0
        for place in places:
            self._places[place.tensor.name] = end, place
            end += -(-place.bytes // ALIGN_BYTES) * ALIGN_BYTES
        self._buffer: Buffer = device.allocate(max(end, 1))

    def take(self, source: Buffer) -> None:
        """Copy the tensors from where they lie in a shared buffer. Done once the device has settled."""
        for offset, place in self._places.values():
            self._device.copy(self._buffer, offset, source, place.offset, place.bytes)

    def give(self, target: Buffer, places: Sequence[Place]) -> None:
        """Copy them to other places. Done once the device has settled."""
        for place in places:
            self._device.copy(target, place.offset, self._buffer, self._places[place.tensor.name][0], place.bytes)

    def first_changed(self, other: Buffer, places: Sequence[Place]) -> Place | None:
        """The first of these places whose bytes are not the stashed ones."""
        for place in places:
            offset = self._places[place.tensor.name][0]
            if self._device.differs(self._buffer, offset, other, place.offset, place.bytes):
                return place
        return None

    def release(self) -> None:
        """Give the memory back."""
        self._device.release(self._buffer)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A copy of one tensor, here."""
        offset, place = self._places[name]
        return read(self._device, self._buffer, offset, place)

    def lazy(self) -> dict[str, NDArray[Any]]:
        """All tensors as arrays of which only what is asked for is read: a few rows of a large one are quickly here."""
        # They stand for arrays: what is not rows by their indices is asked of the whole tensor, read once.
        return {name: cast(NDArray[Any], Lazy(self, *self._places[name])) for name in self}

    def rows(self, offset: int, place: Place, rows: NDArray[Any]) -> NDArray[Any]:
        """Some items along a tensor's first axis."""
        pitch = place.bytes // place.shape[0]
        parts = [self._device.download(self._buffer, offset + int(row) * pitch, pitch) for row in rows.reshape(-1)]
        return np.concatenate(parts).view(place.dtype).reshape(*rows.shape, *place.shape[1:])

    def __iter__(self) -> Iterator[str]:
        """The tensors' names."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._places)


class Lazy:
    """A tensor on the device that behaves like the array of its values."""

    def __init__(self, stash: Stash, offset: int, place: Place) -> None:
        self._stash, self._offset, self._place = stash, offset, place
        self.shape, self.dtype, self.ndim, self.nbytes = place.shape, place.dtype, len(place.shape), place.bytes

    def __len__(self) -> int:
        """Items along the first axis."""
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """As an array's; few rows by an array of their indices are read alone."""
        rows = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if isinstance(rows, np.ndarray) and self._few(rows):
            return self._stash.rows(self._offset, self._place, rows)
        return self.whole[index]

    def _few(self, rows: NDArray[Any]) -> bool:
        counted = rows.dtype.kind == "i" and 0 < rows.size <= min(MOST_ROWS, self.shape[0])
        return counted and rows.min() >= 0 and bool(rows.max() < self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it."""
        return self.whole if dtype is None else self.whole.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        """Whatever else an array can do."""
        return getattr(self.whole, name)

    @cached_property
    def whole(self) -> NDArray[Any]:
        """All of it, read once."""
        return self._stash[self._place.tensor.name]


def read(device: Device, buffer: Buffer, offset: int, place: Place) -> NDArray[Any]:
    """A tensor of this place's shape, from anywhere."""
    taken = device.download(buffer, offset, place.bytes) if place.bytes else np.empty(0, np.uint8)
    return taken.view(place.dtype).reshape(place.shape)
