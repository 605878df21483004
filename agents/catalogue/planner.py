"""Planning without a model: by expected gain, by what a step opens, and by what was already falsified.

Every mechanism of the operator's catalogue is weighed on the current best. Its expected gain counts by the share of
the weighted latency that it can reach; a step that loses alone is worth what it opens. A falsification holds for
the parents it was found on; a named precondition that none of them met opens the mechanism once more.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from kernelbraid.agents.catalogue import evidence
from kernelbraid.agents.strategy import Desk, Events
from kernelbraid.events import decider
from kernelbraid.events.search import ActionProposed, OpportunityRaised
from kernelbraid.events.state import Implementation, Opportunity, State, opportunity_id
from kernelbraid.kernels.operators.catalogue import Mechanism


class CataloguePlanner:
    """The planner of a catalogue campaign."""

    name = "catalogue"

    def survey(self, state: State, desk: Desk) -> Events:
        """Withdraw what lost its ground, or else raise what has evidence now."""
        withdrawn = [
            event
            for opportunity in state.pending
            if (reason := withdrawal(state, state.opportunities[opportunity], desk))
            for event in decider.withdraw_opportunity(state, opportunity, reason)
        ]
        if withdrawn:
            return tuple(withdrawn)
        ideas = [*_single(state, desk), *_merges(state, desk)]
        first = len(state.opportunities) + 1
        numbered = [
            idea.model_copy(update={"opportunity": opportunity_id(first + place)}) for place, idea in enumerate(ideas)
        ]
        return decider.raise_opportunities(state, numbered)

    def choose(self, state: State, desk: Desk) -> Events:
        """The pending opportunity that promises most, on the parent where it promises that."""
        if not state.pending:
            return ()
        waiting = [state.opportunities[name] for name in state.pending]
        chosen = max(waiting, key=lambda opportunity: _rank(state, opportunity, desk))
        return decider.propose_action(state, _action(state, chosen, desk))


# --- what to raise and withdraw ------------------------------------------------------------------------------------


def withdrawal(state: State, opportunity: Opportunity, desk: Desk) -> str | None:
    """Why a pending opportunity is no longer worth an audit, if it is not."""
    best = _best(state)
    if set(opportunity.mechanisms) <= set(best.mechanisms):
        return f"{best.id} contains it"
    if unknown := [name for name in opportunity.mechanisms if name not in desk.by_name]:
        return f"the catalogue has no {', '.join(unknown)}: who wrote it can hand it in again"
    if len(opportunity.parents) > 1:
        return _merge_withdrawal(state, opportunity, best)
    parent = _parent(state, opportunity, desk)
    if parent is None:
        return f"its preconditions hold neither in {best.id} nor in {', '.join(opportunity.parents)}"
    if parent.id != best.id and value(state, opportunity, desk) <= 0:
        return f"{best.id} is faster than what it could reach on {parent.id}"
    return None


def _merge_withdrawal(state: State, opportunity: Opportunity, best: Implementation) -> str | None:
    left = opportunity.parents[0]
    if left == best.id or set(opportunity.parents) <= set(_waiting(state)):
        return None
    return f"the best is {best.id} now" if state.implementations[left].promoted else f"{left} waits no longer"


def _single(state: State, desk: Desk) -> Iterator[OpportunityRaised]:
    best = _best(state)
    known = evidence.facts(state, best)
    waiting = {state.opportunities[item].mechanisms for item in state.pending}
    for mechanism in desk.catalogue:
        if (mechanism.name,) in waiting or not mechanism.fits(best.mechanisms) or evidence.alive(state, mechanism.name):
            continue
        ground = mechanism.evidence(known)
        reopened = _reopened(state, mechanism, best)
        if ground is not None and reopened is not None:
            yield _raised(state, mechanism, best, ground + reopened)


def _reopened(state: State, mechanism: Mechanism, best: Implementation) -> str | None:
    """Words to add to the evidence, empty for a first try; None when a falsification stands."""
    falsified = evidence.falsified_on(state, mechanism.name)
    if not falsified:
        return ""
    opened = evidence.newly_opened(state, mechanism, best.mechanisms)
    names = ", ".join(item.id for item in falsified)
    return None if opened is None else f"; it brought nothing on {names}, and {opened} opens it once more"


def _raised(state: State, mechanism: Mechanism, parent: Implementation, ground: str) -> OpportunityRaised:
    return OpportunityRaised(
        opportunity="",
        mechanisms=(mechanism.name,),
        parents=(parent.id,),
        scope=mechanism.scope,
        workloads=_reached(state, mechanism.scope),
        evidence=ground,
        rationale=mechanism.rationale,
        expected_gain_ratio=mechanism.expected_gain_ratio,
    )


def follow_ups(
    state: State, mechanisms: Sequence[Mechanism], parent: Implementation, ground: str
) -> list[OpportunityRaised]:
    """Opportunities on a verified implementation that is not the best: the next steps of its own branch."""
    first = len(state.opportunities) + 1
    return [
        _raised(state, mechanism, parent, ground).model_copy(update={"opportunity": opportunity_id(first + place)})
        for place, mechanism in enumerate(mechanisms)
    ]


def _merges(state: State, desk: Desk) -> Iterator[OpportunityRaised]:
    best = _best(state)
    waiting = {state.opportunities[item].parents for item in state.pending}
    members = [state.implementations[name] for name in _waiting(state)]
    pairs = [(left, right) for left, right in itertools.combinations(members, 2) if evidence.are_siblings(left, right)]
    beside_best = ((best, member) for member in members if evidence.stands_beside(state, member, best))
    for left, other in (*beside_best, *pairs):
        extra = evidence.extra_mechanisms(other, left)
        if (left.id, other.id) not in waiting and extra and composes(desk, left.mechanisms, extra):
            yield _merge(state, left, other, extra)


def _waiting(state: State) -> tuple[str, ...]:
    """Those to be merged: deferred for it, or reactivated."""
    return (*state.merge_list, *evidence.brought_back(state))


def composes(desk: Desk, applied: tuple[str, ...], extra: tuple[str, ...]) -> bool:
    """Whether each extra mechanism is in the catalogue and fits after those before it."""
    for name in extra:
        if name not in desk.by_name or not desk.by_name[name].fits(applied):
            return False
        applied = (*applied, name)
    return True


def _merge(state: State, left: Implementation, other: Implementation, extra: tuple[str, ...]) -> OpportunityRaised:
    measured = path_gain_ratio(state, other)
    gain = measured or _promised(state, other)
    ahead = evidence.relative(state, _best(state)) / evidence.relative(state, left)
    return OpportunityRaised(
        opportunity="",
        mechanisms=extra,
        parents=(left.id, other.id),
        scope="joint",
        workloads=_reached(state, other.scope),
        evidence=f"{other.id} made its {other.scope} paths {gain:.2f}x faster than its parent's"
        + ("" if measured else ", as expected; its parent was not measured here"),
        rationale=f"{', '.join(extra)} and what {left.id} has do not touch the same path",
        expected_gain_ratio=max(1.0, ahead * math.exp(evidence.expected_gain(state, left, other.scope, gain))),
    )


def path_gain_ratio(state: State, implementation: Implementation) -> float | None:
    """How much faster its own paths are than its parent's; None if the parent was not measured in this environment."""
    parent = state.implementations[implementation.parents[0]]
    if not parent.verified:
        return None
    scope = implementation.scope
    return evidence.relative(state, parent, scope) / evidence.relative(state, implementation, scope)


def _promised(state: State, implementation: Implementation) -> float:
    assert implementation.action is not None
    return state.opportunities[state.actions[implementation.action].opportunity].expected_gain_ratio


def _reached(state: State, scope: str) -> tuple[str, ...]:
    workloads = state.specified().contract.workloads
    return tuple(workload.name for workload in workloads if scope in ("joint", workload.path))


# --- what to try next ----------------------------------------------------------------------------------------------


def _rank(state: State, opportunity: Opportunity, desk: Desk) -> tuple[bool, bool, float]:
    """The other half of a pair goes first, then what goes on with a branch, then what promises most.

    A branch that waits is left behind by the best, and all that was audited for it is audited again.
    """
    worth = value(state, opportunity, desk)
    goes_on = worth > 0 and opportunity.parents[0] not in state.ancestors(_best(state).id)
    return _completes_pair(state, opportunity, desk, worth), goes_on, worth


def _completes_pair(state: State, opportunity: Opportunity, desk: Desk, worth: float) -> bool:
    waiting = (state.implementations[name] for name in state.merge_list)
    scopes = {"full", "decode"}
    if any(item.parents == opportunity.parents and {item.scope, opportunity.scope} == scopes for item in waiting):
        return True
    beside = len(opportunity.parents) == 1 and _sibling_parent(state, desk.by_name[opportunity.mechanisms[0]])
    return bool(beside) and worth >= math.log(evidence.LEAST_GAIN_RATIO)


def value(state: State, opportunity: Opportunity, desk: Desk) -> float:
    """Expected gain in the objective against the best, as a logarithm; a look ahead counts by the audit."""
    if len(opportunity.parents) > 1:
        return math.log(opportunity.expected_gain_ratio)
    parent = _parent(state, opportunity, desk)
    if parent is None:
        return -math.inf
    mechanism = desk.by_name[opportunity.mechanisms[0]]
    behind = math.log(evidence.relative(state, _best(state)) / evidence.relative(state, parent))
    steps = [mechanism, *_ahead(state, mechanism, parent, desk)]
    gains = [evidence.gain(state, step, parent) for step in steps]
    return max((behind + sum(gains[:count])) / count for count in range(1, len(gains) + 1))


def _ahead(state: State, mechanism: Mechanism, parent: Implementation, desk: Desk) -> list[Mechanism]:
    """What the mechanism opens on this parent, and what the parent's own branch has opened besides."""
    applied, base = (*parent.mechanisms, mechanism.name), parent.mechanisms
    if parent.id != state.best:
        base = _best(state).mechanisms
    found = evidence.prospects(state, desk.catalogue, applied, base)
    return [item for item in found if item.name != mechanism.name]


def _parent(state: State, opportunity: Opportunity, desk: Desk) -> Implementation | None:
    """Its own parent, or the best where that descends from it: a branch's follow-up stays on its branch."""
    mechanism = desk.by_name[opportunity.mechanisms[0]]
    candidates = [state.implementations[opportunity.parents[0]]]
    if opportunity.parents[0] in state.ancestors(_best(state).id):
        candidates.insert(0, _best(state))
    fitting = (item for item in candidates if item.verified and mechanism.fits(item.mechanisms))
    return next(fitting, None)


def _sibling_parent(state: State, mechanism: Mechanism) -> Implementation | None:
    """Where a change of one path stands beside the best's last change, which was to the other path only.

    Its effect is then measured against the same parent, and the two are merged and audited as a whole.
    """
    best = _best(state)
    if state.merge_list or len(best.parents) != 1 or {best.scope, mechanism.scope} != {"full", "decode"}:
        return None
    parent = state.implementations[best.parents[0]]
    tried = evidence.tried_on(state, mechanism.name, (parent.id,)) > 0
    return parent if parent.verified and not tried and mechanism.fits(parent.mechanisms) else None


def _action(state: State, opportunity: Opportunity, desk: Desk) -> ActionProposed:
    return (
        _merge_action(state, opportunity) if len(opportunity.parents) > 1 else _single_action(state, opportunity, desk)
    )


def _merge_action(state: State, opportunity: Opportunity) -> ActionProposed:
    left, right = opportunity.parents
    return ActionProposed(
        action=state.next_action,
        opportunity=opportunity.id,
        parents=opportunity.parents,
        ancestor=evidence.common_ancestor(state, left, right),
        scope=opportunity.scope,
        rationale=f"{left} and {right} improved different paths; {', '.join(opportunity.mechanisms)} is applied again",
        numerical_risks="each change was verified by itself; together they are audited as a new implementation",
        falsification=f"no gain over {left}: the paths are coupled after all",
        strategy="catalogue: merge",
    )


def _single_action(state: State, opportunity: Opportunity, desk: Desk) -> ActionProposed:
    mechanism = desk.by_name[opportunity.mechanisms[0]]
    sibling = _sibling_parent(state, mechanism)
    parent = sibling or _parent(state, opportunity, desk)
    assert parent is not None
    return ActionProposed(
        action=state.next_action,
        opportunity=opportunity.id,
        parents=(parent.id,),
        scope=mechanism.scope,
        rationale=mechanism.rationale
        if sibling is None
        else f"{mechanism.rationale}; beside {state.best}, to be merged",
        numerical_risks=mechanism.numerical_risks,
        falsification=mechanism.falsification,
        strategy="catalogue: sibling" if sibling else _manner(state, parent),
    )


def _manner(state: State, parent: Implementation) -> str:
    return "catalogue: on the best" if parent.id == state.best else "catalogue: follow-up"


def _best(state: State) -> Implementation:
    assert state.best is not None
    return state.implementations[state.best]
