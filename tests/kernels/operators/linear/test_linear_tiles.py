"""The CUDA kernel of linear: which tiles are refused, how calls are laid over blocks, and that every tile compiles."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.kernels.runtime.linear_choice import by_rule, table
from kernelbraid.kernels.runtime.linear_tiles import (
    ARCHITECTURE,
    MOST_SHARED_BYTES,
    Tile,
    TileError,
    layout,
    source,
    stages_that_fit,
)
from kernelbraid.kernels.toolchains.nvrtc import CompilationFailed, find_nvrtc
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain

SPLIT = Tile(1, 16, 10, swapped=True, split=4)
SUMS = Tile(2, 192, 5, swapped=False, shared=2, sums=True)
CHAIN = Tile(2, 128, 4, swapped=False)
MULTIPROCESSORS = 132


def shipped_tiles() -> list[Tile]:
    """Every tile that the table or a rule may ask for, each once."""
    chosen = [*table().shapes.values(), by_rule(1536, 8960, 35), by_rule(1536, 8960, 14), by_rule(4096, 4096, 0)]
    return list(dict.fromkeys(way.tile for each in chosen for way in each.ways if way.tile is not None))


@pytest.mark.parametrize(
    ("tile", "changes", "rule"),
    [
        (CHAIN, {"warpgroups": 3}, "warpgroups"),
        (CHAIN, {"columns": 12}, "columns"),
        (CHAIN, {"columns": 264}, "columns"),
        (CHAIN, {"stages": 1}, "stages"),
        (SPLIT, {"split": 17}, "split"),
        (SPLIT, {"shared": 2}, "either split or share"),
        (SPLIT, {"sums": True}, "either split or share"),
        (SUMS, {"columns": 24}, "groups of 8 rows"),
    ],
)
def test_a_tile_that_cannot_be_compiled_is_refused(tile: Tile, changes: dict[str, int], rule: str) -> None:
    with pytest.raises(TileError, match=rule):
        replace(tile, **changes)


def test_a_split_call_has_a_block_for_each_chunk_of_each_tile() -> None:
    # given 8960 products in 4 chunks of 35 steps, 24 tiles of 64 outs
    plan = layout(SPLIT, 16, 1536, 8960, 35, MULTIPROCESSORS)

    # then
    assert (plan.blocks, plan.steps, plan.chunk_steps, plan.sums_at) == (24 * 4, 140, 35, 0)
    assert (plan.first_tiles, plan.second_tiles) == (24, 1)


def test_a_block_that_takes_several_chunks_keeps_their_sums_beside_the_stages() -> None:
    # given 7 chunks for 4 blocks: two each
    plan = layout(SPLIT, 16, 1536, 8960, 20, MULTIPROCESSORS)

    # then
    assert plan.sums_at == SPLIT.stages_bytes
    assert plan.shared_bytes > SPLIT.stages_bytes + 2 * 16 * 64 * 4


def test_blocks_that_share_come_in_whole_clusters_even_where_rows_do_not() -> None:
    # given three tiles of 128 rows
    plan = layout(SUMS, 300, 1536, 8960, 35, MULTIPROCESSORS)

    # then a fourth, which writes nothing, makes a pair
    assert plan.first_tiles == 4
    assert plan.blocks % SUMS.shared == 0


def test_a_large_call_has_no_more_blocks_than_the_device_holds() -> None:
    assert layout(SUMS, 8192, 1536, 8960, 35, MULTIPROCESSORS).blocks == MULTIPROCESSORS


def test_chunks_are_refused_by_a_tile_that_would_not_add_them() -> None:
    with pytest.raises(TileError, match="splits or sums"):
        layout(CHAIN, 64, 1536, 8960, 35, MULTIPROCESSORS)


def test_one_chunk_as_long_as_the_sum_needs_neither() -> None:
    assert layout(CHAIN, 64, 1536, 8960, 0, MULTIPROCESSORS).chunk_steps == 140
    assert layout(CHAIN, 64, 1536, 64, 35, MULTIPROCESSORS).chunk_steps == 1


def test_more_shared_memory_than_a_block_has_is_refused() -> None:
    with pytest.raises(TileError, match="shared memory"):
        layout(Tile(2, 256, 5, swapped=False), 64, 4096, 4096, 0, MULTIPROCESSORS)


@given(st.integers(1, 2), st.integers(1, 32), st.booleans(), st.integers(20_000, MOST_SHARED_BYTES))
def test_stages_fill_the_room_they_are_given_and_no_more(
    warpgroups: int, eighths: int, swapped: bool, room_bytes: int
) -> None:
    try:
        tile = stages_that_fit(Tile(warpgroups, 8 * eighths, 2, swapped), room_bytes)
    except TileError:
        return
    assert layout(tile, 8, 64, 64, 0, MULTIPROCESSORS).shared_bytes <= room_bytes


def _compiled(tile: Tile, folder: Path) -> bytes:
    """Machine code by NVRTC, else by nvcc; skips where there is neither."""
    try:
        return find_nvrtc().cubin(source(tile), ARCHITECTURE)
    except MissingToolchain:
        if shutil.which("nvcc") is None:
            pytest.skip("neither NVRTC nor nvcc is installed")
    text, made = folder / "linear.cu", folder / "linear.cubin"
    text.write_text(source(tile))
    target = f"-gencode=arch={ARCHITECTURE.replace('sm', 'compute')},code={ARCHITECTURE}"
    command = ["nvcc", "-std=c++17", "-fmad=false", target, "-cubin", "-o", str(made), str(text)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    return made.read_bytes()


@pytest.mark.parametrize("tile", [SPLIT, SUMS, CHAIN], ids=["split", "sums", "chain"])
def test_a_kind_of_tile_compiles_for_sm_90a(tile: Tile, tmp_path: Path) -> None:
    assert _compiled(tile, tmp_path)[:4] == b"\x7fELF"


@pytest.mark.soak
@pytest.mark.parametrize("tile", shipped_tiles(), ids=str)
def test_every_shipped_tile_compiles_for_sm_90a(tile: Tile, tmp_path: Path) -> None:
    assert _compiled(tile, tmp_path)[:4] == b"\x7fELF"


def test_a_source_that_does_not_compile_says_where() -> None:
    try:
        compiler = find_nvrtc()
    except MissingToolchain as missing:
        pytest.skip(str(missing))
    with pytest.raises(CompilationFailed, match=r"source\.cu\(1\): error"):
        compiler.cubin("no C++ at all", ARCHITECTURE)


@pytest.mark.parametrize("columns", [8, 48, 192, 256])
def test_the_instruction_names_an_accumulator_for_every_second_column(columns: int) -> None:
    # when
    text = source(Tile(2, columns, 2, swapped=False))

    # then
    named = re.search(r"m64n(\d+)k16\.f32\.bf16\.bf16 \{(.*?)\}", text)
    assert named is not None
    assert int(named[1]) == columns
    assert named[2] == ", ".join(f"%{i}" for i in range(columns // 2))
