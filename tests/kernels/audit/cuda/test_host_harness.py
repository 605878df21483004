"""The whole audit of Python candidates, on this machine's memory: every verdict that needs no GPU to come about."""

from collections.abc import Callable

from kernelbraid.kernels.audit.outcome import AuditOutcome, Correctness
from tests.kernels.audit.cuda.conftest import HOST_ROOT


def test_root_is_verified(host_audit: Callable[[str], AuditOutcome]) -> None:
    outcome = host_audit(HOST_ROOT)
    assert outcome.verdict is Correctness.VERIFIED, outcome
