"""Commands that read: what they say is what the log holds."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kernelbraid.events.registry import BY_NAME
from kernelbraid.events.state import fold
from kernelbraid.events.store import open_store
from kernelbraid.events.values import Measurement
from kernelbraid.kernels.audit import outcome
from kernelbraid.kernels.audit.outcome import Candidate, CheckResult, Correctness, Verdict
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.ops.report.evidence import check_lines, measurement_lines, note_lines
from kernelbraid.ops.wiring import Wiring
from kernelbraid.projections.digest import state_digest
from kernelbraid.projections.summary import summary
from tests.ops.conftest import AUDITS, CAMPAIGN, Cli, call


def test_show_json_is_exactly_the_summary(cli: Cli, store: Path) -> None:
    log = open_store(f"sqlite:///{store}")
    expected = summary(fold(log.read(CAMPAIGN)), driven=False).model_dump(mode="json")
    log.close()

    shown = cli("show", CAMPAIGN, "--json")

    assert json.loads(shown.stdout) == expected
    assert shown.stderr == ""
    assert expected["stop_reason"] == "budget"
    assert expected["counts"]["audited"] == AUDITS + 1


def test_show_draws_every_implementation_once(cli: Cli) -> None:
    lines = cli("show", CAMPAIGN).stdout.splitlines()
    tree = lines[: lines.index("")]

    assert len(tree) == AUDITS + 1
    assert all(any(f"i{number:04d}  " in line for line in tree) for number in range(AUDITS + 1))
    assert sum("★" in line for line in tree) == 1


def test_show_at_an_earlier_position_knows_nothing_of_what_came_later(cli: Cli) -> None:
    early = json.loads(cli("show", CAMPAIGN, "--at", "3", "--json").stdout)

    assert early["position"] == 3
    assert early["counts"]["audited"] == 1
    assert early["stop_reason"] is None
    assert early["status"] == "interrupted"


def test_show_of_an_implementation_has_all_its_evidence(cli: Cli) -> None:
    text = cli("show", CAMPAIGN, "i0001").stdout
    found = json.loads(cli("show", CAMPAIGN, "i0001", "--json").stdout)

    for word in (
        "parents",
        "falsified if",
        "audit: verified",
        "agreement            24 cases",
        "regions against",
        "text_bytes",
    ):
        assert word in text
    assert "note: vectorised" in text
    assert found["audits"][0]["verdict"] == "verified"
    assert found["sources"][0]["name"] == "linear.c"


def test_list_has_the_promised_keys(cli: Cli) -> None:
    rows = json.loads(cli("list", "--json").stdout)

    assert [{key: row[key] for key in ("campaign", "operator", "target", "status")} for row in rows] == [
        {"campaign": CAMPAIGN, "operator": "linear", "target": "cpu", "status": "stopped"}
    ]
    assert rows[0]["position"] > AUDITS
    assert CAMPAIGN in cli("list").stdout


def test_log_json_is_one_event_a_line_oldest_first(cli: Cli) -> None:
    events = [json.loads(line) for line in cli("log", CAMPAIGN, "--json").stdout.splitlines()]

    assert [event["position"] for event in events] == list(range(1, len(events) + 1))
    assert {event["type"] for event in events} <= set(BY_NAME)
    assert events[0]["type"] == "CampaignOpened"
    assert events[-1]["type"] == "CampaignStopped"
    assert len(cli("log", CAMPAIGN).stdout.splitlines()) == len(events)


def test_diff_is_a_unified_diff_and_empty_between_equals(cli: Cli) -> None:
    changed = cli("diff", CAMPAIGN, "i0000", "i0001").stdout

    assert changed.startswith("--- i0000/linear.c\n+++ i0001/linear.c\n@@ ")
    assert cli("diff", CAMPAIGN, "i0001", "i0001").stdout == ""
    assert json.loads(cli("diff", CAMPAIGN, "i0000", "i0001", "--json").stdout)["files"]["linear.c"] in changed + "\n"


def test_metrics_are_valid_text_and_the_same_twice(cli: Cli) -> None:
    text = cli("metrics", CAMPAIGN).stdout
    families = {family.name: family for family in text_string_to_metric_families(text)}
    audits = {sample.labels["verdict"]: sample.value for sample in families["kernelbraid_audits"].samples}

    assert audits["verified"] == AUDITS + 1
    assert families["kernelbraid_position"].samples[0].labels == {"campaign": CAMPAIGN}
    assert text == cli("metrics", CAMPAIGN).stdout


def test_rebuild_gives_the_digest_that_show_gives(cli: Cli, store: Path) -> None:
    log = open_store(f"sqlite:///{store}")
    expected = state_digest(fold(log.read(CAMPAIGN)))
    log.close()

    assert json.loads(cli("replay", CAMPAIGN, "--json").stdout)["digest"] == expected
    assert expected in cli("show", CAMPAIGN).stdout


def test_operators_lists_what_comes_with_the_package(cli: Cli) -> None:
    rows = {row["operator"]: row for row in json.loads(cli("operators", "--json").stdout)}

    assert {"attention", "linear", "rms_norm"} <= set(rows)
    assert rows["attention"]["mechanisms"]["cpu"] >= 15


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "nobody"),
        ("show", CAMPAIGN, "i9999"),
        ("show", CAMPAIGN, "--at", "9999"),
        ("log", "nobody"),
        ("diff", CAMPAIGN, "i0000", "i9999"),
        ("best", "nobody"),
        ("metrics", "nobody"),
        ("replay", "nobody"),
        ("verify", "nobody"),
        ("resume", "nobody"),
        ("fork", "nobody"),
        ("fork", CAMPAIGN, "--at", "9999"),
        ("note", "nobody", "text"),
        ("export", "nobody"),
        ("import", "nothing.jsonl.gz"),
        ("run", "no_such_operator"),
    ],
)
def test_what_is_not_there_exits_3_with_a_word(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")


def test_a_missing_store_is_not_made_by_looking(tmp_path: Path) -> None:
    result = call(tmp_path / "none.db", "list")

    assert result.exit_code == 3
    assert not (tmp_path / "none.db").exists()


def failing_run(store: Path) -> tuple[str, str]:
    """A campaign with an implementation that failed, whose evidence is several lines long; their names."""

    def failure(candidate: Candidate) -> Verdict | None:
        return Correctness.DISAGREEMENT if candidate.name == "i0001" else None

    wiring = Wiring(lambda operator, target: SimulatedHarness(operator, 0, failure=failure))
    assert call(store, "run", "linear", "--name", "failing", "--audits", "2", wiring=wiring).exit_code == 0
    return "failing", "i0001"


def test_show_of_a_failed_implementation_begins_with_why(cli: Cli, store: Path) -> None:
    name, implementation = failing_run(store)

    lines = cli("show", name, implementation).stdout.splitlines()
    verdict = next(number for number, line in enumerate(lines) if line.startswith("audit: disagreement"))

    assert lines[verdict + 1] == "  simulated: disagreement was injected"
    assert "  FAIL  simulated       1 cases" in lines
    assert not any(line.startswith("timing") for line in lines)
    assert json.loads(cli("show", name, implementation, "--json").stdout)["evidence"] == lines[verdict + 1].strip()


def test_show_of_an_implementation_tells_how_it_was_timed_and_where(cli: Cli) -> None:
    best = cli("show", CAMPAIGN, "best").stdout
    found = json.loads(cli("show", CAMPAIGN, "best", "--json").stdout)

    assert "  confirmation      k = " in best
    timed = r"  confirmation      (\d+) groups; samples a group: incumbent and candidate \d+ x \d+, root 1 x 1"
    told = re.search(timed, best)
    assert told is not None
    assert "of the root  at most  limit" in best
    assert "  compiler          simulated" in best
    assert found["sessions"]["confirmation"]["groups"] == int(told[1])
    assert len(found["sessions"]["confirmation"]["floor_s"]) == int(told[1])
    assert found["environment"]["compiler"] == "simulated"
    assert set(found["limits"]) == set(found["latencies_s"])


def test_the_shapes_at_the_sizes_of_a_source_are_shown_below_the_checks() -> None:
    told = "sizes of seed 7; rms_norm_full_f32 (rows x hidden) 5001x63; unreached: 1048576"

    assert list(note_lines(f"agreement 24, sizes 1\n{told}")) == [f"  {told}"]
    assert list(note_lines("agreement 24")) == []
    assert list(check_lines([CheckResult("sizes", True, 1, told)])) == [
        "  ok    sizes       1 cases",
        f"        {told}",
    ]


def test_a_screen_of_one_group_is_shown_without_a_bound_and_an_error() -> None:
    ratios = {"ratio": 1.2, "upper_bound_ratio": 1.2, "delta_ratio": 0.005}
    one = Measurement(incumbent="i0001", **ratios, standard_error_ratio=0, objective_s=1e-3)
    several = one.model_copy(update={"upper_bound_ratio": 1.21, "standard_error_ratio": 0.01})

    assert list(measurement_lines(one))[:2] == [
        "  ratio             1.2000 of i0001, a gain lies below 0.9950",
        "  standard error    unknown from one group, delta 0.500 %",
    ]
    assert list(measurement_lines(several))[:2] == [
        "  ratio             1.2000 of i0001, at most 1.2100; a gain lies below 0.9950",
        "  standard error    1.000 %, delta 0.500 %",
    ]


def test_show_of_the_root_has_its_qualification(cli: Cli) -> None:
    assert re.search(r"  qualification     \d+ groups; ", cli("show", CAMPAIGN, "i0000").stdout)


def test_show_prints_the_end_of_the_output_unless_all_of_it_is_asked_for(cli: Cli) -> None:
    def printed(*arguments: str) -> list[str]:
        lines = cli("show", CAMPAIGN, "i0001", *arguments).stdout.splitlines()
        return lines[next(n for n, line in enumerate(lines) if line.startswith("output of builder")) :]

    tail, whole = printed(), printed("--log")

    assert len(tail) == 1 + 12
    assert tail[0].startswith("output of builder and runner, last 12 of ")
    assert whole[0] == "output of builder and runner"
    assert whole[-12:] == tail[-12:]
    assert "candidate.c:0: note" in whole[1]


def test_show_names_blocks_that_another_version_recorded(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a log whose blocks are of a rule that is not known here
    monkeypatch.setattr(outcome, "PAIRED", 99)
    # when
    shown = cli("show", CAMPAIGN, "best")
    # then
    assert shown.exit_code == 0
    assert "(not read here: the blocks of the confirmation; these are no timing blocks: a rule 3" in shown.stdout
    assert "of the root  at most  limit" in shown.stdout
