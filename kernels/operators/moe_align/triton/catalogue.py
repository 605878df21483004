"""What can be done to moe_align on Triton: tiles of slots, and one launch instead of two."""

from collections.abc import Callable, Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import edit_region

WORTH_A_TRY_RATIO = 0.1
TILES: Mapping[EntryPath, tuple[tuple[int, int], ...]] = {
    "full": ((4096, 8), (8192, 8), (1024, 4)),
    "decode": ((1024, 4), (2048, 8), (256, 2)),
}
"""Slots and warps of one program's step."""
PRESENT: Mapping[EntryPath, str] = {
    "full": "FULL_SLOTS, FULL_WARPS = 2048, 8\n",
    "decode": "DECODE_SLOTS, DECODE_WARPS = 512, 4\n",
}
ALONE = '''

@triton.jit(do_not_specialize=["slots", "blocks"])
def {path}_alone(
    ids, order, block_expert, ends, slots, experts, blocks, block, EXPERTS: tl.constexpr, SLOTS: tl.constexpr
):
    """One expert's slots; each program counts all experts' by itself."""
    own = tl.zeros([EXPERTS], tl.int32)
    for first in range(0, slots, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        inside = slot < slots
        own += tl.histogram(tl.load(ids + slot, mask=inside, other=0), EXPERTS, mask=inside)
    placed(ids, own, order, block_expert, ends, slots, experts, blocks, block, EXPERTS, SLOTS)
'''


def _tile(path: EntryPath, slots: int, warps: int, sources: Sources) -> Sources:
    name = path.upper()
    return edit_region(sources, path, PRESENT[path], f"{name}_SLOTS, {name}_WARPS = {slots}, {warps}\n")


def _alone(path: EntryPath, sources: Sources) -> Sources:
    name = path.upper()
    counted = f"    count[(experts,)](ids, counts, slots, SLOTS={name}_SLOTS, num_warps={name}_WARPS)\n"
    edits = {
        "    counts = torch.empty(experts, dtype=torch.int32, device=ids.device)\n" + counted: "",
        "    place[(experts + 1,)](\n        *(ids, counts, order,": (
            f"    {path}_alone[(experts + 1,)](\n        *(ids, order,"
        ),
        f"\n\ndef moe_align_{path}_i32(": f"{ALONE.format(path=path)}\n\ndef moe_align_{path}_i32(",
    }
    for old, new in edits.items():
        sources = edit_region(sources, path, old, new)
    return sources


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _name(path: EntryPath, slots: int) -> str:
    return f"{path}_slots_{slots}"


def _tile_mechanism(path: EntryPath, slots: int, warps: int) -> Mechanism:
    return Mechanism(
        name=_name(path, slots),
        scope=path,
        summary=f"{slots} slots in each step, {warps} warps",
        rationale="Each step waits for its loads and for a sum over the program; larger steps wait less often.",
        numerical_risks="None: whole numbers.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.05,
        edit=partial(_tile, path, slots, warps),
        evidence=_share(path, "a program walks over all slots twice"),
        excludes=tuple(_name(path, other) for other, _ in TILES[path] if other != slots),
    )


def _alone_mechanism(path: EntryPath, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"{path}_one_launch",
        scope=path,
        summary="each program counts all experts by a histogram of its own",
        rationale="Slots are few: reading them again costs less than a second launch that waits for the first.",
        numerical_risks="None: whole numbers.",
        falsification="No lower latency on this path, as when slots are many.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_alone, path),
        evidence=_share(path, "the second launch waits for the first"),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    _alone_mechanism("decode", 1.4),
    *(_tile_mechanism(path, *tile) for path, tiles in TILES.items() for tile in tiles),
    _alone_mechanism("full", 1.02),
)
