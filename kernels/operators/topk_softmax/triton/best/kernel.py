"""topk_softmax for Triton: lists of the eight largest keys, put together two by two.

A key is a whole number in the order of the logits that also says whose it is. Each thread sorts eight neighbours and
keeps the eight largest of its lists; lanes that share a token put theirs together. Of many tokens each has a thread,
which looks at the largest of every four neighbours first: they are found where lanes still read along a token. Where k
is larger than eight, or experts are few, the largest key that is left is taken k times. Choosing is exact in every way;
weights are computed from the chosen logits, slot by slot, or from a sum over all experts that both paths cut alike.
"""

import torch
import triton
import triton.language as tl

# region choice
WARPS = 2
# Lanes that share a token. They may differ where weights add up to 1: no sum follows from how a token is cut then.
FULL_LANES, DECODE_LANES = 4, 16
# From so many tokens on, a thread for each fills the device; what is chosen and computed is the same.
MANY_TOKENS, MANY_WARPS = 16384, 2


@triton.jit
def ordered_words(logits):
    """bfloat16 in the upper halves of whole numbers of the same order, two at a time; -0 becomes 0."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 one, none, both, sign;
        mov.b32 one, 0x3f803f80;
        mov.b32 none, 0;
        fma.rn.bf16x2 both, $2, one, none;
        prmt.b32 sign, both, none, 0xbb99;
        and.b32 sign, sign, 0x7fff7fff;
        xor.b32 both, both, sign;
        shl.b32 $0, both, 16;
        and.b32 $1, both, 0xffff0000;
        }""",
        "=r,=r,r",
        [logits],
        dtype=tl.int32,
        is_pure=True,
        pack=2,
    )


@triton.jit
def keyed(logits, expert):
    """Whole numbers in the order of the logits, of equal ones the lower expert larger; -0 counts as 0.

    32 bits of them where the logits are bfloat16, else 64.
    """
    if logits.dtype == tl.bfloat16:
        keys = ordered_words(logits) + (65535 - expert)
    else:
        word = (logits + 0.0).to(tl.int32, bitcast=True)
        keys = ((word ^ ((word >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32) + (65535 - expert).to(tl.int64)
    return keys


@triton.jit
def logit_of(key):
    """The logit that a key was made of."""
    if key.dtype == tl.int32:
        word = (key ^ ((key >> 31) & 0x7FFF0000)) & -65536
    else:
        word = (key >> 32).to(tl.int32)
        word = word ^ ((word >> 31) & 0x7FFFFFFF)
    return word.to(tl.float32, bitcast=True)


@triton.jit
def expert_of(key):
    """The expert that a key stands for."""
    return (65535 - (key & 65535)).to(tl.int32)


@triton.jit
def ordered(a, b):
    """The larger, then the smaller."""
    return tl.maximum(a, b), tl.minimum(a, b)


@triton.jit
def falling(a, b, c, d, e, f, g, h):
    """Eight keys that rise and then fall, or fall and then rise, the largest first."""
    a, e = ordered(a, e)
    b, f = ordered(b, f)
    c, g = ordered(c, g)
    d, h = ordered(d, h)
    a, c = ordered(a, c)
    b, d = ordered(b, d)
    e, g = ordered(e, g)
    f, h = ordered(f, h)
    a, b = ordered(a, b)
    c, d = ordered(c, d)
    e, f = ordered(e, f)
    g, h = ordered(g, h)
    return a, b, c, d, e, f, g, h


@triton.jit
def larger_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):  # noqa: E741
    """The eight largest keys of two lists of eight, each the largest first."""
    a, b, c, d = tl.maximum(a, p), tl.maximum(b, o), tl.maximum(c, n), tl.maximum(d, m)
    e, f, g, h = tl.maximum(e, l), tl.maximum(f, k), tl.maximum(g, j), tl.maximum(h, i)
    return falling(a, b, c, d, e, f, g, h)


@triton.jit
def apart(keys):
    """The two halves of keys [lanes, rows, lists, n], every other one of the last dimension."""
    lanes: tl.constexpr = keys.shape[0]
    rows: tl.constexpr = keys.shape[1]
    lists: tl.constexpr = keys.shape[2]
    return tl.split(tl.reshape(keys, [lanes, rows, lists, keys.shape[3] // 2, 2]))


@triton.jit
def sorted_eights(keys):
    """Keys [lanes, rows, lists, 8] as eight of [lanes, rows, lists], the largest first: nineteen comparisons."""
    even, odd = apart(keys)
    first, third = apart(even)
    second, fourth = apart(odd)
    a, e = tl.split(first)
    c, g = tl.split(third)
    b, f = tl.split(second)
    d, h = tl.split(fourth)
    a, b = ordered(a, b)
    c, d = ordered(c, d)
    e, f = ordered(e, f)
    g, h = ordered(g, h)
    a, c = ordered(a, c)
    b, d = ordered(b, d)
    e, g = ordered(e, g)
    f, h = ordered(f, h)
    b, c = ordered(b, c)
    f, g = ordered(f, g)
    a, e = ordered(a, e)
    b, f = ordered(b, f)
    c, g = ordered(c, g)
    d, h = ordered(d, h)
    c, e = ordered(c, e)
    d, f = ordered(d, f)
    b, c = ordered(b, c)
    d, e = ordered(d, e)
    f, g = ordered(f, g)
    return a, b, c, d, e, f, g, h


@triton.jit
def side_by_side(a, b, c, d, e, f, g, h):
    """Eight of [rows] as [rows, 8]."""
    every = tl.join(tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, h)))
    return tl.reshape(tl.permute(every, [0, 3, 2, 1]), [a.shape[0], 8])


@triton.jit
def sum_of_first(a, b, c, d, e, f, g, h, K: tl.constexpr):
    """The first K added up, one after another."""
    total = a
    if K > 1:
        total += b
    if K > 2:
        total += c
    if K > 3:
        total += d
    if K > 4:
        total += e
    if K > 5:
        total += f
    if K > 6:
        total += g
    if K > 7:
        total += h
    return total


@triton.jit
def exponentials(a, b, c, d, e, f, g, h):
    """exp of each key's logit less the first one's."""
    top = logit_of(a)
    a, b, c, d = tl.exp(top - top), tl.exp(logit_of(b) - top), tl.exp(logit_of(c) - top), tl.exp(logit_of(d) - top)
    e, f = tl.exp(logit_of(e) - top), tl.exp(logit_of(f) - top)
    g, h = tl.exp(logit_of(g) - top), tl.exp(logit_of(h) - top)
    return a, b, c, d, e, f, g, h


@triton.jit
def stored(weights, ids, row, tokens, raised, total, found, K: tl.constexpr):
    """The first K of raised over total, and of found, all [rows, 8] but total [rows]."""
    slot = tl.arange(0, 8)[None, :]
    inside = (row < tokens)[:, None] & (slot < K)
    at = row.to(tl.int64)[:, None] * K + slot
    tl.store(weights + at, tl.div_rn(raised, tl.broadcast_to(total[:, None], raised.shape)), mask=inside)
    tl.store(ids + at, found, mask=inside)


@triton.jit
def keys_of(logits, row, top, tokens, experts):
    """The keys [rows, 4] of the quad that a key stands for."""
    expert = 4 * expert_of(top)[:, None] + tl.arange(0, 4)[None, :]
    inside = (row < tokens)[:, None] & (expert < experts)
    own = tl.load(logits + row.to(tl.int64)[:, None] * experts + expert, mask=inside, other=float("-inf"))
    return keyed(own, expert)


@triton.jit
def list_of(first, second):
    """The keys of two quads [rows, 4] as a list, the largest first: eight of [rows]."""
    rows: tl.constexpr = first.shape[0]
    a, b, c, d, e, f, g, h = sorted_eights(tl.reshape(tl.join(first, second), [1, rows, 1, 8]))
    a, b, c, d = tl.reshape(a, [rows]), tl.reshape(b, [rows]), tl.reshape(c, [rows]), tl.reshape(d, [rows])
    e, f, g, h = tl.reshape(e, [rows]), tl.reshape(f, [rows]), tl.reshape(g, [rows]), tl.reshape(h, [rows])
    return a, b, c, d, e, f, g, h


@triton.jit
def merged(one, other):
    """The eight largest keys of two lists."""
    a, b, c, d, e, f, g, h = one
    i, j, k, l, m, n, o, p = other  # noqa: E741
    return larger_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)


@triton.jit(do_not_specialize=["tokens"])
def by_quads(
    logits,
    weights,
    ids,
    tokens,
    experts,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    LISTS: tl.constexpr,
    FILLED: tl.constexpr,
):
    """ROWS tokens, a thread for each: the eight quads with the largest logits, then the eight largest of theirs.

    The eight largest logits lie in them: of quads with equal largest logits the lower comes first, as its logits do.
    """
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    quad = tl.arange(0, LISTS)[None, :, None, None] * 8 + tl.arange(0, 8)[None, None, None, :]
    expert = 8 * tl.arange(0, 4 * LISTS)[:, None, None] + tl.arange(0, 8)[None, None, :]
    inside = (row < tokens)[None, :, None]
    if not FILLED:
        inside &= expert < experts
    own = tl.load(logits + row.to(tl.int64)[None, :, None] * experts + expert, mask=inside, other=float("-inf"))
    largest = tl.max(tl.reshape(own, [LISTS, 4, ROWS, 2, 4]), 4)
    largest = tl.reshape(tl.permute(largest, [0, 2, 1, 3]), [1, LISTS, ROWS, 8]).to(own.dtype)
    keys = keyed(largest, quad)
    a, b, c, d, e, f, g, h = tl.reduce(sorted_eights(keys), 1, larger_half)
    a, b, c, d = tl.reshape(a, [ROWS]), tl.reshape(b, [ROWS]), tl.reshape(c, [ROWS]), tl.reshape(d, [ROWS])
    e, f, g, h = tl.reshape(e, [ROWS]), tl.reshape(f, [ROWS]), tl.reshape(g, [ROWS]), tl.reshape(h, [ROWS])
    one = list_of(keys_of(logits, row, a, tokens, experts), keys_of(logits, row, b, tokens, experts))
    two = list_of(keys_of(logits, row, c, tokens, experts), keys_of(logits, row, d, tokens, experts))
    three = list_of(keys_of(logits, row, e, tokens, experts), keys_of(logits, row, f, tokens, experts))
    four = list_of(keys_of(logits, row, g, tokens, experts), keys_of(logits, row, h, tokens, experts))
    a, b, c, d, e, f, g, h = merged(merged(one, two), merged(three, four))
    found = expert_of(side_by_side(a, b, c, d, e, f, g, h))
    a, b, c, d, e, f, g, h = exponentials(a, b, c, d, e, f, g, h)
    total = sum_of_first(a, b, c, d, e, f, g, h, K)
    stored(weights, ids, row, tokens, side_by_side(a, b, c, d, e, f, g, h), total, found, K)


@triton.jit(do_not_specialize=["tokens"])
def by_lists(
    logits,
    weights,
    ids,
    tokens,
    experts,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    LISTS: tl.constexpr,
    FILLED: tl.constexpr,
    RENORMALISED: tl.constexpr,
):
    """ROWS tokens, LANES lanes for each with LISTS lists of eight, which are FILLED or end in what is no expert."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)[:, None, None, None]
    near = tl.arange(0, LISTS)[None, None, :, None] * (8 * LANES) + tl.arange(0, 8)[None, None, None, :]
    expert = near + 8 * lane
    inside = (row < tokens)[None, :, None, None]
    if not FILLED:
        inside &= expert < experts
    own = tl.load(logits + row.to(tl.int64)[None, :, None, None] * experts + expert, mask=inside, other=float("-inf"))
    a, b, c, d, e, f, g, h = tl.reduce(sorted_eights(keyed(own, near)), 2, larger_half)
    far = 8 * tl.arange(0, LANES)[:, None]
    lists = (a - far, b - far, c - far, d - far, e - far, f - far, g - far, h - far)
    a, b, c, d, e, f, g, h = tl.reduce(lists, 0, larger_half)
    found = expert_of(side_by_side(a, b, c, d, e, f, g, h))
    top = logit_of(a)
    a, b, c, d, e, f, g, h = exponentials(a, b, c, d, e, f, g, h)
    if RENORMALISED:
        total = sum_of_first(a, b, c, d, e, f, g, h, K)
    else:
        every = tl.exp(own.to(tl.float32) - top[None, :, None, None])
        total = tl.sum(tl.sum(tl.sum(every, 3), 2), 0)
    stored(weights, ids, row, tokens, side_by_side(a, b, c, d, e, f, g, h), total, found, K)


@triton.jit(do_not_specialize=["tokens"])
def one_by_one(
    logits,
    weights,
    ids,
    tokens,
    experts,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    RENORMALISED: tl.constexpr,
):
    """ROWS tokens, for each K times the largest key that is left."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert, slot = tl.arange(0, EXPERTS)[None, :], tl.arange(0, SLOTS)[None, :]
    inside = (row < tokens)[:, None]
    at = row.to(tl.int64)[:, None]
    own = tl.load(logits + at * experts + expert, mask=inside & (expert < experts), other=float("-inf"))
    keys = keyed(own, expert)
    top = tl.max(keys, 1)
    largest = logit_of(top)
    total = tl.zeros_like(largest)
    if not RENORMALISED:
        total = tl.sum(tl.exp(own.to(tl.float32) - largest[:, None]), 1)
    chosen = tl.zeros([ROWS, SLOTS], tl.float32)
    found = tl.zeros([ROWS, SLOTS], tl.int32)
    for k in tl.static_range(K):
        top = tl.max(keys, 1)
        weight = tl.exp(logit_of(top) - largest)
        if RENORMALISED:
            total += weight
        chosen = tl.where(slot == k, weight[:, None], chosen)
        found = tl.where(slot == k, expert_of(top)[:, None], found)
        keys = tl.where(keys == top[:, None], -2147483648 if keys.dtype == tl.int32 else -9223372036854775808, keys)
    tl.store(
        weights + at * K + slot,
        tl.div_rn(chosen, tl.broadcast_to(total[:, None], chosen.shape)),
        mask=inside & (slot < K),
    )
    tl.store(ids + at * K + slot, found, mask=inside & (slot < K))


def route(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, lanes: int, renormalised: bool) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts], in one launch."""
    (tokens, experts), (_, k) = logits.shape, ids.shape
    padded = triton.next_power_of_2(experts)
    if k > 8 or padded < 32:
        slots = triton.next_power_of_2(k)
        sizes = (tokens, experts, k, slots, padded, 4, renormalised)
        one_by_one[(triton.cdiv(tokens, 4),)](logits, weights, ids, *sizes, num_warps=4, launch_pdl=True)
        return
    if tokens >= MANY_TOKENS and renormalised and padded <= 128 and logits.dtype == torch.bfloat16:
        rows = 32 * MANY_WARPS
        sizes = (tokens, experts, k, rows, padded // 32, padded == experts)
        by_quads[(triton.cdiv(tokens, rows),)](logits, weights, ids, *sizes, launch_pdl=True, num_warps=MANY_WARPS)
        return
    lanes = max(min(lanes, padded // 8), padded // 64)
    rows = WARPS * max(1, 32 // lanes)
    sizes = (tokens, experts, k, rows, lanes, padded // 8 // lanes, padded == experts, renormalised)
    by_lists[(triton.cdiv(tokens, rows),)](logits, weights, ids, *sizes, num_warps=WARPS, launch_pdl=True)


# endregion choice


# region full
def topk_softmax_full_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, FULL_LANES, True)


def topk_softmax_full_f32(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, FULL_LANES, True)


def topk_probabilities_full_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; all experts' weights would add up to 1."""
    route(logits, weights, ids, FULL_LANES, False)


# endregion full


# region decode
def topk_softmax_decode_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, DECODE_LANES, True)


def topk_softmax_decode_f32(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; the weights of a token add up to 1."""
    route(logits, weights, ids, DECODE_LANES, True)


def topk_probabilities_decode_bf16(logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> None:
    """weights and ids [tokens, k] of logits [tokens, experts]; all experts' weights would add up to 1."""
    route(logits, weights, ids, FULL_LANES, False)


# endregion decode
