"""SQLite's failures by their names in the error tree, each with its next step."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eventsourcing.persistence import ConnectionPoolClosedError, PersistenceError

from kernelbraid.events.errors import KernelbraidError, LogDamaged, StoreError, StoreFull, StoreReadOnly

_ROOM_BYTES = 1 << 20
"""With less than this free, a failed write is a full disk, whichever code SQLite gave it."""


@contextmanager
def named_faults(path: Path | None) -> Iterator[None]:
    """Raises a StoreError or LogDamaged for whatever the database raises inside; `path` is its file."""
    try:
        yield
    except (PersistenceError, ConnectionPoolClosedError, sqlite3.Error) as error:
        raise _fault(error, path) from error


def _fault(error: Exception, path: Path | None) -> KernelbraidError:
    where = "the store in memory" if path is None else str(path)
    if isinstance(error, ConnectionPoolClosedError):
        return StoreError(f"{where} is closed")
    match _primary_code(error):
        case sqlite3.SQLITE_FULL:
            return _full(where)
        case sqlite3.SQLITE_IOERR if path is not None and _free_bytes(path) < _ROOM_BYTES:
            return _full(where)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreReadOnly(f"{where} cannot be written: check its permissions and its folder's")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"{where} cannot be opened: check that its folder may be entered and the file read")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(f"{where} stayed locked by other writers: try again")
        case sqlite3.SQLITE_CONSTRAINT:
            return LogDamaged(f"{where} refused the rows: some lie beyond the head record ({error}); run verify")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return LogDamaged(f"{where} is no sound database: {error}")
        case sqlite3.SQLITE_ERROR if "no such table" in str(error):
            return LogDamaged(f"{where} is no whole store: {error}")
    return StoreError(f"{where}: {error}")


def _full(where: str) -> StoreFull:
    return StoreFull(f"the disk that holds {where} is full: nothing of this was stored; make room and go on")


def _primary_code(error: Exception) -> int:
    """SQLite's result code without its extension; 0 for errors that the Python module raised itself."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    if not isinstance(cause, sqlite3.Error) or not hasattr(cause, "sqlite_errorcode"):
        return 0
    return cause.sqlite_errorcode & 0xFF


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize
