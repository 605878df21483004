"""Sources that never get as far as a call. Candidates that misbehave when called stand in tests/exploits."""

from collections.abc import Callable

import pytest

from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Correctness

V = Correctness


def test_a_missing_symbol_is_a_load_failure(audited: Callable[[Candidate], AuditOutcome]) -> None:
    outcome = audited(Candidate("lonely", {"scale.c": "void scale_full(void) {}\n"}))
    assert outcome.verdict is V.LOAD_FAILED
    assert "no symbol scale_decode" in outcome.evidence


@pytest.mark.parametrize("name", ["../escape.c", "-include.c", "/tmp/x.c", "a b.c", ""])
def test_a_file_name_is_neither_path_nor_flag(name: str, audited: Callable[[Candidate], AuditOutcome]) -> None:
    outcome = audited(Candidate("named", {name: "int x;"}))
    assert outcome.verdict is V.BUILD_FAILED
    assert "plain file name" in outcome.evidence
