"""The checks can fail: one wrong bit in any entry is caught, and no tolerance takes an answer that needs no work."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.audit import checks, twins
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Correctness
from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import Operator, Tolerance, load_operator, operator_names, operator_targets

DECLARED = [(name, target) for name in operator_names() for target in operator_targets(name)]
ON_THE_CPU = [name for name, target in DECLARED if target == "cpu"]


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_one_wrong_bit_in_any_entry_is_caught(name: str, lock_path: Path) -> None:
    """Given each entry's broken twin, when it is audited, then the checks name a failure of its results."""
    operator = load_operator(name)
    root = Candidate("i0000", operator.root_sources())
    with Harness(operator, timing_lock=lock_path) as harness:
        for entry in operator.entries:
            outcome = harness.audit(twins.broken_twin(root, [entry]), root, lambda: root)
            assert outcome.verdict in (Correctness.DISAGREEMENT, Correctness.INACCURATE), (entry.symbol, outcome)


@pytest.mark.parametrize(("name", "target"), DECLARED)
def test_no_tolerance_takes_zeros_means_inputs_or_another_answer(name: str, target: str) -> None:
    operator = load_operator(name, target)
    assert twins.accepted_forgeries(operator, load_reference(operator), seed=1) == []


def test_a_tolerance_that_takes_zeros_is_named(scale: Operator) -> None:
    lax = replace(scale, tolerances={"float32": Tolerance(max_ratio=1.0, rms_ratio=1.0)})
    found = twins.accepted_forgeries(lax, load_reference(scale), seed=1)
    assert "scale_full: zeros passes for y" in found


def test_a_root_does_not_qualify_under_a_tolerance_that_takes_zeros(scale: Operator, lock_path: Path) -> None:
    lax = replace(scale, tolerances={"float32": Tolerance(max_ratio=1.0, rms_ratio=1.0)})
    root = Candidate("i0000", scale.root_sources())
    with Harness(lax, timing_lock=lock_path) as harness:
        qualification = harness.qualify(root, [])
    assert qualification.root.verdict is Correctness.INACCURATE
    assert "answers that need no work" in qualification.root.evidence


def test_a_root_does_not_qualify_where_its_broken_twin_is_verified(
    harness: Harness, root: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given checks that compare nothing, when the root is qualified, then its twin gives them away."""
    monkeypatch.setattr(checks, "first_difference", lambda found, expected: None)
    qualification = harness.qualify(root, [])
    assert qualification.root.verdict is Correctness.WRONG_ARTIFACT
    assert "the checks cannot fail" in qualification.root.evidence


def test_a_sound_root_tells_that_its_twin_was_caught(harness: Harness, root: Candidate) -> None:
    qualification = harness.qualify(root, [])
    assert qualification.root.verdict is Correctness.VERIFIED, qualification.root.evidence
    assert "broken_twin" in {check.name for check in qualification.root.checks}


def test_only_one_bit_of_the_twins_last_element_differs(
    audited: Callable[[Candidate], AuditOutcome], scale: Operator, root: Candidate
) -> None:
    outcome = audited(twins.broken_twin(root, [scale.entry("scale_full")]))
    assert outcome.verdict is Correctness.DISAGREEMENT
    found, expected = (int(bits, 16) for bits in re.findall(r"0x[0-9a-f]{8}", outcome.evidence))
    assert np.bitwise_count(found ^ expected) == 1
