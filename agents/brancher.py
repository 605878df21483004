"""The brancher: decides what becomes of an audited offspring, apart from promotion."""

from kernelbraid.agents.strategy import Desk
from kernelbraid.events.event import Decision
from kernelbraid.events.state import State


def branch(state: State, implementation_id: str, desk: Desk) -> Decision | None:
    """The lineage decision that is due on it, or None when there is none."""
    if not branch_due(state, implementation_id):
        return None
    implementation = state.implementations[implementation_id]
    events = desk.brancher.judge(state, implementation, desk)
    return Decision("brancher", implementation.audited_at, events) if events else None


def branch_due(state: State, implementation_id: str) -> bool:
    """Whether it is audited, not to be timed again, and not decided on yet."""
    waits = implementation_id in state.undecided_branches and implementation_id not in state.retimings
    return waits and state.status == "running"
