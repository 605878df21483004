"""Tensors that were set aside on the device: what a timed call was given and what it left, at no cost to the clock."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.cuda.device import Buffer, Device
from kernelbraid.kernels.audit.layout import ALIGN_BYTES, Place


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

    def __iter__(self) -> Iterator[str]:
        """The tensors' names."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._places)


def read(device: Device, buffer: Buffer, offset: int, place: Place) -> NDArray[Any]:
    """A tensor of this place's shape, from anywhere."""
    taken = device.download(buffer, offset, place.bytes) if place.bytes else np.empty(0, np.uint8)
    return taken.view(place.dtype).reshape(place.shape)
