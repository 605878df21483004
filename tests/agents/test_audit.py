"""An audit on its own from Python: what it takes as sources, and what it reports."""

from pathlib import Path

import pytest

from kernelbraid.agents.audit import SourcesMissing, audit, sources_at
from kernelbraid.events import values
from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.values import Performance
from kernelbraid.kernels.audit import outcome
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Infrastructure
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, OperatorError, OperatorMissing, Workload

TOY = "tests/campaign/operators/toy"


def by_length(operator: Operator, target: str) -> SimulatedHarness:
    """A candidate takes as many microseconds as its sources have signs."""

    def latency(candidate: Candidate, _: Workload) -> float:
        return 1e-6 * sum(map(len, candidate.sources.values()))

    return SimulatedHarness(operator, 0, latency)


ROOT_SIGNS = len(Path(TOY, "cpu", "root", "toy.c").read_text())


def test_texts_by_name_are_judged_against_the_root() -> None:
    # given sources half as long as the root, and twice as long
    shorter, longer = ({"k.c": "x" * round(ROOT_SIGNS * part)} for part in (0.5, 2))
    faster, slower = audit(TOY, shorter, harness=by_length), audit(TOY, longer, harness=by_length)
    # then both are verified, and their ratios are what was timed
    assert (faster.verified, faster.performance) == (True, Performance.PROMOTABLE)
    assert (slower.verified, slower.performance) == (True, Performance.NO_GAIN)
    assert faster.speedup_ratio == pytest.approx(2, rel=0.02)
    assert slower.speedup_ratio == pytest.approx(0.5, rel=0.02)
    assert all(ratio == pytest.approx(0.5, rel=0.02) for ratio in faster.ratios.values())
    assert all(row.within_limit for row in faster.workloads)
    assert not any(row.within_limit for row in slower.workloads)


def test_it_is_the_first_confirmation_and_can_be_recomputed() -> None:
    report = audit(TOY, {"k.c": "x"}, harness=by_length)
    assert report.measurement is not None
    assert (report.measurement.confirmation, report.measurement.alpha) == (1, 0.025)
    assert report.outcome.confirmation is not None
    again = audit(TOY, {"k.c": "x"}, harness=by_length)
    assert again == report


def test_what_is_not_verified_has_no_figures() -> None:
    def factory(operator: Operator, target: str) -> SimulatedHarness:
        return SimulatedHarness(operator, 0, failure=lambda _: Correctness.HUNG)

    report = audit(TOY, {"k.c": "x"}, harness=factory)
    assert report.verdict is Correctness.HUNG
    assert (report.performance, report.measurement, report.speedup_ratio) == (None, None, None)
    assert report.workloads == ()
    assert report.ratios == {}


def test_beside_another_incumbent_the_root_is_timed_only_in_a_confirmation() -> None:
    root = Path(TOY, "cpu", "root")
    faster = audit(TOY, {"k.c": "x"}, incumbent=root, harness=by_length)
    slower = audit(TOY, {"k.c": "x" * 2 * ROOT_SIGNS}, incumbent=root, harness=by_length)
    assert faster.speedup_ratio is not None
    assert slower.speedup_ratio is None
    assert slower.measurement is not None
    assert slower.measurement.incumbent == str(root)


# --- what counts as sources ----------------------------------------------------------------------------------------


def test_a_folder_gives_the_target_s_sources_alone(tmp_path: Path) -> None:
    for name in ("a.c", "b.h", "report.md", "notes.txt", ".hidden.swp"):
        (tmp_path / name).write_text(name)
    (tmp_path / "old.c").mkdir()
    assert sources_at(tmp_path, "cpu") == {"a.c": "a.c", "b.h": "b.h"}
    assert sources_at(str(tmp_path / "a.c"), "cpu") == {"a.c": "a.c"}


def test_what_is_not_there_or_no_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourcesMissing, match="no file or folder"):
        sources_at(tmp_path / "none", "cpu")
    with pytest.raises(SourcesMissing, match=r"holds no source of target cpu: files ending in \.c"):
        sources_at(tmp_path, "cpu")
    (tmp_path / "a.c").write_bytes(b"\xff\xfe")
    with pytest.raises(OperatorError, match="as a source"):
        sources_at(tmp_path, "cpu")


def test_an_operator_or_target_that_is_none_is_refused() -> None:
    with pytest.raises(OperatorMissing):
        audit("no_such_operator", {"k.c": ""}, harness=by_length)
    with pytest.raises((KernelbraidError, OperatorError)):
        audit(TOY, {"k.c": ""}, target="abacus", harness=by_length)


def test_the_log_knows_every_verdict_that_the_harness_has() -> None:
    for ours, theirs in ((values.Correctness, Correctness), (values.Infrastructure, Infrastructure)):
        assert {item.value for item in ours} == {item.value for item in theirs}
    assert {item.value for item in Performance} == {item.value for item in outcome.Performance}
