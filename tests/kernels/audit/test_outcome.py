"""What is stored of an audit comes back as it was."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from kernelbraid.kernels.audit.outcome import LOG_LIMIT_BYTES, Blocks, Candidate, Correctness, capped_log
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator, Workload

ROOT = Candidate("i0000", {"a.c": "root"})
OTHER = Candidate("i0001", {"a.c": "other"})


@pytest.fixture
def full_size(scale: Operator) -> Operator:
    """Twelve workloads, as attention has."""
    return replace(scale, workloads=tuple(Workload(f"w{n}", "scale_full", {}, 1.0, 1.5) for n in range(12)))


def test_blocks_survive_their_bytes(full_size: Operator) -> None:
    harness = SimulatedHarness(full_size, 1, latency_model=lambda candidate, _: 1e-3 if candidate is ROOT else 9e-4)
    outcome = harness.audit(OTHER, ROOT, lambda: ROOT)
    for blocks in (outcome.screen, outcome.confirmation):
        assert blocks is not None
        assert Blocks.from_bytes(blocks.to_bytes()) == blocks
        assert set(blocks.orders.ravel().tolist()) == {0, 1}, "either arm opens some palindromes"
        assert len(zlib.compress(blocks.to_bytes())) < 10_000


@pytest.mark.parametrize("stored", [b"", b"\0\0\0\0", b"\2\0\0\0{}", b"abcdefgh"])
def test_other_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError):
        Blocks.from_bytes(stored)


def encoded(values: int = 0, **changed: object) -> bytes:
    """Blocks of one sample an arm with another header, and so many values of 1."""
    header = {"workloads": ["w"], "calls": [1], "paired": ["incumbent", "candidate"], "twins": 1, **changed}
    body = json.dumps({"shapes": {"incumbent": [1, 1, 1, 1], "candidate": [1, 1, 1, 1]}, **header}).encode()
    return len(body).to_bytes(4, "little") + body + b"\1" * values + bytes(3 * values)


def test_the_least_blocks_are_blocks() -> None:
    assert Blocks.from_bytes(encoded(4)).groups == 1


@pytest.mark.parametrize(
    "stored",
    [
        encoded(0, shapes=[[1, 1, 1, 1]], paired=[0]),
        encoded(4, paired=[]),
        encoded(4, paired=["incumbent", "nobody"]),
        encoded(4, workloads=[["w"]]),
        encoded(4, workloads=["w", "v"], calls=[1, 1]),
        encoded(4, calls=[0]),
        encoded(4, calls=["1"]),
        encoded(4, calls=[1, 1]),
        encoded(4, twins=0),
        encoded(4, twins=float("inf")),
        encoded(4, twins=1_000_000_000),
        encoded(0, shapes={"incumbent": [0, 1, 1, 1], "candidate": [0, 1, 1, 1]}),
        encoded(5, shapes={"incumbent": [1, 1, 1, 1], "candidate": [2, 1, 1, 1]}),
        (100_000).to_bytes(4, "little") + b"[" * 100_000,
    ],
)
def test_blocks_from_which_nothing_can_be_worked_out_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="these are no timing blocks"):
        Blocks.from_bytes(stored)


def test_every_process_has_a_sample_or_its_blocks_are_refused() -> None:
    # given four samples of two processes each, of which the incumbent's second one has none
    shape, counted = [1, 1, 1, 4], [1] * 4 + [1, 0, 0, 1]
    header = encoded(0, twins=2, shapes={"candidate": shape, "incumbent": shape})
    whole = header + bytes([1] * 10) + bytes(30)
    assert Blocks.from_bytes(whole).twins == 2
    # when, then: no error of identical arms would follow, and the least margin would stand in for it
    with pytest.raises(ValueError, match="incumbent has no sample"):
        Blocks.from_bytes(header + bytes([*counted, 1, 1]) + bytes(30))


def test_cut_blocks_are_refused(full_size: Operator) -> None:
    outcome = SimulatedHarness(full_size, seed=1).audit(OTHER, ROOT, lambda: ROOT)
    assert outcome.screen is not None
    with pytest.raises(ValueError):
        Blocks.from_bytes(outcome.screen.to_bytes()[:-4])


def test_a_latency_is_the_sample_less_the_floor_over_the_calls(full_size: Operator) -> None:
    blocks = SimulatedHarness(full_size, seed=2).audit(OTHER, ROOT, lambda: ROOT).screen
    assert blocks is not None
    doubled = replace(blocks, calls=(2,) * 12, floor_ns=np.full(blocks.groups, 100, np.uint32))
    expected = (blocks.samples_ns["candidate"][0, 0, 0, 0] - 100) / 2
    assert doubled.latencies_ns("candidate")[0, 0, 0, 0] == expected


def test_a_digest_depends_on_sources_and_flags_and_not_on_the_name() -> None:
    assert replace(ROOT, name="i0009").digest == ROOT.digest
    assert replace(ROOT, flags=("-ffast-math",)).digest != ROOT.digest
    assert OTHER.digest != ROOT.digest


def test_a_simulated_audit_repeats_exactly(full_size: Operator) -> None:
    audits = [SimulatedHarness(full_size, seed=3).audit(OTHER, ROOT, lambda: ROOT) for _ in range(2)]
    assert audits[0] == audits[1]
    assert SimulatedHarness(full_size, seed=4).audit(OTHER, ROOT, lambda: ROOT) != audits[0]


def test_a_simulated_failure_has_no_latencies(full_size: Operator) -> None:
    harness = SimulatedHarness(full_size, seed=1, failure=lambda candidate: Correctness.CRASHED)
    outcome = harness.audit(OTHER, ROOT, lambda: ROOT)
    assert outcome.verdict is Correctness.CRASHED
    assert outcome.latencies_s == {}


def test_a_long_log_keeps_both_ends() -> None:
    log = capped_log(b"first" + b"x" * 20_000, b"y" * 20_000 + b"last")
    assert len(log) <= LOG_LIMIT_BYTES
    assert log.startswith(b"first")
    assert log.endswith(b"last")
