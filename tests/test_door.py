"""The public door: what `import kernelbraid` offers, and what a built package must carry."""

import fnmatch
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import kernelbraid

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("agents", "events", "kernels", "ops", "projections")
DOOR = [
    "AuditReport",
    "CampaignSummary",
    "HandedIn",
    "KernelbraidError",
    "ReplayReport",
    "Requalification",
    "State",
    "Store",
    "Strategies",
    "audit",
    "catalogue_strategies",
    "fold",
    "fork",
    "note",
    "open_store",
    "pause",
    "propose",
    "replay_strict",
    "requalify",
    "resume",
    "run",
    "state_digest",
    "stop",
    "summary",
]
"""Adding a name here is a promise to users; taking one away breaks theirs."""


def test_the_door_offers_exactly_these_names() -> None:
    assert kernelbraid.__all__ == DOOR


@pytest.mark.parametrize("name", DOOR)
def test_a_name_of_the_door_is_there_and_says_what_it_is(name: str) -> None:
    offered = getattr(kernelbraid, name)
    assert callable(offered)
    assert offered.__module__.startswith("kernelbraid.")
    assert offered.__doc__


def test_the_door_imports_what_is_asked_for_and_no_more() -> None:
    """A process that only folds a log starts in a third of the time that the agents' libraries take to import."""
    ask = "import sys, kernelbraid; kernelbraid.state_digest; sys.exit('langgraph' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0
    assert set(DOOR) <= set(dir(kernelbraid))


def test_the_version_is_the_packages() -> None:
    assert kernelbraid.__version__ == version("kernelbraid")


def test_every_room_stands_behind_the_door() -> None:
    for room in ROOMS:
        assert (REPOSITORY / "kernelbraid" / room).resolve() == REPOSITORY / room


def test_a_built_package_carries_every_file_of_the_rooms() -> None:
    """Given the kinds of files that pyproject.toml names, then no room holds one of another kind."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    patterns = ["*.py", *settings["tool"]["setuptools"]["package-data"]["*"]]
    left_out = [
        path
        for room in ROOMS
        for path in (REPOSITORY / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)
    ]
    assert left_out == []
