"""What can be done to moe_linear on Triton: the tiles of each path, and how much of k a program takes at once."""

from collections.abc import Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, always, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import edit_region

ROOT: Mapping[EntryPath, tuple[int, int, int]] = {"full": (128, 8, 3), "decode": (64, 4, 4)}
TILES: Mapping[EntryPath, tuple[tuple[int, int, int], ...]] = {
    "full": ((256, 8, 3), (128, 4, 3), (128, 8, 4), (64, 4, 4)),
    "decode": ((128, 4, 4), (32, 4, 5), (64, 4, 6), (128, 8, 3)),
}
"""Results along n, warps (on the decode path for 64 rows) and stages of one program."""


def _tile(path: EntryPath, tile: tuple[int, int, int], sources: Sources) -> Sources:
    names = ", ".join(f"{path.upper()}_{each}" for each in ("OUTS", "WARPS", "STAGES"))
    old, new = (f"{names} = {', '.join(map(str, sizes))}\n" for sizes in (ROOT[path], tile))
    return edit_region(sources, path, old, new)


def _name(path: EntryPath, tile: tuple[int, int, int]) -> str:
    return f"{path}_tile_{'_'.join(map(str, tile))}"


def _tile_mechanism(path: EntryPath, tile: tuple[int, int, int]) -> Mechanism:
    outs, warps, stages = tile
    return Mechanism(
        name=_name(path, tile),
        scope=path,
        summary=f"{outs} results along n, {warps} warps, {stages} stages",
        rationale="A weight is read once for each block of rows: the tile decides how much is under way.",
        numerical_risks="None while the instruction stays the same: a result is one chain along k.",
        falsification="No lower latency on this path, or registers that spill.",
        expected_gain_ratio=1.05,
        edit=partial(_tile, path, tile),
        evidence=share_of(path, "the tile decides how many loads are under way"),
        excludes=tuple(_name(path, other) for other in TILES[path] if other != tile),
    )


def _wider(sources: Sources) -> Sources:
    return edit_region(sources, "product", "BLOCK_K = 64\n", "BLOCK_K = 128\n")


CATALOGUE: tuple[Mechanism, ...] = (
    *(_tile_mechanism(path, tile) for path, tiles in TILES.items() for tile in tiles),
    Mechanism(
        name="block_k_128",
        scope="joint",
        summary="128 of k at once",
        rationale="Half as many steps of the pipeline, each with loads twice as long.",
        numerical_risks="The chain along k stays the same; both paths must change together to show it.",
        falsification="No lower weighted latency, or full and decode results that differ in a bit.",
        expected_gain_ratio=1.03,
        edit=_wider,
        evidence=always("a step of the pipeline takes 128 bytes of each row"),
        contract=("dot_order",),
    ),
)
