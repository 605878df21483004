"""Temporary folders: a killed process's goes with the next start, a living one's never."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelbraid.kernels.audit import scratch

HOLDER = """
from kernelbraid.kernels.audit.scratch import scratch_folder
folder = scratch_folder()
(folder / "kernel.so").write_bytes(b"x")
print(folder, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own, here and in its processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@contextmanager
def holding() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process and its folder."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_left_is_removed_at_the_next_start_and_a_living_ones_is_not() -> None:
    with holding() as (killed, left), holding() as (_, used):
        killed.kill()
        killed.wait()

        mine = scratch.scratch_folder()

        assert not left.exists()
        assert (used / "kernel.so").exists()
        assert mine.stat().st_mode & 0o777 == 0o700


def test_processes_that_start_together_keep_their_folders() -> None:
    with holding() as (_, one), holding() as (_, two), holding() as (_, three):
        assert all((folder / "kernel.so").exists() for folder in (one, two, three))


def test_a_folder_of_another_namespace_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = temporary / f"{scratch._PREFIX}7-{2**22 + 1}-abc"
    strange = temporary / f"{scratch._PREFIX}{scratch._namespace()}-notes"
    elsewhere.mkdir()
    strange.mkdir()

    scratch.scratch_folder()
    monkeypatch.setattr(scratch, "_NAMESPACE", temporary / "nothing")
    unknown = scratch.scratch_folder()

    assert elsewhere.exists()
    assert strange.exists()
    assert unknown.name.startswith(f"{scratch._PREFIX}0-{os.getpid()}-")
