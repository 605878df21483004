"""What can be done to moe_combine on Triton: how much of a token a program takes, warps, cache hints."""

from collections.abc import Callable, Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.overlapping import overlapped_path
from kernelbraid.kernels.operators.regions import edit_region

WORTH_A_TRY_RATIO = 0.1
TILES: Mapping[EntryPath, tuple[tuple[int, int], ...]] = {
    "full": ((2048, 8), (2048, 4), (512, 2), (512, 4)),
    "decode": ((256, 2), (256, 1), (1024, 4)),
}
"""Hidden positions and warps of one program."""
PRESENT: Mapping[EntryPath, str] = {
    "full": "FULL_WIDTH, FULL_WARPS = 1024, 4\n",
    "decode": "DECODE_WIDTH, DECODE_WARPS = 512, 4\n",
}
READ = "tl.load(outputs + at * hidden + h, mask=inside, other=0.0)"
STREAMED = 'tl.load(outputs + at * hidden + h, mask=inside, other=0.0, eviction_policy="evict_first")'


def _tile(path: EntryPath, width: int, warps: int, sources: Sources) -> Sources:
    name = path.upper()
    return edit_region(sources, path, PRESENT[path], f"{name}_WIDTH, {name}_WARPS = {width}, {warps}\n")


def _streamed(sources: Sources) -> Sources:
    return edit_region(sources, "slots", READ, STREAMED)


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _name(path: EntryPath, width: int, warps: int) -> str:
    return f"{path}_tile_{width}_{warps}"


def _tile_mechanism(path: EntryPath, width: int, warps: int) -> Mechanism:
    return Mechanism(
        name=_name(path, width, warps),
        scope=path,
        summary=f"{width} hidden positions and {warps} warps for a program",
        rationale="All slots' loads of a program are under way at once: its size decides how many, and how many start.",
        numerical_risks="None: an element is the same chain of multiply-adds in any tile.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.03,
        edit=partial(_tile, path, width, warps),
        evidence=_share(path, "it is bound by memory, and loads under way are set by the tile"),
        excludes=tuple(_name(path, *other) for other in TILES[path] if other != (width, warps)),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_path("full"),
    overlapped_path("decode"),
    *(_tile_mechanism(path, *tile) for path, tiles in TILES.items() for tile in tiles),
    Mechanism(
        name="streamed",
        scope="joint",
        summary="the experts' outputs marked as read once",
        rationale="They are read once and never again; the cache can keep what is written instead.",
        numerical_risks="None: the same values are loaded.",
        falsification="No lower weighted latency, as when the outputs lie in the cache from the product before.",
        expected_gain_ratio=1.01,
        edit=_streamed,
        evidence=_share("full", "nearly all traffic is outputs read once"),
        opened_by=tuple(_name("full", *tile) for tile in TILES["full"]),
    ),
)
