"""One round of a campaign as a LangGraph: planner, then for every action in flight editor, auditor and brancher.

The graph's state is a campaign's name and a position; there is no checkpointer, since the log is the only truth.
Every node looks at the log first and returns at once when its event is there already, so an interrupted round is
simply run again. Each branch is a graph of its own: a slow audit does not hold back another one's result.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from kernelbraid.agents import auditor, brancher, duty, editor, planner
from kernelbraid.agents.crew import Crew
from kernelbraid.events.search import ActionProposed
from kernelbraid.events.state import State
from kernelbraid.events.values import ROOT
from kernelbraid.kernels.audit.outcome import Candidate

Round = Callable[[], None]


def later(left: int, right: int) -> int:
    """Of two positions that parallel branches report, the later one."""
    return max(left, right)


class Position(TypedDict):
    """The graph's whole state."""

    campaign: str
    position: Annotated[int, later]


class Branch(TypedDict):
    """A branch's whole state: `subject` is an action, or an implementation whose action is closed."""

    campaign: str
    position: Annotated[int, later]
    subject: str


class Reached(TypedDict):
    """What a branch hands back to the round."""

    position: Annotated[int, later]


def build_round(crew: Crew, parallel: int) -> Round:
    """The graph of one round, ready to run as often as wanted."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Position)
    graph.add_node("qualify", _node(crew, lambda _: _qualify(crew)))
    graph.add_node("planner", _node(crew, lambda _: _plan(crew)))
    graph.add_node("branch", _branch(crew))
    graph.add_edge(START, "qualify")
    graph.add_edge("qualify", "planner")
    graph.add_conditional_edges("planner", lambda _: _fan_out(crew), ["branch", END])
    graph.add_edge("branch", END)
    compiled = graph.compile()

    def run() -> None:
        start: Position = {"campaign": crew.campaign.name, "position": crew.campaign.position}
        compiled.invoke(start, {"max_concurrency": parallel + 1})

    return run


def _branch(crew: Crew) -> Any:
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Branch, output_schema=Reached)
    graph.add_node("editor", _node(crew, lambda branch: _edit(crew, branch["subject"])))
    graph.add_node("auditor", _node(crew, lambda branch: _audit(crew, branch["subject"])))
    graph.add_node("brancher", _node(crew, lambda branch: _decide(crew, branch["subject"])))
    for start, end in ((START, "editor"), ("editor", "auditor"), ("auditor", "brancher"), ("brancher", END)):
        graph.add_edge(start, end)
    return graph.compile()


def _node(crew: Crew, work: Callable[[Any], None]) -> Any:
    def node(state: Any) -> dict[str, int]:
        work(state)
        return {"position": crew.campaign.position}

    return node


def _fan_out(crew: Crew) -> Sequence[Send] | str:
    subjects = crew.campaign.read(_subjects)
    at = {"campaign": crew.campaign.name, "position": crew.campaign.position}
    return [Send("branch", {**at, "subject": subject}) for subject in subjects] or END


def _subjects(state: State) -> list[str]:
    """Open actions, and implementations that were left between audit and lineage decision.

    What was handed in from outside may be more than the policy has in flight: the rest waits for the next round.
    """
    left = [item.subject for item in duty.started(state) if item.subject.startswith("i")]
    covered = {state.actions[action].implementation for action in state.open_actions}
    begun = itertools.islice(state.open_actions, state.specified().policy.parallel)
    return [*begun, *(item for item in left if item not in covered)]


# --- the nodes: look, act, append ----------------------------------------------------------------------------------


def _qualify(crew: Crew) -> None:
    """Audit the root, and after a fork on other ground everything that must be judged again."""
    while judge_again(crew):
        pass


def judge_again(crew: Crew) -> bool:
    """Audit the first implementation that waits for it before any action; False when none does (any more)."""
    waiting = crew.campaign.read(lambda state: list(state.stale)[:1] if state.status == "opening" else [])
    if not waiting:
        return False
    if waiting[0] == ROOT:
        _qualify_root(crew)
    else:
        _audit_once(crew, waiting[0])
        _retime(crew, waiting[0])
    return True


def _qualify_root(crew: Crew) -> None:
    root = _candidate(crew, ROOT)
    qualification = crew.harness.qualify(root, auditor.baselines(crew.desk))
    crew.campaign.commit(lambda state: auditor.record_root(state, qualification))


def _plan(crew: Crew) -> None:
    """Plan until nothing is left to decide. Raises PlanWithoutEnd for a strategy that never comes to an action."""
    without_action = 0
    while decided := crew.campaign.commit(lambda state: planner.plan(state, crew.desk, crew.campaign.idle_s())):
        acted = any(isinstance(item.event, ActionProposed) for item in decided)
        without_action = 0 if acted else without_action + 1
        if without_action == planner.LONGEST_PLAN:
            raise planner.PlanWithoutEnd(
                f"the planner of {crew.campaign.name} decided {without_action} times up to position "
                f"{crew.campaign.position} and tried nothing: check its strategy {crew.desk.planner.name}"
            )


def _edit(crew: Crew, subject: str) -> None:
    if subject.startswith("a"):
        crew.campaign.commit(lambda state: editor.edit(state, subject, crew.desk))


def _audit(crew: Crew, subject: str) -> None:
    """Audit until there is a verdict (one retry of an infrastructure failure), then time again while that is due."""
    implementation = crew.campaign.read(lambda state: _implementation(state, subject))
    if implementation is None:
        return
    while crew.campaign.read(lambda state: state.status == "running" and auditor.audit_due(state, implementation)):
        _audit_once(crew, implementation)
    _retime(crew, implementation)


def _audit_once(crew: Crew, implementation: str) -> None:
    outcome = crew.harness.audit(_candidate(crew, implementation), _candidate(crew, ROOT), lambda: _incumbent(crew))
    crew.campaign.commit(lambda state: auditor.record_audit(state, implementation, outcome))


def _retime(crew: Crew, implementation: str) -> None:
    while crew.campaign.read(
        lambda state: state.status in ("running", "opening") and implementation in state.retimings
    ):
        _time_once(crew, implementation)


def _time_once(crew: Crew, implementation: str) -> None:
    outcome = crew.harness.time(_candidate(crew, implementation), _candidate(crew, ROOT), lambda: _incumbent(crew))
    crew.campaign.commit(lambda state: auditor.record_timing(state, implementation, outcome))


def _decide(crew: Crew, subject: str) -> None:
    implementation = crew.campaign.read(lambda state: _implementation(state, subject))
    if implementation is not None:
        crew.campaign.commit(lambda state: brancher.branch(state, implementation, crew.desk))


def _implementation(state: State, subject: str) -> str | None:
    return state.actions[subject].implementation if subject.startswith("a") else subject


def _candidate(crew: Crew, implementation: str) -> Candidate:
    return crew.campaign.read(lambda state: auditor.candidate(state, implementation, crew.desk))


def _incumbent(crew: Crew) -> Candidate:
    return crew.campaign.read(lambda state: auditor.candidate(state, state.best or ROOT, crew.desk))
