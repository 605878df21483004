"""The planner: raises opportunities from evidence, picks one and its parents."""

from kernelbraid.agents.strategy import Desk
from kernelbraid.events import decider
from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.event import Decision
from kernelbraid.events.state import State

LONGEST_PLAN = 100
"""Decisions without an action between them. The catalogue's planner takes two: it withdraws, then it raises."""


class PlanWithoutEnd(KernelbraidError):
    """A strategy raised and withdrew opportunities over and over and tried none: it would fill the log for ever."""


def plan(state: State, desk: Desk, elapsed_s: float = 0.0) -> Decision | None:
    """The planner's next decision at this state, or None when there is nothing for it to do.

    What is worth trying is written down first; an action is chosen in a decision of its own, from what is pending.
    """
    if not may_plan(state, elapsed_s):
        return None
    events = desk.planner.survey(state, desk) or desk.planner.choose(state, desk)
    return Decision("planner", state.fact_position, events) if events else None


def may_plan(state: State, elapsed_s: float = 0.0) -> bool:
    """Whether the rules allow one more action now, and what was measured is decided on first."""
    policy = state.specified().policy
    return (
        state.status == "running"
        and not state.undecided_branches
        and not state.retimings
        and state.in_flight < policy.parallel
        and state.kappa < policy.kappa
        and state.consecutive_edit_failures < policy.edits_failing
        and decider.budget_spent(state, elapsed_s) is None
    )
