"""Events of lineage: what becomes of a verified implementation, apart from promotion."""

from kernelbraid.events.event import Event


class BranchContinued(Event):
    """It stays in the frontier; `opportunity` is the follow-up that keeps it there, if one was raised."""

    implementation: str
    opportunity: str | None
    reason: str


class BranchDeferred(Event):
    """It stays in the frontier and waits on the merge list for a compatible sibling."""

    implementation: str
    reason: str


class BranchArchived(Event):
    """It leaves the frontier for the archive."""

    implementation: str
    reason: str


class BranchReactivated(Event):
    """It returns to the frontier; `because` is the id of what happened after it was archived."""

    implementation: str
    because: str
    reason: str


class BranchAbandoned(Event):
    """A direction is falsified: its pending opportunities are withdrawn and its members archived, never the best."""

    mechanism: str
    implementations: tuple[str, ...]
    withdrawn: tuple[str, ...]
    reason: str
