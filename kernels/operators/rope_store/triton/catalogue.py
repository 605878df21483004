"""What can be done to rope_store on Triton: how many heads and warps a program has."""

from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, always
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.overlapping import overlapped_jointly
from kernelbraid.kernels.operators.regions import edit_region

TILES = ((16, 2), (8, 2), (32, 4), (8, 1))
"""Heads and warps of one program."""


def _tile(heads: int, warps: int, sources: Sources) -> Sources:
    return edit_region(sources, "row", "HEADS, WARPS = 16, 4\n", f"HEADS, WARPS = {heads}, {warps}\n")


def _tile_mechanism(heads: int, warps: int) -> Mechanism:
    return Mechanism(
        name=f"tile_{heads}_{warps}",
        scope="joint",
        summary=f"{heads} heads and {warps} warps for a program",
        rationale="All loads of a program are under way at once: its size decides how many, and how many start.",
        numerical_risks="The squares of a head may be added in another order than qk_norm adds them.",
        falsification="No lower weighted latency, or full and decode heads that differ in a bit.",
        expected_gain_ratio=1.02,
        edit=partial(_tile, heads, warps),
        evidence=always("it is bound by memory, and loads under way are set by the tile"),
        contract=("sum_order",),
        excludes=tuple(f"tile_{a}_{b}" for a, b in TILES if (a, b) != (heads, warps)),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_jointly("row"),
    *(_tile_mechanism(*tile) for tile in TILES),
)
