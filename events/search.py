"""Events of the search: opportunities raised and withdrawn, actions proposed, implementations submitted."""

from kernelbraid.events.event import Event
from kernelbraid.events.values import DropReason, Region, Scope, SourceFile


class OpportunityRaised(Event):
    """A mechanism is worth trying on these verified parents.

    `mechanisms` has one name, or, for a merge, all that are applied again to the common ancestor.
    `expected_gain_ratio` is old over new latency of the weighted objective, as estimated.
    """

    opportunity: str
    mechanisms: tuple[str, ...]
    parents: tuple[str, ...]
    scope: Scope
    workloads: tuple[str, ...]
    evidence: str
    rationale: str
    expected_gain_ratio: float


class OpportunityWithdrawn(Event):
    """An opportunity is no longer worth an audit."""

    opportunity: str
    reason: str


class ActionProposed(Event):
    """An opportunity is being tried. A merge names two or more parents and their common ancestor."""

    action: str
    opportunity: str
    parents: tuple[str, ...]
    ancestor: str | None = None
    scope: Scope
    rationale: str
    numerical_risks: str
    falsification: str
    strategy: str


class ImplementationSubmitted(Event):
    """The editor wrote a complete offspring; its sources are blobs."""

    action: str
    implementation: str
    sources: tuple[SourceFile, ...]
    regions: tuple[Region, ...]
    mechanisms: tuple[str, ...]
    """Every mechanism in it, in the order applied since the root."""
    contract_items: tuple[str, ...]
    """Items of the numerical contract that this offspring settles anew."""


class EditFailed(Event):
    """No offspring came of the action; its opportunity is pending again, twice at most."""

    action: str
    reason: str


class ActionDropped(Event):
    """The action ended without an audit; its opportunity is pending again."""

    action: str
    reason: DropReason
