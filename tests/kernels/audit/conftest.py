"""What the audit's tests share: a tiny operator, its root, and a harness in every box that works here."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.limits import MIB, Limits
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Infrastructure
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind, candidates
from kernelbraid.kernels.operators.operator import Operator, load_operator

LIMITS = Limits(build_s=10, load_s=5, call_s=3.0, address_bytes=256 * MIB, input_bytes=16 * MIB, output_bytes=16 * MIB)


@pytest.fixture(scope="session")
def scale() -> Operator:
    """The test material."""
    return load_operator(str(Path(__file__).parent / "operators" / "scale"))


@pytest.fixture(scope="session")
def root(scale: Operator) -> Candidate:
    """Its root implementation."""
    return Candidate("i0000", scale.root_sources())


@pytest.fixture(scope="session")
def lock_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests of verdicts need not wait for the machine's clock."""
    return tmp_path_factory.mktemp("lock") / "timing.lock"


@lru_cache(maxsize=1)
def working_boxes() -> tuple[SandboxKind, ...]:
    """Boxes that this machine offers."""
    operator = load_operator(str(Path(__file__).parent / "operators" / "scale"))
    found, nothing = [], Candidate("nothing", {})
    for box in candidates():
        with Harness(operator, sandbox=box) as harness:
            outcome = harness.time(nothing, nothing, lambda: nothing)
            if not isinstance(outcome.verdict, Infrastructure):
                found.append(box.kind)
    return tuple(found)


@pytest.fixture(scope="session", params=list(SandboxKind)[:2])
def harness(request: pytest.FixtureRequest, scale: Operator, lock_path: Path) -> Iterator[Harness]:
    """One harness per box; a box that does not work here is skipped."""
    if request.param not in working_boxes():
        pytest.skip(f"{request.param.value} does not work on this machine")
    with Harness(scale, sandbox=Sandbox(request.param), timing_lock=lock_path, limits=LIMITS) as harness:
        yield harness


@pytest.fixture(scope="session")
def audited(harness: Harness, root: Candidate) -> Callable[[Candidate], AuditOutcome]:
    """Audit a candidate against the root."""
    return lambda candidate: harness.audit(candidate, root, lambda: root)
