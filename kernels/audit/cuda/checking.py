"""The checks with many cases in a message: on a device a message takes longer than the calls of most cases.

What must come out, and the inputs of the messages that follow, are worked out beside what runs.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.checks import LATE_WAIT_S, SIZES, Case, Checker, case_agreements, is_empty
from kernelbraid.kernels.audit.comparison import Bits, first_difference
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.layout import DTYPES, Layout, Place, plan_layout
from kernelbraid.kernels.audit.outcome import Correctness
from kernelbraid.kernels.audit.running import Running
from kernelbraid.kernels.operators.cases import Agreement, Call

MOST_CALLS = 512
CHECKED_MESSAGES = 4
"""The room for messages of checks, in messages of the size that they are filled to: a single call may be larger."""
REFERENCES_TOGETHER = 4
"""No message waits for them; numpy's own products use more threads than these."""
Exact = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Due:
    """One call of a case: its full-path one, or one that must agree with what that left in the first process."""

    case: Case
    call: Call
    exact: Future[Exact] | None = None
    """What the full-path call must come close to."""
    agreements: tuple[Agreement, ...] = ()
    full: Mapping[str, Bits] = field(default_factory=dict)


class BatchedChecker(Checker):
    """As `Checker`, and the same verdicts: full calls of several cases in one message, then all that must agree."""

    def run(self, cases: Sequence[Case]) -> None:
        """All cases, those without elements apart. Raises CandidateFailed with the first failure's evidence."""
        references, aside = ThreadPoolExecutor(REFERENCES_TOGETHER), ThreadPoolExecutor(1)
        try:
            apart = ([case for case in cases if is_empty(case) is empty] for empty in (False, True))
            full = ([self._full(case, references) for case in alike] for alike in apart)
            batches = [batch for alike in full for batch in self._batched(alike)]
            late = secrets.randbelow(len(batches)) if batches else -1
            for number, batch in enumerate(batches):
                self._run_batch(batch, aside, number == late)
        finally:
            for pool in (references, aside):
                pool.shutdown(cancel_futures=True)

    def _full(self, case: Case, references: Executor) -> Due:
        rng = np.random.default_rng(case.seed)
        call = Call(case.full, case.dims, self.reference.make_inputs(case.full, case.dims, rng, case.style))
        if case.in_parts:
            return Due(case, call)
        return Due(case, call, references.submit(self.reference.reference, call.entry, call.dims, call.inputs))

    def _run_batch(self, batch: Sequence[Due], aside: Executor, look_again: bool) -> None:
        layout = plan_layout(0, [(due.call.entry, due.call.dims) for due in batch])
        found = self._message(self.first, layout, batch, look_again)
        again = self._message(self.second, layout, batch, False)
        for number, due in enumerate(batch):
            one = replace(layout, calls=layout.calls[number : number + 1])
            self._same_twice(one, found[number], again[number], str(due.case))
        for group in _one_ahead(self._batched(self._agreements(batch, found)), aside):
            self._agree_all(group)
        for due, outputs in zip(batch, found, strict=True):
            if due.exact is not None:
                self._close_enough(due.call, outputs, due.exact.result(), str(due.case))
            self.tally.passed[SIZES] += due.case.sized

    def _agreements(self, batch: Sequence[Due], found: Sequence[Mapping[str, Bits]]) -> Iterator[Due]:
        """Everything that must agree with these; a call of which several outputs are compared is made once."""
        for due, outputs in zip(batch, found, strict=True):
            agreements = case_agreements(self.reference, due.call, due.case)
            for _, alike in groupby(agreements, key=lambda agreement: id(agreement.call)):
                own = tuple(alike)
                yield Due(due.case, own[0].call, agreements=own, full=outputs)

    def _agree_all(self, group: Sequence[Due]) -> None:
        layout = plan_layout(1, [(due.call.entry, due.call.dims) for due in group])
        results = self._message(self.first, layout, group, False)
        for number, (due, result) in enumerate(zip(group, results, strict=True)):
            for agreement in due.agreements:
                name = agreement.output
                self._agrees(agreement, result[name], due.full[name], layout, number, due.case)
                if due.case.is_part(agreement):
                    self._accurate(due.call, result, str(due.case))

    def _message(
        self, runner: Running, layout: Layout, group: Sequence[Due], look_again: bool
    ) -> list[Mapping[str, Bits]]:
        """Run one message and copy its outputs out of the frozen process."""
        if (size := max(layout.input_end, layout.output_end)) > CHECKED_MESSAGES * self.message_bytes:
            raise ValueError(f"{group[0].case}: {size} bytes in a message are more than checks have room for")
        runner.prepare(layout)
        for places, due in zip(layout.calls, group, strict=True):
            for place in places.inputs:
                self.inputs.fill(place, np.asarray(due.call.inputs[place.tensor.name]))
        runner.outputs.poison(layout)
        runner.go(layout, freeze=True)
        found: list[Mapping[str, Bits]] = [
            {place.tensor.name: runner.outputs.read(place) for place in places.outputs} for places in layout.calls
        ]
        if broken := runner.outputs.first_broken_canary(layout):
            self._guards_whole(runner, layout, str(group[_nearest(layout, broken[0])].case))
        cases = len({due.case.seed for due in group})
        self.tally.passed["guards"] += cases
        runner.thaw(settle=True)
        if look_again:
            time.sleep(LATE_WAIT_S)
        for places, outputs, due in zip(layout.calls, found, group, strict=True):
            for place in places.outputs:
                self._not_late(runner, place, outputs[place.tensor.name], due.case)
        self.tally.passed["late_writes"] += cases
        return found

    def _not_late(self, runner: Running, place: Place, before: Bits, where: Case) -> None:
        if late := first_difference(runner.outputs.read(place), before):
            evidence = f"{where}: {place.tensor.name} changed after the call was done: {late}"
            raise CandidateFailed(Correctness.LATE_WRITE, evidence)

    def _batched(self, calls: Iterable[Due]) -> Iterator[list[Due]]:
        """Calls whose tensors together fit into one message."""
        batch: list[Due] = []
        size = 0
        for due in calls:
            needed = _bytes(due.call)
            if batch and (size + needed > self.message_bytes or len(batch) == MOST_CALLS):
                yield batch
                batch, size = [], 0
            batch.append(due)
            size += needed
        if batch:
            yield batch


def _one_ahead(groups: Iterator[list[Due]], aside: Executor) -> Iterator[list[Due]]:
    """The same, each one being made while the one before is in use."""
    coming = aside.submit(next, groups, None)
    while (group := coming.result()) is not None:
        coming = aside.submit(next, groups, None)
        yield group


def _bytes(call: Call) -> int:
    tensors = (*call.entry.inputs, *call.entry.outputs)
    return sum(int(np.prod(tensor.resolve(call.dims))) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def _nearest(layout: Layout, offset: int) -> int:
    """The call one of whose outputs lies nearest to an offset."""
    places = [(place, number) for number, call in enumerate(layout.calls) for place in call.outputs]
    return min((abs(place.offset - offset), number) for place, number in places)[1]
