"""What can be done to rope on Triton: heads and warps of a program, and a program for each few heads of a token."""

from collections.abc import Mapping
from functools import partial

from kernelbraid.kernels.operators.catalogue import Mechanism, share_of
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.overlapping import overlapped_path
from kernelbraid.kernels.operators.regions import edit_region

TILES: Mapping[EntryPath, tuple[tuple[int, int], ...]] = {
    "full": ((32, 4), (8, 2), (8, 1), (16, 2)),
    "decode": ((8, 2), (8, 1), (4, 1), (32, 8)),
}
"""Heads and warps of one program."""
LOOPS = """\
    for first in range(0, query_heads, HEADS):
        rotate(q, q_out, token, q_stride, first, query_heads, cos, sin, half, HEADS, BLOCK)
    for first in range(0, kv_heads, HEADS):
        rotate(k, k_out, token, k_stride, first, kv_heads, cos, sin, half, HEADS, BLOCK)
"""
ONE_TILE = """\
    if tile < in_q:
        rotate(q, q_out, token, q_stride, tile * HEADS, query_heads, cos, sin, half, HEADS, BLOCK)
    else:
        rotate(k, k_out, token, k_stride, (tile - in_q) * HEADS, kv_heads, cos, sin, half, HEADS, BLOCK)
"""
WHICH = """\
    in_q = tl.cdiv(query_heads, HEADS)
    tiles = in_q + tl.cdiv(kv_heads, HEADS)
    token, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
"""


def _tile(path: EntryPath, heads: int, warps: int, sources: Sources) -> Sources:
    names = f"{path.upper()}_HEADS, {path.upper()}_WARPS"
    return edit_region(sources, path, f"{names} = 16, 4\n", f"{names} = {heads}, {warps}\n")


def _apart(path: EntryPath, sources: Sources) -> Sources:
    heads = f"{path.upper()}_HEADS"
    edits = {
        LOOPS: ONE_TILE,
        "    token = tl.program_id(0)\n": WHICH,
        '"""One token\'s heads of q, then those of k."""': '"""A few heads of one token, of q or of k."""',
        f"    {path}[(tokens,)]": (
            f"    tiles = triton.cdiv(query_heads, {heads}) + triton.cdiv(kv_heads, {heads})\n"
            f"    {path}[(tokens * tiles,)]"
        ),
    }
    for old, new in edits.items():
        sources = edit_region(sources, path, old, new)
    return sources


def _tile_name(path: EntryPath, heads: int, warps: int) -> str:
    return f"{path}_tile_{heads}_{warps}"


def _tile_mechanism(path: EntryPath, heads: int, warps: int) -> Mechanism:
    return Mechanism(
        name=_tile_name(path, heads, warps),
        scope=path,
        summary=f"{heads} heads at a time and {warps} warps",
        rationale="All loads of a tile are under way at once: its size decides how many.",
        numerical_risks="None: a pair is turned by itself.",
        falsification="No lower latency on this path.",
        expected_gain_ratio=1.02,
        edit=partial(_tile, path, heads, warps),
        evidence=share_of(path, "it is bound by memory, and loads under way are set by the tile"),
        excludes=tuple(_tile_name(path, *other) for other in TILES[path] if other != (heads, warps)),
        opened_by=(f"{path}_heads_apart",),
    )


def _apart_mechanism(path: EntryPath, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"{path}_heads_apart",
        scope=path,
        summary="a program for every few heads of a token",
        rationale="Few tokens leave multiprocessors idle, and a program that waits for one tile loads no other.",
        numerical_risks="None: a pair is turned by itself.",
        falsification="No lower latency on this path, as when the angles are read too often.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_apart, path),
        evidence=share_of(path, "a program takes all heads of a token, one tile after another"),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_path("full"),
    overlapped_path("decode"),
    _apart_mechanism("decode", 1.1),
    _apart_mechanism("full", 1.01),
    *(_tile_mechanism(path, *tile) for path, tiles in TILES.items() for tile in tiles),
)
