"""Where the tensors of one message's calls lie in the shared memory files, and the frame that says so.

Inputs of all calls form one page-aligned block. Outputs lie in windows between guard pages: a window of its own for
each output tensor when the calls are few, so that the tensor's end is within 64 bytes of a guard; else one window for
all, with at least 64 bytes of canary between neighbours.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from kernelbraid.kernels.operators.operator import Entry, Tensor

PAGE_BYTES = 4096
ALIGN_BYTES = 64
FEW_CALLS = 16
INPUT_WINDOW = 0xFFFFFFFF
DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype("<u2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor: its window (None for inputs), its offset in the file, shape and dtype."""

    tensor: Tensor
    window: int | None
    offset: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type; bfloat16 as uint16."""
        return DTYPES[self.tensor.dtype]

    @property
    def bytes(self) -> int:
        """Size of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CallPlaces:
    """One call's entry, dims and tensors."""

    entry: Entry
    dims: Mapping[str, int]
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """All calls of one message. Windows are (offset, bytes) in the output file, in whole pages."""

    index: int
    calls: tuple[CallPlaces, ...]
    input_offset: int
    input_bytes: int
    windows: tuple[tuple[int, int], ...]

    @property
    def input_end(self) -> int:
        """First byte of the input file after this block."""
        return self.input_offset + self.input_bytes

    @property
    def size_bytes(self) -> int:
        """All that the calls read and write, in whole pages."""
        return self.input_bytes + sum(size for _, size in self.windows)

    @property
    def output_end(self) -> int:
        """First byte of the output file after the last window."""
        return sum(self.windows[-1])

    def gaps(self) -> list[tuple[int, int]]:
        """(start, end) in the output file of every canary stretch: window bytes that belong to no tensor."""
        places = sorted((place.offset, place.offset + place.bytes) for call in self.calls for place in call.outputs)
        edges = [(start, start) for start, _ in self.windows] + [(sum(window), sum(window)) for window in self.windows]
        return [(end, start) for (_, end), (start, _) in pairwise(sorted(places + edges)) if start > end]

    def frame(self, entry_index: Mapping[str, int]) -> bytes:
        """The payload of PREPARE."""
        head = struct.pack(
            "<IIQQII", self.index, len(self.calls), self.input_offset, self.input_bytes, len(self.windows), 0
        )
        windows = b"".join(struct.pack("<QQ", *window) for window in self.windows)
        return head + windows + b"".join(self._call(call, entry_index[call.entry.symbol]) for call in self.calls)

    def _call(self, call: CallPlaces, entry: int) -> bytes:
        places = (*call.inputs, *call.outputs)
        arguments = b"".join(self._argument(place) for place in places)
        dims = [call.dims[name] for name in call.entry.dims]
        return struct.pack("<IIII", entry, len(places), len(dims), 0) + arguments + struct.pack(f"<{len(dims)}q", *dims)

    def _argument(self, place: Place) -> bytes:
        if place.window is None:
            return struct.pack("<IIQ", INPUT_WINDOW, 0, place.offset - self.input_offset)
        return struct.pack("<IIQ", place.window, 0, place.offset - self.windows[place.window][0])


def plan_layout(
    index: int, calls: Sequence[tuple[Entry, Mapping[str, int]]], input_offset: int = 0, output_offset: int = 0
) -> Layout:
    """Place the calls' tensors from the given page-aligned offsets on."""
    placed, end = [], input_offset
    for entry, dims in calls:
        inputs, end = _place_inputs(entry, dims, end)
        placed.append(inputs)
    outputs, windows = _place_outputs(calls, output_offset)
    places = tuple(
        CallPlaces(entry, dims, inputs, outs)
        for (entry, dims), inputs, outs in zip(calls, placed, outputs, strict=True)
    )
    return Layout(index, places, input_offset, max(_up(end - input_offset, PAGE_BYTES), PAGE_BYTES), windows)


def _place_inputs(entry: Entry, dims: Mapping[str, int], offset: int) -> tuple[tuple[Place, ...], int]:
    places = []
    for tensor in entry.inputs:
        place = Place(tensor, None, offset, tensor.resolve(dims))
        offset = _up(offset + place.bytes, ALIGN_BYTES)
        places.append(place)
    return tuple(places), offset


def _place_outputs(
    calls: Sequence[tuple[Entry, Mapping[str, int]]], offset: int
) -> tuple[list[tuple[Place, ...]], tuple[tuple[int, int], ...]]:
    if len(calls) > FEW_CALLS:
        return _share_window(calls, offset)
    outputs: list[tuple[Place, ...]] = []
    windows: list[tuple[int, int]] = []
    for entry, dims in calls:
        places = []
        for tensor in entry.outputs:
            size = _up(Place(tensor, 0, 0, tensor.resolve(dims)).bytes, ALIGN_BYTES)
            windows.append((offset, _up(size + ALIGN_BYTES, PAGE_BYTES)))
            offset = sum(windows[-1])
            places.append(Place(tensor, len(windows) - 1, offset - size, tensor.resolve(dims)))
        outputs.append(tuple(places))
    return outputs, tuple(windows)


def _share_window(
    calls: Sequence[tuple[Entry, Mapping[str, int]]], start: int
) -> tuple[list[tuple[Place, ...]], tuple[tuple[int, int], ...]]:
    outputs: list[tuple[Place, ...]] = []
    offset = start + ALIGN_BYTES
    for entry, dims in calls:
        places = []
        for tensor in entry.outputs:
            places.append(Place(tensor, 0, offset, tensor.resolve(dims)))
            offset = _up(offset + places[-1].bytes, ALIGN_BYTES) + ALIGN_BYTES
        outputs.append(tuple(places))
    return outputs, ((start, _up(offset - start, PAGE_BYTES)),)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
