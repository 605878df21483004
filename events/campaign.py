"""Events of a campaign's life: opened, qualified, forked, paused, resumed, stopped, noted."""

from typing import ClassVar

from kernelbraid.events.event import Event
from kernelbraid.events.values import (
    Baseline,
    Change,
    Digests,
    Environment,
    Latencies,
    Region,
    Session,
    SourceFile,
    Specification,
    StopReason,
)


class CampaignOpened(Event):
    """A search was set up. It cites the root's sources; nothing is decided until the root qualifies."""

    specification: Specification
    environment: Environment
    digests: Digests
    sources: tuple[SourceFile, ...]
    regions: tuple[Region, ...]


class RootQualified(Event):
    """The root passed everything: its latencies anchor every limit, and the search is open."""

    version: ClassVar[int] = 3
    latencies_s: Latencies
    objective_s: float
    baselines: tuple[Baseline, ...] = ()
    blocks: tuple[str, ...] = ()
    """Digests of the blocks in which root and baselines were timed side by side."""
    sessions: tuple[Session, ...] | None = ()
    """One for each of the blocks; None in logs of before they were recorded."""


class CampaignForked(Event):
    """This campaign continues `parent` after `at`, whose event has the hash `parent_hash`.

    With a changed contract key or another environment the inherited verdicts are stale:
    root, best and frontier are audited again before any action.
    """

    parent: str
    at: int
    parent_hash: str
    specification: Specification
    environment: Environment
    digests: Digests
    changes: tuple[Change, ...]
    stale: bool
    stale_archive: bool = False
    """Whether the archive is audited again as well."""


class CampaignPaused(Event):
    """Running audits finish, nothing new starts, until resumed."""

    operational: ClassVar[bool] = True
    reason: str


class CampaignResumed(Event):
    """A driver took the campaign up again, after a pause or a crash."""

    operational: ClassVar[bool] = True
    reason: str = ""


class CampaignStopped(Event):
    """The search is over for good; a fork goes on."""

    reason: StopReason
    detail: str = ""


class NoteAdded(Event):
    """Somebody wrote a note."""

    operational: ClassVar[bool] = True
    text: str
