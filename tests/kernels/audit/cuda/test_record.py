"""What a session remembers beside its samples: a child's own clock is advice, and advice that cannot be is evidence."""

import pytest

from kernelbraid.kernels.audit.cuda import record
from kernelbraid.kernels.audit.cuda.record import Record
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT

FLOOR_NS = 250_000.0


@pytest.fixture(autouse=True)
def _margins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a device, whatever other tests set for a busy machine."""
    monkeypatch.setattr(record, "DISPUTED_NS", 200_000)
    monkeypatch.setattr(record, "BUSY_NS", 100_000)


@pytest.mark.parametrize(
    ("wall_us", "own_us", "disputed"),
    [
        (2000, 1750, False),  # what is left when the floor is taken off
        (2000, 1990, False),  # launches that pass while kernels run
        (2000, 2400, True),  # it answered before its kernels had ended
        (2000, 0, True),  # a clock that shows nothing
        (2000, 500, True),
        (330, 60, False),  # short messages drown in the floor
    ],
)
def test_own_clock_must_lie_between_what_is_above_the_floor_and_the_whole(
    wall_us: int, own_us: int, disputed: bool
) -> None:
    pairs = [(wall_us * 1000, own_us * 1000)] * 5
    assert (Record(advisory_ns={(CANDIDATE, 0): pairs}).disputed(CANDIDATE, FLOOR_NS) is not None) is disputed


def test_what_a_sound_arm_shows_too_is_the_machines_fault() -> None:
    # given messages of which another process took the device in the middle
    sound, held_up = [(2_000_000, 1_800_000)] * 5, [(4_400_000, 830_000)] * 5
    both = Record(advisory_ns={(CANDIDATE, 0): held_up, (INCUMBENT, 0): held_up})
    # then
    assert "incumbent, workload 0" in str(both.disturbed(FLOOR_NS))
    assert Record(advisory_ns={(CANDIDATE, 0): held_up, (INCUMBENT, 0): sound}).disturbed(FLOOR_NS) is None
    # and a few messages tell nothing
    assert Record(advisory_ns={(INCUMBENT, 0): held_up[:3]}).disturbed(FLOOR_NS) is None


@pytest.mark.parametrize(("after_own_us", "busy"), [(400, False), (450, False), (900, True)])
def test_device_must_be_idle_after_a_candidate(after_own_us: int, busy: bool) -> None:
    seen = Record(sweeps_ns={CANDIDATE: [after_own_us * 1000] * 9, INCUMBENT: [400_000] * 9})
    assert (seen.kept_busy() is not None) is busy


def test_few_messages_say_nothing_of_idleness() -> None:
    assert Record(sweeps_ns={CANDIDATE: [10**9] * 3, INCUMBENT: [400_000] * 9}).kept_busy() is None
