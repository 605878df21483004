"""The tables: eventsourcing's SQLite recorder, made append-only, chained by a head record, with blobs beside it.

Every append is one transaction whose first statement moves the campaign's head record from the position and hash it
was decided at. So the transaction starts as a writer (a read first would fail at once when another writer comes
between), and exactly one of several writers at the same position wins.
"""

import itertools
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
)

from kernelbraid.events.access import Access
from kernelbraid.events.chain import Head, Row
from kernelbraid.events.errors import CampaignExists, Conflict, LogDamaged, NameRefused

SCHEMA_VERSION = 2
"""Raised with every change of tables or triggers. 1 had fewer triggers."""
LOCK_TIMEOUT_S = 60
"""How long a writer waits for the others; the library's 5 s was nearly met by four processes."""

Synchronous = Literal["FULL", "NORMAL"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LARGEST = 2**63 - 1
_memory_numbers = itertools.count()

TABLES = (
    "CREATE TABLE IF NOT EXISTS store_schema (version INTEGER NOT NULL)",
    f"INSERT INTO store_schema SELECT {SCHEMA_VERSION} WHERE NOT EXISTS (SELECT 1 FROM store_schema)",
    # `start` is the first position that is the campaign's own: 1, or the one after the position it was forked at.
    "CREATE TABLE IF NOT EXISTS heads (campaign TEXT PRIMARY KEY, position INTEGER NOT NULL, hash TEXT NOT NULL, "
    "mac TEXT, start INTEGER NOT NULL, parent TEXT, partial INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS blobs (digest BLOB PRIMARY KEY, data BLOB NOT NULL)",
)

TRIGGERS = (
    *(
        f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: {verb} is refused'); END"
        for table in ("stored_events", "blobs")
        for verb in ("UPDATE", "DELETE")
    ),
    # INSERT OR REPLACE deletes without firing the DELETE trigger, so an existing key is refused beforehand; so is an
    # existing row number under a new key. A row that names no number is -1 to its trigger.
    *(
        f"CREATE TRIGGER IF NOT EXISTS {table}_no_rowid_replace BEFORE INSERT ON {table} WHEN NEW.rowid > 0 "
        f"AND EXISTS (SELECT 1 FROM {table} WHERE rowid = NEW.rowid) "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: the row is taken'); END"
        for table in ("stored_events", "blobs")
    ),
    "CREATE TRIGGER IF NOT EXISTS stored_events_no_replace BEFORE INSERT ON stored_events WHEN EXISTS (SELECT 1 FROM "
    "stored_events WHERE originator_id = NEW.originator_id AND originator_version = NEW.originator_version) "
    "BEGIN SELECT RAISE(ABORT, 'stored_events is append-only: the position is taken'); END",
    "CREATE TRIGGER IF NOT EXISTS blobs_no_replace BEFORE INSERT ON blobs WHEN EXISTS (SELECT 1 FROM blobs "
    "WHERE digest = NEW.digest) BEGIN SELECT RAISE(ABORT, 'blobs is append-only: the digest is taken'); END",
    "CREATE TRIGGER IF NOT EXISTS stored_events_contiguous BEFORE INSERT ON stored_events "
    "WHEN NEW.originator_version > 1 AND NOT EXISTS (SELECT 1 FROM stored_events "
    "WHERE originator_id = NEW.originator_id AND originator_version = NEW.originator_version - 1) "
    "AND NOT EXISTS (SELECT 1 FROM heads WHERE campaign = NEW.originator_id AND start = NEW.originator_version) "
    "BEGIN SELECT RAISE(ABORT, 'stored_events has no gaps: the position before is missing'); END",
    "CREATE TRIGGER IF NOT EXISTS heads_no_delete BEFORE DELETE ON heads "
    "BEGIN SELECT RAISE(ABORT, 'heads is append-only: DELETE is refused'); END",
    "CREATE TRIGGER IF NOT EXISTS heads_no_replace BEFORE INSERT ON heads WHEN EXISTS (SELECT 1 FROM heads "
    "WHERE campaign = NEW.campaign) BEGIN SELECT RAISE(ABORT, 'heads is append-only: the campaign is there'); END",
    "CREATE TRIGGER IF NOT EXISTS heads_no_return BEFORE UPDATE ON heads WHEN NEW.position < OLD.position "
    "OR NEW.campaign IS NOT OLD.campaign OR NEW.start IS NOT OLD.start OR NEW.parent IS NOT OLD.parent "
    "BEGIN SELECT RAISE(ABORT, 'heads is append-only: a head only moves on'); END",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions `first` to `last` (None: its end) of a log as one campaign stored them."""

    campaign: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A campaign's head record."""

    campaign: str
    head: Head
    start: int
    parent: str | None
    partial: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """Moves a head record; with `before` None it is the campaign's first append and creates it."""

    after: HeadRow
    before: Head | None


def check_name(campaign: str) -> str:
    """The name, if it may be one: it becomes part of a file's name and of ids such as `campaign/i0012`."""
    if not _NAME.fullmatch(campaign):
        raise NameRefused(f"{campaign!r} is no campaign name: use at most 100 of A-Z a-z 0-9 . _ -, no sign first")
    return campaign


def database_uri(path: Path | None, access: Access) -> str:
    """What sqlite3 connects to; a memory database gets a name of its own, shared by the pool's connections."""
    if path is None:
        return f"file:kernelbraid{next(_memory_numbers)}?mode=memory&cache=shared"
    options = {"write": "mode=rwc", "read": "mode=ro", "immutable": "mode=ro&immutable=1"}
    return f"file:{quote(str(path))}?{options[access]}"


class Pool(SQLiteConnectionPool):
    """Connections with the durability asked for; SQLite's own default for it depends on how it was compiled."""

    def __init__(self, uri: str, access: Access, synchronous: Synchronous) -> None:
        super().__init__(db_name=uri, lock_timeout=LOCK_TIMEOUT_S, pool_timeout=LOCK_TIMEOUT_S)
        self._access = access
        self._synchronous = synchronous

    def _create_connection(self) -> SQLiteConnection:
        connection = sqlite3.connect(
            self.db_name, uri=True, check_same_thread=False, isolation_level=None, timeout=LOCK_TIMEOUT_S
        )
        connection.row_factory = sqlite3.Row
        if self._access == "write":
            if not self.is_sqlite_memory_mode:
                _use_wal(connection)
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
        return SQLiteConnection(sqlite_conn=connection, max_age=self.max_age)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers beside a writer need the write-ahead log. Switching to it ignores the lock timeout, hence the loop."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Recorder(SQLiteApplicationRecorder):
    """Stored events, head records and blobs of one database."""

    def __init__(self, uri: str, access: Access = "write", synchronous: Synchronous = "FULL") -> None:
        datastore = SQLiteDatastore(uri, originator_id_type="text")
        # The datastore builds the library's pool; ours takes its place before a connection was made.
        datastore.pool = Pool(uri, access, synchronous)
        super().__init__(datastore)
        # Told how long an append's first statement, which makes it the writer, took in seconds.
        self.on_lock_wait: Callable[[float], None] = lambda seconds: None

    def construct_create_table_statements(self) -> list[str]:
        """The library's events table, then head records, blobs and the triggers that keep all of it append-only."""
        return [*super().construct_create_table_statements(), *TABLES, *TRIGGERS]

    def _insert_events(
        self,
        c: SQLiteCursor,
        stored_events: Sequence[StoredEvent],
        advance: Advance | None = None,
        blobs: Sequence[tuple[bytes, bytes]] = (),
        **kwargs: Any,
    ) -> Sequence[int] | None:
        if advance is not None:
            started = time.perf_counter()
            self.move_head(c, advance)
            self.on_lock_wait(time.perf_counter() - started)
        self.insert_blobs(c, blobs)
        return super()._insert_events(c, stored_events, **kwargs)

    def move_head(self, c: SQLiteCursor, advance: Advance) -> None:
        """Compare-and-swap of the head record. Raises Conflict, or CampaignExists for a first append."""
        row, before = advance.after, advance.before
        if before is None:
            self._create_head(c, row)
            return
        c.execute(
            "UPDATE heads SET position = ?, hash = ?, mac = ?, partial = ? "
            "WHERE campaign = ? AND position = ? AND hash = ? RETURNING position",
            (row.head.position, row.head.hash, row.head.mac, row.partial, row.campaign, before.position, before.hash),
        )
        if not c.fetchall():
            raise Conflict(f"{row.campaign} is no longer at {before.position}: fold again and decide again")

    def _create_head(self, c: SQLiteCursor, row: HeadRow) -> None:
        c.execute(
            "INSERT INTO heads SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 "
            "WHERE NOT EXISTS (SELECT 1 FROM heads WHERE campaign = ?1) RETURNING position",
            (row.campaign, row.head.position, row.head.hash, row.head.mac, row.start, row.parent, row.partial),
        )
        if not c.fetchall():
            raise CampaignExists(f"there is a campaign {row.campaign} already: choose another name")

    def insert_blobs(self, c: SQLiteCursor, blobs: Sequence[tuple[bytes, bytes]]) -> None:
        """Stores (digest, deflated bytes) pairs; those that are there already are left as they are."""
        for digest, data in blobs:
            c.execute(
                "INSERT INTO blobs SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE digest = ?)",
                (digest, data, digest),
            )

    def begin_as_writer(self, c: SQLiteCursor) -> None:
        """Takes the write lock, for a transaction that has to read before it writes."""
        c.execute("UPDATE store_schema SET version = version")

    def insert_event(self, c: SQLiteCursor, event: StoredEvent) -> None:
        """Stores one row within a transaction that moved the head record already."""
        super()._insert_events(c, [event])

    def head_in(self, c: SQLiteCursor, campaign: str) -> HeadRow | None:
        """A campaign's head record as this transaction sees it."""
        rows = _fetched(c, "SELECT * FROM heads WHERE campaign = ?", (campaign,))
        return _head_row(rows[0]) if rows else None

    def state_in(self, c: SQLiteCursor, campaign: str, position: int) -> bytes | None:
        """An event's stored bytes as this transaction sees them."""
        key = "originator_id = ? AND originator_version = ?"
        rows = _fetched(c, f"SELECT state FROM stored_events WHERE {key}", (campaign, position))
        return rows[0][0] if rows else None

    def blob_in(self, c: SQLiteCursor, digest: bytes) -> bytes | None:
        """A blob's deflated bytes as this transaction sees them."""
        rows = _fetched(c, "SELECT data FROM blobs WHERE digest = ?", (digest,))
        return rows[0][0] if rows else None

    def upgrade(self) -> None:
        """Makes the triggers of an older schema anew; its tables are today's."""
        with self.datastore.transaction(commit=True) as c:
            self.begin_as_writer(c)
            for (name,) in _fetched(c, "SELECT name FROM sqlite_master WHERE type = 'trigger'", ()):
                c.execute(f'DROP TRIGGER "{name}"')
            for statement in TRIGGERS:
                c.execute(statement)
            c.execute("UPDATE store_schema SET version = ?", (SCHEMA_VERSION,))

    def select_schema_version(self) -> int | None:
        """The store's schema version; None for a database without our tables. Raises LogDamaged for no number."""
        found = self._select("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'store_schema'", ())
        versions = self._select("SELECT version FROM store_schema", ()) if found else []
        version = versions[0][0] if versions else None
        if version is not None and not isinstance(version, int):
            raise LogDamaged(f"the store's schema version is {version!r}, no number")
        return version

    def select_head(self, campaign: str) -> HeadRow | None:
        """A campaign's head record, if there is such a campaign."""
        with self.datastore.transaction(commit=False) as c:
            return self.head_in(c, campaign)

    def select_heads(self) -> list[HeadRow]:
        """Every campaign's head record, by name."""
        return [_head_row(row) for row in self._select("SELECT * FROM heads ORDER BY campaign", ())]

    def select_states(self, campaign: str, first: int, last: int | None, limit: int) -> list[tuple[int, bytes]]:
        """(position, stored bytes) of at most `limit` rows from `first` to `last`, both included."""
        return self._select(
            "SELECT originator_version, state FROM stored_events "
            "WHERE originator_id = ? AND originator_version BETWEEN ? AND ? ORDER BY originator_version LIMIT ?",
            (campaign, first, _LARGEST if last is None else last, limit),
        )

    def select_rows(self, campaign: str, first: int, last: int | None, limit: int) -> list[Row]:
        """The same rows with the type they are filed under, for a check that believes nothing."""
        rows = self._select(
            "SELECT originator_id, originator_version, topic, state FROM stored_events "
            "WHERE originator_id = ? AND originator_version BETWEEN ? AND ? ORDER BY originator_version LIMIT ?",
            (campaign, first, _LARGEST if last is None else last, limit),
        )
        return [Row(*row) for row in rows]

    def select_blob(self, digest: bytes) -> bytes | None:
        """A blob's deflated bytes."""
        with self.datastore.transaction(commit=False) as c:
            return self.blob_in(c, digest)

    def has_blob(self, digest: bytes) -> bool:
        """Whether the blob is there; its bytes are not read."""
        return bool(self._select("SELECT 1 FROM blobs WHERE digest = ?", (digest,)))

    def _select(self, statement: str, parameters: Sequence[object]) -> list[Any]:
        with self.datastore.transaction(commit=False) as c:
            return _fetched(c, statement, parameters)


def _fetched(c: SQLiteCursor, statement: str, parameters: Sequence[object]) -> list[Any]:
    """Rows as plain tuples: bulk reads need no names."""
    cursor = c.sqlite_cursor
    cursor.row_factory = None
    return cursor.execute(statement, parameters).fetchall()


def _head_row(row: tuple[Any, ...]) -> HeadRow:
    campaign, position, head_hash, mac, start, parent, partial = row
    numbers = isinstance(position, int) and isinstance(start, int)
    if not (numbers and isinstance(head_hash, str) and all(isinstance(text, str | None) for text in (mac, parent))):
        raise LogDamaged(f"the head record of {campaign} was changed: its fields have other types")
    return HeadRow(campaign, Head(position, head_hash, mac), start, parent, bool(partial))
