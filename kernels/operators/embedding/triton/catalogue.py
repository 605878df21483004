"""What can be done to embedding on Triton: the warps that copy a row."""

from collections.abc import Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.overlapping import overlapped_path
from kernelbraid.kernels.operators.regions import edit_region

WARPS: Mapping[EntryPath, tuple[int, ...]] = {"full": (1, 2, 8), "decode": (8, 2)}


def _warps(path: EntryPath, warps: int, sources: Sources) -> Sources:
    return edit_region(sources, path, f"{path.upper()}_WARPS = 4\n", f"{path.upper()}_WARPS = {warps}\n")


def _warps_mechanism(path: EntryPath, warps: int) -> Mechanism:
    return Mechanism(
        name=f"{path}_warps_{warps}",
        scope=path,
        summary=f"{warps} warps for a row",
        rationale="Fewer warps have more loads under way each and let more rows run beside one another.",
        numerical_risks="None: bits are copied.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.02,
        edit=partial(_warps, path, warps),
        evidence=share_of(path, "it is bound by memory, and loads under way are set by the warps"),
        excludes=tuple(f"{path}_warps_{other}" for other in WARPS[path] if other != warps),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_path("full"),
    overlapped_path("decode"),
    *(_warps_mechanism(path, warps) for path, every in WARPS.items() for warps in every),
)
