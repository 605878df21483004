"""All that the log holds about one implementation."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.search import ActionProposed, ImplementationSubmitted
from kernelbraid.events.state import State, evolve
from kernelbraid.ops.exits import NotFound

BranchEvent = BranchContinued | BranchDeferred | BranchArchived | BranchReactivated | BranchAbandoned


@dataclass(slots=True)
class Dossier:
    """The events about an implementation, in the order of the log, and the state they led to."""

    implementation: str
    state: State
    proposed: ActionProposed | None = None
    submitted: ImplementationSubmitted | None = None
    audits: list[AuditCompleted] = field(default_factory=list)
    timings: list[TimingCompleted] = field(default_factory=list)
    promotions: list[ImplementationPromoted] = field(default_factory=list)
    decisions: list[BranchEvent] = field(default_factory=list)
    records: list[Recorded] = field(default_factory=list)

    @property
    def audit(self) -> AuditCompleted | None:
        """The last audit; None before there was one."""
        return self.audits[-1] if self.audits else None


def dossier(log: Iterable[Recorded], implementation: str) -> Dossier:
    """Folds a log and keeps what is about one implementation. Raises NotFound if it is not in there."""
    found = Dossier(implementation, State())
    proposals: dict[str, Recorded] = {}
    for recorded in log:
        evolve(found.state, recorded)
        if isinstance(recorded.event, ActionProposed):
            proposals[recorded.event.action] = recorded
        _take(found, recorded, proposals)
    if implementation not in found.state.implementations:
        last = next(reversed(found.state.implementations), "none")
        raise NotFound(
            f"there is no implementation {implementation} at position {found.state.position}: {last} is last"
        )
    return found


def _take(found: Dossier, recorded: Recorded, proposals: dict[str, Recorded]) -> None:
    event = recorded.event
    if isinstance(event, BranchAbandoned):
        if found.implementation in event.implementations:
            _keep(found, recorded, found.decisions, event)
    elif isinstance(event, ImplementationSubmitted):
        if event.implementation == found.implementation:
            proposal = proposals[event.action]
            assert isinstance(proposal.event, ActionProposed)
            found.proposed, found.submitted = proposal.event, event
            found.records += [proposal, recorded]
    elif isinstance(event, AuditCompleted) and event.implementation == found.implementation:
        _keep(found, recorded, found.audits, event)
    elif isinstance(event, TimingCompleted) and event.implementation == found.implementation:
        _keep(found, recorded, found.timings, event)
    elif isinstance(event, ImplementationPromoted) and event.implementation == found.implementation:
        _keep(found, recorded, found.promotions, event)
    elif isinstance(event, BranchContinued | BranchDeferred | BranchArchived | BranchReactivated) and (
        event.implementation == found.implementation
    ):
        _keep(found, recorded, found.decisions, event)


def _keep(found: Dossier, recorded: Recorded, kept: list[Any], event: Event) -> None:
    kept.append(event)
    found.records.append(recorded)
