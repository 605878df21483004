"""A campaign made with simulated audits, and ways to call the command line on it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.ops.cli import app
from kernelbraid.ops.wiring import Wiring

AUDITS = 8
CAMPAIGN = "linear-1"

Cli = Callable[..., Result]


def simulated(operator: Operator, target: str) -> SimulatedHarness:
    """Audits by arithmetic."""
    return SimulatedHarness(operator, seed=0)


WIRING = Wiring(harness=simulated)


def call(store: Path, *arguments: str, wiring: Wiring = WIRING) -> Result:
    """One command on a store, in this process."""
    words = ["--store", f"sqlite:///{store}", *arguments]
    return CliRunner().invoke(app, words, obj=wiring, prog_name="kernelbraid", catch_exceptions=False)


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one stopped campaign, not to be written to."""
    store = tmp_path_factory.mktemp("searched") / "kernelbraid.db"
    result = call(store, "run", "linear", "--audits", str(AUDITS))
    assert result.exit_code == 0, result.stderr
    return store


@pytest.fixture
def store(searched: Path, tmp_path: Path) -> Path:
    """A copy of that store for one test."""
    copy = tmp_path / "kernelbraid.db"
    shutil.copy(searched, copy)
    return copy


@pytest.fixture
def cli(store: Path) -> Cli:
    """The command line on that copy."""
    return lambda *arguments, **wiring: call(store, *arguments, **wiring)
