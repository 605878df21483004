"""The closed union: every event type by its name, which is its topic in the store."""

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

EVENT_TYPES: tuple[type[Event], ...] = (
    CampaignOpened,
    RootQualified,
    CampaignForked,
    CampaignPaused,
    CampaignResumed,
    CampaignStopped,
    NoteAdded,
    OpportunityRaised,
    OpportunityWithdrawn,
    ActionProposed,
    ImplementationSubmitted,
    EditFailed,
    ActionDropped,
    AuditCompleted,
    TimingCompleted,
    ImplementationPromoted,
    BranchContinued,
    BranchDeferred,
    BranchArchived,
    BranchReactivated,
    BranchAbandoned,
    ModelRequested,
    ModelCalled,
)

BY_NAME: dict[str, type[Event]] = {event.__name__: event for event in EVENT_TYPES}
