"""One real candidate through the whole audit."""

from pathlib import Path

from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.outcome import Candidate, Correctness
from kernelbraid.kernels.operators.operator import load_operator

SCALE = load_operator(str(Path(__file__).parent / "operators" / "scale"))


def test_a_sound_candidate_is_built_checked_and_timed() -> None:
    root = Candidate("i0000", SCALE.root_sources())
    with Harness(SCALE) as harness:
        outcome = harness.audit(root, root, lambda: root)
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert set(outcome.latencies_s) == {workload.name for workload in SCALE.workloads}
