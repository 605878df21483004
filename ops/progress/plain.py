"""Progress as lines: one for each audit, promotion, lineage decision and turn of a campaign's life."""

from typing import Protocol, Self

from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.campaign import (
    CampaignForked,
    CampaignOpened,
    CampaignPaused,
    CampaignResumed,
    CampaignStopped,
    RootQualified,
)
from kernelbraid.events.event import Event, Recorded
from kernelbraid.events.lineage import (
    BranchAbandoned,
    BranchArchived,
    BranchContinued,
    BranchDeferred,
    BranchReactivated,
)
from kernelbraid.events.search import EditFailed
from kernelbraid.events.state import State
from kernelbraid.ops.report.figures import plain
from kernelbraid.ops.terminal import tell
from kernelbraid.projections.timeline import entry

TOLD: frozenset[type[Event]] = frozenset(
    {
        CampaignOpened,
        RootQualified,
        CampaignForked,
        CampaignPaused,
        CampaignResumed,
        CampaignStopped,
        AuditCompleted,
        TimingCompleted,
        ImplementationPromoted,
        BranchContinued,
        BranchDeferred,
        BranchArchived,
        BranchReactivated,
        BranchAbandoned,
        EditFailed,
    }
)


class Progress(Protocol):
    """Whatever shows a search while it runs."""

    def take(self, recorded: Recorded, state: State) -> None:
        """Told of every event by the driver."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(self, *exception: object) -> None:
        """Leave the terminal as it was."""


class PlainProgress:
    """Told of every event by the driver; writes to stderr."""

    def take(self, recorded: Recorded, state: State) -> None:
        """One line, if the event is worth one."""
        if type(recorded.event) in TOLD:
            standing = f"[kappa {state.kappa}/{state.specified().policy.kappa}, best {state.speedup_ratio:.2f}x]"
            tell(f"{recorded.position:>5}  {plain(entry(recorded).what, 140)}  {standing}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to end."""
