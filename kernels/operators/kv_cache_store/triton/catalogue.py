"""What can be done to kv_cache_store on Triton: tokens and warps of a program, keys and values side by side."""

from collections.abc import Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.overlapping import overlapped_path
from kernelbraid.kernels.operators.regions import edit_region

ELEMENTS: Mapping[EntryPath, tuple[int, ...]] = {"full": (2048, 4096, 1024), "decode": (1024, 512)}
WARPS: Mapping[EntryPath, tuple[int, ...]] = {"full": (8, 2), "decode": (2, 1)}


def _filled(path: EntryPath, elements: int, sources: Sources) -> Sources:
    old = f"    count = {path.upper()}_TOKENS\n"
    return edit_region(sources, path, old, f"    count = max({path.upper()}_TOKENS, {elements} // block)\n")


def _warps(path: EntryPath, warps: int, sources: Sources) -> Sources:
    name = path.upper()
    return edit_region(sources, path, f"{name}_WARPS = 1, 4\n", f"{name}_WARPS = 1, {warps}\n")


def _filled_mechanism(path: EntryPath, elements: int) -> Mechanism:
    return Mechanism(
        name=f"{path}_tokens_of_{elements}",
        scope=path,
        summary=f"as many tokens a program as hold {elements} keys",
        rationale="With two key heads a token has 256 keys, less than a program's lanes can load at once.",
        numerical_risks="None: bits are copied.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.2,
        edit=partial(_filled, path, elements),
        evidence=share_of(path, "tokens of few heads leave lanes idle and start as many programs"),
        excludes=tuple(f"{path}_tokens_of_{other}" for other in ELEMENTS[path] if other != elements),
    )


def _warps_mechanism(path: EntryPath, warps: int) -> Mechanism:
    return Mechanism(
        name=f"{path}_warps_{warps}",
        scope=path,
        summary=f"{warps} warps for a program",
        rationale="Warps share a program's loads: more of them have fewer under way each.",
        numerical_risks="None: bits are copied.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.02,
        edit=partial(_warps, path, warps),
        evidence=share_of(path, "it is bound by memory, and loads under way are set by the tile"),
        excludes=tuple(f"{path}_warps_{other}" for other in WARPS[path] if other != warps),
        opened_by=tuple(f"{path}_tokens_of_{elements}" for elements in ELEMENTS[path]),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_path("full"),
    overlapped_path("decode"),
    *(_filled_mechanism(path, elements) for path, every in ELEMENTS.items() for elements in every),
    *(_warps_mechanism(path, warps) for path, every in WARPS.items() for warps in every),
)
