"""All that the log holds about one implementation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.errors import BlobMissing
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
from kernelbraid.events.store import Store
from kernelbraid.events.values import ROOT, Environment
from kernelbraid.kernels.audit.outcome import Blocks
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
    qualified: RootQualified | None = None
    """The root's alone."""
    environments: dict[str, Environment] = field(default_factory=dict)
    """Every environment that this log and its origins were measured in, by digest."""

    @property
    def audit(self) -> AuditCompleted | None:
        """The last audit; None before there was one."""
        return self.audits[-1] if self.audits else None

    @property
    def environment(self) -> Environment | None:
        """Where the last audit was made; None before there was one."""
        return None if self.audit is None else self.environments.get(self.audit.environment)


@dataclass(frozen=True, slots=True)
class Exhibits:
    """The blobs behind a dossier's last verdict: what was printed, and the timed blocks by stage.

    `missing` says which of them this store does not hold, or holds in a form that is not read here.
    """

    log: str
    sessions: Mapping[str, Blocks]
    missing: tuple[str, ...] = ()


def exhibits(store: Store, found: Dossier) -> Exhibits:
    """Reads them. Raises LogDamaged when one was changed."""
    printed, digests, missing = "", _block_digests(found), []
    sessions = {}
    if found.audit is not None and found.audit.log is not None:
        try:
            printed = store.blob(found.audit.log).decode("utf-8", errors="replace")
        except BlobMissing:
            missing.append("not in this store: the output of builder and runner")
    for stage, digest in digests.items():
        try:
            sessions[stage] = Blocks.from_bytes(store.blob(digest))
        except BlobMissing:
            missing.append(f"not in this store: the blocks of the {stage}")
        except ValueError as error:
            missing.append(f"not read here: the blocks of the {stage}; {error}")
    return Exhibits(printed, sessions, tuple(missing))


def _block_digests(found: Dossier) -> dict[str, str]:
    """Digests of the blocks by stage, the first one timed first."""
    measurement = found.state.implementations[found.implementation].measurement
    if measurement is None:
        return dict(zip(["qualification"], () if found.qualified is None else found.qualified.blocks, strict=False))
    stages = ("screen",) if measurement.confirmation is None else ("screen", "confirmation")
    return dict(zip(stages[-len(measurement.blocks) :], measurement.blocks, strict=False))


def dossier(log: Iterable[Recorded], implementation: str) -> Dossier:
    """Folds a log and keeps what is about one implementation. Raises NotFound if it is not in there."""
    found = Dossier(implementation, State())
    proposals: dict[str, Recorded] = {}
    for recorded in log:
        evolve(found.state, recorded)
        _note_environment(found)
        if isinstance(recorded.event, ActionProposed):
            proposals[recorded.event.action] = recorded
        _take(found, recorded, proposals)
    if implementation not in found.state.implementations:
        last = next(reversed(found.state.implementations), "none")
        raise NotFound(
            f"there is no implementation {implementation} at position {found.state.position}: {last} is last"
        )
    return found


def _note_environment(found: Dossier) -> None:
    digest = found.state.environment_digest
    if digest not in found.environments and found.state.environment is not None:
        found.environments[digest] = found.state.environment


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
    elif isinstance(event, RootQualified):
        if found.implementation == ROOT:
            found.qualified = event
            found.records.append(recorded)
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
