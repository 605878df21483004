"""One driver per campaign: a lock on a file of its own beside the database, gone the moment its process is.

`lockf` locks belong to the process, unlike `flock`'s, which a child that inherited the file keeps alive after its
parent was killed. Their trap is that closing any descriptor of the file drops the process's lock, so each file is
opened once per process and only the lease closes it.
"""

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernelbraid.events.errors import DriverPresent, StoreReadOnly

_FLOCK = struct.Struct("@hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""

_held: set[tuple[int, str]] = set()
"""(process, lease) held by this process. The process id keeps a forked child from taking its parent's for its own."""
_held_guard = threading.Lock()


class Leased(Protocol):
    """What a lease needs to know of a store."""

    url: str

    def lease_path(self, campaign: str) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive a campaign, held until its context ends or its process dies."""

    campaign: str
    path: Path | None


@contextmanager
def driver_lease(store: Leased, campaign: str) -> Iterator[Lease]:
    """Holds the driver's lease of a campaign. Raises DriverPresent if another holder lives, StoreReadOnly."""
    path = store.lease_path(campaign)
    name = (os.getpid(), str(path) if path is not None else f"{store.url} {campaign}")
    with _held_guard:
        if name in _held:
            raise DriverPresent(f"{campaign} is driven by this process already")
        descriptor = None if path is None else _locked(path, campaign)
        _held.add(name)
    try:
        yield Lease(campaign, path)
    finally:
        with _held_guard:
            _held.discard(name)
            if descriptor is not None and os.getpid() == name[0]:
                os.close(descriptor)


def driver_of(store: Leased, campaign: str) -> int | None:
    """Process id of the campaign's driver; None if nobody drives it."""
    path = store.lease_path(campaign)
    with _held_guard:
        held = {lease for pid, lease in _held if pid == os.getpid()}
        if (str(path) if path is not None else f"{store.url} {campaign}") in held:
            return os.getpid()
        return None if path is None else _holder(path)


def _locked(path: Path, campaign: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreReadOnly(f"{campaign} cannot be driven: {path} cannot be written ({error.strerror})") from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        raise DriverPresent(f"{campaign} has a driver already (process {_holder(path)})") from error
    return descriptor


def _holder(path: Path) -> int | None:
    """Who holds the lock, asked without taking it. Only for files this process holds no lock on."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
        return None if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(descriptor)
