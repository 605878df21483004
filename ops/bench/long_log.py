"""A log of a million events: a real campaign's own iterations over and over, then read in a process of its own."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import orjson
from eventsourcing.persistence import StoredEvent

from kernelbraid.events import decider
from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.chain import hash_of, head_of
from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.recorder import Advance
from kernelbraid.events.search import OpportunityRaised
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.state import fold
from kernelbraid.events.store import open_store
from kernelbraid.ops.bench.engine import CAMPAIGN, children_peak_rss_bytes, peak_rss_bytes, searched, store_url
from kernelbraid.ops.collector import collect_seldom
from kernelbraid.ops.digests import rebuilt
from kernelbraid.projections.projection import STATE

SEED_ITERATIONS = 40
CHUNK_EVENTS = 20_000


def bench_long_log(events: int) -> dict[str, object]:
    """Seconds and peak memory of checking, folding and digesting a log of so many events."""
    with TemporaryDirectory(prefix="kernelbraid-bench-") as folder:
        searched(Path(folder), SEED_ITERATIONS, pausing=True)
        extend(Path(folder), events)
        command = [sys.executable, "-m", "kernelbraid.ops.bench.long_log", store_url(Path(folder))]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return cast(dict[str, object], orjson.loads(done.stdout))


def extend(folder: Path, events: int) -> None:
    """Repeats the campaign's own iterations in turn, under new ids, until its log has so many events."""
    store = open_store(store_url(folder), synchronous="NORMAL")
    assert isinstance(store, SqliteStore)
    try:
        _go_on(store)
        rows = _rows(store, events)
        while chunk := _chunk(rows):
            _insert(store, chunk)
    finally:
        store.close()


def _go_on(store: SqliteStore) -> None:
    """A paused campaign is running again, so that what follows is a log that the rules allow."""
    state = fold(store.read(CAMPAIGN))
    assert state.environment is not None
    events = decider.resume(state, state.environment)
    store.append(CAMPAIGN, state.position, Decision("driver", state.fact_position, events))


def _chunk(rows: Iterator[StoredEvent]) -> list[StoredEvent]:
    return list(itertools.islice(rows, CHUNK_EVENTS))


def _insert(store: SqliteStore, chunk: list[StoredEvent]) -> None:
    before = store.head_row(CAMPAIGN)
    assert before is not None
    last = chunk[-1]
    head = head_of(CAMPAIGN, last.originator_version, hash_of(last.state), None)
    after = type(before)(CAMPAIGN, head, before.start, before.parent, before.partial)
    store.recorder.insert_events(chunk, advance=Advance(after, before.head), blobs=())


def _rows(store: SqliteStore, events: int) -> Iterator[StoredEvent]:
    log = list(store.read(CAMPAIGN))
    templates = itertools.cycle(_templates(log))
    position, previous = log[-1].position, store.head(CAMPAIGN).hash
    number = sum(isinstance(item.event, OpportunityRaised) for item in log)
    while position < events:
        number += 1
        for name, head, payload in next(templates):
            position += 1
            state = head % (position, position - 1, previous.encode()) + _numbered(payload, number) + b"}"
            previous = hash_of(state)
            yield StoredEvent(CAMPAIGN, position, name, state)


Template = tuple[str, bytes, bytes]
"""An event's type, its envelope and its payload, with places for what differs from one iteration to the next."""


def _templates(log: list[Recorded]) -> list[list[Template]]:
    """Every whole iteration whose screen ruled a gain out: from an opportunity to the lineage decision.

    They are what a long campaign consists of, and they use no confirmation up, so their log is one that the rules
    allow.
    """
    starts = [place for place, item in enumerate(log) if isinstance(item.event, OpportunityRaised)]
    spans = [log[start:end] for start, end in itertools.pairwise(starts)]
    return [[_event_template(item, span) for item in span] for span in spans if any(map(_screened_out, span))]


def _screened_out(item: Recorded) -> bool:
    audit = item.event
    measurement = audit.measurement if isinstance(audit, AuditCompleted) else None
    return measurement is not None and measurement.confirmation is None


def _event_template(item: Recorded, span: list[Recorded]) -> Template:
    name = type(item.event).__name__
    head = (
        f'{{"campaign":"{CAMPAIGN}","position":%d,"recorded_at":"{item.recorded_at.isoformat(timespec="microseconds")}",'
        f'"actor":"{item.actor}","cause":%d,"batch":[1,1],"type":"{name}","version":{type(item.event).version},'
        '"previous":"%s","payload":'
    )
    payload = orjson.dumps(item.event.model_dump(mode="json"))
    return name, head.encode(), _placed(payload, span)


def _placed(payload: bytes, span: list[Recorded]) -> bytes:
    for own, place in zip(_ids(span), (b"<o>", b"<a>", b"<i>"), strict=True):
        payload = payload.replace(f'"{own}"'.encode(), b'"' + place + b'"')
    return payload


def _ids(span: list[Recorded]) -> tuple[str, str, str]:
    payloads: list[dict[str, Any]] = [item.event.model_dump() for item in span]
    return payloads[0]["opportunity"], payloads[1]["action"], payloads[2]["implementation"]


def _numbered(payload: bytes, number: int) -> bytes:
    for letter in (b"o", b"a", b"i"):
        payload = payload.replace(b"<" + letter + b">", b"%c%04d" % (letter, number))
    return payload


def read(url: str) -> dict[str, object]:
    """Checks, folds into every projection, and digests; the timed part of the bench."""
    store = open_store(url, read_only=True)
    started, cpu_s = time.perf_counter(), _cpu_s()
    folded = rebuilt(store, CAMPAIGN)
    total_s = time.perf_counter() - started
    return {
        "events": folded.state.position,
        "total_s": total_s,
        "cpu_s": _cpu_s() - cpu_s,
        "events_per_s": folded.state.position / total_s,
        "processes": folded.processes,
        "digest": folded.digests[STATE.name],
        "digests": folded.digests,
        "peak_rss_bytes": peak_rss_bytes() + children_peak_rss_bytes(),
    }


def _cpu_s() -> float:
    """Processor time of this process and of those that it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    collect_seldom()
    sys.stdout.buffer.write(orjson.dumps(read(sys.argv[1])))
