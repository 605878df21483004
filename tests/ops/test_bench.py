"""The bench drives the real engine, and prints exactly the promised keys."""

from kernelbraid.ops.bench.engine import bench_engine
from kernelbraid.ops.bench.long_log import bench_long_log


def test_a_short_bench_has_every_figure() -> None:
    figures = bench_engine(20)

    assert list(figures) == [
        "iterations",
        "overhead_ms",
        "store_bytes",
        "events",
        "rebuild_s",
        "rebuild_events_per_s",
        "fork_ms",
        "peak_rss_bytes",
    ]
    assert figures["iterations"] == 20
    assert isinstance(figures["events"], int)
    assert figures["events"] >= 5 * 20
    assert set(figures["overhead_ms"]) == {"first_100_median", "last_100_median"}  # type: ignore[call-overload]
    assert set(figures["fork_ms"]) == {"small", "large"}  # type: ignore[call-overload]


def test_a_long_log_is_a_log_that_reads_back() -> None:
    figures = bench_long_log(2000)

    assert 2000 <= figures["events"] < 2010  # type: ignore[operator]
    assert len(str(figures["digest"])) == 64
