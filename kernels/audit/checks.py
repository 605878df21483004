"""What a candidate must pass before anybody asks how fast it is.

Two fresh processes of the same artifact run every case on differently poisoned memory. Each case is one full-path
call and every call that must agree with it: written outputs, whole guards, the same bits twice, the same bits on
both paths over the whole sequence, and the float64 reference. Seeds are drawn once the artifact is loaded.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelbraid.kernels.audit.comparison import Bits, Difference, bits, first_difference, inaccuracy
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed
from kernelbraid.kernels.audit.layout import DTYPES, Layout, plan_layout
from kernelbraid.kernels.audit.outcome import CheckResult, Correctness
from kernelbraid.kernels.audit.running import InputMemory, Running
from kernelbraid.kernels.audit.sizes import Drawn, Shape
from kernelbraid.kernels.operators.cases import Agreement, Call, Reference
from kernelbraid.kernels.operators.operator import OWN_STYLES, Check, Entry, Hidden, Operator

HIDDEN_DRAWS = 2
TIMED_BYTES = 8 << 20
"""A timed shape up to this size is checked like the declared ones: it is where a path of its own would pay."""
TIMED_DRAWS = 1
"""So many of them in every audit; all of them before a promotion."""
TIMED_AGREEMENTS = 6
SIZES = "sizes"
"""The check of shapes at the sizes that a candidate's sources name; its note says which there were."""
WHOLE_ELEMENTS = 1 << 15
"""Of a larger call at such a size those rows are compared with float64 that are called again alone, as their bits are
those of the whole call."""
OWN_STYLE_ELEMENTS = 1 << 16
"""Inputs that are made to show the order of a sum take several times as long to make as normal ones."""
LATE_WAIT_S = 0.002
NAMES = {
    "outputs_written": Correctness.OUTPUT_NOT_WRITTEN,
    "guards": Correctness.GUARD_OVERWRITTEN,
    "late_writes": Correctness.LATE_WRITE,
    "determinism": Correctness.NONDETERMINISTIC,
    "agreement": Correctness.DISAGREEMENT,
    "accuracy": Correctness.INACCURATE,
}
"""Check name to the verdict of its failure."""


@dataclass(frozen=True, slots=True)
class Case:
    """One full-path call with inputs of one style."""

    full: Entry
    decode: Entry
    dims: Mapping[str, int]
    style: str
    seed: int
    most_agreements: int | None = None
    """So many, drawn in secret, beside those of the very shape; all of them when None."""
    sized: bool = False
    """One of `sizes`: some of its rows are called again, and all of them together."""

    @property
    def in_parts(self) -> bool:
        """Whether the whole call is too large to be compared with float64."""
        elements = sum(math.prod(tensor.resolve(self.dims)) for tensor in (*self.full.inputs, *self.full.outputs))
        return self.sized and elements > WHOLE_ELEMENTS

    def is_part(self, agreement: Agreement) -> bool:
        """Whether this call is one of those whose results are compared with float64 instead."""
        call = agreement.call
        return self.in_parts and call.dims != self.dims and agreement.output == call.entry.outputs[0].name

    def __str__(self) -> str:
        """All that is needed to make the inputs again."""
        dims = ", ".join(f"{name}={value}" for name, value in self.dims.items())
        return f"{self.full.symbol}({dims}), style {self.style}, seed {self.seed}"


@dataclass(frozen=True)
class Tally:
    """Cases passed by check name, kept while the checks run so that a failure still shows what passed."""

    passed: Counter[str] = field(default_factory=Counter)
    notes: dict[str, str] = field(default_factory=dict)
    """By check: what a reader needs to know of its cases, passed or not."""

    def results(self, failed: AuditFailure | None = None) -> tuple[CheckResult, ...]:
        """One result per check that ran; the failing one last."""
        failing = None if failed is None else check_name(failed)
        counts = {**self.passed, **{name: self.passed[name] for name in self.notes}}
        good = [CheckResult(name, True, counts[name], self.notes.get(name, "")) for name in counts if name != failing]
        if failed is None or failing is None:
            return tuple(good)
        return (*good, CheckResult(failing, False, self.passed[failing] + 1, failed.evidence))


def check_name(failed: AuditFailure) -> str:
    """The check that a failure belongs to: its own name, or `execution` for what ended the process."""
    by_verdict = {verdict.value: name for name, verdict in NAMES.items()}
    return by_verdict.get(failed.verdict.value, "execution")


def cases_of(operator: Operator) -> Iterator[Case]:
    """Every declared case, hidden shapes drawn now, and some of the timed ones; those without elements last.

    A device has no memory for a tensor without elements: a stray write would fault where a guard could have told.
    """
    yield from sorted(_drawn_cases(operator), key=is_empty)


def is_empty(case: Case) -> bool:
    """Whether any tensor of the case's full call has no elements."""
    return any(math.prod(tensor.resolve(case.dims)) == 0 for tensor in (*case.full.inputs, *case.full.outputs))


def _drawn_cases(operator: Operator) -> Iterator[Case]:
    rng = np.random.default_rng(secrets.randbits(64))
    for check in operator.checks:
        for style in check.styles:
            yield _case(operator, check.full, check.decode, check.dims, style)
    for hidden in operator.hidden:
        for _ in range(HIDDEN_DRAWS):
            dims = {name: _draw(bound, rng) for name, bound in hidden.dims.items()}
            yield _case(operator, hidden.full, hidden.decode, dims, "normal")
    timed = tuple(timed_cases(operator))
    yield from (timed[index] for index in rng.permutation(len(timed))[:TIMED_DRAWS])


def sized_cases(operator: Operator, drawn: Drawn) -> Iterator[Case]:
    """The shapes at the sizes that a candidate's sources name."""
    for shape in drawn.shapes:
        yield Case(shape.full, shape.decode, shape.dims, _style(operator, shape), shape.seed, sized=True)


def _style(operator: Operator, shape: Shape) -> str:
    """What shows the order of a sum in few results, where the pair has such a style and the call is not large."""
    ends = (shape.full.symbol, shape.decode.symbol)
    styles = [style for check in operator.checks if (check.full, check.decode) == ends for style in check.styles]
    elements = sum(math.prod(tensor.resolve(shape.dims)) for tensor in shape.full.inputs)
    own = [style for style in OWN_STYLES if style in styles and elements <= OWN_STYLE_ELEMENTS]
    return next(iter(own), "normal")


def timed_cases(operator: Operator) -> Iterator[Case]:
    """The workloads' own shapes, where a full-path call can have them, each once for both of its paths."""
    shapes: dict[tuple[str, str, tuple[int, ...]], dict[str, int]] = {}
    pairs: tuple[Check | Hidden, ...] = (*operator.checks, *operator.hidden)
    for workload in operator.workloads:
        for pair in pairs:
            names = operator.entry(pair.full).dims
            if workload.entry in (pair.full, pair.decode) and set(names) <= set(workload.dims):
                dims = {name: workload.dims[name] for name in names}
                shapes[pair.full, pair.decode, tuple(dims.values())] = dims
    for (full, decode, _), dims in shapes.items():
        case = _case(operator, full, decode, dims, "normal")
        if _bytes(case) <= TIMED_BYTES:
            yield replace(case, most_agreements=TIMED_AGREEMENTS)


def _bytes(case: Case) -> int:
    tensors = (*case.full.inputs, *case.full.outputs)
    return sum(math.prod(tensor.resolve(case.dims)) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def _case(operator: Operator, full: str, decode: str, dims: Mapping[str, int], style: str) -> Case:
    return Case(operator.entry(full), operator.entry(decode), dims, style, secrets.randbits(63))


def _draw(bound: int | tuple[int, int], rng: np.random.Generator) -> int:
    return bound if isinstance(bound, int) else int(rng.integers(bound[0], bound[1] + 1))


@dataclass(frozen=True)
class Checker:
    """Runs cases in two loaded runners that share one input file."""

    operator: Operator
    reference: Reference
    first: Running
    second: Running
    inputs: InputMemory
    message_bytes: int
    tally: Tally

    def run(self, cases: Sequence[Case]) -> None:
        """All cases. Raises CandidateFailed with the first failure's evidence."""
        late = secrets.randbelow(len(cases)) if cases else -1
        for index, case in enumerate(cases):
            self._run_case(case, index == late)

    def _run_case(self, case: Case, look_again: bool) -> None:
        values = self.reference.make_inputs(case.full, case.dims, np.random.default_rng(case.seed), case.style)
        full = Call(case.full, case.dims, values)
        layout = plan_layout(0, [(case.full, case.dims)])
        found = self._outputs(self.first, layout, [full], str(case), look_again)[0]
        again = self._outputs(self.second, layout, [full], str(case), False)[0]
        self._same_twice(layout, found, again, str(case))
        self._agree(full, case, found)
        if not case.in_parts:
            self._accurate(full, found, str(case))
        self.tally.passed[SIZES] += case.sized

    def _outputs(
        self, runner: Running, layout: Layout, calls: Sequence[Call], where: str, look_again: bool
    ) -> list[Mapping[str, Bits]]:
        """Run one message and copy its outputs out of the frozen runner."""
        runner.prepare(layout)
        for places, call in zip(layout.calls, calls, strict=True):
            for place in places.inputs:
                self.inputs.fill(place, np.asarray(call.inputs[place.tensor.name]))
        runner.outputs.poison(layout)
        runner.go(layout, freeze=True)
        found: list[Mapping[str, Bits]] = [
            {p.tensor.name: runner.outputs.read(p) for p in places.outputs} for places in layout.calls
        ]
        self._guards_whole(runner, layout, where)
        runner.thaw(settle=True)
        if look_again:
            time.sleep(LATE_WAIT_S)
        self._no_late_writes(runner, layout, found, where)
        return found

    def _guards_whole(self, runner: Running, layout: Layout, where: str) -> None:
        if broken := runner.outputs.first_broken_canary(layout):
            at, byte, expected = broken
            places = ((place.offset, place.tensor.name) for call in layout.calls for place in call.outputs)
            near = min(places, key=lambda place: abs(place[0] - at))
            evidence = f"{where}: canary byte {at - near[0]:+d} from {near[1]} is {byte:#04x}, not {expected:#04x}"
            raise CandidateFailed(Correctness.GUARD_OVERWRITTEN, evidence)
        self.tally.passed["guards"] += 1

    def _no_late_writes(self, runner: Running, layout: Layout, found: Sequence[Mapping[str, Bits]], where: str) -> None:
        for places, outputs in zip(layout.calls, found, strict=True):
            for place in places.outputs:
                if late := first_difference(runner.outputs.read(place), outputs[place.tensor.name]):
                    evidence = f"{where}: {place.tensor.name} changed after the call was done: {late}"
                    raise CandidateFailed(Correctness.LATE_WRITE, evidence)
        self.tally.passed["late_writes"] += 1

    def _same_twice(self, layout: Layout, found: Mapping[str, Bits], again: Mapping[str, Bits], where: str) -> None:
        for place in layout.calls[0].outputs:
            name = place.tensor.name
            difference = first_difference(again[name], found[name])
            poisons = (self.first.outputs.poison_of(place), self.second.outputs.poison_of(place))
            untouched = (bits(found[name]) == bits(poisons[0])) & (bits(again[name]) == bits(poisons[1]))
            if difference and untouched.any():
                at = [int(i) for i in np.argwhere(untouched)[0]]
                evidence = f"{where}: {name}{at} and {int(untouched.sum()) - 1} more were never written"
                raise CandidateFailed(Correctness.OUTPUT_NOT_WRITTEN, evidence)
            self.tally.passed["outputs_written"] += 1
            self._expect("determinism", difference, f"{where}: {name} in two processes")

    def _expect(self, check: str, problem: Difference | str | None, where: str) -> None:
        if problem is not None:
            raise CandidateFailed(NAMES[check], f"{where}: {problem}")
        self.tally.passed[check] += 1

    def _agree(self, full: Call, case: Case, outputs: Mapping[str, Bits]) -> None:
        for batch in _batches(case_agreements(self.reference, full, case), self.message_bytes):
            calls = [agreement.call for agreement in batch]
            layout = plan_layout(1, [(call.entry, call.dims) for call in calls])
            results = self._outputs(self.first, layout, calls, str(case), False)
            for number, (agreement, result) in enumerate(zip(batch, results, strict=True)):
                self._agrees(agreement, result[agreement.output], outputs[agreement.output], layout, number, case)
                if case.is_part(agreement):
                    self._accurate(agreement.call, result, str(case))

    def _agrees(self, agreement: Agreement, found: Bits, whole: Bits, layout: Layout, number: int, case: Case) -> None:
        call, expected = agreement.call, whole[agreement.index]
        dims = ", ".join(f"{name}={value}" for name, value in call.dims.items())
        where = f"{case}: {call.entry.symbol}({dims}) against {agreement.output}[{_spoken(agreement.index)}]"
        if found.shape != expected.shape:
            raise ValueError(f"{where}: the reference compares {list(found.shape)} with {list(expected.shape)}")
        difference = first_difference(found, expected)
        if difference is not None:
            place = next(p for p in layout.calls[number].outputs if p.tensor.name == agreement.output)
            if difference.found == int(_bits_at(self.first.outputs.poison_of(place), difference.index)):
                evidence = f"{where}: element {list(difference.index)} was never written"
                raise CandidateFailed(Correctness.OUTPUT_NOT_WRITTEN, evidence)
        self._expect("agreement", difference, where)

    def _accurate(self, call: Call, found: Mapping[str, Bits], where: str) -> None:
        self._close_enough(call, found, self.reference.reference(call.entry, call.dims, call.inputs), where)

    def _close_enough(self, call: Call, found: Mapping[str, Bits], exact: Mapping[str, Bits], where: str) -> None:
        tolerance = self.operator.tolerances[call.entry.dtype]
        for name, values in exact.items():
            self._expect("accuracy", inaccuracy(found[name], values, tolerance), f"{where}: {name}")


def case_agreements(reference: Reference, full: Call, case: Case) -> Iterator[Agreement]:
    """What a case asks for: of one that is `sized` drawn rows, as nobody can call each of 70,000."""
    if case.sized:
        return reference.extremes(full, case.decode, np.random.default_rng(case.seed))
    return drawn_agreements(reference.agreements(full, case.decode), case)


def drawn_agreements(agreements: Iterator[Agreement], case: Case) -> Iterator[Agreement]:
    """The agreements that a case asks for, in the reference's order."""
    if case.most_agreements is None:
        yield from agreements
        return
    every = list(agreements)
    drawn = set(np.random.default_rng(case.seed).permutation(len(every))[: case.most_agreements].tolist())
    shape = [case.dims[name] for name in case.full.dims]
    yield from (
        agreement
        for number, agreement in enumerate(every)
        if number in drawn or [agreement.call.dims[name] for name in agreement.call.entry.dims] == shape
    )


def _bits_at(values: Bits, index: tuple[int, ...]) -> int:
    return int.from_bytes(values[index].tobytes(), "little")


def _batches(agreements: Iterator[Agreement], most_bytes: int, most_calls: int = 512) -> Iterator[list[Agreement]]:
    """Agreements whose inputs together fit into one message."""
    batch: list[Agreement] = []
    size = 0
    for agreement in agreements:
        needed = sum(np.asarray(values).nbytes for values in agreement.call.inputs.values())
        if batch and (size + needed > most_bytes or len(batch) == most_calls):
            yield batch
            batch, size = [], 0
        batch.append(agreement)
        size += needed
    if batch:
        yield batch


def _spoken(index: tuple[object, ...]) -> str:
    return ", ".join(_spoken_part(part) for part in index)


def _spoken_part(part: object) -> str:
    if isinstance(part, slice):
        return f"{part.start or 0}:{part.stop}"
    if isinstance(part, np.ndarray) and part.size > 4:
        return f"{part.size} indices from {part.min()} to {part.max()}"
    return str(part)
