"""Folding: one pass, caught up at any point, the same whatever the pieces."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbraid.events.registry import EVENT_TYPES
from kernelbraid.events.state import State, evolve, fold
from kernelbraid.projections.digest import state_digest
from kernelbraid.projections.ledger import LEDGER
from kernelbraid.projections.lineage import LINEAGE
from kernelbraid.projections.metrics import METRICS
from kernelbraid.projections.performance import PERFORMANCE
from kernelbraid.projections.projection import STATE, Fold, Projection, rebuild
from kernelbraid.projections.timeline import TIMELINE
from tests.projections.factory import Story, golden_story, stories

ALL: tuple[Projection[Any], ...] = (STATE, LINEAGE, LEDGER, PERFORMANCE, TIMELINE, METRICS)


def test_random_stories_tell_of_every_event_type_but_those_the_golden_one_adds() -> None:
    told = {type(recorded.event) for recorded in golden_story().log}
    fork = Story().begin().fork("child")

    assert told | {type(recorded.event) for recorded in fork.log} == set(EVENT_TYPES)


@settings(max_examples=25, deadline=None)
@given(stories, st.data())
def test_the_state_at_any_position_is_the_fold_of_the_prefix(story: Story, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(story.log)))
    state = State()
    for recorded in story.log[:at]:
        evolve(state, recorded)

    folded = rebuild(story.log[:at], *ALL)

    assert folded.position == at
    assert folded[STATE] == state
    assert state_digest(folded[STATE]) == state_digest(fold(story.log[:at]))


@settings(max_examples=25, deadline=None)
@given(stories, st.data())
def test_catching_up_gives_what_one_pass_gives(story: Story, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(story.log)))
    pieces = Fold(*ALL).extend(story.log[:at])
    for recorded in story.log[at:]:
        pieces.apply(recorded)

    whole = rebuild(story.log, *ALL)

    assert pieces.position == whole.position == len(story.log)
    for projection in ALL:
        assert pieces[projection] == whole[projection]


def test_a_single_projection_may_be_fed_by_hand() -> None:
    log = golden_story().log
    accumulator = LEDGER.start()
    for recorded in log:
        LEDGER.apply(accumulator, recorded)

    assert accumulator == rebuild(log, LEDGER)[LEDGER]


def test_two_folds_share_nothing() -> None:
    log = golden_story().log
    one, other = Fold(*ALL), rebuild(log, *ALL)

    assert one[STATE] == State()
    assert other[STATE] != State()
