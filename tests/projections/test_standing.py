"""Frontier and stopping say what the decider's state says."""

import pytest
from hypothesis import given, settings

from kernelbraid.events.decider import due_stop
from kernelbraid.events.values import ROOT, StopReason
from kernelbraid.projections.frontier import frontier
from kernelbraid.projections.stopping import Budget, stopping
from tests.projections.factory import Story, golden_story, stories


def test_the_frontier_of_the_golden_story() -> None:
    view = frontier(golden_story().state)

    assert view.best == "i0006"
    assert view.frontier == ("i0000", "i0001", "i0003", "i0004", "i0006")
    assert view.archive == ("i0002", "i0007")
    assert view.in_flight == ()


@settings(max_examples=25, deadline=None)
@given(stories)
def test_the_best_is_active_and_frontier_and_archive_are_apart(story: Story) -> None:
    view, nodes = frontier(story.state), story.state.implementations

    assert view.best in view.frontier
    assert not set(view.frontier) & set(view.archive)
    assert set(view.merge_list) <= set(view.frontier)
    assert all(nodes[member].standing == "archive" for member in view.archive)
    assert all(nodes[member].standing == "frontier" for member in view.frontier)


@settings(max_examples=25, deadline=None)
@given(stories)
def test_the_reason_to_stop_is_the_deciders(story: Story) -> None:
    view = stopping(story.state)

    assert view.due is due_stop(story.state)
    assert view.kappa == story.state.kappa <= view.kappa_threshold


def test_a_budget_shows_limit_spent_and_left() -> None:
    story = Story().begin(audits=3, tokens=5000)
    story.offspring("simd_width", 2.0)
    story.call_model(tokens=300)

    budgets = {budget.name: budget for budget in stopping(story.state).budgets}

    assert budgets["audits"] == Budget("audits", 3, 1, 0, 2, 0)
    assert budgets["tokens"] == Budget("tokens", 5000, 400, 0, 4600, 0)
    assert budgets["cost_usd"].left is None


def test_a_fork_starts_anew_and_shows_what_it_inherited() -> None:
    story = Story().begin(audits=3)
    story.offspring("simd_width", 2.0)

    story.fork("child", audits=2)

    assert stopping(story.state).budgets[0] == Budget("audits", 2, 0, 0, 2, 1)


def test_the_drivers_clock_counts_towards_the_wall_budget() -> None:
    story = Story().begin(wall_s=100.0)
    story.opportunity("unroll")

    assert stopping(story.state, elapsed_s=10.0).spent_budget is None
    assert stopping(story.state, elapsed_s=100.0).spent_budget == "wall"
    assert stopping(story.state, elapsed_s=100.0).due is StopReason.BUDGET


@pytest.mark.parametrize("parent", [ROOT])
def test_a_running_action_is_in_flight(parent: str) -> None:
    story = Story().begin(parallel=2)
    action = story.propose(story.opportunity("unroll", parents=(parent,)))

    assert frontier(story.state).in_flight == (action,)
