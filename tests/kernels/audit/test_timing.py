"""What only a real clock can show: less work is a gain, and the same work is none."""

from collections.abc import Callable

import pytest

from kernelbraid.kernels.audit import statistics
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Performance
from kernelbraid.kernels.audit.statistics import Decision
from kernelbraid.kernels.operators.operator import Operator

ALPHA = 0.025
LIMIT_RATIO = 1.2


def repeated(root: Candidate, times: int) -> Candidate:
    """The root, each of whose rows is computed so often."""
    ((file, text),) = root.sources.items()
    loop = "for (int64_t i"
    assert text.count(loop) == 1
    again = f"for (volatile int again = 0; again < {times}; again++)\n        {loop}"
    return Candidate(f"{times} times", {file: text.replace(loop, again)})


@pytest.fixture
def decided(harness: Harness, scale: Operator) -> Callable[[Candidate, Candidate], Decision | None]:
    """What a real session decides of a candidate against an incumbent that is the root too; None when screened out."""
    weights = {workload.name: workload.weight for workload in scale.workloads}

    def decide(candidate: Candidate, incumbent: Candidate) -> Decision | None:
        timing = harness.time(candidate, incumbent, lambda: incumbent)
        assert timing.verdict is Correctness.VERIFIED, timing.evidence
        if timing.confirmation is None:
            return None
        limits = dict.fromkeys(weights, LIMIT_RATIO)
        return statistics.decide(timing.confirmation, weights, limits, ALPHA, seed=0)

    return decide


@pytest.mark.timing
def test_an_eighth_of_the_work_is_promotable(
    decided: Callable[[Candidate, Candidate], Decision | None], root: Candidate
) -> None:
    """Unless the machine is so noisy that identical artifacts differ by more than any margin allows."""
    decision = decided(root, repeated(root, 8))
    assert decision is not None
    noisy = decision.delta_ratio > statistics.MOST_DELTA_RATIO
    assert decision.ratio < 0.7
    assert decision.performance is (Performance.UNDECIDED if noisy else Performance.PROMOTABLE)


@pytest.mark.timing
def test_the_same_work_and_more_of_it_are_not(
    decided: Callable[[Candidate, Candidate], Decision | None], root: Candidate
) -> None:
    for slower in (root, repeated(root, 2)):
        decision = decided(slower, root)
        assert decision is None or decision.performance is not Performance.PROMOTABLE
