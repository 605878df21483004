"""`propose`: an offspring written by hand enters a campaign, and what is wrong with one is told."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from kernelbraid.events.state import fold
from kernelbraid.events.store import open_store
from kernelbraid.kernels.operators.operator import load_operator
from tests.ops.conftest import CAMPAIGN, Cli, call
from tests.ops.test_process import PATIENCE_S, begun, position, until

CHILD = f"{CAMPAIGN}.1"
SOURCE = load_operator("linear").root_sources()["linear.c"]
Propose = Callable[..., Result]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with the root, changed by hand, and something that is no source."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "linear.c").write_text(SOURCE.replace("// region full\n", "// region full\n/* by hand */\n"))
    (folder / "notes.txt").write_text("ask Kim")
    return folder


@pytest.fixture
def propose(cli: Cli, mine: Path) -> Propose:
    """`propose` to a fork with room for two audits."""
    cli("fork", CAMPAIGN, "--set", "audits=2")

    def proposed(*arguments: str, path: Path = mine, campaign: str = CHILD) -> Result:
        given = {"--parent": "i0000", "--scope": "full", "--rationale": "seen in a profile"}
        given |= dict(zip(arguments[::2], arguments[1::2], strict=True))
        return cli("propose", campaign, str(path), *(word for pair in given.items() for word in pair))

    return proposed


def test_it_prints_the_implementation_and_the_step_that_audits_it(propose: Propose, cli: Cli) -> None:
    # given / when
    result = propose()

    # then
    implementation = result.stdout.strip()
    assert result.exit_code == 0, result.stderr
    assert f"kernelbraid resume {CHILD}" in result.stderr
    assert json.loads(cli("show", CHILD, "--json").stdout)["in_flight"] != []

    # when it is audited
    assert cli("resume", CHILD).exit_code == 0

    # then show and log tell whose it is, why, and what came of it
    shown = json.loads(cli("show", CHILD, implementation, "--json").stdout)
    assert "verified" in json.dumps(shown)
    told = cli("show", CHILD, implementation).stdout
    assert "seen in a profile" in told
    assert "outside" in told
    lines = [line for line in cli("log", CHILD).stdout.splitlines() if " user " in line]
    assert [implementation in line for line in lines[-3:]] == [False, False, True]
    assert cli("replay", CHILD, "--strict").exit_code == 0
    assert cli("verify", CHILD).exit_code == 0


def test_json_holds_every_id_and_the_position(propose: Propose, cli: Cli, mine: Path) -> None:
    arguments = ("propose", CHILD, str(mine), "--parent", "best", "--scope", "joint", "--rationale", "x", "--json")
    propose()
    handed = json.loads(cli(*arguments).stdout)
    shown = json.loads(cli("show", CHILD, "--json").stdout)

    assert set(handed) == {"campaign", "opportunity", "action", "implementation", "position", "driven"}
    assert handed["position"] == shown["position"]
    assert handed["driven"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--parent", "i0099"), 3, "no implementation i0099"),
        (("--scope", "prefill"), 2, "prefill"),
        (("--scope", "decode"), 1, "declared decode only"),
        (("--rationale", ""), 1, "rationale"),
    ],
)
def test_what_does_not_hold_is_told_with_its_exit_code(
    propose: Propose, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = propose(*arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert result.stdout == ""


def test_a_campaign_a_folder_or_an_end_that_is_not_there(propose: Propose, tmp_path: Path) -> None:
    missing, unknown, stopped = propose(path=tmp_path / "none"), propose(campaign="x"), propose(campaign=CAMPAIGN)
    assert (missing.exit_code, unknown.exit_code, stopped.exit_code) == (3, 3, 1)
    assert "stopped" in stopped.stderr
    (tmp_path / "empty").mkdir()
    empty = propose(path=tmp_path / "empty")
    assert empty.exit_code == 3
    assert "files ending in .c" in empty.stderr


def test_another_process_hands_in_while_a_driver_works(tmp_path: Path, mine: Path) -> None:
    # given a driver whose audits take their time
    store = tmp_path / "kernelbraid.db"
    program = begun(store, "run", "linear", "--audits", "90", audit_s=0.3)
    until(lambda: position(store) >= 8)

    # when
    options = ["--parent", "i0000", "--scope", "full", "--rationale", "while it runs", "--json"]
    words = [sys.executable, "-m", "kernelbraid.ops.cli", "--store", f"sqlite:///{store}", "propose", CAMPAIGN]
    handed = subprocess.run([*words, str(mine), *options], capture_output=True, text=True, timeout=PATIENCE_S)
    found = json.loads(handed.stdout or "{}")
    if handed.returncode == 0:
        until(lambda: verdict(store, found["implementation"]) is not None)
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=PATIENCE_S)

    # then its driver audited it, and went on until it was told to pause
    assert (handed.returncode, program.returncode) == (0, 130), handed.stderr
    assert found["driven"] is True
    assert call(store, "replay", CAMPAIGN, "--strict").exit_code == 0


def verdict(store: Path, implementation: str) -> str | None:
    """What the implementation's audit said; None before there was one."""
    log = open_store(f"sqlite:///{store}")
    try:
        return fold(log.read(CAMPAIGN)).implementations[implementation].verdict
    finally:
        log.close()
