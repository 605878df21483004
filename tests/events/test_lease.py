"""One driver per campaign, and the lease gone with its process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelbraid.events.errors import DriverPresent, StoreError, StoreReadOnly
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import driver_lease, driver_of
from tests.events.conftest import OpenAt
from tests.events.factory import campaign_of

REPOSITORY = Path(__file__).resolve().parents[2]

DRIVE = """
import subprocess, sys, time
from pathlib import Path
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.store import driver_lease
store = SqliteStore(Path(sys.argv[1]))
with driver_lease(store, "c"):
    sleep = {"close_fds": False, "stdout": subprocess.DEVNULL}
    child = subprocess.Popen(["sleep", "30"], **sleep).pid if sys.argv[2] == "child" else 0
    print(child, flush=True)
    time.sleep(30)
"""


@contextmanager
def driver(path: Path, how: str = "alone") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that drives campaign c, and its child's process id (0: none); both gone afterwards."""
    command = [sys.executable, "-c", DRIVE, str(path), how]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            if child:
                os.kill(child, signal.SIGKILL)


def test_the_holder_is_known_until_it_lets_go(store: SqliteStore) -> None:
    campaign_of(store, "c")
    assert driver_of(store, "c") is None

    with driver_lease(store, "c") as lease:
        assert lease.campaign == "c"
        assert driver_of(store, "c") == os.getpid()
        assert driver_of(store, "other") is None

    assert driver_of(store, "c") is None
    with driver_lease(store, "c"):
        pass


def test_a_second_driver_in_the_process_is_refused(store: SqliteStore, tmp_path: Path, open_at: OpenAt) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    same = open_at(tmp_path / "link.db")

    with driver_lease(store, "c"):
        for again in (store, same):
            with pytest.raises(DriverPresent), driver_lease(again, "c"):
                pass
        assert driver_of(store, "c") == os.getpid()
        with driver_lease(store, "d"):
            pass


def test_a_second_process_is_refused_while_the_first_lives_and_no_longer(store: SqliteStore, tmp_path: Path) -> None:
    with driver(tmp_path / "store.db") as (process, _):
        assert driver_of(store, "c") == process.pid
        with pytest.raises(DriverPresent, match=str(process.pid)), driver_lease(store, "c"):
            pass

        process.send_signal(signal.SIGKILL)
        process.wait()

        with driver_lease(store, "c"):
            assert driver_of(store, "c") == os.getpid()


def test_a_child_that_outlives_a_killed_driver_holds_nothing(store: SqliteStore, tmp_path: Path) -> None:
    with driver(tmp_path / "store.db", "child") as (process, child):
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, 0)

        with driver_lease(store, "c"):
            pass


def test_the_lease_goes_with_an_error(store: SqliteStore) -> None:
    with pytest.raises(RuntimeError), driver_lease(store, "c"):
        raise RuntimeError("the search broke")

    with driver_lease(store, "c"):
        pass


def test_a_store_in_memory_has_one_driver_too(open_at: OpenAt) -> None:
    one, other = open_at(None), open_at(None)

    with driver_lease(one, "c"), driver_lease(other, "c"):
        assert driver_of(one, "c") == os.getpid()
        with pytest.raises(DriverPresent), driver_lease(one, "c"):
            pass
    assert driver_of(one, "c") is None


def test_a_name_that_leads_elsewhere_gets_no_lease(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="no campaign name"), driver_lease(store, "../c"):
        pass


def test_what_is_open_read_only_is_not_driven(store: SqliteStore, tmp_path: Path, open_at: OpenAt) -> None:
    reader = open_at(tmp_path / "store.db", read_only=True)

    with pytest.raises(StoreReadOnly), driver_lease(reader, "c"):
        pass
