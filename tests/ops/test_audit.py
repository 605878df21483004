"""`audit`: sources judged on their own, by this machine's harness where it is cheap, else by arithmetic."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from kernelbraid.kernels.audit.environment import Environment
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Infrastructure, Verdict
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, load_operator
from kernelbraid.ops.wiring import Wiring
from tests.ops.conftest import WIRING, call

RMS_NORM = load_operator("rms_norm")
FASTER = RMS_NORM.folder / "cpu" / "eight_partial_sums"
ROOT_FOLDER = RMS_NORM.folder / "cpu" / "root"


def judge(*arguments: str | Path, wiring: Wiring = WIRING) -> Result:
    """`kernelbraid audit rms_norm ...`; the store named here must never come to be."""
    store = Path("no such folder") / "audits.db"
    result = call(store, "audit", "rms_norm", *map(str, arguments), wiring=wiring)
    assert not store.exists()
    return result


def written(folder: Path, text: str) -> Path:
    """A folder with one source."""
    (folder / "rms_norm.c").write_text(text)
    return folder


def edited(old: str, new: str) -> str:
    """The root's source with one change."""
    text = (ROOT_FOLDER / "rms_norm.c").read_text()
    assert text.count(old) == 1
    return text.replace(old, new)


# --- on this machine -----------------------------------------------------------------------------------------------


def test_a_faster_folder_is_verified_and_told_with_all_its_evidence() -> None:
    result = judge(FASTER, wiring=Wiring())

    assert result.exit_code == 0, result.stdout
    # on a machine too noisy to decide, the gain is undecided
    assert re.match(r"rms_norm on cpu: verified, (promotable|undecided) \(build ", result.stdout)
    for word in ("ok    agreement", "root over it", "decode_b24_h4096_f32", "k = 1, alpha 0.025", "text_bytes", "gcc"):
        assert word in result.stdout


def test_a_slower_file_is_verified_and_no_gain_is_no_failure(tmp_path: Path) -> None:
    # given the root, but every scaled element goes to memory and back
    written(tmp_path, edited("float scaled =", "volatile float scaled ="))

    result = judge(tmp_path / "rms_norm.c", "--json", wiring=Wiring())

    found = json.loads(result.stdout)
    assert result.exit_code == 0, result.stdout
    assert (found["verdict"], found["performance"]) == ("verified", "no_gain")
    assert found["speedup_ratio"] < 1
    # A screen of one group bounds nothing.
    assert all(
        row["root_s"] > 0 and row["ratio"] <= (row["upper_bound_ratio"] or row["ratio"]) for row in found["workloads"]
    )
    assert set(found["sessions"]) == {"screen"}


def test_a_wrong_folder_exits_1_and_says_what_differs_where(tmp_path: Path) -> None:
    wrong = edited("partial sum = {0};", "partial sum = {64.0f};")

    result = judge(written(tmp_path, wrong), wiring=Wiring())

    assert result.exit_code == 1
    assert "rms_norm on cpu: inaccurate" in result.stdout
    assert "FAIL  accuracy" in result.stdout
    assert "latency" not in result.stdout


def test_a_source_that_does_not_compile_exits_1_with_the_compiler_s_words(tmp_path: Path) -> None:
    result = judge(written(tmp_path, edited("partial sum = {0};", "partial sum = undeclared;")), wiring=Wiring())

    assert result.exit_code == 1
    assert "build_failed" in result.stdout
    assert "undeclared" in result.stdout
    assert "output of builder and runner" in result.stdout


# --- by arithmetic -------------------------------------------------------------------------------------------------


def test_json_holds_verdict_timing_environment_and_output() -> None:
    found = json.loads(judge(FASTER, "--json").stdout)

    assert set(found) == {
        "operator",
        "target",
        "incumbent",
        "verdict",
        "verified",
        "evidence",
        "performance",
        "speedup_ratio",
        "measurement",
        "checks",
        "workloads",
        "sessions",
        "resources",
        "artifact",
        "seconds",
        "environment",
        "log",
    }
    assert [row["workload"] for row in found["workloads"]] == [item.name for item in RMS_NORM.workloads]
    assert found["environment"]["compiler"] == "simulated"


def slowed(operator: Operator, target: str) -> SimulatedHarness:
    """Every candidate takes as many ms as its source has lines."""
    return SimulatedHarness(operator, 0, lambda candidate, _: 1e-3 * "".join(candidate.sources.values()).count("\n"))


@pytest.mark.parametrize(("lines", "performance", "beside_root"), [(2, "promotable", True), (9, "no_gain", False)])
def test_another_incumbent_takes_the_root_s_place(
    tmp_path: Path, lines: int, performance: str, beside_root: bool
) -> None:
    # given a candidate of so many lines, and an incumbent of three
    rival = tmp_path / "rival.c"
    rival.write_text("\n" * 3)
    candidate = tmp_path / "candidate.c"
    candidate.write_text("\n" * lines)

    found = json.loads(judge(candidate, "--incumbent", rival, "--json", wiring=Wiring(slowed)).stdout)

    assert found["incumbent"] == str(rival)
    assert found["performance"] == performance
    assert found["measurement"]["ratio"] == pytest.approx(lines / 3, rel=0.02)
    assert all(row["incumbent_ratio"] == pytest.approx(lines / 3, rel=0.02) for row in found["workloads"])
    assert all((row["root_s"] is not None) is beside_root for row in found["workloads"])
    table = judge(candidate, "--incumbent", rival, wiring=Wiring(slowed)).stdout
    assert "incumbent   candidate" in table


def failing(*verdicts: Verdict | None) -> Wiring:
    """A harness whose audits end so, one after the other."""
    due = list(verdicts)
    return Wiring(lambda operator, target: SimulatedHarness(operator, 0, failure=lambda _: due.pop(0)))


def test_a_machine_that_fails_once_is_asked_again() -> None:
    assert judge(FASTER, wiring=failing(Infrastructure.DEVICE_FAULT, None)).exit_code == 0
    twice = judge(FASTER, wiring=failing(Infrastructure.DEVICE_FAULT, Infrastructure.DEVICE_FAULT))
    assert twice.exit_code == 1
    assert "device_fault" in twice.stdout


def test_a_candidate_that_fails_is_not_asked_again() -> None:
    assert judge(FASTER, wiring=failing(Correctness.CRASHED)).exit_code == 1


class Unboxed(SimulatedHarness):
    """A machine where no sandbox works."""

    def environment(self) -> Environment:
        return replace(super().environment(), sandbox="none")


def must_not_run(candidate: Candidate) -> Verdict | None:
    """For what no candidate may come to."""
    raise AssertionError("an unknown source was run without a sandbox")


def test_without_a_sandbox_nothing_from_outside_is_built_or_run() -> None:
    result = judge(FASTER, wiring=Wiring(lambda operator, target: Unboxed(operator, 0, failure=must_not_run)))

    assert result.exit_code == 1
    assert "sandbox_refused" in result.stdout


def test_what_best_wrote_can_be_judged_as_it_lies(store: Path, tmp_path: Path) -> None:
    call(store, "best", "linear-1", "--out", str(tmp_path / "best"))

    result = call(store, "audit", "linear", str(tmp_path / "best"), "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"] == "verified"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("rms_norm", "no/such/folder"), 3),
        (("rms_norm", "tests/ops"), 3),
        (("no_such_operator", "tests/ops"), 3),
        (("rms_norm", str(FASTER), "--incumbent", "no/such/folder"), 3),
        (("rms_norm", str(FASTER), "--target", "abacus"), 2),
        (("rms_norm",), 2),
    ],
)
def test_what_cannot_be_judged_is_told_by_its_code(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    result = call(tmp_path / "none.db", "audit", *arguments)

    assert result.exit_code == code
    assert result.stdout == ""
