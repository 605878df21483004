"""The auditor's side of the buffers that a candidate computes on: uploads, poison, guards, and reading back.

Tensors are placed by the same layouts as on the CPU. What a check reads is a mirror that was copied once, after DONE;
once the candidate's process runs on, every read goes to the device again, so that a late write shows.
"""

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.cuda.device import Buffer, Device
from kernelbraid.kernels.audit.layout import Layout, Place
from kernelbraid.kernels.audit.memory import checked

_FINITE, _NOT_ZERO = 0xBFFFBFFF, 0x00010001
"""Masks for a word that is no NaN and no zero, whether read as one float or as two of 16 bits: all of a poisoned tensor
has the same bits, and a NaN does not equal itself."""


GUARD_BYTES = 64 << 10
"""Canaries behind the last window: no page there faults, as one does on the CPU."""


class DeviceInputs:
    """One buffer of inputs, with what was written last kept here: a candidate can write to a device's inputs."""

    def __init__(self, device: Device, buffer: Buffer) -> None:
        self.device, self.buffer = device, buffer
        self.size_bytes = buffer.size_bytes
        self._mirror: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def fill(self, place: Place, values: NDArray[Any]) -> None:
        """Keep one tensor for the next upload. Raises ValueError when shape or dtype is not the declared one."""
        self._grow(place.offset + place.bytes)
        self.view(place)[...] = checked(place, values)

    def view(self, place: Place) -> NDArray[Any]:
        """The tensor here."""
        return self._mirror[place.offset : place.offset + place.bytes].view(place.dtype).reshape(place.shape)

    def upload(self, layout: Layout) -> None:
        """The layout's inputs as they were filled."""
        start, end = self._range(layout)
        self.device.upload(self.buffer, start, self._mirror[start:end])

    def first_written(self, layout: Layout) -> tuple[Place, int] | None:
        """The first tensor, and byte in it, that is no longer what was uploaded."""
        start, end = self._range(layout)
        found, written = self.device.download(self.buffer, start, end - start), self._mirror[start:end]
        if np.array_equal(found.view(np.uint64), written.view(np.uint64)):
            return None
        at = start + int(np.argmax(found != written))
        places = [place for call in layout.calls for place in call.inputs]
        # A tensor without elements lies where its neighbour does, and holds no byte of it.
        holding = [place for place in places if place.bytes and place.offset <= at] or places
        place = max(holding, key=lambda place: place.offset)
        return place, at - place.offset

    def _grow(self, size_bytes: int) -> None:
        if size_bytes > self.size_bytes:
            raise ValueError(f"the inputs need {size_bytes} bytes, the device's buffer has {self.size_bytes}")
        if size_bytes > self._mirror.size:
            grown = np.zeros(min(self.size_bytes, max(size_bytes, 2 * self._mirror.size)), np.uint8)
            grown[: self._mirror.size] = self._mirror
            self._mirror = grown

    def _range(self, layout: Layout) -> tuple[int, int]:
        self._grow(layout.input_end)
        return layout.input_offset, layout.input_end


class DeviceOutputs:
    """One buffer of outputs: poisoned before every message, guarded by canaries, read back afterwards."""

    def __init__(self, device: Device, buffer: Buffer) -> None:
        self.device, self.buffer = device, buffer
        self._pattern = 0
        self._layout: Layout | None = None
        self._mirror: tuple[int, NDArray[np.uint8]] | None = None
        """Offset and bytes of the layout's windows as they were at the last `hold`."""

    def poison(self, layout: Layout) -> None:
        """A new random pattern over everything from the first window to the last."""
        self._layout = self._mirror = None
        self._pattern = secrets.randbits(32) & _FINITE | _NOT_ZERO
        start, size = _guarded(layout)
        self.device.fill(self.buffer, start, size, self._pattern)

    def poison_of(self, place: Place) -> NDArray[Any]:
        """What the tensor would hold had nothing been written since the last poison."""
        return self.poison_bytes(place.offset, place.bytes).view(place.dtype).reshape(place.shape)

    def poison_bytes(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """The poison of any stretch."""
        first = offset % 4
        words = np.full(-(-(first + size_bytes) // 4), self._pattern, "<u4")
        return words.view(np.uint8)[first : first + size_bytes]

    def hold(self, layout: Layout) -> None:
        """Copy the layout's windows: what `read` returns until `release`."""
        self._layout = layout
        start, size = _guarded(layout)
        self._mirror = (start, self.device.download(self.buffer, start, size))

    def release(self) -> None:
        """The process runs again: the next read copies the windows anew."""
        self._mirror = None

    def read(self, place: Place) -> NDArray[Any]:
        """A copy of the tensor."""
        found = self._bytes(place.offset, place.bytes)
        return found.copy().view(place.dtype).reshape(place.shape)

    def first_broken_canary(self, layout: Layout) -> tuple[int, int, int] | None:
        """(offset, found byte, expected byte) of the first canary byte that was overwritten."""
        for start, end in (*layout.gaps(), (layout.output_end, layout.output_end + GUARD_BYTES)):
            found, expected = self._bytes(start, end - start), self.poison_bytes(start, end - start)
            differing = np.flatnonzero(found != expected)
            if differing.size:
                at = int(differing[0])
                return start + at, int(found[at]), int(expected[at])
        return None

    def _bytes(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        if self._mirror is None and self._layout is not None:
            self.hold(self._layout)
        if self._mirror is None:
            return self.device.download(self.buffer, offset, size_bytes)
        start, held = self._mirror
        return held[offset - start : offset - start + size_bytes]


def _guarded(layout: Layout) -> tuple[int, int]:
    """Offset and bytes of a layout's windows and of the canaries behind them."""
    start = layout.windows[0][0]
    return start, layout.output_end - start + GUARD_BYTES
