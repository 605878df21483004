"""The derivation graph G for reading and drawing: who came of whom, what the audit said, what became of it.

A node's column is its order of submission and its lane a row. Both are settled when the node enters and depend on
nothing later, so a drawing only ever grows. A child goes on in its first parent's lane if that parent is the lane's
last node; else it takes the lane of a dead end (failed or dropped, which never has children), else a new one.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted
from kernelbraid.events.campaign import CampaignForked, CampaignOpened
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.search import ActionDropped, ActionProposed, EditFailed, ImplementationSubmitted
from kernelbraid.events.state import Implementation, Standing, State
from kernelbraid.events.values import ROOT, Correctness, Infrastructure, Performance, Scope
from kernelbraid.projections.projection import Handler, Projection

Kind = Literal["continued", "deferred", "archived", "reactivated", "abandoned"]


@dataclass(frozen=True, slots=True)
class BranchDecision:
    """The brancher's last word on an implementation, and where in the log it stands."""

    kind: Kind
    reason: str
    position: int


@dataclass(frozen=True, slots=True)
class Promotion:
    """One change of the best, as recorded. Ratios are old over new: above 1 means faster."""

    implementation: str
    replaces: str
    objective_s: float
    gain_ratio: float
    speedup_ratio: float
    position: int


@dataclass(slots=True)
class Place:
    """Where a node is drawn, and the brancher's last word on it. The lane is settled when it enters."""

    lane: int
    decision: BranchDecision | None = None


@dataclass(slots=True)
class LineageFold:
    """The accumulator: lanes, decisions and promotions. Verdicts and standings stay in the decider's state."""

    places: dict[str, Place] = field(default_factory=dict)
    tips: list[str] = field(default_factory=list)
    """The last node of each lane; empty for a dead end."""
    dead_lanes: list[int] = field(default_factory=list)
    open_parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parents of the actions whose offspring is not there yet."""
    offspring: dict[str, str] = field(default_factory=dict)
    """Implementations under audit, by action."""
    promotions: list[Promotion] = field(default_factory=list)
    forks: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LineageNode:
    """One implementation. `ancestor` is a merge's; `added` are the mechanisms that its first parent lacks.

    `ratio` is its weighted latency over the incumbent's it was measured against; `speedup_ratio` is root over it.
    Both are None until it is measured, `verdict` until it is audited.
    """

    id: str
    column: int
    lane: int
    parents: tuple[str, ...]
    ancestor: str | None
    action: str | None
    scope: Scope
    mechanisms: tuple[str, ...]
    added: tuple[str, ...]
    verdict: Correctness | None
    performance: Performance | None
    standing: Standing
    stale: bool
    promoted: bool
    best: bool
    awaits_merge: bool
    objective_s: float | None
    ratio: float | None
    speedup_ratio: float | None
    decision: BranchDecision | None
    submitted_at: int
    audited_at: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Frozen view of G, nodes in order of submission; an edge runs from each parent to its child."""

    nodes: tuple[LineageNode, ...]
    lanes: int
    promotions: tuple[Promotion, ...]
    forks: tuple[tuple[str, int], ...]
    """Each ancestor campaign and its last position in this log, eldest first."""

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(parent, child) for every derivation, merges with one edge a parent."""
        return tuple((parent, node.id) for node in self.nodes for parent in node.parents)


def lineage(state: State, folded: LineageFold) -> Lineage:
    """The graph at the state's position; both must have been folded from the same events."""
    nodes = enumerate(state.implementations.values())
    return Lineage(
        nodes=tuple(_node(state, folded, column, implementation) for column, implementation in nodes),
        lanes=len(folded.tips),
        promotions=tuple(folded.promotions),
        forks=tuple(folded.forks),
    )


def _node(state: State, folded: LineageFold, column: int, node: Implementation) -> LineageNode:
    measurement = node.measurement
    return LineageNode(
        id=node.id,
        column=column,
        lane=folded.places[node.id].lane,
        parents=node.parents,
        ancestor=None if node.action is None else state.actions[node.action].ancestor,
        action=node.action,
        scope=node.scope,
        mechanisms=node.mechanisms,
        added=_added(state, node),
        verdict=node.verdict,
        performance=node.performance,
        standing=node.standing,
        stale=node.stale,
        promoted=node.promoted,
        best=node.id == state.best,
        awaits_merge=node.id in state.merge_list,
        objective_s=state.root_objective_s if measurement is None and node.id == ROOT else _objective_s(node),
        ratio=None if measurement is None else measurement.ratio,
        speedup_ratio=_speedup_ratio(state, node),
        decision=folded.places[node.id].decision,
        submitted_at=node.submitted_at,
        audited_at=node.audited_at,
    )


def _added(state: State, node: Implementation) -> tuple[str, ...]:
    inherited = state.implementations[node.parents[0]].mechanisms if node.parents else ()
    return tuple(mechanism for mechanism in node.mechanisms if mechanism not in inherited)


def _objective_s(node: Implementation) -> float | None:
    return None if node.measurement is None else node.measurement.objective_s


def _speedup_ratio(state: State, node: Implementation) -> float | None:
    """The one from its own blocks; where the root was not timed in them, the incumbent's over the paired ratio."""
    if node.id == ROOT:
        return None if state.root_objective_s is None else 1.0
    if node.measurement is None:
        return None
    if node.measurement.speedup_ratio is not None:
        return node.measurement.speedup_ratio
    beside = _speedup_ratio(state, state.implementations[node.measurement.incumbent])
    return None if beside is None else beside / node.measurement.ratio


# --- the fold ------------------------------------------------------------------------------------------------------


def _opened(folded: LineageFold, recorded: Recorded) -> None:
    _enter(folded, ROOT, ())


def _forked(folded: LineageFold, recorded: Recorded) -> None:
    assert isinstance(recorded.event, CampaignForked)
    folded.forks.append((recorded.event.parent, recorded.event.at))


def _proposed(folded: LineageFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, ActionProposed)
    folded.open_parents[event.action] = event.parents


def _submitted(folded: LineageFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, ImplementationSubmitted)
    folded.offspring[event.action] = event.implementation
    _enter(folded, event.implementation, folded.open_parents.pop(event.action))


def _enter(folded: LineageFold, implementation: str, parents: tuple[str, ...]) -> None:
    lane = _lane(folded, parents)
    folded.places[implementation] = Place(lane)
    folded.tips[lane] = implementation


def _lane(folded: LineageFold, parents: tuple[str, ...]) -> int:
    if parents and folded.tips[lane := folded.places[parents[0]].lane] == parents[0]:
        return lane
    if folded.dead_lanes:
        return heapq.heappop(folded.dead_lanes)
    folded.tips.append("")
    return len(folded.tips) - 1


def _edit_failed(folded: LineageFold, recorded: Recorded) -> None:
    assert isinstance(recorded.event, EditFailed)
    folded.open_parents.pop(recorded.event.action, None)


def _dropped(folded: LineageFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, ActionDropped)
    folded.open_parents.pop(event.action, None)
    if (implementation := folded.offspring.pop(event.action, None)) is not None:
        _end_lane(folded, implementation)


def _audited(folded: LineageFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, AuditCompleted)
    if isinstance(event.verdict, Infrastructure):
        return
    if event.action is not None:
        folded.offspring.pop(event.action, None)
    if event.verdict is not Correctness.VERIFIED:
        _end_lane(folded, event.implementation)


def _end_lane(folded: LineageFold, implementation: str) -> None:
    lane = folded.places[implementation].lane
    if folded.tips[lane] == implementation:
        folded.tips[lane] = ""
        heapq.heappush(folded.dead_lanes, lane)


def _promoted(folded: LineageFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, ImplementationPromoted)
    folded.promotions.append(
        Promotion(
            event.implementation,
            event.replaces,
            event.objective_s,
            event.gain_ratio,
            event.speedup_ratio,
            recorded.position,
        )
    )


def _decided(kind: Kind) -> Handler[LineageFold]:
    def take(folded: LineageFold, recorded: Recorded) -> None:
        event = recorded.event
        assert isinstance(event, BranchContinued | BranchDeferred | BranchArchived | BranchReactivated)
        folded.places[event.implementation].decision = BranchDecision(kind, event.reason, recorded.position)

    return take


def _abandoned(folded: LineageFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, BranchAbandoned)
    decision = BranchDecision("abandoned", f"{event.mechanism}: {event.reason}", recorded.position)
    for implementation in event.implementations:
        folded.places[implementation].decision = decision


_HANDLERS: dict[type[Event], Handler[LineageFold]] = {
    CampaignOpened: _opened,
    CampaignForked: _forked,
    ActionProposed: _proposed,
    ImplementationSubmitted: _submitted,
    EditFailed: _edit_failed,
    ActionDropped: _dropped,
    AuditCompleted: _audited,
    ImplementationPromoted: _promoted,
    BranchContinued: _decided("continued"),
    BranchDeferred: _decided("deferred"),
    BranchArchived: _decided("archived"),
    BranchReactivated: _decided("reactivated"),
    BranchAbandoned: _abandoned,
}

LINEAGE: Projection[LineageFold] = Projection("lineage", LineageFold, _HANDLERS)


# --- for a terminal ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strokes:
    """What a tree is drawn with."""

    branch: str
    last: str
    down: str
    gap: str
    best: str
    promoted: str
    merge: str


UNICODE = Strokes(branch="├─ ", last="└─ ", down="│  ", gap="   ", best="★", promoted="▲", merge="⋈")
ASCII = Strokes(branch="|- ", last="`- ", down="|  ", gap="   ", best="*", promoted="^", merge="&")


def tree_lines(view: Lineage, strokes: Strokes = UNICODE) -> tuple[str, ...]:
    """G as a text tree, one line an implementation. A merge hangs below its first parent and names the others."""
    children: dict[str, list[LineageNode]] = {}
    for node in view.nodes:
        for parent in node.parents[:1]:
            children.setdefault(parent, []).append(node)
    return tuple(f"{stem}{node_line(node, strokes)}" for stem, node in _walk(view, children, strokes))


def _walk(view: Lineage, children: dict[str, list[LineageNode]], strokes: Strokes) -> Iterator[tuple[str, LineageNode]]:
    """Depth first with a stack of our own: a lineage may be deeper than Python's recursion limit."""
    waiting = [("", "", node) for node in reversed(view.nodes) if not node.parents]
    while waiting:
        stem, below, node = waiting.pop()
        yield stem, node
        offspring = children.get(node.id, [])
        for place, child in enumerate(reversed(offspring)):
            stroke, down = (strokes.last, strokes.gap) if place == 0 else (strokes.branch, strokes.down)
            waiting.append((below + stroke, below + down, child))


def node_line(node: LineageNode, strokes: Strokes = UNICODE) -> str:
    """One implementation in a line: mark, id, what it added, scope, verdict, ratio, standing."""
    mark = strokes.best if node.best else strokes.promoted if node.promoted and node.id != ROOT else ""
    merged = f"{strokes.merge} {' + '.join(node.parents)}" if len(node.parents) > 1 else ""
    words = (node.id, mark, merged, ", ".join(node.added), _scope(node), _result(node), _speed(node), _standing(node))
    return "  ".join(word for word in words if word)


def _scope(node: LineageNode) -> str:
    return "root" if node.id == ROOT else node.scope


def _result(node: LineageNode) -> str:
    if node.verdict is None:
        return "not audited"
    if node.verdict is Correctness.VERIFIED and node.performance is not None:
        return node.performance.value
    return node.verdict.value


def _speed(node: LineageNode) -> str:
    return "" if node.speedup_ratio is None or node.id == ROOT else f"{node.speedup_ratio:.2f}x"


def _standing(node: LineageNode) -> str:
    """Only what the verdict does not say already."""
    words = []
    if node.standing in ("archive", "dropped"):
        words.append("archived" if node.standing == "archive" else "dropped")
    if node.decision is not None and node.decision.kind == "abandoned":
        words.append("abandoned")
    if node.awaits_merge:
        words.append("awaits a merge")
    if node.stale:
        words.append("stale")
    return ", ".join(words)
