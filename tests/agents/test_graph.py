"""A round run again appends nothing: every node looks at the log before it works."""

from collections.abc import Callable
from typing import Any

import pytest

from kernelbraid.agents import graph
from kernelbraid.agents.catalogue.planner import CataloguePlanner
from kernelbraid.agents.driver import NoProgress, drive
from kernelbraid.agents.graph import build_round
from kernelbraid.agents.planner import LONGEST_PLAN, PlanWithoutEnd
from kernelbraid.agents.strategy import Desk, Events
from kernelbraid.events import decider
from kernelbraid.events.search import ActionProposed
from kernelbraid.events.state import Implementation, State
from kernelbraid.events.store import Store
from tests.agents.stage import Stage, mechanism
from tests.campaign.toy import events_of, run_toy


def test_every_node_run_twice_appends_once_and_audits_once(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0})
    nodes: list[Callable[[], None]] = [
        lambda: graph._qualify(stage.crew),
        lambda: graph._plan(stage.crew),
        lambda: graph._edit(stage.crew, "a0001"),
        lambda: graph._audit(stage.crew, "a0001"),
        lambda: graph._decide(stage.crew, "a0001"),
    ]
    for node in nodes:
        node()
        position, audits = store.position("toy"), stage.audits
        node()
        assert (store.position("toy"), stage.audits) == (position, audits)
    assert stage.state.best == "i0001"


def test_nodes_of_a_finished_action_find_nothing_to_do(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), mechanism("tree", 1.5), gains={"lanes": 2.0})
    stage.steps(2)
    position, audits = store.position("toy"), stage.audits
    for subject in ("a0001", "a0002", "i0001", "i0002"):
        graph._edit(stage.crew, subject)
        graph._audit(stage.crew, subject)
        graph._decide(stage.crew, subject)
    assert (store.position("toy"), stage.audits) == (position, audits)


@pytest.mark.parametrize("left_at", ["planned", "submitted", "audited"])
def test_a_round_finishes_what_an_earlier_one_left(store: Store, left_at: str) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0})
    stage.plan()
    stage.plan()
    if left_at != "planned":
        stage.edit("a0001")
    if left_at == "audited":
        stage.audit("i0001")
    build_round(stage.crew, 1)()
    assert stage.state.best == "i0001"
    assert not stage.state.undecided_branches
    assert len(events_of(store, "toy", ActionProposed)) == 1


def test_a_round_begins_as_many_actions_as_may_run_at_a_time(store: Store) -> None:
    stage = Stage(store, *(mechanism(f"m{number}") for number in range(5)), parallel=3)
    build_round(stage.crew, 3)()
    assert len(events_of(store, "toy", ActionProposed)) == 3


def test_a_strategy_that_decides_nothing_where_it_is_due_is_named_not_looped_on(store: Store) -> None:
    class Silent:
        name = "silent"

        def judge(self, state: State, implementation: Implementation, desk: Desk) -> Events:
            return ()

    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0})
    object.__setattr__(stage.desk, "brancher", Silent())
    with pytest.raises(NoProgress, match="toy stands still at position"):
        drive(stage.crew)


def test_a_planner_that_raises_and_withdraws_for_ever_is_named_not_looped_on(store: Store) -> None:
    class Fickle(CataloguePlanner):
        name = "fickle"

        def survey(self, state: State, desk: Desk) -> Events:
            if state.pending:
                return decider.withdraw_opportunity(state, next(iter(state.pending)), "on second thoughts")
            return super().survey(state, desk)

    stage = Stage(store, mechanism("lanes", 2.0))
    object.__setattr__(stage.desk, "planner", Fickle())
    before = stage.state.position

    with pytest.raises(PlanWithoutEnd, match=r"toy decided 100 times up to .*: check its strategy fickle"):
        drive(stage.crew)

    assert store.position("toy") == before + LONGEST_PLAN
    assert store.verify("toy").problems == ()


def test_what_fails_in_a_branch_reaches_the_caller_and_leaves_a_log_to_go_on_from(store: Store) -> None:
    def fail(*_: Any) -> float:
        raise OSError("the machine is gone")

    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0})
    stage.harness._delay_s = fail
    with pytest.raises(OSError, match="gone"):
        drive(stage.crew)
    stage.harness._delay_s = None
    drive(stage.crew)
    assert stage.state.best == "i0001"
    assert stage.state.status == "stopped"
    assert store.verify("toy").problems == ()


def test_a_watch_is_told_of_every_event_once_and_in_order(store: Store) -> None:
    seen: list[int] = []
    run_toy(store, watch=lambda recorded, state: seen.append(recorded.position), parallel=4)
    assert seen == list(range(2, store.position("toy") + 1))
