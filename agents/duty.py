"""Who is due: the one place that says, from the state alone, which agent has to act on what.

The graph routes by it, a resumed campaign picks up by it, and a strict replay holds the log against it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kernelbraid.agents import auditor, brancher, editor, planner
from kernelbraid.agents.strategy import Desk
from kernelbraid.events import decider
from kernelbraid.events.event import Actor, Event
from kernelbraid.events.state import State
from kernelbraid.events.values import StopReason


@dataclass(frozen=True, slots=True)
class Duty:
    """An agent and the action or implementation it is due to act on ("" for planner and driver)."""

    actor: Actor
    subject: str = ""


def started(state: State) -> Iterator[Duty]:
    """What was begun and is not finished: audits to repeat, open actions, timings, lineage decisions."""
    if state.stale and state.status == "opening":
        yield Duty("auditor", next(iter(state.stale)))
        return
    for action in state.open_actions:
        yield from _of_action(state, action)
    if state.status == "running":
        yield from (Duty("auditor", item) for item in state.retimings)
        yield from (Duty("brancher", item) for item in state.undecided_branches if brancher.branch_due(state, item))


def _of_action(state: State, action: str) -> Iterator[Duty]:
    implementation = state.actions[action].implementation
    if implementation is not None and auditor.audit_due(state, implementation):
        yield Duty("auditor", implementation)
    elif editor.edit_due(state, action):
        yield Duty("editor", action)


def stop_reason(state: State, desk: Desk, elapsed_s: float = 0.0) -> StopReason | None:
    """Why the campaign ends now, if it does; opportunities are exhausted once the planner sees none either."""
    reason = decider.due_stop(state, elapsed_s)
    if reason is StopReason.OPPORTUNITIES_EXHAUSTED and planner.plan(state, desk, elapsed_s) is not None:
        return None
    return reason


def stop_events(state: State, reason: StopReason, elapsed_s: float) -> tuple[Event, ...]:
    """The stop that `stop_reason` calls for; a spent budget is named."""
    detail = decider.budget_spent(state, elapsed_s) if reason is StopReason.BUDGET else None
    return decider.stop(state, reason, detail or "", elapsed_s=elapsed_s)
