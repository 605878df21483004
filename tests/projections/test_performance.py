"""The table of root against best, and the baselines."""

import pytest

from kernelbraid.projections.performance import (
    PERFORMANCE,
    Agreement,
    PerformanceTable,
    latencies_s,
    performance_table,
)
from kernelbraid.projections.projection import rebuild
from tests.projections.factory import ROOT_LATENCIES_S, Story, golden_story


def table(story: Story) -> PerformanceTable | None:
    """The performance table of a story's log."""
    return performance_table(story.state, rebuild(story.log, PERFORMANCE)[PERFORMANCE])


def test_every_workload_has_root_best_ratio_and_agreement() -> None:
    view = table(golden_story())

    assert view is not None
    assert view.best == "i0006"
    assert [(row.workload, row.path) for row in view.rows] == [("prefill_512", "full"), ("decode_512", "decode")]
    for row in view.rows:
        assert row.root_s == ROOT_LATENCIES_S[row.workload]
        assert row.best_s == pytest.approx(row.root_s / 3.3)
        assert row.ratio == pytest.approx(3.3)
    assert view.ratio == 3.3
    assert view.agreement == view.root_agreement == Agreement(cases=128, held=True)


def test_baselines_are_set_against_root_and_best() -> None:
    view = table(golden_story())

    assert view is not None
    assert [(row.name, row.root_ratio) for row in view.baselines] == [("fast-math", 2.0), ("eight sums", 3.0)]
    assert [row.best_ratio for row in view.baselines] == [pytest.approx(1.65), pytest.approx(1.1)]


def test_before_the_root_qualifies_there_is_no_table() -> None:
    assert table(Story().open()) is None


def test_at_the_start_the_root_is_the_best() -> None:
    view = table(Story().begin())

    assert view is not None
    assert view.best == "i0000"
    assert [row.ratio for row in view.rows] == [1.0, 1.0]


def test_a_fork_elsewhere_has_no_table_until_its_root_qualifies_there() -> None:
    story = Story().begin()
    story.offspring("simd_width", 2.0)

    story.fork("child", machine="another")

    assert table(story) is None


def test_latencies_by_implementation_and_workload() -> None:
    story = Story().begin()
    story.offspring("simd_width", 2.0)

    assert latencies_s(story.state)["i0001"]["prefill_512"] == 0.002
