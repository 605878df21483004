"""The fold: every event type has one, and a prefix folded first makes no difference."""

from collections.abc import Iterable

import pytest

from kernelbraid.events import decider, state
from kernelbraid.events.event import Event
from kernelbraid.events.registry import BY_NAME, EVENT_TYPES
from kernelbraid.events.state import State, evolve, fold
from kernelbraid.events.values import ROOT, StopReason
from tests.events.given import audited, given, opened, raised, recorded, search, told, tried, won


def subclasses(kind: type[Event]) -> Iterable[type[Event]]:
    for item in kind.__subclasses__():
        yield item
        yield from subclasses(item)


def test_every_event_type_is_folded_and_registered() -> None:
    assert set(state._FOLDS) == set(EVENT_TYPES) == set(BY_NAME.values())
    declared = {kind for kind in subclasses(Event) if kind.__module__.startswith("kernelbraid.")}
    assert declared == set(EVENT_TYPES)
    assert all(name == kind.__name__ for name, kind in BY_NAME.items())


def test_an_unregistered_event_is_no_silence() -> None:
    class Unknown(Event):
        pass

    with pytest.raises(KeyError):
        evolve(State(), recorded([Unknown()])[0])


def test_a_prefix_folded_first_makes_no_difference() -> None:
    log = search(parallel=2).and_then(tried(1), tried(2), won("i0001", "a0001", 1), audited("i0002", "a0002")).log
    whole = fold(log)
    for position in range(len(log) + 1):
        assert fold(log[position:], fold(log[:position])) == whole


def test_positions_and_the_last_fact_are_kept() -> None:
    story = search().decided(decider.note, "a word")
    assert (story.state.position, story.state.fact_position, story.state.campaign) == (4, 3, "c")


def test_ids_are_derived_from_counts() -> None:
    folded = search().and_then(tried(1)).state
    assert (folded.next_opportunity, folded.next_action, folded.next_implementation) == ("o0002", "a0002", "i0002")


def test_ancestors_are_nearest_first_and_each_once() -> None:
    story = search().and_then(tried(1), audited("i0001", "a0001"), tried(2, "i0001"), audited("i0002", "a0002"))
    assert list(story.state.ancestors("i0002")) == ["i0002", "i0001", ROOT]


def test_a_state_without_its_first_event_has_no_specification() -> None:
    with pytest.raises(ValueError, match="not been opened"):
        State().specified()


def test_a_promotion_tells_the_new_best_and_counts() -> None:
    folded = search().and_then(tried(1)).decided(decider.complete_audit, won("i0001", "a0001", 1)).state
    assert (folded.best, folded.best_objective_s, folded.speedup_ratio) == ("i0001", 0.0029, 1.03)
    assert (folded.audited_count, folded.verified_count, folded.failed_count, folded.promoted_count) == (2, 2, 0, 1)


def test_a_clock_that_steps_back_takes_nothing_back() -> None:
    story = search()
    assert story.and_then(told(raised("o0001"), "planner", -50)).state.spent.active_s == story.state.spent.active_s


def test_a_stop_is_final_in_the_state() -> None:
    folded = given(opened()).decided(decider.stop, StopReason.USER).state
    assert (folded.status, folded.stop_reason) == ("stopped", StopReason.USER)
