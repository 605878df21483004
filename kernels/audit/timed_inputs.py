"""The inputs of timed messages: drawn once per harness, laid out in one file, changed before every message.

No candidate outlives its session and none can keep anything, so what was drawn for one tells the next nothing; and no
message sees a row that it saw before.
"""

import ctypes
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.comparison import Bits, widened
from kernelbraid.kernels.audit.layout import CallPlaces, Layout, Place, plan_layout
from kernelbraid.kernels.audit.memory import Inputs
from kernelbraid.kernels.audit.native import Stopwatch, Swapped
from kernelbraid.kernels.operators.cases import Arrays, Reference
from kernelbraid.kernels.operators.operator import Operator, Workload


@dataclass(frozen=True)
class WorkloadInputs:
    """One workload's message: its calls' places, and a donor from which parts are swapped in."""

    workload: Workload
    layout: Layout
    donor: Arrays
    finite: Sequence[NDArray[np.bool_] | None]
    swapped: "ctypes.Array[Swapped]"
    """The floating inputs of all calls."""

    def draws(self, messages: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """[messages, inputs, 3] numbers that say what is swapped before each of so many messages."""
        return rng.random((messages, len(self.swapped), 3))

    def splice(self, stopwatch: Stopwatch, rng: np.random.Generator) -> None:
        """Change a stretch of every floating input of every call to the donor's values at the same place, and an
        element of every row, so that no row is again what it was.

        Donor and sets come from the same operator functions, so any mixture of theirs is an input like them.
        """
        stopwatch.splice(self.swapped, self.draws(1, rng)[0])


@dataclass
class TimedInputs:
    """Every workload's inputs in one file, for one session at a time. `memory` is sealed against the runners."""

    operator: Operator
    reference: Reference
    memory: Inputs
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(128)))
    _drawn: dict[str, list[Arrays]] = field(default_factory=dict)
    _laid_out: tuple[tuple[int, ...], list[WorkloadInputs]] | None = None

    def laid_out(self, calls: Sequence[int]) -> list[WorkloadInputs]:
        """Every workload's message of so many calls; what is written there already stays as the last session left it.

        All of them use the same stretch of the output file: one message is under way at a time.
        """
        if self._laid_out is None or self._laid_out[0] != tuple(calls):
            self._laid_out = tuple(calls), self._lay_out(calls)
        return self._laid_out[1]

    def close(self) -> None:
        """Give the memory back."""
        self._laid_out = None
        self.memory.close()

    def _lay_out(self, calls: Sequence[int]) -> list[WorkloadInputs]:
        found, offset = [], 0
        for index, (workload, count) in enumerate(zip(self.operator.workloads, calls, strict=True)):
            layout = plan_layout(index, [(self.operator.entry(workload.entry), workload.dims)] * count, offset)
            offset = layout.input_end
            found.append(self._filled(workload, layout))
        return found

    def _filled(self, workload: Workload, layout: Layout) -> WorkloadInputs:
        donor, *sets = self._sets(workload, len(layout.calls) + 1)
        donor = {name: np.array(values, order="C") for name, values in donor.items()}
        for places, values in zip(layout.calls, sets, strict=True):
            for place in places.inputs:
                self.memory.fill(place, np.asarray(values[place.tensor.name]))
        pairs = [pair for places, values in zip(layout.calls, sets, strict=True) for pair in _floating(places, values)]
        finite = [_finite_in_both(values, donor[place.tensor.name]) for place, values in pairs]
        parts = zip(pairs, finite, strict=True)
        swapped = [self._swapped(place, donor[place.tensor.name], mask) for (place, _), mask in parts]
        return WorkloadInputs(workload, layout, donor, finite, (Swapped * len(swapped))(*swapped))

    def _sets(self, workload: Workload, count: int) -> list[Arrays]:
        """The first so many sets of the workload, drawn when they are first asked for."""
        entry, sets = self.operator.entry(workload.entry), self._drawn.setdefault(workload.name, [])
        while len(sets) < count:
            sets.append(dict(self.reference.make_inputs(entry, workload.dims, self.rng, "normal")))
        return sets[:count]

    def _swapped(self, place: Place, donor: Bits, finite: NDArray[np.bool_] | None) -> Swapped:
        mask = None if finite is None else finite.ctypes.data
        here = self.memory.address + place.offset
        return Swapped(here, donor.ctypes.data, mask, donor.size, place.shape[-1], donor.itemsize)


def _floating(places: CallPlaces, values: Mapping[str, Bits]) -> list[tuple[Place, Bits]]:
    """A call's inputs that are no integers, with what was written there."""
    return [(place, values[place.tensor.name]) for place in places.inputs if place.tensor.dtype != "int32"]


def _finite_in_both(one: Bits, other: Bits) -> NDArray[np.bool_] | None:
    """Where both are finite, None for everywhere; an operator may plant NaN where a kernel must not read, at places
    that depend on its integer inputs."""
    mask = (np.isfinite(widened(one)) & np.isfinite(widened(other))).reshape(-1)
    return None if mask.all() else mask
