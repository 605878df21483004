"""A long log is digested by two processes, with the same result and the same errors as by one."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.store import Store, open_store
from kernelbraid.ops import digests
from kernelbraid.ops.bench.engine import CAMPAIGN, searched, store_url
from kernelbraid.ops.digests import Rebuilt, rebuilt


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the store of a short campaign."""
    searched(tmp_path, 12)
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    opened = open_store(store_url(folder))
    yield opened
    opened.close()


def by_two(store: Store, monkeypatch: pytest.MonkeyPatch, upto: int | None = None) -> Rebuilt:
    """As for a log that is worth two processes, on a machine that has two cores."""
    monkeypatch.setattr(digests, "SHARED_FROM_EVENTS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    return rebuilt(store, CAMPAIGN, upto)


@pytest.mark.parametrize("upto", [None, 20])
def test_two_processes_digest_what_one_does(store: Store, monkeypatch: pytest.MonkeyPatch, upto: int | None) -> None:
    alone, shared = rebuilt(store, CAMPAIGN, upto), by_two(store, monkeypatch, upto)

    assert (alone.processes, shared.processes) == (1, 2)
    assert list(alone.digests.items()) == list(shared.digests.items())
    assert len(set(shared.digests.values())) == 6


@pytest.mark.parametrize("row", [7, 20])
def test_a_changed_row_is_the_same_error(folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    with sqlite3.connect(folder / "engine.db") as database:
        database.execute("DROP TRIGGER stored_events_no_update")
        database.execute(
            "UPDATE stored_events SET state = replace(state, 'i000', 'i999') WHERE originator_version = ?", (row,)
        )
        database.execute("UPDATE stored_events SET state = CAST(state AS BLOB) WHERE originator_version = ?", (row,))
    database.close()

    with pytest.raises((KernelbraidError, LookupError)) as alone:
        rebuilt(store, CAMPAIGN)
    with pytest.raises((KernelbraidError, LookupError)) as shared:
        by_two(store, monkeypatch)

    assert (type(shared.value), str(shared.value)) == (type(alone.value), str(alone.value))


def test_without_the_other_process_one_does_everything(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    assert by_two(store, monkeypatch) == rebuilt(store, CAMPAIGN)


def test_a_store_in_memory_stays_in_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    memory = open_store(":memory:")
    store.export(CAMPAIGN, folder / "all.kernelbraid")
    memory.import_(folder / "all.kernelbraid")

    assert by_two(memory, monkeypatch).processes == 1
    memory.close()


def test_a_payload_is_validated_for_the_process_that_takes_it_on_trust(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a last event, which no later hash betrays, with a number for a text that the state does not look at."""
    with sqlite3.connect(folder / "engine.db") as database:
        database.execute("DROP TRIGGER stored_events_no_update")
        (sound,) = database.execute("SELECT state FROM stored_events WHERE topic = 'CampaignStopped'").fetchone()
        wrong = re.sub(rb'"detail":"[^"]*"', b'"detail":5', sound)
        database.execute("UPDATE stored_events SET state = ? WHERE topic = 'CampaignStopped'", (wrong,))
    database.close()

    with pytest.raises(KernelbraidError, match="detail"):
        by_two(store, monkeypatch)
