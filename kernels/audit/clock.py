"""Timing by the auditor's clock: palindromes of arms, fresh processes in every group, one core for all of them.

All arms read the same input file, whose contents change before every message, so that neither an address nor a
fingerprint of an earlier call says anything about this one. Now and then a timed output is copied out of the frozen
runner; all such copies are made again in a process that was never timed and must have the same bits.
"""

import ctypes
import secrets
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice, permutations, zip_longest
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.comparison import Bits, first_difference, inaccuracy
from kernelbraid.kernels.audit.failure import CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.layout import Layout, plan_layout
from kernelbraid.kernels.audit.memory import Inputs, Outputs
from kernelbraid.kernels.audit.native import Elapsed, Errand, Span, Stop, Swapped, Visit
from kernelbraid.kernels.audit.outcome import CANDIDATE, LONGEST_NS, Blocks, Correctness, Infrastructure, process_of
from kernelbraid.kernels.audit.plan import LONG_NS, Plan
from kernelbraid.kernels.audit.runner import Launcher, Runner
from kernelbraid.kernels.audit.timed_inputs import TimedInputs, WorkloadInputs
from kernelbraid.kernels.operators.cases import Call, Reference
from kernelbraid.kernels.operators.operator import Operator, Workload

FLOOR = "empty"
FLOOR_SAMPLES = 2
"""The shortest of them counts: a floor that was disturbed would make an honest candidate look impossible."""
MESSAGE_NS = 45_000
"""A message is filled with calls up to about this time, so that its own cost does not drown a fast kernel. A longer one
is disturbed more often: a neighbour on the same core comes and goes within a millisecond."""
MOST_CALLS = 16
MESSAGE_BYTES = 1 << 20
"""It has more than one call only while they read and write so much together, which a core's second cache holds beside
what the other arm's process has there: where a process lies in memory would tell more than what it does."""
PACING_CALLS = 4
VISIT_NS = 400_000
MOST_MESSAGES = 3
"""A sample is the shortest of a visit: so many messages to one process in a row, or about so long."""
SUSPICIOUS_RATIO = 0.85
"""A message that takes so much less than its arm's usual ones until then may have left work out: it is copied."""
FEW_SAMPLES = 2
"""Of an arm, before which nothing says what is usual."""
SHORT_COPIES = 1
"""Usual is the middle one of all messages for the first so many copies of each workload and arm in a group, and for"""
SHORT_RATIO = 1 / 16
"""so many of the later turns, drawn in secret: who leaves work out of every other message has only short samples. For
the other turns it is a good sample, which an honest message seldom is short beside."""
MANY_MESSAGES = 24
"""Their middle one is a measure that never falls again in a session: who leaves out more and more shall not set it."""
MOST_COPIED_BYTES = 256 << 20
"""Once the copies that are kept take so much, only what was drawn in secret is copied."""
KEPT_BYTES = 64 << 20
"""Copies of more than this are made again at the end of a group, not at the end of a stage."""
WAITED_NS = 25_000
"""A runner that was off its core for longer than a message's own wait was disturbed by another process."""


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
class Session:
    """One timing session of several artifacts. `cpu` is where every runner is pinned.

    `paces` remembers what each first arm's artifact takes, by its digest, beyond this session.
    """

    operator: Operator
    reference: Reference
    launcher: Launcher
    artifacts: Mapping[str, Artifact]
    floor: Artifact
    cpu: int
    timed: TimedInputs
    paces: "dict[str, Pace]" = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(128)))
    pace: "Pace | None" = None
    look: Callable[[], None] = lambda: None
    """Called before each group; what it raises ends the session."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _floor: "Prepared | None" = None
    _seen: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """An arm's samples of a workload, ascending."""
    _messages: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """The messages that they are the shortest of, ascending."""
    _middle: dict[tuple[str, int], int] = field(default_factory=dict)
    """The longest that the middle one of many was."""
    _short: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many were copied in this group because they were short."""
    _sets: list[WorkloadInputs] = field(default_factory=list)
    _copied_bytes: int = 0
    """What the copies that are kept take."""
    _repeated: int = 0
    """Copies that were made again and not told of yet."""

    @property
    def inputs(self) -> Inputs:
        """The file that all runners read."""
        return self.timed.memory

    @property
    def _pace(self) -> "Pace":
        assert self.pace is not None, "the first group sets the pace"
        return self.pace

    def run(self, plan: Plan) -> Blocks:
        """Time a plan's groups, at the pace that the session's first one sets.

        Raises CandidateFailed when any arm fails.
        """
        return self._collected(plan, [self._group(plan) for _ in range(plan.groups)])

    def more(self, plan: Plan, blocks: Blocks, groups: int) -> Blocks:
        """The blocks with further groups of the same plan, or of one without arms beside the pair."""
        return joined(blocks, self._collected(plan, [self._group(plan) for _ in range(groups)]))

    def close(self) -> None:
        """End what outlives a group: the empty candidate's process."""
        self._stack.close()

    def _collected(self, plan: Plan, groups: Sequence["GroupSamples"]) -> Blocks:
        return collect(plan, self.operator, groups, self._pace.calls)

    def verify_copies(self, most_references: int) -> int:
        """Repeat every call copied since this was last asked in a fresh process; compare the first few of those that
        are left with float64 as well.

        Raises CandidateFailed when a timed call gave other bits than an untimed one, or was inaccurate.
        Returns how many were repeated.
        """
        self._repeat_copies(most_references)
        repeated, self._repeated = self._repeated, 0
        return repeated

    def _repeat_copies(self, most_references: int) -> None:
        """Repeat the copied calls and forget them, as many of a workload in a message as were timed in one."""
        beyond = max((drawn.layout.input_end for drawn in self._sets), default=0)
        layouts: dict[tuple[str, int], Layout] = {}
        with Runner(self.launcher, self.artifacts[CANDIDATE], self.inputs, -1, self.inputs.size_bytes) as runner:
            runner.load(self._symbols)
            for copies in self._copied_messages():
                workload = copies[0].workload
                key, calls = (workload.name, len(copies)), [(self.operator.entry(workload.entry), workload.dims)]
                if key not in layouts:
                    layouts[key] = plan_layout(len(layouts), calls * len(copies), beyond)
                    runner.prepare(layouts[key])
                self._repeat(runner, copies, layouts[key])
        for copy in self.copies[:most_references]:
            self._accurate(copy)
        self._repeated, self._copied_bytes = self._repeated + len(self.copies), 0
        self.copies.clear()

    def _copied_messages(self) -> Iterator[list[Copy]]:
        """The copied calls, as many at a time as a message of their workload has."""
        for workload, count in zip(self.operator.workloads, self._pace.calls, strict=True):
            copies = [copy for copy in self.copies if copy.workload is workload]
            yield from (copies[first : first + count] for first in range(0, len(copies), count))

    def _repeat(self, runner: Runner, copies: Sequence[Copy], layout: Layout) -> None:
        for copy, places in zip(copies, layout.calls, strict=True):
            for place in places.inputs:
                self.inputs.fill(place, copy.inputs[place.tensor.name])
        runner.outputs.poison(layout)
        runner.go(layout, freeze=True)
        for copy, places in zip(copies, layout.calls, strict=True):
            for place in places.outputs:
                difference = first_difference(copy.outputs[place.tensor.name], runner.outputs.view(place))
                if difference:
                    where = f"workload {copy.workload.name}, timed and untimed: {place.tensor.name}"
                    raise CandidateFailed(Correctness.NONDETERMINISTIC, f"{where}: {difference}")
        runner.thaw()

    def _accurate(self, copy: Copy) -> None:
        call = Call(self.operator.entry(copy.workload.entry), copy.workload.dims, copy.inputs)
        tolerance = self.operator.tolerances[call.entry.dtype]
        for name, exact in self.reference.reference(call.entry, call.dims, call.inputs).items():
            if problem := inaccuracy(copy.outputs[name], exact, tolerance):
                raise CandidateFailed(Correctness.INACCURATE, f"workload {copy.workload.name}: {name}: {problem}")

    @property
    def _symbols(self) -> list[str]:
        return [entry.symbol for entry in self.operator.entries]

    def _group(self, plan: Plan) -> "GroupSamples":
        """One set of fresh processes: load all, lay the inputs out, time every block."""
        self.look()
        self._short.clear()
        with ExitStack() as stack:
            started = self._start_all(stack, plan)
            if self.pace is None:
                self.pace = self._known_pace(plan.paired[0], started[plan.paired[0]][0])
                self._sets = self.timed.laid_out(self.pace.calls)
            if self._floor is None:
                self._floor = self._prepared_floor(self._start(self._stack, FLOOR, self.floor))
            runners = {arm: [self._prepared(runner) for runner in twins] for arm, twins in started.items()}
            samples = self._time_group(plan.paced(self.pace.pass_s), runners, self._floor)
        if self._copied_bytes > KEPT_BYTES:
            self._repeat_copies(0)
        return samples

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
            runner.load(self._symbols)
            return runner

    def _prepared(self, runner: Runner) -> "Prepared":
        """The runner with every workload's message laid out in it."""
        for drawn in self._sets:
            runner.prepare(drawn.layout)
        spans = [_spans(drawn.layout, self.inputs, runner.outputs) for drawn in self._sets]
        pairs = zip(self._sets, spans, strict=True)
        return Prepared(runner, [runner.errand(drawn.layout, drawn.swapped, near) for drawn, near in pairs])

    def _prepared_floor(self, runner: Runner) -> "Prepared":
        """The same of one that looks at no inputs, so that none need to change."""
        for drawn in self._sets:
            runner.prepare(drawn.layout)
        return Prepared(runner, [runner.errand(drawn.layout, (Swapped * 0)(), (Span * 0)()) for drawn in self._sets])

    def _known_pace(self, arm: str, runner: Runner) -> "Pace":
        digest = self.artifacts[arm].digest
        if digest not in self.paces:
            self.paces[digest] = self._measure_pace(arm, runner)
        return self.paces[digest]

    def _measure_pace(self, arm: str, runner: Runner) -> "Pace":
        """A few single calls of every workload by the first arm say how many fill a message, and how long a pass is.

        The runner's processor time counts where it is less: on a busy machine a call that waited would leave its
        messages with too few calls to stand out from their own cost.
        """
        fastest_ns = []
        alone = self.timed.laid_out([1] * len(self.operator.workloads))
        for drawn in alone:
            runner.prepare(drawn.layout)
            with blaming(arm):
                calls = [runner.go(drawn.layout, freeze=False) for _ in range(PACING_CALLS)]
            fastest_ns.append(min(call.undisturbed_ns for call in calls))
        most = [min(MOST_CALLS, MESSAGE_BYTES // drawn.layout.size_bytes) for drawn in alone]
        wanted = [round(MESSAGE_NS / time_ns) for time_ns in fastest_ns]
        counts = tuple(max(1, min(pair)) for pair in zip(most, wanted, strict=True))
        messages_ns = [count * time_ns for count, time_ns in zip(counts, fastest_ns, strict=True)]
        return Pace(counts, tuple(messages_ns))

    def _time_group(self, plan: Plan, runners: Mapping[str, Sequence["Prepared"]], floor: "Prepared") -> "GroupSamples":
        samples = GroupSamples.empty(plan, len(self._sets))
        watched = self._watched(plan)
        for block in range(plan.blocks):
            for index in range(len(self._sets)):
                if block == 0:
                    self._warm_up(plan, runners, index)
                    samples.floors_ns.append(min(self._samples([Turn(FLOOR, floor)] * FLOOR_SAMPLES, index)))
                copied = frozenset(half for at, which, half in watched if (at, which) == (block, index))
                self._time_block(plan, runners, samples, copied, block, index)
        return samples

    def _watched(self, plan: Plan) -> frozenset[tuple[int, ...]]:
        """(block, workload, half) of the candidate's samples that are copied: any of them, in secret, and of as many
        halves as there are copies, for who is honest at first is not so later."""
        pairs = [(block, index) for block in range(plan.blocks) for index in range(len(self._sets))]
        by_half = []
        for half in self.rng.permutation(plan.samples_of(CANDIDATE)).tolist():
            fitting = [(*pair, half) for pair in pairs if half < self._halves(plan, pair[1])]
            by_half.append([fitting[place] for place in self.rng.permutation(len(fitting)).tolist()])
        in_turn = (place for turn in zip_longest(*by_half) for place in turn if place is not None)
        return frozenset(islice(in_turn, plan.copies))

    def _halves(self, plan: Plan, index: int) -> int:
        """Samples of a paired arm in a block of the workload."""
        return plan.halves_of(self.pace.messages_ns[index] if self.pace is not None else 0)

    def _warm_up(self, plan: Plan, runners: Mapping[str, Sequence["Prepared"]], index: int) -> None:
        """An unrecorded message to every process, in an order that is drawn, where it is short enough to feel a cold
        core, and all that a visit sends: the first one takes nearly twice as long."""
        if self._pace.messages_ns[index] >= LONG_NS or self._pace.visit(index) > 1:
            return
        processes = [(arm, process) for arm in plan.arms for process in runners[arm]]
        for place in self.rng.permutation(len(processes)).tolist():
            arm, process = processes[place]
            stop = process.runner.stop(process.errands[index], self._sets[index].draws(1, self.rng), 1)
            self._tour([Turn(arm, process)], index, [stop])

    def _time_block(
        self,
        plan: Plan,
        runners: Mapping[str, Sequence["Prepared"]],
        samples: "GroupSamples",
        copied: frozenset[int],
        block: int,
        index: int,
    ) -> None:
        orders = list(permutations(plan.paired))
        order = int(self.rng.integers(len(orders)))
        samples.orders[block, index] = order
        for arm in plan.beside if block < plan.beside_blocks else ():
            (samples.by_arm[arm][block, index, 0],) = self._samples([Turn(arm, runners[arm][0])], index)
        halves = ((orders[order], orders[order][::-1]) * plan.palindromes)[: self._halves(plan, index)]
        numbers = process_of(len(halves), plan.twins)
        places = [(arm, half) for half, arms in enumerate(halves) for arm in arms]
        turns = [Turn(arm, runners[arm][numbers[half]], half in copied) for arm, half in places]
        for (arm, half), sample in zip(places, self._samples(turns, index), strict=True):
            samples.by_arm[arm][block, index, half] = sample

    def _samples(self, turns: Sequence["Turn"], index: int) -> list[int]:
        """A sample in nanoseconds of each turn, all made without this interpreter between them: its work, and its
        waiting for others' where checks go on beside, would set neighbours apart.

        Where a call is copied, it is one of any of a turn's messages, and beside it one of each message that was too
        short to be like the others; a turn then goes on with what it has left. Until an arm has shown what is short,
        few turns are made at once.
        """
        due, samples, found = self._pace.visit(index), list[int](), list[Elapsed]()
        until = [1 + int(self.rng.integers(due)) if turn.copied else 0 for turn in turns]
        stops: list[Stop] = []
        while (first := len(samples)) < len(turns):
            last = len(turns) if self._shown(turns, index) else first + FEW_SAMPLES
            ahead = slice(len(stops), last)
            stops += [self._stop(*each, index) for each in zip(turns[ahead], until[ahead], strict=True)]
            for turn, visit in zip(turns[first:], self._tour(turns[first:], index, stops[first:last]), strict=False):
                found += visit.elapsed
                if visit.frozen:
                    self._copy(turn.arm, turn.process.runner, index)
                    if self._count_short(turn.arm, index, visit, stops[len(samples)]):
                        # The stops that are left were made to look for what most of them need no longer look for.
                        del stops[len(samples) + 1 :]
                if len(found) >= due:
                    samples.append(self._sample(turn.arm, index, found))
                    found = []
            if found:
                at = len(samples)
                stops[at] = self._stop(turns[at], until[at], index, len(found))
        return samples

    def _sample(self, arm: str, index: int, messages: Sequence[Elapsed]) -> int:
        """The shortest message by the auditor's clock, of those during which the runner was not off its core.

        The kernel's account of the runner's processor time decides only that: in a virtual machine it was seen to go
        backwards by 50 us.
        """
        good = [min(LONGEST_NS, each.wall_ns) for each in self._undisturbed(messages) or messages]
        insort(self._seen.setdefault((arm, index), []), min(good))
        every = self._messages.setdefault((arm, index), [])
        for message_ns in good:
            insort(every, message_ns)
        if len(every) >= MANY_MESSAGES:
            self._middle[arm, index] = max(self._middle.get((arm, index), 0), every[len(every) // 2])
        return min(good)

    def _shown(self, turns: Sequence["Turn"], index: int) -> bool:
        return all(len(self._seen.get((turn.arm, index), ())) >= FEW_SAMPLES for turn in turns)

    def _stop(self, turn: "Turn", until: int, index: int, sent: int = 0) -> Stop:
        """What is left of a turn: up to the message that is copied, or all of it.

        What a message is about is read before where there is only one, of several the shortest counts, which is not
        the first; and after a copy, which has put other things into the caches. A short turn in which the runner was
        off its core during every message is made again.
        """
        due, freeze = self._pace.visit(index), sent < until
        count = (until if freeze else due) - sent
        again = not freeze and self.launcher.sandbox.box and self._pace.messages_ns[index] < LONG_NS
        draws = self._sets[index].draws(2 * count if again else count, self.rng)
        rest = (due == 1 or sent > 0, freeze, self._suspicious_ns(turn.arm, index), WAITED_NS if again else 0)
        return turn.process.runner.stop(turn.process.errands[index], draws, count, *rest)

    def _tour(self, turns: Sequence["Turn"], index: int, stops: Sequence[Stop]) -> list[Visit]:
        """Make the stops, up to the first that froze its runner."""
        visits = self.launcher.stopwatch.tour(stops)
        for turn, visit in zip(turns, visits, strict=False):
            with blaming(turn.arm):
                turn.process.runner.heard(turn.process.errands[index], visit)
        return visits

    def _suspicious_ns(self, arm: str, index: int) -> int:
        """Messages that take less are copied, however seldom they come: work may have been skipped."""
        seen = self._seen.get((arm, index), ())
        if arm == FLOOR or len(seen) < FEW_SAMPLES or self._copied_bytes >= MOST_COPIED_BYTES:
            return 0
        usual = seen[len(seen) // 4]
        if self._short.get((arm, index), 0) < SHORT_COPIES or self.rng.random() < SHORT_RATIO:
            messages = self._messages[arm, index]
            usual = max(usual, self._middle.get((arm, index), 0), messages[len(messages) // 2])
        return round(SUSPICIOUS_RATIO * usual)

    def _count_short(self, arm: str, index: int, visit: Visit, stop: Stop) -> bool:
        """Count the message that was just copied, if it was short; whether it is the last of the first few."""
        if visit.elapsed[-1].wall_ns >= stop.below_ns:
            return False
        self._short[arm, index] = self._short.get((arm, index), 0) + 1
        return self._short[arm, index] == SHORT_COPIES

    def _undisturbed(self, found: Sequence[Elapsed]) -> list[Elapsed]:
        unboxed = not self.launcher.sandbox.box
        return [each for each in found if unboxed or each.wall_ns - each.used_ns < WAITED_NS]

    def _copy(self, arm: str, runner: Runner, index: int) -> None:
        """Copy the calls of the message that a frozen runner has just answered: no runner can know which one that is.

        Only the candidate's are kept. The others are copied as often because it costs those who are some time.
        """
        drawn = self._sets[index]
        copies = [
            Copy(
                drawn.workload,
                {place.tensor.name: self.inputs.view(place).copy() for place in places.inputs},
                {place.tensor.name: runner.outputs.read(place) for place in places.outputs},
            )
            for places in drawn.layout.calls
        ]
        if arm == CANDIDATE:
            self.copies += copies
            self._copied_bytes += drawn.layout.size_bytes
        runner.thaw(settle=True)


@dataclass(frozen=True, slots=True)
class Turn:
    """One arm's turn in a block: its sample comes from one of its processes."""

    arm: str
    process: "Prepared"
    copied: bool = False
    """Whether a call of one of its messages is copied."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A loaded process, and an errand to it for every workload."""

    runner: Runner
    errands: Sequence[Errand]


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

    def visit(self, index: int) -> int:
        """The most messages in a row that make one sample of a workload: the longer, the fewer."""
        return max(1, min(MOST_MESSAGES, round(VISIT_NS / self.messages_ns[index])))


@dataclass(frozen=True, slots=True)
class GroupSamples:
    """One group's samples in nanoseconds: [blocks, workloads, samples] by arm, 0 for what is not taken."""

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
        rule=plan.rule,
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
        rule=first.rule,
    )


def drowned(blocks: Blocks) -> str | None:
    """Evidence when a median sample of an arm beside the candidate does not reach the floor: the floor was disturbed,
    as such an arm was sound before. What a candidate did in no time is for `physics.impossible` to judge."""
    for arm in blocks.arms:
        for name, latency_s in blocks.medians_s(arm).items() if arm != CANDIDATE else ():
            if latency_s <= 1e-9:
                return f"{arm} on {name} was not above an empty candidate's {int(np.median(blocks.floor_ns))} ns"
    return None
