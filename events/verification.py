"""`verify`: every row of a campaign, its ancestors' prefixes, the head record and the blobs they name."""

from collections.abc import Iterator
from typing import Protocol

from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.blobs import named_blobs
from kernelbraid.events.campaign import CampaignForked
from kernelbraid.events.chain import Examination, Head, Row, Verification, mac_problem
from kernelbraid.events.codec import Codec
from kernelbraid.events.errors import BlobMissing, CampaignMissing, LogDamaged
from kernelbraid.events.event import Event
from kernelbraid.events.recorder import HeadRow, Segment
from kernelbraid.events.search import ImplementationSubmitted


class Raw(Protocol):
    """What a check needs: rows as they lie, believed or not."""

    codec: Codec
    hmac_key: bytes | None

    def segments(self, campaign: str) -> tuple[Segment, ...]: ...

    def head_row(self, campaign: str) -> HeadRow | None: ...

    def rows(self, campaign: str, first: int, last: int | None) -> Iterator[Row]: ...

    def blob(self, digest: str) -> bytes: ...


class _Check:
    """One campaign's check under way."""

    def __init__(self, store: Raw, noted: str | None) -> None:
        self.store = store
        self.noted = noted
        self.noted_at: int | None = None
        self.exam = Examination(store.codec)
        self.blobs: dict[str, tuple[int, str]] = {}
        """Digest to the first position that names it, and the implementation it is about with a colon, if any."""

    def stretch(self, segment: Segment, last: int) -> None:
        """Looks at one campaign's rows of the log, up to `last`."""
        for row in self.store.rows(segment.campaign, segment.first, last):
            event = self.exam.look(row, segment.campaign)
            if event is not None:
                self._begins_rightly(row.position, event, segment)
                self._note(row.position, event)

    def end(self, row: HeadRow) -> None:
        """Compares the end of the log with the head record, its authentication and the noted hash."""
        head, exam = row.head, self.exam
        exam.close(head)
        for extra in self._outside(row):
            exam.add(extra.position, f"row {extra.position} lies outside {row.start} to {head.position}, its campaign")
        problem = mac_problem(row.campaign, head, self.store.hmac_key, partial=row.partial)
        if problem is not None:
            exam.add(head.position, problem)
        if self.noted is not None and self.noted != head.hash:
            exam.add(head.position, self._not_noted(head))

    def named(self) -> None:
        """Looks every named blob up and recomputes its digest."""
        for digest, (position, whose) in self.blobs.items():
            try:
                self.store.blob(digest)
            except (BlobMissing, LogDamaged) as error:
                self.exam.add(position, f"{whose}{error}")

    def _outside(self, row: HeadRow) -> Iterator[Row]:
        yield from self.store.rows(row.campaign, -1, row.start - 1)
        yield from self.store.rows(row.campaign, row.head.position + 1, None)

    def _note(self, position: int, event: Event) -> None:
        if self.exam.hash == self.noted:
            self.noted_at = position
        whose = ""
        if isinstance(event, AuditCompleted | TimingCompleted | ImplementationSubmitted):
            whose = f"{event.implementation}: "
        for digest in named_blobs(event):
            self.blobs.setdefault(digest, (position, whose))

    def _begins_rightly(self, position: int, event: Event, segment: Segment) -> None:
        """Where a campaign begins must be what its first event says; from whom, the chain of hashes shows."""
        cited = event.at + 1 if isinstance(event, CampaignForked) else None
        due = segment.first if position == segment.first > 1 else None
        if cited != due:
            self.exam.add(position, f"row {position} begins a fork at {cited}, the head record at {due}")

    def _not_noted(self, head: Head) -> str:
        if self.noted_at is None:
            return "the noted head is nowhere in the log: it was cut off or rewritten"
        return f"the noted head is position {self.noted_at}: {head.position - self.noted_at} events came after it"


def verified(store: Raw, campaign: str, noted: str | None) -> Verification:
    """The check of one campaign. Raises CampaignMissing if there is no trace of it."""
    row = store.head_row(campaign)
    check = _Check(store, noted)
    if row is None:
        _headless(store, campaign, check)
        return _result(campaign, Head(0, "", None), check)
    try:
        segments = store.segments(campaign)
    except (CampaignMissing, LogDamaged) as error:
        check.exam.add(0, f"an ancestor's head record is missing or wrong: {error}")
        return _result(campaign, row.head, check)
    for segment in segments:
        check.stretch(segment, row.head.position if segment.last is None else segment.last)
    check.end(row)
    check.named()
    return _result(campaign, row.head, check)


def _headless(store: Raw, campaign: str, check: _Check) -> None:
    if next(store.rows(campaign, 1, None), None) is None:
        raise CampaignMissing(f"there is no campaign {campaign}")
    check.exam.add(0, f"the head record of {campaign} is missing, rows of it are there")


def _result(campaign: str, head: Head, check: _Check) -> Verification:
    problems = tuple(sorted(check.exam.problems, key=lambda problem: problem.position))
    return Verification(campaign, head.position, head.hash, problems)
