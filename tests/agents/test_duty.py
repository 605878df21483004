"""Who is due at every point of one action's life, and when the campaign is to stop."""

from kernelbraid.agents import duty, planner
from kernelbraid.agents.duty import Duty
from kernelbraid.events import decider
from kernelbraid.events.event import Decision
from kernelbraid.events.store import Store
from kernelbraid.events.values import StopReason
from tests.agents.stage import Stage, mechanism


def due(stage: Stage, elapsed_s: float = 0.0) -> list[Duty]:
    """Everything that is due now, started work first."""
    state, desk = stage.state, stage.desk
    if duty.stop_reason(state, desk, elapsed_s) is not None:
        last = [Duty("driver")]
    else:
        last = [Duty("planner")] if planner.plan(state, desk, elapsed_s) else []
    return [*duty.started(state), *last]


def test_planner_editor_auditor_and_brancher_are_due_in_turn_and_the_driver_at_the_end(store: Store) -> None:
    stage = Stage(store, mechanism("lanes"))
    assert due(stage) == [Duty("planner")]
    stage.plan()
    assert due(stage) == [Duty("planner")]
    stage.plan()
    assert due(stage) == [Duty("editor", "a0001")]
    stage.edit("a0001")
    assert due(stage) == [Duty("auditor", "i0001")]
    stage.audit("i0001")
    assert due(stage) == [Duty("brancher", "i0001")]
    stage.judge("i0001")
    assert due(stage) == [Duty("driver")]
    assert duty.stop_reason(stage.state, stage.desk) is StopReason.OPPORTUNITIES_EXHAUSTED


def test_beside_an_open_action_the_planner_is_due_while_there_is_room(store: Store) -> None:
    stage = Stage(store, mechanism("lanes"), mechanism("tree"), parallel=2)
    stage.plan()
    stage.plan()
    assert due(stage) == [Duty("editor", "a0001"), Duty("planner")]
    stage.plan()
    assert due(stage) == [Duty("editor", "a0001"), Duty("editor", "a0002")]


def test_a_winner_over_a_superseded_best_is_due_to_be_timed_again_before_it_is_judged(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), mechanism("tree", 1.5), gains={"lanes": 2.0, "tree": 1.5}, parallel=2)
    for _ in range(3):
        stage.plan()
    stage.edit("a0001")
    stage.edit("a0002")
    late = stage.found("i0002")
    stage.audit("i0001")
    stage.record("i0002", late)
    assert due(stage) == [Duty("auditor", "i0002"), Duty("brancher", "i0001")]


def test_nobody_is_due_while_the_campaign_is_paused_but_running_audits_finish(store: Store) -> None:
    stage = Stage(store, mechanism("lanes"))
    stage.plan()
    stage.plan()
    stage.edit("a0001")
    stage.commit(lambda state: Decision("user", state.fact_position, decider.pause(state, "lunch")))
    assert due(stage) == [Duty("auditor", "i0001")]
    stage.audit("i0001")
    assert due(stage) == []


def test_the_wall_clock_makes_the_driver_due(store: Store) -> None:
    stage = Stage(store, mechanism("lanes"), wall_s=60.0)
    assert due(stage, elapsed_s=1.0) == [Duty("planner")]
    assert due(stage, elapsed_s=61.0) == [Duty("driver")]
    assert duty.stop_reason(stage.state, stage.desk, 61.0) is StopReason.BUDGET
