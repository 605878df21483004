"""One timing lock per machine: held for all blocks of a comparison, by one thread of one process of any user."""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_THREADS: dict[Path, threading.Lock] = {}
_REGISTRY = threading.Lock()


def machine_lock_path() -> Path:
    """The lock's file, the same for every process of this machine."""
    return Path(tempfile.gettempdir()) / "kernelbraid-timing.lock"


def device_lock_path(uuid: str) -> Path:
    """The lock's file for one accelerator, the same for every process of this machine."""
    return Path(tempfile.gettempdir()) / f"kernelbraid-{uuid}.lock"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for the lock and hold it. Released when the process dies; the file stays."""
    with _REGISTRY:
        thread_lock = _THREADS.setdefault(path.absolute(), threading.Lock())
    with thread_lock:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _open(path: Path) -> int:
    """Read-only, so that another user's file will do (the lock needs no more)."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
