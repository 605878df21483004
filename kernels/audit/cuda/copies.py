"""Timed calls that are kept on the device, inputs and outputs, and made again in a process that was never timed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from kernelbraid.kernels.audit.clock import Copy
from kernelbraid.kernels.audit.comparison import first_difference, inaccuracy
from kernelbraid.kernels.audit.cuda.memory import DeviceInputs, DeviceOutputs
from kernelbraid.kernels.audit.cuda.profile import Profile
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner
from kernelbraid.kernels.audit.cuda.samples import REFERENCES_TOGETHER, Sampler
from kernelbraid.kernels.audit.cuda.stash import Stash, read
from kernelbraid.kernels.audit.cuda.vault import Message
from kernelbraid.kernels.audit.failure import CandidateFailed
from kernelbraid.kernels.audit.layout import CallPlaces, Layout, Place, plan_layout
from kernelbraid.kernels.audit.outcome import Correctness
from kernelbraid.kernels.operators.cases import Call, Reference
from kernelbraid.kernels.operators.operator import Operator, Workload

COPIED_ONCE_BYTES = 160 << 20
"""Of larger calls one is copied, of others one from each half of a message."""
MOST_REFERENCE_ELEMENTS = 1 << 18
"""Timed calls with more elements are compared with untimed runs alone: float64 would take seconds."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """A call of a message that is about to be kept: what goes in, and then what comes out."""

    call: CallPlaces
    workload: Workload
    given: Stash
    left: Stash


@dataclass
class Copies:
    """One session's kept calls."""

    operator: Operator
    reference: Reference
    inputs: DeviceInputs
    outputs: DeviceOutputs
    profile: Profile
    rng: np.random.Generator
    kept: list[Copy] = field(default_factory=list)

    def begin(self, message: Message) -> list[Keeping]:
        """Room for some calls of a message that is laid out: the process cannot know which."""
        keeping = [self._keeping(message.workload, call) for call in self._picked(message.layout)]
        self.kept += [Copy(each.workload, each.given, each.left) for each in keeping]
        return keeping

    def take_inputs(self, keeping: Sequence[Keeping]) -> None:
        """As they are now, before the message is released."""
        for each in keeping:
            each.given.take(self.inputs.buffer)
        self.inputs.device.settle()

    def take_outputs(self, keeping: Sequence[Keeping]) -> None:
        """What the message left. Raises CandidateFailed when an input is another than it was."""
        for each in keeping:
            each.left.take(self.outputs.buffer)
            self._unchanged(each.given, each.call.inputs, each.workload)

    def verify(self, runner: DeviceRunner, most_references: int) -> int:
        """Make every one again, without a graph; compare some with float64 too, and of full-path calls drawn rows with
        float64 and with the decode path. Then all are given back and the process is stopped.

        Raises CandidateFailed when a timed call gave other bits than an untimed one, or was inaccurate.
        Returns how many there were.
        """
        references = ThreadPoolExecutor(REFERENCES_TOGETHER)
        sampler = Sampler(self.operator, self.reference, self.inputs, self.rng, references)
        try:
            with self.profile.phase("samples drawn"):
                drawn = [sampler.draw(copy) for copy in self.kept]
            for number, copy in enumerate(self.kept):
                with self.profile.phase("repeats of copies"):
                    self._repeat(runner, copy, number < most_references)
                with self.profile.phase("samples of copies"):
                    sampler.compare(runner, drawn[number])
            return len(self.kept)
        finally:
            references.shutdown(cancel_futures=True)
            self.release()
            runner.freeze()

    def release(self) -> None:
        """Give their memory back."""
        while self.kept:
            copy = self.kept.pop()
            for stash in (copy.inputs, copy.outputs):
                if isinstance(stash, Stash):
                    stash.release()

    def _keeping(self, workload: Workload, call: CallPlaces) -> Keeping:
        given, left = (Stash(self.inputs.device, places) for places in (call.inputs, call.outputs))
        return Keeping(call, workload, given, left)

    def _picked(self, layout: Layout) -> list[CallPlaces]:
        """A call from each half of a message, the later ones among them: state can only build up in one."""
        calls, middle = layout.calls, len(layout.calls) // 2
        size = sum(place.bytes for place in (*calls[0].inputs, *calls[0].outputs))
        once = middle == 0 or size > COPIED_ONCE_BYTES
        ranges = ((0, len(calls)),) if once else ((0, middle), (middle, len(calls)))
        return [calls[int(self.rng.integers(*ends))] for ends in ranges]

    def _unchanged(self, given: Stash, places: Sequence[Place], workload: Workload) -> None:
        if place := given.first_changed(self.inputs.buffer, places):
            found = read(self.inputs.device, self.inputs.buffer, place.offset, place)
            difference = first_difference(found, given[place.tensor.name])
            evidence = f"workload {workload.name}: its input {place.tensor.name} changed: {difference}"
            raise CandidateFailed(Correctness.INPUT_WRITTEN, evidence)

    def _repeat(self, runner: DeviceRunner, copy: Copy, with_reference: bool) -> None:
        entry, device = self.operator.entry(copy.workload.entry), self.inputs.device
        layout = plan_layout(0, [(entry, copy.workload.dims)])
        given, left = copy.inputs, copy.outputs
        assert isinstance(given, Stash), "copies of this session lie on the device"
        assert isinstance(left, Stash), "copies of this session lie on the device"
        runner.prepare(layout)
        given.give(self.inputs.buffer, layout.calls[0].inputs)
        runner.outputs.poison(layout)
        device.settle()
        runner.sweep()
        runner.release(layout, lambda: None)
        runner.freeze()
        self._unchanged(given, layout.calls[0].inputs, copy.workload)
        if place := left.first_changed(self.outputs.buffer, layout.calls[0].outputs):
            name = place.tensor.name
            difference = first_difference(left[name], read(device, self.outputs.buffer, place.offset, place))
            where = f"workload {copy.workload.name}, timed and untimed"
            raise CandidateFailed(Correctness.NONDETERMINISTIC, f"{where}: {name}: {difference}")
        runner.thaw()
        if with_reference and sum(place.bytes for place in layout.calls[0].inputs) <= 4 * MOST_REFERENCE_ELEMENTS:
            self._accurate(Call(entry, copy.workload.dims, dict(given)), copy)

    def _accurate(self, call: Call, copy: Copy) -> None:
        tolerance = self.operator.tolerances[call.entry.dtype]
        for name, exact in self.reference.reference(call.entry, call.dims, call.inputs).items():
            if problem := inaccuracy(copy.outputs[name], exact, tolerance):
                raise CandidateFailed(Correctness.INACCURATE, f"workload {copy.workload.name}: {name}: {problem}")
