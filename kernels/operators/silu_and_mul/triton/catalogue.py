"""What can be done to silu_and_mul on Triton: how much a program takes, warps, short rows side by side, cache hints."""

from collections.abc import Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.overlapping import overlapped_path
from kernelbraid.kernels.operators.regions import edit_region

TILES: Mapping[EntryPath, tuple[tuple[int, int], ...]] = {
    "full": ((512, 2), (2048, 8), (2048, 4)),
    "decode": ((512, 2), (256, 1), (2048, 8)),
}
"""Columns and warps of one program."""
ELEMENTS = 1024


def _tile(path: EntryPath, block: int, warps: int, sources: Sources) -> Sources:
    name = path.upper()
    old, new = f"{name}_BLOCK, {name}_WARPS = 1, 1024, 4\n", f"{name}_BLOCK, {name}_WARPS = 1, {block}, {warps}\n"
    return edit_region(sources, path, old, new)


def _narrow(path: EntryPath, sources: Sources) -> Sources:
    """The largest block that divides a row, when it is not too small: no lane is idle."""
    name = path.upper()
    return edit_region(
        sources,
        path,
        f"    count, block = {name}_TOKENS, {name}_BLOCK\n",
        f"    block = {name}_BLOCK if inter % {name}_BLOCK == 0 or inter > 4 * {name}_BLOCK else {name}_BLOCK // 4\n"
        f"    count = max({name}_TOKENS, {ELEMENTS} // block)\n",
    )


def _tile_name(path: EntryPath, block: int, warps: int) -> str:
    return f"{path}_tile_{block}_{warps}"


def _tile_mechanism(path: EntryPath, block: int, warps: int) -> Mechanism:
    return Mechanism(
        name=_tile_name(path, block, warps),
        scope=path,
        summary=f"{block} columns and {warps} warps for a program",
        rationale="A program's size decides how many loads are under way and how many programs start.",
        numerical_risks="None: an element is computed by itself.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.02,
        edit=partial(_tile, path, block, warps),
        evidence=share_of(path, "it is bound by memory, and loads under way are set by the tile"),
        excludes=tuple(_tile_name(path, *other) for other in TILES[path] if other != (block, warps)),
    )


def _narrow_mechanism(path: EntryPath) -> Mechanism:
    return Mechanism(
        name=f"{path}_short_rows",
        scope=path,
        summary="short rows in narrow blocks, several rows a program",
        rationale="An expert's row of 768 fills three quarters of a block of 1024; blocks of 256 leave no lane idle.",
        numerical_risks="None: an element is computed by itself.",
        falsification="No lower latency on this path, as when idle lanes cost no bandwidth.",
        expected_gain_ratio=1.02,
        edit=partial(_narrow, path),
        evidence=share_of(path, "a row that is no multiple of the block leaves lanes idle"),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_path("full"),
    overlapped_path("decode"),
    *(_tile_mechanism(path, *tile) for path, tiles in TILES.items() for tile in tiles),
    _narrow_mechanism("full"),
    _narrow_mechanism("decode"),
)
