"""What can be done to moe_align on Triton: tiles of slots, one launch instead of two, and chunks instead of experts."""

from collections.abc import Callable, Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region

WORTH_A_TRY_RATIO = 0.1
TILES: Mapping[EntryPath, tuple[tuple[int, int], ...]] = {
    "full": ((4096, 8), (8192, 8), (1024, 4)),
    "decode": ((1024, 4), (2048, 8), (256, 2)),
}
"""Slots and warps of one program's step."""
CHUNKS: Mapping[EntryPath, tuple[str, ...]] = {"full": ("full_chunks",), "decode": ()}
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
CHUNKED = '''\
FULL_CHUNK, FULL_CELLS, FULL_WARPS = 128, 4096, 8


@triton.jit(do_not_specialize=["slots"])
def chunk_counts(ids, counts, slots, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    """How many slots of one chunk went to each expert."""
    slot = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    inside = slot < slots
    found = tl.histogram(tl.load(ids + slot, mask=inside, other=0), EXPERTS, mask=inside)
    tl.store(counts + tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS), found)


@triton.jit(do_not_specialize=["chunks"])
def chunk_starts(counts, fills, ends, chunks, experts, block, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """Counts become the places where each chunk's slots of each expert begin; fills [EXPERTS], where they end."""
    e, row = tl.arange(0, EXPERTS), tl.arange(0, ROWS)
    own = tl.zeros([EXPERTS], tl.int32)
    for first in range(0, chunks, ROWS):
        at = (first + row)[:, None] * EXPERTS + e[None, :]
        own += tl.sum(tl.load(counts + at, mask=(first + row < chunks)[:, None], other=0), 0)
    used = (own + block - 1) // block
    end = tl.cumsum(used, 0) * block
    start = end - used * block
    tl.store(ends + e, end, mask=e < experts)
    tl.store(fills + e, start + own)
    for first in range(0, chunks, ROWS):
        at = (first + row)[:, None] * EXPERTS + e[None, :]
        part = tl.load(counts + at, mask=(first + row < chunks)[:, None], other=0)
        tl.store(counts + at, start[None, :] + tl.cumsum(part, 0) - part, mask=(first + row < chunks)[:, None])
        start += tl.sum(part, 0)


@triton.jit(do_not_specialize=["slots", "chunks", "blocks"])
def scattered(
    ids,
    starts,
    fills,
    order,
    block_expert,
    ends,
    slots,
    chunks,
    experts,
    blocks,
    block,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One chunk's slots to their places; the programs after the chunks' fill up each expert's blocks, and the rest."""
    program = tl.program_id(0)
    if program < chunks:
        s = tl.arange(0, CHUNK)
        slot = program * CHUNK + s
        own = tl.load(ids + slot, mask=slot < slots, other=-1)
        before = (own[:, None] == own[None, :]) & (s[:, None] > s[None, :])
        to = tl.load(starts + program * EXPERTS + own, mask=slot < slots, other=0) + tl.sum(before.to(tl.int32), 1)
        tl.store(order + to, slot, mask=(slot < slots) & (to < blocks * block))
    else:
        expert = program - chunks
        first_block = tl.load(ends + expert - 1, mask=expert > 0, other=0) // block
        end_block = tl.load(ends + expert, mask=expert < experts, other=blocks * block) // block
        at = tl.load(fills + expert, mask=expert < experts, other=0)
        at = tl.where(expert < experts, at, first_block * block)
        name = tl.where(expert < experts, expert, -1)
        filled(order, block_expert, at, first_block, tl.minimum(end_block, blocks), name, slots, block, CHUNK)


def moe_align_full_i32(ids: torch.Tensor, order: torch.Tensor, block_expert: torch.Tensor, ends: torch.Tensor) -> None:
    """order [blocks, block], block_expert [blocks] and ends [experts] from ids [tokens, k]."""
    (blocks, block), (experts,), slots = order.shape, ends.shape, ids.numel()
    width, chunks = triton.next_power_of_2(experts), triton.cdiv(slots, FULL_CHUNK)
    counts = torch.empty(chunks, width, dtype=torch.int32, device=ids.device)
    fills = torch.empty(width, dtype=torch.int32, device=ids.device)
    chunk_counts[(chunks,)](ids, counts, slots, EXPERTS=width, CHUNK=FULL_CHUNK, num_warps=FULL_WARPS)
    chunk_starts[(1,)](
        *(counts, fills, ends, chunks, experts, block),
        EXPERTS=width,
        ROWS=max(1, FULL_CELLS // width),
        num_warps=FULL_WARPS,
    )
    scattered[(chunks + experts + 1,)](
        *(ids, counts, fills, order, block_expert, ends, slots, chunks, experts, blocks, block),
        EXPERTS=width,
        CHUNK=FULL_CHUNK,
        num_warps=FULL_WARPS,
    )


'''


def _chunked(sources: Sources) -> Sources:
    """Another algorithm for the same numbers: all of the path's own code is new."""
    if region(sources, "full").startswith("FULL_CHUNK"):
        raise Refused("region full: it works by chunks already")
    return replace_region(sources, "full", CHUNKED)


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
        excludes=(*(_name(path, other) for other, _ in TILES[path] if other != slots), *CHUNKS[path]),
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
        excludes=CHUNKS[path],
    )


CATALOGUE: tuple[Mechanism, ...] = (
    _alone_mechanism("decode", 1.4),
    Mechanism(
        name="full_chunks",
        scope="full",
        summary="a program for each chunk of slots instead of each expert: counted, placed in order, written",
        rationale="Each expert's program reads all slots twice, step after step; by chunks each slot is read twice in "
        "all, and a chunk knows where to write as soon as the counts before it are added up.",
        numerical_risks="None: whole numbers, added in any order.",
        falsification="No lower latency on this path, as when slots are few and a third launch costs more.",
        expected_gain_ratio=3.0,
        edit=_chunked,
        evidence=_share("full", "experts times slots are read where slots would do"),
        excludes=(*(_name("full", slots) for slots, _ in TILES["full"]), "full_one_launch"),
    ),
    *(_tile_mechanism(path, *tile) for path, tiles in TILES.items() for tile in tiles),
    _alone_mechanism("full", 1.02),
)
