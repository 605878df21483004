"""What a timed candidate must not be able to foresee: which message is copied, and anything of its next inputs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.clock import Session
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.memory import Inputs
from kernelbraid.kernels.audit.native import Swapped
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, Candidate
from kernelbraid.kernels.audit.plan import Plan
from kernelbraid.kernels.audit.timed_inputs import TimedInputs
from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import Operator, load_operator

PLAN = Plan(groups=1, blocks=2, paired=(INCUMBENT, CANDIDATE))


def session(operator: Operator, harness: Harness, inputs: Inputs) -> Session:
    """A session that starts no process."""
    nothing = Artifact(b"", "", {}, b"", 0.0)
    launcher = harness._launcher(harness._sandbox)
    timed = TimedInputs(operator, load_reference(operator), inputs)
    return Session(operator, timed.reference, launcher, {CANDIDATE: nothing}, nothing, 0, timed)


@pytest.fixture
def timed(lock_path: Path) -> Session:
    """A session of rms_norm with the inputs of two calls a message."""
    operator, inputs = load_operator("rms_norm"), Inputs(64 << 20)
    with Harness(operator, timing_lock=lock_path) as harness:
        made = session(operator, harness, inputs)
    made._sets = made.timed.laid_out([2] * len(operator.workloads))
    return made


def test_no_row_of_an_input_is_again_what_it_was(timed: Session) -> None:
    """Else a candidate could keep a row's answer and compare, which costs less than the work."""
    for drawn in timed._sets:
        places = [place for call in drawn.layout.calls for place in call.inputs]
        before = [timed.inputs.view(place).copy() for place in places]
        drawn.splice(timed.launcher.stopwatch, timed.rng)
        for place, old in zip(places, before, strict=True):
            rows = (timed.inputs.view(place) != old).reshape(-1, place.shape[-1])
            # A bfloat16 of the donor now and then is the row's own.
            assert rows.any(axis=-1).mean() > (0.999 if place.tensor.dtype == "float32" else 0.9)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_what_no_kernel_may_read_stays_as_it_is(timed: Session, dtype: str) -> None:
    """Places that depend on an integer input hold NaN in one of the two sets; everything else is exchanged."""
    # given: two inputs, and where both of them are finite
    here, there = (np.arange(start, start + 4096).astype(dtype) for start in (0, 5000))
    finite = np.arange(4096) % 3 != 0
    before = here.copy(), there.copy()
    places = (here.ctypes.data, there.ctypes.data, finite.ctypes.data)
    swapped = (Swapped * 1)(Swapped(*places, here.size, 64, here.itemsize))
    # when: a stretch from a third on, a sixteenth of the whole, and column 5 of each row
    timed.launcher.stopwatch.splice(swapped, np.array([[1 / 3, 0.5, 5.5 / 64]]))
    # then
    place = np.arange(4096)
    start = int((4096 - 256) / 3)
    changed = finite & (((place >= start) & (place < start + 257)) ^ (place % 64 == 5))
    assert np.array_equal(here, np.where(changed, before[1], before[0]))
    assert np.array_equal(there, np.where(changed, before[0], before[1]))


def test_any_timed_message_may_be_the_one_that_is_copied(timed: Session) -> None:
    places = np.zeros((PLAN.blocks, len(timed._sets), PLAN.samples_of(CANDIDATE)), bool)
    for _ in range(400):
        drawn = timed._watched(PLAN)
        assert len(drawn) == 4
        for place in drawn:
            places[place] = True
    assert places.all()


def test_every_message_of_a_visit_has_other_inputs(harness: Harness, root: Candidate) -> None:
    """In C, where a function of that name in another library would once have been called instead of ours."""
    artifact = harness._artifact(root)
    with harness._session({INCUMBENT: artifact, CANDIDATE: artifact}) as timed:
        timed.run(replace(PLAN, copies=0))
        places = [place for drawn in timed._sets for place in drawn.layout.calls[0].inputs]
        before = [timed.inputs.view(place).copy() for place in places]
        timed.run(replace(PLAN, copies=0))
        assert all((timed.inputs.view(place) != old).any() for place, old in zip(places, before, strict=True))
