"""What can be done to topk_softmax on Triton: keys that carry their expert, and how many tokens share a program."""

from collections.abc import Callable
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.overlapping import overlapped_jointly
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region

TILES = {"rows_1": (1, 1), "rows_8": (8, 4), "rows_16": (16, 4), "rows_32": (32, 8)}
"""Tokens and warps of one program, instead of 4 and 4."""

KEYS = '''\
@triton.jit
def keyed(logits, expert):
    """Whole numbers in the order of the logits, of equal ones the lower expert larger; -0 counts as 0."""
    word = (logits.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    word = word ^ ((word >> 31) & 0x7FFFFFFF)
    wide = (word.to(tl.int64) << 32) | (65535 - expert).to(tl.int64)
    return (word & -65536) | (65535 - expert) if logits.dtype == tl.bfloat16 else wide


@triton.jit
def logit_of(key):
    """The logit that a key was made of."""
    word = tl.where(key < 0, key | 65535, key & -65536) if key.dtype == tl.int32 else (key >> 32).to(tl.int32)
    return (word ^ ((word >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def without(keys, top):
    """The keys, with the one that was chosen below all others."""
    least = -2147483648 if keys.dtype == tl.int32 else -9223372036854775808
    return tl.where(keys == top, least, keys)


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
KERNEL = "@triton.jit(do_not_specialize="
LISTS = (
    "ROWS, WARPS = 4, 4\n\n\n"
    + KEYS
    + '''\
@triton.jit
def lowest(like):
    """Below every key, in the shape of these."""
    least = -2147483648 if like.dtype == tl.int32 else -9223372036854775808
    return tl.full(like.shape, least, like.dtype)


@triton.jit
def descending(keys):
    """Four neighbours of keys [rows, experts] as a list: four times [rows, experts / 4], the largest first."""
    even, odd = tl.split(tl.reshape(keys, [keys.shape[0], keys.shape[1] // 2, 2]))
    a, c = tl.split(tl.reshape(even, [keys.shape[0], keys.shape[1] // 4, 2]))
    b, d = tl.split(tl.reshape(odd, [keys.shape[0], keys.shape[1] // 4, 2]))
    a, b = tl.maximum(a, b), tl.minimum(a, b)
    c, d = tl.maximum(c, d), tl.minimum(c, d)
    a, c = tl.maximum(a, c), tl.minimum(a, c)
    b, d = tl.maximum(b, d), tl.minimum(b, d)
    return a, tl.maximum(b, c), tl.minimum(b, c), d


@triton.jit
def largest_keys(keys, K: tl.constexpr, SLOTS: tl.constexpr):
    """The K largest keys of each row, the largest first, in [rows, SLOTS]."""
    EXPERTS: tl.constexpr = keys.shape[1]
    if EXPERTS >= 4 * SLOTS:
        first, second, third, fourth = descending(keys)
        place = tl.arange(0, EXPERTS // 4)[None, :]
        chosen = lowest(first)
        for k in tl.static_range(K):
            top = tl.max(first, 1)[:, None]
            taken = first == top
            chosen = tl.where(place == k, top, chosen)
            first = tl.where(taken, second, first)
            second = tl.where(taken, third, second)
            third = tl.where(taken, fourth, third)
            fourth = tl.where(taken, lowest(fourth), fourth)
        found = tl.max(tl.reshape(chosen, [keys.shape[0], EXPERTS // 4 // SLOTS, SLOTS]), 1)
    else:
        slot = tl.arange(0, SLOTS)[None, :]
        found = lowest(tl.broadcast_to(tl.max(keys, 1)[:, None], [keys.shape[0], SLOTS]))
        for k in tl.static_range(K):
            top = tl.max(keys, 1)[:, None]
            found = tl.where(slot == k, top, found)
            keys = tl.where(keys == top, lowest(keys), keys)
    return found


@triton.jit
def routed(logits, K: tl.constexpr, SLOTS: tl.constexpr, RENORMALISED: tl.constexpr):
    """Weights and ids [rows, SLOTS] of the K largest logits [rows, experts], the lower expert first of equals."""
    chosen = largest_keys(keyed(logits, tl.arange(0, logits.shape[1])[None, :]), K, SLOTS)
    values = tl.where(tl.arange(0, SLOTS)[None, :] < K, logit_of(chosen), float("-inf"))
    largest = tl.max(values, 1)[:, None]
    raised = tl.exp(values - largest)
    if RENORMALISED:
        total = tl.sum(raised, 1)
    else:
        total = tl.sum(tl.exp(logits.to(tl.float32) - largest), 1)
    return tl.div_rn(raised, tl.broadcast_to(total[:, None], raised.shape)), (65535 - (chosen & 65535)).to(tl.int32)


'''
)


def _lists(sources: Sources) -> Sources:
    """Another way to the same choice: all of the region is new but the kernel that calls it."""
    text = region(sources, "choice")
    if "def keyed(" in text:
        raise Refused("region choice: it works with keys already")
    return replace_region(sources, "choice", LISTS + text[text.index(KERNEL) :])


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
        opened_by=("packed_keys", "lists_of_four"),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    overlapped_jointly("choice"),
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
        excludes=("lists_of_four",),
    ),
    Mechanism(
        name="lists_of_four",
        scope="joint",
        summary="each thread sorts four keys once, and a choice looks at the first of every list alone",
        rationale="A choice then compares a quarter of the keys, and weights are computed once, after all of them, not "
        "in each across the layouts of two tiles.",
        numerical_risks="The k exponentials are added as a tree instead of from the largest on.",
        falsification="No lower weighted latency, or another expert where logits are equal.",
        expected_gain_ratio=1.5,
        edit=_lists,
        evidence=_always("each of the k choices compares all experts again, and stores its result across layouts"),
        contract=("choice", "sum_order"),
        excludes=("packed_keys", *TILES),
    ),
    _tile_mechanism("rows_8", 1.05),
    _tile_mechanism("rows_16", 1.05),
    _tile_mechanism("rows_32", 1.02),
    _tile_mechanism("rows_1", 1.02),
)
