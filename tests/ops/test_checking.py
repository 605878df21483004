"""verify, replay and doctor: what they pass, what they name, and how they exit."""

import sqlite3
from pathlib import Path

import pytest

from kernelbraid.agents.search import Strategies, catalogue_strategies
from kernelbraid.agents.strategy import Desk, Events
from kernelbraid.events.search import ActionProposed
from kernelbraid.events.state import State
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain
from kernelbraid.ops import doctor
from kernelbraid.ops.wiring import Wiring
from tests.ops.conftest import CAMPAIGN, Cli, simulated


class Contrary:
    """The catalogue's planner, but for one rule: it gives another rationale."""

    name = "catalogue"

    def __init__(self) -> None:
        self._planner = catalogue_strategies().planner

    def survey(self, state: State, desk: Desk) -> Events:
        return self._planner.survey(state, desk)

    def choose(self, state: State, desk: Desk) -> Events:
        chosen = self._planner.choose(state, desk)
        return tuple(
            event.model_copy(update={"rationale": "because"}) if isinstance(event, ActionProposed) else event
            for event in chosen
        )


def tampered(store: Path, statement: str, *parameters: object) -> None:
    """Rewrites a stored row as somebody with the file in hand can."""
    connection = sqlite3.connect(store)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement, parameters)
    connection.commit()
    connection.close()


def test_a_sound_log_passes_and_tells_its_head(cli: Cli) -> None:
    result = cli("verify", CAMPAIGN)
    head = result.stdout.split()[-1]

    assert result.exit_code == 0
    assert cli("verify", CAMPAIGN, "--head", head).exit_code == 0
    assert cli("verify", "--all").exit_code == 0


def test_an_edited_payload_is_named(cli: Cli, store: Path) -> None:
    tampered(
        store,
        "UPDATE stored_events SET state = replace(CAST(state AS TEXT), 'i0001', 'i0002') WHERE originator_version = ?",
        8,
    )

    result = cli("verify", CAMPAIGN)

    assert result.exit_code == 4
    assert f"{CAMPAIGN} 8: " in result.stdout
    assert cli("replay", CAMPAIGN).exit_code == 4


def test_another_head_than_the_noted_one_exits_4(cli: Cli) -> None:
    result = cli("verify", CAMPAIGN, "--head", "0" * 64)

    assert result.exit_code == 4
    assert "noted head" in result.stdout


@pytest.mark.parametrize("arguments", [(), (CAMPAIGN, "--all"), ("--all", "--head", "0" * 64)])
def test_verify_wants_one_campaign_or_all(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("verify", *arguments).exit_code == 2


def test_strict_replay_passes_with_the_same_agents(cli: Cli) -> None:
    result = cli("replay", CAMPAIGN, "--strict")

    assert result.exit_code == 0, result.stdout
    assert "no divergence" in result.stdout


def test_strict_replay_stops_at_the_first_decision_that_differs_and_shows_both_sides(cli: Cli) -> None:
    other = catalogue_strategies()
    contrary = Strategies(Contrary(), other.editor, other.brancher)

    result = cli("replay", CAMPAIGN, "--strict", wiring=Wiring(simulated, contrary))

    assert result.exit_code == 4
    assert "the planner's decision" in result.stdout
    assert "ActionProposed.rationale" in result.stdout
    assert 'decided   "because"' in result.stdout
    assert "recorded  " in result.stdout


def test_a_rule_is_stated_where_it_is_broken(cli: Cli) -> None:
    result = cli("pause", CAMPAIGN)

    assert result.exit_code == 1
    assert "a stopped campaign cannot be paused" in result.stderr


def test_a_machine_without_proc_is_told_to_mount_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*given: object) -> Harness:
        raise MissingToolchain("gcc builds nothing that runs here: /proc/self/fd/15: cannot open")

    monkeypatch.setattr(doctor, "Harness", fails)
    monkeypatch.setattr(doctor, "_PROCESS_FILES", tmp_path / "nothing")

    found = next(item for item in doctor.examine(f"sqlite:///{tmp_path}/s.db") if item.name == "build and run")

    assert not found.present
    assert "mount /proc" in found.advice
