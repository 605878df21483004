"""Timing on a device by the auditor's clock: palindromes of arms, fresh processes in every group, cold caches.

A message is one replay of a graph of several calls on inputs of their own. Its clock stops only once the auditor,
which owns the memory, has read slices of the outputs back after DONE: a candidate that answers before its kernel is
done shows poison there. Host code of the arms that are not being timed is stopped.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.clock import FLOOR, Copy, GroupSamples, Pace, blaming, collect, joined
from kernelbraid.kernels.audit.cores import on_cores
from kernelbraid.kernels.audit.cuda.copies import Copies
from kernelbraid.kernels.audit.cuda.cores import pin
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs, DeviceOutputs
from kernelbraid.kernels.audit.cuda.profile import Profile
from kernelbraid.kernels.audit.cuda.record import Record
from kernelbraid.kernels.audit.cuda.runner import Answered, DeviceRunner
from kernelbraid.kernels.audit.cuda.spares import Spares
from kernelbraid.kernels.audit.cuda.vault import Message, Vault
from kernelbraid.kernels.audit.failure import CandidateFailed, InfrastructureFailed
from kernelbraid.kernels.audit.layout import Place
from kernelbraid.kernels.audit.outcome import (
    CANDIDATE,
    INCUMBENT,
    LONGEST_NS,
    ROOT,
    Blocks,
    Correctness,
    Infrastructure,
)
from kernelbraid.kernels.audit.plan import Plan
from kernelbraid.kernels.operators.cases import Reference
from kernelbraid.kernels.operators.operator import Operator

MESSAGE_NS = 2_000_000
"""A message is filled with calls up to about this time on the device: its own cost of some 200 us varies by ten, on a
busier host by fifty, which of half the time left a gain of 1.6 times undecided after 24 groups."""
FLOORS_PER_GROUP = 4
GROUPS_PER_START = 8
"""Groups that one set of processes times; a start costs as much as several of them."""
CONFIRMING_SETS = 2
"""Sets of fresh processes that take turns in a confirmation."""
SCREEN = Plan(groups=3, blocks=1, palindromes=1)
CONFIRMATION = Plan(groups=4, blocks=1, palindromes=2, most_groups=24)
"""Two palindromes, of which the better half of the samples counts: the first messages of a block are slower."""
BESIDE_ROOT = replace(CONFIRMATION, paired=(INCUMBENT, CANDIDATE, ROOT))
"""The root in the pair's own palindromes: with one sample a group beside them, a candidate that was the root missed
limits of 10 %."""
COPIED_WORKLOADS = 3
"""Drawn for a screening beside a full-path one, and for a confirmation beside all full-path ones."""
SLICE_BYTES = 4096
LOOK_AGAIN = 8
"""One message in so many is read once more, later."""
PAUSE_S = 0.02
WAKE_S, WAKE_STEP_S, MOST_WAKE_S = 0.08, 0.02, 0.5
"""For so long at least, by so long steps, and at most."""
AWAKE_RATIO, AWAKE_NS = 1.3, 500_000
"""A message of an awake device may take so much longer than its calls do, and its own cost."""
THROTTLED_TRIES = 3
_LEAST_CALL_NS = 1_000


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the outputs, as it was when the clock stopped."""

    place: Place
    offset: int
    found: NDArray[np.uint8]


@dataclass
class ProcessSet:
    """One process for every arm, and how many groups they may still time."""

    stack: ExitStack
    runners: Mapping[str, DeviceRunner]
    groups_left: int


@dataclass
class DeviceSession:
    """One timing session of several artifacts."""

    operator: Operator
    reference: Reference
    spares: Spares
    artifacts: Mapping[str, Artifact]
    floor: Artifact
    vault: Vault
    inputs: DeviceInputs
    outputs: DeviceOutputs
    profile: Profile
    cores: tuple[set[int], set[int]]
    """The auditor's and the arms'."""
    pace: Pace | None = None
    repeating: DeviceRunner | None = None
    """A process of the candidate that is not timed and uses no graphs, where there is one already."""
    copies: list[Copy] = field(default_factory=list)
    record: Record = field(default_factory=Record)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(128)))
    _messages: list[Message] = field(default_factory=list)
    _last_arm: str = FLOOR
    _first: int = 0
    _answered_s: float = 0.0
    _stack: ExitStack = field(default_factory=ExitStack)
    _empty: DeviceRunner | None = None
    _sets: list["ProcessSet"] = field(default_factory=list)
    _runs: int = 0

    @cached_property
    def _copies(self) -> Copies:
        return Copies(
            self.operator, self.reference, self.inputs, self.outputs, self.profile, self.rng, kept=self.copies
        )

    def run(self, plan: Plan) -> Blocks:
        """Time a plan's groups, at the pace that the session's first one sets.

        Raises CandidateFailed when any arm fails.
        """
        self._runs += 1
        groups = self._groups(plan, plan.groups)
        self._copy_some(plan, self._drawn(COPIED_WORKLOADS, every_full=self._runs > 1))
        return self._collected(plan, groups)

    def more(self, plan: Plan, blocks: Blocks, groups: int) -> Blocks:
        """The blocks with further groups of the same plan."""
        found = self._groups(plan, groups)
        self._copy_some(plan, [int(self.rng.integers(len(self._messages)))] if groups else [])
        return joined(blocks, self._collected(plan, found))

    def verify_copies(self, most_references: int) -> int:
        """Repeat every copied call in a process that was never timed: how many there were. Raises CandidateFailed."""
        return self._copies.verify(self._untimed(), most_references) if self.copies else 0

    def _untimed(self) -> DeviceRunner:
        """The process that repeats timed calls: one that checked the candidate, or one of this session's own."""
        if self.repeating is None:
            self.repeating = self._stack.enter_context(self.spares.take(graphs=False))
            self.repeating.load(self.artifacts[CANDIDATE], self._symbols)
        self.repeating.thaw()
        return self.repeating

    def _collected(self, plan: Plan, groups: Sequence[GroupSamples]) -> Blocks:
        assert self.pace is not None, "the first group sets the pace"
        return collect(plan, self.operator, groups, self.pace.calls)

    @property
    def _symbols(self) -> list[str]:
        return [entry.symbol for entry in self.operator.entries]

    def close(self) -> None:
        """End the processes."""
        self._copies.release()
        self._end_sets()
        self._stack.close()

    def _end_sets(self) -> None:
        for each in self._sets:
            each.stack.close()
        self._sets = []

    @contextmanager
    def starting(self, plan: Plan, sets: int = 1) -> Iterator[None]:
        """Make fresh processes for a plan ready beside what happens inside; a failure in there comes first.

        Several sets of them take turns, group by group, so that what sets a process apart shows as scatter.
        """
        with ThreadPoolExecutor(1) as aside:
            ready = aside.submit(self._begin, plan.arms, sets)
            yield
            ready.result()

    def _groups(self, plan: Plan, count: int) -> list[GroupSamples]:
        """So many groups, by the sets of processes in turn."""
        found = []
        paused = time.monotonic() - self._answered_s > PAUSE_S
        for _ in range(count):
            runners = self._runners(plan.arms)
            if paused:
                self._wake(plan.paired[0], runners[plan.paired[0]])
                paused = False
            with self.profile.phase("groups"), on_cores(self.cores[0]):
                found.append(self._time_group(plan, runners))
        return found

    def _wake(self, arm: str, runner: DeviceRunner) -> None:
        """Keep a device that had a pause busy until its clock rises no more, then send messages that do not count until
        one takes about what it should: for a tenth of a second they took up to eight times as long."""
        assert self.pace is not None, "processes have been started"
        started = time.monotonic()
        with self.profile.phase("wake"), on_cores(self.cores[0]):
            self._raise_clocks(started)
            self._first = self._messages[0].lay_out(self.inputs.device, self.inputs.buffer, self.rng)
            due_ns = AWAKE_RATIO * self.pace.messages_ns[0] + AWAKE_NS
            while self._message(arm, runner, 0).wall_ns > due_ns and time.monotonic() - started < MOST_WAKE_S:
                pass

    def _raise_clocks(self, started: float) -> None:
        device, before = self.inputs.device, None
        now = device.conditions()
        while now is not None and time.monotonic() - started < MOST_WAKE_S:
            if before is not None and now.sm_mhz <= before.sm_mhz and time.monotonic() - started > WAKE_S:
                return
            step = time.monotonic()
            while time.monotonic() - step < WAKE_STEP_S:
                device.flush()
                device.settle()
            before, now = now, device.conditions()

    def _runners(self, arms: Sequence[str]) -> Mapping[str, DeviceRunner]:
        """The processes of these arms whose turn it is, and nothing else left running."""
        if not self._sets or self._sets[0].groups_left == 0 or not set(arms) <= set(self._sets[0].runners):
            self._begin(arms, max(1, len(self._sets)))
        turn = self._sets.pop(0)
        turn.groups_left -= 1
        self._sets.append(turn)
        with self.profile.phase("quiet"):
            self.spares.quiet()
        return turn.runners

    def _begin(self, arms: Sequence[str], sets: int) -> None:
        """So many sets of fresh processes, captured and stopped; with the first of all the empty candidate's."""
        self._end_sets()
        with self.profile.phase("take processes"):
            self._sets = [self._taken(arms) for _ in range(sets)]
        if self.pace is None:
            self.pace = self._first_pace(self._sets[0].runners)
        with self.profile.phase("messages"):
            self._messages = self.vault.messages(self.pace.calls)
            for message in self._messages:
                message.lay_out(self.inputs.device, self.inputs.buffer, self.rng)
            self.inputs.device.settle()
        new = [pair for each in self._sets for pair in each.runners.items()]
        if self._empty is None:
            new.append((FLOOR, self._start_empty()))
        with self.profile.phase("load and capture"), ThreadPoolExecutor(len(new)) as pool:
            # Side by side: it is their host code that takes the time.
            list(pool.map(lambda pair: self._make_ready(*pair), new))

    def _taken(self, arms: Sequence[str]) -> ProcessSet:
        stack = ExitStack()
        return ProcessSet(
            stack, {arm: stack.enter_context(self.spares.take(graphs=True)) for arm in arms}, GROUPS_PER_START
        )

    def _start_empty(self) -> DeviceRunner:
        """The empty candidate's process, which serves all sets of the session."""
        self._empty = self._stack.enter_context(self.spares.take(graphs=True))
        return self._empty

    def _make_ready(self, arm: str, runner: DeviceRunner) -> None:
        """Load it, capture every message on the inputs that are laid out, and stop it."""
        with blaming(arm):
            runner.load(self.floor if arm == FLOOR else self.artifacts[arm], self._symbols)
            for message in self._messages:
                runner.prepare(message.layout, message.packed)
                runner.capture(message.layout)
            runner.freeze()
            pin(runner.pid, self.cores[1])

    def _first_pace(self, runners: Mapping[str, DeviceRunner]) -> Pace:
        pacer = INCUMBENT if INCUMBENT in runners else next(iter(runners))
        with self.profile.phase("pace"), blaming(pacer):
            runners[pacer].load(self.artifacts[pacer], self._symbols)
            return self._measure_pace(pacer, runners[pacer])

    def _measure_pace(self, arm: str, runner: DeviceRunner) -> Pace:
        """How many calls of every workload fill a message, by the first arm's own time.

        The auditor's time holds a floor many times as long as a fast call, and a lone call's own holds its graph's
        launch, several times as long too: lone calls tell roughly how many to send, that many at once tell it well.
        """
        calls = [1] * len(self.operator.workloads)
        for _ in range(2):
            times_ns = self._call_times_ns(arm, runner, calls)
            pairs = list(zip(self.vault.most_calls, times_ns, strict=True))
            calls = [_round_number(min(most, MESSAGE_NS / taken)) for most, taken in pairs]
        return Pace(tuple(calls), tuple(round(count * taken) for count, taken in zip(calls, times_ns, strict=True)))

    def _call_times_ns(self, arm: str, runner: DeviceRunner, calls: Sequence[int]) -> list[float]:
        """About what a call of each workload takes where so many are in a message."""
        times_ns = []
        for message, count in zip(self.vault.messages(calls), calls, strict=True):
            message.lay_out(self.inputs.device, self.inputs.buffer, self.rng)
            self.inputs.device.settle()
            with blaming(arm):
                runner.prepare(message.layout, message.packed)
                runner.capture(message.layout)
                found = [runner.release(message.layout, _nothing) for _ in range(4)]
            wall_ns, own_ns = (min(answered[side] for answered in found) for side in (0, 1))
            times_ns.append(min(wall_ns, max(own_ns, count * _LEAST_CALL_NS)) / count)
        return times_ns

    def _time_group(self, plan: Plan, runners: Mapping[str, DeviceRunner]) -> GroupSamples:
        assert self._empty is not None, "it was started with the first set"
        samples = GroupSamples.empty(plan, len(self._messages))
        few = min(FLOORS_PER_GROUP, len(self._messages))
        floors = self.rng.choice(len(self._messages), few, replace=False).tolist()
        for block in range(plan.blocks):
            for index, message in enumerate(self._messages):
                with self.profile.phase("lay out"):
                    self._first = message.lay_out(self.inputs.device, self.inputs.buffer, self.rng)
                self._time_unthrottled(plan, runners, samples, block, index)
                if block == 0 and index in floors:
                    samples.floors_ns.append(min(self._sample(FLOOR, self._empty, index) for _ in range(2)))
        return samples

    def _drawn(self, count: int, every_full: bool) -> list[int]:
        """The workloads of which calls are copied: some, and one or every full-path one."""
        order = self.rng.permutation(len(self._messages)).tolist()
        full = [i for i in order if self.operator.entry(self._messages[i].workload.entry).path == "full"]
        return list(dict.fromkeys([*(full if every_full else full[:1]), *order[:count]]))

    def _copy_some(self, plan: Plan, indices: Sequence[int]) -> None:
        """Calls of these workloads by the processes at hand."""
        if CANDIDATE not in plan.arms:
            return
        for index in indices:
            with self.profile.phase("copies"):
                drawn = self._sets[int(self.rng.integers(len(self._sets)))]
                self._copy(drawn.runners[CANDIDATE], index)

    def _copy(self, runner: DeviceRunner, index: int) -> None:
        """One more message of the same kind, of which calls are kept."""
        message = self._messages[index]
        self._first = message.lay_out(self.inputs.device, self.inputs.buffer, self.rng)
        keeping = self._copies.begin(message)
        with blaming(CANDIDATE):
            self._set_out(CANDIDATE, runner, message)
            self._copies.take_inputs(keeping)
            runner.release(message.layout, _nothing)
            runner.freeze()
        self._copies.take_outputs(keeping)

    def _time_unthrottled(
        self, plan: Plan, runners: Mapping[str, DeviceRunner], samples: GroupSamples, block: int, index: int
    ) -> None:
        """Time a block again when the hardware held its clocks back meanwhile, in all arms alike."""
        for _ in range(THROTTLED_TRIES):
            self._time_block(plan, runners, samples, block, index)
            if not (held_back := self._look_at_clocks()):
                return
            self.record.dropped_blocks += 1
        raise InfrastructureFailed(Infrastructure.DEVICE_FAULT, f"the device holds its clocks back: {held_back}")

    def _look_at_clocks(self) -> str:
        """Why the hardware holds its clocks back; empty when it does not or cannot tell."""
        now = self.inputs.device.conditions()
        if now is None:
            return ""
        self.record.conditions.append(now)
        return ", ".join(now.throttled)

    def _time_block(
        self, plan: Plan, runners: Mapping[str, DeviceRunner], samples: GroupSamples, block: int, index: int
    ) -> None:
        orders = list(permutations(plan.paired))
        order = int(self.rng.integers(len(orders)))
        samples.orders[block, index] = order
        for arm in plan.beside if block < plan.beside_blocks else ():
            samples.by_arm[arm][block, index, 0] = self._sample(arm, runners[arm], index)
        halves = (orders[order], orders[order][::-1]) * plan.palindromes
        for half, arms in enumerate(halves):
            for arm in arms:
                samples.by_arm[arm][block, index, half] = self._sample(arm, runners[arm], index)

    def _sample(self, arm: str, runner: DeviceRunner, index: int) -> int:
        """One sample in nanoseconds."""
        answered = self._message(arm, runner, index)
        self.record.advisory_ns.setdefault((arm, index), []).append(answered)
        return min(LONGEST_NS, answered.wall_ns)

    def _message(self, arm: str, runner: DeviceRunner, index: int) -> Answered:
        """Fresh inputs, poison, cold caches; then the clock; then a look at what was read back."""
        message = self._messages[index]
        with blaming(arm):
            with self.profile.phase("set out"):
                self._set_out(arm, runner, message)
            slices = self._slices(message)
            read: list[Slice] = []
            answered = runner.release(message.layout, lambda: read.extend(map(self._read, slices)))
            runner.freeze()
            self._answered_s = time.monotonic()
            if arm != FLOOR:
                self._judge(read, index)
        return answered

    def _set_out(self, arm: str, runner: DeviceRunner, message: Message) -> None:
        device = self.inputs.device
        runner.thaw()
        runner.begin_sweep()
        started_ns = time.monotonic_ns()
        message.splice(device, self.inputs.buffer, self.rng, self._first)
        self.outputs.poison(message.layout)
        device.flush()
        device.settle()
        self.record.sweeps_ns.setdefault(self._last_arm, []).append(time.monotonic_ns() - started_ns)
        runner.end_sweep()
        self._last_arm = arm

    def _slices(self, message: Message) -> list[tuple[Place, int, int]]:
        """Place, offset and bytes: a stretch of a random output, and the end of the last one."""
        calls = message.layout.calls
        places = calls[int(self.rng.integers(len(calls)))].outputs
        chosen, last = places[int(self.rng.integers(len(places)))], calls[-1].outputs[-1]
        size = min(SLICE_BYTES, chosen.bytes)
        start = chosen.offset + int(self.rng.integers(chosen.bytes - size + 1)) // 4 * 4
        tail = min(SLICE_BYTES, last.bytes)
        return [(chosen, start, size), (last, last.offset + last.bytes - tail, tail)]

    def _read(self, wanted: tuple[Place, int, int]) -> Slice:
        place, offset, size = wanted
        return Slice(place, offset, self.inputs.device.download(self.outputs.buffer, offset, size))

    def _judge(self, read: Sequence[Slice], index: int) -> None:
        """Raises CandidateFailed when the outputs were not there as the clock stopped, or changed after."""
        again = int(self.rng.integers(LOOK_AGAIN)) == 0
        for part in read:
            untouched = np.array_equal(part.found, self.outputs.poison_bytes(part.offset, len(part.found)))
            if not untouched and not again:
                continue
            self.inputs.device.settle()
            later = self.inputs.device.download(self.outputs.buffer, part.offset, len(part.found))
            changed = int(np.count_nonzero(later != part.found))
            where = f"workload {self._messages[index].workload.name}: {part.place.tensor.name}"
            if changed:
                evidence = f"{where}: {changed} of {len(later)} bytes were written after it had answered"
                raise CandidateFailed(Correctness.LATE_WRITE, evidence)
            if untouched:
                evidence = f"{where}: {len(later)} bytes of a timed call were never written"
                raise CandidateFailed(Correctness.OUTPUT_NOT_WRITTEN, evidence)


def _round_number(most: float) -> int:
    """The largest power of two, or one and a half times such, that is no larger, and at least 1.

    Counts that seldom change with the incumbent: the inputs behind a message are made anew for another one.
    """
    whole = max(1, int(most))
    power = 1 << (whole.bit_length() - 1)
    return power * 3 // 2 if power * 3 // 2 <= whole else power


def _nothing() -> None:
    """Read nothing back."""
