"""What can be done to linear on Triton: tiles and stages of each path, launch order, longer steps, chunks of k."""

import re
from collections.abc import Callable
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region

WORTH_A_TRY_RATIO = 0.1
FULL_TILES = {(128, 128, 8, 3): 1.6, (128, 256, 8, 3): 1.7, (128, 64, 4, 4): 1.3}
DECODE_TILES = {(64, 32, 4, 5): 1.2, (64, 128, 4, 4): 1.1, (64, 16, 4, 6): 1.05}
"""Rows, outs, warps and stages of a tile, and the gain expected of it."""
SWAPPED_TILES = {(16, 64, 4, 6): 1.4, (32, 64, 4, 6): 1.35, (32, 128, 4, 5): 1.3}
"""The same of a tile whose outs are the 64 rows of the instruction, so that few tokens need not be padded to 64."""
CHUNKS = (1024, 2048)
FIRST_TILE = (64, 64, 4, 3)

IN_ORDER = """\
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
"""
IN_GROUPS = """\
    row_tile, out_tile = tl.swizzle2d(tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), 8)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    out = out_tile * OUTS + tl.arange(0, OUTS)
"""

ONE_CHAIN = """\
    total = tl.zeros([row.shape[0], out.shape[0]], tl.float32)
    x_row = x + row.to(tl.int64)[:, None] * width
    w_out = w + out.to(tl.int64)[None, :] * width
    for at in range(0, width, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        inside = k < width
        a = tl.load(x_row + k[None, :], mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(w_out + k[:, None], mask=(out < outs)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a, b, total)
    return total
"""
CHAIN_OF_A_CHUNK = """\
    total = tl.zeros([row.shape[0], out.shape[0]], tl.float32)
    x_row = x + row.to(tl.int64)[:, None] * width
    w_out = w + out.to(tl.int64)[None, :] * width
    for at in range(first, tl.minimum(first + CHUNK, width), BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        inside = k < width
        a = tl.load(x_row + k[None, :], mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(w_out + k[:, None], mask=(out < outs)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a, b, total)
    return total
"""
PRODUCT = "def product(x, w, row, out, rows, width, outs, BLOCK_K: tl.constexpr):\n"
CHUNK_PRODUCT = "def product(x, w, row, out, first, rows, width, outs, BLOCK_K: tl.constexpr, CHUNK: tl.constexpr):\n"
PRODUCT_TEXT = (
    '    """float32 sums of the tile of y at these rows and outs, from x [rows, width] and w [outs, width]."""\n'
)
CHUNK_TEXT = '    """float32 sums over one chunk of k; chunks are added first to last, from zero, on both paths."""\n'
FULL_TOTAL = "    total = product(x, w, row, out, rows, width, outs, BLOCK_K)\n"
FULL_CHUNKS = """\
    total = tl.zeros([ROWS, OUTS], tl.float32)
    for first in range(0, width, CHUNK):
        total += product(x, w, row, out, first, rows, width, outs, BLOCK_K, CHUNK)
"""
DECODE_TOTAL = """\
    total = product(x, w, row, out, rows, width, outs, BLOCK_K)
    at = y + row.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=(row < rows)[:, None] & (out < outs)[None, :])
"""
DECODE_CHUNKS = '''\
    chunk = tl.program_id(2)
    total = product(x, w, row, out, chunk * CHUNK, rows, width, outs, BLOCK_K, CHUNK)
    at = y + (chunk * rows + row).to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(at, total, mask=(row < rows)[:, None] & (out < outs)[None, :])


@triton.jit(do_not_specialize=["count"])
def decode_sum(parts, y, count, chunks, BLOCK: tl.constexpr):
    """y [count] from parts [chunks, count], added first to last."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for chunk in range(0, chunks):
        total += tl.load(parts + chunk * tl.cast(count, tl.int64) + at, mask=at < count, other=0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=at < count)
'''
DECODE_GRID = """\
    grid = (triton.cdiv(rows, DECODE_ROWS), triton.cdiv(outs, DECODE_OUTS))
    decode[grid](
        *(x, w, y, rows, width, outs),
"""
DECODE_CHUNK_GRID = """\
    chunks = triton.cdiv(width, CHUNK)
    parts = torch.empty((chunks, rows, outs), dtype=torch.float32, device=y.device)
    grid = (triton.cdiv(rows, DECODE_ROWS), triton.cdiv(outs, DECODE_OUTS), chunks)
    decode[grid](
        *(x, w, parts, rows, width, outs),
"""
DECODE_LAUNCHED = """\
        num_warps=DECODE_WARPS,
        num_stages=DECODE_STAGES,
    )
"""
DECODE_SUMMED = """\
        num_warps=DECODE_WARPS,
        num_stages=DECODE_STAGES,
    )
    decode_sum[(triton.cdiv(rows * outs, 1024),)](parts, y, rows * outs, chunks, BLOCK=1024)
"""

ADDRESSES = """\
    x_row = x + row.to(tl.int64)[:, None] * width
    w_out = w + out.to(tl.int64)[None, :] * width
"""
NO_ADDRESSES = """\
    if DESCRIBED:
        first_row, first_out = tl.min(row, 0), tl.min(out, 0)
    else:
        x_row = x + row.to(tl.int64)[:, None] * width
        w_out = w + out.to(tl.int64)[None, :] * width
"""
OPERANDS = """\
        k = at + tl.arange(0, BLOCK_K)
        inside = k < width
        a = tl.load(x_row + k[None, :], mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(w_out + k[:, None], mask=(out < outs)[None, :] & inside[:, None], other=0.0)
"""
DESCRIBED_OPERANDS = """\
        if DESCRIBED:
            a, b = x.load([first_row, at]), tl.trans(w.load([first_out, at]))
        else:
            k = at + tl.arange(0, BLOCK_K)
            inside = k < width
            a = tl.load(x_row + k[None, :], mask=(row < rows)[:, None] & inside[None, :], other=0.0)
            b = tl.load(w_out + k[:, None], mask=(out < outs)[None, :] & inside[:, None], other=0.0)
"""
IMPORT = "from triton.tools.tensor_descriptor import TensorDescriptor\n\n"
SHAPES = "    (rows, width), (outs, _) = x.shape, w.shape\n"
DESCRIBED_SHAPES = """\
    (rows, width), (outs, _) = x.shape, w.shape
    described = rows > 0 and width % 8 == 0
    if described:
        x = TensorDescriptor.from_tensor(x, [PATH_ROWS, BLOCK_K])
        w = TensorDescriptor.from_tensor(w, [PATH_OUTS, BLOCK_K])
"""


CALL = re.compile(r"total = product\(x, w, row, out, (.*)rows, width, outs, (.*)\)\n")
SWAPPED_CALL = r"total = tl.trans(product(w, x, out, row, \1outs, width, rows, \2))\n"


def _swapped_text(text: str) -> str:
    return CALL.sub(SWAPPED_CALL, text)


def _is_swapped(sources: Sources) -> bool:
    return "product(w, x, " in region(sources, "decode")


def _swapped(tile: tuple[int, ...], sources: Sources) -> Sources:
    text = region(sources, "decode")
    if len(CALL.findall(text)) != 1:
        raise Refused("the decode path does not call product once, with tokens first")
    return _tile("decode", tile, replace_region(sources, "decode", _swapped_text(text)))


def _tile(path: EntryPath, tile: tuple[int, ...], sources: Sources) -> Sources:
    name = path.upper()
    line = "{0}_ROWS, {0}_OUTS, {0}_WARPS, {0}_STAGES = {1}, {2}, {3}, {4}\n"
    return edit_region(sources, path, line.format(name, *FIRST_TILE), line.format(name, *tile))


def _stages(path: EntryPath, sources: Sources) -> Sources:
    """One stage more than there is."""
    text = region(sources, path)
    found = re.search(rf"^{path.upper()}_ROWS, .* = \d+, \d+, \d+, (\d+)$", text, re.MULTILINE)
    if found is None:
        raise Refused(f"the {path} path's tile is not one line of four constants")
    start, end = found.span(1)
    return replace_region(sources, path, f"{text[:start]}{int(found[1]) + 1}{text[end:]}")


def _groups(sources: Sources) -> Sources:
    return edit_region(sources, "full", IN_ORDER, IN_GROUPS)


def _steps(sources: Sources) -> Sources:
    return edit_region(sources, "product", "BLOCK_K = 64\n", "BLOCK_K = 128\n")


def _chunks(size: int, sources: Sources) -> Sources:
    as_is = _swapped_text if _is_swapped(sources) else str
    edits: tuple[tuple[EntryPath | str, str, str], ...] = (
        ("product", ONE_CHAIN, CHAIN_OF_A_CHUNK),
        ("product", PRODUCT + PRODUCT_TEXT, CHUNK_PRODUCT + CHUNK_TEXT),
        ("product", "BLOCK_K = ", f"CHUNK = {size}\nBLOCK_K = "),
        ("full", FULL_TOTAL, FULL_CHUNKS),
        ("decode", as_is(DECODE_TOTAL), as_is(DECODE_CHUNKS)),
        ("decode", DECODE_GRID, DECODE_CHUNK_GRID),
        ("decode", DECODE_LAUNCHED, DECODE_SUMMED),
        *((path, "BLOCK_K: tl.constexpr):\n", "BLOCK_K: tl.constexpr, CHUNK: tl.constexpr):\n") for path in PATHS),
        *((path, "        BLOCK_K=BLOCK_K,\n", "        BLOCK_K=BLOCK_K,\n        CHUNK=CHUNK,\n") for path in PATHS),
    )
    for name, old, new in edits:
        sources = edit_region(sources, name, old, new)
    return sources


def _descriptors(sources: Sources) -> Sources:
    """Tiles of both operands by the copy engine, which fills what lies outside with zeros, as the masks do."""
    edits: list[tuple[str, str, str]] = [
        ("product", ADDRESSES, NO_ADDRESSES),
        ("product", OPERANDS, DESCRIBED_OPERANDS),
        ("product", "BLOCK_K: tl.constexpr", "DESCRIBED: tl.constexpr, BLOCK_K: tl.constexpr"),
    ]
    for path in PATHS:
        sizes = "outs, width, rows" if path == "decode" and _is_swapped(sources) else "rows, width, outs"
        shapes = DESCRIBED_SHAPES.replace("PATH", path.upper())
        edits += [
            (path, SHAPES, shapes),
            (path, "BLOCK_K: tl.constexpr", "DESCRIBED: tl.constexpr, BLOCK_K: tl.constexpr"),
            (path, f"{sizes}, BLOCK_K", f"{sizes}, DESCRIBED, BLOCK_K"),
            (path, "        BLOCK_K=BLOCK_K,\n", "        DESCRIBED=described,\n        BLOCK_K=BLOCK_K,\n"),
        ]
    for name, old, new in edits:
        sources = edit_region(sources, name, old, new)
    return replace_region(sources, "product", IMPORT + region(sources, "product"))


PATHS: tuple[EntryPath, ...] = ("full", "decode")


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _tile_names(path: EntryPath) -> tuple[str, ...]:
    plain = {"full": FULL_TILES, "decode": DECODE_TILES}[path]
    swapped = SWAPPED_TILES if path == "decode" else {}
    names = (f"{path}_tile_{rows}x{outs}" for rows, outs, *_ in plain)
    return (*names, *(f"{path}_swapped_{rows}x{outs}" for rows, outs, *_ in swapped))


def _swapped_mechanism(tile: tuple[int, int, int, int], gain_ratio: float) -> Mechanism:
    rows, outs, warps, stages = tile
    name = f"decode_swapped_{rows}x{outs}"
    return Mechanism(
        name=name,
        scope="decode",
        summary=f"weights as the first operand: tiles of {rows} rows and {outs} outs, {warps} warps, {stages} steps",
        rationale="The instruction takes 64 rows first and as few as 8 columns second: weights fill those 64.",
        numerical_risks="None while the instruction stays wgmma: products commute, and k is walked in the same order.",
        falsification="No lower latency on this path, or a row that differs in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_swapped, tile),
        evidence=_share("decode", "most of a tile of 64 rows is padding"),
        excludes=tuple(other for other in _tile_names("decode") if other != name),
    )


def _tile_mechanism(path: EntryPath, tile: tuple[int, int, int, int], gain_ratio: float) -> Mechanism:
    rows, outs, warps, stages = tile
    return Mechanism(
        name=f"{path}_tile_{rows}x{outs}",
        scope=path,
        summary=f"tiles of {rows} rows and {outs} outs, {warps} warps, {stages} steps in flight",
        rationale="A larger tile reads each operand fewer times; a smaller one gives more multiprocessors work.",
        numerical_risks="None while the instruction stays wgmma: an element is the same chain in every tile.",
        falsification="No lower latency on this path, or a row that differs in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_tile, path, tile),
        evidence=_share(path, "how often an operand is read again is set by its tiles"),
        excludes=tuple(other for other in _tile_names(path) if other != f"{path}_tile_{rows}x{outs}"),
    )


def _stage_mechanism(path: EntryPath) -> Mechanism:
    return Mechanism(
        name=f"{path}_stage_more",
        scope=path,
        summary="one more step of k in flight",
        rationale="Loads that are under way earlier hide more of the memory's latency, as far as shared memory goes.",
        numerical_risks="None: the order of the products is the same.",
        falsification="No lower latency on this path, or more shared memory than a block has.",
        expected_gain_ratio=1.03,
        edit=partial(_stages, path),
        evidence=_share(path, "a step's loads are waited for"),
        opened_by=_tile_names(path),
    )


def _chunk_mechanism(size: int, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"k_chunks_{size}",
        scope="joint",
        summary=f"sums of {size} products, added in order: in registers, or after parallel blocks by a second kernel",
        rationale="A long sum for few rows keeps few multiprocessors busy; chunks of it run side by side.",
        numerical_risks="Products are added in another order; both paths must cut at the same k, add first to last.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_chunks, size),
        evidence=_share("decode", "its tiles are fewer than the multiprocessors wherever k is long"),
        contract=("dot_order",),
        excludes=(*(f"k_chunks_{other}" for other in CHUNKS if other != size), "descriptors"),
        opened_by=_tile_names("decode"),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    *(_tile_mechanism("full", tile, gain_ratio) for tile, gain_ratio in FULL_TILES.items()),
    *(_tile_mechanism("decode", tile, gain_ratio) for tile, gain_ratio in DECODE_TILES.items()),
    *(_swapped_mechanism(tile, gain_ratio) for tile, gain_ratio in SWAPPED_TILES.items()),
    *(_chunk_mechanism(size, gain_ratio) for size, gain_ratio in zip(CHUNKS, (1.2, 1.15), strict=True)),
    Mechanism(
        name="full_groups",
        scope="full",
        summary="tiles launched in groups of eight rows of tiles",
        rationale="Tiles that run at the same time then share rows of x and of w in the cache.",
        numerical_risks="None: which block takes which tile changes no sum.",
        falsification="No lower latency on this path, as when both operands fit into the cache.",
        expected_gain_ratio=1.05,
        edit=_groups,
        evidence=_share("full", "neighbouring blocks share only one of the two operands"),
        opened_by=("full_tile_128x128", "full_tile_128x256"),
    ),
    Mechanism(
        name="steps_128",
        scope="joint",
        summary="128 products a step instead of 64",
        rationale="Half as many steps, each of them longer, and so half the barriers.",
        numerical_risks="The chain keeps its order, but what the compiler makes of a longer step must be seen.",
        falsification="No lower weighted latency, or more shared memory than a block has.",
        expected_gain_ratio=1.02,
        edit=_steps,
        evidence=_share("decode", "every step ends in a barrier"),
        contract=("dot_order",),
        opened_by=("decode_tile_64x32", "decode_tile_64x16"),
    ),
    Mechanism(
        name="descriptors",
        scope="joint",
        summary="tiles of both operands fetched by the copy engine, where rows are multiples of 16 bytes",
        rationale="A descriptor fetches a tile by one instruction and needs no masks; addresses take registers.",
        numerical_risks="None: the same tiles, and zeros where there is nothing.",
        falsification="No lower weighted latency, or a row that differs in a bit.",
        expected_gain_ratio=1.15,
        edit=_descriptors,
        evidence=_share("full", "every thread computes the addresses and masks of its part of each tile"),
        opened_by=("full_tile_128x128", "full_tile_128x256"),
    ),
    _stage_mechanism("full"),
    _stage_mechanism("decode"),
)
