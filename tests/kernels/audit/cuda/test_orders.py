"""Another order of a sum off the tiles, in decode alone, is found by the declared checks of operators that normalise.

The arithmetic is a kernel's, in numpy on this machine's memory: a block's halves on halves, rounded to bfloat16 at the
end. Of the declared checks only those with rows of unit mean square run here.
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
from kernelbraid.kernels.operators.operator import UNIT_ROWS, load_operator
from tests.kernels.audit.cuda.conftest import trust

LIMITS = Limits(build_s=3, load_s=10, call_s=5, message_bytes=16 * MIB)
NORM = """
import numpy as np

ONE, EPSILON = np.float32(1), np.float32(1e-6)

def widened(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)

def rounded(values):
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & ONE.astype(np.uint32))) >> np.uint32(16)).astype("<u2")

def added_up(values):
    width = 1 << (values.shape[-1] - 1).bit_length()
    total = np.zeros((*values.shape[:-1], width), np.float32)
    total[..., : values.shape[-1]] = values
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width : 2 * width]
    return total[..., 0]

def norm(rows, weight, apart):
    squares, whole = rows * rows, rows.shape[-1] // 64 * 64
    if apart and 0 < whole < rows.shape[-1]:
        total = added_up(squares[..., :whole]) + added_up(squares[..., whole:])
    else:
        total = added_up(squares)
    inverse = ONE / np.sqrt(total / np.float32(rows.shape[-1]) + EPSILON)
    return rounded(np.ascontiguousarray(rows * inverse[..., None] * widened(weight)))
"""
RMS_NORM = """
def rms_norm_full_bf16(x, weight, y):
    y[...] = norm(widened(x), weight, False)

def rms_norm_decode_bf16(x, weight, y):
    y[...] = norm(widened(x), weight, APART)
"""
FUSED_ADD_RMS_NORM = """
def fused(x, residual, weight, y, residual_out, apart):
    residual_out[...] = rounded(widened(x) + widened(residual))
    y[...] = norm(widened(np.array(residual_out)), weight, apart)

def fused_add_rms_norm_full_bf16(*tensors):
    fused(*tensors, False)

def fused_add_rms_norm_decode_bf16(*tensors):
    fused(*tensors, APART)
"""
QK_NORM = """
def qk_norm_full_bf16(q, k, q_weight, k_weight, q_out, k_out, apart=False):
    q_out[...], k_out[...] = norm(widened(q), q_weight, apart), norm(widened(k), k_weight, apart)

def qk_norm_decode_bf16(*tensors):
    qk_norm_full_bf16(*tensors, APART)
"""


def audited(name: str, text: str, lock: Path) -> AuditOutcome:
    """A numpy candidate of one operator, by its checks of such rows alone; the smallest shape is timed."""
    operator = load_operator(name, "triton")
    checks = tuple(replace(check, styles=(UNIT_ROWS,)) for check in operator.checks if UNIT_ROWS in check.styles)
    smallest = next(workload for workload in operator.workloads if workload.name.startswith("decode_b64"))
    own = replace(operator, checks=checks, hidden=operator.hidden[:1], workloads=(smallest,))
    parts = (own, HostDevice(), CompilerFacts("python", "", (), ""), lambda *_: DeviceBuilder(trust), "host")
    with DeviceHarness(*parts, timing_lock=lock, limits=LIMITS) as harness:
        candidate = Candidate("i0001", {"kernel.py": NORM + text})
        return harness.audit(candidate, candidate, lambda: candidate)


@pytest.mark.parametrize(
    ("name", "text"), [("rms_norm", RMS_NORM), ("fused_add_rms_norm", FUSED_ADD_RMS_NORM), ("qk_norm", QK_NORM)]
)
def test_another_order_off_the_tiles_is_found(name: str, text: str, tmp_path: Path) -> None:
    outcome = audited(name, text.replace("APART", "True"), tmp_path / "lock")
    assert outcome.verdict is Correctness.DISAGREEMENT, outcome.evidence
    assert "style unit_rows" in outcome.evidence


def test_the_same_order_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MESSAGE_NS", 4_000_000)
    outcome = audited("qk_norm", QK_NORM.replace("APART", "False"), tmp_path / "lock")
    assert outcome.verdict is Correctness.VERIFIED, outcome.evidence
