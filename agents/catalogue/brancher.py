"""Lineage without a model: continue what opens something, defer what can be merged, archive the rest.

Judged is one verified implementation; what its result says about others (a superseded best, an archived sibling
that can be merged now, a direction falsified for good) is decided in the same breath.
"""

import itertools
import math
from collections.abc import Iterator

from kernelbraid.agents.catalogue import evidence
from kernelbraid.agents.catalogue.planner import composes, follow_ups, path_gain_ratio
from kernelbraid.agents.strategy import Desk, Events
from kernelbraid.events import decider
from kernelbraid.events.event import Event
from kernelbraid.events.search import OpportunityRaised
from kernelbraid.events.state import Implementation, State
from kernelbraid.kernels.operators.catalogue import Mechanism


class CatalogueBrancher:
    """The brancher of a catalogue campaign."""

    name = "catalogue"

    def judge(self, state: State, implementation: Implementation, desk: Desk) -> Events:
        """Its own decision first, then what follows for others."""
        if implementation.id == state.best:
            return (*_promoted(state, implementation), *_reactivated(state, implementation, desk))
        own = (
            _wait_for_sibling(state, implementation)
            or _defer(state, implementation, desk)
            or _follow(state, implementation, desk)
            or _set_aside(state, implementation)
        )
        return (*own, *_left_alone(state, implementation), *_parents_without_future(state, implementation))


def _promoted(state: State, best: Implementation) -> Iterator[Event]:
    yield from decider.continue_branch(state, best.id, None, f"promoted: {state.speedup_ratio:.2f}x the root")
    for name in _superseded(state, best):
        yield from decider.archive_branch(state, name, f"superseded by {best.id}")


def _superseded(state: State, best: Implementation) -> Iterator[str]:
    """Frontier members without a future of their own: nothing pending on them, nothing in flight, no merge due."""
    needed = _needed(state) | {best.id}
    return (name for name in list(state.frontier) if name not in needed)


def _needed(state: State) -> set[str]:
    pending = {parent for name in state.pending for parent in state.opportunities[name].parents}
    running = {parent for name in state.open_actions for parent in state.actions[name].parents}
    alone = {name for name in pending if name != state.best and state.implementations[name].promoted is False}
    return alone | running | set(state.merge_list) | set(state.retimings) | set(state.undecided_branches)


def _follow(state: State, implementation: Implementation, desk: Desk) -> Events:
    """Continue a step that did not win if all that it opens promises, together, to beat the best."""
    best = _best(state)
    opened = evidence.prospects(state, desk.catalogue, implementation.mechanisms, best.mechanisms)
    promised = math.exp(sum(evidence.gain(state, item, implementation) for item in opened))
    gain = promised * evidence.relative(state, best) / evidence.relative(state, implementation)
    if not opened or gain * (1 - decider.SMALLEST_DELTA_RATIO) <= 1:
        return ()
    names = ", ".join(item.name for item in opened)
    ground = f"{implementation.id} opens {names}, which promises {gain:.2f}x over {best.id}"
    raised: list[OpportunityRaised] = follow_ups(state, _first_steps(opened), implementation, ground)
    return (
        *decider.raise_opportunities(state, raised),
        *decider.continue_branch(state, implementation.id, raised[0].opportunity, ground),
    )


def _first_steps(opened: list[Mechanism]) -> list[Mechanism]:
    """The most promising step; if it changes one path only, also the other path's, to be tried beside it."""
    first = opened[0]
    beside = (item for item in opened if {first.scope, item.scope} == {"full", "decode"})
    return [first, *itertools.islice(beside, 1)]


def _wait_for_sibling(state: State, implementation: Implementation) -> Events:
    """Keep a step that made its path faster while the other path's step is tried on the same parent."""
    gain = path_gain_ratio(state, implementation) if evidence.has_sibling(state, implementation) else None
    if gain is None or gain < evidence.LEAST_GAIN_RATIO:
        return ()
    reason = f"its {implementation.scope} paths are {gain:.2f}x faster than its parent's; its sibling is tried next"
    return decider.defer_branch(state, implementation.id, reason)


def _left_alone(state: State, implementation: Implementation) -> Iterator[Event]:
    """Archive a sibling that waited for this one in vain."""
    for name in state.merge_list:
        waiting = state.implementations[name]
        paired = waiting.parents == implementation.parents and name != implementation.id
        if paired and name != state.best and not evidence.gained_on_parent(state, implementation):
            yield from decider.archive_branch(state, name, f"{implementation.id} brought nothing to merge it with")


def _defer(state: State, implementation: Implementation, desk: Desk) -> Events:
    """Keep a change of one path that made that path faster, to merge it with what was won elsewhere."""
    gain = mergeable_gain(state, implementation, desk)
    if gain is None:
        return ()
    reason = f"its {implementation.scope} paths are {gain:.2f}x faster than {implementation.parents[0]}'s"
    return decider.defer_branch(state, implementation.id, reason)


def mergeable_gain(state: State, implementation: Implementation, desk: Desk) -> float | None:
    """How much its own path gained, if that can be merged into the best."""
    best = _best(state)
    extra = evidence.extra_mechanisms(implementation, best)
    beside = len(implementation.parents) == 1 and evidence.stands_beside(state, implementation, best)
    if implementation.scope == "joint" or not beside or not extra or not composes(desk, best.mechanisms, extra):
        return None
    gain = path_gain_ratio(state, implementation)
    return gain if gain is not None and gain >= evidence.LEAST_GAIN_RATIO else None


def _set_aside(state: State, implementation: Implementation) -> Events:
    return (
        *decider.archive_branch(state, implementation.id, _verdict(implementation)),
        *_abandoned(state, implementation),
    )


def _verdict(implementation: Implementation) -> str:
    measurement = implementation.measurement
    ratio = "" if measurement is None else f", {measurement.ratio:.3f} of {measurement.incumbent}'s latency"
    return f"{implementation.performance}{ratio}"


def _abandoned(state: State, implementation: Implementation) -> Events:
    """Give a direction up once it was falsified on two different parents."""
    name = implementation.mechanisms[-1]
    parents = {item.id for item in evidence.falsified_on(state, name)} | set(implementation.parents)
    if len(parents) < 2 or len(implementation.parents) != 1 or evidence.overtaken(state, implementation):
        return ()
    members = [
        member
        for member in [*state.frontier, *state.archive]
        if member not in (state.best, implementation.id, *state.retimings)
        and state.implementations[member].verified
        and state.implementations[member].mechanisms[-1:] == (name,)
    ]
    reason = f"{name} brought nothing on {', '.join(sorted(parents))}"
    return decider.abandon_branch(state, name, members, reason)


def _parents_without_future(state: State, implementation: Implementation) -> Iterator[Event]:
    """Archive a parent that was kept for this offspring alone."""
    needed = _needed(state) | {state.best}
    for parent in implementation.parents:
        if parent in state.frontier and parent not in needed:
            yield from decider.archive_branch(state, parent, f"{implementation.id} did not win from it")


def _reactivated(state: State, best: Implementation, desk: Desk) -> Iterator[Event]:
    """Bring back archived changes of one path that can be merged with the new best."""
    for name in state.archive:
        node = state.implementations[name]
        if node.archived_at > best.promoted_at:  # archived in this best's time: only a later one brings it back
            continue
        if node.scope == "joint" or not node.verified or evidence.merged_before(state, name):
            continue
        gain = mergeable_gain(state, node, desk)
        if gain is not None:
            reason = f"its {node.scope} paths gained {gain:.2f}x, and {best.id} can take that in"
            yield from decider.reactivate_branch(state, name, best.id, reason)


def _best(state: State) -> Implementation:
    assert state.best is not None
    return state.implementations[state.best]
