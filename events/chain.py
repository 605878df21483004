"""The chain of hashes: what a row must look like after the one before it, and which row to name when it does not.

A hash is SHA-256 over stored bytes. Every record holds the hash of the one before it, and the head record holds the
last one's, so a changed row breaks the link that leaves it. Without a key, somebody who may rewrite the whole file can
rewrite every hash and the head too: only a head hash noted elsewhere, or an HMAC key that the writer lacks, shows that.
An HMAC key in turn cannot show that the whole file was put back to an older, honest state; a noted head hash can.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from kernelbraid.events.codec import RECORD_FIELDS, Codec, Record, parsed
from kernelbraid.events.errors import EventInvalid, LogDamaged
from kernelbraid.events.event import Event

GENESIS = ""
"""What the first event of all names as its previous hash."""

PROBLEMS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Head:
    """The last position of a campaign and its hash; `mac` authenticates both if the store has a key."""

    position: int
    hash: str
    mac: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """One stored row as it lies in the database, nothing about it believed yet."""

    campaign: str
    position: int
    topic: str
    state: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and at which position (0: with the campaign as a whole)."""

    position: int
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check of a campaign, its ancestors' prefixes and the blobs they name found; sound without problems."""

    campaign: str
    positions: int
    head_hash: str
    problems: tuple[Problem, ...]


def hash_of(state: bytes) -> str:
    """An event's hash: SHA-256 of its stored bytes, in hex."""
    return hashlib.sha256(state).hexdigest()


def mac_of(key: bytes, campaign: str, position: int, head_hash: str, *, partial: bool = False) -> str:
    """HMAC-SHA256 of a head record, in hex. Where a campaign begins and from whom, its own events say."""
    what = f"{campaign}\n{position}\n{head_hash}" + ("\npartial" if partial else "")
    return hmac.new(key, what.encode(), hashlib.sha256).hexdigest()


def head_of(campaign: str, position: int, head_hash: str, key: bytes | None, *, partial: bool = False) -> Head:
    """A head record, authenticated if there is a key."""
    return Head(
        position, head_hash, None if key is None else mac_of(key, campaign, position, head_hash, partial=partial)
    )


def mac_problem(campaign: str, head: Head, key: bytes | None, *, partial: bool = False) -> str | None:
    """Why a head record is not to be believed under this key; None if it is, or if there is no key to judge by."""
    if key is None:
        return None
    if head.mac is None:
        return "the head record carries no HMAC: it was written without the key"
    if not hmac.compare_digest(
        head.mac.encode(), mac_of(key, campaign, head.position, head.hash, partial=partial).encode()
    ):
        return "the head record's HMAC does not match the key: it was rewritten without it"
    return None


@dataclass(slots=True)
class Examination:
    """Walks the rows of a campaign in order and collects what is wrong with them.

    A row that is bad by its own look (unreadable, misplaced, of another type than its column says) is named for that,
    and the links at both its sides are not judged. Every other broken link is laid at the door of a row by `_blame`.
    """

    codec: Codec
    problems: list[Problem] = field(default_factory=list)
    position: int = 0
    hash: str | None = GENESIS
    """Hash of the last row; None after a gap or a bad row: the next link is not judged."""
    batch: tuple[int, int] | None = (0, 0)
    broken: list[int] = field(default_factory=list)
    """Positions that consecutive broken links enter, up to the last row."""
    uneven: Problem | None = None
    """The first append whose events do not lie together and whole."""

    def look(self, row: Row, campaign: str) -> Event | None:
        """Takes the next row in; returns its event if it can be read."""
        self._expect(row.position)
        read = self._read(row, campaign)
        self.position = row.position
        if read is None:
            self._unknown()
            return None
        record, event = read
        self._enter(record["previous"])
        self._follow_batch(record["batch"])
        self.hash = hash_of(row.state)
        return event

    def close(self, head: Head) -> None:
        """Compares the last row with the head record."""
        self._expect(head.position + 1)
        self.position = head.position + 1
        self._enter(head.hash)
        self._blame()
        if self.batch is not None and self.batch[0] != self.batch[1]:
            self.uneven = self.uneven or Problem(head.position, "the log ends within a batch of one append")
        # Where a hash is broken, the row is named already and its batch means nothing.
        if self.uneven is not None and not self.problems:
            self.problems.append(self.uneven)

    def add(self, position: int, what: str) -> None:
        """Collects a problem; after a hundred, more say nothing new."""
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(Problem(position, what))

    def _read(self, row: Row, campaign: str) -> tuple[Record, Event] | None:
        try:
            record = parsed(row.state)
            wrong = _misplaced(row, record, campaign)
            if wrong is None:
                return record, self.codec.decode_record(record).event
        except (EventInvalid, LogDamaged, TypeError) as error:
            wrong = f"row {row.position} cannot be read: {error}"
        self.add(row.position, wrong)
        return None

    def _expect(self, position: int) -> None:
        first, last = self.position + 1, position - 1
        if first <= last:
            rows = f"row {first} is" if first == last else f"rows {first} to {last} are"
            self._unknown()
            self.add(first, f"{rows} missing")

    def _enter(self, previous: str) -> None:
        """Judges the link that enters the current position."""
        if self.hash is not None and previous != self.hash:
            self.broken.append(self.position)
        else:
            self._blame()

    def _unknown(self) -> None:
        self._blame()
        self.hash = self.batch = None

    def _blame(self) -> None:
        """The broken links end here. One alone blames the row it leaves, several those that touch two of them."""
        run, self.broken = self.broken, []
        if len(run) == 1:
            row = max(run[0] - 1, 1)
            self.add(row, f"row {row} was changed: the link from it does not hold, the next one does")
        for row in run[:-1]:
            self.add(row, f"row {row} was changed: it fits neither neighbour")

    def _follow_batch(self, batch: list[int]) -> None:
        index, size = batch
        if self.batch is not None:
            before, whole = self.batch
            begins = before == whole and index == 1
            if not begins and (index, size) != (before + 1, whole):
                what = f"row {self.position} is {index} of {size}, after {before} of {whole}"
                self.uneven = self.uneven or Problem(self.position, what)
        self.batch = (index, size)


def _misplaced(row: Row, record: Record, campaign: str) -> str | None:
    """What the row's bytes say against the row's place."""
    if record.keys() != RECORD_FIELDS:
        return f"row {row.position} cannot be read: its fields are not an event record's"
    if (record["campaign"], record["position"]) != (campaign, row.position):
        return f"row {row.position} holds the record of {record['campaign']} {record['position']}"
    if record["type"] != row.topic:
        return f"row {row.position} is filed as {row.topic!r}, its bytes say {record['type']!r}"
    return None
