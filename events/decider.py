"""Every rule of the search, one pure verb per decision.

A verb takes the folded state and what its actor wants, and returns the events of one append, or raises RuleBroken
with the rule it would break. Nothing here reads a clock, draws a number or touches a store.
"""

from collections.abc import Iterable, Sequence

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
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Event
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.search import (
    ActionDropped,
    ActionProposed,
    EditFailed,
    ImplementationSubmitted,
    OpportunityRaised,
    OpportunityWithdrawn,
)
from kernelbraid.events.state import Action, Implementation, State, objective_s, opportunity_id
from kernelbraid.events.values import (
    ROOT,
    Baseline,
    Change,
    Correctness,
    Digests,
    DropReason,
    Environment,
    Infrastructure,
    Measurement,
    Performance,
    Region,
    Session,
    Specification,
    StopReason,
    environment_digest,
)

Events = tuple[Event, ...]

SMALLEST_DELTA_RATIO = 0.005
LARGEST_DELTA_RATIO = 0.008
INFRASTRUCTURE_RETRIES = 1


def confirmation_alpha(confirmation: int) -> float:
    """The error a campaign spends on its k-th confirmation; over all k they add up to 0.05."""
    return 0.05 / (confirmation * (confirmation + 1))


def require(condition: bool, rule: str) -> None:
    """Raise RuleBroken with the rule unless it holds."""
    if not condition:
        raise RuleBroken(rule)


# --- a campaign's life ---------------------------------------------------------------------------------------------


def open_campaign(state: State, event: CampaignOpened) -> Events:
    """Set a search up; the root is audited next."""
    require(state.position == 0, "the campaign is open already")
    return (event,)


def pause(state: State, reason: str) -> Events:
    """Let running audits finish and start nothing."""
    _opened(state)
    require(state.status in ("opening", "running"), f"a {state.status} campaign cannot be paused")
    return (CampaignPaused(reason=reason),)


def resume(state: State, environment: Environment, reason: str = "") -> Events:
    """Take a campaign up again, after a pause or a crash, on the machine it was measured on."""
    _opened(state)
    require(state.status != "stopped", "the campaign is stopped, which is final: fork it to go on")
    require(
        environment_digest(environment) == state.environment_digest,
        "the environment changed since the campaign opened, so its verdicts no longer hold here: "
        "fork it, and the fork audits root, best and frontier again",
    )
    return (CampaignResumed(reason=reason),)


def stop(state: State, reason: StopReason, detail: str = "", *, elapsed_s: float = 0.0) -> Events:
    """End the search for good, if the reason holds.

    `elapsed_s` is the driver's clock since `state.driven_at`. Actions that were never submitted stay open, and only
    a fork goes on with them.
    """
    _opened(state)
    require(state.status != "stopped", "the campaign is stopped already")
    holds = reason is StopReason.USER or due_stop(state, elapsed_s) is reason
    require(holds, f"the campaign cannot stop for {reason}: it does not hold")
    return (CampaignStopped(reason=reason, detail=detail),)


def due_stop(state: State, elapsed_s: float = 0.0) -> StopReason | None:
    """The reason to stop now, if there is one and nothing in flight could undo it.

    Opportunities running out is the planner's finding, so it is due only when none is pending.
    """
    if state.status != "running" or state.open_actions or state.retimings or state.undecided_branches:
        return None
    policy = state.specified().policy
    if state.kappa >= policy.kappa:
        return StopReason.KAPPA
    if budget_spent(state, elapsed_s):
        return StopReason.BUDGET
    if state.consecutive_edit_failures >= policy.edits_failing:
        return StopReason.EDITS_FAILING
    return None if state.pending else StopReason.OPPORTUNITIES_EXHAUSTED


def budget_spent(state: State, elapsed_s: float = 0.0) -> str | None:
    """Which budget leaves no room for one more action, if any."""
    policy, spent = state.specified().policy, state.spent
    if policy.audits is not None and spent.audits + state.in_flight >= policy.audits:
        return "audits"
    if policy.tokens is not None and spent.tokens + spent.reserved_tokens >= policy.tokens:
        return "tokens"
    if policy.cost_usd is not None and spent.cost_usd + spent.reserved_usd >= policy.cost_usd:
        return "cost"
    if policy.wall_s is not None and spent.active_s + elapsed_s >= policy.wall_s:
        return "wall"
    return None


def note(state: State, text: str) -> Events:
    """Write something down; allowed at any time, after a stop too."""
    _opened(state)
    require(bool(text.strip()), "a note needs text")
    return (NoteAdded(text=text),)


def fork(
    state: State,
    parent_hash: str,
    specification: Specification,
    environment: Environment,
    digests: Digests,
    *,
    reaudit: bool = False,
    archive: bool = False,
) -> Events:
    """Begin a child at this state: open actions are dropped, their opportunities pending again.

    `reaudit` makes the inherited verdicts stale in any case, `archive` those of the archive too when any are.
    """
    _opened(state)
    before = state.specified()
    changes = specification_changes(before, specification)
    require(state.kappa < specification.policy.kappa, "kappa is spent at that position: fork with a larger --set kappa")
    elsewhere = environment_digest(environment) != state.environment_digest
    stale = reaudit or elsewhere or before.contract != specification.contract
    forked = CampaignForked(
        parent=state.campaign,
        at=state.position,
        parent_hash=parent_hash,
        specification=specification,
        environment=environment,
        digests=digests,
        changes=changes,
        stale=stale,
        stale_archive=stale and archive,
    )
    drops = (ActionDropped(action=action, reason=DropReason.FORKED) for action in state.open_actions)
    return (forked, *drops)


def specification_changes(before: Specification, after: Specification) -> tuple[Change, ...]:
    """Every key whose value differs, as `policy.kappa` with both values as JSON."""
    changes = []
    for part in ("contract", "policy"):
        old, new = getattr(before, part), getattr(after, part)
        for key in type(old).model_fields:
            left, right = old.model_dump_json(include={key}), new.model_dump_json(include={key})
            if left != right:
                changes.append(Change(key=f"{part}.{key}", before=left, after=right))
    return tuple(changes)


# --- search --------------------------------------------------------------------------------------------------------


def raise_opportunities(state: State, raised: Sequence[OpportunityRaised]) -> Events:
    """Note that mechanisms are worth trying on verified parents; ids go on from the last one."""
    _running(state)
    for ordinal, event in enumerate(raised, start=len(state.opportunities) + 1):
        require(event.opportunity == opportunity_id(ordinal), f"the next opportunity is {opportunity_id(ordinal)}")
        require(bool(event.mechanisms), "an opportunity names a mechanism")
        _verified_parents(state, event.parents)
    return tuple(raised)


def withdraw_opportunity(state: State, opportunity: str, reason: str) -> Events:
    """Take a pending opportunity back."""
    _running(state)
    require(opportunity in state.pending, f"{opportunity} is not pending")
    return (OpportunityWithdrawn(opportunity=opportunity, reason=reason),)


def propose_action(state: State, event: ActionProposed, *, elapsed_s: float = 0.0) -> Events:
    """Start trying a pending opportunity on verified parents."""
    _running(state)
    policy = state.specified().policy
    require(event.opportunity in state.pending, f"{event.opportunity} is not pending")
    require(state.in_flight < policy.parallel, f"{policy.parallel} actions are in flight already")
    require(state.consecutive_edit_failures < policy.edits_failing, "edits keep failing: no new action starts")
    opportunity = state.opportunities[event.opportunity]
    _may_begin(state, event, opportunity.scope, elapsed_s)
    return (event,)


def propose_offspring(
    state: State, raised: OpportunityRaised, proposed: ActionProposed, submitted: ImplementationSubmitted
) -> Events:
    """Take a complete offspring in from outside: its opportunity, action and implementation in one append.

    It waits for its audit, also while the campaign is paused, and needs no room in flight: the planner starts nothing
    beside it that would be one too many.
    """
    _unstopped(state)
    require(state.status != "opening", "the root is to be audited first: nothing can build on it yet")
    require(raised.opportunity == state.next_opportunity, f"the next opportunity is {state.next_opportunity}")
    require(bool(raised.mechanisms), "an opportunity names a mechanism")
    about = (proposed.opportunity, proposed.parents) == (raised.opportunity, raised.parents)
    require(about, f"the action is about {raised.opportunity}, on its parents")
    _may_begin(state, proposed, raised.scope)
    require(submitted.action == proposed.action, f"the offspring is that of {proposed.action}")
    _complete(state, submitted, proposed.scope, proposed.parents)
    return (raised, proposed, submitted)


def _may_begin(state: State, event: ActionProposed, scope: str, elapsed_s: float = 0.0) -> None:
    """What holds for every action, whoever proposes it; `scope` is its opportunity's."""
    require(event.action == state.next_action, f"the next action is {state.next_action}")
    require(state.kappa < state.specified().policy.kappa, "kappa reached its threshold: no new action starts")
    require(budget_spent(state, elapsed_s) is None, "a budget is spent: no new action starts")
    require(event.scope == scope, f"{event.opportunity} has the scope {scope}")
    _verified_parents(state, event.parents)
    _merge_ancestor(state, event)


def _merge_ancestor(state: State, event: ActionProposed) -> None:
    if len(event.parents) == 1:
        require(event.ancestor is None, "one parent needs no common ancestor")
        return
    require(event.ancestor is not None, "a merge names the common ancestor of its parents")
    assert event.ancestor is not None
    shared = all(event.ancestor in state.ancestors(parent) for parent in event.parents)
    require(shared, f"{event.ancestor} is not an ancestor of every parent")


def submit_implementation(state: State, event: ImplementationSubmitted) -> Events:
    """Hand in a complete offspring for an open action."""
    _unstopped(state)
    action = _open_action(state, event.action)
    require(action.implementation is None, f"{event.action} has its implementation already")
    _complete(state, event, action.scope, action.parents)
    return (event,)


def _complete(state: State, event: ImplementationSubmitted, scope: str, parents: Iterable[str]) -> None:
    require(event.implementation == state.next_implementation, f"the next one is {state.next_implementation}")
    require(bool(event.sources), "an implementation needs sources")
    if scope != "joint":
        for parent in parents:
            _honest_scope(state.implementations[parent], event, scope)


def _honest_scope(parent: Implementation, event: ImplementationSubmitted, scope: str) -> None:
    beyond = sorted(name for name, paths in changed_regions(parent.regions, event.regions) if set(paths) - {scope})
    require(not beyond, f"declared {scope} only, but it changes regions of the other path: {', '.join(beyond)}")


def changed_regions(before: Iterable[Region], after: Iterable[Region]) -> list[tuple[str, tuple[str, ...]]]:
    """Regions that were changed, added or removed, each with every path it served before or serves now."""
    old, new = {item.name: item for item in before}, {item.name: item for item in after}
    changed = [(name, old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)]
    return [(name, _paths(left) + _paths(right)) for name, left, right in changed]


def _paths(region: Region | None) -> tuple[str, ...]:
    return () if region is None else region.paths


def fail_edit(state: State, action: str, reason: str) -> Events:
    """Give an action up before any offspring came of it."""
    _unstopped(state)
    require(_open_action(state, action).implementation is None, f"{action} has an implementation, which is audited")
    return (EditFailed(action=action, reason=reason),)


def drop_action(state: State, action: str, reason: DropReason) -> Events:
    """End an open action without an audit; only a fork drops what its origin goes on with."""
    _unstopped(state)
    require(reason is not DropReason.FORKED, "actions are dropped as forked by the fork itself")
    _open_action(state, action)
    return (ActionDropped(action=action, reason=reason),)


# --- audit ---------------------------------------------------------------------------------------------------------


def complete_root_audit(
    state: State,
    audit: AuditCompleted,
    baselines: Sequence[Baseline] = (),
    blocks: Sequence[str] = (),
    sessions: Sequence[Session] = (),
) -> Events:
    """Record the root's audit: the search opens, or the campaign stops because the root does not qualify."""
    require(ROOT in state.stale and audit.implementation == ROOT, "the root is not waiting for an audit")
    _plausible(state, audit)
    if isinstance(audit.verdict, Infrastructure):
        return (audit, *_after_infrastructure(state, audit))
    if state.status == "stopped":
        return (audit,)
    if audit.verdict is not Correctness.VERIFIED:
        return (audit, CampaignStopped(reason=StopReason.ROOT_UNQUALIFIED, detail=f"{audit.verdict}: {audit.evidence}"))
    objective = objective_s(state.specified(), audit.latencies_s)
    qualified = RootQualified(
        latencies_s=audit.latencies_s,
        objective_s=objective,
        baselines=tuple(baselines),
        blocks=tuple(blocks),
        sessions=tuple(sessions),
    )
    return (audit, qualified)


def complete_audit(state: State, audit: AuditCompleted) -> Events:
    """Record an offspring's audit, and its promotion if it won against today's best."""
    implementation = state.implementations.get(audit.implementation)
    require(implementation is not None, f"there is no implementation {audit.implementation}")
    assert implementation is not None
    if audit.action is None:
        require(audit.implementation in state.stale and ROOT not in state.stale, "it is not due to be audited again")
    else:
        action = _open_action(state, audit.action)
        require(action.implementation == audit.implementation, f"{audit.action} did not make {audit.implementation}")
    _plausible(state, audit)
    if isinstance(audit.verdict, Infrastructure):
        return (audit, *_after_infrastructure(state, audit))
    return (audit, *_promotion(state, audit.implementation, audit.performance, audit.measurement))


def complete_timing(state: State, timing: TimingCompleted) -> Events:
    """Record that a winner was timed again, against the implementation that is the best now."""
    require(timing.implementation in state.retimings, f"{timing.implementation} is not due to be timed again")
    require(timing.environment == state.environment_digest, "it was timed in another environment")
    if timing.measurement is not None:
        _covers_workloads(state, timing.latencies_s)
        require(timing.measurement.incumbent != timing.implementation, "it cannot win against itself")
        _sound(state, timing.performance, timing.measurement)
    return (timing, *_promotion(state, timing.implementation, timing.performance, timing.measurement))


def _plausible(state: State, audit: AuditCompleted) -> None:
    here = audit.environment == state.environment_digest
    require(here or audit.verdict is Infrastructure.ENVIRONMENT_CHANGED, "it was audited in another environment")
    if audit.verdict is not Correctness.VERIFIED:
        require(audit.measurement is None, "only what is verified is measured")
        return
    require(bool(audit.checks), "verified means that checks ran")
    require(all(check.passed for check in audit.checks), "verified means that every check passed")
    _covers_workloads(state, audit.latencies_s)
    if audit.implementation == ROOT:
        require(audit.measurement is None, "the root has no incumbent to be measured against")
        return
    require(audit.performance is not None and audit.measurement is not None, "a verified offspring has a measurement")
    assert audit.performance is not None
    assert audit.measurement is not None
    require(audit.measurement.incumbent != audit.implementation, "it cannot win against itself")
    _sound(state, audit.performance, audit.measurement)


def _covers_workloads(state: State, measured: Iterable[str]) -> None:
    due = sorted(workload.name for workload in state.specified().contract.workloads)
    require(sorted(measured) == due, f"every workload is measured once: {', '.join(due)}")


def _sound(state: State, performance: Performance, measurement: Measurement) -> None:
    """The inequalities between a performance result and the numbers it rests on."""
    incumbent = state.implementations.get(measurement.incumbent)
    require(incumbent is not None and incumbent.promoted, f"{measurement.incumbent} was never the best")
    require(measurement.upper_bound_ratio >= measurement.ratio, "an upper bound is not below its estimate")
    over = _limits_exceeded(state, measurement)
    require(not over or performance is not Performance.PROMOTABLE, f"over the limit on {', '.join(over)}")
    require(bool(over) or performance is not Performance.OVER_LIMIT, "over_limit means a limit that is not kept")
    if measurement.confirmation is None:
        require(performance is not Performance.PROMOTABLE, "a promotion needs a confirmation")
        return
    expected = state.confirmations + 1
    require(measurement.confirmation == expected, f"the next confirmation is number {expected}")
    if performance is Performance.PROMOTABLE:
        _winning(state, measurement)


def _limits_exceeded(state: State, measurement: Measurement) -> list[str]:
    declared = {workload.name: workload.limit_ratio for workload in state.specified().contract.workloads}
    bounds = measurement.root_upper_bound_ratios
    require(bounds.keys() == measurement.root_ratios.keys(), "every ratio to the root has its upper bound")
    require(bounds.keys() <= declared.keys(), "a limit is checked on a workload that the specification lacks")
    return [workload for workload, bound in bounds.items() if bound > declared[workload]]


def _winning(state: State, measurement: Measurement) -> None:
    assert measurement.confirmation is not None
    alpha = confirmation_alpha(measurement.confirmation)
    require(measurement.alpha is not None and 0 < measurement.alpha <= alpha, f"alpha is at most {alpha:.3g} here")
    least = max(SMALLEST_DELTA_RATIO, 3 * measurement.standard_error_ratio)
    require(least <= measurement.delta_ratio * (1 + 1e-9), "delta is below three standard errors or half a percent")
    margin = measurement.delta_ratio
    require(margin <= LARGEST_DELTA_RATIO * (1 + 1e-9), f"too noisy to decide: delta is {margin:.3g}")
    require(measurement.upper_bound_ratio < 1 - margin, f"the upper bound is not below 1 - {margin:.3g}")
    require(measurement.speedup_ratio is not None, "a promotion says how it compares with the root")
    _covers_workloads(state, measurement.root_ratios)


def _promotion(
    state: State, implementation: str, performance: Performance | None, measurement: Measurement | None
) -> Events:
    won = performance is Performance.PROMOTABLE and measurement is not None and measurement.incumbent == state.best
    if not won or state.status == "stopped":
        return ()
    assert measurement is not None
    assert measurement.speedup_ratio is not None
    assert state.best is not None
    promoted = ImplementationPromoted(
        implementation=implementation,
        replaces=state.best,
        objective_s=measurement.objective_s,
        gain_ratio=1 / measurement.ratio,
        speedup_ratio=measurement.speedup_ratio,
    )
    if implementation not in state.archive:
        return (promoted,)
    # Only a fork that audits the archive again can find its best there, and the best is always in the frontier.
    return (promoted, BranchReactivated(implementation=implementation, because=implementation, reason="it won again"))


def _after_infrastructure(state: State, audit: AuditCompleted) -> Events:
    failures = state.implementations[audit.implementation].infrastructure_failures
    if failures < INFRASTRUCTURE_RETRIES or state.status in ("paused", "stopped"):
        return ()
    return (CampaignPaused(reason=f"{audit.verdict} twice on {audit.implementation}: {audit.evidence}"),)


# --- lineage -------------------------------------------------------------------------------------------------------


def continue_branch(state: State, implementation: str, opportunity: str | None, reason: str) -> Events:
    """Keep it in the frontier, with the follow-up that justifies it; the best stays without one too.

    The follow-up may be one that the same append raises: then it has the next id.
    """
    _in_frontier(state, implementation)
    if opportunity is None:
        require(implementation == state.best, f"a follow-up keeps {implementation} in the frontier, and none is named")
    elif opportunity != state.next_opportunity:
        _follow_up(state, implementation, opportunity)
    return (BranchContinued(implementation=implementation, opportunity=opportunity, reason=reason),)


def _follow_up(state: State, implementation: str, opportunity: str) -> None:
    known = state.opportunities.get(opportunity)
    require(known is not None, f"there is no opportunity {opportunity}")
    assert known is not None
    require(implementation in known.parents, f"{opportunity} does not build on {implementation}")
    require(known.status != "withdrawn", f"{opportunity} was withdrawn")


def defer_branch(state: State, implementation: str, reason: str) -> Events:
    """Keep it in the frontier, waiting to be merged."""
    _in_frontier(state, implementation)
    return (BranchDeferred(implementation=implementation, reason=reason),)


def archive_branch(state: State, implementation: str, reason: str) -> Events:
    """Set a verified implementation aside."""
    _in_frontier(state, implementation)
    _dispensable(state, implementation)
    return (BranchArchived(implementation=implementation, reason=reason),)


def _dispensable(state: State, implementation: str) -> None:
    require(implementation != state.best, "the best is never archived or abandoned")
    require(implementation not in state.retimings, f"{implementation} may become the best: it is to be timed again")


def reactivate_branch(state: State, implementation: str, because: str, reason: str) -> Events:
    """Bring an archived implementation back, citing something that happened since."""
    _running(state)
    require(implementation in state.archive, f"{implementation} is not archived")
    require(state.implementations[implementation].verified, f"{implementation} is not verified in this environment")
    later = _happened_at(state, because) > state.implementations[implementation].archived_at
    require(later, f"{because} is no later than the archiving of {implementation}")
    return (BranchReactivated(implementation=implementation, because=because, reason=reason),)


def _happened_at(state: State, cited: str) -> int:
    if cited in state.implementations:
        node = state.implementations[cited]
        return max(node.submitted_at, node.audited_at, node.timed_at, node.promoted_at)
    if cited in state.opportunities:
        return state.opportunities[cited].raised_at
    require(cited in state.actions, f"nothing here is called {cited}")
    return state.actions[cited].proposed_at


def abandon_branch(state: State, mechanism: str, implementations: Sequence[str], reason: str) -> Events:
    """Call a direction falsified: withdraw what is pending of it and archive these members."""
    _running(state)
    for implementation in implementations:
        node = state.implementations.get(implementation)
        require(node is not None and node.verified, f"{implementation} is not a verified implementation")
        assert node is not None
        require(mechanism in node.mechanisms, f"{implementation} does not contain {mechanism}")
        _dispensable(state, implementation)
    withdrawn = tuple(item for item in state.pending if mechanism in state.opportunities[item].mechanisms)
    return (
        BranchAbandoned(
            mechanism=mechanism, implementations=tuple(implementations), withdrawn=withdrawn, reason=reason
        ),
    )


# --- paid effects --------------------------------------------------------------------------------------------------


def request_model(state: State, event: ModelRequested) -> Events:
    """Reserve budget for a model call; the request's number is used up, whatever comes of it."""
    _running(state)
    require(event.request not in state.requests_used, f"{event.request} was requested already")
    require(event.action is None or event.action in state.actions, f"there is no action {event.action}")
    policy, spent = state.specified().policy, state.spent
    tokens = spent.tokens + spent.reserved_tokens + event.reserved_tokens
    cost = spent.cost_usd + spent.reserved_usd + event.reserved_usd
    require(policy.tokens is None or tokens <= policy.tokens, "the token budget has no room for this call")
    require(policy.cost_usd is None or cost <= policy.cost_usd, "the cost budget has no room for this call")
    return (event,)


def record_model_call(state: State, event: ModelCalled) -> Events:
    """Record how a requested call ended; what was paid is recorded after a stop too."""
    request = state.model_requests.get(event.request)
    require(request is not None, f"{event.request} was not requested, or has ended")
    assert request is not None
    same = (event.agent, event.attempt) == (request.agent, request.attempt)
    require(same, f"{event.request} is attempt {request.attempt} of the {request.agent}")
    return (event,)


# --- shared conditions ---------------------------------------------------------------------------------------------


def _opened(state: State) -> None:
    require(state.position > 0, "the campaign has not been opened")


def _unstopped(state: State) -> None:
    require(state.status != "stopped", "the campaign is stopped: only notes and running audits enter")


def _running(state: State) -> None:
    require(state.status == "running", f"the campaign is {state.status}: nothing new starts")


def _open_action(state: State, action: str) -> Action:
    require(action in state.open_actions, f"{action} is not open")
    return state.actions[action]


def _verified_parents(state: State, parents: Sequence[str]) -> None:
    require(len(set(parents)) == len(parents) > 0, "parents are one or more different implementations")
    for parent in parents:
        node = state.implementations.get(parent)
        require(node is not None and node.verified, f"{parent} is not verified, so it cannot be a parent")


def _in_frontier(state: State, implementation: str) -> None:
    require(state.status != "stopped", "the campaign is stopped: lineage is settled")
    require(implementation in state.frontier, f"{implementation} is not in the frontier")
    require(state.implementations[implementation].verified, f"{implementation} is to be audited again first")
