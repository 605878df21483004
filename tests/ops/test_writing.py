"""Commands that append or write files."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import HERE, Operator
from kernelbraid.ops.wiring import Wiring
from tests.ops.conftest import AUDITS, CAMPAIGN, Cli, call


def test_run_ends_with_table_reason_path_and_three_commands(tmp_path: Path) -> None:
    result = call(tmp_path / "kernelbraid.db", "run", "linear", "--audits", "3", "--name", "mine")

    for word in ("workload", "ratio", "agreement", "weighted sum", "-ffast-math", "eight partial sums", "budget"):
        assert word in result.stdout
    commands = result.stdout.split("next:\n")[1].splitlines()
    assert [line.split()[:2] for line in commands] == [["kernelbraid", word] for word in ("show", "replay", "fork")]
    assert all(line.endswith(f"--store sqlite:///{tmp_path}/kernelbraid.db") for line in commands)
    assert result.exit_code == 0
    assert sum("verified" in line for line in result.stderr.splitlines()) >= 3


def test_run_json_prints_the_summary_and_nothing_else(tmp_path: Path) -> None:
    store = tmp_path / "kernelbraid.db"
    result = call(store, "run", "linear", "--audits", "2", "--json")

    assert json.loads(result.stdout) == json.loads(call(store, "show", "linear-1", "--json").stdout)


def test_run_writes_the_best_beside_the_store(searched: Path) -> None:
    best = json.loads(call(searched, "show", CAMPAIGN, "--json").stdout)["best"]["implementation"]
    folder = searched.parent / "best" / CAMPAIGN / best

    assert best != "i0000"
    assert (folder / "linear.c").read_text() == call(searched, "best", CAMPAIGN, "--source").stdout


@pytest.mark.parametrize(
    ("option", "word"),
    [(("--target", "cuda"), "cuda"), (("--proposer", "model"), "model"), (("--kappa", "0"), "kappa")],
)
def test_what_this_version_lacks_is_a_usage_error(tmp_path: Path, option: tuple[str, str], word: str) -> None:
    result = call(tmp_path / "kernelbraid.db", "run", "linear", *option)

    assert result.exit_code == 2
    assert word in result.stderr
    assert not (tmp_path / "kernelbraid.db").exists()


def test_best_writes_sources_and_evidence_and_never_over_something_else(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "out"

    assert cli("best", CAMPAIGN, "--out", str(folder)).exit_code == 0
    report = json.loads((folder / "report.json").read_text())
    assert {"contract", "environment", "confirmation", "lineage", "events", "checks"} <= set(report)
    assert all(len(event["hash"]) == 64 for event in report["events"])
    assert report["head"] in (folder / "report.md").read_text()
    assert cli("best", CAMPAIGN, "--out", str(folder)).exit_code == 0

    (folder / "linear.c").write_text("mine")
    refused = cli("best", CAMPAIGN, "--out", str(folder))
    assert refused.exit_code == 1
    assert (folder / "linear.c").read_text() == "mine"


def test_a_fork_goes_on_with_other_policy_and_its_parent_stays(cli: Cli) -> None:
    before = cli("show", CAMPAIGN, "--json").stdout
    child = cli("fork", CAMPAIGN, "--set", f"audits={AUDITS}", "--set", "wall=60", "--at", "3", "--json")
    name = json.loads(child.stdout)["campaign"]

    resumed = cli("resume", name, "--json")

    assert json.loads(resumed.stdout)["forked_from"] == {"campaign": CAMPAIGN, "position": 3}
    assert json.loads(resumed.stdout)["budgets"]["wall_s"]["limit"] == 60
    assert cli("show", CAMPAIGN, "--json").stdout == before
    assert f"they parted after {CAMPAIGN} position 3" in cli("compare", CAMPAIGN, name).stdout


@pytest.mark.parametrize("change", ["nonsense=1", "kappa=none", "audits"])
def test_a_policy_key_that_is_none_is_refused(cli: Cli, change: str) -> None:
    result = cli("fork", CAMPAIGN, "--set", change)

    assert result.exit_code in (1, 2)
    assert "kappa" in result.stderr or "KEY=VALUE" in result.stderr


def test_export_and_import_keep_every_event(cli: Cli, tmp_path: Path) -> None:
    file, other = tmp_path / "out.jsonl.gz", tmp_path / "other.db"

    assert cli("export", CAMPAIGN, "--out", str(file)).exit_code == 0
    assert cli("export", CAMPAIGN, "--out", str(file)).exit_code == 1
    assert call(other, "import", str(file)).stdout.split() == [CAMPAIGN]
    assert call(other, "log", CAMPAIGN, "--json").stdout == cli("log", CAMPAIGN, "--json").stdout
    assert call(other, "replay", CAMPAIGN, "--json").exit_code == 0


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("text", 1, ("not gzip", "export CAMPAIGN")),
        ("empty", 1, ("not gzip", "export CAMPAIGN")),
        ("another gzip", 1, ("no exported campaign", "export CAMPAIGN")),
        ("cut", 4, ("cut short", "nothing was imported")),
        ("changed", 4, ("is not as it was exported", "nothing was imported")),
        ("newer format", 1, ("format version 99", "upgrade")),
        ("newer event", 4, ("schema version 99", "as new as its writer")),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_why_and_leaves_nothing(
    cli: Cli, tmp_path: Path, name: str, code: int, words: tuple[str, str]
) -> None:
    cli("export", CAMPAIGN, "--out", str(tmp_path / "whole.gz"))
    whole = (tmp_path / "whole.gz").read_bytes()
    text = gzip.decompress(whole)
    file, other = tmp_path / "wrong.gz", tmp_path / "other.db"
    file.write_bytes(
        {
            "text": b"hello",
            "empty": b"",
            "another gzip": gzip.compress(b"{}\n"),
            "cut": whole[: len(whole) // 2],
            "changed": gzip.compress(text.replace(b'"actor":"planner"', b'"actor":"brancher"', 1)),
            "newer format": gzip.compress(re.sub(rb'"version":\d+', b'"version":99', text, count=1)),
            "newer event": gzip.compress(re.sub(rb'(Opened","version":)\d+', rb"\g<1>99", text, count=1)),
        }[name]
    )

    refused = call(other, "import", str(file))

    assert refused.exit_code == code
    assert all(word in refused.stderr for word in words), refused.stderr
    assert call(other, "list", "--json").stdout.split() == ["[]"]


def test_a_file_that_brings_another_log_of_a_name_says_where_else_to_put_it(cli: Cli, tmp_path: Path) -> None:
    cli("export", CAMPAIGN, "--out", str(tmp_path / "out.gz"))
    other = tmp_path / "other.db"
    call(other, "run", "linear", "--audits", "1", "--seed", "5", "--name", CAMPAIGN)

    refused = call(other, "import", str(tmp_path / "out.gz"))

    assert refused.exit_code == 1
    assert "--store" in refused.stderr
    assert "--name" not in refused.stderr


def test_notes_and_stops_get_into_the_log(cli: Cli) -> None:
    name = cli("fork", CAMPAIGN, "--set", "audits=50").stdout.strip()

    assert cli("note", name, "zwölf ☃").exit_code == 0
    assert cli("pause", name, "--reason", "lunch").exit_code == 0
    assert json.loads(cli("show", name, "--json").stdout)["status"] == "paused"
    assert cli("stop", name).exit_code == 0

    log = cli("log", name).stdout
    assert "note: zwölf ☃" in log
    assert "paused: lunch" in log
    assert cli("resume", name).exit_code == 1


def unboxed(operator: Operator, target: str) -> SimulatedHarness:
    """A harness on a machine without a sandbox."""

    class Unboxed(SimulatedHarness):
        def environment(self) -> Environment:
            return replace(super().environment(), sandbox="none")

    return Unboxed(operator, seed=0)


def test_a_machine_without_a_sandbox_is_warned_of_once(tmp_path: Path) -> None:
    store = tmp_path / "kernelbraid.db"
    result = call(store, "run", "linear", "--audits", "2", wiring=Wiring(harness=unboxed))

    assert result.exit_code == 0
    assert result.stderr.count("WARNING: no sandbox here") == 1


def test_a_fork_for_this_machine_judges_root_best_and_frontier_anew(cli: Cli) -> None:
    name = cli("fork", CAMPAIGN, "--here", "--set", "audits=1", wiring=Wiring(harness=unboxed)).stdout.strip()
    resumed = cli("resume", name, "--json", wiring=Wiring(harness=unboxed))
    log = cli("log", name).stdout

    assert resumed.exit_code == 0, resumed.stderr
    assert "root, best and frontier are audited again" in log
    assert log.count("i0000 verified") == 2


def test_a_campaign_of_another_machine_is_not_resumed_but_told_how_to_go_on(cli: Cli) -> None:
    name = cli("fork", CAMPAIGN, "--set", "audits=1").stdout.strip()

    result = cli("resume", name, wiring=Wiring(harness=unboxed))

    assert result.exit_code == 1
    assert "fork it" in result.stderr


@pytest.mark.parametrize("change", ["kappa=none", "nonsense=1", "audits=-3", "seed=99999999999999999999999"])
def test_a_wrong_policy_is_a_usage_error_in_plain_words(cli: Cli, change: str) -> None:
    result = cli("fork", CAMPAIGN, "--set", change)

    assert result.exit_code == 2
    assert change.split("=")[0] in result.stderr
    assert "pydantic" not in result.stderr


@pytest.mark.parametrize("name", ["../x", "\u00fc", "a b", "a" * 101, ".."])
def test_a_name_that_no_campaign_may_have_is_a_usage_error(tmp_path: Path, name: str) -> None:
    result = call(tmp_path / "s.db", "run", "linear", "--audits", "1", "--name", name)

    assert result.exit_code == 2
    assert "no campaign name" in result.stderr
    assert json.loads(call(tmp_path / "s.db", "list", "--json").stdout) == []


def test_a_target_that_an_operator_lacks_is_a_usage_error_with_those_it_has(tmp_path: Path) -> None:
    declared = (HERE / "rms_norm" / "operator.toml").read_text()
    start, end = declared.index("[[entry]]"), declared.index("[tolerance.float32]")
    (tmp_path / "operator.toml").write_text(declared[:start] + declared[end:])

    result = call(tmp_path / "s.db", "run", str(tmp_path))

    assert result.exit_code == 2
    assert "declares nothing for cpu; its targets: triton" in " ".join(result.stderr.split())
    assert "--target" in result.stderr


def test_a_seed_beyond_what_the_log_holds_is_a_usage_error(tmp_path: Path) -> None:
    assert call(tmp_path / "s.db", "run", "linear", "--seed", str(2**63)).exit_code == 2


def test_files_in_the_way_of_the_best_do_not_hide_the_outcome(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("mine")

    result = call(tmp_path / "kernelbraid.db", "run", "linear", "--audits", "8")

    assert result.exit_code == 0
    assert "weighted sum" in result.stdout
    assert "the best's sources were not kept" in result.stderr
    assert f"best {CAMPAIGN} --out" in result.stderr
    assert (tmp_path / "best").read_text() == "mine"
