"""Operators whose results are whole numbers: the audit takes them exactly as the reference has them, or not at all."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kernelbraid.kernels.audit.cuda import clock
from kernelbraid.kernels.audit.cuda.build import CompilerFacts, DeviceBuilder
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.host import HostDevice
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Correctness
from kernelbraid.kernels.operators.operator import load_operator
from tests.kernels.audit.cuda.conftest import LIMITS, trust

Audit = Callable[[str], AuditOutcome]
ALIGN = """
import numpy as np

def moe_align_full_i32(ids, order, block_expert, ends):
    blocks, block = order.shape
    slots, counts = ids.reshape(-1), np.bincount(ids.reshape(-1), minlength=len(ends))
    used = -(-counts // block)
    starts = (np.cumsum(used) - used) * block
    order[...], block_expert[...], ends[...] = slots.size, -1, np.cumsum(used) * block
    block_expert[: used.sum()] = np.repeat(np.arange(len(ends)), used)
    at = starts.copy()
    for slot in SLOTS:
        order.reshape(-1)[at[slots[slot]]] = slot
        at[slots[slot]] += 1

def moe_align_decode_i32(ids, order, block_expert, ends):
    moe_align_full_i32(ids, order, block_expert, ends)
"""
IN_ORDER, BACKWARDS = "range(slots.size)", "range(slots.size)[::-1]"


def aligned(slots: str = IN_ORDER, after: str = "") -> str:
    """A kernel.py that walks over the slots so, and whose decode path does something more."""
    return ALIGN.replace("SLOTS", slots) + after


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audit]:
    """The declared operator on this machine's memory, timed at two small shapes."""
    operator = load_operator("moe_align", "triton")
    dims = {"tokens": 12, "k": 2, "experts": 5, "blocks": 12, "block": 4}
    small = tuple(replace(workload, dims=dims, name=workload.entry) for workload in operator.workloads[::2])
    checks = tuple(check for check in operator.checks if check.dims["tokens"] < 70)
    hidden = operator.hidden[:1]
    parts = (replace(operator, workloads=small, checks=checks, hidden=hidden), HostDevice())
    builder = (CompilerFacts("python", "", (), ""), lambda *_: DeviceBuilder(trust), "host")
    lock = tmp_path_factory.mktemp("lock") / "device.lock"
    with (
        pytest.MonkeyPatch.context() as patch,
        DeviceHarness(*parts, *builder, timing_lock=lock, limits=LIMITS) as harness,
    ):
        patch.setattr(clock, "MESSAGE_NS", 4_000_000)
        root = Candidate("i0000", {"kernel.py": aligned()})
        yield lambda text: harness.audit(Candidate("i0001", {"kernel.py": text}), root, lambda: root)


def test_exact_results_are_verified(audit: Audit) -> None:
    outcome = audit(aligned())
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert {check.name for check in outcome.checks} >= {"agreement", "accuracy", "outputs_written", "timed_outputs"}


def test_the_right_slots_in_another_order_are_not(audit: Audit) -> None:
    outcome = audit(aligned(BACKWARDS))
    assert outcome.verdict is Correctness.INACCURATE, outcome.evidence
    assert ": order: element" in outcome.evidence


def test_one_place_off_by_one_in_decode_is_seen(audit: Audit) -> None:
    more = "    ends[-1:] += 1\n"
    outcome = audit(aligned(after=more))
    assert outcome.verdict is Correctness.DISAGREEMENT, outcome.evidence
    assert "against ends" in outcome.evidence


def test_what_no_expert_needs_must_be_written_too(audit: Audit) -> None:
    unwritten = aligned().replace("order[...], block_expert[...], ends[...] = slots.size, -1,", "ends[...] =")
    outcome = audit(unwritten)
    assert outcome.verdict is Correctness.OUTPUT_NOT_WRITTEN, outcome.evidence
