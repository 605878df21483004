"""Several processes on one file, and processes killed at any moment."""

import multiprocessing
import random
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

from kernelbraid.events.campaign import NoteAdded
from kernelbraid.events.errors import Conflict
from kernelbraid.events.sqlite import SqliteStore
from tests.events.factory import campaign_of, notes

FORK = multiprocessing.get_context("fork")


def write(path: Path, who: str, count: int, acknowledgements: Connection) -> None:
    """Appends `count` times to campaign c, whoever else does, and says so after each."""
    store = SqliteStore(path)
    for number in range(count):
        append_somewhere(store, who, number)
        acknowledgements.send_bytes(b"%d" % number)


def append_somewhere(store: SqliteStore, who: str, number: int) -> None:
    """Two notes and a blob after whatever is last."""
    decision = notes(f"{who} {number}", "and", blobs=(f"{who} {number}".encode() * 50,))
    while True:
        with suppress(Conflict):
            store.append("c", store.position("c"), decision)
            return


def writer(path: Path, who: str, count: int) -> tuple[ForkProcess, Connection]:
    """A process that writes, forked so that it starts at once, and the end to read its acknowledgements from."""
    reading, writing = FORK.Pipe(duplex=False)
    process = FORK.Process(target=write, args=(path, who, count, writing))
    process.start()
    writing.close()
    return process, reading


def acknowledged(reading: Connection) -> int:
    """How many appends were acknowledged before the pipe closed."""
    count = 0
    with suppress(EOFError):
        while reading.recv_bytes():
            count += 1
    return count


def texts_of(store: SqliteStore) -> list[str]:
    """The notes' texts, in order."""
    events = [event.event for event in store.read("c")]
    return [event.text for event in events if isinstance(event, NoteAdded) and event.text != "and"]


def test_four_processes_beside_a_driver_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    begin(path)
    names = ("driver", "note", "console", "stop")

    writers = [writer(path, name, 40) for name in names]

    assert [acknowledged(reading) for _, reading in writers] == [40] * 4
    assert [exit_code(process) for process, _ in writers] == [0] * 4
    store = SqliteStore(path)
    assert store.position("c") == 1 + 4 * 40 * 2
    texts = texts_of(store)
    for name in names:
        assert [text for text in texts if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(40)]
    assert store.verify("c").problems == ()
    store.close()


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    begin(path)
    waits = random.Random(7)
    before = 0

    for kill in range(8):
        process, reading = writer(path, str(kill), 100_000)
        assert reading.recv_bytes() == b"0"
        time.sleep(waits.uniform(0.0, 0.1))
        process.kill()
        count = 1 + acknowledged(reading)
        assert exit_code(process) == -signal.SIGKILL

        store = SqliteStore(path)
        texts = texts_of(store)[before:]
        # The last append may have been stored and not acknowledged.
        assert len(texts) - count in (0, 1)
        assert texts == [f"{kill} {number}" for number in range(len(texts))]
        assert store.verify("c").problems == ()
        store.close()
        before += len(texts)


def test_processes_that_create_the_store_at_once_all_get_it(tmp_path: Path) -> None:
    openers = [FORK.Process(target=open_and_note, args=(tmp_path / "s.db", f"c{number}")) for number in range(4)]
    for opener in openers:
        opener.start()

    assert [exit_code(opener) for opener in openers] == [0] * 4
    store = SqliteStore(tmp_path / "s.db")
    assert [row.name for row in store.campaigns()] == ["c0", "c1", "c2", "c3"]
    store.close()


def open_and_note(path: Path, name: str) -> None:
    """Opens the store, creating it if nobody did, and begins a campaign."""
    campaign_of(SqliteStore(path), name)


def begin(path: Path) -> None:
    """A store with campaign c, closed again: no connection may cross a fork."""
    store = SqliteStore(path)
    campaign_of(store, "c")
    store.close()


def exit_code(process: ForkProcess) -> int | None:
    """How the process ended, within a minute."""
    process.join(60)
    return process.exitcode
