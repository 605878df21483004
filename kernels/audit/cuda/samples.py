"""Parts of a timed call against float64 and against the decode path: what is timed is too large to be checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.clock import Copy
from kernelbraid.kernels.audit.comparison import first_difference, inaccuracy
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.layout import DTYPES, plan_layout
from kernelbraid.kernels.audit.outcome import Correctness
from kernelbraid.kernels.operators.cases import Agreement, Call, Reference
from kernelbraid.kernels.operators.operator import Check, Entry, Hidden, Operator, Tensor


def decode_of(operator: Operator, full: Entry) -> Entry | None:
    """The entry that must reproduce parts of this one's calls; None for a decode entry."""
    pairs: tuple[Check | Hidden, ...] = (*operator.checks, *operator.hidden)
    return next((operator.entry(pair.decode) for pair in pairs if pair.full == full.symbol), None)


def shapes_of_samples(operator: Operator, reference: Reference) -> list[tuple[Entry, Mapping[str, int]]]:
    """The decode calls that samples of timed calls make, as far as shapes alone tell: what to compile ahead."""
    found: list[tuple[Entry, Mapping[str, int]]] = []
    for workload in operator.workloads:
        entry = operator.entry(workload.entry)
        if decode := decode_of(operator, entry):
            call = Call(entry, workload.dims, {tensor.name: _zeros(tensor, workload.dims) for tensor in entry.inputs})
            samples = reference.samples(call, decode, np.random.default_rng(0))
            found += [(sample.call.entry, sample.call.dims) for sample in samples]
    return found


def _zeros(tensor: Tensor, dims: Mapping[str, int]) -> NDArray[Any]:
    """One element's memory for a tensor of any size."""
    return np.broadcast_to(np.zeros((), DTYPES[tensor.dtype]), tensor.resolve(dims))


@dataclass(frozen=True)
class Sampler:
    """Compares copied calls with decode calls that run in an untimed process."""

    operator: Operator
    reference: Reference
    inputs: DeviceInputs
    rng: np.random.Generator

    def compare(self, runner: DeviceRunner, copy: Copy) -> int:
        """How many parts of a full-path call were compared, each with float64 and bit for bit.

        Raises CandidateFailed (inaccurate, disagreement).
        """
        entry = self.operator.entry(copy.workload.entry)
        if (decode := decode_of(self.operator, entry)) is None:
            return 0
        full = Call(entry, copy.workload.dims, copy.inputs)
        samples = list(self.reference.samples(full, decode, self.rng))
        for sample in samples:
            self._accurate(sample, copy)
        if samples:
            self._agree(runner, samples, copy)
        return len(samples)

    def _accurate(self, sample: Agreement, copy: Copy) -> None:
        call = sample.call
        exact = self.reference.reference(call.entry, call.dims, call.inputs)[sample.output]
        tolerance = self.operator.tolerances[call.entry.dtype]
        if problem := inaccuracy(copy.outputs[sample.output][sample.index], exact, tolerance):
            raise CandidateFailed(Correctness.INACCURATE, f"{_where(sample, copy)}: {problem}")

    def _agree(self, runner: DeviceRunner, samples: Sequence[Agreement], copy: Copy) -> None:
        """All of them in one message; calls of which several outputs are compared are made once."""
        calls = list({id(sample.call): sample.call for sample in samples}.values())
        layout = plan_layout(0, [(call.entry, call.dims) for call in calls])
        runner.prepare(layout)
        for places, call in zip(layout.calls, calls, strict=True):
            for place in places.inputs:
                self.inputs.fill(place, np.asarray(call.inputs[place.tensor.name]))
        runner.outputs.poison(layout)
        runner.go(layout, freeze=True, limit_s=runner.build_s)
        for sample in samples:
            number = next(index for index, call in enumerate(calls) if call is sample.call)
            place = next(p for p in layout.calls[number].outputs if p.tensor.name == sample.output)
            timed = copy.outputs[sample.output][sample.index]
            if difference := first_difference(runner.outputs.read(place), timed):
                raise CandidateFailed(Correctness.DISAGREEMENT, f"{_where(sample, copy)}: {difference}")
        runner.thaw()


def _where(sample: Agreement, copy: Copy) -> str:
    dims = ", ".join(f"{name}={value}" for name, value in sample.call.dims.items())
    return f"workload {copy.workload.name}: {sample.output} of {sample.call.entry.symbol}({dims}), drawn from its rows"
