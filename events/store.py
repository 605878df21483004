"""The door to the log: what a store can do, and how one is opened.

A store keeps campaigns, one stream of events each, and the blobs their events name. Nothing in it is ever changed or
deleted; everything else in kernelbraid is folded from it.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from kernelbraid.events.blobs import digest_of, named_blobs
from kernelbraid.events.chain import Head, Problem, Verification
from kernelbraid.events.errors import StoreError
from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.lease import Lease, driver_lease, driver_of

__all__ = [
    "CampaignRow",
    "Head",
    "Lease",
    "Problem",
    "Store",
    "Verification",
    "digest_of",
    "driver_lease",
    "driver_of",
    "named_blobs",
    "open_store",
]

STORE_VARIABLE = "KERNELBRAID_STORE"
KEY_VARIABLE = "KERNELBRAID_HMAC_KEY"
DEFAULT_URL = "sqlite:///kernelbraid.db"


@dataclass(frozen=True, slots=True)
class CampaignRow:
    """A campaign in the store's list. `partial`: an ancestor's prefix, imported with a child."""

    name: str
    position: int
    parent: str | None
    partial: bool


class Store(Protocol):
    """An append-only log of campaigns. Safe to use from several threads and processes at once."""

    url: str

    def append(
        self, campaign: str, expected_position: int, decision: Decision, *, recorded_at: datetime | None = None
    ) -> tuple[Recorded, ...]:
        """Stores a decision's events and blobs after `expected_position` (0: a new campaign), all or nothing.

        `recorded_at` defaults to now. An append whose bytes are the head already (same moment, same decision: a retry
        after an unknown outcome) succeeds without storing anything again.

        Raises Conflict if another writer was first, CampaignExists or CampaignMissing, NotDrivable for an imported
        prefix, BlobMissing for an event that names a blob which neither the decision nor the store holds,
        EventInvalid for what would not read back equal, StoreFull, StoreReadOnly. Nothing is stored in any of these.
        """
        ...

    def read(
        self, campaign: str, *, after: int = 0, upto: int | None = None, checked: bool = True
    ) -> Iterator[Recorded]:
        """Events in order, an ancestor's prefix before its fork's own; ends at the end of an append.

        `Recorded.campaign` is the campaign that stored the event. The chain of hashes is checked on the way, so a
        changed event shows at the latest when the one after it is read; only `verify` looks at the end and at blobs.
        `checked` False leaves hashes and validation to somebody else who reads the same events.
        Raises CampaignMissing, LogDamaged, EventInvalid.
        """
        ...

    def tail(self, campaign: str, after: int) -> tuple[Recorded, ...]:
        """What was appended after a position; costs the same however long the log is."""
        ...

    def follow(self, campaign: str, after: int, *, poll_s: float = 0.2, stop: Callable[[], bool]) -> Iterator[Recorded]:
        """Every event after a position once and in order, waiting for more until `stop()`; drains before it ends."""
        ...

    def position(self, campaign: str) -> int:
        """The last position. Raises CampaignMissing."""
        ...

    def head(self, campaign: str) -> Head:
        """The head record. Raises CampaignMissing."""
        ...

    def hash_at(self, campaign: str, position: int) -> str:
        """Hash of the event at a position, as CampaignForked cites it. Raises PositionMissing."""
        ...

    def campaigns(self) -> tuple[CampaignRow, ...]:
        """Every campaign, by name."""
        ...

    def fork(
        self, parent: str, at: int, child: str, decision: Decision, *, recorded_at: datetime | None = None
    ) -> tuple[Recorded, ...]:
        """Begins `child` after `parent`'s position `at`, which must end an append; nothing is copied.

        The decision's first event is CampaignForked with this parent, `at` and `hash_at(parent, at)`.
        Raises PositionMissing, CampaignExists, CampaignMissing and what append raises.
        """
        ...

    def blob(self, digest: str) -> bytes:
        """A blob's bytes. Raises BlobMissing, or LogDamaged if they no longer have that digest."""
        ...

    def has_blob(self, digest: str) -> bool:
        """Whether the blob is in the store."""
        ...

    def verify(self, campaign: str, *, head: str | None = None) -> Verification:
        """Checks every row, link, payload and named blob, and the head record.

        `head` is a hash noted earlier: the campaign must end with it. Without it and without an HMAC key, a log that
        was cut or extended by somebody who rewrote the head record as well looks sound.
        """
        ...

    def export(self, campaign: str, path: Path) -> None:
        """Writes a campaign with its ancestors' prefixes and all blobs into one file. Raises LogDamaged."""
        ...

    def import_(self, path: Path) -> tuple[str, ...]:
        """Takes an exported file in, all or nothing; returns its campaigns. Every hash is kept and checked."""
        ...

    def lease_path(self, campaign: str) -> Path | None:
        """The file whose lock is the driver's lease; None for a store in memory."""
        ...

    def close(self) -> None:
        """Closes every connection. Using the store afterwards raises StoreError.

        Only when no other thread is using it: SQLite may crash the process if a connection is closed in use.
        """
        ...


def open_store(
    url: str | None = None,
    *,
    read_only: bool = False,
    hmac_key: bytes | None = None,
    synchronous: Literal["FULL", "NORMAL"] = "FULL",
) -> Store:
    """Opens the store at `url`, by default $KERNELBRAID_STORE or sqlite:///kernelbraid.db, creating its file.

    `sqlite:///relative.db`, `sqlite:////absolute.db` and `:memory:` are understood. `hmac_key` (by default
    $KERNELBRAID_HMAC_KEY, as UTF-8) authenticates head records: a campaign begun with a key needs it ever after.
    `synchronous` FULL survives a power cut with every acknowledged append, NORMAL only a killed process.
    Read-only stores must exist.

    Raises StoreError, StoreReadOnly, StoreFull, StoreTooNew, LogDamaged for a file that is no database.
    """
    from kernelbraid.events.sqlite import SqliteStore

    path = _database_path(url or os.environ.get(STORE_VARIABLE) or DEFAULT_URL)
    key = hmac_key if hmac_key is not None else os.environ.get(KEY_VARIABLE, "").encode() or None
    return SqliteStore(path, read_only=read_only, hmac_key=key, synchronous=synchronous)


def _database_path(url: str) -> Path | None:
    """The database file that a URL names; None is memory. Raises StoreError for URLs that are not understood."""
    if url in (":memory:", "sqlite://", "sqlite:///:memory:"):
        return None
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    if url.startswith(("postgresql://", "postgres://")):
        raise StoreError("PostgreSQL stores come with a later version: use sqlite:///FILE")
    if "://" in url or not url:
        raise StoreError(f"the store {url!r} is not understood: use sqlite:///FILE")
    return Path(url)
