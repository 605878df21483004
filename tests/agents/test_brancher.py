"""Every lineage decision, reached by a real search with latencies made for the purpose."""

import re
from dataclasses import replace

import pytest

from kernelbraid.events import decider
from kernelbraid.events.event import Decision, Event
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.search import ActionProposed, OpportunityRaised
from kernelbraid.events.state import Implementation, State, fold
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT
from tests.agents.stage import Stage, mechanism
from tests.campaign.toy import events_of, run_toy


def test_the_toy_s_own_search_reaches_every_decision(store: Store) -> None:
    run_toy(store)
    for kind in (BranchContinued, BranchDeferred, BranchArchived, BranchAbandoned):
        assert events_of(store, "toy", kind), kind.__name__


def test_a_promoted_one_continues_and_what_it_supersedes_is_archived(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0})
    stage.plan()
    stage.plan()
    stage.edit("a0001")
    stage.audit("i0001")
    continued, archived = stage.judge("i0001")
    assert isinstance(continued, BranchContinued)
    assert (continued.implementation, continued.opportunity) == ("i0001", None)
    assert isinstance(archived, BranchArchived)
    assert (archived.implementation, archived.reason) == (ROOT, "superseded by i0001")
    assert list(stage.state.frontier) == ["i0001"]


def test_a_loser_continues_with_the_follow_up_that_it_opens(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("pack", 1.0),
        mechanism("prefetch", 1.5, requires=("pack",)),
        gains={"pack": 0.9, "prefetch": 1.5},
    )
    stage.plan()
    stage.plan()
    stage.edit("a0001")
    stage.audit("i0001")
    raised, continued = stage.judge("i0001")
    assert isinstance(raised, OpportunityRaised)
    assert (raised.mechanisms, raised.parents) == (("prefetch",), ("i0001",))
    assert isinstance(continued, BranchContinued)
    assert continued.opportunity == raised.opportunity
    # and the follow-up has a parent that was never promoted, and wins
    stage.step()
    best = stage.state.implementations[stage.state.best or ""]
    assert (best.mechanisms, best.parents) == (("pack", "prefetch"), ("i0001",))
    assert not stage.state.implementations["i0001"].promoted


def test_a_loser_that_lost_too_much_for_its_follow_up_is_archived(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("pack", 1.0),
        mechanism("prefetch", 1.3, requires=("pack",)),
        gains={"pack": 0.7, "prefetch": 1.3},
    )
    stage.step()
    assert [type(event) for event in lineage(store)] == [BranchArchived]
    assert stage.plan() == []


def lineage(store: Store) -> list[Event]:
    """Every lineage event of the campaign."""
    kinds = (BranchContinued, BranchDeferred, BranchArchived, BranchReactivated, BranchAbandoned)
    return events_of(store, "toy", kinds)


def test_a_loser_s_parent_that_was_kept_for_it_alone_is_archived_with_it(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("pack", 1.0),
        mechanism("prefetch", 1.5, requires=("pack",)),
        gains={"pack": 0.9, "prefetch": 1.0},
    )
    stage.steps(2)
    archived = [event.implementation for event in lineage(store) if isinstance(event, BranchArchived)]
    assert archived == ["i0002", "i0001"]
    assert list(stage.state.frontier) == [ROOT]


def test_a_change_of_one_path_that_gained_is_deferred_for_a_merge(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("full_step", 1.5, "full"),
        mechanism("decode_step", 1.4, "decode"),
        gains={"full_step": 1.5, "decode_step": 1.4},
    )
    stage.steps(2)
    (deferred,) = events_of(store, "toy", BranchDeferred)
    assert deferred.implementation == "i0002"
    assert re.fullmatch(r"its decode paths are 1\.(39|40|41)x faster than i0000's", deferred.reason)
    assert "i0002" in stage.state.frontier


def test_a_gain_too_small_to_promote_is_archived_reactivated_by_the_next_best_and_merged_into_it(store: Store) -> None:
    # given a decode step of whose gain the screen alone tells, and a joint step that wins after it
    stage = Stage(
        store,
        mechanism("decode_step", 9.0, "decode"),
        mechanism("joint_step", 1.2),
        gains={"decode_step": 1.024, "joint_step": 1.5},
    )
    name = stage.begin()
    stage.record(name, replace(stage.found(name), confirmation=None))
    stage.commit(lambda state: set_aside(state, state.implementations[name]))
    stage.step()
    assert stage.tried() == [("decode_step",), ("joint_step",)]
    archived, reactivated = events_of(store, "toy", BranchArchived)[0], events_of(store, "toy", BranchReactivated)
    assert archived.implementation == "i0001"
    assert [(event.implementation, event.because) for event in reactivated] == [("i0001", "i0002")]
    assert "i0001" in stage.state.frontier
    # then it is merged into that best, though the merge may be too small a gain as well
    stage.step()
    merges = [event for event in events_of(store, "toy", ActionProposed) if len(event.parents) == 2]
    assert [(event.parents, event.ancestor) for event in merges] == [(("i0002", "i0001"), ROOT)]
    assert stage.tried()[-1] == ("joint_step", "decode_step")


def test_two_changes_brought_back_together_are_merged_and_nothing_is_raised_for_ever(store: Store) -> None:
    # given a change of each path of the root, set aside by a noisy audit, and a step that wins after them
    stage = Stage(
        store,
        mechanism("full_step", 9.0, "full"),
        mechanism("decode_step", 8.0, "decode"),
        mechanism("joint_step", 1.1),
        gains={"full_step": 1.1, "decode_step": 1.1, "joint_step": 1.5},
    )
    for _ in range(2):
        name = stage.begin()
        stage.record(name, replace(stage.found(name), confirmation=None))
        stage.commit(lambda state, name=name: set_aside(state, state.implementations[name]))
    # when
    stage.step()
    reactivated = [event.implementation for event in events_of(store, "toy", BranchReactivated)]
    while stage.step():
        pass
    # then both come back with the new best and are taken in
    assert reactivated == ["i0001", "i0002"]
    best = stage.state.implementations[stage.state.best or ""]
    assert set(best.mechanisms) == {"full_step", "decode_step", "joint_step"}


def set_aside(state: State, implementation: Implementation) -> Decision:
    """An archiving by hand."""
    events = decider.archive_branch(state, implementation.id, "by hand")
    return Decision("brancher", implementation.audited_at, events)


def test_what_was_archived_after_a_promotion_is_not_brought_back_by_it(store: Store) -> None:
    # given a decode step kept for its follow-up, which is audited beside a joint step
    stage = Stage(
        store,
        mechanism("decode_step", 1.0, "decode"),
        mechanism("decode_more", 9.0, "decode", requires=("decode_step",)),
        mechanism("joint_step", 1.05),
        gains={"decode_step": 1.02, "joint_step": 1.5},
        parallel=2,
    )
    stage.plan()
    decode, joint = stage.begin(), stage.begin()
    stage.audit(decode)
    stage.judge(decode)
    more = stage.begin()
    # when the joint step is promoted, and the follow-up judged first, which archives the decode step
    stage.audit(joint)
    stage.audit(more)
    stage.judge(more)
    assert decode in stage.state.archive
    # then the promotion, which is older, does not reactivate it
    assert [type(event) for event in stage.judge(joint)] == [BranchContinued, BranchArchived]
    assert decode in stage.state.archive


def test_a_direction_that_brought_nothing_on_two_parents_is_abandoned(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("unroll", 3.0, opened_by=("lanes",)),
        mechanism("lanes", 2.0),
        gains={"lanes": 2.0},
    )
    stage.steps(3)
    (abandoned,) = events_of(store, "toy", BranchAbandoned)
    assert abandoned.mechanism == "unroll"
    assert abandoned.implementations == ("i0001",)
    assert abandoned.reason == "unroll brought nothing on i0000, i0002"
    assert set(stage.state.archive) == {ROOT, "i0001", "i0003"}
    assert list(stage.state.frontier) == ["i0002"]


def test_nothing_is_decided_twice_nor_before_the_audit(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), gains={"lanes": 2.0})
    stage.plan()
    stage.plan()
    stage.edit("a0001")
    assert stage.judge("i0001") == []
    stage.audit("i0001")
    assert stage.judge("i0001")
    assert stage.judge("i0001") == []


@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_at_the_end_the_frontier_holds_the_best_and_every_loser_lies_in_the_archive(
    store: Store, parallel: int
) -> None:
    run_toy(store, parallel=parallel)
    state = fold(store.read("toy"))
    verified = {name for name, node in state.implementations.items() if node.verified}
    assert state.best in state.frontier
    assert verified == set(state.frontier) | set(state.archive)
    assert not state.merge_list
