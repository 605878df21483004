"""The audit's own benchmark: the extra work is real work, and its figures are complete."""

import pytest

from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.operators.operator import load_operator
from kernelbraid.ops.bench.audit import bench_audit, with_more_work


def test_more_work_is_put_into_every_row_and_nowhere_else_than_where_there_is_a_place() -> None:
    root = Candidate("root", load_operator("rms_norm").root_sources())
    slower = with_more_work(root, 25)
    assert slower.digest != root.digest
    assert sum(text.count("n.hidden * 25 / 1000") for text in slower.sources.values()) == 1
    with pytest.raises(ValueError, match="no place for more work"):
        with_more_work(Candidate("other", {"a.c": "int x;"}), 25)


@pytest.mark.timing
def test_identical_candidates_are_timed_and_counted() -> None:
    figures = bench_audit(identical=2, trials=0, operators=())
    assert isinstance(figures["identical"], dict)
    assert figures["identical"]["trials"] == 2
    assert figures["identical"]["promoted"] == 0
