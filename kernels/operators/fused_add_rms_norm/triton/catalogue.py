"""What can be done to fused_add_rms_norm on Triton: the warps that share a row, all the same or by its size."""

from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, always
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.overlapping import overlapped_jointly
from kernelbraid.kernels.operators.regions import edit_region

WARPS = (4, 2, 16)
THREAD_ELEMENTS = (16, 32)
NAMES = (*(f"warps_{count}" for count in WARPS), *(f"warps_of_{elements}" for elements in THREAD_ELEMENTS))


def _warps(count: int, sources: Sources) -> Sources:
    return edit_region(sources, "row", "WARPS = 8\n", f"WARPS = {count}\n")


def _by_size(elements: int, sources: Sources) -> Sources:
    """Both paths call one function of the row's size: never of the batch."""
    chosen = (
        f"THREAD_ELEMENTS = {elements}\n\n\n"
        "def warps_of(block: int) -> int:\n"
        '    """So many elements of a row in each thread, whatever the batch: the order of the sum follows."""\n'
        "    return max(1, min(16, block // (32 * THREAD_ELEMENTS)))\n"
    )
    sources = edit_region(sources, "row", "WARPS = 8\n", chosen)
    return edit_region(sources, "row", "num_warps=WARPS", "num_warps=warps_of(block)")


def _mechanism(name: str, summary: str, edit: partial[Sources]) -> Mechanism:
    return Mechanism(
        name=name,
        scope="joint",
        summary=summary,
        rationale="More warps load a row in fewer steps; fewer need no sum across warps and leave room for more rows.",
        numerical_risks="The squares of a row are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=1.03,
        edit=edit,
        evidence=always("how many warps share a row decides how many loads are under way and how long its sum is"),
        contract=("sum_order",),
        excludes=tuple(other for other in NAMES if other != name),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_jointly("row"),
    *(_mechanism(f"warps_of_{each}", f"{each} elements a thread", partial(_by_size, each)) for each in THREAD_ELEMENTS),
    *(_mechanism(f"warps_{count}", f"{count} warps for a row", partial(_warps, count)) for count in WARPS),
)
