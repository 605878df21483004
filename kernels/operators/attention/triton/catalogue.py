"""What can be done to attention on Triton: splits and tiles of keys, tiles of queries, stages, order, pages."""

import re
from collections.abc import Callable
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region

WORTH_A_TRY_RATIO = 0.1
LOAD_TILE = re.compile(
    r"^            kt, vt = (load_tile\(.*?\)\n|load_tile\(\n.*?^            \)\n)", re.MULTILINE | re.DOTALL
)
SPLITS = (256, 1024)

MASKED_LOOP = """\
        for key in range(split, tl.minimum(split + SPLIT, end), KEYS):
"""
CLEAR_LOOP = """\
        clear = tl.maximum(split, tl.minimum(split + SPLIT, (count - queries + first + 1) // KEYS * KEYS))
        for key in range(split, clear, KEYS):
            keys = key + tl.arange(0, KEYS)
            kt, vt = LOAD
            seen = tl.full([ROWS, KEYS], 1, tl.int1)
            part, part_top, part_total = tile_step(tile, kt, vt, seen, scale, part, part_top, part_total)
        for key in range(clear, tl.minimum(split + SPLIT, end), KEYS):
"""
FORWARD = """\
    sequence = sequence_of(query_start, batch, tl.program_id(0), ROWS)
    start, queries = tl.load(query_start + sequence), tl.load(query_count + sequence)
    first = (tl.program_id(0) - start // ROWS - sequence) * ROWS
"""
BACKWARD = """\
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence = sequence_of(query_start, batch, program, ROWS)
    start, queries = tl.load(query_start + sequence), tl.load(query_count + sequence)
    first = (program - start // ROWS - sequence) * ROWS
"""
EACH_KEY = """\
    if PAGED:
        page = tl.load(place + sequence * slots + keys // page_tokens, mask=inside, other=0)
"""
EACH_TILE = """\
    if PAGED == 2:
        page = tl.load(place + sequence * slots + tl.min(keys, 0) // page_tokens)
        return page.to(tl.int64) * page_tokens + tl.min(keys, 0) % page_tokens + (keys - tl.min(keys, 0))
    if PAGED:
        page = tl.load(place + sequence * slots + keys // page_tokens, mask=inside, other=0)
"""

IMPORT = "from triton.tools.tensor_descriptor import TensorDescriptor\n\n"
DESCRIBED_LOAD = """\
            if PAGED:
                kt, vt = LOAD
            else:
                at_key = [tl.load(place + sequence) + key, head // (query_heads // kv_heads) * D]
                kt, vt = tl.trans(k.load(at_key)), v.load(at_key)
"""
OWN_VALUES = """\
                vt = tl.where((keys < count)[:, None], vt, 0.0).to(vt.dtype)
"""
PACKED = """\
    launch_full(q, k, v, key_start, query_start, query_count, key_count, out, lse, 0, 1, False)
"""
DESCRIBED = """\
    if q.shape[0] == 0:
        return
    keys, kv_heads, head_dim = k.shape
    block = [BLOCK_KEYS, head_dim]
    kd = TensorDescriptor.from_tensor(k.view(keys, kv_heads * head_dim), block)
    vd = TensorDescriptor.from_tensor(v.view(keys, kv_heads * head_dim), block)
    launch_full(q, kd, vd, key_start, query_start, query_count, key_count, out, lse, 0, 1, False, kv_heads)
"""

MERGE_LOOP = "    for split in range(splits):\n"
UNROLLED_LOOP = "    for split in tl.range(0, splits, loop_unroll_factor=8):\n"
LEAVE_EARLY = """\
    if split * SPLIT >= count:
        return
"""
LEAVE_TO_OTHERS = """\
    if not ALONE:
        if split * SPLIT >= count:
            return
"""
KEEP_PART = "    at += split.to(tl.int64) * tl.num_programs(2) * steps * query_heads\n"
FINISH_ALONE = """\
    if ALONE:
        kept, joined, top, total = merged(tl.zeros_like(top) - float("inf"), tl.zeros_like(total), top, total, scale)
        out = tl.fma(out, joined[:, None], tl.zeros_like(out) * kept[:, None])
        out = out * normalised(total)[:, None]
        tl.store(y + at[:, None] * D + d[None, :], out.to(y.dtype.element_ty), inside[:, None])
        tl.store(lse + at, log_sum(top, total, scale), inside)
        return
"""
MERGED_AFTER = "    decode_merge[(batch * steps, query_heads)](\n"
MERGED_UNLESS_ALONE = "    if splits == 1:\n        return\n" + MERGED_AFTER


def _constant(name: str, old: int, new: int, sources: Sources) -> Sources:
    return edit_region(sources, "tile", f"{name} = {old}\n", f"{name} = {new}\n")


def _tile(path: EntryPath, part: int, change: Callable[[int], int], sources: Sources) -> Sources:
    """One of rows, warps and stages of a path's tile changed."""
    text = region(sources, path)
    found = re.search(rf"^{path.upper()}_ROWS, .* = (\d+), (\d+), (\d+)$", text, re.MULTILINE)
    if found is None:
        raise Refused(f"the {path} path's tile is not one line of three constants")
    start, end = found.span(part)
    return replace_region(sources, path, f"{text[:start]}{change(int(found[part]))}{text[end:]}")


def _rows_128(sources: Sources) -> Sources:
    return _tile("full", 2, lambda _: 8, _tile("full", 1, lambda _: 128, sources))


def _clear_tiles(sources: Sources) -> Sources:
    """Tiles that every row of the block sees, in a loop of their own without a mask of positions."""
    text = region(sources, "full")
    load = LOAD_TILE.search(text)
    if load is None:
        raise Refused("the full path does not load its tiles in one place")
    return edit_region(sources, "full", MASKED_LOOP, CLEAR_LOOP.replace("LOAD\n", load[1]))


def _described(sources: Sources) -> Sources:
    """Packed keys by the copy engine: a whole tile from one row on, with another sequence's values set to zero."""
    text = region(sources, "full")
    loads = list(LOAD_TILE.finditer(text))
    if not loads:
        raise Refused("the full path does not load its tiles in one place")
    for match in reversed(loads):
        body = DESCRIBED_LOAD.replace("LOAD\n", match[1])
        own = OWN_VALUES if match is loads[-1] else ""
        text = text[: match.start()] + body + own + text[match.end() :]
    sources = replace_region(sources, "full", text)
    edits = (
        ("full", PACKED, DESCRIBED),
        (
            "full",
            "y, lse, slots, page_tokens, paged):\n"
            "    (tokens, query_heads, head_dim), kv_heads, batch = q.shape, k.shape[-2], query_start.shape[0]\n",
            "y, lse, slots, page_tokens, paged, kv_heads):\n"
            "    (tokens, query_heads, head_dim), batch = q.shape, query_start.shape[0]\n",
        ),
        ("full", "table.shape[1], k.shape[1], True)", "table.shape[1], k.shape[1], True, k.shape[2])"),
    )
    for name, old, new in edits:
        sources = edit_region(sources, name, old, new)
    return replace_region(sources, "full", IMPORT + region(sources, "full"))


def _unrolled_merge(sources: Sources) -> Sources:
    return edit_region(sources, "decode", MERGE_LOOP, UNROLLED_LOOP)


def _alone(sources: Sources) -> Sources:
    """Where a cache holds no more than one split, its program writes the output by the same steps as a merge."""
    rows = "        ROWS=DECODE_ROWS,\n"
    edits = (
        (LEAVE_EARLY, LEAVE_TO_OTHERS),
        (KEEP_PART, FINISH_ALONE + KEEP_PART),
        (MERGED_AFTER, MERGED_UNLESS_ALONE),
        ("    totals,\n    steps,\n", "    totals,\n    y,\n    lse,\n    steps,\n"),
        ("    ROWS: tl.constexpr,\n", "    ALONE: tl.constexpr,\n    ROWS: tl.constexpr,\n"),
        ("lengths, parts, tops, totals),\n", "lengths, parts, tops, totals, out, lse),\n"),
        (rows, f"        ALONE=splits == 1,\n{rows}"),
    )
    for old, new in edits:
        sources = edit_region(sources, "decode", old, new)
    return sources


def _backward(sources: Sources) -> Sources:
    return edit_region(sources, "full", FORWARD, BACKWARD)


def _whole_pages(sources: Sources) -> Sources:
    """One look into the table for a tile, where pages hold whole tiles: PAGED is 2 there."""
    whole = "2 if page_tokens % BLOCK_KEYS == 0 else 1"
    rows = "        ROWS=DECODE_ROWS,\n"
    edits = (
        ("keys", EACH_KEY, EACH_TILE),
        ("full", "        PAGED=paged,\n", f"        PAGED=({whole}) if paged else 0,\n"),
        ("decode", "page_tokens, D, True)\n", "page_tokens, D, PAGED)\n"),
        ("decode", "    D: tl.constexpr,\n    ROWS", "    D: tl.constexpr,\n    PAGED: tl.constexpr,\n    ROWS"),
        ("decode", rows, f"        PAGED={whole},\n{rows}"),
    )
    for name, old, new in edits:
        sources = edit_region(sources, name, old, new)
    return sources


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _split_mechanism(size: int, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"split_{size}",
        scope="joint",
        summary=f"keys cut every {size} tokens instead of 512",
        rationale="Shorter splits keep more multiprocessors busy when sequences are few; longer ones merge less often.",
        numerical_risks="A row's softmax is taken in other parts; both paths must cut at the same keys.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_constant, "SPLIT", 512, size),
        evidence=_share("decode", "how many programs a sequence gets is set by its splits"),
        contract=("kv_split",),
        excludes=tuple(f"split_{other}" for other in SPLITS if other != size),
        opened_by=("keys_128", "whole_pages"),
    )


def _stage_mechanism(path: EntryPath, change: int, gain_ratio: float) -> Mechanism:
    word = "more" if change > 0 else "fewer"
    return Mechanism(
        name=f"{path}_stage_{word}",
        scope=path,
        summary=f"one tile of keys {word} in flight",
        rationale="More tiles under way hide more of the memory's latency; fewer leave room for another block.",
        numerical_risks="None: the order of the tiles is the same.",
        falsification="No lower latency on this path, or more shared memory than a block has.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_tile, path, 3, lambda stages: stages + change),
        evidence=_share(path, "its tiles are loaded while the ones before are multiplied"),
        excludes=(f"{path}_stage_{'fewer' if change > 0 else 'more'}",),
        opened_by=("keys_128", "full_rows_128") if path == "full" else ("keys_128",),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    Mechanism(
        name="full_clear_tiles",
        scope="full",
        summary="tiles that every row sees without a mask of positions",
        rationale="Only the tiles on the diagonal need comparing positions; the others are most of a long prompt.",
        numerical_risks="None: a mask that is true everywhere changes no score.",
        falsification="No lower latency on this path, as when the masks are hidden behind the products.",
        expected_gain_ratio=1.15,
        edit=_clear_tiles,
        evidence=_share("full", "every score is compared with its row's position"),
    ),
    Mechanism(
        name="full_rows_128",
        scope="full",
        summary="tiles of 128 queries by 8 warps",
        rationale="A tile of keys is loaded once for twice as many queries.",
        numerical_risks="None while the instruction stays wgmma: a row's products and sums keep their order.",
        falsification="No lower latency on this path, or a row that differs in a bit.",
        expected_gain_ratio=1.2,
        edit=_rows_128,
        evidence=_share("full", "each tile of keys is loaded again for every 64 queries"),
    ),
    Mechanism(
        name="full_longest_first",
        scope="full",
        summary="the tiles with the most keys first",
        rationale="Late tiles see many more keys than early ones; begun last, they leave multiprocessors idle.",
        numerical_risks="None: which program takes which tile changes no row.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.1,
        edit=_backward,
        evidence=_share("full", "its longest tiles are begun last"),
    ),
    Mechanism(
        name="full_descriptors",
        scope="full",
        summary="packed keys fetched by the copy engine, a tile at a time",
        rationale="A descriptor fetches a tile by one instruction, where addresses take every thread's registers.",
        numerical_risks="None: the same keys; a tile's part of another sequence is masked, its values set to zero.",
        falsification="No lower latency on this path, or a row that differs in a bit.",
        expected_gain_ratio=1.15,
        edit=_described,
        evidence=_share("full", "every thread computes the addresses of its part of each tile"),
        requires=("full_clear_tiles",),
        opened_by=("full_rows_128",),
    ),
    Mechanism(
        name="whole_pages",
        scope="joint",
        summary="one look into the table of pages for a tile, where pages hold whole tiles",
        rationale="A division and a load for every key of every tile can be one for the tile.",
        numerical_risks="None: the same keys are loaded.",
        falsification="No lower latency on the paged workloads.",
        expected_gain_ratio=1.15,
        edit=_whole_pages,
        evidence=_share("decode", "every key's page is looked up"),
    ),
    Mechanism(
        name="decode_merge_unrolled",
        scope="decode",
        summary="eight splits' parts under way at a time while they are merged",
        rationale="The merge waits for one part after the other; what it loads does not depend on what it adds.",
        numerical_risks="None: parts are merged in the same order.",
        falsification="No lower latency on this path, as when sequences have few splits.",
        expected_gain_ratio=1.15,
        edit=_unrolled_merge,
        evidence=_share("decode", "its last kernel is a chain of loads as long as a sequence has splits"),
        opened_by=("split_256",),
    ),
    Mechanism(
        name="decode_alone",
        scope="decode",
        summary="no second kernel where a cache holds one split",
        rationale="A short context pays for two launches and for parts that are written and read again.",
        numerical_risks="None: the one program takes the steps of a merge with nothing.",
        falsification="No lower latency on this path, as when every cache is longer than a split.",
        expected_gain_ratio=1.05,
        edit=_alone,
        evidence=_share("decode", "a cache of one split is merged with nothing by a second kernel"),
        opened_by=("split_1024",),
    ),
    *(_split_mechanism(size, gain_ratio) for size, gain_ratio in zip(SPLITS, (1.2, 1.05), strict=True)),
    Mechanism(
        name="keys_128",
        scope="joint",
        summary="tiles of 128 keys instead of 64",
        rationale="Half as many steps of the running maximum, and longer products between them.",
        numerical_risks="The running maximum and the sum of weights are taken over other tiles, on both paths alike.",
        falsification="No lower weighted latency, spilled registers, or rows that differ in a bit.",
        expected_gain_ratio=1.1,
        edit=partial(_constant, "BLOCK_KEYS", 64, 128),
        evidence=_share("full", "every 64 keys end in a maximum, a rescaling and a barrier"),
        contract=("kv_tile", "weight_sum_order"),
        opened_by=("full_rows_128",),
    ),
    _stage_mechanism("full", -1, 1.03),
    _stage_mechanism("full", 1, 1.02),
    _stage_mechanism("decode", 1, 1.03),
    _stage_mechanism("decode", -1, 1.02),
)
