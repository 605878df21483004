"""What can be done to rms_norm on Triton: warps, resident rows, cache hints."""

from collections.abc import Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, always, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import edit_region

MULTIPROCESSORS = 132
WARPS = ("warps_2", "warps_4", "warps_16", "warps_of_16", "warps_of_32")
RESIDENT: Mapping[EntryPath, set[int]] = {"full": {4, 8, 16}, "decode": {8}}

LOADS = """\
    row = tl.program_id(0).to(tl.int64) * hidden
    k = tl.arange(0, BLOCK)
    inside = k < hidden
    values = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row + k, normalised(values, weights, hidden, epsilon).to(y.dtype.element_ty), mask=inside)
"""
LOOP = """\
    k = tl.arange(0, BLOCK)
    inside = k < hidden
    weights = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    for at in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = at.to(tl.int64) * hidden
        values = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row + k, normalised(values, weights, hidden, epsilon).to(y.dtype.element_ty), mask=inside)
"""
READ = "tl.load(x + row + k, mask=inside, other=0.0)"
STREAMED = 'tl.load(x + row + k, mask=inside, other=0.0, eviction_policy="evict_first")'


def _warps(count: int, sources: Sources) -> Sources:
    return edit_region(sources, "row", "WARPS = 8\n", f"WARPS = {count}\n")


def _by_size(elements: int, sources: Sources) -> Sources:
    """Both paths call one function of the row's size: never of the batch."""
    chosen = (
        f"THREAD_ELEMENTS = {elements}\n\n\n"
        "def warps_of(hidden: int) -> int:\n"
        '    """So many elements of a row in each thread, whatever the batch: the order of the sum follows."""\n'
        "    return max(1, min(16, triton.next_power_of_2(hidden) // (32 * THREAD_ELEMENTS)))\n"
    )
    sources = edit_region(sources, "row", "WARPS = 8\n", chosen)
    for path in ("full", "decode"):
        sources = edit_region(sources, path, "num_warps=WARPS", "num_warps=warps_of(hidden)")
    return sources


def _persistent(path: EntryPath, per_multiprocessor: int, sources: Sources) -> Sources:
    """One launch argument more: how many rows there are, which must not be compiled in."""
    edits = {
        LOADS: LOOP,
        f'def {path}(x, weight, y, hidden, epsilon, BLOCK: tl.constexpr):\n    """One row of x."""\n': (
            f"def {path}(x, weight, y, rows, hidden, epsilon, BLOCK: tl.constexpr):\n"
            '    """Every so many rows of x, with the weight read once."""\n'
        ),
        "@triton.jit\n": '@triton.jit(do_not_specialize=["rows"])\n',
        "[(rows,)](x, weight, y, hidden, epsilon,": (
            f"[(min(rows, {per_multiprocessor * MULTIPROCESSORS}),)](x, weight, y, rows, hidden, epsilon,"
        ),
    }
    for old, new in edits.items():
        sources = edit_region(sources, path, old, new)
    return sources


def _streamed(path: EntryPath, sources: Sources) -> Sources:
    return edit_region(sources, path, READ, STREAMED)


def _warps_mechanism(name: str, summary: str, edit: partial[Sources], gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=name,
        scope="joint",
        summary=summary,
        rationale="More warps load a row in fewer steps; fewer need no sum across warps and leave room for more rows.",
        numerical_risks="The squares of a row are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=edit,
        evidence=always("how many warps share a row decides how many loads are under way and how long its sum is"),
        contract=("sum_order",),
        excludes=tuple(other for other in WARPS if other != name),
    )


def _persistent_mechanism(path: EntryPath, per_multiprocessor: int, gain_ratio: float) -> Mechanism:
    others = RESIDENT[path] - {per_multiprocessor}
    return Mechanism(
        name=f"{path}_resident_{per_multiprocessor}",
        scope=path,
        summary=f"at most {per_multiprocessor} programs a multiprocessor, each with many rows and the weight read once",
        rationale="A program that goes on to the next row starts no block and reads no weight for it.",
        numerical_risks="None: each row adds its own squares in the same order.",
        falsification="No lower latency on this path, as when rows are few or the weight is in the cache anyway.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_persistent, path, per_multiprocessor),
        evidence=share_of(path, "every row starts a block and reads the weight again"),
        excludes=(*(f"{path}_resident_{other}" for other in sorted(others)), f"{path}_streamed"),
        opened_by=("warps_4", "warps_16"),
    )


def _streamed_mechanism(path: EntryPath) -> Mechanism:
    return Mechanism(
        name=f"{path}_streamed",
        scope=path,
        summary="rows marked as read once",
        rationale="A row is read once and the weight by every row; the cache can be told which to keep.",
        numerical_risks="None: the same values are loaded.",
        falsification="No lower latency on this path, as when everything fits into the cache.",
        expected_gain_ratio=1.01,
        edit=partial(_streamed, path),
        evidence=share_of(path, "rows pass through the cache that the weight should stay in"),
        opened_by=(f"{path}_resident_8",),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    _warps_mechanism("warps_4", "4 warps for a row", partial(_warps, 4), 1.05),
    _warps_mechanism("warps_of_16", "as many warps as leave 16 elements a thread", partial(_by_size, 16), 1.05),
    _warps_mechanism("warps_of_32", "as many warps as leave 32 elements a thread", partial(_by_size, 32), 1.05),
    _warps_mechanism("warps_2", "2 warps for a row", partial(_warps, 2), 1.02),
    _warps_mechanism("warps_16", "16 warps for a row", partial(_warps, 16), 1.02),
    _persistent_mechanism("full", 8, 1.05),
    _persistent_mechanism("full", 16, 1.05),
    _persistent_mechanism("full", 4, 1.02),
    _persistent_mechanism("decode", 8, 1.01),
    _streamed_mechanism("full"),
    _streamed_mechanism("decode"),
)
