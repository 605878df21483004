"""One readable line for every event."""

from datetime import UTC, datetime

import pytest

from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.registry import BY_NAME
from kernelbraid.projections.projection import rebuild
from kernelbraid.projections.timeline import TIMELINE, duration, entry, entry_line, timeline
from tests.projections.factory import Story, golden_story


def one_of_each() -> dict[str, Recorded]:
    """A recorded event of every type."""
    log = [*golden_story().log, *Story().begin().fork("child").log]
    return {type(recorded.event).__name__: recorded for recorded in log}


@pytest.mark.parametrize("name", BY_NAME)
def test_every_event_type_has_a_line(name: str) -> None:
    item = entry(one_of_each()[name])

    assert item.event == name
    assert item.what
    assert "\n" not in item.what


def test_the_lines_of_a_search() -> None:
    lines = [entry(recorded).what for recorded in golden_story().log]

    assert lines[0] == "opened: attention on cpu, 2 workloads"
    assert lines[2] == "root qualified at 8 ms, beside fast-math, eight sums"
    assert "i0004 verified, promotable: 0.667 of i0001 (at most 0.668) (2.5 s)" in lines
    assert "i0004 promoted: 1.50x i0001 and 3.00x the root, 2.67 ms" in lines
    assert "a0004 tries o0004 merge i0002 + i0003 above i0001 (joint)" in lines
    assert "i0005 disagreement: row 17 differs (2.5 s)" in lines
    assert lines[-1] == "stopped (user): enough"


def test_a_line_has_position_time_and_actor_in_columns() -> None:
    assert entry_line(entry(golden_story().log[0])) == (
        "     1  2026-01-01 00:00:02  driver    opened: attention on cpu, 2 workloads"
    )


def test_a_note_of_several_lines_stays_on_one() -> None:
    story = Story().begin()
    note: Event = BY_NAME["NoteAdded"].model_validate({"text": "first\nsecond\tthird"})

    item = entry(Recorded("c", 9, datetime(2026, 1, 1, tzinfo=UTC), "user", 8, (0, 1), note))

    assert item.what == "note: first second third"
    assert story.log


def test_the_projection_keeps_the_latest_entries_in_order() -> None:
    log = golden_story().log

    assert timeline(rebuild(log, TIMELINE)[TIMELINE]) == tuple(map(entry, log))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(12.34, "12.3 s"), (0.0024, "2.4 ms"), (3.5e-5, "35 us"), (4e-8, "40 ns")]
)
def test_times_read_well(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
