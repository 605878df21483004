"""Strict replay: today's agents decide again, and the log is held against them.

The log drives. Before every append the state is folded up to there; the facts that came from outside (audits and
timings, a user's commands, the clock) are taken from the log; the named actor is asked, and its whole decision is
compared in every field but times and hashes, its figures to nine digits (alike.py). Nothing is audited, called or
written. The first divergence ends it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from kernelbraid.agents import auditor, brancher, duty, editor, planner
from kernelbraid.agents.alike import alike
from kernelbraid.agents.campaign import since_driven_s
from kernelbraid.agents.duty import Duty
from kernelbraid.agents.search import Strategies, catalogue_strategies, code_digests, make_desk, operator_of
from kernelbraid.agents.strategy import Desk
from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.campaign import (
    CampaignForked,
    CampaignOpened,
    CampaignPaused,
    CampaignResumed,
    CampaignStopped,
    NoteAdded,
    RootQualified,
)
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Actor, Decision, Event, Recorded
from kernelbraid.events.search import ActionProposed, EditFailed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.state import State, evolve, fold
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT, Digests
from kernelbraid.kernels.audit.outcome import Qualification

Batch = tuple[Recorded, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where today's agents decide otherwise: both sides, event by event; an empty side decided nothing."""

    position: int
    actor: str
    recorded: tuple[Event, ...]
    decided: tuple[Event, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """How far a strict replay came: everything agreed unless there is a divergence."""

    campaign: str
    events: int
    batches: int
    warnings: tuple[str, ...]
    divergence: Divergence | None


def replay_strict(
    store: Store,
    name: str,
    *,
    upto: int | None = None,
    operator: str | None = None,
    strategies: Strategies | None = None,
) -> ReplayReport:
    """Let today's agents decide a whole campaign again.

    `operator` is where the campaign's own operator lies, if not where it was begun. Raises CampaignMissing,
    OperatorMissing, LogDamaged (the chain does not hold) and BlobMissing (a fact is not there).
    """
    contract = fold(store.read(name, upto=upto)).specified().contract
    desk = make_desk(store, operator_of(contract, operator), contract.target, strategies or catalogue_strategies())
    replay = _Replay(desk)
    for batch in batches(store.read(name, upto=upto)):
        if (divergence := replay.compare(batch)) is not None:
            return replay.report(name, divergence)
        replay.take(batch)
    return replay.report(name, None)


def batches(recorded: Iterable[Recorded]) -> Iterator[Batch]:
    """The log's events, one append at a time."""
    batch: list[Recorded] = []
    for item in recorded:
        batch.append(item)
        if item.batch[0] == item.batch[1]:
            yield tuple(batch)
            batch = []


class _Replay:
    """The fold so far, and each position's ordinal among the events that are not operational."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.state = State()
        self.batches = 0
        self.ordinals = {0: 0}
        self.warnings: dict[str, None] = {}
        self.last_actor: Actor = "driver"
        self.taken_up = True
        """Whether a driver came newly to what is open, or work was handed in, and the planner has not acted since."""

    def compare(self, batch: Batch) -> Divergence | None:
        recorded = tuple(item.event for item in batch)
        elapsed_s = since_driven_s(self.state, batch[0].recorded_at)
        self._warn(recorded[0])
        if (missing := self._missing(batch[0], recorded, elapsed_s)) is not None:
            return missing
        try:
            decided = redecide(self.state, batch, self.desk, elapsed_s)
        except RuleBroken as error:
            return Divergence(batch[0].position, batch[0].actor, recorded, (), f"the rules refuse it today: {error}")
        return self._difference(batch, recorded, decided)

    def _missing(self, first: Recorded, recorded: tuple[Event, ...], elapsed_s: float) -> Divergence | None:
        """What is due before this batch and not in the log, as far as the order of a round tells.

        The planner goes on until it has nothing more to decide, and what was begun is finished before it goes on,
        unless a driver took up what another one had left.
        """
        if first.actor == "user" or first.event.operational or isinstance(first.event, CampaignOpened | CampaignForked):
            return None
        if self.last_actor == "planner" != first.actor:
            plan = planner.plan(self.state, self.desk, elapsed_s)
            return None if plan is None else _due_and_missing(first, recorded, Duty("planner"), plan)
        if self.last_actor == "planner" or first.actor not in ("planner", "driver") or self.taken_up:
            return None
        due = next(duty.started(self.state), None)
        return None if due is None else _due_and_missing(first, recorded, due, self._own(due))

    def _own(self, due: Duty) -> Decision | None:
        """The decision that a duty calls for; None where it needs facts that only the log could hold."""
        if due.actor == "editor":
            return editor.edit(self.state, due.subject, self.desk)
        return brancher.branch(self.state, due.subject, self.desk) if due.actor == "brancher" else None

    def _difference(self, batch: Batch, recorded: tuple[Event, ...], decided: Decision | None) -> Divergence | None:
        first = batch[0]
        if decided is None:
            return Divergence(first.position, first.actor, recorded, (), f"the {first.actor} is not due here today")
        if not alike(decided.events, recorded):
            return Divergence(first.position, first.actor, recorded, decided.events, "it decides otherwise today")
        if not first.event.operational and self.ordinals.get(decided.cause) != self.ordinals.get(first.cause):
            reason = f"recorded as caused by {first.cause}, decided because of {decided.cause}"
            return Divergence(first.position, first.actor, recorded, decided.events, reason)
        return None

    def take(self, batch: Batch) -> None:
        for item in batch:
            last = self.ordinals[self.state.position]
            self.ordinals[item.position] = last if item.event.operational else last + 1
            evolve(self.state, item)
        first = batch[0]
        if isinstance(first.event, CampaignResumed):
            self.taken_up = True
        elif not first.event.operational:
            self.taken_up = first.actor == "user" or (self.taken_up and first.actor != "planner")
            self.last_actor = first.actor
        self.batches += 1

    def _warn(self, event: Event) -> None:
        if isinstance(event, CampaignOpened | CampaignForked):
            self.warnings |= dict.fromkeys(_changed_code(event.digests, code_digests(self.desk)))

    def report(self, name: str, divergence: Divergence | None) -> ReplayReport:
        return ReplayReport(name, self.state.position, self.batches, tuple(self.warnings), divergence)


def _due_and_missing(first: Recorded, recorded: tuple[Event, ...], due: Duty, decision: Decision | None) -> Divergence:
    subject = f" on {due.subject}" if due.subject else ""
    decided = () if decision is None else decision.events
    reason = f"a decision of the {due.actor}{subject} is due before this and missing"
    return Divergence(first.position, first.actor, recorded, decided, reason)


def _changed_code(recorded: Digests, today: Digests) -> Iterator[str]:
    for part in Digests.model_fields:
        if getattr(recorded, part) != getattr(today, part):
            yield f"the {part} code is not the one that made this log, so a divergence may come from that"


# --- one append, decided again -------------------------------------------------------------------------------------


def redecide(state: State, batch: Batch, desk: Desk, elapsed_s: float) -> Decision | None:
    """What the batch's actor decides at this state, given the outside facts that the batch holds."""
    first = batch[0]
    match first.actor:
        case "planner":
            return planner.plan(state, desk, elapsed_s)
        case "editor":
            return _edited(state, first.event, desk)
        case "auditor":
            return _of_its_time(_audited(state, batch, desk.read_blob), first.event)
        case "brancher":
            return _branched(state, first.cause, desk)
        case "driver":
            return _driven(state, first, desk, elapsed_s)
        case "user":
            return Decision("user", first.cause, _from_user(state, batch, desk))


def _edited(state: State, event: Event, desk: Desk) -> Decision | None:
    assert isinstance(event, ImplementationSubmitted | EditFailed)
    return editor.edit(state, event.action, desk)


def _audited(state: State, batch: Batch, read_blob: Callable[[str], bytes]) -> Decision | None:
    event = batch[0].event
    if isinstance(event, TimingCompleted):
        return auditor.record_timing(state, event.implementation, auditor.timing_of(event, read_blob))
    assert isinstance(event, AuditCompleted)
    if event.implementation == ROOT:
        return auditor.record_root(state, _qualification(event, batch, read_blob))
    return auditor.record_audit(state, event.implementation, auditor.outcome_of(event, read_blob))


def _of_its_time(decided: Decision | None, recorded: Event) -> Decision | None:
    """Without the figures of sessions, where the log is of before they were recorded."""
    assert isinstance(recorded, AuditCompleted | TimingCompleted)
    if decided is None or recorded.sessions is not None:
        return decided
    events = tuple(
        event.model_copy(update={"sessions": None})
        if isinstance(event, AuditCompleted | TimingCompleted | RootQualified)
        else event
        for event in decided.events
    )
    return replace(decided, events=events)


def _qualification(event: AuditCompleted, batch: Batch, read_blob: Callable[[str], bytes]) -> Qualification:
    qualified = next((item.event for item in batch if isinstance(item.event, RootQualified)), None)
    outcome = auditor.outcome_of(event, read_blob)
    if qualified is None:
        return Qualification(outcome, {})
    return auditor.qualification_of(outcome, qualified, read_blob)


def _branched(state: State, cause: int, desk: Desk) -> Decision | None:
    judged = (item for item in state.undecided_branches if state.implementations[item].audited_at == cause)
    implementation = next(judged, None)
    return None if implementation is None else brancher.branch(state, implementation, desk)


def _driven(state: State, first: Recorded, desk: Desk, elapsed_s: float) -> Decision | None:
    event = first.event
    match event:
        case CampaignOpened():
            return Decision("driver", 0, decider.open_campaign(state, _reopened(event, desk)))
        case CampaignForked():
            return Decision("driver", state.fact_position, _forked(state, event))
        case CampaignStopped():
            return _stopped(state, desk, elapsed_s)
        case _:
            return Decision("driver", first.cause, _commanded(state, event))


def _reopened(event: CampaignOpened, desk: Desk) -> CampaignOpened:
    sources = desk.texts(event.sources)
    regions = editor.declared_regions(desk.operator, sources)
    return event.model_copy(update={"sources": editor.source_files(sources), "regions": regions})


def _forked(state: State, event: CampaignForked) -> tuple[Event, ...]:
    return decider.fork(
        state,
        event.parent_hash,
        event.specification,
        event.environment,
        event.digests,
        reaudit=event.stale,
        archive=event.stale_archive,
    )


def _stopped(state: State, desk: Desk, elapsed_s: float) -> Decision | None:
    reason = duty.stop_reason(state, desk, elapsed_s)
    if reason is None:
        return None
    return Decision("driver", state.fact_position, duty.stop_events(state, reason, elapsed_s))


def _from_user(state: State, batch: Batch, desk: Desk) -> tuple[Event, ...]:
    match tuple(item.event for item in batch):
        case (OpportunityRaised() as raised, ActionProposed() as proposed, ImplementationSubmitted() as submitted):
            regions = editor.declared_regions(desk.operator, desk.texts(submitted.sources))
            declared = submitted.model_copy(update={"regions": regions})
            return decider.propose_offspring(state, raised, proposed, declared)
        case _:
            return _commanded(state, batch[0].event)


def _commanded(state: State, event: Event) -> tuple[Event, ...]:
    """A command from outside: it is taken as it was given, if the rules still allow it."""
    match event:
        case NoteAdded():
            return decider.note(state, event.text)
        case CampaignPaused():
            return decider.pause(state, event.reason)
        case CampaignResumed():
            assert state.environment is not None
            return decider.resume(state, state.environment, event.reason)
        case CampaignStopped():
            return decider.stop(state, event.reason, event.detail)
        case _:
            raise RuleBroken(f"nobody commands a {type(event).__name__}")
