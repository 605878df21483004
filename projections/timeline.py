"""The log as a person reads it: one line an event."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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
from kernelbraid.events.event import Actor, Event, Recorded
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
from kernelbraid.events.values import Correctness, Measurement
from kernelbraid.projections.projection import Projection, every_event

KEPT_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One event for a reader; `what` is a single line without its time and actor."""

    position: int
    recorded_at: datetime
    actor: Actor
    event: str
    what: str


TimelineFold = deque[Recorded]
"""The accumulator: the last events, which become text only when somebody looks."""


def timeline(folded: TimelineFold) -> tuple[Entry, ...]:
    """The last entries, at most KEPT_ENTRIES, oldest first; for a whole log use `entry` on each event."""
    return tuple(map(entry, folded))


def entry(recorded: Recorded) -> Entry:
    """What happened, in words."""
    event = recorded.event
    what = _one_line(_WORDS[type(event)](event))
    return Entry(recorded.position, recorded.recorded_at, recorded.actor, type(event).__name__, what)


def entry_line(item: Entry) -> str:
    """An entry as a line of text with fixed columns: position, time (UTC), actor, what."""
    return f"{item.position:>6}  {item.recorded_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}  {item.actor:<8}  {item.what}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- words ---------------------------------------------------------------------------------------------------------


def _opened(event: CampaignOpened) -> str:
    contract = event.specification.contract
    return f"opened: {contract.operator} on {contract.target}, {len(contract.workloads)} workloads"


def _qualified(event: RootQualified) -> str:
    beside = ", ".join(baseline.name for baseline in event.baselines)
    return f"root qualified at {duration(event.objective_s)}" + (f", beside {beside}" if beside else "")


def _forked(event: CampaignForked) -> str:
    changed = ", ".join(change.key for change in event.changes) or "nothing"
    again = "; root, best and frontier are audited again" if event.stale else ""
    return f"forked from {event.parent} at {event.at}, changing {changed}{again}"


def _paused(event: CampaignPaused) -> str:
    return f"paused: {event.reason}"


def _resumed(event: CampaignResumed) -> str:
    return f"resumed: {event.reason}" if event.reason else "resumed"


def _stopped(event: CampaignStopped) -> str:
    return f"stopped ({event.reason})" + (f": {event.detail}" if event.detail else "")


def _noted(event: NoteAdded) -> str:
    return f"note: {event.text}"


def _raised(event: OpportunityRaised) -> str:
    where = " + ".join(event.parents)
    gain = f"expects {event.expected_gain_ratio:.2f}x"
    return f"{event.opportunity} raised: {' + '.join(event.mechanisms)} on {where} ({event.scope}), {gain}"


def _withdrawn(event: OpportunityWithdrawn) -> str:
    return f"{event.opportunity} withdrawn: {event.reason}"


def _proposed(event: ActionProposed) -> str:
    how = f"merge {' + '.join(event.parents)} above {event.ancestor}" if event.ancestor else f"on {event.parents[0]}"
    return f"{event.action} tries {event.opportunity} {how} ({event.scope})"


def _submitted(event: ImplementationSubmitted) -> str:
    return f"{event.implementation} submitted for {event.action}: {', '.join(event.mechanisms)}"


def _edit_failed(event: EditFailed) -> str:
    return f"{event.action} came to no offspring: {event.reason}"


def _dropped(event: ActionDropped) -> str:
    return f"{event.action} dropped ({event.reason})"


def _audited(event: AuditCompleted) -> str:
    if event.verdict is not Correctness.VERIFIED:
        return f"{event.implementation} {event.verdict}: {event.evidence} ({event.elapsed_s:.1f} s)"
    result = "" if event.performance is None else f", {event.performance}{_compared(event.measurement)}"
    return f"{event.implementation} verified{result} ({event.elapsed_s:.1f} s)"


def _timed(event: TimingCompleted) -> str:
    why = f": {event.evidence}" if event.evidence else ""
    return f"{event.implementation} timed again, {event.performance}{_compared(event.measurement)}{why}"


def _compared(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    bound = f" (at most {measurement.upper_bound_ratio:.3f})" if measurement.has_error else ""
    return f": {measurement.ratio:.3f} of {measurement.incumbent}{bound}"


def _promoted(event: ImplementationPromoted) -> str:
    best = f"{event.gain_ratio:.2f}x {event.replaces} and {event.speedup_ratio:.2f}x the root"
    return f"{event.implementation} promoted: {best}, {duration(event.objective_s)}"


def _continued(event: BranchContinued) -> str:
    follow_up = f" with {event.opportunity}" if event.opportunity else ""
    return f"{event.implementation} continued{follow_up}: {event.reason}"


def _deferred(event: BranchDeferred) -> str:
    return f"{event.implementation} deferred to be merged: {event.reason}"


def _archived(event: BranchArchived) -> str:
    return f"{event.implementation} archived: {event.reason}"


def _reactivated(event: BranchReactivated) -> str:
    return f"{event.implementation} reactivated because of {event.because}: {event.reason}"


def _abandoned(event: BranchAbandoned) -> str:
    members = ", ".join(event.implementations) or "no implementation"
    withdrawn = f", {', '.join(event.withdrawn)} withdrawn" if event.withdrawn else ""
    return f"{event.mechanism} abandoned with {members}{withdrawn}: {event.reason}"


def _requested(event: ModelRequested) -> str:
    room = f"{event.reserved_tokens} tokens and ${event.reserved_usd:.4f} reserved"
    return f"{event.request}: {event.agent} asks {event.model}, attempt {event.attempt}, {room}"


def _called(event: ModelCalled) -> str:
    used = f"{event.input_tokens} + {event.output_tokens} tokens, ${event.cost_usd:.4f}, {event.elapsed_s:.1f} s"
    return f"{event.request}: {event.model} {event.outcome.replace('_', ' ')}, {used}"


def duration(seconds: float) -> str:
    """A time a person can read, from nanoseconds to seconds."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


_WORDS: dict[type[Event], Callable[[Any], str]] = {
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

TIMELINE: Projection[TimelineFold] = Projection(
    "timeline", lambda: deque(maxlen=KEPT_ENTRIES), every_event(deque.append)
)
