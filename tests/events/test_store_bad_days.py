"""Full disks, read-only places, newer schemas, files that are no store: a clear word, and the log as it was."""

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from kernelbraid.events.errors import (
    KernelbraidError,
    LogDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
)
from kernelbraid.events.recorder import SCHEMA_VERSION
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import driver_of, open_store
from tests.events.conftest import OpenAt
from tests.events.factory import campaign_of, log_of, notes


def test_a_full_database_refuses_the_append_and_keeps_the_log(store: SqliteStore) -> None:
    campaign_of(store, "c", notes_after=3)
    before, head = log_of(store, "c"), store.head("c")
    with store.recorder.datastore.get_connection(commit=True) as connection:
        # The pool has this one connection, so the limit holds for the append.
        connection.cursor().execute("PRAGMA max_page_count = 1")

    with pytest.raises(StoreFull, match="make room"):
        store.append("c", 4, notes("too much", blobs=(os.urandom(200_000),)))

    assert (log_of(store, "c"), store.head("c")) == (before, head)
    assert store.verify("c").problems == ()
    with store.recorder.datastore.get_connection(commit=True) as connection:
        connection.cursor().execute("PRAGMA max_page_count = 100000")
    assert store.append("c", 4, notes("room again"))[0].position == 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs root and the right to mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(store: SqliteStore) -> None:
    """Appends more than two megabytes that do not compress."""
    for number in range(200):
        store.append("c", 1 + number, notes(f"note {number}", blobs=(os.urandom(30_000),)))


def test_a_full_disk_refuses_the_append_and_keeps_the_log(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "store.db", synchronous="FULL")
    campaign_of(store, "c")
    with pytest.raises(StoreFull, match="is full"):
        fill(store)

    position = store.position("c")
    assert position > 10
    assert [event.position for event in store.read("c")] == list(range(1, position + 1))
    assert store.verify("c").problems == ()
    store.close()

    again = SqliteStore(small_disk / "store.db")
    assert again.position("c") == position
    assert again.verify("c").problems == ()
    again.close()


def read_without_rights(path: Path, answers: Connection) -> None:
    """Tries everything as a user who may only read; root becomes nobody first, since no permission binds it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    answers.send(refusal(lambda: SqliteStore(path)))
    store = SqliteStore(path, read_only=True)
    answers.send((len(log_of(store, "c")), store.verify("c").problems))
    answers.send(refusal(lambda: store.append("c", 3, notes("x"))))


def refusal(use: Callable[[], object]) -> str:
    """The name of the error that using a store so raises."""
    try:
        use()
    except KernelbraidError as error:
        return type(error).__name__
    return "none"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_somebody_without_rights(path: Path) -> list[object]:
    """What a process that may only read says about the store."""
    fork = multiprocessing.get_context("fork")
    reading, writing = fork.Pipe(duplex=False)
    process = fork.Process(target=read_without_rights, args=(path, writing))
    process.start()
    answers = [reading.recv() for _ in range(3)]
    process.join(60)
    return answers


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o444, 0o555), (0o644, 0o555)])
def test_a_read_only_place_is_read_and_not_written(shared_folder: Path, file_mode: int, folder_mode: int) -> None:
    path = shared_folder / "store.db"
    store = SqliteStore(path)
    campaign_of(store, "c", notes_after=2)
    store.close()
    before = path.read_bytes()
    path.chmod(file_mode)
    shared_folder.chmod(folder_mode)

    assert as_somebody_without_rights(path) == ["StoreReadOnly", (3, ()), "StoreReadOnly"]

    assert path.read_bytes() == before
    assert [entry.name for entry in shared_folder.iterdir()] == ["store.db"]


def test_a_write_ahead_log_that_cannot_be_read_is_named(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign_of(store, "c")
    assert (tmp_path / "store.db-wal").stat().st_size
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(StoreReadOnly, match="-wal holds data"):
        SqliteStore(tmp_path / "store.db", read_only=True)


def test_a_reader_beside_a_writer_sees_what_is_appended(store: SqliteStore, tmp_path: Path, open_at: OpenAt) -> None:
    campaign_of(store, "c", notes_after=1)
    reader = open_at(tmp_path / "store.db", read_only=True)
    assert reader.position("c") == 2

    store.append("c", 2, notes("later"))

    assert [event.position for event in reader.tail("c", 2)] == [3]
    for write in (
        lambda: reader.append("c", 3, notes("x")),
        lambda: reader.append("d", 0, notes("x")),
        lambda: reader.import_(tmp_path / "x.gz"),
    ):
        with pytest.raises(StoreReadOnly):
            write()


def test_an_absent_store_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        open_store(f"sqlite:///{tmp_path}/s.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_a_newer_schema_is_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    campaign_of(store, "c")
    with store.recorder.datastore.transaction(commit=True) as c:
        c.execute("UPDATE store_schema SET version = 99")

    for read_only in (False, True):
        with pytest.raises(StoreTooNew, match="schema 99"):
            SqliteStore(tmp_path / "store.db", read_only=read_only)


def triggers_of(path: Path) -> dict[str, str]:
    """The triggers of a database, by name."""
    database = sqlite3.connect(path)
    found = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
    database.close()
    return found


def test_a_store_of_an_older_schema_is_upgraded_by_the_first_who_may_write(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    campaign_of(store, "c")
    store.close()
    today = triggers_of(tmp_path / "s.db")
    database = sqlite3.connect(tmp_path / "s.db")
    for name in ("heads_no_return", "blobs_no_rowid_replace", "stored_events_no_update"):
        database.execute(f"DROP TRIGGER {name}")
    database.execute("CREATE TRIGGER stored_events_no_update BEFORE UPDATE ON blobs BEGIN SELECT 1; END")
    database.execute("UPDATE store_schema SET version = 1")
    database.commit()
    database.close()
    before = triggers_of(tmp_path / "s.db")

    assert log_of(SqliteStore(tmp_path / "s.db", read_only=True), "c")
    unchanged = triggers_of(tmp_path / "s.db")
    upgraded = SqliteStore(tmp_path / "s.db")

    assert unchanged == before != today
    assert triggers_of(tmp_path / "s.db") == today
    assert upgraded.recorder.select_schema_version() == SCHEMA_VERSION
    assert upgraded.verify("c").problems == ()
    upgraded.append("c", 1, notes("driven on"))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "s.db").write_bytes(b"a letter to nobody\n" * 100)

    with pytest.raises(LogDamaged, match="no sound database"):
        SqliteStore(tmp_path / "s.db", read_only=read_only)
    assert (tmp_path / "s.db").read_bytes() == b"a letter to nobody\n" * 100


def test_somebody_elses_database_is_no_store_to_read(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "s.db")
    other.execute("CREATE TABLE letters (text)")
    other.close()

    with pytest.raises(StoreError, match="no kernelbraid store"):
        SqliteStore(tmp_path / "s.db", read_only=True)


def test_a_torn_page_is_damage_and_no_traceback(store: SqliteStore, tmp_path: Path) -> None:
    campaign_of(store, "c", notes_after=200)
    store.close()
    with open(tmp_path / "store.db", "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 12)

    with pytest.raises(KernelbraidError):
        log_of(SqliteStore(tmp_path / "store.db"), "c")


def test_a_lock_that_stays_is_named(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign_of(store, "c")
    monkeypatch.setattr("kernelbraid.events.recorder.LOCK_TIMEOUT_S", 0.05)
    impatient = SqliteStore(tmp_path / "store.db")
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreError, match="stayed locked"):
        impatient.append("c", 1, notes("x"))

    holder.close()
    impatient.append("c", 1, notes("x"))
    impatient.close()
    assert driver_of(store, "c") is None


def listed(path: Path) -> int:
    """How many campaigns the store at a path holds."""
    store = open_store(f"sqlite:///{path}")
    try:
        return len(store.campaigns())
    finally:
        store.close()


@pytest.mark.parametrize(
    ("change", "word"),
    [("UPDATE store_schema SET version = 'x'", "schema version is 'x'"), ("DROP TABLE heads", "no whole store")],
)
def test_a_store_whose_own_tables_were_changed_is_damaged(tmp_path: Path, change: str, word: str) -> None:
    open_store(f"sqlite:///{tmp_path}/s.db").close()
    database = sqlite3.connect(tmp_path / "s.db")
    database.execute(change)
    database.commit()
    database.close()

    with pytest.raises(LogDamaged, match=word):
        listed(tmp_path / "s.db")


def test_a_schema_version_that_was_lost_is_written_anew(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/s.db").close()
    database = sqlite3.connect(tmp_path / "s.db")
    database.execute("DELETE FROM store_schema")
    database.commit()
    database.close()

    assert listed(tmp_path / "s.db") == 0
