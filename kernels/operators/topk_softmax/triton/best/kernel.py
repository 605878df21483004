"""topk_softmax for Triton: lists of the eight largest keys, put together two by two.

A key is a whole number in the order of the logits that also says whose it is. Each thread sorts eight neighbours and
keeps the eight largest of its lists; lanes that share a token put theirs together. Where k is larger than eight, or
experts are few, the largest key that is left is taken k times.

Of many tokens each has a thread, which finds the eight quads of neighbours with the largest logits, then the eight
largest logits of those. Its keys have 16 bits, of which one instruction compares two pairs: how far a logit lies above
a base that follows from the token's largest one, in steps of bfloat16, and below that its place. Logits under the base
are as good as the base, and none of the eight may be: a program that has such a token starts again with whole keys.

Choosing is exact in every way; weights are computed from the chosen logits, slot by slot, or from a sum over all
experts, of exponentials of at least 2^-126, that both paths cut alike.
"""

# A list of eight keys is eight names, and what the compiler decides stands in an `if` of its own.
# ruff: noqa: E741, SIM108

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# region choice
WARPS = 2
# Lanes that share a token. They may differ where weights add up to 1: no sum follows from how a token is cut then.
FULL_LANES, DECODE_LANES = 4, 16
# From so many tokens on, a thread for each fills the device; what is chosen and computed is the same.
# Sums over all experts are quicker by lists for longer.
MANY_TOKENS, MANY_SUMMED = 8192, 262144
# Registers of a thread: more let all loads be under way at once, fewer more programs.
FEW_REGISTERS, REGISTERS, MOST_TOKENS = 64, 96, 131072
# Of a token's largest logit, as bfloat16: so that no key's base is negative, and that all eight exponentials are normal
# numbers, of which quotients are rounded correctly without a look at them.
LOWEST, HIGHEST = tl.constexpr(2048), tl.constexpr(0x4280)
# The same number of 16 bits in both halves of a word, times that number.
TWICE = tl.constexpr(0x10001)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def narrow_keys(logits, rest):
    """Keys of bfloat16 logits, two at a time: in the upper half what has their order, where -0 is 0, then the rest."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 one, none, both, sign;
        mov.b32 one, 0x3f803f80;
        mov.b32 none, 0;
        fma.rn.bf16x2 both, $2, one, none;
        prmt.b32 sign, both, none, 0xbb99;
        and.b32 sign, sign, 0x7fff7fff;
        xor.b32 both, both, sign;
        prmt.b32 $0, $3, both, 0x5410;
        prmt.b32 $1, $4, both, 0x7610;
        }""",
        "=r,=r,r,r,r",
        [logits, rest],
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
        keys = narrow_keys(logits, 65535 - expert)
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
def upper_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):
    """The eight largest keys of two lists of eight, each the largest first, in no order."""
    a, b, c, d = tl.maximum(a, p), tl.maximum(b, o), tl.maximum(c, n), tl.maximum(d, m)
    e, f, g, h = tl.maximum(e, l), tl.maximum(f, k), tl.maximum(g, j), tl.maximum(h, i)
    return a, b, c, d, e, f, g, h


@triton.jit
def larger_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):
    """The same, the largest first."""
    a, b, c, d, e, f, g, h = upper_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
    return falling(a, b, c, d, e, f, g, h)


@triton.jit
def apart(keys):
    """The two halves of keys [lanes, rows, lists, n], every other one of the last dimension."""
    lanes: tl.constexpr = keys.shape[0]
    rows: tl.constexpr = keys.shape[1]
    lists: tl.constexpr = keys.shape[2]
    return tl.split(tl.reshape(keys, [lanes, rows, lists, keys.shape[3] // 2, 2]))


@triton.jit
def sorted_eight(a, b, c, d, e, f, g, h):
    """Eight keys, the largest first: nineteen comparisons."""
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
def sorted_eights(keys):
    """Keys [lanes, rows, lists, 8] as eight of [lanes, rows, lists], the largest first."""
    even, odd = apart(keys)
    first, third = apart(even)
    second, fourth = apart(odd)
    a, e = tl.split(first)
    c, g = tl.split(third)
    b, f = tl.split(second)
    d, h = tl.split(fourth)
    return sorted_eight(a, b, c, d, e, f, g, h)


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
def merged(one, other):
    """The eight largest keys of two lists."""
    a, b, c, d, e, f, g, h = one
    i, j, k, l, m, n, o, p = other
    return larger_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)


@triton.jit
def sum_of_all(raised):
    """The sum of every token's raised [lanes, rows, lists, 8], the same however eights are shared out to lanes.

    Eights are added first, then those that are half of all apart, then a quarter: lists within a lane, then lanes.
    """
    eights = tl.sum(raised, 3)
    lanes: tl.constexpr = eights.shape[0]
    rows: tl.constexpr = eights.shape[1]
    if eights.shape[2] == 8:
        eights = tl.sum(tl.reshape(eights, [lanes, rows, 2, 4]), 2)
    if eights.shape[2] == 4:
        eights = tl.sum(tl.reshape(eights, [lanes, rows, 2, 2]), 2)
    return tl.sum(tl.sum(eights, 2), 0)


@triton.jit
def as_pairs(first, second):
    """Words of two numbers of 16 bits each, the first one in the lower half."""
    low = first.to(tl.int16, bitcast=True).to(tl.int32) & 65535
    return low | (second.to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def larger_signed(a, b):
    """The larger of either half of two words, as signed numbers."""
    return tl.inline_asm_elementwise("max.s16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def larger(a, b):
    """The larger of either half of two words, as unsigned numbers."""
    return tl.inline_asm_elementwise("max.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def smaller(a, b):
    """The smaller of either half of two words, as unsigned numbers."""
    return tl.inline_asm_elementwise("min.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def halves_together(a, b):
    """The lower halves of two words, and the upper ones."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;",
        "=&r,=r,r,r",
        [a, b],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def turned(a):
    """Words with their halves changed over."""
    return tl.inline_asm_elementwise("prmt.b32 $0, $1, $1, 0x1032;", "=r,r", [a], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def ordered_pairs(a, b):
    """Of either half the larger, then the smaller."""
    return larger(a, b), smaller(a, b)


@triton.jit
def sorted_pairs(a, b, c, d, e, f, g, h):
    """Eight words, either half the largest first."""
    a, b = ordered_pairs(a, b)
    c, d = ordered_pairs(c, d)
    e, f = ordered_pairs(e, f)
    g, h = ordered_pairs(g, h)
    a, c = ordered_pairs(a, c)
    b, d = ordered_pairs(b, d)
    e, g = ordered_pairs(e, g)
    f, h = ordered_pairs(f, h)
    b, c = ordered_pairs(b, c)
    f, g = ordered_pairs(f, g)
    a, e = ordered_pairs(a, e)
    b, f = ordered_pairs(b, f)
    c, g = ordered_pairs(c, g)
    d, h = ordered_pairs(d, h)
    c, e = ordered_pairs(c, e)
    d, f = ordered_pairs(d, f)
    b, c = ordered_pairs(b, c)
    d, e = ordered_pairs(d, e)
    f, g = ordered_pairs(f, g)
    return a, b, c, d, e, f, g, h


@triton.jit
def falling_pairs(a, b, c, d, e, f, g, h):
    """Eight words of which either half rises and then falls, the largest first."""
    a, e = ordered_pairs(a, e)
    b, f = ordered_pairs(b, f)
    c, g = ordered_pairs(c, g)
    d, h = ordered_pairs(d, h)
    a, c = ordered_pairs(a, c)
    b, d = ordered_pairs(b, d)
    e, g = ordered_pairs(e, g)
    f, h = ordered_pairs(f, h)
    a, b = ordered_pairs(a, b)
    c, d = ordered_pairs(c, d)
    e, f = ordered_pairs(e, f)
    g, h = ordered_pairs(g, h)
    return a, b, c, d, e, f, g, h


@triton.jit
def merged_pairs(one, other):
    """The eight largest of two lists, in either half, the largest first."""
    a, b, c, d, e, f, g, h = one
    i, j, k, l, m, n, o, p = other
    a, b, c, d = larger(a, p), larger(b, o), larger(c, n), larger(d, m)
    e, f, g, h = larger(e, l), larger(f, k), larger(g, j), larger(h, i)
    return falling_pairs(a, b, c, d, e, f, g, h)


@triton.jit
def both_halves(lists):
    """The eight largest of both halves' lists, in no order that matters: in the halves of four words."""
    a, b, c, d, e, f, g, h = lists
    return (
        larger(a, turned(h)),
        larger(b, turned(g)),
        larger(c, turned(f)),
        larger(d, turned(e)),
    )


@triton.jit
def offset_keys(word, base, first):
    """Keys of the logits in a word: how far they lie above base, and in the lower bits first."""
    return (larger_signed(word, base) - base) * 128 + first


@triton.jit
def raised_to(power):
    """2 to the power, at least 2^-126 or 0."""
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def inverse_of(total):
    """1 / total, for totals from 1 to 8, to the last bit but one."""
    near = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [total], dtype=tl.float32, is_pure=True, pack=1
    )
    return tl.fma(near, tl.fma(-total, near, 1.0), near)


@triton.jit
def quotient(raised, total, inverse):
    """raised / total, correctly rounded, where both and it are far from the ends of float32."""
    near = raised * inverse
    near = tl.fma(inverse, tl.fma(-total, near, raised), near)
    return tl.fma(inverse, tl.fma(-total, near, raised), near)


@triton.jit
def largest_of(a, b, c, d, e, f, g, h):
    """The largest of eight words, in either half."""
    a, b, c, d = larger_signed(a, b), larger_signed(c, d), larger_signed(e, f), larger_signed(g, h)
    return larger_signed(larger_signed(a, b), larger_signed(c, d))


@triton.jit
def quad_keys(a, b, c, d, e, f, g, h, base, STEP: tl.constexpr, FIRST: tl.constexpr):
    """Keys of words of two quads each, the lower of FIRST + STEP * i, sorted in either half."""
    place: tl.constexpr = FIRST * 0x20002
    each: tl.constexpr = STEP * 0x20002
    last: tl.constexpr = 0x1E001F
    a = (larger_signed(a, base) - base) * 32 + (last - place)
    b = (larger_signed(b, base) - base) * 32 + (last - place - each)
    c = (larger_signed(c, base) - base) * 32 + (last - place - 2 * each)
    d = (larger_signed(d, base) - base) * 32 + (last - place - 3 * each)
    e = (larger_signed(e, base) - base) * 32 + (last - place - 4 * each)
    f = (larger_signed(f, base) - base) * 32 + (last - place - 5 * each)
    g = (larger_signed(g, base) - base) * 32 + (last - place - 6 * each)
    h = (larger_signed(h, base) - base) * 32 + (last - place - 7 * each)
    return sorted_pairs(a, b, c, d, e, f, g, h)


@triton.jit
def logit_above(key, base):
    """The logit of a key."""
    return (((key << 9) & -65536) + (base << 16)).to(tl.float32, bitcast=True)


@triton.jit
def power_of(logit, top):
    return raised_to((logit - top) * LOG2_E)


@gluon.jit
def eight(words):
    """Words [rows, 8] as eight of [rows]."""
    rows: gl.constexpr = words.shape[0]
    even, odd = gl.split(gl.reshape(words, [rows, 4, 2]))
    first, third = gl.split(gl.reshape(even, [rows, 2, 2]))
    second, fourth = gl.split(gl.reshape(odd, [rows, 2, 2]))
    a, e = gl.split(first)
    c, g = gl.split(third)
    b, f = gl.split(second)
    d, h = gl.split(fourth)
    return a, b, c, d, e, f, g, h


@gluon.jit
def in_rows(a, b, c, d, e, f, g, h, ROW: gl.constexpr):
    """Eight of [rows], each as a thread has them that a row belongs to."""
    a, b = gl.convert_layout(a, ROW, assert_trivial=True), gl.convert_layout(b, ROW, assert_trivial=True)
    c, d = gl.convert_layout(c, ROW, assert_trivial=True), gl.convert_layout(d, ROW, assert_trivial=True)
    e, f = gl.convert_layout(e, ROW, assert_trivial=True), gl.convert_layout(f, ROW, assert_trivial=True)
    g, h = gl.convert_layout(g, ROW, assert_trivial=True), gl.convert_layout(h, ROW, assert_trivial=True)
    return a, b, c, d, e, f, g, h


@gluon.jit
def beside(a, b, c, d, e, f, g, h):
    """Eight of [rows] as [rows, 8]."""
    every = gl.join(gl.join(gl.join(a, b), gl.join(c, d)), gl.join(gl.join(e, f), gl.join(g, h)))
    return gl.reshape(gl.permute(every, [0, 3, 2, 1]), [a.shape[0], 8])


@gluon.jit
def quads_of(own):
    """Words of the largest of two quads [chunks, n, m] of logits [chunks, n, m, 8]; wrong where all are below 0."""
    chunks: gl.constexpr = own.shape[0]
    near: gl.constexpr = own.shape[1]
    far: gl.constexpr = own.shape[2]
    first, second = gl.split(gl.reshape(own, [chunks, near, far, 4, 2]))
    one, other = gl.split(gl.reshape(as_pairs(first, second), [chunks, near, far, 2, 2]))
    low, high = gl.split(larger_signed(one, other))
    low, high = halves_together(low, high)
    return larger_signed(low, high)


@gluon.jit
def by_token(values):
    """Values [chunks, n, m] of m times n tokens as [tokens, chunks], a thread for each token."""
    chunks: gl.constexpr = values.shape[0]
    rows: gl.constexpr = values.shape[1] * values.shape[2]
    OWN: gl.constexpr = gl.BlockedLayout([1, chunks], [32, 1], [gl.num_warps(), 1], [1, 0])
    return gl.convert_layout(gl.reshape(gl.permute(values, [2, 1, 0]), [rows, chunks]), OWN)


@gluon.jit
def folded(values):
    """The sum of values [rows, n]: those that are half of all apart, then a quarter."""
    rows: gl.constexpr = values.shape[0]
    if values.shape[1] == 16:
        low, high = gl.split(gl.permute(gl.reshape(values, [rows, 2, 8]), [0, 2, 1]))
        values = low + high
    if values.shape[1] == 8:
        low, high = gl.split(gl.permute(gl.reshape(values, [rows, 2, 4]), [0, 2, 1]))
        values = low + high
    if values.shape[1] == 4:
        low, high = gl.split(gl.permute(gl.reshape(values, [rows, 2, 2]), [0, 2, 1]))
        values = low + high
    low, high = gl.split(values)
    return low + high


@gluon.jit
def sum_of_every(own, top, ROW: gl.constexpr, LOAD: gl.constexpr):
    """The sum of the exponentials of own [chunks, n, m, 8] less top [m * n]: the tree that sum_of_all is."""
    highest = gl.permute(gl.reshape(top, [own.shape[2], own.shape[1]]), [1, 0])
    highest = gl.convert_layout(highest, gl.SliceLayout(0, gl.SliceLayout(3, LOAD)))
    highest = gl.expand_dims(gl.expand_dims(highest, 0), 3)
    raised = raised_to((own.to(gl.float32) - highest) * LOG2_E)
    return gl.convert_layout(folded(by_token(gl.sum(raised, 3))), ROW, assert_trivial=True)


@gluon.jit
def loaded(logits, first, experts, ROWS: gl.constexpr, LISTS: gl.constexpr, FILLED: gl.constexpr, LOAD: gl.constexpr):
    """The logits [4 * LISTS, n, ROWS / n, 8] of tokens from first on, neighbours in one thread, what is no expert -inf.

    Lanes read along n tokens, each thread of every n-th token: from one place on, by what is known when compiled.
    """
    near: gl.constexpr = 8 * gl.num_warps() // LISTS
    CHUNK: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LOAD)))
    NEAR: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LOAD)))
    FAR: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, LOAD)))
    EACH: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, LOAD)))
    expert = 8 * gl.arange(0, 4 * LISTS, layout=CHUNK)[:, None, None, None]
    expert = expert + gl.arange(0, 8, layout=EACH)[None, None, None, :]
    row = gl.arange(0, near, layout=NEAR)[None, :, None, None]
    far = (near * experts) * gl.arange(0, ROWS // near, layout=FAR)[None, None, :, None]
    at = logits + first.to(gl.int64) * experts + (row * experts + expert) + far
    if FILLED:
        own = gl.load(at)
    else:
        own = gl.load(at, mask=expert + 0 * row + 0 * far < experts, other=float("-inf"))
    return own


@gluon.jit
def quad_of(logits, row, left, experts, FILLED: gl.constexpr, QUAD: gl.constexpr):
    """Four logits as two words [rows], of the quad that is so far from the 32nd."""
    ROW: gl.constexpr = gl.SliceLayout(1, QUAD)
    place = gl.arange(0, 4, layout=gl.SliceLayout(0, QUAD))[None, :]
    expert = 4 * (31 - left)
    at = logits + (row.to(gl.int64) * experts + expert)[:, None] + place
    if FILLED:
        own = gl.load(at)
    else:
        own = gl.load(at, mask=expert[:, None] + place < experts, other=float("-inf"))
    even, odd = gl.split(gl.reshape(own, [own.shape[0], 2, 2]))
    a, b = gl.split(as_pairs(even, odd))
    return gl.convert_layout(a, ROW, assert_trivial=True), gl.convert_layout(b, ROW, assert_trivial=True)


@gluon.jit
def keys_from(logits, row, word, base, experts, FILLED: gl.constexpr, QUAD: gl.constexpr):
    """Keys of the quads that the halves of a word stand for: four words of two each."""
    one, other = word & 31, (word >> 16) & 31
    a, b = quad_of(logits, row, one, experts, FILLED, QUAD)
    c, d = quad_of(logits, row, other, experts, FILLED, QUAD)
    first, second = one * 0x40004 + 0x20003, other * 0x40004 + 0x20003
    a, b = offset_keys(a, base, first), offset_keys(b, base, first - 0x20002)
    c, d = offset_keys(c, base, second), offset_keys(d, base, second - 0x20002)
    return a, b, c, d


@gluon.jit
def put(weights, ids, first, chosen, found, K: gl.constexpr, ROWS: gl.constexpr):
    """Store the first K of chosen and found [rows, 8]."""
    OUT: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, OUT))[:, None]
    slot = gl.arange(0, 8, layout=gl.SliceLayout(0, OUT))[None, :]
    at = first.to(gl.int64) * K
    chosen, found = gl.convert_layout(chosen, OUT), gl.convert_layout(found, OUT)
    if K == 8:
        gl.store(weights + at + (row * K + slot), chosen)
        gl.store(ids + at + (row * K + slot), found)
    else:
        gl.store(weights + at + (row * K + slot), chosen, mask=slot + 0 * row < K)
        gl.store(ids + at + (row * K + slot), found, mask=slot + 0 * row < K)


@gluon.jit
def with_care(
    logits,
    weights,
    ids,
    first,
    experts,
    K: gl.constexpr,
    LISTS: gl.constexpr,
    FILLED: gl.constexpr,
    RENORMALISED: gl.constexpr,
    ROWS: gl.constexpr,
    QUAD: gl.constexpr,
    LOAD: gl.constexpr,
):
    """Weights and ids of tokens, whatever their logits."""
    OCTET: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, QUAD)
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, OCTET))
    place = gl.arange(0, 8, layout=gl.SliceLayout(0, OCTET))[None, :]
    a = gl.full([ROWS], -2147483648, gl.int32, layout=ROW)
    b, c, d, e, f, g, h = a, a, a, a, a, a, a
    for chunk in range(4 * LISTS):
        expert = 8 * chunk + place
        at = logits + (row.to(gl.int64) * experts)[:, None] + expert
        own = gl.load(at, mask=expert + 0 * row[:, None] < experts, other=float("-inf"))
        i, j, k, l, m, n, o, p = eight(narrow_keys(own, 65535 - (expert + 0 * row[:, None])))
        i, j, k, l, m, n, o, p = in_rows(i, j, k, l, m, n, o, p, ROW)
        i, j, k, l, m, n, o, p = sorted_eight(i, j, k, l, m, n, o, p)
        a, b, c, d, e, f, g, h = larger_half(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
    found = expert_of(beside(a, b, c, d, e, f, g, h))
    top = logit_of(a)
    a, b, c, d, e, f, g, h = exponentials(a, b, c, d, e, f, g, h)
    if RENORMALISED:
        total = sum_of_first(a, b, c, d, e, f, g, h, K)
    else:
        total = sum_of_every(loaded(logits, first, experts, ROWS, LISTS, FILLED, LOAD), top, ROW, LOAD)
    a, b = quotient_at_all(a, total), quotient_at_all(b, total)
    c, d = quotient_at_all(c, total), quotient_at_all(d, total)
    e, f = quotient_at_all(e, total), quotient_at_all(f, total)
    g, h = quotient_at_all(g, total), quotient_at_all(h, total)
    put(weights, ids, first, beside(a, b, c, d, e, f, g, h), found, K, ROWS)


@triton.jit
def quotient_at_all(raised, total):
    """raised / total, correctly rounded."""
    return tl.div_rn(raised, total)


@triton.jit
def powers_of(a, b, c, d, e, f, g, h, base):
    """The logit of the first key, and the exponentials of all of them less it."""
    top = logit_above(a, base)
    a, b = power_of(top, top), power_of(logit_above(b, base), top)
    c, d = power_of(logit_above(c, base), top), power_of(logit_above(d, base), top)
    e, f = power_of(logit_above(e, base), top), power_of(logit_above(f, base), top)
    g, h = power_of(logit_above(g, base), top), power_of(logit_above(h, base), top)
    return top, a, b, c, d, e, f, g, h


@triton.jit
def quotients(a, b, c, d, e, f, g, h, total):
    """Each over total."""
    inverse = inverse_of(total)
    a, b = quotient(a, total, inverse), quotient(b, total, inverse)
    c, d = quotient(c, total, inverse), quotient(d, total, inverse)
    e, f = quotient(e, total, inverse), quotient(f, total, inverse)
    g, h = quotient(g, total, inverse), quotient(h, total, inverse)
    return a, b, c, d, e, f, g, h


@gluon.jit(do_not_specialize=["tokens"])
def by_quads(
    logits,
    weights,
    ids,
    tokens,
    experts,
    K: gl.constexpr,
    LISTS: gl.constexpr,
    FILLED: gl.constexpr,
    RENORMALISED: gl.constexpr,
    WARPS: gl.constexpr,
):
    """32 * WARPS tokens, a thread for each: the eight quads with the largest logits, then the eight largest of theirs.

    The eight largest logits lie in them: of quads with equal largest logits the lower comes first, as its logits do.
    """
    gdc_launch_dependents()
    gdc_wait()
    ROWS: gl.constexpr = 32 * WARPS
    LOAD: gl.constexpr = gl.BlockedLayout([1, 1, 1, 8], [4 * LISTS, 8 // LISTS, 1, 1], [1, WARPS, 1, 1], [3, 0, 1, 2])
    QUAD: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, QUAD)
    # The last program begins earlier, to be full: some tokens are then computed twice, and alike.
    first = gl.minimum(gl.program_id(0) * ROWS, tokens - ROWS)
    row = first + gl.arange(0, ROWS, layout=ROW)
    # What is known when compiled is not computed for every load.
    each = 32 * LISTS if FILLED else experts
    own = loaded(logits, first, each, ROWS, LISTS, FILLED, LOAD)
    words = by_token(quads_of(own))
    if LISTS == 4:
        even, odd = gl.split(gl.reshape(words, [ROWS, 8, 2]))
        a, b, c, d, e, f, g, h = eight(even)
        a, b, c, d, e, f, g, h = in_rows(a, b, c, d, e, f, g, h, ROW)
        i, j, k, l, m, n, o, p = eight(odd)
        i, j, k, l, m, n, o, p = in_rows(i, j, k, l, m, n, o, p, ROW)
        highest = larger_signed(largest_of(a, b, c, d, e, f, g, h), largest_of(i, j, k, l, m, n, o, p))
        highest = larger_signed(highest, turned(highest))
        base = highest - 2047 * TWICE
        lists = merged_pairs(
            quad_keys(a, b, c, d, e, f, g, h, base, 2, 0), quad_keys(i, j, k, l, m, n, o, p, base, 2, 1)
        )
    else:
        a, b, c, d, e, f, g, h = eight(words)
        a, b, c, d, e, f, g, h = in_rows(a, b, c, d, e, f, g, h, ROW)
        highest = largest_of(a, b, c, d, e, f, g, h)
        highest = larger_signed(highest, turned(highest))
        base = highest - 2047 * TWICE
        lists = quad_keys(a, b, c, d, e, f, g, h, base, 1, 0)
    s, t, u, v = both_halves(lists)
    least = smaller(smaller(s, t), smaller(u, v))
    easy = (highest >= LOWEST * TWICE) & (highest <= HIGHEST * TWICE)
    easy = easy & ((least & 0xFFE0) != 0) & ((least >> 21) != 0)
    base = highest - 511 * TWICE
    a, b, c, d = keys_from(logits, row, s, base, each, FILLED, QUAD)
    e, f, g, h = keys_from(logits, row, t, base, each, FILLED, QUAD)
    i, j, k, l = keys_from(logits, row, u, base, each, FILLED, QUAD)
    m, n, o, p = keys_from(logits, row, v, base, each, FILLED, QUAD)
    lists = merged_pairs(sorted_pairs(a, b, c, d, e, f, g, h), sorted_pairs(i, j, k, l, m, n, o, p))
    s, t, u, v = both_halves(lists)
    a, b, c, d = s & 65535, t & 65535, u & 65535, v & 65535
    e, f, g, h = (v >> 16) & 65535, (u >> 16) & 65535, (t >> 16) & 65535, (s >> 16) & 65535
    a, b, c, d, e, f, g, h = falling(a, b, c, d, e, f, g, h)
    easy = easy & (h >= 128)
    if gl.min(easy.to(gl.int32), 0) == 1:
        found = 127 - (beside(a, b, c, d, e, f, g, h) & 127)
        top, r0, r1, r2, r3, r4, r5, r6, r7 = powers_of(a, b, c, d, e, f, g, h, base)
        if RENORMALISED:
            total = sum_of_first(r0, r1, r2, r3, r4, r5, r6, r7, K)
        else:
            total = sum_of_every(own, top, ROW, LOAD)
        r0, r1, r2, r3, r4, r5, r6, r7 = quotients(r0, r1, r2, r3, r4, r5, r6, r7, total)
        put(weights, ids, first, beside(r0, r1, r2, r3, r4, r5, r6, r7), found, K, ROWS)
    else:
        with_care(logits, weights, ids, first, each, K, LISTS, FILLED, RENORMALISED, ROWS, QUAD, LOAD)


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
        total = sum_of_all(raised_to((own.to(tl.float32) - top[None, :, None, None]) * LOG2_E))
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
    # A sum over all experts is the same tree only where a lane has eight neighbours: in rows of whole sixteens.
    many = tokens >= MANY_TOKENS if renormalised else tokens >= MANY_SUMMED and experts % 16 == 0
    if many and 64 <= padded <= 128 and logits.dtype == torch.bfloat16:
        registers = REGISTERS if tokens >= MOST_TOKENS else FEW_REGISTERS
        sizes = (tokens, experts, k, padded // 32, padded == experts, renormalised, 1)
        launch = by_quads[(triton.cdiv(tokens, 32),)]
        launch(logits, weights, ids, *sizes, launch_pdl=True, maxnreg=registers, num_warps=1)
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
