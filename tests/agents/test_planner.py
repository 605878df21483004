"""What the catalogue's planner raises, withdraws and chooses."""

import math

import pytest

from kernelbraid.agents.catalogue import evidence
from kernelbraid.agents.catalogue.planner import value
from kernelbraid.events.search import ActionProposed, OpportunityRaised, OpportunityWithdrawn
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT
from kernelbraid.kernels.audit.outcome import Candidate, Correctness
from kernelbraid.kernels.operators.catalogue import Facts
from tests.agents.stage import Stage, mechanism
from tests.campaign.toy import BASE_S, marks

DECODE_SHARE = (2 * BASE_S["decode_b8"] + BASE_S["decode_b16"]) / (
    BASE_S["full"] + 2 * BASE_S["decode_b8"] + BASE_S["decode_b16"]
)


def raised(events: list[object]) -> list[tuple[str, ...]]:
    """The mechanisms of the opportunities among these events."""
    return [event.mechanisms for event in events if isinstance(event, OpportunityRaised)]


def proposed(events: list[object]) -> ActionProposed:
    """The only event, which is an action."""
    (event,) = events
    assert isinstance(event, ActionProposed)
    return event


# --- raise ---------------------------------------------------------------------------------------------------------


def test_raised_is_what_fits_the_best_and_has_evidence_in_the_catalogue_s_order(store: Store) -> None:
    def wide_enough(facts: Facts) -> str | None:
        return f"{facts.simd_bits} bits" if facts.simd_bits >= 256 else None

    def never(facts: Facts) -> str | None:
        return None

    stage = Stage(
        store,
        mechanism("second", 1.2, evidence=wide_enough),
        mechanism("first", 1.9),
        mechanism("unfounded", evidence=never),
        mechanism("later", requires=("first",)),
    )
    events = stage.plan()
    assert raised(list(events)) == [("second",), ("first",)]
    assert [event.opportunity for event in events if isinstance(event, OpportunityRaised)] == ["o0001", "o0002"]
    assert isinstance(events[0], OpportunityRaised)
    assert events[0].evidence == "256 bits"
    assert events[0].workloads == ("full", "decode_b8", "decode_b16")


def test_the_facts_a_mechanism_is_told_are_the_best_s(store: Store) -> None:
    told: list[Facts] = []

    def listen(facts: Facts) -> str | None:
        told.append(facts)
        return None

    stage = Stage(store, mechanism("lanes", gain_ratio=1.5), mechanism("ear", evidence=listen), gains={"lanes": 1.5})
    stage.step()
    stage.survey()
    assert told[0].share_ratio["decode"] == pytest.approx(DECODE_SHARE, rel=0.01)
    assert told[0].share_ratio["full"] + told[0].share_ratio["decode"] == pytest.approx(1.0)
    assert told[0].applied == frozenset()
    assert told[-1].applied == {"lanes"}
    assert told[-1].resources["text_bytes"] > 0


# --- choose --------------------------------------------------------------------------------------------------------


def test_expected_gains_count_by_the_share_of_latency_that_they_reach(store: Store) -> None:
    # given a decode step that promises more than a joint one, on a path that is a small part of the whole
    stage = Stage(store, mechanism("decode_step", 2.0, "decode"), mechanism("joint_step", 1.3))
    stage.plan()
    worth = {name: value(stage.state, stage.state.opportunities[name], stage.desk) for name in ("o0001", "o0002")}
    assert worth["o0001"] == pytest.approx(-math.log(1 - DECODE_SHARE / 2), rel=0.02)
    assert worth["o0002"] == pytest.approx(math.log(1.3))
    assert proposed(list(stage.plan())).opportunity == "o0002"


def test_of_equals_the_oldest_is_chosen(store: Store) -> None:
    stage = Stage(store, mechanism("left", 1.3), mechanism("right", 1.3))
    stage.plan()
    assert proposed(list(stage.plan())).opportunity == "o0001"


def test_a_step_that_loses_alone_is_worth_half_of_what_it_opens(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("plain", 1.25),
        mechanism("pack", 0.95),
        mechanism("prefetch", 2.0, requires=("pack",)),
    )
    stage.plan()
    assert value(stage.state, stage.state.opportunities["o0002"], stage.desk) == pytest.approx(
        math.log(0.95 * 2.0) / 2, rel=0.01
    )
    assert proposed(list(stage.plan())).opportunity == "o0002"


def test_what_a_step_opens_counts_no_more_once_it_was_falsified(store: Store) -> None:
    # given two steps that open the same third, which brings nothing after the first
    stage = Stage(
        store,
        mechanism("left", 0.99, excludes=("right",)),
        mechanism("right", 0.98, excludes=("left",)),
        mechanism("third", 2.0, requires=("left|right",)),
    )
    assert stage.step()
    assert stage.step()
    assert stage.tried() == [("left",), ("left", "third")]
    (right,) = (item for item in stage.state.opportunities.values() if item.mechanisms == ("right",))
    assert value(stage.state, right, stage.desk) == pytest.approx(math.log(0.98), abs=0.01)


def test_nothing_is_chosen_while_lineage_is_open_or_a_limit_is_reached(store: Store) -> None:
    stage = Stage(store, mechanism("one"), mechanism("two"), kappa=1)
    stage.plan()
    stage.plan()
    assert stage.plan() == []  # one action is in flight
    stage.edit("a0001")
    stage.audit("i0001")
    assert stage.plan() == []  # the brancher has not decided
    stage.judge("i0001")
    assert stage.plan() == []  # kappa is spent


# --- withdraw ------------------------------------------------------------------------------------------------------


def withdrawn(events: list[object]) -> list[str]:
    """Reasons of the withdrawals among these events."""
    return [event.reason for event in events if isinstance(event, OpportunityWithdrawn)]


def test_what_the_best_excludes_is_withdrawn(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 2.0), mechanism("rival", excludes=("lanes",)), gains={"lanes": 2.0})
    stage.step()
    assert withdrawn(list(stage.survey())) == ["i0001 is faster than what it could reach on i0000"]


def test_a_rival_that_promises_more_than_the_best_stays_on_its_own_parent(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", 3.1), mechanism("rival", 3.0, excludes=("lanes",)), gains={"lanes": 1.5})
    stage.step()
    assert stage.survey() == []
    action = proposed(list(stage.plan()))
    assert (action.parents, action.strategy) == ((ROOT,), "catalogue: follow-up")


def test_a_merge_is_withdrawn_when_the_best_it_was_for_is_none_any_more(store: Store) -> None:
    # given a merge that is pending while another step is promoted
    stage = Stage(
        store,
        mechanism("full_step", 1.5, "full"),
        mechanism("decode_step", 1.2, "decode"),
        mechanism("joint_step", 1.01),
        gains={"full_step": 1.5, "decode_step": 1.2, "joint_step": 1.4},
        parallel=2,
    )
    stage.plan()
    first = proposed(list(stage.plan())).action
    stage.edit(first)
    stage.audit("i0001")
    stage.judge("i0001")
    sibling = proposed(list(stage.plan()))
    other = proposed(list(stage.plan()))
    assert sibling.strategy == "catalogue: sibling"
    stage.edit(sibling.action)
    stage.edit(other.action)
    stage.audit("i0002")
    stage.judge("i0002")
    assert raised(list(stage.plan())) == [("decode_step",)]
    stage.audit("i0003")
    stage.judge("i0003")
    assert stage.state.best == "i0003"
    assert withdrawn(list(stage.survey())) == ["the best is i0003 now"]
    # and raised again for the new one
    events = stage.survey()
    assert [event.parents for event in events if isinstance(event, OpportunityRaised)] == [("i0003", "i0002")]


# --- siblings and merges -------------------------------------------------------------------------------------------


def siblings(store: Store, **gains: float) -> Stage:
    """A stage on which a full step won and a decode step is next."""
    stage = Stage(
        store,
        mechanism("full_step", 1.5, "full"),
        mechanism("decode_step", 1.4, "decode"),
        gains={"full_step": 1.5, "decode_step": 1.4, **gains},
    )
    stage.step()
    return stage


def test_a_change_of_the_other_path_is_tried_beside_the_best_on_its_parent(store: Store) -> None:
    stage = siblings(store)
    action = proposed(list(stage.plan()))
    assert (action.parents, action.scope, action.strategy) == ((ROOT,), "decode", "catalogue: sibling")


def test_a_sibling_that_made_its_path_faster_is_merged_into_the_best(store: Store) -> None:
    stage = siblings(store)
    stage.step()
    assert stage.node("decode_step").id in stage.state.merge_list
    (merge,) = [event for event in stage.plan() if isinstance(event, OpportunityRaised)]
    assert (merge.mechanisms, merge.parents, merge.scope) == (("decode_step",), ("i0001", "i0002"), "joint")
    action = proposed(list(stage.plan()))
    assert (action.parents, action.ancestor, action.strategy) == (("i0001", "i0002"), ROOT, "catalogue: merge")
    assert not stage.state.merge_list
    # and the merge wins with what both expected
    stage.step()
    best = stage.state.implementations[stage.state.best or ""]
    assert best.mechanisms == ("full_step", "decode_step")
    assert merge.expected_gain_ratio == pytest.approx(
        evidence.relative(stage.state, stage.node("full_step")) / evidence.relative(stage.state, best), rel=0.02
    )


def test_a_sibling_that_brought_its_path_nothing_is_not_merged(store: Store) -> None:
    stage = siblings(store, decode_step=1.0)
    stage.step()
    assert not stage.state.merge_list
    assert stage.node("decode_step").id in stage.state.archive
    assert stage.plan() == []


def test_the_common_ancestor_is_the_nearest_one(store: Store) -> None:
    stage = Stage(
        store,
        mechanism("lanes", 2.0),
        mechanism("full_step", 1.5, "full", requires=("lanes",)),
        mechanism("decode_step", 1.4, "decode", requires=("lanes",)),
        gains={"lanes": 2.0, "full_step": 1.5, "decode_step": 1.4},
    )
    stage.steps(4)
    assert evidence.common_ancestor(stage.state, "i0002", "i0003") == "i0001"
    assert evidence.common_ancestor(stage.state, "i0004", "i0003") == "i0003"
    assert stage.state.actions["a0004"].ancestor == "i0001"
    assert stage.state.best == "i0004"


# --- falsified, and opened once more -------------------------------------------------------------------------------


def test_a_falsified_mechanism_is_raised_again_only_by_a_precondition_it_names(store: Store) -> None:
    # given a mechanism that brings nothing on the root, and two later promotions of which it names the second
    stage = Stage(
        store,
        mechanism("wide", 3.0, opened_by=("tree",)),
        mechanism("lanes", 2.0),
        mechanism("tree", 1.2, requires=("lanes",)),
        gains={"lanes": 2.0, "tree": 1.3},
    )
    stage.steps(2)
    assert stage.tried() == [("wide",), ("lanes",)]
    assert ("wide",) not in raised(list(stage.survey()))
    stage.steps(1)
    (again,) = [event for event in stage.plan() if isinstance(event, OpportunityRaised)]
    assert again.mechanisms == ("wide",)
    assert again.evidence.endswith("it brought nothing on i0000, and tree opens it once more")
    # and once only: tried after tree without a gain, it is not raised for tree a second time
    stage.steps(1)
    assert stage.plan() == []


def test_a_failed_audit_falsifies_too(store: Store) -> None:
    def failure(candidate: Candidate) -> Correctness | None:
        return Correctness.CRASHED if "wild" in marks(candidate) else None

    stage = Stage(
        store,
        mechanism("wild", 3.0),
        mechanism("lanes", 2.0),
        gains={"lanes": 2.0},
        failure=failure,
    )
    stage.steps(2)
    assert stage.plan() == []
    assert [node.id for node in evidence.falsified_on(stage.state, "wild")] == [ROOT]


def test_a_step_whose_follow_up_another_best_cut_off_is_not_falsified(store: Store) -> None:
    # given two audits at a time: a step loses, and the other wins by more than the first one's follow-up promises
    stage = Stage(
        store,
        mechanism("pack", 1.0),
        mechanism("prefetch", 1.5, requires=("pack",)),
        mechanism("lanes", 1.2),
        gains={"pack": 0.78, "prefetch": 1.5, "lanes": 2.0},
        parallel=2,
    )
    stage.plan()
    actions = [proposed(list(stage.plan())).action, proposed(list(stage.plan())).action]
    for action in actions:
        stage.edit(action)
    for implementation in ("i0001", "i0002"):
        stage.audit(implementation)
        stage.judge(implementation)
    assert stage.tried() == [("pack",), ("lanes",)]
    assert withdrawn(list(stage.survey())) == ["i0002 is faster than what it could reach on i0001"]
    # then it is tried again on the new best, and what it opens wins there
    while stage.step():
        pass
    assert stage.tried()[2:] == [("lanes", "pack"), ("lanes", "pack", "prefetch")]
    assert stage.state.best == "i0004"


def test_a_step_that_won_by_a_merge_is_taken_up_again_by_a_best_of_another_line(store: Store) -> None:
    # given two audits at a time: a merge is promoted, then what was tried beside it, which lacks the merged step
    stage = Stage(
        store,
        mechanism("full_step", 1.5, "full"),
        mechanism("decode_step", 1.2, "decode"),
        mechanism("joint_step", 1.01),
        gains={"full_step": 1.5, "decode_step": 1.2, "joint_step": 1.4},
        parallel=2,
    )
    stage.plan()
    stage.plan()
    stage.edit("a0001")
    stage.audit("i0001")
    stage.judge("i0001")
    sibling = proposed(list(stage.plan())).action
    stage.edit(sibling)
    stage.audit("i0002")
    stage.judge("i0002")
    assert raised(list(stage.plan())) == [("decode_step",)]
    merge, other = proposed(list(stage.plan())).action, proposed(list(stage.plan())).action
    for action, implementation in ((merge, "i0003"), (other, "i0004")):
        stage.edit(action)
        stage.audit(implementation)
        stage.judge(implementation)
    state = stage.state
    assert state.implementations["i0003"].promoted
    assert state.best == "i0004"
    assert "decode_step" not in state.implementations["i0004"].mechanisms
    # then the best takes the step up, and ends with all three
    while stage.step():
        pass
    assert set(stage.state.implementations[stage.state.best or ""].mechanisms) == {
        "full_step",
        "decode_step",
        "joint_step",
    }


def test_a_winner_that_another_winner_beat_in_the_same_round_is_tried_on_that_one(store: Store) -> None:
    # given two steps that both gain on the root, of which the smaller is measured when the larger is the best already
    stage = Stage(
        store, mechanism("large", 1.5), mechanism("small", 1.2), gains={"large": 1.5, "small": 1.2}, parallel=2
    )
    stage.plan()
    large, small = stage.begin(), stage.begin()
    for implementation in (large, small):
        stage.audit(implementation)
        stage.judge(implementation)
    measurement = stage.state.implementations[small].measurement
    assert measurement is not None
    assert measurement.ratio > 1.2
    # then nothing is falsified: it is tried again on the new best, and wins there
    assert evidence.falsified_on(stage.state, "small") == []
    stage.step()
    assert stage.state.implementations[stage.state.best or ""].mechanisms == ("large", "small")
    assert stage.plan() == []


def test_a_loser_on_its_parent_stays_falsified_whatever_it_was_measured_against(store: Store) -> None:
    stage = Stage(store, mechanism("large", 1.5), mechanism("none", 1.2), gains={"large": 1.5}, parallel=2)
    stage.plan()
    large, nothing = stage.begin(), stage.begin()
    for implementation in (large, nothing):
        stage.audit(implementation)
        stage.judge(implementation)
    assert [node.id for node in evidence.falsified_on(stage.state, "none")] == [ROOT]
    assert stage.plan() == []


def test_a_step_that_opens_both_paths_has_both_tried_on_it_and_merged(store: Store) -> None:
    # given a step that loses, and opens one change of each path, neither of which makes up for it alone
    stage = Stage(
        store,
        mechanism("pack", 0.9),
        mechanism("full_step", 1.5, "full", requires=("pack",)),
        mechanism("decode_step", 1.5, "decode", requires=("pack",)),
        gains={"pack": 0.75, "full_step": 1.5, "decode_step": 1.5},
    )
    # when
    while stage.step():
        pass
    # then both stand on the lost step, and their merge, whose parents were never promoted, is the best
    assert stage.tried() == [
        ("pack",),
        ("pack", "full_step"),
        ("pack", "decode_step"),
        ("pack", "full_step", "decode_step"),
    ]
    best = stage.state.implementations[stage.state.best or ""]
    assert best.mechanisms == ("pack", "full_step", "decode_step")
    assert best.parents == ("i0002", "i0003")
    assert not any(stage.state.implementations[parent].promoted for parent in best.parents)
    assert stage.state.actions[best.action or ""].ancestor == "i0001"


def test_a_sibling_that_waited_in_vain_is_archived(store: Store) -> None:
    # given a lost step that opens both paths, of which one change brings its path nothing
    stage = Stage(
        store,
        mechanism("pack", 0.9),
        mechanism("full_step", 1.5, "full", requires=("pack",)),
        mechanism("decode_step", 1.5, "decode", requires=("pack",)),
        gains={"pack": 0.75, "full_step": 1.5, "decode_step": 1.0},
    )
    # when
    while stage.step():
        pass
    # then nothing is merged, and nothing waits
    assert stage.state.best == ROOT
    assert not stage.state.merge_list
    assert {"i0002", "i0003"} <= set(stage.state.archive)
