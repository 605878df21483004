"""What only a real clock can show: less work is a gain, and the same work is none."""

from collections.abc import Callable

import pytest

from kernelbraid.kernels.audit import statistics
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.outcome import Candidate, Correctness, Performance
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
def decided(harness: Harness, scale: Operator) -> Callable[[Candidate, Candidate], Performance]:
    """What a real session decides of a candidate against an incumbent that is the root too."""
    weights = {workload.name: workload.weight for workload in scale.workloads}

    def decide(candidate: Candidate, incumbent: Candidate) -> Performance:
        timing = harness.time(candidate, incumbent, lambda: incumbent)
        assert timing.verdict is Correctness.VERIFIED, timing.evidence
        if timing.confirmation is None:
            return Performance.NO_GAIN
        limits = dict.fromkeys(weights, LIMIT_RATIO)
        return statistics.decide(timing.confirmation, weights, limits, ALPHA, seed=0).performance

    return decide


@pytest.mark.timing
def test_an_eighth_of_the_work_is_promotable(
    decided: Callable[[Candidate, Candidate], Performance], root: Candidate
) -> None:
    assert decided(root, repeated(root, 8)) is Performance.PROMOTABLE


@pytest.mark.timing
def test_the_same_work_and_more_of_it_are_not(
    decided: Callable[[Candidate, Candidate], Performance], root: Candidate
) -> None:
    assert decided(root, root) is not Performance.PROMOTABLE
    assert decided(repeated(root, 2), root) is Performance.NO_GAIN
