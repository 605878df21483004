"""What the log says about a mechanism on a parent: shares, predictions, falsifications."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernelbraid.events.state import Action, Implementation, State
from kernelbraid.events.values import Latencies, Measurement, Performance, Specification
from kernelbraid.kernels.operators.catalogue import Facts, Mechanism, Scope

LEAST_GAIN_RATIO = 1.02
"""Below this a difference between two sessions, which were not timed side by side, is noise."""
UNDECIDED_TRIES = 2


def facts(state: State, implementation: Implementation) -> Facts:
    """What is known of a verified parent, as a mechanism wants to be told."""
    specification = state.specified()
    assert state.environment is not None
    return Facts(
        applied=frozenset(implementation.mechanisms),
        share_ratio=shares(specification, implementation.latencies_s),
        resources=implementation.resources,
        simd_bits=state.environment.simd_bits,
        l1_bytes=state.environment.l1_bytes,
    )


def shares(specification: Specification, latencies_s: Latencies) -> Mapping[str, float]:
    """Part of the weighted latency by path and by dtype; "joint" is all of it."""
    weighted = [(item, item.weight * latencies_s[item.name]) for item in specification.contract.workloads]
    total = sum(time_s for _, time_s in weighted)
    found: dict[str, float] = {"full": 0.0, "decode": 0.0, "joint": 1.0}
    for workload, time_s in weighted:
        for key in (workload.path, workload.dtype):
            found[key] = found.get(key, 0.0) + time_s / total
    return found


def path_seconds(specification: Specification, latencies_s: Latencies, scope: Scope) -> float:
    """The weighted latency of the workloads in a scope."""
    return sum(
        item.weight * latencies_s[item.name]
        for item in specification.contract.workloads
        if scope in ("joint", item.path)
    )


def relative(state: State, implementation: Implementation, scope: Scope = "joint") -> float:
    """Its weighted latency on a scope's paths over the root's.

    A machine's speed changes between two sessions by more than most steps gain, so latencies of two sessions say
    nothing about each other. Ratios of arms timed side by side do, multiplied along the incumbents of each session.
    """
    ratio, seen = 1.0, set[str]()
    # After a fork that judges again, an incumbent may have been timed against what was once timed against it.
    while implementation.measurement is not None and implementation.id not in seen:
        seen.add(implementation.id)
        ratio *= _session_ratio(state.specified(), implementation, implementation.measurement, scope)
        implementation = state.implementations[implementation.measurement.incumbent]
    return ratio


def _session_ratio(
    specification: Specification, implementation: Implementation, measurement: Measurement, scope: Scope
) -> float:
    if scope == "joint" or not measurement.incumbent_ratios:
        return measurement.ratio
    after_s = implementation.latencies_s
    before_s = {workload: time_s / measurement.incumbent_ratios[workload] for workload, time_s in after_s.items()}
    return path_seconds(specification, after_s, scope) / path_seconds(specification, before_s, scope)


def expected_gain(state: State, parent: Implementation, scope: Scope, gain_ratio: float) -> float:
    """Gain in the parent's objective, as a logarithm, when the paths in `scope` become `gain_ratio` times faster."""
    share = shares(state.specified(), parent.latencies_s)[scope]
    return -math.log(1 - share * (1 - 1 / gain_ratio))


def alive(state: State, mechanism: str) -> bool:
    """Whether a branch that tried it is still on its way: in flight, undecided, or in the frontier for a purpose."""
    for action in tries(state, mechanism):
        if action.id in state.open_actions:
            return True
        tried = action.implementation
        if tried in state.frontier and tried != state.best and _has_purpose(state, tried):
            return True
    return False


def _has_purpose(state: State, implementation: str) -> bool:
    """Whether something is due on it, or waits to build on it; a follow-up that was withdrawn leaves none."""
    if implementation in state.merge_list or implementation in state.undecided_branches:
        return True
    if implementation in state.retimings or implementation in brought_back(state):
        return True
    pending = (state.opportunities[name].parents for name in state.pending)
    running = (state.actions[name].parents for name in state.open_actions)
    return any(implementation in parents for parents in (*pending, *running))


def tries(state: State, mechanism: str) -> Iterator[Action]:
    """The actions that tried this mechanism by itself, oldest first."""
    return (state.actions[action] for action in state.attempts.get((mechanism,), ()))


class _Known:
    """What one position's log says about many mechanisms at once, found once: a plan weighs each of them often."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.position = state.position
        self.falsified: dict[str, list[Implementation]] = {}
        self.met: dict[str, frozenset[str]] = {}
        """Mechanisms of the parents that one was falsified on, all of them together."""
        self.open_at: dict[tuple[str, tuple[str, ...]], bool] = {}
        """Of a mechanism on a base: every pending opportunity is weighed against the same few bases."""
        self.merges = [action for action in state.actions.values() if len(action.parents) > 1]
        self.statuses: dict[str, set[str]] = {}
        """Of the opportunities raised on one implementation alone."""
        for item in state.opportunities.values():
            if len(item.parents) == 1:
                self.statuses.setdefault(item.parents[0], set()).add(item.status)


_last_known: list[_Known] = []


def _known(state: State) -> _Known:
    """Kept for the state and position asked about last; the log only grows, so a position's answers stay true."""
    known = _last_known[0] if _last_known else None
    if known is None or known.state is not state or known.position != state.position:
        known = _Known(state)
        _last_known[:] = [known]
    return known


def falsified_on(state: State, mechanism: str) -> list[Implementation]:
    """The parents on which the mechanism was tried and brought nothing."""
    known = _known(state).falsified
    if mechanism not in known:
        known[mechanism] = _falsified_on(state, mechanism)
    return known[mechanism]


def _met(state: State, mechanism: str) -> frozenset[str]:
    known = _known(state).met
    if mechanism not in known:
        known[mechanism] = frozenset(name for item in falsified_on(state, mechanism) for name in item.mechanisms)
    return known[mechanism]


def _falsified_on(state: State, mechanism: str) -> list[Implementation]:
    return [
        state.implementations[action.parents[0]]
        for action in tries(state, mechanism)
        if action.id not in state.open_actions and not _brought_something(state, action)
    ]


def _brought_something(state: State, action: Action) -> bool:
    if action.implementation is None:
        return state.opportunities[action.opportunity].status == "pending"
    tried = state.implementations[action.implementation]
    if tried.promoted or tried.standing in ("frontier", "dropped") or tried.performance is Performance.PROMOTABLE:
        return True
    if not tried.verified:
        return False
    told_nothing = overtaken(state, tried) or _undecided_once(state, tried)
    return told_nothing or _merge_promoted(state, tried) or _follow_up_untried(state, tried)


def overtaken(state: State, tried: Implementation) -> bool:
    """Whether it gained on its own parent and lost only to a best that another branch had moved meanwhile."""
    if tried.incumbent is None or tried.incumbent in tried.parents or len(tried.parents) != 1:
        return False
    parent = state.implementations[tried.parents[0]]
    return parent.verified and relative(state, parent) >= relative(state, tried) * LEAST_GAIN_RATIO


def gained_on_parent(state: State, implementation: Implementation) -> bool:
    """Whether it is faster than its own parent on the paths it changed, by more than noise."""
    if len(implementation.parents) != 1:
        return False
    parent, scope = state.implementations[implementation.parents[0]], implementation.scope
    return relative(state, parent, scope) >= relative(state, implementation, scope) * LEAST_GAIN_RATIO


def stands_beside(state: State, implementation: Implementation, best: Implementation) -> bool:
    """Whether it left the best's own line below the best, so that the best can still take its change in."""
    line = set(state.ancestors(best.id))
    return best.id not in state.ancestors(implementation.id) and set(implementation.parents) <= line


def are_siblings(left: Implementation, right: Implementation) -> bool:
    """Whether they changed different paths of the same parent."""
    return left.parents == right.parents and {left.scope, right.scope} == {"full", "decode"}


def has_sibling(state: State, implementation: Implementation) -> bool:
    """Whether the other path's change of the same parent is pending, in flight or waiting to be merged."""
    begun = [(state.opportunities[name].parents, state.opportunities[name].scope) for name in state.pending]
    begun += [(state.actions[name].parents, state.actions[name].scope) for name in state.open_actions]
    other = {"full": "decode", "decode": "full"}.get(implementation.scope)
    waiting = (state.implementations[name] for name in state.merge_list)
    return (implementation.parents, other) in begun or any(are_siblings(implementation, item) for item in waiting)


def _undecided_once(state: State, tried: Implementation) -> bool:
    """Whether noise alone kept a promising step from being decided; it is tried once more, not forever."""
    if tried.performance is not Performance.UNDECIDED or tried.measurement is None:
        return False
    again = tried_on(state, tried.mechanisms[-1], tried.parents) >= UNDECIDED_TRIES
    return not again and tried.measurement.ratio * LEAST_GAIN_RATIO <= 1


def tried_on(state: State, mechanism: str, parents: tuple[str, ...]) -> int:
    """How often the mechanism was tried on these parents."""
    return sum(action.parents == parents for action in tries(state, mechanism))


def _merge_promoted(state: State, tried: Implementation) -> bool:
    """Whether it won by being merged, so that a best of another line, which lacks it, may take it up again."""
    if tried.scope == "joint":
        return False
    merges = (action for action in _known(state).merges if tried.id in action.parents)
    return any(merge.implementation and state.implementations[merge.implementation].promoted for merge in merges)


def _follow_up_untried(state: State, tried: Implementation) -> bool:
    """Whether what it was kept for was never tried, because the best moved on: that falsified nothing."""
    statuses = _known(state).statuses.get(tried.id, set())
    return "withdrawn" in statuses and "consumed" not in statuses


def brought_back(state: State) -> Iterator[str]:
    """Frontier members that were archived and reactivated, and wait to be merged like those that were deferred."""
    for name in state.frontier:
        node = state.implementations[name]
        reactivated = node.archived_at > 0 and name != state.best and name not in state.merge_list
        if reactivated and node.scope != "joint" and node.verified and not merged_before(state, name):
            yield name


def merged_before(state: State, name: str) -> bool:
    """Whether an action tried to merge it already."""
    return any(name in action.parents for action in _known(state).merges)


def newly_opened(state: State, mechanism: Mechanism, applied: Sequence[str]) -> str | None:
    """The named precondition among these mechanisms that no falsified parent met, if there is one."""
    met = _met(state, mechanism.name)
    return next((name for name in mechanism.opened_by if name not in met and name in applied), None)


def prospects(
    state: State, catalogue: Iterable[Mechanism], applied: Sequence[str], base: tuple[str, ...]
) -> list[Mechanism]:
    """What these mechanisms open beyond a base: what did not fit it, and what was falsified for want of them.

    The most promising by its own expected gain comes first; what promises nothing is left out.
    """
    found = (
        item
        for item in catalogue
        if item.expected_gain_ratio > 1
        and item.name not in base
        and not _open_at(state, item, base)
        and _open(state, item, applied)
    )
    return sorted(found, key=lambda item: -item.expected_gain_ratio)


def _open_at(state: State, mechanism: Mechanism, base: tuple[str, ...]) -> bool:
    known, key = _known(state).open_at, (mechanism.name, base)
    if key not in known:
        known[key] = _open(state, mechanism, base)
    return known[key]


def _open(state: State, mechanism: Mechanism, applied: Sequence[str]) -> bool:
    """Whether it fits after these mechanisms, and no falsification stands against it there."""
    if not mechanism.fits(applied):
        return False
    return not falsified_on(state, mechanism.name) or newly_opened(state, mechanism, applied) is not None


def gain(state: State, mechanism: Mechanism, parent: Implementation) -> float:
    """The mechanism's expected gain in the objective on this parent, as a logarithm."""
    return expected_gain(state, parent, mechanism.scope, mechanism.expected_gain_ratio)


def extra_mechanisms(implementation: Implementation, base: Implementation) -> tuple[str, ...]:
    """The implementation's mechanisms that the base lacks, in the order applied."""
    return tuple(name for name in implementation.mechanisms if name not in base.mechanisms)


def common_ancestor(state: State, left: str, right: str) -> str:
    """The nearest ancestor that two implementations share."""
    of_right = set(state.ancestors(right))
    return next(item for item in state.ancestors(left) if item in of_right)
