"""What a campaign's log amounts to: the one fold that every rule and every agent reads.

`State` is an accumulator. Its owner alone mutates it, through `evolve`; copying a dict at every event would make a
long campaign quadratic. Whatever is handed to others is a frozen view made from it (projections) or read at once.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Any, Literal

from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import (
    CampaignForked,
    CampaignOpened,
    CampaignPaused,
    CampaignResumed,
    CampaignStopped,
    NoteAdded,
    RootQualified,
)
from kernelbraid.events.effects import ModelCalled, ModelRequested
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.packed import (
    NOTHING_FOUND,
    findings,
    incumbent,
    pack_findings,
    pack_submission,
    submission,
)
from kernelbraid.events.search import (
    ActionDropped,
    ActionProposed,
    EditFailed,
    ImplementationSubmitted,
    OpportunityRaised,
    OpportunityWithdrawn,
)
from kernelbraid.events.values import (
    ROOT,
    Baseline,
    Correctness,
    Digests,
    Environment,
    Infrastructure,
    Latencies,
    Measurement,
    Performance,
    Region,
    Resources,
    Scope,
    SourceFile,
    Specification,
    StopReason,
    environment_digest,
)

Status = Literal["opening", "running", "paused", "stopped"]
Standing = Literal["submitted", "frontier", "archive", "failed", "dropped"]
OpportunityStatus = Literal["pending", "consumed", "withdrawn"]

EDIT_RETURNS = 2
"""How often a failed edit returns its opportunity to pending."""


@dataclass(slots=True)
class Implementation:
    """One node of the derivation graph, from submission on."""

    id: str
    action: str | None
    parents: tuple[str, ...]
    scope: Scope
    mechanisms: tuple[str, ...]
    submission: bytes
    """Sources and regions, packed."""
    submitted_at: int
    standing: Standing = "submitted"
    verdict: Correctness | None = None
    performance: Performance | None = None
    findings: bytes = NOTHING_FOUND
    """Latencies, measurement and resources, packed."""
    audited_at: int = 0
    timed_at: int = 0
    archived_at: int = 0
    infrastructure_failures: int = 0
    promoted: bool = False
    promoted_at: int = 0
    stale: bool = False

    @property
    def verified(self) -> bool:
        """Whether it may be a parent: every check passed, every workload measured, in this environment."""
        return self.verdict is Correctness.VERIFIED and not self.stale

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Its files, whose texts are blobs."""
        return submission(self.submission).sources

    @property
    def regions(self) -> tuple[Region, ...]:
        """Its named regions."""
        return submission(self.submission).regions

    @property
    def latencies_s(self) -> Latencies:
        """Every workload's latency, empty until it was verified."""
        return findings(self.findings).latencies_s

    @property
    def measurement(self) -> Measurement | None:
        """The last comparison with an incumbent."""
        return findings(self.findings).measurement

    @property
    def incumbent(self) -> str | None:
        """Whom that compares it with: as `measurement.incumbent`, and quick for any number of implementations."""
        return incumbent(self.findings)

    @property
    def resources(self) -> Resources:
        """Measured facts of its artifact."""
        return findings(self.findings).resources


@dataclass(slots=True)
class Opportunity:
    """A mechanism worth trying, and what became of it."""

    id: str
    mechanisms: tuple[str, ...]
    parents: tuple[str, ...]
    scope: Scope
    expected_gain_ratio: float
    raised_at: int
    status: OpportunityStatus = "pending"
    edit_failures: int = 0


@dataclass(slots=True)
class Action:
    """An opportunity being tried; open until audited, failed or dropped."""

    id: str
    opportunity: str
    parents: tuple[str, ...]
    ancestor: str | None
    scope: Scope
    proposed_at: int
    implementation: str | None = None


@dataclass(slots=True)
class Spent:
    """What a campaign has used of its budgets since it opened or was forked."""

    audits: int = 0
    tokens: int = 0
    reserved_tokens: int = 0
    cost_usd: float = 0.0
    reserved_usd: float = 0.0
    active_s: float = 0.0


@dataclass(slots=True)
class State:
    """The accumulator. Dicts used as ordered sets keep log order, so equal logs give equal states."""

    campaign: str = ""
    position: int = 0
    fact_position: int = 0
    """The last position that is not operational: what the next decision is caused by."""
    status: Status = "opening"
    stop_reason: StopReason | None = None
    pause_reason: str = ""
    specification: Specification | None = None
    environment: Environment | None = None
    environment_digest: str = ""
    digests: Digests | None = None
    forked_from: tuple[str, int] | None = None
    baselines: tuple[Baseline, ...] = ()
    root_latencies_s: Latencies = field(default_factory=dict)
    root_objective_s: float | None = None
    best: str | None = None
    best_objective_s: float | None = None
    speedup_ratio: float = 1.0
    kappa: int = 0
    confirmations: int = 0
    consecutive_edit_failures: int = 0
    verified_count: int = 0
    failed_count: int = 0
    audited_count: int = 0
    promoted_count: int = 0
    implementations: dict[str, Implementation] = field(default_factory=dict)
    opportunities: dict[str, Opportunity] = field(default_factory=dict)
    actions: dict[str, Action] = field(default_factory=dict)
    frontier: dict[str, None] = field(default_factory=dict)
    archive: dict[str, None] = field(default_factory=dict)
    merge_list: dict[str, None] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    open_actions: dict[str, None] = field(default_factory=dict)
    undecided_branches: dict[str, None] = field(default_factory=dict)
    """Verified offspring that the brancher has not decided on yet."""
    retimings: dict[str, None] = field(default_factory=dict)
    """Promotable implementations whose incumbent is no longer the best."""
    unsettled: dict[str, None] = field(default_factory=dict)
    """Promotable implementations that a stop left unpromoted: a fork times them again."""
    stale: dict[str, None] = field(default_factory=dict)
    """Implementations to audit again before any action, in this order."""
    attempts: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Actions by the mechanisms they tried."""
    model_requests: dict[str, ModelRequested] = field(default_factory=dict)
    """Requests without an outcome yet."""
    requests_used: dict[str, None] = field(default_factory=dict)
    """Every request ever made: its number is used up, also in a fork."""
    spent: Spent = field(default_factory=Spent)
    inherited: Spent | None = None
    """What a fork's origins spent, all of them together."""
    recorded_at: datetime | None = None
    driven_at: datetime | None = None
    """Up to when `spent.active_s` counts: the last event that is a driver's doing."""

    @property
    def next_implementation(self) -> str:
        """The id of the next implementation."""
        return f"i{len(self.implementations):04d}"

    @property
    def next_action(self) -> str:
        """The id of the next action."""
        return f"a{len(self.actions) + 1:04d}"

    @property
    def next_opportunity(self) -> str:
        """The id of the next opportunity."""
        return opportunity_id(len(self.opportunities) + 1)

    @property
    def in_flight(self) -> int:
        """Actions proposed and not yet audited, failed or dropped."""
        return len(self.open_actions)

    def specified(self) -> Specification:
        """The specification; every campaign has one from its first event on."""
        if self.specification is None:
            raise ValueError("the campaign has not been opened")
        return self.specification

    def ancestors(self, implementation: str) -> Iterator[str]:
        """The implementation and all it derives from, nearest first, each once."""
        seen: dict[str, None] = {}
        waiting = [implementation]
        while waiting:
            current = waiting.pop(0)
            if current not in seen:
                seen[current] = None
                yield current
                waiting.extend(self.implementations[current].parents)


def opportunity_id(ordinal: int) -> str:
    """The id of a campaign's n-th opportunity, counted from 1."""
    return f"o{ordinal:04d}"


def fold(recorded: Iterable[Recorded], state: State | None = None) -> State:
    """Fold events into a state, a new one unless given."""
    state = State() if state is None else state
    for item in recorded:
        evolve(state, item)
    return state


def evolve(state: State, recorded: Recorded) -> None:
    """Take one event in. The only function that changes a State."""
    campaign, position, recorded_at, actor, _, _, event = recorded
    kind = type(event)
    _FOLDS[kind](state, event, position)
    state.position = position
    if kind not in _OPERATIONAL:
        state.fact_position = position
    state.recorded_at = recorded_at
    if kind is not NoteAdded and (actor != "user" or state.driven_at is None):
        _count_driven(state, kind, recorded_at)
    if not state.campaign:
        state.campaign = campaign


# A campaign's clock does not run while nobody drives it, nor for what an origin spent before a fork. Notes and what a
# user does leave it alone: they come while a driver works as well as while there is none.
_CLOCK_RESTARTS = frozenset({CampaignResumed, CampaignForked})


def _count_driven(state: State, kind: type[Event], recorded_at: datetime) -> None:
    before = state.driven_at
    if before is not None and kind not in _CLOCK_RESTARTS:
        passed_s = (recorded_at - before).total_seconds()
        if passed_s > 0:
            state.spent.active_s += passed_s
    state.driven_at = recorded_at


def objective_s(specification: Specification, latencies_s: Latencies) -> float:
    """The weighted sum of latencies that a campaign minimises."""
    weights = {workload.name: workload.weight for workload in specification.contract.workloads}
    return math.fsum(weights[workload] * latency_s for workload, latency_s in latencies_s.items())


def _opened(state: State, event: CampaignOpened, position: int) -> None:
    state.specification = event.specification
    _environment(state, event.environment)
    state.digests = event.digests
    state.implementations[ROOT] = Implementation(
        ROOT, None, (), "joint", (), pack_submission(event.sources, event.regions), submitted_at=position
    )
    state.stale[ROOT] = None


def _environment(state: State, environment: Environment) -> None:
    state.environment = environment
    state.environment_digest = environment_digest(environment)


def _qualified(state: State, event: RootQualified, position: int) -> None:
    state.baselines = event.baselines
    state.root_latencies_s = event.latencies_s
    state.root_objective_s = event.objective_s
    state.best, state.best_objective_s, state.speedup_ratio = ROOT, event.objective_s, 1.0
    if state.status == "opening":
        state.status = _openness(state)
    _crown(state, ROOT, position)
    _to_frontier(state, ROOT)


def _crown(state: State, implementation: str, position: int) -> None:
    state.implementations[implementation].promoted = True
    state.implementations[implementation].promoted_at = position


def _forked(state: State, event: CampaignForked, position: int) -> None:
    state.campaign = ""
    state.forked_from = (event.parent, event.at)
    state.specification = event.specification
    state.digests = event.digests
    _environment(state, event.environment)
    state.inherited, state.spent = _inherited(state), Spent()
    state.stop_reason, state.pause_reason = None, ""
    state.model_requests.clear()
    state.consecutive_edit_failures = 0
    if event.stale:
        _make_stale(state, event.stale_archive)
    elif state.root_objective_s is None:
        state.stale = {ROOT: None, **state.stale}
    state.retimings |= state.unsettled
    state.unsettled.clear()
    for implementation in state.stale:
        state.implementations[implementation].infrastructure_failures = 0
    state.status = _openness(state)


def _inherited(state: State) -> Spent:
    """All that the origins spent; what their open calls had reserved is their own affair."""
    before, spent = state.inherited or Spent(), state.spent
    return Spent(
        audits=before.audits + spent.audits,
        tokens=before.tokens + spent.tokens,
        cost_usd=before.cost_usd + spent.cost_usd,
        active_s=before.active_s + spent.active_s,
    )


def _make_stale(state: State, archive: bool) -> None:
    """No verdict holds here: root, best and frontier wait for audits; nothing is the best until the root qualifies."""
    best = [] if state.best is None else [state.best]
    state.stale = dict.fromkeys([ROOT, *best, *state.frontier, *(state.archive if archive else ())])
    state.root_latencies_s, state.root_objective_s, state.baselines = {}, None, ()
    state.best, state.best_objective_s, state.speedup_ratio = None, None, 1.0
    state.retimings.clear()
    state.unsettled.clear()
    state.undecided_branches.clear()
    for implementation in state.implementations.values():
        implementation.stale = implementation.verdict is Correctness.VERIFIED


def _openness(state: State) -> Status:
    return "opening" if state.stale or state.root_objective_s is None else "running"


def _paused(state: State, event: CampaignPaused, position: int) -> None:
    state.status, state.pause_reason = "paused", event.reason


def _resumed(state: State, event: CampaignResumed, position: int) -> None:
    if state.status == "paused":
        state.status, state.pause_reason = _openness(state), ""
    for implementation in state.stale | dict.fromkeys(_in_audit(state)):
        state.implementations[implementation].infrastructure_failures = 0


def _in_audit(state: State) -> Iterator[str]:
    for action in state.open_actions:
        if (implementation := state.actions[action].implementation) is not None:
            yield implementation


def _stopped(state: State, event: CampaignStopped, position: int) -> None:
    state.status, state.stop_reason = "stopped", event.reason
    state.unsettled = state.retimings
    state.retimings = {}


def _noted(state: State, event: NoteAdded, position: int) -> None:
    pass


def _raised(state: State, event: OpportunityRaised, position: int) -> None:
    state.opportunities[event.opportunity] = Opportunity(
        event.opportunity,
        _shared(event.mechanisms),
        _known(state, event.parents),
        event.scope,
        event.expected_gain_ratio,
        position,
    )
    state.pending[event.opportunity] = None


# Every decoded event brings its own copy of each id and name; keeping the first one alone halves the state's size.
def _known(state: State, implementations: Iterable[str]) -> tuple[str, ...]:
    return tuple([state.implementations[implementation].id for implementation in implementations])


def _shared(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(intern, names))


def _withdrawn(state: State, event: OpportunityWithdrawn, position: int) -> None:
    _withdraw(state, event.opportunity)


def _withdraw(state: State, opportunity: str) -> None:
    state.opportunities[opportunity].status = "withdrawn"
    state.pending.pop(opportunity, None)


def _proposed(state: State, event: ActionProposed, position: int) -> None:
    opportunity = state.opportunities[event.opportunity]
    opportunity.status = "consumed"
    state.pending.pop(event.opportunity, None)
    state.actions[event.action] = Action(
        event.action, opportunity.id, _known(state, event.parents), event.ancestor, event.scope, position
    )
    state.open_actions[event.action] = None
    state.attempts.setdefault(opportunity.mechanisms, []).append(event.action)
    if len(event.parents) > 1:
        for parent in event.parents:
            state.merge_list.pop(parent, None)


def _submitted(state: State, event: ImplementationSubmitted, position: int) -> None:
    action = state.actions[event.action]
    action.implementation = event.implementation
    state.consecutive_edit_failures = 0
    state.implementations[event.implementation] = Implementation(
        event.implementation,
        action.id,
        action.parents,
        action.scope,
        _shared(event.mechanisms),
        pack_submission(event.sources, event.regions),
        submitted_at=position,
    )


def _edit_failed(state: State, event: EditFailed, position: int) -> None:
    opportunity = state.opportunities[state.actions[event.action].opportunity]
    state.open_actions.pop(event.action, None)
    state.consecutive_edit_failures += 1
    opportunity.edit_failures += 1
    if opportunity.edit_failures <= EDIT_RETURNS:
        _return(state, opportunity)


def _return(state: State, opportunity: Opportunity) -> None:
    opportunity.status = "pending"
    state.pending[opportunity.id] = None


def _dropped(state: State, event: ActionDropped, position: int) -> None:
    action = state.actions[event.action]
    state.open_actions.pop(event.action, None)
    if action.implementation is not None:
        state.implementations[action.implementation].standing = "dropped"
    _return(state, state.opportunities[action.opportunity])


def _audited(state: State, event: AuditCompleted, position: int) -> None:
    implementation = state.implementations[event.implementation]
    if isinstance(event.verdict, Infrastructure):
        implementation.infrastructure_failures += 1
        return
    _count_verdict(state, implementation.verdict, -1)
    _count_verdict(state, event.verdict, +1)
    implementation.verdict, implementation.audited_at, implementation.stale = event.verdict, position, False
    _judge(state, implementation, event)
    state.stale.pop(event.implementation, None)
    if event.action is not None:
        state.open_actions.pop(event.action, None)
        state.kappa += 1
        state.spent.audits += 1
        if implementation.verified:
            state.undecided_branches[event.implementation] = None
    elif state.status == "opening":
        state.status = _openness(state)


def _count_verdict(state: State, verdict: Correctness | None, step: int) -> None:
    """Counts are of implementations, so an audit repeated in a fork takes the place of the earlier one."""
    if verdict is not None:
        state.audited_count += step
        state.verified_count += step * (verdict is Correctness.VERIFIED)
        state.failed_count += step * (verdict is not Correctness.VERIFIED)


def _judge(state: State, implementation: Implementation, event: AuditCompleted) -> None:
    _measured(state, implementation, event, event.resources)
    if event.verdict is not Correctness.VERIFIED:
        implementation.standing = "failed"
        for members in (state.frontier, state.archive, state.merge_list):
            members.pop(implementation.id, None)
    elif implementation.standing != "archive":
        _to_frontier(state, implementation.id)


def _to_frontier(state: State, implementation: str) -> None:
    node = state.implementations[implementation]
    state.archive.pop(node.id, None)
    state.frontier[node.id] = None
    node.standing = "frontier"


def _measured(
    state: State,
    implementation: Implementation,
    event: AuditCompleted | TimingCompleted,
    resources: Resources,
) -> None:
    implementation.performance = event.performance
    implementation.findings = pack_findings(event.latencies_s, event.measurement, resources)
    if event.measurement is not None and event.measurement.confirmation is not None:
        state.confirmations = event.measurement.confirmation
    state.retimings.pop(implementation.id, None)
    if needs_retiming(state, implementation):
        state.retimings[implementation.id] = None
    elif state.status == "stopped" and implementation.performance is Performance.PROMOTABLE:
        state.unsettled[implementation.id] = None


def needs_retiming(state: State, implementation: Implementation) -> bool:
    """Whether it won against an implementation that is no longer the best."""
    return (
        state.status != "stopped"
        and implementation.performance is Performance.PROMOTABLE
        and implementation.measurement is not None
        and implementation.measurement.incumbent != state.best
    )


def _timed(state: State, event: TimingCompleted, position: int) -> None:
    implementation = state.implementations[event.implementation]
    implementation.timed_at = position
    if event.measurement is not None:
        _measured(state, implementation, event, implementation.resources)
        return
    implementation.performance = event.performance
    state.retimings.pop(event.implementation, None)


def _promoted(state: State, event: ImplementationPromoted, position: int) -> None:
    _crown(state, event.implementation, position)
    state.best, state.best_objective_s = event.implementation, event.objective_s
    state.speedup_ratio = event.speedup_ratio
    state.kappa = 0
    state.promoted_count += 1


def _continued(state: State, event: BranchContinued, position: int) -> None:
    state.undecided_branches.pop(event.implementation, None)


def _deferred(state: State, event: BranchDeferred, position: int) -> None:
    state.undecided_branches.pop(event.implementation, None)
    state.merge_list[event.implementation] = None


def _archived(state: State, event: BranchArchived, position: int) -> None:
    _archive(state, event.implementation, position)


def _archive(state: State, implementation: str, position: int) -> None:
    node = state.implementations[implementation]
    state.undecided_branches.pop(node.id, None)
    state.frontier.pop(node.id, None)
    state.merge_list.pop(node.id, None)
    state.archive[node.id] = None
    node.standing, node.archived_at = "archive", position


def _reactivated(state: State, event: BranchReactivated, position: int) -> None:
    _to_frontier(state, event.implementation)


def _abandoned(state: State, event: BranchAbandoned, position: int) -> None:
    for opportunity in event.withdrawn:
        _withdraw(state, opportunity)
    for implementation in event.implementations:
        if implementation in state.frontier:
            _archive(state, implementation, position)
        else:
            state.undecided_branches.pop(implementation, None)


def _requested(state: State, event: ModelRequested, position: int) -> None:
    state.model_requests[event.request] = event
    state.requests_used[event.request] = None
    state.spent.reserved_tokens += event.reserved_tokens
    state.spent.reserved_usd += event.reserved_usd


def _called(state: State, event: ModelCalled, position: int) -> None:
    request = state.model_requests.pop(event.request)
    state.spent.reserved_tokens -= request.reserved_tokens
    state.spent.reserved_usd -= request.reserved_usd
    state.spent.tokens += event.input_tokens + event.output_tokens
    state.spent.cost_usd += event.cost_usd


_FOLDS: dict[type[Event], Callable[[State, Any, int], None]] = {
    CampaignOpened: _opened,
    RootQualified: _qualified,
    CampaignForked: _forked,
    CampaignPaused: _paused,
    CampaignResumed: _resumed,
    CampaignStopped: _stopped,
    NoteAdded: _noted,
    OpportunityRaised: _raised,
    OpportunityWithdrawn: _withdrawn,
    ActionProposed: _proposed,
    ImplementationSubmitted: _submitted,
    EditFailed: _edit_failed,
    ActionDropped: _dropped,
    AuditCompleted: _audited,
    TimingCompleted: _timed,
    ImplementationPromoted: _promoted,
    BranchContinued: _continued,
    BranchDeferred: _deferred,
    BranchArchived: _archived,
    BranchReactivated: _reactivated,
    BranchAbandoned: _abandoned,
    ModelRequested: _requested,
    ModelCalled: _called,
}

# Asking a class of pydantic's for a field of its own takes longer than most of the folds above.
_OPERATIONAL = frozenset(kind for kind in _FOLDS if kind.operational)
