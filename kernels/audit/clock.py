"""Timing by the auditor's clock: palindromes of arms, fresh processes in every group, one core for all of them.

All arms read the same input file, whose contents change before every message, so that neither an address nor a
fingerprint of an earlier call says anything about this one. Now and then a timed output is copied out of the frozen
runner; all such copies are made again in a process that was never timed and must have the same bits.
"""

import ctypes
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from statistics import median
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.comparison import Bits, first_difference, inaccuracy, widened
from kernelbraid.kernels.audit.failure import CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.layout import Layout, plan_layout
from kernelbraid.kernels.audit.memory import Inputs, Outputs
from kernelbraid.kernels.audit.native import Elapsed, Span
from kernelbraid.kernels.audit.outcome import CANDIDATE, Blocks, Correctness, Infrastructure
from kernelbraid.kernels.audit.plan import Plan
from kernelbraid.kernels.audit.runner import Launcher, Runner
from kernelbraid.kernels.operators.cases import Arrays, Call, Reference
from kernelbraid.kernels.operators.operator import Operator, Workload

FLOOR = "empty"
MESSAGE_NS = 130_000
"""A message is filled with calls up to about this time, so that its own cost does not drown a fast kernel. The sum of
several calls would be disturbed more often: a neighbour on the same core comes and goes within a millisecond."""
MOST_CALLS = 16
PACING_CALLS = 4
COLD_NS = 2_000_000
MOST_TRIES = 2
WAITED_NS = 25_000
"""A runner that was off its core for longer than a message's own wait was disturbed by another process."""
COPIES_PER_GROUP = 4
_SPLICE = 1 / 8
"""Largest part of a tensor that changes before each message."""


@contextmanager
def blaming(arm: str) -> Iterator[None]:
    """A failure of the candidate is its own; any other arm passed its checks before, so the machine changed."""
    try:
        yield
    except CandidateFailed as error:
        if arm == CANDIDATE:
            raise
        evidence = f"{arm}, which was sound before, is {error.verdict.value} now: {error.evidence}"
        raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, evidence, error.log) from error


@dataclass(frozen=True, slots=True)
class Copy:
    """One timed call as it was: what went in and what came out."""

    workload: Workload
    inputs: Mapping[str, Bits]
    outputs: Mapping[str, Bits]


@dataclass
class WorkloadInputs:
    """One workload's input sets, one per call of a message, and a donor from which parts are spliced in."""

    workload: Workload
    layout: Layout
    donor: Arrays
    spliced: Sequence[str]
    finite: Mapping[tuple[int, str], NDArray[np.bool_] | None]
    """By call and tensor: where set and donor are both finite, None for everywhere; an operator may plant NaN
    where a kernel must not read, at places that depend on its integer inputs."""

    def splice(self, inputs: Inputs, rng: np.random.Generator) -> None:
        """Change a stretch of every floating input of every call to the donor's values at the same place, and an
        element of every row, so that no row is again what it was.

        Donor and sets come from the same operator functions, so any mixture of theirs is an input like them.
        """
        draws = rng.random((len(self.layout.calls), len(self.spliced), 3))
        for call, (places, call_draws) in enumerate(zip(self.layout.calls, draws.tolist(), strict=True)):
            tensors = {place.tensor.name: place for place in places.inputs}
            for name, (where, how_much, column) in zip(self.spliced, call_draws, strict=True):
                flat, donor = inputs.view(tensors[name]).reshape(-1), self.donor[name].reshape(-1)
                length = 1 + int(how_much * _SPLICE * len(flat))
                start = int(where * (len(flat) - length + 1))
                mask, width = self.finite[call, name], tensors[name].shape[-1]
                _swap(flat, donor, slice(start, start + length), mask)
                _swap(flat, donor, slice(int(column * width), None, width), mask)


def _swap(one: Bits, other: Bits, where: slice, mask: NDArray[np.bool_] | None) -> None:
    swapped, selected = one[where].copy(), True if mask is None else mask[where]
    np.copyto(one[where], other[where], where=selected)
    np.copyto(other[where], swapped, where=selected)


def _finite_in_both(one: Bits, other: Bits) -> NDArray[np.bool_] | None:
    mask = (np.isfinite(widened(one)) & np.isfinite(widened(other))).reshape(-1)
    return None if mask.all() else mask


@dataclass
class Session:
    """One timing session of several artifacts. `cpu` is where every runner is pinned."""

    operator: Operator
    reference: Reference
    launcher: Launcher
    artifacts: Mapping[str, Artifact]
    floor: Artifact
    cpu: int
    inputs: Inputs
    copies: list[Copy] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(128)))
    pace: "Pace | None" = None
    _waits_ns: list[int] = field(default_factory=list)
    _sets: list[WorkloadInputs] = field(default_factory=list)

    def run(self, plan: Plan) -> Blocks:
        """Time a plan's groups, at the pace that the session's first one sets.

        Raises CandidateFailed when any arm fails.
        """
        return self._collected(plan, [self._group(plan) for _ in range(plan.groups)])

    def more(self, plan: Plan, blocks: Blocks, groups: int) -> Blocks:
        """The blocks with further groups of the same plan, or of one without arms beside the pair."""
        return joined(blocks, self._collected(plan, [self._group(plan) for _ in range(groups)]))

    def _collected(self, plan: Plan, groups: Sequence["GroupSamples"]) -> Blocks:
        assert self.pace is not None, "the first group sets the pace"
        return collect(plan, self.operator, groups, self.pace.calls)

    def verify_copies(self, most_references: int) -> int:
        """Repeat every copied call in a fresh process; compare the first few with float64 as well.

        Raises CandidateFailed when a timed call gave other bits than an untimed one, or was inaccurate.
        Returns how many were repeated.
        """
        beyond = max((drawn.layout.input_end for drawn in self._sets), default=0)
        with Runner(self.launcher, self.artifacts[CANDIDATE], self.inputs, -1, self.inputs.size_bytes) as runner:
            runner.load([entry.symbol for entry in self.operator.entries])
            for number, copy in enumerate(self.copies):
                self._repeat(runner, copy, beyond, number < most_references)
        return len(self.copies)

    def _repeat(self, runner: Runner, copy: Copy, input_offset: int, with_reference: bool) -> None:
        entry = self.operator.entry(copy.workload.entry)
        layout = plan_layout(0, [(entry, copy.workload.dims)], input_offset)
        runner.prepare(layout)
        for place in layout.calls[0].inputs:
            self.inputs.fill(place, copy.inputs[place.tensor.name])
        runner.outputs.poison(layout)
        runner.go(layout, freeze=True)
        where = f"workload {copy.workload.name}, timed and untimed"
        for place in layout.calls[0].outputs:
            difference = first_difference(copy.outputs[place.tensor.name], runner.outputs.read(place))
            if difference:
                raise CandidateFailed(Correctness.NONDETERMINISTIC, f"{where}: {place.tensor.name}: {difference}")
        runner.thaw()
        if with_reference:
            self._accurate(Call(entry, copy.workload.dims, copy.inputs), copy)

    def _accurate(self, call: Call, copy: Copy) -> None:
        tolerance = self.operator.tolerances[call.entry.dtype]
        for name, exact in self.reference.reference(call.entry, call.dims, call.inputs).items():
            if problem := inaccuracy(copy.outputs[name], exact, tolerance):
                raise CandidateFailed(Correctness.INACCURATE, f"workload {copy.workload.name}: {name}: {problem}")

    def _group(self, plan: Plan) -> "GroupSamples":
        """One set of fresh processes: load all, draw inputs, time every block."""
        with ExitStack() as stack:
            runners = self._start_all(stack, plan)
            floor = self._start(stack, FLOOR, self.floor)
            if self.pace is None:
                self.pace = self._measure_pace(plan.paired[0], runners[plan.paired[0]][0])
            if not self._sets:
                self._sets = self._draw_inputs(self.pace.calls)
            for runner in (*(each for twins in runners.values() for each in twins), floor):
                for workload_inputs in self._sets:
                    runner.prepare(workload_inputs.layout)
            return self._time_group(plan.paced(self.pace.pass_s), runners, floor)

    def _start_all(self, stack: ExitStack, plan: Plan) -> Mapping[str, Sequence[Runner]]:
        """Every arm's processes. Which arm's come first is drawn: the later ones have other pages of memory."""
        arms = [arm for arm in plan.arms for _ in range(plan.twins if arm in plan.paired else 1)]
        runners: dict[str, list[Runner]] = {arm: [] for arm in plan.arms}
        for index in self.rng.permutation(len(arms)).tolist():
            runners[arms[index]].append(self._start(stack, arms[index], self.artifacts[arms[index]]))
        return runners

    def _start(self, stack: ExitStack, arm: str, artifact: Artifact) -> Runner:
        with blaming(arm):
            runner = Runner(self.launcher, artifact, self.inputs, self.cpu, self.inputs.size_bytes)
            stack.enter_context(runner)
            runner.load([entry.symbol for entry in self.operator.entries])
            return runner

    def _measure_pace(self, arm: str, runner: Runner) -> "Pace":
        """A few single calls of every workload by the first arm say how many fill a message, and how long a pass is.

        The runner's processor time counts where it is less: on a busy machine a call that waited would leave its
        messages with too few calls to stand out from their own cost.
        """
        fastest_ns = []
        for workload_inputs in self._draw_inputs([1] * len(self.operator.workloads)):
            runner.prepare(workload_inputs.layout)
            with blaming(arm):
                calls = [runner.go(workload_inputs.layout, freeze=False) for _ in range(PACING_CALLS)]
            fastest_ns.append(min(call.undisturbed_ns for call in calls))
        counts = tuple(max(1, min(MOST_CALLS, round(MESSAGE_NS / time_ns))) for time_ns in fastest_ns)
        messages_ns = [count * time_ns for count, time_ns in zip(counts, fastest_ns, strict=True)]
        return Pace(counts, tuple(messages_ns))

    def _draw_inputs(self, calls: Sequence[int]) -> list[WorkloadInputs]:
        """Fresh inputs for every workload, all in one file, written before anything is timed."""
        drawn, input_offset, output_offset = [], 0, 0
        for index, (workload, count) in enumerate(zip(self.operator.workloads, calls, strict=True)):
            entry = self.operator.entry(workload.entry)
            layout = plan_layout(index, [(entry, workload.dims)] * count, input_offset, output_offset)
            input_offset, output_offset = layout.input_end, layout.output_end
            sets = [
                dict(self.reference.make_inputs(entry, workload.dims, self.rng, "normal")) for _ in range(count + 1)
            ]
            for places, values in zip(layout.calls, sets, strict=False):
                for place in places.inputs:
                    self.inputs.fill(place, np.asarray(values[place.tensor.name]))
            spliced = [tensor.name for tensor in entry.inputs if tensor.dtype != "int32"]
            donor = {name: np.array(values) for name, values in sets[-1].items()}
            finite = {
                (call, name): _finite_in_both(np.asarray(sets[call][name]), donor[name])
                for call in range(count)
                for name in spliced
            }
            drawn.append(WorkloadInputs(workload, layout, donor, spliced, finite))
        return drawn

    def _time_group(self, plan: Plan, runners: Mapping[str, Sequence[Runner]], floor: Runner) -> "GroupSamples":
        samples = GroupSamples.empty(plan, len(self._sets))
        watched = self._watched(plan)
        for block in range(plan.blocks):
            for index in range(len(self._sets)):
                self._time_block(plan, runners, samples, watched, block, index)
                if block == 0:
                    samples.floors_ns.append(self._sample(FLOOR, floor, index))
        return samples

    def _watched(self, plan: Plan) -> frozenset[tuple[int, ...]]:
        """(block, workload, half) of the candidate's samples that are copied: any of them, in secret."""
        places = (plan.blocks, len(self._sets), plan.samples_of(CANDIDATE))
        drawn = self.rng.choice(math.prod(places), min(COPIES_PER_GROUP, math.prod(places)), replace=False)
        return frozenset(zip(*(axis.tolist() for axis in np.unravel_index(drawn, places)), strict=True))

    def _warm_up(self, arms: Sequence[str], runners: Mapping[str, Sequence[Runner]], index: int) -> None:
        """One unrecorded message for every process, where a message is short enough to feel a cold core.

        In the palindrome's own order: when the candidate always came last, it looked 0.8 % faster than itself.
        """
        assert self.pace is not None, "the first group sets the pace"
        if self.pace.messages_ns[index] < COLD_NS:
            for arm in arms:
                for runner in runners[arm]:
                    self._message(arm, runner, index)

    def _time_block(
        self,
        plan: Plan,
        runners: Mapping[str, Sequence[Runner]],
        samples: "GroupSamples",
        watched: frozenset[tuple[int, ...]],
        block: int,
        index: int,
    ) -> None:
        orders = list(permutations(plan.paired))
        order = int(self.rng.integers(len(orders)))
        samples.orders[block, index] = order
        beside = plan.beside if block < plan.beside_blocks else ()
        self._warm_up((*beside, *orders[order]), runners, index)
        for arm in beside:
            samples.by_arm[arm][block, index, 0] = self._sample(arm, runners[arm][0], index)
        halves = (orders[order], orders[order][::-1]) * plan.palindromes
        for half, arms in enumerate(halves):
            for arm in arms:
                runner = runners[arm][half // 2 % plan.twins]
                copied = arm == CANDIDATE and (block, index, half) in watched
                samples.by_arm[arm][block, index, half] = self._sample(arm, runner, index, copied)

    def _message(self, arm: str, runner: Runner, index: int, freeze: bool = False) -> Elapsed:
        workload_inputs = self._sets[index]
        workload_inputs.splice(self.inputs, self.rng)
        self.launcher.stopwatch.bring_near(_spans(workload_inputs.layout, self.inputs, runner.outputs))
        with blaming(arm):
            return runner.go(workload_inputs.layout, freeze)

    def _sample(self, arm: str, runner: Runner, index: int, copied: bool = False) -> int:
        """One sample in nanoseconds: the auditor's clock, unless the runner was off its core meanwhile.

        A short message is then sent again. If it was disturbed every time, the sample is the processor time that the
        kernel counted for the runner (which cannot start a thread or process to hide any) and a message's usual wait.
        """
        assert self.pace is not None, "the first group sets the pace"
        tries = MOST_TRIES if self.pace.messages_ns[index] < COLD_NS else 1
        for _ in range(tries):
            elapsed = self._message(arm, runner, index, freeze=copied)
            if copied:
                self._copy(runner, index)
            waited_ns = max(0, elapsed.wall_ns - elapsed.used_ns)
            if waited_ns < WAITED_NS or not self.launcher.sandbox.box:
                self._waits_ns.append(waited_ns)
                return elapsed.wall_ns
        return min(elapsed.wall_ns, elapsed.used_ns + self._usual_wait_ns())

    def _usual_wait_ns(self) -> int:
        """The median wait of this session's undisturbed messages."""
        return round(median(self._waits_ns)) if self._waits_ns else 0

    def _copy(self, runner: Runner, index: int) -> None:
        """Keep one call of the message that a frozen runner has just answered: no runner can know which one that is."""
        workload_inputs = self._sets[index]
        places = workload_inputs.layout.calls[int(self.rng.integers(len(workload_inputs.layout.calls)))]
        self.copies.append(
            Copy(
                workload_inputs.workload,
                {place.tensor.name: self.inputs.view(place).copy() for place in places.inputs},
                {place.tensor.name: runner.outputs.read(place) for place in places.outputs},
            )
        )
        runner.thaw()


def _spans(layout: Layout, inputs: Inputs, outputs: Outputs) -> "ctypes.Array[Span]":
    """Where this process maps the memory that a message's calls read and write."""
    read = Span(inputs.address + layout.input_offset, layout.input_bytes)
    written = [Span(outputs.address + offset, size) for offset, size in layout.windows]
    return (Span * (1 + len(written)))(read, *written)


@dataclass(frozen=True, slots=True)
class Pace:
    """Calls a message by workload, and about what each workload's message takes the incumbent."""

    calls: tuple[int, ...]
    messages_ns: tuple[int, ...]

    @property
    def pass_s(self) -> float:
        """One message of every workload."""
        return sum(self.messages_ns) * 1e-9


@dataclass(frozen=True, slots=True)
class GroupSamples:
    """One group's samples in nanoseconds: [blocks, workloads, samples] by arm."""

    by_arm: Mapping[str, NDArray[np.uint32]]
    orders: NDArray[np.uint32]
    floors_ns: list[int]

    @classmethod
    def empty(cls, plan: Plan, workloads: int) -> "GroupSamples":
        """Arrays for one group."""
        arms = {arm: np.zeros((plan.blocks_of(arm), workloads, plan.samples_of(arm)), np.uint32) for arm in plan.arms}
        return cls(arms, np.zeros((plan.blocks, workloads), np.uint32), [])


def collect(plan: Plan, operator: Operator, groups: Sequence[GroupSamples], calls: tuple[int, ...]) -> Blocks:
    """The groups as one record."""
    return Blocks(
        workloads=tuple(workload.name for workload in operator.workloads),
        calls=calls,
        paired=plan.paired,
        samples_ns=MappingProxyType({arm: np.stack([group.by_arm[arm] for group in groups]) for arm in plan.arms}),
        floor_ns=np.array([round(float(np.median(group.floors_ns))) for group in groups], np.uint32),
        orders=np.stack([group.orders for group in groups]),
        twins=plan.twins,
    )


def joined(first: Blocks, second: Blocks) -> Blocks:
    """Two records of the same session as one; an arm that the second lacks keeps the first one's groups."""
    return Blocks(
        workloads=first.workloads,
        calls=first.calls,
        paired=first.paired,
        samples_ns=MappingProxyType(
            {
                arm: np.concatenate([samples, second.samples_ns[arm]]) if arm in second.arms else samples
                for arm, samples in first.samples_ns.items()
            }
        ),
        floor_ns=np.concatenate([first.floor_ns, second.floor_ns]),
        orders=np.concatenate([first.orders, second.orders]),
        twins=first.twins,
    )


def drowned(blocks: Blocks) -> str | None:
    """Evidence when a median sample of any arm does not even reach the floor: the clock was too disturbed."""
    for arm in blocks.arms:
        for name, latency_s in blocks.medians_s(arm).items():
            if latency_s <= 1e-9:
                return f"{arm} on {name} was not above an empty candidate's {int(np.median(blocks.floor_ns))} ns"
    return None
