"""The store on one SQLite file."""

import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from eventsourcing.persistence import StoredEvent

from kernelbraid.events.access import access_to
from kernelbraid.events.blobs import deflated, digest_of, inflated, named_blobs
from kernelbraid.events.campaign import CampaignForked
from kernelbraid.events.chain import GENESIS, Head, Row, Verification, hash_of, head_of, mac_problem
from kernelbraid.events.codec import Codec, Record, parsed, utc
from kernelbraid.events.errors import (
    BlobMissing,
    CampaignExists,
    CampaignMissing,
    Conflict,
    KernelbraidError,
    LogDamaged,
    NotDrivable,
    PositionMissing,
    StoreError,
    StoreReadOnly,
    StoreTooNew,
)
from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.faults import named_faults
from kernelbraid.events.recorder import (
    SCHEMA_VERSION,
    Advance,
    HeadRow,
    Recorder,
    Segment,
    Synchronous,
    check_name,
    database_uri,
)
from kernelbraid.events.store import CampaignRow
from kernelbraid.events.transfer import export_campaign, import_file
from kernelbraid.events.verification import verified

PAGE_ROWS = 2000
"""Rows per read transaction: a page of 1 KB events is 2 MB, whatever the log's length."""


class SqliteStore:
    """A store in one SQLite file, or in memory (`path` None). See `Store` for what each method does."""

    def __init__(
        self,
        path: Path | None,
        *,
        read_only: bool = False,
        hmac_key: bytes | None = None,
        synchronous: Synchronous = "FULL",
        codec: Codec | None = None,
    ) -> None:
        # The real path, so that two names of one file share the driver's lease.
        self.path = None if path is None else Path(os.path.realpath(path))
        access = access_to(self.path, read_only)
        uri = database_uri(self.path, access)
        self.url = uri if self.path is None else f"sqlite:///{self.path}"
        self.read_only = read_only
        self.hmac_key = hmac_key
        self.codec = codec or Codec()
        self.recorder = Recorder(uri, access, synchronous)
        # Where a campaign begins never changes, so its lineage is looked up once.
        self._lineages: dict[str, tuple[Segment, ...]] = {}
        # Each campaign's head after this store's last append to it. If it is stale, the compare-and-swap says so.
        self._last: dict[str, HeadRow] = {}
        try:
            self._prepare()
        except KernelbraidError:
            self.recorder.datastore.close()
            raise

    def append(
        self, campaign: str, expected_position: int, decision: Decision, *, recorded_at: datetime | None = None
    ) -> tuple[Recorded, ...]:
        if any(isinstance(event, CampaignForked) for event in decision.events):
            raise StoreError("CampaignForked is stored by fork, not by append")
        last = self._last.get(campaign)
        row = last if last is not None and last.head.position == expected_position else self.head_row(campaign)
        if row is None and expected_position:
            raise self._missing(campaign)
        if row is None:
            return self._first(HeadRow(campaign, Head(0, GENESIS, None), 1, None, False), decision, recorded_at)
        if row.head.position == expected_position:
            return self._next(row, decision, recorded_at)
        if expected_position == 0:
            return self._repeated(row, 0, decision, recorded_at, _taken(campaign))
        moved = Conflict(f"{campaign} is at {row.head.position}, no longer at {expected_position}: fold again")
        return self._repeated(row, expected_position, decision, recorded_at, moved)

    def fork(
        self, parent: str, at: int, child: str, decision: Decision, *, recorded_at: datetime | None = None
    ) -> tuple[Recorded, ...]:
        source, state = self._state_at(parent, at)
        _check_fork(parent, at, state, decision)
        row = self.head_row(child)
        if row is not None:
            return self._repeated(row, at, decision, recorded_at, _taken(child))
        # A fork below the parent's own first position continues the ancestor that stored it.
        start = HeadRow(child, Head(at, hash_of(state), None), at + 1, source, False)
        return self._first(start, decision, recorded_at)

    def read(
        self, campaign: str, *, after: int = 0, upto: int | None = None, checked: bool = True
    ) -> Iterator[Recorded]:
        if checked:
            return self._checked(campaign, after, upto)
        pages = self._pages(campaign, max(after, 0) + 1, upto)
        return (self.codec.trusted(state) for page in pages for _, state in page)

    def _checked(self, campaign: str, after: int, upto: int | None) -> Iterator[Recorded]:
        # The event before the first one is read too: its hash is what the first one must name.
        previous = GENESIS if after <= 0 else None
        decode = self.codec.decode_record
        for page in self._pages(campaign, max(after, 1), upto):
            for position, state in page:
                record = _linked(campaign, position, state, previous)
                previous = hash_of(state)
                if position > after:
                    yield decode(record)

    def tail(self, campaign: str, after: int) -> tuple[Recorded, ...]:
        return tuple(self.read(campaign, after=after))

    def follow(self, campaign: str, after: int, *, poll_s: float = 0.2, stop: Callable[[], bool]) -> Iterator[Recorded]:
        while True:
            # Asked before the poll, so that whatever was appended before the stop still comes.
            stopping = stop()
            events = self.tail(campaign, after)
            yield from events
            after = events[-1].position if events else after
            if stopping:
                return
            if not events:
                time.sleep(poll_s)

    def position(self, campaign: str) -> int:
        return self.head(campaign).position

    def head(self, campaign: str) -> Head:
        return self._existing_head(campaign).head

    def hash_at(self, campaign: str, position: int) -> str:
        return hash_of(self._state_at(campaign, position)[1])

    def campaigns(self) -> tuple[CampaignRow, ...]:
        with self._named():
            rows = self.recorder.select_heads()
        return tuple(CampaignRow(row.campaign, row.head.position, row.parent, row.partial) for row in rows)

    def blob(self, digest: str) -> bytes:
        with self._named():
            stored = self.recorder.select_blob(_digest_bytes(digest))
        if stored is None:
            raise BlobMissing(f"the blob {digest} is not in {self.url}")
        try:
            data = inflated(stored)
        except zlib.error as error:
            raise LogDamaged(f"the blob {digest} was changed: {error}") from error
        if digest_of(data) != digest:
            raise LogDamaged(f"the blob {digest} was changed: its bytes have another digest")
        return data

    def has_blob(self, digest: str) -> bool:
        with self._named():
            return self.recorder.has_blob(_digest_bytes(digest))

    def lease_path(self, campaign: str) -> Path | None:
        if self.path is None:
            return None
        if self.read_only:
            raise StoreReadOnly(f"{self.url} is open read-only: nothing can be driven")
        return self.path.with_name(f"{self.path.name}.{check_name(campaign)}.lease")

    def close(self) -> None:
        self.recorder.datastore.close()

    def segments(self, campaign: str) -> tuple[Segment, ...]:
        """The stretches of log that make up a campaign, the oldest ancestor's first. Raises CampaignMissing."""
        lineage = self._lineages.get(campaign)
        if lineage is None:
            lineage = self._lineages[campaign] = self._lineage(campaign)
        return lineage

    def _lineage(self, campaign: str) -> tuple[Segment, ...]:
        found: list[Segment] = []
        name: str | None = campaign
        last: int | None = None
        while name is not None:
            if any(segment.campaign == name for segment in found):
                raise LogDamaged(f"the head record of {found[-1].campaign} was changed: {name} is its own ancestor")
            row = self._existing_head(name)
            found.append(Segment(name, row.start, last))
            name, last = row.parent, row.start - 1
        return tuple(reversed(found))

    def _pages(self, campaign: str, first: int, upto: int | None) -> Iterator[list[tuple[int, bytes]]]:
        """(position, stored bytes) from `first` on, a page per transaction: none is open while the caller works."""
        for segment in self.segments(campaign):
            last = _earlier(segment.last, upto)
            position = max(first, segment.first)
            while last is None or position <= last:
                with self._named():
                    page = self.recorder.select_states(segment.campaign, position, last, PAGE_ROWS)
                yield page
                if len(page) < PAGE_ROWS:
                    break
                position = page[-1][0] + 1

    def _state_at(self, campaign: str, position: int) -> tuple[str, bytes]:
        """The campaign that stored a position, and its bytes. Raises PositionMissing."""
        for segment in reversed(self.segments(campaign)):
            if position >= segment.first:
                with self._named():
                    found = self.recorder.select_states(segment.campaign, position, position, 1)
                if found:
                    return segment.campaign, found[0][1]
                break
        raise PositionMissing(f"{campaign} has no position {position}")

    def verify(self, campaign: str, *, head: str | None = None) -> Verification:
        return verified(self, campaign, head)

    def export(self, campaign: str, path: Path) -> None:
        export_campaign(self, campaign, path)

    def import_(self, path: Path) -> tuple[str, ...]:
        self._check_writable()
        with self._named():
            return import_file(self.recorder, self.codec, self.hmac_key, path)

    def head_row(self, campaign: str) -> HeadRow | None:
        """A campaign's head record, if there is such a campaign."""
        with self._named():
            return self.recorder.select_head(campaign)

    def rows(self, campaign: str, first: int, last: int | None) -> Iterator[Row]:
        """A campaign's own rows as they lie in the database, unchecked."""
        while True:
            with self._named():
                page = self.recorder.select_rows(campaign, first, last, PAGE_ROWS)
            yield from page
            if len(page) < PAGE_ROWS:
                return
            first = page[-1].position + 1

    def _first(self, start: HeadRow, decision: Decision, recorded_at: datetime | None) -> tuple[Recorded, ...]:
        """A campaign's first append, after the position `start` stands at."""
        self._check_writable()
        check_name(start.campaign)
        return self._store(start, None, decision, recorded_at)

    def _next(self, row: HeadRow, decision: Decision, recorded_at: datetime | None) -> tuple[Recorded, ...]:
        """A later append, after the campaign's head."""
        self._check_writable()
        _check_drivable(row, self.hmac_key)
        return self._store(row, row.head, decision, recorded_at)

    def _store(
        self, row: HeadRow, before: Head | None, decision: Decision, recorded_at: datetime | None
    ) -> tuple[Recorded, ...]:
        batch = _batch(row.campaign, row.head.position, decision, recorded_at or datetime.now(UTC))
        states, last_hash = self._chained(batch, row.head.hash)
        blobs = self._blobs(decision)
        head = head_of(row.campaign, batch[-1].position, last_hash, self.hmac_key)
        after = replace(row, head=head)
        try:
            with self._named():
                self.recorder.insert_events(states, advance=Advance(after, before), blobs=blobs)
        except (Conflict, CampaignExists):
            raise
        except (StoreError, LogDamaged):
            # A commit may have failed after it took effect: then the head says so.
            if not self._is_head(row.campaign, head):
                raise
        self._last[row.campaign] = after
        return batch

    def _repeated(
        self, row: HeadRow, expected: int, decision: Decision, recorded_at: datetime | None, refusal: StoreError
    ) -> tuple[Recorded, ...]:
        """The batch if it is the last one stored, byte for byte (a retry after an unknown outcome); else refuses."""
        if recorded_at is None or row.head.position != expected + len(decision.events):
            raise refusal
        batch = _batch(row.campaign, expected, decision, recorded_at)
        previous = self.hash_at(row.campaign, expected) if expected else GENESIS
        if self._chained(batch, previous)[1] != row.head.hash:
            raise refusal
        return batch

    def _chained(self, batch: Sequence[Recorded], previous: str) -> tuple[list[StoredEvent], str]:
        """Rows to store after the event with hash `previous`, and the last one's hash."""
        rows = []
        for event in batch:
            state = self.codec.encode(event, previous)
            previous = hash_of(state)
            rows.append(StoredEvent(event.campaign, event.position, type(event.event).__name__, state))
        return rows, previous

    def _blobs(self, decision: Decision) -> list[tuple[bytes, bytes]]:
        """(digest, deflated bytes) of the decision's blobs. Raises BlobMissing if an event names another one."""
        given = {digest_of(data): data for data in decision.blobs}
        named = {digest for event in decision.events for digest in named_blobs(event)}
        for digest in sorted(named - given.keys()):
            if not self.has_blob(digest):
                raise BlobMissing(f"an event names the blob {digest}, which neither its decision nor the store holds")
        return [(bytes.fromhex(digest), deflated(data)) for digest, data in given.items()]

    def _is_head(self, campaign: str, head: Head) -> bool:
        with suppress(StoreError, LogDamaged):
            row = self.head_row(campaign)
            return row is not None and row.head == head
        return False

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnly(f"{self.url} is open read-only: nothing can be appended")

    def _existing_head(self, campaign: str) -> HeadRow:
        row = self.head_row(campaign)
        if row is None:
            raise self._missing(campaign)
        return row

    def _missing(self, campaign: str) -> CampaignMissing:
        return CampaignMissing(f"there is no campaign {campaign} in {self.url}")

    def _named(self) -> AbstractContextManager[None]:
        return named_faults(self.path)

    def _prepare(self) -> None:
        """Creates the tables of a new file, and upgrades an older one that may be written. Raises StoreTooNew."""
        with self._named():
            version = self.recorder.select_schema_version()
            if version is None and not self.read_only:
                self.recorder.create_table()
                version = self.recorder.select_schema_version()
        if version is None:
            raise StoreError(f"{self.url} is no kernelbraid store")
        if version > SCHEMA_VERSION:
            raise StoreTooNew(f"{self.url} has schema {version}, this kernelbraid knows {SCHEMA_VERSION}: upgrade it")
        if version < SCHEMA_VERSION and not self.read_only:
            with self._named():
                self.recorder.upgrade()


def _linked(campaign: str, position: int, state: bytes, previous: str | None) -> Record:
    """The record of a row that follows the hash `previous` (None: not known). Raises LogDamaged."""
    try:
        record = parsed(state)
        holds = record["position"] == position and (previous is None or record["previous"] == previous)
    except (LogDamaged, KeyError) as error:
        raise LogDamaged(f"{campaign} {position} cannot be read: {error}; run verify") from error
    if not holds:
        raise LogDamaged(f"{campaign} {position}: the chain of hashes does not hold; run verify")
    return record


def _batch(campaign: str, position: int, decision: Decision, recorded_at: datetime) -> tuple[Recorded, ...]:
    """A decision's events in their places after `position`; the batch's index counts from 1."""
    size = len(decision.events)
    if not size:
        raise ValueError("a decision has at least one event")
    moment = utc(recorded_at)
    return tuple(
        Recorded(campaign, position + index, moment, decision.actor, decision.cause, (index, size), event)
        for index, event in enumerate(decision.events, start=1)
    )


def _check_drivable(row: HeadRow, key: bytes | None) -> None:
    if row.partial:
        raise NotDrivable(f"{row.campaign} is an ancestor's prefix: fork it, or import its own export first")
    if key is None and row.head.mac is not None:
        raise StoreError(f"{row.campaign} was begun with an HMAC key: set KERNELBRAID_HMAC_KEY")
    problem = mac_problem(row.campaign, row.head, key, partial=row.partial)
    if problem is not None:
        raise LogDamaged(f"{row.campaign}: {problem}")


def _check_fork(parent: str, at: int, state: bytes, decision: Decision) -> None:
    index, size = parsed(state)["batch"]
    if index != size:
        raise PositionMissing(f"{parent} {at} is within an append: fork at {at - index} or {at - index + size}")
    forked = decision.events[0] if decision.events else None
    if not isinstance(forked, CampaignForked):
        raise StoreError("a fork's first event is CampaignForked")
    if (forked.parent, forked.at, forked.parent_hash) != (parent, at, hash_of(state)):
        raise StoreError(f"CampaignForked must cite {parent}, {at} and that event's hash, {hash_of(state)}")
    if any(isinstance(event, CampaignForked) for event in decision.events[1:]):
        raise StoreError("a fork begins with one CampaignForked")


def _taken(campaign: str) -> CampaignExists:
    return CampaignExists(f"there is a campaign {campaign} already: choose another name")


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _digest_bytes(digest: str) -> bytes:
    try:
        return bytes.fromhex(digest)
    except ValueError as error:
        raise BlobMissing(f"{digest!r} is no digest") from error
