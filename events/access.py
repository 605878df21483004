"""How a database file may be opened: for writing, beside writers, or as a file that nothing can change."""

import os
from pathlib import Path
from typing import Literal

from kernelbraid.events.errors import StoreError, StoreReadOnly

Access = Literal["write", "read", "immutable"]


def access_to(path: Path | None, read_only: bool) -> Access:
    """How to open a file. Raises StoreReadOnly or StoreError where that cannot work, before SQLite is asked."""
    if path is None:
        return "write"
    if not read_only:
        _check_place(path)
        return "write"
    if not path.exists():
        raise StoreError(f"there is no store at {path}")
    if _log_bytes(path) or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Somebody may be writing: SQLite's own locking is needed, which immutable=1 switches off.
        _check_log_readable(path)
        return "read"
    return "immutable"


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent} to keep a store in")
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreReadOnly(f"{place} cannot be written: open the store read-only, or elsewhere")


def _check_log_readable(path: Path) -> None:
    """A write-ahead log that holds data can be read only where its index can be written."""
    if not os.access(path.parent, os.W_OK):
        raise StoreReadOnly(f"{path}-wal holds data that a read-only folder hides: open a copy of both files elsewhere")


def _log_bytes(path: Path) -> int:
    """Size of the write-ahead log; 0 if there is none."""
    log = path.with_name(f"{path.name}-wal")
    return log.stat().st_size if log.exists() else 0
