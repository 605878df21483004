"""`requalify`, and the warning that leads to it: what holds here, what differs, and how that exits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.agents.requalify import speedup_logs
from kernelbraid.events.errors import EventInvalid
from kernelbraid.events.state import fold
from kernelbraid.events.store import open_store
from kernelbraid.kernels.audit import outcome
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
    assert "fails: it is not shown to be faster than the root here" in result.stdout
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


# --- the warning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("run", "linear", "--audits", "1"), ("best", CAMPAIGN, "--json")])
def test_a_best_measured_elsewhere_is_named_with_what_differs_and_the_next_step(
    cli: Cli, store: Path, arguments: tuple[str, ...]
) -> None:
    best = json.loads(cli("show", CAMPAIGN, "--json").stdout)["best"]

    result = cli(*arguments, wiring=ELSEWHERE)

    assert result.exit_code == 0
    assert result.stderr.startswith(
        f"warning: the best of {CAMPAIGN} ({best['implementation']}, {best['speedup_ratio']:.2f}x of the root) was"
    )
    assert "\n  compiler_version 1 -> 2\n" in result.stderr
    assert f"next:  kernelbraid requalify {CAMPAIGN} --store sqlite:///{store}\n" in result.stderr
    assert "warning" not in result.stdout


@pytest.mark.parametrize("arguments", [("run", "linear", "--audits", "1"), ("best", CAMPAIGN)])
def test_where_it_was_measured_nobody_is_warned(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert "warning" not in cli(*arguments).stderr


def test_another_operator_s_best_concerns_nobody(cli: Cli) -> None:
    assert "warning" not in cli("run", "rms_norm", "--audits", "1", wiring=ELSEWHERE).stderr


def test_once_requalified_a_run_is_not_warned_again(cli: Cli) -> None:
    cli("requalify", CAMPAIGN, wiring=ELSEWHERE)

    assert "warning" not in cli("run", "linear", "--audits", "1", wiring=ELSEWHERE).stderr


def test_nor_where_nothing_of_it_held(cli: Cli) -> None:
    assert cli("requalify", CAMPAIGN, wiring=Wiring(levelled)).exit_code == 1

    assert "warning" not in cli("run", "linear", "--audits", "1", wiring=Wiring(levelled)).stderr


def test_a_resume_elsewhere_says_what_differs_before_it_is_refused(cli: Cli) -> None:
    child = cli("fork", CAMPAIGN, "--set", "audits=1").stdout.strip()

    result = cli("resume", child, wiring=ELSEWHERE)

    assert result.exit_code == 1
    assert "compiler_version 1 -> 2" in result.stderr
    assert f"kernelbraid requalify {child}" in result.stderr
    assert "environment changed" in result.stderr


def test_a_shipped_best_goes_before_what_was_searched_here(store: Path, tmp_path: Path) -> None:
    # given an operator of one's own with a best in it, as `best --out` writes it
    folder = tmp_path / "toy"
    shutil.copytree("tests/campaign/operators/toy", folder)
    assert call(store, "run", str(folder), "--name", "own", "--audits", "2").exit_code == 0
    assert call(store, "best", "own", "--out", str(folder / "cpu" / "best")).exit_code == 0

    told = call(store, "run", str(folder), "--audits", "1", wiring=ELSEWHERE).stderr

    assert told.startswith("warning: the shipped best of toy was measured in another environment")
    assert f"next:  kernelbraid audit {folder} {folder}/cpu/best --target cpu\n" in told
    # and a report that cannot be read counts as none
    (folder / "cpu" / "best" / "report.json").write_text("{}")
    assert "shipped" not in call(store, "run", str(folder), "--audits", "1", wiring=ELSEWHERE).stderr


def test_blocks_of_an_unknown_rule_are_no_claim(cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a log whose blocks another version recorded
    log = open_store(f"sqlite:///{store}")
    state = fold(log.read(CAMPAIGN))
    best = state.implementations[state.best or ""]
    assert speedup_logs(state, best, log.blob).degrees > 0
    monkeypatch.setattr(outcome, "PAIRED", 99)
    # when / then
    with pytest.raises(EventInvalid, match=r"rule 3 .*`kernelbraid audit`"):
        speedup_logs(state, best, log.blob)
    log.close()
