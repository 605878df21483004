"""A campaign as one file: gzip over lines, the exact stored bytes among them, so every hash is kept.

First a header, then the events of each campaign in the header's order, then the blobs. Ancestors come before their
forks and only as far as the fork needs them: they are marked partial, can be read and forked, and cannot be driven.
The same log gives the same file, byte for byte.
"""

import base64
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import orjson
from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteCursor
from pydantic import ValidationError

from kernelbraid.events.blobs import deflated, digest_of, named_blobs
from kernelbraid.events.campaign import CampaignForked
from kernelbraid.events.chain import Examination, Row, hash_of, head_of
from kernelbraid.events.codec import Codec, parsed
from kernelbraid.events.errors import (
    BlobMissing,
    CampaignExists,
    FileRefused,
    LogDamaged,
    NameRefused,
    StoreError,
    StoreTooNew,
)
from kernelbraid.events.event import Value
from kernelbraid.events.recorder import Advance, HeadRow, Recorder, Segment, check_name

FORMAT = "kernelbraid-campaign"
FORMAT_VERSION = 1
GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MOST = 1 << 28
"""Longest line read from a file; events take kilobytes, blobs a few megabytes."""


class Exported(Value):
    """One campaign in a file: its own positions `start` to `upto`, whose last event has the hash `head`."""

    name: str
    start: int
    upto: int
    head: str
    parent: str | None
    partial: bool


class Header(Value):
    """The file's first line."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    campaigns: tuple[Exported, ...]
    blobs: int


class Blob(Value):
    """A line of the file's last part; `data` is base64."""

    digest: str
    data: str


class Source(Protocol):
    """What an export reads from."""

    codec: Codec

    def segments(self, campaign: str) -> tuple[Segment, ...]: ...

    def head_row(self, campaign: str) -> HeadRow | None: ...

    def rows(self, campaign: str, first: int, last: int | None) -> Iterator[Row]: ...

    def blob(self, digest: str) -> bytes: ...


def export_campaign(store: Source, campaign: str, path: Path) -> None:
    """Writes a campaign's file, beside it first, so that a failure leaves no half of one.

    Raises StoreError where a folder or a device is in the way, CampaignMissing, BlobMissing, and LogDamaged for a log
    whose chain does not hold.
    """
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is a folder or a device: name a file")
    header, blobs = _surveyed(store, campaign)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
            for line in _lines(store, header, blobs):
                file.write(line + b"\n")
        os.replace(beside, path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)


def _surveyed(store: Source, campaign: str) -> tuple[Header, list[str]]:
    """A first pass over the rows: checks them and finds the blobs they name, in order of first mention."""
    segments = store.segments(campaign)
    row = store.head_row(campaign)
    assert row is not None, "segments raise for a missing campaign"
    exam = Examination(store.codec)
    blobs: dict[str, None] = {}
    exported: list[Exported] = []
    for segment in segments:
        exported.append(_exported(store, segment, row, exam, blobs, exported[-1].name if exported else None))
    exam.close(row.head)
    if exam.problems:
        raise LogDamaged(f"{campaign} is not exported: {exam.problems[0].what}; run verify")
    return Header(campaigns=tuple(exported), blobs=len(blobs)), list(blobs)


def _exported(
    store: Source, segment: Segment, row: HeadRow, exam: Examination, blobs: dict[str, None], parent: str | None
) -> Exported:
    upto = row.head.position if segment.last is None else segment.last
    for stored in store.rows(segment.campaign, segment.first, upto):
        event = exam.look(stored, segment.campaign)
        blobs.update(dict.fromkeys(named_blobs(event) if event is not None else ()))
    return Exported(
        name=segment.campaign,
        start=segment.first,
        upto=upto,
        head=exam.hash or "",
        parent=parent,
        partial=segment.last is not None or row.partial,
    )


def _lines(store: Source, header: Header, blobs: list[str]) -> Iterator[bytes]:
    yield orjson.dumps(header.model_dump())
    for campaign in header.campaigns:
        for row in store.rows(campaign.name, campaign.start, campaign.upto):
            yield row.state
    for digest in blobs:
        yield orjson.dumps({"digest": digest, "data": base64.b64encode(store.blob(digest)).decode("ascii")})


def import_file(recorder: Recorder, codec: Codec, key: bytes | None, path: Path) -> tuple[str, ...]:
    """Takes a file in, in one transaction, and returns its campaigns' names.

    A campaign that is there already must agree with the file as far as both reach; what the file has more is added.
    Raises FileRefused for a file that is no export, StoreTooNew, CampaignExists for another log under the same name,
    LogDamaged, EventInvalid, BlobMissing.
    """
    try:
        with open(path, "rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            if raw.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] != GZIP_MAGIC:
                raise FileRefused(f"{path} is no exported campaign: it is not gzip")
            header = _header(_line(file))
            with recorder.datastore.transaction(commit=True) as cursor:
                _Import(recorder, cursor, codec, key, file).all(header)
    except FileNotFoundError as error:
        raise StoreError(f"there is no file {path}") from error
    except EOFError as error:
        raise LogDamaged(f"{path} was cut short: it ends within its compressed data") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise LogDamaged(f"{path} was changed: {error}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    return tuple(campaign.name for campaign in header.campaigns)


class _Import:
    """One file on its way in, inside one transaction: whatever is wrong with it undoes all of it."""

    def __init__(
        self, recorder: Recorder, cursor: SQLiteCursor, codec: Codec, key: bytes | None, file: gzip.GzipFile
    ) -> None:
        self.recorder = recorder
        self.cursor = cursor
        self.codec = codec
        self.key = key
        self.file = file
        self.named: set[str] = set()

    def all(self, header: Header) -> None:
        """Every campaign, then every blob, then nothing."""
        self.recorder.begin_as_writer(self.cursor)
        exam = Examination(self.codec)
        for campaign in header.campaigns:
            self._campaign(campaign, exam)
        for _ in range(header.blobs):
            self.named.discard(self._blob(self._line()))
        for digest in sorted(self.named):
            if self.recorder.blob_in(self.cursor, bytes.fromhex(digest)) is None:
                raise BlobMissing(f"an event names the blob {digest}, which neither the file nor the store holds")
        if self.file.read(1):
            raise LogDamaged("the file goes on after its last blob")

    def _campaign(self, exported: Exported, exam: Examination) -> None:
        held = self.recorder.head_in(self.cursor, exported.name)
        if held is not None and (held.start, held.parent) != (exported.start, exported.parent):
            raise _other_log(exported.name, exported.start)
        have = 0 if held is None else held.head.position
        self._advance(exported, held)
        for position in range(exported.start, exported.upto + 1):
            row = self._row(exported, position, exam)
            if position == min(have, exported.upto):
                self._check_same(row)
            if position > have:
                self.recorder.insert_event(self.cursor, StoredEvent(row.campaign, position, row.topic, row.state))
        if exam.hash != exported.head:
            raise LogDamaged(f"{exported.name} ends with another hash than its header says")

    def _advance(self, exported: Exported, held: HeadRow | None) -> None:
        """Moves the head record to where the rows that follow will end; they are checked before the commit."""
        if held is not None and exported.upto < held.head.position:
            row = held
        else:
            partial = exported.partial and (held is None or held.partial)
            head = head_of(exported.name, exported.upto, exported.head, self.key, partial=partial)
            row = HeadRow(exported.name, head, exported.start, exported.parent, partial)
        self.recorder.move_head(self.cursor, Advance(row, None if held is None else held.head))

    def _row(self, exported: Exported, position: int, exam: Examination) -> Row:
        state = self._line()
        row = Row(exported.name, position, parsed(state)["type"], state)
        event = exam.look(row, exported.name)
        if exam.problems or exam.broken or event is None:
            why = exam.problems[0].what if exam.problems else "the chain of hashes does not hold"
            raise LogDamaged(f"{exported.name} {position} in the file: {why}")
        cited = event.at + 1 if isinstance(event, CampaignForked) else None
        if cited != (exported.start if position == exported.start > 1 else None):
            raise LogDamaged(f"{exported.name} {position}: the file's header and its events disagree about the fork")
        self.named.update(named_blobs(event))
        return row

    def _check_same(self, row: Row) -> None:
        """Equal hashes at one position mean equal logs up to it."""
        held = self.recorder.state_in(self.cursor, row.campaign, row.position)
        if held is None or hash_of(held) != hash_of(row.state):
            raise _other_log(row.campaign, row.position)

    def _blob(self, line: bytes) -> str:
        try:
            blob = Blob.model_validate(orjson.loads(line))
            data = base64.b64decode(blob.data, validate=True)
        except (ValidationError, ValueError) as error:
            raise LogDamaged(f"a blob of the file cannot be read: {error}") from error
        if digest_of(data) != blob.digest:
            raise LogDamaged(f"the file's blob {blob.digest} has another digest")
        self.recorder.insert_blobs(self.cursor, [(bytes.fromhex(blob.digest), deflated(data))])
        return blob.digest

    def _line(self) -> bytes:
        line = _line(self.file)
        if not line.endswith(b"\n"):
            raise LogDamaged("the file ends early")
        return line[:-1]


def _line(file: gzip.GzipFile) -> bytes:
    """The next line. Raises LogDamaged for one that no export writes: a small file may unpack to any length."""
    line = file.readline(LINE_BYTES_MOST + 1)
    if len(line) > LINE_BYTES_MOST:
        raise LogDamaged(f"a line of the file has more than {LINE_BYTES_MOST} bytes")
    return line


def _header(line: bytes) -> Header:
    try:
        found = orjson.loads(line)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise FileRefused("the file is gzip, but no exported campaign: its first line is not an export's header")
        if found.get("version") != FORMAT_VERSION:
            raise StoreTooNew(
                f"the file has format version {found.get('version')}, this kernelbraid reads {FORMAT_VERSION}"
            )
        header = Header.model_validate(found)
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise FileRefused(f"the file is no exported campaign: {error}") from error
    _check_lineage(header)
    return header


def _check_lineage(header: Header) -> None:
    """Each campaign continues the one before it where that one ends, and the first begins at 1."""
    parent, upto = None, 0
    for campaign in header.campaigns:
        try:
            check_name(campaign.name)
        except NameRefused as error:
            raise FileRefused(f"the file's header is wrong: {error}") from error
        if (campaign.parent, campaign.start) != (parent, upto + 1) or campaign.upto < campaign.start:
            raise LogDamaged(f"the file's header is wrong about where {campaign.name} begins")
        parent, upto = campaign.name, campaign.upto


def _other_log(campaign: str, position: int) -> CampaignExists:
    return CampaignExists(f"the store has another log named {campaign}: they differ at or before position {position}")
