"""Secret inputs of the timed workloads, in device memory that no candidate's process can map.

A few sets are drawn by the operator once; a message's inputs are spliced together from them on the device, anew for
every message, so that neither an address nor a fingerprint of an earlier call says anything about this one.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.cuda.device import Buffer, Device, Rows
from kernelbraid.kernels.audit.cuda.runner import packed_layout
from kernelbraid.kernels.audit.layout import Layout, Place, plan_layout
from kernelbraid.kernels.operators.cases import Reference
from kernelbraid.kernels.operators.operator import Entry, Operator, Workload

DRAWN_SETS = 3
LEAST_BLOCK_CALLS = 4
SPLICE_RATIO = 1 / 8
"""Largest part of a tensor that changes before each message."""
MOST_CALLS = 1024
MOST_MESSAGE_BYTES = 16 << 30
"""No device moves more than this in the time that a message is filled up to."""
MEMORY_RATIO = 0.3
"""Of the device's memory for all workloads' messages; the blocks behind them take less than that again."""
_FLOATING = ("float32", "bfloat16")
_EXPONENT = np.uint16(0x7F80)


@dataclass(frozen=True, slots=True)
class Message:
    """One workload's message: its layout in the shared buffers, and a block of inputs to take its calls from."""

    workload: Workload
    layout: Layout
    block: Buffer
    block_calls: int
    pitch: int
    """Bytes from one call's inputs to the next one's, here and in the block."""
    packed: bytes
    """The layout as PREPARE says it."""
    spliced: tuple[Place, ...]
    """Tensors of the first call of which any stretch may come from another set, as all sets are finite everywhere."""

    def lay_out(self, device: Device, shared: Buffer, rng: np.random.Generator) -> int:
        """All inputs into the shared buffer, there once the device has settled; the block's call that they start at."""
        first = int(rng.integers(self.block_calls))
        for call, taken, calls in _wound(first, len(self.layout.calls), self.block_calls):
            start = self.layout.input_offset + call * self.pitch
            device.copy(shared, start, self.block, taken * self.pitch, calls * self.pitch)
        self.splice(device, shared, rng, first)
        return first

    def splice(self, device: Device, shared: Buffer, rng: np.random.Generator, first: int) -> None:
        """New inputs for every call: a stretch of each tensor that may be mixed, from calls with other sets.

        `first` is what `lay_out` returned when these inputs were laid out.
        """
        start = self.layout.input_offset
        for place, draws in zip(self.spliced, rng.random((len(self.spliced), 2)).tolist(), strict=True):
            at, length = _stretch(place, *draws)
            turns = int(rng.integers(self.block_calls // DRAWN_SETS)) * DRAWN_SETS
            other = (first + turns + int(rng.integers(1, DRAWN_SETS))) % self.block_calls
            for call, taken, calls in _wound(other, len(self.layout.calls), self.block_calls):
                source = taken * self.pitch + at - start
                device.copy_rows(shared, at + call * self.pitch, self.block, source, Rows(calls, length, self.pitch))


@dataclass(frozen=True, slots=True)
class Sets:
    """One workload's drawn inputs, on the device."""

    source: Buffer
    where: list[dict[str, int]]
    """By set: each tensor's offset."""
    mixed: frozenset[str]
    """Tensors of which parts may come from another set."""


@dataclass
class Vault:
    """All workloads' sets. Sizes are planned once, so that the shared buffers can be allocated before any process."""

    device: Device
    operator: Operator
    reference: Reference
    rng: np.random.Generator
    first_byte: int = 0
    """Of both shared buffers: what lies before is for other messages."""
    _sets: dict[str, "Sets"] = field(default_factory=dict)
    _messages: dict[tuple[str, int], Message] = field(default_factory=dict)

    @cached_property
    def most_calls(self) -> tuple[int, ...]:
        """Calls of one message by workload: the memory is shared out, and what one does not need goes to others."""
        sizes = [
            self._plan(workload, 1).input_bytes + self._plan(workload, 1).output_end for workload in self._workloads
        ]
        needs = [min(MOST_CALLS * size, MOST_MESSAGE_BYTES) for size in sizes]
        left, most = MEMORY_RATIO * self.device.facts.memory_bytes, [0] * len(needs)
        for rank, index in enumerate(sorted(range(len(needs)), key=needs.__getitem__)):
            granted = min(needs[index], left / (len(needs) - rank))
            most[index] = max(1, min(MOST_CALLS, int(granted // sizes[index])))
            left -= granted
        return tuple(most)

    def shared_bytes(self) -> tuple[int, int]:
        """Sizes of the input and the output buffer that hold every workload's largest message."""
        return self._rooms[-1].input_end, self._rooms[-1].output_end

    def messages(self, calls: Sequence[int]) -> list[Message]:
        """One message a workload with so many calls each; kept until a workload's count changes."""
        self._draw()
        return [self._kept(index, count) for index, count in enumerate(calls)]

    @property
    def _workloads(self) -> tuple[Workload, ...]:
        return self.operator.workloads

    @cached_property
    def _rooms(self) -> list[Layout]:
        """Where each workload's largest message lies."""
        rooms, input_end, output_end = [], self.first_byte, self.first_byte
        for index, (workload, count) in enumerate(zip(self._workloads, self.most_calls, strict=True)):
            rooms.append(self._plan(workload, count, index, input_end, output_end))
            input_end, output_end = rooms[-1].input_end, rooms[-1].output_end
        return rooms

    def _plan(self, workload: Workload, count: int, index: int = 0, inputs: int = 0, outputs: int = 0) -> Layout:
        return plan_layout(index, [(self.operator.entry(workload.entry), workload.dims)] * count, inputs, outputs)

    def _kept(self, index: int, count: int) -> Message:
        """The message of that size, made when there is none; others of the workload give their memory back."""
        workload, room = self._workloads[index], self._rooms[index]
        key = (workload.name, count)
        if key not in self._messages:
            for other in [other for other in self._messages if other[0] == workload.name and min(other[1], count) > 1]:
                self.device.release(self._messages.pop(other).block)
            layout = self._plan(workload, count, index, room.input_offset, room.windows[0][0])
            self._messages[key] = self._message(workload, layout)
        return self._messages[key]

    def _draw(self) -> None:
        """All workloads' sets, once, side by side: those of large ones are a billion numbers."""
        if self._sets:
            return
        pairs = [workload for workload in self._workloads for _ in range(DRAWN_SETS)]
        with ThreadPoolExecutor(min(len(pairs), os.cpu_count() or 1)) as pool:
            drawn = iter(list(pool.map(self._drawn, pairs, self.rng.spawn(len(pairs)))))
        for workload in self._workloads:
            entry, values = self.operator.entry(workload.entry), [next(drawn) for _ in range(DRAWN_SETS)]
            mixed = frozenset(tensor.name for tensor in entry.inputs if _mixes(tensor.name, tensor.dtype, values))
            self._sets[workload.name] = Sets(*self._uploaded(entry, values), mixed)

    def _drawn(self, workload: Workload, rng: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        return self.reference.make_inputs(self.operator.entry(workload.entry), workload.dims, rng, "normal")

    def _message(self, workload: Workload, layout: Layout) -> Message:
        sets = self._sets[workload.name]
        one, next_one = self._plan(workload, 2).calls
        pitch = next_one.inputs[0].offset - one.inputs[0].offset
        calls = -(-max(LEAST_BLOCK_CALLS, len(layout.calls)) // DRAWN_SETS) * DRAWN_SETS
        block = self._block(one.inputs, Rows(calls, 0, pitch), sets)
        spliced = tuple(place for place in layout.calls[0].inputs if place.tensor.name in sets.mixed and place.bytes)
        packed = packed_layout(layout, {entry.symbol: index for index, entry in enumerate(self.operator.entries)})
        return Message(workload, layout, block, calls, pitch, packed, spliced)

    def _uploaded(
        self, entry: Entry, sets: Sequence[Mapping[str, NDArray[Any]]]
    ) -> tuple[Buffer, list[dict[str, int]]]:
        """The drawn sets in one buffer, and where each one's tensors start."""
        sizes = [np.asarray(values[tensor.name]).nbytes for values in sets for tensor in entry.inputs]
        source = self.device.allocate(max(1, sum(sizes)))
        where, offset = [], 0
        for values in sets:
            where.append(dict[str, int]())
            for tensor in entry.inputs:
                taken = np.ascontiguousarray(values[tensor.name]).reshape(-1).view(np.uint8)
                self.device.upload(source, offset, taken)
                where[-1][tensor.name] = offset
                offset += taken.nbytes
        return source, where

    def _block(self, places: Sequence[Place], rows: Rows, sets: "Sets") -> Buffer:
        """Inputs for many calls: each is one set, with a stretch of every mixed tensor from another."""
        block = self.device.allocate(max(1, rows.count * rows.pitch))
        self.device.fill(block, 0, block.size_bytes, 0)
        for call in range(rows.count):
            chosen, other = (sets.where[(call + step) % len(sets.where)] for step in range(2))
            for place in (place for place in places if place.bytes):
                name, at = place.tensor.name, call * rows.pitch + place.offset
                self.device.copy(block, at, sets.source, chosen[name], place.bytes)
                if name in sets.mixed:
                    start, length = _stretch(place, *self.rng.random(2).tolist())
                    within = start - place.offset
                    self.device.copy(block, at + within, sets.source, other[name] + within, length)
        self.device.settle()
        return block


def _wound(first: int, count: int, size: int) -> list[tuple[int, int, int]]:
    """(position, index, length) of the runs that take `count` of `size` items in a ring from `first` on."""
    before = min(count, size - first)
    return [(0, first, before), *([(before, 0, count - before)] if count > before else [])]


def _mixes(name: str, dtype: str, sets: Sequence[Mapping[str, NDArray[Any]]]) -> bool:
    """An operator may plant NaN where a kernel must not read, at places that depend on its integer inputs."""
    return dtype in _FLOATING and all(_all_finite(np.asarray(values[name])) for values in sets)


def _all_finite(values: NDArray[Any]) -> bool:
    """By the exponent where it is bfloat16: there are a billion of them."""
    if values.dtype == np.uint16:
        return not bool(((values & _EXPONENT) == _EXPONENT).any())
    return bool(np.isfinite(values).all())


def _stretch(place: Place, where: float, how_much: float) -> tuple[int, int]:
    """Offset and bytes of a random stretch of whole elements."""
    size = place.dtype.itemsize
    count = place.bytes // size
    length = 1 + int(how_much * SPLICE_RATIO * (count - 1))
    return place.offset + int(where * (count - length + 1)) * size, length * size
