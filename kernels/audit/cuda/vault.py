"""Secret inputs of the timed workloads, in device memory that no candidate's process can map.

A few sets are drawn by the operator once; a message's inputs are spliced together from them on the device, anew for
every message, so that neither an address nor a fingerprint of an earlier call says anything about this one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.comparison import widened
from kernelbraid.kernels.audit.cuda.device import Buffer, Device
from kernelbraid.kernels.audit.layout import Layout, Place, plan_layout
from kernelbraid.kernels.operators.cases import Reference
from kernelbraid.kernels.operators.operator import Entry, Operator, Workload

DRAWN_SETS = 3
BLOCKS = 3
"""Whole messages kept ready for each workload, each call in them another mixture."""
SPLICE_RATIO = 1 / 8
"""Largest part of a tensor that changes before each message."""
MOST_CALLS = 64
MOST_WORKLOAD_BYTES = 512 << 20
MEMORY_SHARE = 16
_FLOATING = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Message:
    """One workload's message: its layout in the shared buffers, and whole input blocks to choose from."""

    workload: Workload
    layout: Layout
    blocks: tuple[Buffer, ...]
    spliced: tuple[tuple[Place, ...], ...]
    """By call: tensors of which any stretch may come from another set, as all of them are finite everywhere."""

    def lay_out(self, device: Device, shared: Buffer, rng: np.random.Generator) -> None:
        """New inputs into the shared buffer; there once the device has settled."""
        first, other = rng.permutation(len(self.blocks))[:2]
        start, size = self.layout.input_offset, self.layout.input_bytes
        device.copy(shared, start, self.blocks[first], 0, size)
        draws = rng.random((len(self.spliced), 3))
        for places, (which, where, how_much) in zip(self.spliced, draws.tolist(), strict=True):
            if places:
                at, length = _stretch(places[int(which * len(places))], where, how_much)
                device.copy(shared, at, self.blocks[other], at - start, length)


@dataclass
class Vault:
    """All workloads' sets. Sizes are planned once, so that the shared buffers can be allocated before any process."""

    device: Device
    operator: Operator
    reference: Reference
    rng: np.random.Generator
    _sets: dict[str, list[Mapping[str, NDArray[Any]]]] = field(default_factory=dict)
    _messages: dict[tuple[int, ...], list[Message]] = field(default_factory=dict)

    def most_calls(self, workload: Workload) -> int:
        """Calls of one message, by the memory that a workload may take."""
        budget = min(MOST_WORKLOAD_BYTES, self.device.facts.memory_bytes // (MEMORY_SHARE * len(self._workloads)))
        one = plan_layout(0, [(self.operator.entry(workload.entry), workload.dims)])
        return max(1, min(MOST_CALLS, budget // max(one.input_bytes, one.output_end)))

    def shared_bytes(self) -> tuple[int, int]:
        """Sizes of the input and the output buffer that hold every workload's largest message."""
        layouts = self._layouts([self.most_calls(workload) for workload in self._workloads])
        return layouts[-1].input_end, layouts[-1].output_end

    def messages(self, calls: Sequence[int]) -> list[Message]:
        """One message a workload with so many calls each; kept for later sessions with the same counts."""
        counts = tuple(calls)
        if counts not in self._messages:
            self.forget()
            layouts = self._layouts(counts)
            self._messages[counts] = [self._message(*pair) for pair in zip(self._workloads, layouts, strict=True)]
        return self._messages[counts]

    def forget(self) -> None:
        """Give the blocks' memory back."""
        for message in (message for messages in self._messages.values() for message in messages):
            for block in message.blocks:
                self.device.release(block)
        self._messages.clear()

    @property
    def _workloads(self) -> tuple[Workload, ...]:
        return self.operator.workloads

    def _layouts(self, counts: Sequence[int]) -> list[Layout]:
        layouts, input_end, output_end = [], 0, 0
        for index, (workload, count) in enumerate(zip(self._workloads, counts, strict=True)):
            entry = self.operator.entry(workload.entry)
            layouts.append(plan_layout(index, [(entry, workload.dims)] * count, input_end, output_end))
            input_end, output_end = layouts[-1].input_end, layouts[-1].output_end
        return layouts

    def _drawn(self, workload: Workload) -> list[Mapping[str, NDArray[Any]]]:
        if workload.name not in self._sets:
            entry = self.operator.entry(workload.entry)
            self._sets[workload.name] = [
                self.reference.make_inputs(entry, workload.dims, self.rng, "normal") for _ in range(DRAWN_SETS)
            ]
        return self._sets[workload.name]

    def _message(self, workload: Workload, layout: Layout) -> Message:
        sets = self._drawn(workload)
        entry = self.operator.entry(workload.entry)
        mixed = {tensor.name for tensor in entry.inputs if _mixes(tensor.name, tensor.dtype, sets)}
        spliced = tuple(tuple(p for p in call.inputs if p.tensor.name in mixed) for call in layout.calls)
        source, at = self._uploaded(entry, sets)
        blocks = tuple(self._block(layout, spliced, source, at, shift) for shift in range(BLOCKS))
        self.device.settle()
        self.device.release(source)
        return Message(workload, layout, blocks, spliced)

    def _uploaded(
        self, entry: Entry, sets: Sequence[Mapping[str, NDArray[Any]]]
    ) -> tuple[Buffer, list[dict[str, int]]]:
        """The drawn sets in one buffer, and where each one's tensors start."""
        sizes = [np.asarray(values[tensor.name]).nbytes for values in sets for tensor in entry.inputs]
        source = self.device.allocate(sum(sizes))
        where, offset = [], 0
        for values in sets:
            where.append(dict[str, int]())
            for tensor in entry.inputs:
                taken = np.ascontiguousarray(values[tensor.name]).reshape(-1).view(np.uint8)
                self.device.upload(source, offset, taken)
                where[-1][tensor.name] = offset
                offset += taken.nbytes
        return source, where

    def _block(
        self,
        layout: Layout,
        spliced: Sequence[Sequence[Place]],
        source: Buffer,
        where: Sequence[Mapping[str, int]],
        shift: int,
    ) -> Buffer:
        """Inputs for one whole message: every call is one set, with a stretch of each mixed tensor from another."""
        block = self.device.allocate(layout.input_bytes)
        self.device.fill(block, 0, layout.input_bytes, 0)
        for number, (call, mixed) in enumerate(zip(layout.calls, spliced, strict=True)):
            chosen, other = where[(number + shift) % len(where)], where[(number + shift + 1) % len(where)]
            for place in call.inputs:
                at = place.offset - layout.input_offset
                self.device.copy(block, at, source, chosen[place.tensor.name], place.bytes)
            for place, draws in zip(mixed, self.rng.random((len(mixed), 2)).tolist(), strict=True):
                start, length = _stretch(place, *draws)
                offset = start - place.offset
                at = start - layout.input_offset
                self.device.copy(block, at, source, other[place.tensor.name] + offset, length)
        return block


def _mixes(name: str, dtype: str, sets: Sequence[Mapping[str, NDArray[Any]]]) -> bool:
    """An operator may plant NaN where a kernel must not read, at places that depend on its integer inputs."""
    return dtype in _FLOATING and all(bool(np.isfinite(widened(np.asarray(values[name]))).all()) for values in sets)


def _stretch(place: Place, where: float, how_much: float) -> tuple[int, int]:
    """Offset and bytes of a random stretch of whole elements."""
    size = place.dtype.itemsize
    count = place.bytes // size
    length = 1 + int(how_much * SPLICE_RATIO * (count - 1))
    return place.offset + int(where * (count - length + 1)) * size, length * size
