"""Ratios and tables of the operator benchmark; its times need a GPU."""

import pytest

from kernelbraid.ops.bench.operators import measurable, summary, table

LINES = [
    {"environment": {"gpu": "a", "copied_bytes_per_s": 4e12}},
    {
        "operator": "rope",
        "cell": "one",
        "us": {"ours": 2.0, "eager": 8.0, "copy": 1.5},
        "bytes": 6_000_000,
        "failed": {},
    },
    {"operator": "rope", "cell": "two", "us": {"ours": 1.0, "eager": 1.0, "compiled": 2.0}, "failed": {}},
    {"operator": "linear", "cell": "three", "us": {"cublas": 1.0}, "failed": {"ours": "RuntimeError: no"}},
]


def test_an_arm_is_compared_over_the_cells_that_it_ran() -> None:
    # when
    result = summary(LINES)

    # then
    assert result["times_faster"]["rope"] == {"compiled": 2.0, "copy": 0.75, "eager": pytest.approx(2.0)}
    assert result["times_faster"]["linear"] == {}
    assert [line["cell"] for line in result["failed"]] == ["three"]


def test_the_table_has_a_row_for_each_cell_and_gaps_where_an_arm_did_not_run() -> None:
    # when
    lines = list(table(summary(LINES)))

    # then
    assert lines[0] == "| rope | ours | eager | copy | compiled | of copy |"
    assert lines[2] == "| one | 2.00 | 8.00 | 1.50 |  | 0.75 |"
    assert lines[3] == "| two | 1.00 | 1.00 |  | 2.00 |  |"
    assert lines[4] == "| over ours |  | 2.00 | 0.75 | 2.00 |  |"


def test_what_memory_bounds_is_a_share_of_a_large_copys_rate() -> None:
    assert summary(LINES)["of_copy"] == {"rope": {"one": 0.75}}


def test_every_operator_of_a_model_can_be_measured() -> None:
    assert {"attention", "linear", "rms_norm", "rope", "silu_and_mul", "topk_softmax"} <= set(measurable())
