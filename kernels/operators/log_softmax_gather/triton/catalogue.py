"""What can be done to log_softmax_gather on Triton: chunks, warps, loads ahead, exponentials, cache hints."""

from collections.abc import Callable
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.overlapping import overlapped_path
from kernelbraid.kernels.operators.regions import edit_region

WORTH_A_TRY_RATIO = 0.1
TILES = {
    "chunk_4096": (4096, 4),
    "chunk_4096_8": (4096, 8),
    "chunk_8192_4": (8192, 4),
    "chunk_16384": (16384, 8),
    "chunk_16384_16": (16384, 16),
}
"""Logits and warps of one chunk, instead of 8192 and 8."""
WALK = """\
    for chunk in range(tl.cdiv(vocab, CHUNK)):
        top, total = chunk_sum(chunk_values(logits, token, chunk, vocab, CHUNK))
"""
AHEAD = """\
    ahead = chunk_values(logits, token, 0, vocab, CHUNK)
    for chunk in range(tl.cdiv(vocab, CHUNK)):
        values = ahead
        ahead = chunk_values(logits, token, chunk + 1, vocab, CHUNK)
        top, total = chunk_sum(values)
"""
EXP = "    return top, tl.sum(tl.exp(values - finite), 0)\n"
EXP2 = """\
    finite = finite * 1.4426950408889634
    return top, tl.sum(tl.exp2(tl.fma(values, 1.4426950408889634, -finite)), 0)
"""
READ = """\
    return tl.load(logits + token.to(tl.int64) * vocab + at, mask=at < vocab, other=float("-inf"))
"""
STREAMED = """\
    return tl.load(
        logits + token.to(tl.int64) * vocab + at, mask=at < vocab, other=float("-inf"), eviction_policy="evict_first"
    )
"""


def _tile(chunk: int, warps: int, sources: Sources) -> Sources:
    return edit_region(sources, "chunk", "CHUNK, WARPS = 8192, 8\n", f"CHUNK, WARPS = {chunk}, {warps}\n")


def _in_region(region: str, old: str, new: str) -> Callable[[Sources], Sources]:
    return partial(_edited, region, old, new)


def _edited(region: str, old: str, new: str, sources: Sources) -> Sources:
    return edit_region(sources, region, old, new)


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _always(reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        return reason

    return evidence


def _tile_mechanism(name: str) -> Mechanism:
    chunk, warps = TILES[name]
    return Mechanism(
        name=name,
        scope="joint",
        summary=f"chunks of {chunk} logits, {warps} warps for each",
        rationale="A chunk ends in two reductions that all warps wait for; larger ones end less often, smaller ones "
        "leave room for more programs and give decode more of them.",
        numerical_risks="The exponentials are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode results that differ in a bit.",
        expected_gain_ratio=1.05,
        edit=partial(_tile, chunk, warps),
        evidence=_always("the chunk decides how many loads are under way and how often warps wait for one another"),
        contract=("chunks", "sum_order", "fold"),
        excludes=tuple(other for other in TILES if other != name),
        opened_by=("full_ahead",),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_path("full"),
    overlapped_path("decode"),
    Mechanism(
        name="full_ahead",
        scope="full",
        summary="the next chunk is loaded before this one is summed",
        rationale="While warps wait for the two reductions of a chunk, nothing is under way from memory.",
        numerical_risks="None: the same chunks are summed in the same way.",
        falsification="No lower latency on this path, as when other programs of the multiprocessor load meanwhile.",
        expected_gain_ratio=1.1,
        edit=_in_region("full", WALK, AHEAD),
        evidence=_share("full", "each chunk's loads begin when the one before is summed"),
    ),
    Mechanism(
        name="exp2_fma",
        scope="joint",
        summary="exp by one fused multiply-add and exp2",
        rationale="exp(logit - largest) is a subtraction, a product and exp2; scaled beforehand it is one less.",
        numerical_risks="The difference is not rounded by itself, and the scaled maximum is: far from 0 all terms of a "
        "chunk may be off alike.",
        falsification="No lower weighted latency, or an error past the tolerance.",
        expected_gain_ratio=1.05,
        edit=_in_region("chunk", EXP, EXP2),
        evidence=_always("each logit costs a conversion, a comparison, an exponential and an addition"),
        contract=("exponential",),
    ),
    *map(_tile_mechanism, TILES),
    Mechanism(
        name="streamed",
        scope="joint",
        summary="logits marked as read once",
        rationale="A vocabulary of logits is read once and is larger than any cache.",
        numerical_risks="None: the same values are loaded.",
        falsification="No lower weighted latency.",
        expected_gain_ratio=1.01,
        edit=_in_region("chunk", READ, STREAMED),
        evidence=_always("logits pass through a cache that they do not fit into"),
        opened_by=("full_ahead",),
    ),
)
