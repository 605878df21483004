"""Stores for tests: files in a temporary folder, without waiting for the disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelbraid.events.sqlite import SqliteStore

OpenAt = Callable[..., SqliteStore]


@pytest.fixture
def open_at() -> Iterator[OpenAt]:
    """Opens the store at a path (None: in memory) and closes it after the test."""
    opened: list[SqliteStore] = []

    def _open(path: Path | None, *, hmac_key: bytes | None = None, read_only: bool = False) -> SqliteStore:
        opened.append(SqliteStore(path, hmac_key=hmac_key, read_only=read_only, synchronous="NORMAL"))
        return opened[-1]

    yield _open
    for store in opened:
        store.close()


@pytest.fixture
def store(tmp_path: Path, open_at: OpenAt) -> SqliteStore:
    """An empty store."""
    return open_at(tmp_path / "store.db")
