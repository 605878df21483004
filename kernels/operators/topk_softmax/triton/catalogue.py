"""What can be done to topk_softmax on Triton: keys that carry their expert, and how many tokens share a program."""

from collections.abc import Callable
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import edit_region

TILES = {"rows_1": (1, 1), "rows_8": (8, 4), "rows_16": (16, 4), "rows_32": (32, 8)}
"""Tokens and warps of one program, instead of 4 and 4."""

KEYS = '''\
@triton.jit
def keyed(logits, expert):
    """Whole numbers in the order of the logits, of equal ones the lower expert larger; -0 counts as 0."""
    word = (logits.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    word = word ^ ((word >> 31) & 0x7FFFFFFF)
    if logits.dtype == tl.bfloat16:
        return (word & -65536) | (65535 - expert)
    else:
        return (word.to(tl.int64) << 32) | (65535 - expert).to(tl.int64)


@triton.jit
def logit_of(key):
    """The logit that a key was made of."""
    if key.dtype == tl.int32:
        word = tl.where(key < 0, key | 65535, key & -65536)
    else:
        word = (key >> 32).to(tl.int32)
    return (word ^ ((word >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def without(keys, top):
    """The keys, with the one that was chosen below all others."""
    if keys.dtype == tl.int32:
        return tl.where(keys == top, -2147483648, keys)
    else:
        return tl.where(keys == top, -9223372036854775808, keys)


'''
PACKED = {
    "@triton.jit\ndef routed(": KEYS + "@triton.jit\ndef routed(",
    "    slot = tl.arange(0, SLOTS)[None, :]\n": (
        "    slot = tl.arange(0, SLOTS)[None, :]\n    keys = keyed(logits, expert)\n"
    ),
    "        best = tl.max(left, 1)\n": "        top = tl.max(keys, 1)\n        best = logit_of(top)\n",
    "        found = tl.min(tl.where(left == best[:, None], expert, left.shape[1]), 1)\n": (
        "        found = (65535 - (top & 65535)).to(tl.int32)\n"
    ),
    '        left = tl.where(expert == found[:, None], float("-inf"), left)\n': (
        "        keys = without(keys, top[:, None])\n"
    ),
}


def _packed(sources: Sources) -> Sources:
    for old, new in PACKED.items():
        sources = edit_region(sources, "choice", old, new)
    return sources


def _tile(rows: int, warps: int, sources: Sources) -> Sources:
    return edit_region(sources, "choice", "ROWS, WARPS = 4, 4\n", f"ROWS, WARPS = {rows}, {warps}\n")


def _always(reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        return reason

    return evidence


def _tile_mechanism(name: str, gain_ratio: float) -> Mechanism:
    rows, warps = TILES[name]
    return Mechanism(
        name=name,
        scope="joint",
        summary=f"{rows} tokens and {warps} warps for a program",
        rationale="More tokens fill a program's warps and are stored together; fewer start at once in a small batch.",
        numerical_risks="All experts' exponentials may be added in another order; both paths must change together.",
        falsification="No lower weighted latency, or weights of full and decode that differ in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_tile, rows, warps),
        evidence=_always("a token is little work, and how many share a program decides what each one waits for"),
        contract=("sum_order",),
        excludes=tuple(other for other in TILES if other != name),
        opened_by=("packed_keys",),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    Mechanism(
        name="packed_keys",
        scope="joint",
        summary="logit and expert in one whole number, so that one reduction finds both",
        rationale="Each of the k choices reduces a row twice, for the value and for its place; of 32-bit keys once, "
        "and by an instruction of its own.",
        numerical_risks="None: the order of the keys is that of the logits, and -0 is made 0 first.",
        falsification="No lower weighted latency, or another expert where logits are equal.",
        expected_gain_ratio=1.2,
        edit=_packed,
        evidence=_always("each choice waits for two reductions across a warp, one after the other"),
        contract=("choice",),
    ),
    _tile_mechanism("rows_8", 1.05),
    _tile_mechanism("rows_16", 1.05),
    _tile_mechanism("rows_32", 1.02),
    _tile_mechanism("rows_1", 1.02),
)
