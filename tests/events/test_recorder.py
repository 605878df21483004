"""The library's own conformance cases for application recorders, and what ours adds: nothing is ever rewritten."""

import importlib
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent

from kernelbraid.events.recorder import Recorder, database_uri


def _library_cases() -> ModuleType:
    """The library's cases. They import its AES cipher, whose package no recorder needs, so a stand-in will do."""
    names = ("Crypto", "Crypto.Cipher", "Crypto.Cipher.AES", "Crypto.Cipher._mode_gcm", "eventsourcing.cipher")
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in names}):
        return importlib.import_module("eventsourcing.tests.persistence")


class TestConformance(_library_cases().ApplicationRecorderTestCase):  # type: ignore[misc]
    """Cases that any application recorder must pass, on ours."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def new_originator_id(self) -> str:
        return str(super().new_originator_id())

    def create_recorder(self) -> Recorder:
        recorder = Recorder(database_uri(self.folder / "store.db", "write"), synchronous="NORMAL")
        recorder.create_table()
        self.addCleanup(self._close, recorder, set(threading.enumerate()))
        return recorder

    def _close(self, recorder: Recorder, before: set[threading.Thread]) -> None:
        """Closes once the case's readers ended: it stops them without waiting, and SQLite crashes if closed in use."""
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
        recorder.datastore.close()


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(database_uri(tmp_path / "store.db", "write"), synchronous="NORMAL")
    recorder.create_table()
    recorder.insert_events([StoredEvent("c", position, "NoteAdded", b"{}") for position in (1, 2)])
    with recorder.datastore.transaction(commit=True) as c:
        recorder.insert_blobs(c, [(b"d" * 32, b"data")])
    yield recorder
    recorder.datastore.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE stored_events SET state = x'00' WHERE originator_version = 1",
        "DELETE FROM stored_events WHERE originator_version = 2",
        "INSERT OR REPLACE INTO stored_events VALUES ('c', 1, 'NoteAdded', x'00')",
        "INSERT INTO stored_events VALUES ('c', 2, 'NoteAdded', x'00') "
        "ON CONFLICT DO UPDATE SET state = excluded.state",
        "UPDATE blobs SET data = x'00'",
        "DELETE FROM blobs",
        "INSERT OR REPLACE INTO blobs SELECT digest, x'00' FROM blobs",
        "DELETE FROM heads",
    ],
)
def test_the_database_refuses_to_rewrite(recorder: Recorder, tmp_path: Path, statement: str) -> None:
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute("INSERT INTO heads VALUES ('c', 2, '', NULL, 1, NULL, 0)")
    other.commit()
    before = recorder.select_states("c", 1, None, 10)

    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)

    other.close()
    assert recorder.select_states("c", 1, None, 10) == before


@pytest.mark.parametrize("versions", [(4,), (3, 5), (2, 3)])
def test_gaps_and_taken_positions_are_refused_whole(recorder: Recorder, versions: tuple[int, ...]) -> None:
    with pytest.raises(IntegrityError, match=r"gaps|taken"):
        recorder.insert_events([StoredEvent("c", version, "NoteAdded", b"{}") for version in versions])

    assert [position for position, _ in recorder.select_states("c", 1, None, 10)] == [1, 2]
