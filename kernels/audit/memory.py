"""Memory files shared with a runner: inputs that only the auditor can write, outputs that are poisoned and guarded."""

import fcntl
import mmap
import os
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.layout import PAGE_BYTES, Layout, Place

_ADD_SEALS = 1033
_SEAL_SHRINK_GROW = 0x2 | 0x4
_SEAL_FUTURE_WRITE = 0x10
_TILE_BYTES = 64


def checked(place: Place, values: NDArray[Any]) -> NDArray[Any]:
    """The values. Raises ValueError when shape or dtype is not the place's."""
    if values.shape != place.shape or values.dtype != place.dtype:
        found = f"{values.dtype}{list(values.shape)}"
        raise ValueError(f"{place.tensor.name} should be {place.dtype}{list(place.shape)}, not {found}")
    return values


class MemoryFile:
    """A memory file of fixed size, mapped here. Only touched pages take memory."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size_bytes)
        self.size_bytes = size_bytes
        self._map = mmap.mmap(self.descriptor, size_bytes)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def view(self, place: Place) -> NDArray[Any]:
        """The tensor in place, writable here."""
        return self.bytes[place.offset : place.offset + place.bytes].view(place.dtype).reshape(place.shape)

    def close(self) -> None:
        """Give the memory back."""
        del self.bytes
        self._map.close()
        os.close(self.descriptor)


class Inputs(MemoryFile):
    """Sealed against every writer but this mapping: a runner's writes fault, its requests to write are refused."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("inputs", size_bytes)
        fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEAL_SHRINK_GROW | _SEAL_FUTURE_WRITE)

    def fill(self, place: Place, values: NDArray[Any]) -> None:
        """Write one tensor. Raises ValueError when shape or dtype is not the declared one."""
        self.view(place)[...] = checked(place, values)


class Outputs(MemoryFile):
    """One runner's outputs. `poison` fills a layout's windows with a new random pattern, canaries included."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("outputs", size_bytes)
        fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEAL_SHRINK_GROW)
        self._tile = np.zeros(_TILE_BYTES, np.uint8)
        self._tiled = self._tile

    def poison(self, layout: Layout) -> None:
        """Overwrite all windows of the layout."""
        self._tile = np.frombuffer(secrets.token_bytes(_TILE_BYTES), np.uint8)
        self._tiled = np.tile(self._tile, 2 * PAGE_BYTES // _TILE_BYTES)
        for start, size in layout.windows:
            self.bytes[start : start + size].reshape(-1, _TILE_BYTES)[...] = self._tile

    def poison_of(self, place: Place) -> NDArray[Any]:
        """What the tensor would hold had nothing been written since the last poison."""
        first = place.offset % _TILE_BYTES
        tiles = -(-(first + place.bytes) // _TILE_BYTES)
        flat = np.tile(self._tile, tiles)[first : first + place.bytes]
        return flat.view(place.dtype).reshape(place.shape)

    def read(self, place: Place) -> NDArray[Any]:
        """A copy of the tensor."""
        return self.view(place).copy()

    def first_broken_canary(self, layout: Layout) -> tuple[int, int, int] | None:
        """(offset, found byte, expected byte) of the first canary byte that was overwritten."""
        for start, end in layout.gaps():
            first = start % _TILE_BYTES
            # A window's edge is at most a page from its tensor, and less than two tensors are apart.
            expected = self._tiled[first : first + end - start]
            differing = np.flatnonzero(self.bytes[start:end] != expected)
            if differing.size:
                at = int(differing[0])
                return start + at, int(self.bytes[start + at]), int(expected[at])
        return None
