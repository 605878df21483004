"""Parts of a timed call against float64 and against decode calls: what is timed is too large to be checked whole.

A decode call is compared with smaller ones: checks have seen those agree with the full path.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.clock import Copy
from kernelbraid.kernels.audit.comparison import first_difference, inaccuracy
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner
from kernelbraid.kernels.audit.cuda.stash import Stash
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.layout import DTYPES, plan_layout
from kernelbraid.kernels.audit.outcome import Correctness
from kernelbraid.kernels.operators.cases import Agreement, Call, Reference
from kernelbraid.kernels.operators.operator import Check, Entry, Hidden, Operator, Workload

REFERENCES_TOGETHER = 8
"""Nothing is timed meanwhile."""
SAMPLE_DRAWS = 8
"""Draws of which the shapes are compiled ahead; a sample of another one is compiled as it runs."""


def paths_of(operator: Operator, entry: Entry) -> tuple[Entry, Entry] | None:
    """The full and the decode entry that must agree about this one's calls; None where nothing is compared."""
    pairs: tuple[Check | Hidden, ...] = (*operator.checks, *operator.hidden)
    named = next(((pair.full, pair.decode) for pair in pairs if entry.symbol in (pair.full, pair.decode)), None)
    return named and (operator.entry(named[0]), operator.entry(named[1]))


def shapes_of_samples(operator: Operator, reference: Reference) -> list[tuple[Entry, Mapping[str, int]]]:
    """The decode calls that samples of timed calls make, in a few draws: what to compile ahead."""
    with ThreadPoolExecutor(min(len(operator.workloads), os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda workload: _shapes_of_samples(operator, reference, workload), operator.workloads))
    return [shape for shapes in found for shape in shapes]


def _shapes_of_samples(
    operator: Operator, reference: Reference, workload: Workload
) -> list[tuple[Entry, Mapping[str, int]]]:
    entry = operator.entry(workload.entry)
    if (paths := paths_of(operator, entry)) is None:
        return []
    call = Call(entry, workload.dims, _likely(entry, workload.dims, reference))
    draws = (reference.samples(call, paths[1], np.random.default_rng(seed)) for seed in range(SAMPLE_DRAWS))
    return [(sample.call.entry, sample.call.dims) for samples in draws for sample in samples]


def _likely(entry: Entry, dims: Mapping[str, int], reference: Reference) -> Mapping[str, NDArray[Any]]:
    """Inputs from which shapes follow: those of a call where integers tell them, else one element's memory each."""
    if any(tensor.dtype in ("int32", "int64") for tensor in entry.inputs):
        return reference.make_inputs(entry, dims, np.random.default_rng(0), "normal")
    return {
        tensor.name: np.broadcast_to(np.zeros((), DTYPES[tensor.dtype]), tensor.resolve(dims))
        for tensor in entry.inputs
    }


@dataclass(frozen=True, slots=True)
class Drawn:
    """Parts of one copied call, by rows, and what they must come close to; by the calls' ids, as parts share calls."""

    copy: Copy
    samples: Sequence[Agreement]
    exact: Mapping[int, Future[Mapping[str, NDArray[np.float64]]]]


@dataclass(frozen=True)
class Sampler:
    """Compares copied calls with decode calls that run in an untimed process; float64 is worked out by `references`."""

    operator: Operator
    reference: Reference
    inputs: DeviceInputs
    rng: np.random.Generator
    references: Executor

    def draw(self, copy: Copy) -> Drawn:
        """Parts of a call, read from the device."""
        entry = self.operator.entry(copy.workload.entry)
        if (paths := paths_of(self.operator, entry)) is None:
            return Drawn(copy, (), {})
        assert isinstance(copy.inputs, Stash), "copies of a device's session lie there"
        assert isinstance(copy.outputs, Stash), "copies of a device's session lie there"
        call = Call(entry, copy.workload.dims, copy.inputs.lazy())
        samples = _read(list(self.reference.samples(call, paths[1], self.rng)))
        timed = (
            {name: _by_rows(values, name, *paths) for name, values in copy.outputs.lazy().items()} if samples else {}
        )
        exact = {
            key: self.references.submit(self.reference.reference, part.entry, part.dims, part.inputs)
            for key, part in {id(sample.call): sample.call for sample in samples}.items()
        }
        return Drawn(Copy(copy.workload, {}, timed), samples, exact)

    def compare(self, runner: DeviceRunner, drawn: Drawn) -> int:
        """How many parts of a call were compared, each with float64 and bit for bit with a decode call of its own.

        Raises CandidateFailed (inaccurate, disagreement).
        """
        for sample in drawn.samples:
            self._accurate(sample, drawn)
        if drawn.samples:
            self._agree(runner, drawn.samples, drawn.copy)
        return len(drawn.samples)

    def _accurate(self, sample: Agreement, drawn: Drawn) -> None:
        exact = drawn.exact[id(sample.call)].result()[sample.output]
        tolerance = self.operator.tolerances[sample.call.entry.dtype]
        if problem := inaccuracy(drawn.copy.outputs[sample.output][sample.index], exact, tolerance):
            raise CandidateFailed(Correctness.INACCURATE, f"{_where(sample, drawn.copy)}: {problem}")

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


def _by_rows(values: NDArray[Any], name: str, full: Entry, decode: Entry) -> NDArray[Any]:
    """A call's output as a full call has it: where decode keeps steps apart, they are rows like any other."""
    ranks = [len(tensor.shape) for entry in (full, decode) for tensor in entry.outputs if tensor.name == name]
    merged = max(0, values.ndim - min(ranks))
    return values.reshape(-1, *values.shape[merged + 1 :]) if merged else values


def _read(samples: Sequence[Agreement]) -> list[Agreement]:
    """The same with inputs that are arrays; what shared a call still does."""
    calls = {id(sample.call): sample.call for sample in samples}
    read = {
        key: replace(call, inputs={name: np.asarray(values) for name, values in call.inputs.items()})
        for key, call in calls.items()
    }
    return [replace(sample, call=read[id(sample.call)]) for sample in samples]


def _where(sample: Agreement, copy: Copy) -> str:
    dims = ", ".join(f"{name}={value}" for name, value in sample.call.dims.items())
    return f"workload {copy.workload.name}: {sample.output} of {sample.call.entry.symbol}({dims}), drawn from its rows"
