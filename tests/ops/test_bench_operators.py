"""Ratios and tables of the operator benchmark; its times need a GPU."""

import json
from pathlib import Path

import pytest

from kernelbraid.ops.bench.operators import every_line, measurable, overview, summary, table

ROOT = Path(__file__).resolve().parents[2]
LINES = [
    {"environment": {"gpu": "a", "copied_bytes_per_s": 4e12}},
    {
        "operator": "rope",
        "cell": "one",
        "path": "full",
        "us": {"ours": 2.0, "eager": 8.0, "copy": 1.5},
        "bytes": 6_000_000,
        "large": False,
        "failed": {},
    },
    {
        "operator": "rope",
        "cell": "one_x64",
        "path": "full",
        "us": {"ours": 100.0, "eager": 400.0, "copy": 97.0},
        "bytes": 384_000_000,
        "large": True,
        "failed": {},
    },
    {
        "operator": "rope",
        "cell": "two",
        "path": "decode",
        "us": {"ours": 1.0, "eager": 1.0, "compiled": 2.0},
        "failed": {},
    },
    {
        "operator": "linear",
        "cell": "three",
        "path": "full",
        "us": {"cublas": 1.0},
        "failed": {"ours": "RuntimeError: no"},
    },
]
PROGRAM = """
import sys
for name in sys.argv[1:]:
    print('{"us": {}, "operator": "%s"}' % name, flush=True)
    if name.startswith("lost"):
        raise SystemExit("the device is lost")
    print('{"done": "%s"}' % name, flush=True)
"""


def test_an_arm_is_compared_over_the_cells_that_it_ran() -> None:
    # when
    result = summary(LINES)

    # then
    rope = result["times_faster"]["rope"]
    assert rope == {"compiled": 2.0, "copy": pytest.approx((0.75 * 0.97) ** 0.5), "eager": pytest.approx(16 ** (1 / 3))}
    assert result["times_faster_by_path"]["rope"]["full"]["eager"] == pytest.approx(4.0)
    assert result["times_faster_by_path"]["rope"]["decode"] == {"compiled": 2.0, "eager": 1.0}
    assert result["times_faster"]["linear"] == {}
    assert [line["cell"] for line in result["failed"]] == ["three"]


def test_the_table_has_a_row_for_each_cell_and_gaps_where_an_arm_did_not_run() -> None:
    # when
    lines = list(table(summary(LINES)))

    # then
    assert lines[0] == "| rope | ours | eager | copy | compiled | of copy | of same copy |"
    assert lines[2] == "| one | 2.00 | 8.00 | 1.50 |  | 0.75 | 0.75 |"
    assert lines[4] == "| two | 1.00 | 1.00 |  | 2.00 |  |  |"
    assert lines[6] == "| over ours, full |  | 4.00 | 0.85 |  |  |  |"
    assert lines[8] == "| the paper's, full, over a baseline that it does not name | 18.0 |  |  |  |  |  |"


def test_what_memory_bounds_is_a_share_of_a_large_copys_rate_and_of_a_copys_of_its_own_size() -> None:
    # when
    result = summary(LINES)

    # then
    assert result["of_copy"] == {"rope": {"one": 0.75, "one_x64": 0.96}}
    assert result["of_same_copy"] == {"rope": {"one": 0.75, "one_x64": 0.97}}
    assert result["large"] == {"rope": ["one_x64"], "linear": []}


def test_the_overview_has_what_is_large_and_what_others_take() -> None:
    # when
    *_, row = overview(summary(LINES))

    # then
    assert row == "| rope | 0.96 to 0.96 | 0.97 to 0.97 | 4.0x | 1.0x |  | 2.0x | 18.0x, 2.9x |"


def test_an_operator_that_ends_the_process_does_not_lose_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    (tmp_path / "measuring.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    # when
    lines = list(every_line((), ("one", "lost", "two", "lost_too", "three"), 60.0, "measuring"))

    # then
    assert [line["operator"] for line in lines if "us" in line] == ["one", "lost", "two", "lost_too", "three"]
    assert [line["operator"] for line in lines if "ended" in line] == ["lost", "lost_too"]
    assert "the device is lost" in next(line["ended"] for line in lines if "ended" in line)


def test_every_operator_of_a_model_can_be_measured() -> None:
    assert {"attention", "linear", "rms_norm", "rope", "silu_and_mul", "topk_softmax"} <= set(measurable())


def test_the_readme_shows_the_record() -> None:
    record = json.loads((ROOT / "ops/bench/records/2026-11-30-operators.json").read_text())
    assert "\n".join(overview(record)) in (ROOT / "README.md").read_text()
