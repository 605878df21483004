"""The machine's ceilings: measured once, and held against what a candidate claims to have done."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from kernelbraid.kernels.audit import physics
from kernelbraid.kernels.audit.clock import drowned, joined
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.native import native_programs
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, Blocks
from kernelbraid.kernels.operators.operator import Operator, load_operator
from kernelbraid.kernels.toolchains.cc import find_compiler

FOUND = {"bandwidth_bytes_per_s": 1e11, "flop_per_s": 1e11, "call_floor_s": 1e-9}
CALLS = 4


def blocks(operator: Operator, message_ns: int, floor_ns: int = 1000) -> Blocks:
    """One block in which every message of both arms took so long."""
    names = tuple(workload.name for workload in operator.workloads)
    samples = {arm: np.full((1, 1, len(names), 2), message_ns, np.uint32) for arm in (INCUMBENT, CANDIDATE)}
    return Blocks(
        workloads=names,
        calls=(CALLS,) * len(names),
        paired=(INCUMBENT, CANDIDATE),
        samples_ns=MappingProxyType(samples),
        floor_ns=np.array([floor_ns], np.uint32),
        orders=np.zeros((1, 1, len(names)), np.uint32),
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user's."""
    monkeypatch.setattr(physics, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_a_core_moves_computes_and_calls_at_rates_that_cores_have(cache: Path) -> None:
    found = physics.ceilings(native_programs(find_compiler()).ceilings)
    assert 1e10 < found["bandwidth_bytes_per_s"] < 1e13
    assert 1e9 < found["flop_per_s"] < 1e13
    assert 1e-11 < found["call_floor_s"] < 1e-6


def test_a_second_harness_takes_the_first_ones_figures(cache: Path) -> None:
    program = native_programs(find_compiler()).ceilings
    assert physics.ceilings(program) == physics.ceilings(program)
    assert len(list((cache / "physics").iterdir())) == 1


@pytest.mark.parametrize(
    "rubbish", ["", "{}", '{"bandwidth_bytes_per_s": 0, "flop_per_s": 1, "call_floor_s": 1}', "[1]"]
)
def test_a_file_that_says_nothing_of_use_is_measured_anew(cache: Path, rubbish: str) -> None:
    program = native_programs(find_compiler()).ceilings
    physics.ceilings(program)
    (kept,) = (cache / "physics").iterdir()
    kept.write_text(rubbish)
    assert physics.ceilings(program)["flop_per_s"] > 1e9


def moved_bytes(operator: Operator) -> int:
    rows, width = (operator.workloads[0].dims[name] for name in ("rows", "width"))
    return 4 * (2 * rows * width + rows + width)


def test_faster_than_its_bytes_can_be_moved_is_impossible(scale: Operator) -> None:
    least_ns = CALLS * 1e9 * moved_bytes(scale) / (physics.SLACK * FOUND["bandwidth_bytes_per_s"])
    assert physics.impossible(scale, blocks(scale, round(1.1 * least_ns)), CANDIDATE, FOUND) is None
    evidence = physics.impossible(scale, blocks(scale, round(0.9 * least_ns)), CANDIDATE, FOUND)
    assert evidence is not None
    assert f"to move its {moved_bytes(scale)} bytes takes at least" in evidence


def test_what_is_gathered_bounds_no_time_as_a_call_may_read_little_of_it() -> None:
    # given 64 rows of a table of 16,384
    table = load_operator("embedding", "triton")
    rows = next(each for each in table.workloads if each.name == "decode_b64_h4096")

    # when
    due_s = physics.least_s(table, rows, FOUND)

    # then
    assert [what for what in due_s if "bytes" in what] == [f"to move its {64 * 8 + 64 * 4096 * 2} bytes"]


def test_faster_than_its_declared_operations_can_be_done_is_impossible(scale: Operator) -> None:
    first, *others = scale.workloads
    declared = replace(scale, workloads=(replace(first, operations=1e9), *others))
    assert "1000000000 operations" in str(physics.impossible(declared, blocks(scale, 10_000_000), CANDIDATE, FOUND))
    assert physics.impossible(scale, blocks(scale, 10_000_000), CANDIDATE, FOUND) is None


def test_no_slower_than_doing_nothing_is_impossible(scale: Operator) -> None:
    evidence = physics.impossible(scale, blocks(scale, 1_000_000, floor_ns=1_000_000), CANDIDATE, FOUND)
    assert "one that does nothing 1000000" in str(evidence)


def test_one_disturbed_floor_makes_nothing_impossible(scale: Operator) -> None:
    # given two groups, and a neighbour that took the core from the empty candidate in one of them
    once = blocks(scale, 300_000)
    disturbed = joined(once, replace(once, floor_ns=np.array([400_000], np.uint32)))
    assert disturbed.floor_ns.max() > 300_000
    # when, then
    assert physics.impossible(scale, disturbed, CANDIDATE, FOUND) is None


def test_a_floor_that_an_arm_known_to_be_sound_does_not_reach_is_the_machines_fault(scale: Operator) -> None:
    within, above = blocks(scale, 300_000, floor_ns=400_000), blocks(scale, 500_000, floor_ns=400_000)
    candidate_alone = replace(above, samples_ns={**above.samples_ns, CANDIDATE: within.samples_ns[CANDIDATE]})
    assert "incumbent on" in str(drowned(within))
    assert drowned(above) is None
    assert drowned(candidate_alone) is None
    assert physics.impossible(scale, candidate_alone, CANDIDATE, FOUND) is not None


def test_the_harness_records_what_it_measured(harness: Harness) -> None:
    found: Mapping[str, float] = harness.environment().physics
    assert set(found) == set(physics.NAMES)
