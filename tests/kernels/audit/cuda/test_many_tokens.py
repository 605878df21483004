"""A router that adds up in another order from 16,384 tokens on is found by that number in its source.

The case is a real one: no declared check has so many tokens. The arithmetic is in numpy on this machine's memory.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.audit.cuda import clock
from kernelbraid.kernels.audit.cuda.build import CompilerFacts, DeviceBuilder
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.host import HostDevice
from kernelbraid.kernels.audit.limits import MIB, Limits
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate, Correctness
from kernelbraid.kernels.operators.operator import load_operator
from tests.kernels.audit.cuda.conftest import trust

LIMITS = Limits(build_s=3, load_s=10, call_s=5, message_bytes=16 * MIB)
ROUTER = """
import numpy as np

def added_up(values):
    width = 1 << (values.shape[1] - 1).bit_length()
    total = np.zeros((len(values), width), np.float32)
    total[:, : values.shape[1]] = values
    while width > 1:
        width //= 2
        total = total[:, :width] + total[:, width : 2 * width]
    return total[:, 0]

def route(logits, weights, ids, many):
    values = (logits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    (tokens, experts), (_, k) = values.shape, ids.shape
    chosen = np.argsort(-(values + np.float32(0)), axis=1, kind="stable")[:, :k]
    raised = np.exp(values - values.max(axis=1, keepdims=True))
    if tokens >= many and experts % 16:
        total = added_up(raised[:, :5]) + added_up(raised[:, 5:])
    else:
        total = added_up(raised)
    weights[...] = np.take_along_axis(raised, chosen, 1) / total[:, None]
    ids[...] = chosen

def topk_probabilities_full_bf16(logits, weights, ids):
    route(logits, weights, ids, MANY)

def topk_probabilities_decode_bf16(logits, weights, ids):
    route(logits, weights, ids, 1 << 30)
"""


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Audited":
    """By the shapes at its source's sizes and one small check."""
    monkeypatch.setattr(clock, "MESSAGE_NS", 4_000_000)
    return Audited(tmp_path / "lock")


class Audited:
    """The router of one source, on this machine's memory."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock

    def __call__(self, text: str) -> AuditOutcome:
        declared = load_operator("topk_softmax", "triton")
        entries = tuple(entry for entry in declared.entries if entry.symbol.startswith("topk_probabilities"))
        ends = {entry.symbol for entry in entries}
        own = replace(
            declared,
            entries=entries,
            checks=tuple(check for check in declared.checks if check.full in ends)[:1],
            hidden=(),
            beyond=tuple(beyond for beyond in declared.beyond if beyond.full in ends),
            workloads=(replace(declared.workload("decode_t64_e128_k8"), entry="topk_probabilities_decode_bf16"),),
        )
        parts = (own, HostDevice(), CompilerFacts("python", "", (), ""), lambda *_: DeviceBuilder(trust), "host")
        with DeviceHarness(*parts, timing_lock=self._lock, limits=LIMITS) as harness:
            candidate = Candidate("i0001", {"kernel.py": text})
            return harness.audit(candidate, candidate, lambda: candidate)


def test_another_order_from_so_many_tokens_on_is_found(audited: Audited) -> None:
    outcome = audited(ROUTER.replace("MANY", "16 * 1024"))
    assert outcome.verdict is Correctness.DISAGREEMENT, outcome.evidence
    tokens = int(outcome.evidence.partition("tokens=")[2].partition(",")[0])
    assert tokens > 16384


def test_a_router_that_dispatches_rightly_is_verified(audited: Audited) -> None:
    outcome = audited(ROUTER.replace("MANY", "16 * 1024").replace("tokens >= many and experts % 16", "False"))
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
    assert "topk_probabilities_full_bf16 (tokens x experts x k)" in outcome.evidence
