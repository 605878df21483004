"""`requalify`, and the warning that leads to it: what holds here, what differs, and how that exits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, Workload
from kernelbraid.ops.wiring import Wiring
from tests.ops.conftest import CAMPAIGN, Cli, call


class Upgraded(SimulatedHarness):
    """The machine with another compiler."""

    def environment(self) -> Environment:
        return replace(super().environment(), compiler_version="2")


def upgraded(operator: Operator, target: str) -> SimulatedHarness:
    """A harness on that machine."""
    return Upgraded(operator, seed=1)


def levelled(operator: Operator, target: str) -> SimulatedHarness:
    """A machine on which everything is as fast as the root."""

    def latency(_: object, workload: Workload) -> float:
        return 1e-3

    return Upgraded(operator, seed=1, latency_model=latency)


ELSEWHERE = Wiring(upgraded)


def test_a_best_that_holds_exits_0_and_the_child_waits(cli: Cli) -> None:
    result = cli("requalify", CAMPAIGN)

    assert result.exit_code == 0, result.stdout
    assert f"judged again as {CAMPAIGN}.1" in result.stdout
    assert "nothing differs" in result.stdout
    assert "still holds" in result.stdout
    assert f"kernelbraid resume {CAMPAIGN}.1" in result.stdout
    assert json.loads(cli("show", f"{CAMPAIGN}.1", "--json").stdout)["status"] == "paused"
    assert cli("replay", f"{CAMPAIGN}.1", "--strict").exit_code == 0


def test_what_differs_is_named(cli: Cli) -> None:
    found = json.loads(cli("requalify", CAMPAIGN, "--json", wiring=ELSEWHERE).stdout)

    assert found["differences"] == ["compiler_version 1 -> 2"]
    assert found["holds"] is True
    assert {claim["claim"] for claim in found["claims"]} == {"holds"}


def test_a_best_that_no_longer_holds_exits_1_and_why(cli: Cli) -> None:
    result = cli("requalify", CAMPAIGN, "--name", "again", wiring=Wiring(levelled))

    assert result.exit_code == 1
    assert "fails: it is no faster than the root here" in result.stdout
    assert "does not hold here; the best here is i0000" in result.stdout
    assert json.loads(cli("show", "again", "--json").stdout)["forked_from"]["campaign"] == CAMPAIGN


def test_all_adds_the_archive(cli: Cli) -> None:
    archive = json.loads(cli("show", CAMPAIGN, "--json").stdout)["archive"]

    found = json.loads(cli("requalify", CAMPAIGN, "--all", "--json").stdout)

    assert archive
    assert set(archive) <= {claim["implementation"] for claim in found["claims"]}
    assert not set(archive) & {
        claim["implementation"]
        for claim in json.loads(cli("requalify", CAMPAIGN, "--json").stdout)["claims"]
        if claim["role"] == "frontier"
    }


@pytest.mark.parametrize("arguments", [("requalify", "nobody"), ("requalify", CAMPAIGN, "--operator", "no/folder")])
def test_what_is_not_there_exits_3(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)

    assert result.exit_code == 3
    assert result.stdout == ""


def test_a_missing_store_is_not_made(tmp_path: Path) -> None:
    assert call(tmp_path / "none.db", "requalify", CAMPAIGN).exit_code == 3
    assert not (tmp_path / "none.db").exists()
