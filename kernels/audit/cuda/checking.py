"""The checks with many cases in a message: on a device a message takes longer than the calls of most cases."""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelbraid.kernels.audit.checks import LATE_WAIT_S, Case, Checker, drawn_agreements, is_empty
from kernelbraid.kernels.audit.comparison import Bits, first_difference
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.layout import DTYPES, Layout, Place, plan_layout
from kernelbraid.kernels.audit.outcome import Correctness
from kernelbraid.kernels.audit.running import Running
from kernelbraid.kernels.operators.cases import Agreement, Call

MOST_CALLS = 512


@dataclass(frozen=True, slots=True)
class Due:
    """One call of a case: its full-path one, or one that must agree with what that left in the first process."""

    case: Case
    call: Call
    agreement: Agreement | None = None
    full: Mapping[str, Bits] = field(default_factory=dict)


class BatchedChecker(Checker):
    """As `Checker`, and the same verdicts: full calls of several cases in one message, then all that must agree."""

    def run(self, cases: Sequence[Case]) -> None:
        """All cases, those without elements apart. Raises CandidateFailed with the first failure's evidence."""
        apart = ([case for case in cases if is_empty(case) is empty] for empty in (False, True))
        batches = [batch for alike in apart for batch in self._batched(map(self._full, alike))]
        late = secrets.randbelow(len(batches)) if batches else -1
        for number, batch in enumerate(batches):
            self._run_batch(batch, number == late)

    def _full(self, case: Case) -> Due:
        rng = np.random.default_rng(case.seed)
        return Due(case, Call(case.full, case.dims, self.reference.make_inputs(case.full, case.dims, rng, case.style)))

    def _run_batch(self, batch: Sequence[Due], look_again: bool) -> None:
        layout = plan_layout(0, [(due.call.entry, due.call.dims) for due in batch])
        found = self._message(self.first, layout, batch, look_again)
        again = self._message(self.second, layout, batch, False)
        for number, due in enumerate(batch):
            one = replace(layout, calls=layout.calls[number : number + 1])
            self._same_twice(one, found[number], again[number], str(due.case))
        for group in self._batched(self._agreements(batch, found)):
            self._agree_all(group)
        for due, outputs in zip(batch, found, strict=True):
            self._accurate(due.call, outputs, str(due.case))

    def _agreements(self, batch: Sequence[Due], found: Sequence[Mapping[str, Bits]]) -> Iterator[Due]:
        """Everything that must agree with these."""
        for due, outputs in zip(batch, found, strict=True):
            for agreement in drawn_agreements(self.reference.agreements(due.call, due.case.decode), due.case):
                yield Due(due.case, agreement.call, agreement, outputs)

    def _agree_all(self, group: Sequence[Due]) -> None:
        layout = plan_layout(1, [(due.call.entry, due.call.dims) for due in group])
        results = self._message(self.first, layout, group, False)
        for number, (due, result) in enumerate(zip(group, results, strict=True)):
            assert due.agreement is not None, "these were made from agreements"
            name = due.agreement.output
            self._agrees(due.agreement, result[name], due.full[name], layout, number, due.case)

    def _message(
        self, runner: Running, layout: Layout, group: Sequence[Due], look_again: bool
    ) -> list[Mapping[str, Bits]]:
        """Run one message and copy its outputs out of the frozen process."""
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


def _bytes(call: Call) -> int:
    tensors = (*call.entry.inputs, *call.entry.outputs)
    return sum(int(np.prod(tensor.resolve(call.dims))) * DTYPES[tensor.dtype].itemsize for tensor in tensors)


def _nearest(layout: Layout, offset: int) -> int:
    """The call one of whose outputs lies nearest to an offset."""
    places = [(place, number) for number, call in enumerate(layout.calls) for place in call.outputs]
    return min((abs(place.offset - offset), number) for place, number in places)[1]
