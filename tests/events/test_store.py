"""Appending, reading, following: what any store must do, on the SQLite one."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbraid.events import store as door
from kernelbraid.events.campaign import NoteAdded
from kernelbraid.events.errors import (
    BlobMissing,
    CampaignExists,
    CampaignMissing,
    Conflict,
    EventInvalid,
    LogDamaged,
    StoreError,
)
from kernelbraid.events.search import OpportunityRaised
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import digest_of, open_store
from tests.events.conftest import OpenAt
from tests.events.factory import (
    NOON,
    ROOT_SOURCE,
    audited,
    campaign_of,
    decision,
    forked,
    iteration,
    log_of,
    model_call,
    notes,
    opened,
    opening,
    raised,
)

REPOSITORY = Path(__file__).resolve().parents[2]


def test_what_is_appended_is_read_back_in_its_place(store: SqliteStore) -> None:
    first = store.append("c", 0, opening(), recorded_at=NOON)
    second = store.append("c", 1, notes("one", "two", actor="planner", cause=1), recorded_at=NOON)

    assert log_of(store, "c") == first + second
    assert [(event.position, event.batch, event.cause) for event in second] == [(2, (1, 2), 1), (3, (2, 2), 1)]
    assert {event.actor for event in second} == {"planner"}
    assert store.position("c") == 3
    assert store.head("c").hash == store.hash_at("c", 3)


def test_every_kind_of_event_and_blob_comes_back(store: SqliteStore) -> None:
    campaign_of(store, "c")
    store.append("c", 1, iteration(1))
    store.append("c", 6, model_call(b"prompt", b"reply"))

    assert [event.event for event in store.read("c", after=1, upto=6)] == list(iteration(1).events)
    assert all(store.blob(digest_of(data)) == data for data in (*iteration(1).blobs, b"prompt", b"reply", ROOT_SOURCE))


@pytest.mark.parametrize(("after", "upto"), [(0, None), (0, 3), (2, None), (2, 2), (2, 5), (9, None), (4, 1)])
def test_a_read_gives_exactly_the_positions_asked_for(store: SqliteStore, after: int, upto: int | None) -> None:
    campaign_of(store, "c", notes_after=5)

    positions = [event.position for event in store.read("c", after=after, upto=upto)]

    assert positions == list(range(after + 1, min(6, upto or 6) + 1))


def test_a_read_is_paged(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelbraid.events.sqlite.PAGE_ROWS", 2)
    campaign_of(store, "c", notes_after=6)

    assert [event.position for event in store.read("c")] == list(range(1, 8))
    assert store.verify("c").problems == ()


def test_the_second_writer_at_a_position_is_told_and_nothing_is_stored(store: SqliteStore) -> None:
    campaign_of(store, "c")
    store.append("c", 1, notes("first"))

    with pytest.raises(Conflict, match="at 2, no longer at 1"):
        store.append("c", 1, notes("second", blobs=(b"lost",)))

    assert store.position("c") == 2
    assert not store.has_blob(digest_of(b"lost"))


def test_a_writer_that_does_not_know_of_another_store_is_told_too(tmp_path: Path, open_at: OpenAt) -> None:
    one, other = open_at(tmp_path / "s.db"), open_at(tmp_path / "s.db")
    campaign_of(one, "c", notes_after=1)
    other.append("c", 2, notes("elsewhere"))

    with pytest.raises(Conflict):
        one.append("c", 2, notes("here"))

    assert one.append("c", 3, notes("here"))[0].position == 4


def test_names_are_taken_once_and_missing_ones_are_named(store: SqliteStore) -> None:
    campaign_of(store, "c")

    with pytest.raises(CampaignExists, match="choose another"):
        store.append("c", 0, opening(seed=2))
    for use in (lambda: store.append("d", 3, notes("x")), lambda: log_of(store, "d"), lambda: store.verify("d")):
        with pytest.raises(CampaignMissing, match="no campaign d"):
            use()


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "-x", "x" * 101])
def test_a_name_that_is_no_name_is_refused(store: SqliteStore, name: str) -> None:
    with pytest.raises(StoreError, match="no campaign name"):
        store.append(name, 0, opening())


def test_a_retry_of_what_is_the_head_already_succeeds_and_stores_nothing(tmp_path: Path, open_at: OpenAt) -> None:
    store = open_at(tmp_path / "s.db")
    campaign_of(store, "c")
    first = store.append("c", 1, notes("once"), recorded_at=NOON)
    again = open_at(tmp_path / "s.db")

    assert again.append("c", 1, notes("once"), recorded_at=NOON) == first
    assert again.append("c", 1, notes("once"), recorded_at=NOON) == first
    with pytest.raises(Conflict):
        again.append("c", 1, notes("other"), recorded_at=NOON)
    assert store.position("c") == 2


def test_an_opening_is_retried_the_same_way(store: SqliteStore) -> None:
    first = store.append("c", 0, opening(), recorded_at=NOON)

    assert store.append("c", 0, opening(), recorded_at=NOON) == first
    with pytest.raises(CampaignExists):
        store.append("c", 0, opening(), recorded_at=NOON + timedelta(seconds=1))


def test_a_commit_that_took_effect_although_it_failed_is_success(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign_of(store, "c")
    really = store.recorder.insert_events

    def stores_and_fails(*args: object, **kwargs: object) -> None:
        really(*args, **kwargs)  # type: ignore[arg-type]
        raise StoreError("the disk went away during the commit")

    monkeypatch.setattr(store.recorder, "insert_events", stores_and_fails)

    assert store.append("c", 1, notes("kept"))[0].position == 2
    assert len(log_of(store, "c")) == 2


def test_a_commit_that_failed_without_effect_is_an_error(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign_of(store, "c")

    def fails(*args: object, **kwargs: object) -> None:
        raise StoreError("the disk went away before the commit")

    monkeypatch.setattr(store.recorder, "insert_events", fails)

    with pytest.raises(StoreError, match="went away"):
        store.append("c", 1, notes("lost"))


def test_moments_are_kept_in_utc_to_the_microsecond(store: SqliteStore) -> None:
    elsewhere = datetime(2026, 3, 1, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5)))
    store.append("c", 0, opening(), recorded_at=elsewhere)

    (event,) = store.read("c")

    assert event.recorded_at == elsewhere
    assert event.recorded_at.tzinfo == UTC
    with pytest.raises(ValueError, match="time zone"):
        store.append("c", 1, notes("x"), recorded_at=datetime(2026, 1, 1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused(store: SqliteStore, bad: float) -> None:
    campaign_of(store, "c")
    event = raised().model_copy(update={"expected_gain_ratio": bad})

    with pytest.raises(EventInvalid, match="NaN, infinity"):
        store.append("c", 1, decision(event))

    assert store.position("c") == 1


def test_text_that_is_no_utf_8_is_refused(store: SqliteStore) -> None:
    campaign_of(store, "c")

    with pytest.raises(EventInvalid, match="lone surrogate"):
        store.append("c", 1, notes("fine", "\ud800"))

    assert store.position("c") == 1


def test_an_event_of_no_known_type_or_with_an_invalid_value_is_refused(store: SqliteStore) -> None:
    class Rumour(NoteAdded):
        """Not in the union."""

    campaign_of(store, "c")
    with pytest.raises(EventInvalid, match="not in the union"):
        store.append("c", 1, decision(Rumour(text="x")))
    with pytest.raises(EventInvalid, match="cannot be stored"):
        store.append("c", 1, decision(OpportunityRaised.model_construct(opportunity="o1")))


def test_an_empty_decision_is_refused(store: SqliteStore) -> None:
    with pytest.raises(ValueError, match="at least one event"):
        store.append("c", 0, decision())


def test_an_event_may_name_only_blobs_that_are_there(store: SqliteStore) -> None:
    campaign_of(store, "c")
    audit = audited(1, (b"blocks",), b"log")

    with pytest.raises(BlobMissing, match=digest_of(b"log")):
        store.append("c", 1, decision(audit, blobs=(b"blocks",)))
    store.append("c", 1, decision(audit, blobs=(b"blocks", b"log")))
    store.append("c", 2, decision(audit))

    assert store.verify("c").problems == ()


def test_a_blob_is_stored_once_and_missing_ones_are_named(store: SqliteStore) -> None:
    campaign_of(store, "c")
    big = os.urandom(100_000)
    store.append("c", 1, notes("a", blobs=(big, big, b"")))
    store.append("c", 2, notes("b", blobs=(big,)))

    assert store.blob(digest_of(big)) == big
    assert store.blob(digest_of(b"")) == b""
    assert store.has_blob(digest_of(big))
    for digest in (digest_of(b"never"), "no digest"):
        assert digest == "no digest" or not store.has_blob(digest)
        with pytest.raises(BlobMissing):
            store.blob(digest)


def test_a_tail_gives_what_is_new(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=2)

    assert [event.position for event in store.tail("c", 1)] == [2, 3]
    assert store.tail("c", 3) == ()


def test_a_follower_sees_every_event_once_and_in_order(tmp_path: Path, open_at: OpenAt) -> None:
    store = open_at(tmp_path / "s.db")
    campaign_of(store, "c")

    def write(writer: int) -> None:
        mine = open_at(tmp_path / "s.db")
        for number in range(25):
            append_somewhere(mine, f"{writer} {number}")

    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, writer) for writer in range(4)]
        seen = list(store.follow("c", 1, poll_s=0.001, stop=lambda: all(writer.done() for writer in writers)))
        assert all(writer.exception() is None for writer in writers)

    assert [event.position for event in seen] == list(range(2, 102))
    texts = [event.event.text for event in seen if isinstance(event.event, NoteAdded)]
    assert len(set(texts)) == 100
    for writer in range(4):
        assert [text for text in texts if text.startswith(f"{writer} ")] == [f"{writer} {n}" for n in range(25)]


def append_somewhere(store: door.Store, text: str) -> None:
    """A note after whatever is last, as anyone beside the driver appends."""
    while True:
        try:
            store.append("c", store.position("c"), notes(text))
            return
        except Conflict:
            continue


def test_threads_share_a_store(store: SqliteStore) -> None:
    campaign_of(store, "c")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: append_somewhere(store, str(number)), range(80)))

    assert store.position("c") == 81
    assert store.verify("c").problems == ()


def test_a_store_in_memory_does_the_same_and_is_nobody_elses() -> None:
    one, other = open_store(":memory:"), open_store(":memory:")
    campaign_of(one, "c")

    for event in one.read("c"):
        one.append("c", event.position, notes("while reading")) if event.position < 3 else None

    assert one.position("c") >= 2
    assert other.campaigns() == ()
    one.close()
    other.close()


def test_campaigns_are_listed_by_name(store: SqliteStore) -> None:
    campaign_of(store, "b", notes_after=1)
    campaign_of(store, "a")
    store.fork("b", 1, "c", forked(store, "b", 1))

    assert [(row.name, row.position, row.parent, row.partial) for row in store.campaigns()] == [
        ("a", 1, None, False),
        ("b", 2, None, False),
        ("c", 2, "b", False),
    ]


@pytest.mark.parametrize(
    "new", ["replace(state, 'note 1', 'note 9')", "cast(replace(state, 'note 1', 'note 9') as blob)"]
)
def test_a_damaged_row_stops_the_reader(store: SqliteStore, new: str) -> None:
    campaign_of(store, "c", notes_after=3)
    with store.recorder.datastore.transaction(commit=True) as c:
        c.execute("DROP TRIGGER stored_events_no_update")
        c.execute(f"UPDATE stored_events SET state = {new} WHERE originator_version = 3")

    with pytest.raises(LogDamaged, match="run verify"):
        log_of(store, "c")
    with pytest.raises(LogDamaged, match="run verify"):
        store.tail("c", 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=4), max_size=8))
def test_any_appends_give_one_continuous_log(batches: list[list[str]]) -> None:
    store = SqliteStore(None)
    store.append("c", 0, opening(), recorded_at=NOON)
    for texts in batches:
        store.append("c", store.position("c"), notes(*texts), recorded_at=NOON)

    log = log_of(store, "c")
    assert [event.position for event in log] == list(range(1, len(log) + 1))
    assert [event.event for event in log[1:]] == [NoteAdded(text=text) for texts in batches for text in texts]
    assert all(log[event.position - event.batch[0]].batch == (1, event.batch[1]) for event in log)
    assert store.verify("c").problems == ()
    store.close()


HEAD_HASH = """
from kernelbraid.events.store import open_store
from tests.events.factory import NOON, campaign_of, iteration
store = open_store(":memory:")
campaign_of(store, "c")
store.append("c", 1, iteration(1), recorded_at=NOON)
print(store.head("c").hash)
"""


def test_the_same_log_has_the_same_hash_in_any_process() -> None:
    hashes = {
        subprocess.run(
            [sys.executable, "-c", HEAD_HASH],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(hashes) == 1


def test_the_door_opens_what_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.STORE_VARIABLE, raising=False)
    monkeypatch.delenv(door.KEY_VARIABLE, raising=False)
    open_store().close()
    monkeypatch.setenv(door.STORE_VARIABLE, f"sqlite:///{tmp_path}/other.db")
    store = open_store()

    assert (tmp_path / "kernelbraid.db").exists()
    assert store.url == f"sqlite:///{tmp_path}/other.db"
    store.close()


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://h/db", "later version"),
        ("mysql://h/db", "not understood"),
        ("sqlite:///no/such/folder/s.db", "no folder"),
    ],
)
def test_the_door_says_what_it_cannot_open(url: str, word: str) -> None:
    with pytest.raises(StoreError, match=word):
        open_store(url)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/s.db")
    store.append("c", 0, opening())
    store.close()

    with pytest.raises(StoreError, match="closed"):
        store.position("c")


def test_opened_names_only_blobs_that_the_opening_carries() -> None:
    assert door.named_blobs(opened()) == (digest_of(ROOT_SOURCE),)
