"""Figures, log entries, exit codes and progress in words."""

import io
import json
import sys
from typing import get_args

import pytest
from rich.console import Console

from kernelbraid.events import errors
from kernelbraid.ops import exits
from kernelbraid.ops.doctor import examine, fit
from kernelbraid.ops.exits import ExitCode, ending_of
from kernelbraid.ops.logging import Level, configure, logger
from kernelbraid.ops.progress.live import drawn
from kernelbraid.ops.progress.snapshot import Doing, Snapshot
from kernelbraid.ops.report.figures import bar, plain, seconds, size
from kernelbraid.ops.terminal import console
from tests.ops.conftest import Cli


@pytest.mark.parametrize(
    ("value_s", "shown"),
    [(None, "-"), (3.2e-9, "3.2 ns"), (4.7e-5, "47 us"), (0.00124, "1.24 ms"), (1.5, "1.5 s"), (150, "2 min 30 s")],
)
def test_seconds(value_s: float | None, shown: str) -> None:
    assert seconds(value_s) == shown


def test_sizes_and_bars() -> None:
    assert size(18_200_000) == "18.2 MB"
    assert bar(0.5, 4, unicode=False) == "##.."
    assert bar(7, 4, unicode=True) == "████"


def test_text_from_outside_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[2Jb\nc\x07") == "a [2Jb c"
    assert plain("x" * 20, 10) == "x" * 7 + "..."


def every_error() -> list[type[errors.KernelbraidError]]:
    found, waiting = [], [errors.KernelbraidError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_expected_failure_has_an_exit_code(kind: type[Exception]) -> None:
    assert ending_of(kind("why")).code in set(ExitCode) - {ExitCode.OK}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.CampaignMissing, 3),
        (errors.PositionMissing, 3),
        (exits.NotFound, 3),
        (errors.LogDamaged, 4),
        (errors.DriverPresent, 5),
        (exits.Unavailable, 2),
        (exits.TargetMissing, 2),
        (errors.StoreFull, 1),
        (errors.RuleBroken, 1),
    ],
)
def test_exit_codes(kind: type[Exception], code: int) -> None:
    assert ending_of(kind("why")).code == code


def test_log_entries_are_json_when_piped_and_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info")

    bound = logger().bind(campaign="c", position=7, action="a0001")
    bound.info(
        "called", api_key="sk-live-12345678", url="postgresql://me:pw@host/db", tokens=12, header="Bearer abc.def"
    )
    bound.debug("quiet")

    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(entries) == 1
    assert entries[0]["api_key"] == "***"
    assert entries[0]["url"] == "postgresql://***@host/db"
    assert entries[0]["header"] == "Bearer ***"
    assert entries[0]["tokens"] == 12
    assert (entries[0]["campaign"], entries[0]["position"], entries[0]["action"]) == ("c", 7, "a0001")


def test_levels_are_the_usual_ones() -> None:
    assert get_args(Level) == ("debug", "info", "warning", "error")


def test_the_live_view_shows_work_best_kappa_budget_and_pace() -> None:
    shown = Snapshot(
        campaign="c",
        operator="linear",
        status="running",
        doing=(Doing("a0003", "auditing i0003", "lanes_8 [bold] on i0001"),),
        kappa=3,
        kappa_threshold=30,
        best="i0001",
        speedup_ratio=3.5,
        audits=4,
        audits_limit=40,
        audited_here=4,
        lines=("   12  i0002 verified",),
    )
    screen = Console(file=io.StringIO(), width=100)
    with screen.capture() as captured:
        screen.print(drawn(shown, elapsed_s=60.0, idle_s=1.0, unicode=False))

    text = captured.get()
    for word in ("a0003", "lanes_8 [bold] on i0001", "3.50x", "3 of 30", "4 of 40", "4.0 audits per minute", "i0002"):
        assert word in text


def test_a_console_that_is_no_terminal_is_wide_and_without_colour() -> None:
    stream = io.StringIO()
    console(stream).print("[red]word[/red]", "x" * 120)

    assert stream.getvalue() == f"word {'x' * 120}\n"


def test_doctor_finds_what_the_default_search_needs(cli: Cli) -> None:
    result = cli("doctor", "--json")
    report = json.loads(result.stdout)
    findings = {finding["name"]: finding for finding in report["findings"]}

    assert result.exit_code == (0 if report["fit"] else 1)
    assert findings["python"]["present"]
    assert {"compiler", "store", "landlock", "cores", "SIMD", "torch", "triton", "flash_attn"} <= set(findings)
    assert all(finding["advice"] for finding in findings.values() if finding["required"] and not finding["present"])


def test_doctor_says_how_to_get_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    findings = list(examine("sqlite:////nowhere/at/all/kernelbraid.db"))

    store = next(finding for finding in findings if finding.name == "store")
    assert not fit(findings)
    assert not store.present
    assert "--store" in store.advice
