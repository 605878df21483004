"""The hand-written source for Hopper: both paths compile without a GPU, in what a multiprocessor has."""

import subprocess
from pathlib import Path

import pytest

from kernelbraid.kernels.operators.operator import load_operator
from kernelbraid.kernels.operators.regions import FRAME, regions
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain
from kernelbraid.kernels.toolchains.triton import find_triton

OPERATOR = load_operator("attention", "triton")
SOURCE = (OPERATOR.folder / "triton" / "best" / "kernel.py").read_text()
TIMED = {"attention_full_bf16": "prefill_b1_1k", "attention_decode_bf16": "decode_b1_1k"}
LIMITS = {"registers": 168, "spill_bytes": 320, "shared_bytes": 232_448, "launches": 2}
"""Three warpgroups share 65,536 registers; decode's programs stand two by two on a multiprocessor. What is spilt is
what the promoted source spills: more asks for a look at its times."""


def test_the_source_for_hopper_has_the_operators_regions() -> None:
    assert set(regions({"kernel.py": SOURCE})) - {FRAME} == {region.name for region in OPERATOR.regions}


@pytest.mark.parametrize("symbol", TIMED)
def test_the_source_for_hopper_compiles_into_what_a_multiprocessor_has(symbol: str, tmp_path: Path) -> None:
    # given
    try:
        compiler = find_triton()
    except MissingToolchain as error:
        pytest.skip(str(error))
    (tmp_path / "kernel.py").write_text(SOURCE)
    dims = next(workload.dims for workload in OPERATOR.workloads if workload.name == TIMED[symbol])
    prepared = compiler.for_calls([(OPERATOR.entry(symbol), dims)])

    # when
    command = prepared.command(("kernel.py",))
    done = subprocess.run(
        command.arguments,
        cwd=tmp_path,
        env=prepared.environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=250,
    )

    # then
    facts = prepared.resources(tmp_path)
    assert facts, done.stdout
    assert {name: facts[name] for name, most in LIMITS.items() if facts[name] > most} == {}
