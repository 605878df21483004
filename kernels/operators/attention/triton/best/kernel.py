"""Attention for Hopper in Gluon: keys are cut every SPLIT tokens, counted from a sequence's first key.

A split is a softmax over tiles of KEYS keys; splits are merged first to last. The full path does both in one program:
two warpgroups with 64 queries each, a third one that fetches, and the merged output of earlier splits in registers
and shared memory. Decode computes splits in parallel programs, and a second kernel merges them.

Weights are 2^(score - base), with scores in powers of two. A split's base is the highest score of its first FIRST keys,
which every row sees that sees the split; or of all keys, where that lies more than SLACK above. The merged base is the
first split's until one lies more than SLACK above it. So nearly always nothing waits for a maximum, and nothing is
rescaled. Decode has all scores of a split at once and does as the rule says. The full path assumes that nothing lies
far above, sees by the totals whether that was so, and if not for some row, goes through its tiles again, with care.

The full path multiplies queries by keys, decode keys by queries: eight columns hold a KV head's queries where a tile
of rows would be nearly empty. wgmma adds the products of an element in the order of the inner dimension alone, so both
give the same bits; maxima do not depend on an order; and a split's weights are added in an order that neither path's
layout can change: in each tile by halves of the key's index, but for its bits 1 and 2; tile after tile; and by these
two bits at the split's end.
"""

# A kernel's tuples grow by addition, and what the compiler decides stands in an `if` of its own.
# ruff: noqa: RUF005, SIM102

import math

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# region tile
SPLIT, KEYS = 512, 128
# How many of a split's first keys give its base, and how many powers of two scores may lie above a base.
FIRST, SLACK = 8, 32.0


@gluon.jit
def quartered(weights):
    """Sums over a row's KEYS = 128 keys, one for each value of bits 1 and 2 of the key's index.

    The other bits are added by halves, one after the other: 3, 6, 4, 5, 0. All lie in one thread. Where the second half
    of the keys is not seen, and so would add zeros, there are only the first 64.
    """
    if weights.shape[1] == 128:
        x = gl.sum(gl.reshape(weights, [weights.shape[0], 2, 2, 2, 2, 4, 2]), 4)
        x = gl.sum(x, 1)
    else:
        x = gl.sum(gl.reshape(weights, [weights.shape[0], 2, 2, 2, 4, 2]), 3)
    x = gl.sum(x, 2)
    x = gl.sum(x, 1)
    return gl.sum(x, 2)


@gluon.jit
def added(quarters):
    """The sum of a split's four: bit 1 of the key's index first, then bit 2."""
    x = gl.reshape(quarters, [quarters.shape[0], 2, 2])
    return gl.sum(gl.sum(x, 2), 1)


@triton.jit
def based(first, every, scale, SLACK: tl.constexpr):
    """A split's base, in powers of two: of its first keys' scores the highest, or of all where that lies far above."""
    base = first * scale
    return tl.where(tl.fma(every, scale, -base) > SLACK, every * scale, base)


@triton.jit
def part_of(base, total):
    """A split's base as it is merged: -inf where a row does not see the split, and so has no total."""
    return tl.where(total > 0, base, float("-inf"))


# endregion tile


# region merge
@triton.jit
def merged(base, total, part_base, part_total, SLACK: tl.constexpr):
    """Factors of what came before and of the next split, and the two together.

    The base is the first split's until one lies far above it. A split that a row does not see has the base -inf and
    changes nothing: its factors are 1 and 0.
    """
    raised = tl.where(part_base - base > SLACK, part_base, base)
    finite = tl.where(raised == float("-inf"), 0.0, raised)
    kept = tl.exp2(base - finite)
    joined = tl.exp2(part_base - finite)
    return kept, joined, raised, tl.fma(part_total, joined, total * kept)


# endregion merge


# region finish
@triton.jit
def normalised(total):
    """What the output is multiplied by; 0 for a row without keys."""
    return tl.where(total > 0, tl.div_rn(1.0, tl.where(total > 0, total, 1.0)), 0.0)


@triton.jit
def log_sum(base, total):
    """The natural logarithm of the sum of exp(score); -inf for a row without keys."""
    return tl.where(total > 0, (base + tl.log2(total)) * 0.6931471805599453, float("-inf"))


# endregion finish


# region keys
PACKED, WHOLE_PAGES, ANY_PAGES = 0, 1, 2


def placement(slots: int, page_tokens: int) -> int:
    """Whether each sequence's keys lie in one piece, in pages of whole tiles, or in any pages."""
    return PACKED if slots == 1 else WHOLE_PAGES if page_tokens % KEYS == 0 else ANY_PAGES


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """k or v as [keys, kv_heads * head_dim]."""
    return x.view(-1, x.shape[-2] * x.shape[-1])


def fetched(x: torch.Tensor, where: int, parts: int = 1) -> torch.Tensor | TensorDescriptor:
    """k or v as a kernel fetches tiles of it, or parts of their rows: by a descriptor, or by pointers."""
    if where == ANY_PAGES:
        return x
    width = x.shape[-1] // parts
    return TensorDescriptor.from_tensor(as_rows(x), [KEYS, width], shared(KEYS, width))


def shared(rows: int, columns: int) -> gl.NVMMASharedLayout:
    """Where a bfloat16 tile's elements lie in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)


@gluon.jit
def first_row(place, sequence, key, slots, page_tokens, PLACE: gl.constexpr):
    """The row of k and v that holds a tile's first key, where the tile lies in one piece."""
    if PLACE == 1:
        return gl.load(place + sequence * slots + key // page_tokens) * page_tokens + key % page_tokens
    return gl.load(place + sequence) * page_tokens + key


@gluon.jit
def quotient(x, divisor):
    """x // divisor of tensors that are not negative: a division for all elements, and for each a product."""
    unsigned = divisor.to(gl.uint32)
    found = gl.umulhi(x.to(gl.uint32), gl.full_like(x, 0).to(gl.uint32) + 4294967295 // unsigned).to(gl.int32)
    return gl.where(x - found * divisor >= divisor, found + 1, found)


@gluon.jit
def rows_of(place, sequence, key, count, slots, page_tokens, KEYS: gl.constexpr, D: gl.constexpr):
    """The rows of k and v that hold a tile's keys, wherever their pages lie."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    keys = key + gl.arange(0, KEYS, gl.SliceLayout(1, layout))
    slot = quotient(keys, page_tokens)
    page = gl.load(place + sequence * slots + slot, mask=keys < count, other=0)
    return (page - slot) * page_tokens + keys


@gluon.jit
def gather(x, tile, rows, key, count, head, kv_heads, KEYS: gl.constexpr, D: gl.constexpr):
    """Begin to copy a tile of k or v from its rows; zeros from the sequence's end on."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    inside = key + gl.arange(0, KEYS, gl.SliceLayout(1, layout)) < count
    at = (rows.to(gl.int64) * kv_heads + head) * D
    d = gl.arange(0, D, gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(tile, x + at[:, None] + d[None, :], mask=inside[:, None])
    async_copy.commit_group()


@gluon.jit
def end_with_zeros(tile, key, count, ROWS: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr):
    """Zeros in v's rows from the sequence's end on, whatever lies there: a weight of 0 must add nothing."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    rows = key + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    for part in gl.static_range(KEYS // ROWS):
        if key + part * ROWS + ROWS > count:
            piece = tile.slice(part * ROWS, ROWS)
            held = piece.load(layout)
            piece.store(gl.where((rows + part * ROWS < count)[:, None], held, gl.zeros_like(held)))
    fence_async_shared()


# endregion keys


# region full
# A split's total from LIMIT on may hold a weight above 2^SLACK.
ROWS, STAGES, REGISTERS, LIMIT = 128, 2, (240, 24), 2147483648.0
PROGRAMS = 132


@gluon.jit
def sequence_of(query_start, batch, program, ROWS: gl.constexpr):
    """The last sequence whose tiles begin at or before this program; a sequence has one tile to spare."""
    low = 0
    high = batch
    while high - low > 1:
        middle = (low + high) // 2
        begins = gl.load(query_start + middle) // ROWS + middle
        low = gl.where(begins <= program, middle, low)
        high = gl.where(begins <= program, high, middle)
    return low


@gluon.jit
def numbers_of(sequence, query_start, query_count, key_count, place):
    """What four arrays say of a sequence: a lane looks each of them up, so all are on their way together."""
    lane = gl.arange(0, 32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    counts = gl.where(lane == 2, key_count + sequence, place + sequence)
    found = gl.load(gl.where(lane == 0, query_start + sequence, gl.where(lane == 1, query_count + sequence, counts)))
    return (
        gl.max(gl.where(lane == 0, found, 0), 0),
        gl.max(gl.where(lane == 1, found, 0), 0),
        gl.max(gl.where(lane == 2, found, 0), 0),
        gl.max(gl.where(lane == 3, found, 0), 0),
    )


@gluon.jit
def work(round, call, place, SHAPE: gl.constexpr):
    """What a program does in a round: the sequence, its first row, queries and keys, the head, the tile's first query,
    how many tiles of keys it sees, 0 for none, and what `place` says of the sequence.

    The tiles with the most keys come first, all heads of one beside each other; programs take turns in being first.
    A tile is 128 queries of one head, or 64 of each of two HEADS beside each other.
    """
    KEYS: gl.constexpr = SHAPE[0]
    HEADS: gl.constexpr = SHAPE[6]
    ROWS: gl.constexpr = 128 // HEADS
    query_start, query_count, key_count, batch, row_tiles, query_heads = call
    programs, blocks = gl.num_programs(0), query_heads // HEADS
    item = round * programs + gl.where(round % 2 == 0, gl.program_id(0), programs - 1 - gl.program_id(0))
    row_tile = row_tiles - 1 - item // blocks
    sequence = sequence_of(query_start, batch, row_tile, ROWS)
    start, queries, count, there = numbers_of(sequence, query_start, query_count, key_count, place)
    first = (row_tile - start // ROWS - sequence) * ROWS
    seen = gl.minimum(count, count - queries + first + ROWS)
    tiles = gl.where((row_tile >= 0) & (first < queries), gl.cdiv(seen, KEYS), 0)
    return sequence, start, queries, count, item % blocks * HEADS, first, tiles, there


@gluon.jit
def rounds(call, HEADS: gl.constexpr):
    """How many tiles a program takes at most."""
    return gl.cdiv(call[4] * (call[5] // HEADS), gl.num_programs(0))


@gluon.jit
def scored(scores, key, own):
    """A tile's scores, -inf where a key is not seen."""
    keys = key + gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
    return gl.where(keys[None, :] <= by_row(own, scores), scores, float("-inf"))


@gluon.jit
def after(total):
    """The same totals, with an instruction between that is never run: the assembler may not move a wait across it.

    It would wait for the value product before the weights of the next tile are computed, instead of meanwhile.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .f32 x; min.f32 x, $2, $3; setp.lt.f32 p, x, 0f00000000; @p nanosleep.u32 10;"
        "mov.b32 $0, $2; mov.b32 $1, $3; }",
        "=r,=r,r,r",
        [total],
        dtype=gl.float32,
        is_pure=False,
        pack=2,
    )


@gluon.jit
def in_two(out):
    """The left and the right half of the columns."""
    x = gl.reshape(out, [out.shape[0], 2, out.shape[1] // 2])
    return gl.split(gl.permute(x, [0, 2, 1]))


@gluon.jit
def whole(left, right, like):
    """The columns of two halves beside each other."""
    x = gl.permute(gl.join(left, right), [0, 2, 1])
    return gl.convert_layout(gl.reshape(x, [left.shape[0], 2 * left.shape[1]]), like.type.layout)


@gluon.jit
def by_row(factor, of):
    """A factor for each row, as what it multiplies lies."""
    return gl.convert_layout(factor, gl.SliceLayout(1, of.type.layout))[:, None]


@gluon.jit
def add_split(part, earlier, joined):
    """Columns of a split's output added to those of the earlier splits."""
    return gl.fma(part, by_row(joined, part), earlier)


@gluon.jit
def settled(out, earlier, kept_s, joined, only, KEPT: gl.constexpr):
    """A split's output added to that of the earlier ones, which is in shared memory; `only` says that there are none.

    Of what is KEPT a half and a quarter of the columns are in registers, the rest in shared memory.
    """
    left, right = in_two(out)
    if KEPT:
        middle, rest = in_two(right)
        before = gl.where(only, gl.zeros_like(rest), kept_s[0].load(rest.type.layout))
        kept_s[0].store(add_split(rest, before, joined))
        earlier = (add_split(left, earlier[0], joined), add_split(middle, earlier[1], joined))
    elif only:
        kept_s[0].store(left)
        kept_s[1].store(right)
    else:
        kept_s[0].store(add_split(left, kept_s[0].load(left.type.layout), joined))
        kept_s[1].store(add_split(right, kept_s[1].load(right.type.layout), joined))
    return earlier


@gluon.jit
def all_splits(out, earlier, kept_s, joined, KEPT: gl.constexpr):
    """The last split's output added to the earlier ones."""
    left, right = in_two(out)
    if KEPT:
        middle, rest = in_two(right)
        left, middle = add_split(left, earlier[0], joined), add_split(middle, earlier[1], joined)
        right = whole(middle, add_split(rest, kept_s[0].load(rest.type.layout), joined), right)
    else:
        left = add_split(left, kept_s[0].load(left.type.layout), joined)
        right = add_split(right, kept_s[1].load(right.type.layout), joined)
    return whole(left, right, out)


@gluon.jit
def write(out, inverse, base, total, place, y, lse, D: gl.constexpr):
    """What the queries attend to, and the logarithm of their sum."""
    start, queries, begin, head, query_heads = place
    row = begin + gl.arange(0, out.shape[0], base.type.layout)
    gl.store(lse + (start + row).to(gl.int64) * query_heads + head, log_sum(base, total), row < queries)
    # rows as the product has them; of columns a lane has four beside each other, so four lanes write 32 bytes
    more: gl.constexpr = [[0, 16], [0, 32]] + ([[0, 64]] if D == 128 else [])
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]] + more, [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, D]
    )
    # + 0.0: a split that a row does not see turns -0.0 into 0.0, so every row does
    found = gl.convert_layout(narrowed(gl.fma(out, by_row(inverse, out), 0.0)), layout)
    row, d = begin + gl.arange(0, out.shape[0], gl.SliceLayout(1, layout)), gl.arange(0, D, gl.SliceLayout(0, layout))
    at = (start + row).to(gl.int64) * query_heads + head
    gl.store(y + at[:, None] * D + d[None, :], found, (row < queries)[:, None])


@gluon.jit
def begin_scores(tile, taken, mine, bars, zero, STAGES: gl.constexpr):
    """Begin the products of the queries and a tile's keys, or the first half of them."""
    q, keys_s = mine[0], mine[1]
    stage = (taken + tile) % STAGES
    mbarrier.wait(bars[2].index(stage), (taken + tile) // STAGES & 1)
    keys = keys_s.index(stage).slice(0, zero.shape[1])
    return warpgroup_mma(q, keys.permute([1, 0]), zero, use_acc=False, is_async=True)


@gluon.jit
def begin_values(tile, taken, out, w, begun, mine, bars, STAGES: gl.constexpr):
    """Begin to add a tile's values to the output, or to begin it."""
    stage = (taken + tile) % STAGES
    mbarrier.wait(bars[3].index(stage), (taken + tile) // STAGES & 1)
    values = mine[2].index(stage).slice(0, w.shape[1])
    return warpgroup_mma(w, values, out, use_acc=not begun, is_async=True)


@gluon.jit
def seen_of(scores, tile, seen, KEYS: gl.constexpr):
    """A tile's scores, -inf where a key is not seen.

    `seen` are the last keys that the rows see, how many tiles all of them do, and how many keys one of them does.
    """
    own, clear, _end = seen
    if tile >= clear:
        scores = scored(scores, tile * KEYS, own)
    return scores


@gluon.jit
def first_of(scores, like):
    """The highest score of a row's first FIRST = 8 keys; 0 for a row that does not see them."""
    x = scores
    for _ in gl.static_range(4 if scores.shape[1] == 128 else 3):
        x, _right = in_two(x)
    top = gl.convert_layout(gl.max(x, 1), like.type.layout)
    return gl.where(top == float("-inf"), 0.0, top)


@gluon.jit
def narrowed(weights):
    """The weights in bfloat16, two in a register."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [weights], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def weighed_tile(scores, base, scale):
    """A tile's weights and the sums of their quarters."""
    weights = gl.exp2(gl.fma(scores, scale, -by_row(base, scores)))
    return weights, quartered(weights)


@gluon.jit
def ended(total, base, all_base, all_total, only, LIMIT: gl.constexpr):
    """A split's end: its factor, and the merged base and total, which is NaN from then on where a row needs care."""
    done = gl.convert_layout(added(total), base.type.layout)
    if only:
        all_base = base
    joined = gl.where(done > 0, gl.exp2(base - all_base), 0.0)
    sound = (done < LIMIT) & (joined < LIMIT)
    return joined, all_base, gl.where(sound, gl.fma(done, joined, all_total), float("nan"))


@gluon.jit
def one_tile(tile, taken, slot, out, w, earlier, running, seen, mine, bars, zero, scale, SHAPE: gl.constexpr):
    """A tile's scores, or its first half's, and the values of the one before: added while the weights are computed.

    A split's end is noted here; its output is complete, and merged, only with the next tile.
    """
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    joined, base, total, all_base, all_total = running
    scores = begin_scores(tile, taken, mine, bars, zero, SHAPE[2])
    begun = (tile - 1) % TILES == 0
    if begun & (tile > 1):
        earlier = settled(out, earlier, mine[3], joined, True if SHAPE[5] else tile == TILES + 1, SHAPE[7])
    out = begin_values(tile - 1, taken, out, w, begun, mine, bars, SHAPE[2])
    scores = seen_of(warpgroup_mma_wait(1, [scores]), tile, seen, KEYS)
    if tile % TILES == 0:
        joined, all_base, all_total = ended(total, base, all_base, all_total, tile == TILES, SHAPE[3])
        base = first_of(scores, base) * scale
        total = gl.zeros_like(total)
    weights, sums = weighed_tile(scores, base, scale)
    total = after(total + gl.convert_layout(sums, total.type.layout))
    out, w = warpgroup_mma_wait(0, [out, w])
    mbarrier.arrive(bars[4].index((slot + tile) % 4))
    w = gl.convert_layout(narrowed(weights), gl.DotOperandLayout(0, out.type.layout, 2))
    return out, w, earlier, (joined, base, total, all_base, all_total)


@gluon.jit
def last_values(tile, taken, slot, out, w, earlier, running, mine, bars, SHAPE: gl.constexpr):
    """The last tile's values added, and what merges its split: the factors, the base and the total."""
    TILES: gl.constexpr = SHAPE[1]
    joined, base, total, all_base, all_total = running
    begun = tile % TILES == 0
    if begun & (tile > 0):
        earlier = settled(out, earlier, mine[3], joined, True if SHAPE[5] else tile == TILES, SHAPE[7])
    out = begin_values(tile, taken, out, w, begun, mine, bars, SHAPE[2])
    joined, all_base, all_total = ended(total, base, all_base, all_total, tile < TILES, SHAPE[3])
    inverse = normalised(all_total)
    out, w = warpgroup_mma_wait(0, [out, w])
    mbarrier.arrive(bars[4].index((slot + tile + 1) % 4))
    return out, inverse, earlier, (joined, all_base, all_total)


@gluon.jit
def split_base(first, count, taken, slot, seen, mine, bars, zero, scale, SHAPE: gl.constexpr):
    """A split's base from the scores of its tiles, the first of which is tile `first`."""
    KEYS: gl.constexpr = SHAPE[0]
    none = gl.full_like(seen[0].to(gl.float32), float("-inf"))
    start, top = none, none
    for tile in range(count):
        scores = begin_scores(tile, taken, mine, bars, zero, SHAPE[2])
        scores = seen_of(warpgroup_mma_wait(0, [scores]), first + tile, seen, KEYS)
        if tile == 0:
            start = first_of(scores, start)
        top = gl.maximum(top, gl.max(scores, 1))
        mbarrier.wait(bars[3].index((taken + tile) % SHAPE[2]), (taken + tile) // SHAPE[2] & 1)
        mbarrier.arrive(bars[4].index((slot + tile) % 4))
    return based(start, top, scale, SHAPE[4])


@gluon.jit
def split_output(first, count, base, taken, slot, seen, mine, bars, zero, out, scale, SHAPE: gl.constexpr):
    """A split's output and total."""
    KEYS: gl.constexpr = SHAPE[0]
    total = quartered(zero)
    for tile in range(count):
        scores = begin_scores(tile, taken, mine, bars, zero, SHAPE[2])
        scores = seen_of(warpgroup_mma_wait(0, [scores]), first + tile, seen, KEYS)
        mbarrier.arrive(bars[4].index((slot + tile) % 4))
        weights, sums = weighed_tile(scores, base, scale)
        total += gl.convert_layout(sums, total.type.layout)
        w = gl.convert_layout(narrowed(weights), gl.DotOperandLayout(0, out.type.layout, 2))
        out = begin_values(tile, taken, out, w, tile == 0, mine, bars, SHAPE[2])
        out, w = warpgroup_mma_wait(0, [out, w])
    return out, gl.convert_layout(added(total), base.type.layout)


@gluon.jit
def first_tile(taken, slot, seen, mine, bars, zero, none, zero_out, scale, SHAPE: gl.constexpr):
    """The weights of the first tile, or of its first half, and what is noted of them."""
    scores = begin_scores(0, taken, mine, bars, zero, SHAPE[2])
    scores = seen_of(warpgroup_mma_wait(0, [scores]), 0, seen, SHAPE[0])
    mbarrier.arrive(bars[4].index(slot % 4))
    base = first_of(scores, none) * scale
    weights, total = weighed_tile(scores, base, scale)
    w = gl.convert_layout(narrowed(weights), gl.DotOperandLayout(0, zero_out.type.layout, 2))
    return w, (none + 0.0, base, total, none + 0.0, none + 0.0)


@gluon.jit
def with_speed(tiles, taken, slot, seen, mine, bars, zero, none, zero_out, scale, SHAPE: gl.constexpr):
    """What a tile's rows attend to, their base and total; NaN for a total where a row needs care."""
    KEYS: gl.constexpr = SHAPE[0]
    half_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, KEYS // 2, 16])
    zero_half = gl.zeros([zero.shape[0], KEYS // 2], gl.float32, half_layout)
    left, right = in_two(zero_out)
    earlier = (left, in_two(right)[0])
    last, until, half, lone = tiles - 1, tiles, False, False
    if SHAPE[6] == 2:
        # whether no row sees the second half of the last tile
        half = last * KEYS + KEYS // 2 >= seen[2]
        lone = half & (last == 0)
        until = gl.where(half, last, tiles)
    if lone:
        w_only, noted = first_tile(taken, slot, seen, mine, bars, zero_half, none, zero_out, scale, SHAPE)
        mbarrier.arrive(mine[5])
        out, inverse, earlier, merging = last_values(
            last, taken, slot, zero_out, w_only, earlier, noted, mine, bars, SHAPE
        )
    else:
        w, running = first_tile(taken, slot, seen, mine, bars, zero, none, zero_out, scale, SHAPE)
        out = zero_out
        for tile in range(1, until):
            out, w, earlier, running = one_tile(
                tile, taken, slot, out, w, earlier, running, seen, mine, bars, zero, scale, SHAPE
            )
        if half:
            out, w_half, earlier, running = one_tile(
                last, taken, slot, out, w, earlier, running, seen, mine, bars, zero_half, scale, SHAPE
            )
            mbarrier.arrive(mine[5])
            out, inverse, earlier, merging = last_values(
                last, taken, slot, out, w_half, earlier, running, mine, bars, SHAPE
            )
        else:
            mbarrier.arrive(mine[5])
            out, inverse, earlier, merging = last_values(last, taken, slot, out, w, earlier, running, mine, bars, SHAPE)
    joined, all_base, all_total = merging
    if last >= SHAPE[1]:
        out = all_splits(out, earlier, mine[3], joined, SHAPE[7])
    return out, inverse, all_base, all_total


@gluon.jit
def with_care(tiles, taken, slot, seen, mine, bars, zero, none, zero_out, scale, SHAPE: gl.constexpr):
    """The same where scores rise far above those of a split's first keys, or from split to split: a split's keys are
    looked at twice.
    """
    TILES: gl.constexpr = SHAPE[1]
    all_out, all_base, all_total = zero_out, none + float("-inf"), none + 0.0
    for split in range(gl.cdiv(tiles, TILES)):
        first = split * TILES
        count = gl.minimum(TILES, tiles - first)
        base = split_base(first, count, taken, slot, seen, mine, bars, zero, scale, SHAPE)
        at, there = taken + count, slot + count
        out, total = split_output(first, count, base, at, there, seen, mine, bars, zero, zero_out, scale, SHAPE)
        kept, joined, all_base, all_total = merged(all_base, all_total, part_of(base, total), total, SHAPE[4])
        all_out = gl.fma(out, by_row(joined, out), all_out * by_row(kept, out))
        taken += 2 * count
        slot += 2 * count
    mbarrier.arrive(bars[4].index(slot % 4))
    mbarrier.arrive(mine[5])
    return all_out, normalised(all_total), all_base, all_total


@gluon.jit
def care_needed(care_s, WARPS: gl.constexpr):
    """Whether a row of either warpgroup needs care."""
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [WARPS], [0])
    return gl.max(care_s.index(0).load(layout) | care_s.index(1).load(layout), 0) > 0


@gluon.jit
def attend_all(
    ring,
    mine,
    memory,
    bars,
    call,
    y,
    lse,
    scale,
    CARE: gl.constexpr,
    PART: gl.constexpr,
    D: gl.constexpr,
    SHAPE: gl.constexpr,
):
    """All tiles of queries of this program, once the queries are there; and which rows need care."""
    KEYS: gl.constexpr = SHAPE[0]
    OWN: gl.constexpr = 16 * gl.num_warps()
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    zero = gl.zeros([OWN, KEYS], gl.float32, s_layout)
    none = gl.zeros([OWN], gl.float32, gl.SliceLayout(1, s_layout))
    zero_out = gl.zeros([OWN, D], gl.float32, o_layout)
    care = gl.zeros([OWN], gl.int32, gl.SliceLayout(1, s_layout))
    taken, held = ring
    for round in range(rounds(call, SHAPE[6])):
        _sequence, start, queries, count, head, first, tiles, _there = work(round, call, call[0], SHAPE)
        if tiles > 0:
            slot, begin = taken + held, first
            if SHAPE[6] == 1:
                begin += PART * OWN
            else:
                head += PART
            last = count - queries + begin
            own = last + gl.arange(0, OWN, none.type.layout)
            seen = (own, (last + 1) // KEYS, gl.minimum(count, last + OWN))
            mbarrier.wait(mine[4], held & 1)
            if CARE:
                out, inverse, base, total = with_care(
                    tiles, taken, slot, seen, mine, bars, zero, none, zero_out, scale, SHAPE
                )
            else:
                out, inverse, base, total = with_speed(
                    tiles, taken, slot, seen, mine, bars, zero, none, zero_out, scale, SHAPE
                )
            # a tile may have more rows than queries are left, with whatever lies behind the keys
            care = care | gl.where((seen[0] < count) & (total != total), 1, 0)
            write(out, inverse, base, total, (start, queries, begin, head, call[5]), y, lse, D)
            taken += 2 * tiles if CARE else tiles
            held += 1
    return taken, held, care


@gluon.jit
def attend(memory, bars, call, y, lse, scale, PART: gl.constexpr, D: gl.constexpr, SHAPE: gl.constexpr):
    """The queries of one warpgroup, 64 of a tile's 128, one tile after the other, and again if a row needs care.

    What was fetched is left slot by slot: a tile's keys together with the values of the tile before.
    """
    gdc_wait()
    queries_s, keys_s, values_s, earlier_s, care_s = memory
    halves = (earlier_s.index(2 * PART), earlier_s.index(2 * PART + 1))
    queries = (queries_s.index(PART), keys_s, values_s, halves, bars[0].index(PART), bars[1].index(PART))
    taken, held, care = attend_all((0, 0), queries, memory, bars, call, y, lse, scale, False, PART, D, SHAPE)
    care_s.index(PART).store(care)
    mbarrier.arrive(bars[6].index(0))
    mbarrier.wait(bars[6].index(0), 0)
    if care_needed(care_s, gl.num_warps()):
        attend_all((taken, held), queries, memory, bars, call, y, lse, scale, True, PART, D, SHAPE)


@gluon.jit
def fetch_queries(q_d, queries_s, bars, held, row, head, D: gl.constexpr, HEADS: gl.constexpr):
    """Each warpgroup's queries, once it has left those before."""
    for half in gl.static_range(2):
        mbarrier.wait(bars[1].index(half), held & 1 ^ 1)
        mbarrier.expect(bars[0].index(half), 64 * D * 2)
        at = [row + half * (64 if HEADS == 1 else 0), (head + half * (HEADS - 1)) * D]
        tma.async_copy_global_to_shared(q_d, at, bars[0].index(half), queries_s.index(half))


@gluon.jit
def copy_tile(x_d, tile, ready, at, head, KEYS: gl.constexpr, D: gl.constexpr):
    """Begin to copy a tile of k or v that lies in one piece."""
    mbarrier.expect(ready, KEYS * D * 2)
    tma.async_copy_global_to_shared(x_d, [at, head * D], ready, tile)


@gluon.jit
def copy_last(v_d, tile, ready, edge, edges, at, head, key, count, KEYS: gl.constexpr, D: gl.constexpr):
    """Copy v's last tile, with zeros from the sequence's end on."""
    copy_tile(v_d, tile, edge, at, head, KEYS, D)
    mbarrier.wait(edge, edges & 1)
    end_with_zeros(tile, key, count, 8, KEYS, D)
    mbarrier.arrive(ready)


@gluon.jit
def collect(x, tile, ready, rows, key, count, head, kv_heads, KEYS: gl.constexpr, D: gl.constexpr):
    """Copy a tile of k or v from its pages."""
    gather(x, tile, rows, key, count, head, kv_heads, KEYS, D)
    async_copy.wait_group(0)
    fence_async_shared()
    mbarrier.arrive(ready)


@gluon.jit
def await_slot(slot, slot_done):
    """Until both warpgroups have left a slot, counted from 4 before the first one."""
    mbarrier.wait(slot_done.index(slot % 4), slot // 4 & 1 ^ 1)


@gluon.jit
def tile_at(step, tiles, TILES: gl.constexpr):
    """The tile that is fetched at a step where those of a split are fetched after each other, and again."""
    split = step // (2 * TILES)
    return split * TILES + step % (2 * TILES) % gl.minimum(TILES, tiles - split * TILES)


@gluon.jit
def fetch_tile(
    step, tile, source, ring, memory, bars, where, D: gl.constexpr, SHAPE: gl.constexpr, PLACE: gl.constexpr
):
    """Fetch a tile's keys and values, each once both warpgroups have left what lay there."""
    KEYS: gl.constexpr = SHAPE[0]
    q_d, k_d, v_d, place, kv_heads, slots, page_tokens = source
    sequence, base, count, row, head, kv_head = where
    taken, held, edges = ring
    stage, key = (taken + step) % SHAPE[2], tile * KEYS
    keys, values = memory[1].index(stage), memory[2].index(stage)
    ready, edge = bars[3].index(stage), bars[5].index(0)
    # the queries before had a slot more than tiles, for their last values
    slot = taken + held + step + (step >= 2).to(gl.int32) + 1
    if PLACE == 2:
        rows = rows_of(place, sequence, key, count, slots, page_tokens, KEYS, D)
        await_slot(slot, bars[4])
        collect(k_d, keys, bars[2].index(stage), rows, key, count, kv_head, kv_heads, KEYS, D)
        if step == 0:
            fetch_queries(q_d, memory[0], bars, held, row, head, D, SHAPE[6])
        await_slot(slot + 1, bars[4])
        collect(v_d, values, ready, rows, key, count, kv_head, kv_heads, KEYS, D)
    else:
        at = base + key
        if PLACE == 1:
            at = first_row(place, sequence, key, slots, page_tokens, PLACE)
        await_slot(slot, bars[4])
        copy_tile(k_d, keys, bars[2].index(stage), at, kv_head, KEYS, D)
        if step == 0:
            fetch_queries(q_d, memory[0], bars, held, row, head, D, SHAPE[6])
        await_slot(slot + 1, bars[4])
        if key + KEYS <= count:
            copy_tile(v_d, values, ready, at, kv_head, KEYS, D)
        else:
            copy_last(v_d, values, ready, edge, edges, at, kv_head, key, count, KEYS, D)
            edges += 1
    return edges


@gluon.jit
def fetch_all(
    ring,
    memory,
    bars,
    call,
    source,
    TWICE: gl.constexpr,
    D: gl.constexpr,
    SHAPE: gl.constexpr,
    PLACE: gl.constexpr,
):
    """Fetch the tiles that the warpgroups attend to, as they leave them: each once or twice."""
    taken, held, edges = ring
    for round in range(rounds(call, SHAPE[6])):
        sequence, start, _queries, count, head, first, tiles, there = work(round, call, source[3], SHAPE)
        if tiles > 0:
            where = (sequence, there * source[6], count, start + first, head, head // (call[5] // source[4]))
            steps = 2 * tiles if TWICE else tiles
            for step in range(steps):
                tile = tile_at(step, tiles, SHAPE[1]) if TWICE else step
                edges = fetch_tile(step, tile, source, (taken, held, edges), memory, bars, where, D, SHAPE, PLACE)
            taken += steps
            held += 1
    return taken, held, edges


@gluon.jit
def fetch(
    memory,
    bars,
    call,
    q_d,
    k_d,
    v_d,
    place,
    kv_heads,
    slots,
    page_tokens,
    D: gl.constexpr,
    SHAPE: gl.constexpr,
    PLACE: gl.constexpr,
):
    """Fetch for all rounds, and for all of them again if a row needs care."""
    gdc_wait()
    source = (q_d, k_d, v_d, place, kv_heads, slots, page_tokens)
    ring = fetch_all((0, 0, 0), memory, bars, call, source, False, D, SHAPE, PLACE)
    mbarrier.wait(bars[6].index(0), 0)
    if care_needed(memory[4], gl.num_warps()):
        fetch_all(ring, memory, bars, call, source, True, D, SHAPE, PLACE)


@gluon.jit
def barriers(count: gl.constexpr, arrivals: gl.constexpr):
    """`count` barriers that wait for `arrivals` each."""
    bars = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(count):
        mbarrier.init(bars.index(i), count=arrivals)
    return bars


@gluon.jit(do_not_specialize=["batch", "row_tiles", "query_heads", "kv_heads", "slots", "page_tokens"])
def full(
    q_d,
    k_d,
    v_d,
    place,
    query_start,
    query_count,
    key_count,
    y,
    lse,
    batch,
    row_tiles,
    query_heads,
    kv_heads,
    slots,
    page_tokens,
    scale,
    D: gl.constexpr,
    SHAPE: gl.constexpr,
    PLACE: gl.constexpr,
    TILE: gl.constexpr,
    FETCHING_WARPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """Tiles of 128 queries of one sequence, for one head each: a sequence's last queries are those of its last keys.

    Or of 64 for two heads each. It is launched while what comes before still runs; each of its parts waits for that.
    """
    KEYS: gl.constexpr = SHAPE[0]
    STAGES: gl.constexpr = SHAPE[2]
    gdc_launch_dependents()
    memory = (
        gl.allocate_shared_memory(gl.bfloat16, [2, 64, D], q_d.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, D], TILE),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, D], TILE),
        gl.allocate_shared_memory(
            gl.float32, [4, 64, D // 4 if SHAPE[7] else D // 2], gl.SwizzledSharedLayout(8, 1, 4, [1, 0])
        ),
        gl.allocate_shared_memory(gl.int32, [2, 64], gl.SwizzledSharedLayout(1, 1, 1, [0])),
    )
    # of queries: there, left; of keys and of values: there; slots left; the last values there; whether care is needed
    bars = (
        barriers(2, 1),
        barriers(2, 1),
        barriers(STAGES, 1),
        barriers(STAGES, 1),
        barriers(4, 2),
        barriers(1, 1),
        barriers(1, 2),
    )
    fence_async_shared()
    call = (query_start, query_count, key_count, batch, row_tiles, query_heads)
    gl.warp_specialize(
        [
            (attend, (memory, bars, call, y, lse, scale, 0, D, SHAPE)),
            (attend, (memory, bars, call, y, lse, scale, 1, D, SHAPE)),
            (fetch, (memory, bars, call, q_d, k_d, v_d, place, kv_heads, slots, page_tokens, D, SHAPE, PLACE)),
        ],
        [4, FETCHING_WARPS],
        REGISTERS,
    )


def launch_full(q, k, v, place, query_start, query_count, key_count, y, lse, slots, page_tokens, where):
    (tokens, query_heads, head_dim), kv_heads, batch = q.shape, k.shape[-2], query_start.shape[0]
    # no more packed keys than two splits: only the last one is added to an earlier one. And tiles are few, each counts:
    # 64 queries of two heads leave out half of what 128 queries of one head multiply beyond the diagonal
    few = where == PACKED and k.shape[0] <= 2 * SPLIT
    row = q.view(tokens, query_heads * head_dim)
    rows = TensorDescriptor.from_tensor(row, [64, head_dim], shared(64, head_dim))
    heads = 2 if few and query_heads // kv_heads % 2 == 0 else 1
    rows_each = ROWS // heads
    row_tiles = triton.cdiv(tokens, rows_each) if batch == 1 else tokens // rows_each + batch
    full[(min(PROGRAMS, row_tiles * (query_heads // heads)),)](
        *(rows, fetched(k, where), fetched(v, where), place, query_start, query_count, key_count, y, lse),
        *(batch, row_tiles, query_heads, kv_heads, slots, page_tokens, math.log2(math.e) / math.sqrt(head_dim)),
        D=head_dim,
        SHAPE=(KEYS, SPLIT // KEYS, STAGES, LIMIT, SLACK, few, heads, not few and where != ANY_PAGES),
        PLACE=where,
        TILE=shared(KEYS, head_dim),
        FETCHING_WARPS=4 if where == ANY_PAGES else 1,
        REGISTERS=(224, 56) if where == ANY_PAGES else REGISTERS,
        num_warps=4,
        launch_pdl=True,
    )


def attention_full_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    query_count: torch.Tensor,
    key_start: torch.Tensor,
    key_count: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Ragged sequences one after the other: out [tokens, query_heads, head_dim] and lse [tokens, query_heads]."""
    launch_full(q, k, v, key_start, query_start, query_count, key_count, out, lse, 1, 1, PACKED)


def attention_paged_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    query_start: torch.Tensor,
    query_count: torch.Tensor,
    key_count: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """The same over a cache of pages: k, v [pages, page_tokens, kv_heads, head_dim], table [batch, slots]."""
    slots, page_tokens = table.shape[1], k.shape[1]
    where = placement(slots, page_tokens)
    launch_full(q, k, v, table, query_start, query_count, key_count, out, lse, slots, page_tokens, where)


# endregion full


# region decode
# Where many programs share a multiprocessor each has FEW_SLOTS tiles on their way; the scores of a split's four tiles
# are in registers together, so there are at most MOST_COLUMNS columns.
DECODE_WARPS, FEW_SLOTS, MANY_SLOTS, MERGE_UNROLL, MOST_COLUMNS = 4, 3, 4, 16, 32


@gluon.jit
def buffers(count: gl.constexpr, rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    """Tiles of bfloat16, each an allocation of its own: between uses of one the compiler puts a barrier."""
    made = ()
    for _ in gl.static_range(count):
        made = made + (gl.allocate_shared_memory(gl.bfloat16, [rows, columns], layout),)
    return made


@gluon.jit
def lone_barriers(count: gl.constexpr):
    """`count` barriers that wait for one arrival each, each an allocation of its own."""
    made = ()
    for i in gl.static_range(count):
        made = made + (gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),)
        mbarrier.init(made[i], count=1)
    return made


@gluon.jit
def memory_of(TILE: gl.constexpr, V_TILE: gl.constexpr, SHAPE: gl.constexpr):
    """Where tiles are loaded to, and the barriers that say so: a place for each load of a split, or fewer in turns."""
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    D: gl.constexpr = SHAPE[2]
    SLOTS: gl.constexpr = SHAPE[4]
    W: gl.constexpr = D // SHAPE[5]
    if SLOTS == 2 * TILES:
        ring = buffers(TILES, KEYS, D, TILE) + buffers(TILES, KEYS, W, V_TILE)
    else:
        ring = buffers(SLOTS, KEYS, D, TILE)
    filled = lone_barriers(0 if SHAPE[6] == 2 else SLOTS)
    fence_async_shared()
    return ring, filled


@gluon.jit
def turn_of(load: gl.constexpr, tiles, SHAPE: gl.constexpr):
    """The parity of how often a load's place was filled before it: a split's last tiles may not be there to load."""
    times = 0
    for earlier in gl.static_range(load):
        if earlier % SHAPE[4] == load % SHAPE[4]:
            times += (earlier % SHAPE[1] < tiles).to(gl.int32)
    return times & 1


@gluon.jit
def tile_rows(place, sequence, begin, count, slots, page_tokens, SHAPE: gl.constexpr):
    """The row of k and v with the first key of each of a split's tiles; all its rows where pages are of any size."""
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    D: gl.constexpr = SHAPE[2]
    rows = ()
    if SHAPE[6] == 0:
        row = gl.load(place + sequence) * page_tokens + begin
        for tile in gl.static_range(TILES):
            rows = rows + (row + tile * KEYS,)
    elif SHAPE[6] == 1:
        for tile in gl.static_range(TILES):
            key = gl.minimum(begin + tile * KEYS, slots * page_tokens - KEYS)
            rows = rows + (first_row(place, sequence, key, slots, page_tokens, 1),)
    else:
        for tile in gl.static_range(TILES):
            rows = rows + (rows_of(place, sequence, begin + tile * KEYS, count, slots, page_tokens, KEYS, D),)
    return rows


@gluon.jit
def expect_load(load: gl.constexpr, source, filled, SHAPE: gl.constexpr):
    """Tell a load's barrier what it will bring, if the split has that tile."""
    WHOLE: gl.constexpr = SHAPE[0] * SHAPE[2] * 2
    BYTES: gl.constexpr = WHOLE if load < SHAPE[1] else WHOLE // SHAPE[5]
    mbarrier.expect(filled[load % SHAPE[4]], BYTES, pred=load % SHAPE[1] < source[8])


@gluon.jit
def begin_load(load: gl.constexpr, source, memory, SHAPE: gl.constexpr):
    """Load number `load` of a split: its tiles of k one after the other, then its tiles of v."""
    k_d, v_d, rows, head, part, kv_heads, begin, count, tiles = source
    KEYS: gl.constexpr = SHAPE[0]
    D: gl.constexpr = SHAPE[2]
    tile: gl.constexpr = load % SHAPE[1]
    place = memory[0][load % SHAPE[4]]
    if SHAPE[6] == 2:
        x = k_d if load < SHAPE[1] else v_d
        gather(x, place, rows[tile], begin + tile * KEYS, count, head, kv_heads, KEYS, D)
    else:
        ready = memory[1][load % SHAPE[4]]
        if load < SHAPE[1]:
            tma.async_copy_global_to_shared(k_d, [rows[tile], head * D], ready, place, pred=tile < tiles)
        else:
            at = [rows[tile], head * D + part * (D // SHAPE[5])]
            tma.async_copy_global_to_shared(v_d, at, ready, place, pred=tile < tiles)


@gluon.jit
def begin_first(source, memory, SHAPE: gl.constexpr):
    """Begin a split's first loads, as many as there are places."""
    SLOTS: gl.constexpr = SHAPE[4]
    if SHAPE[6] != 2:
        for load in gl.static_range(SLOTS):
            expect_load(load, source, memory[1], SHAPE)
    for load in gl.static_range(SLOTS):
        begin_load(load, source, memory, SHAPE)


@gluon.jit
def begin_next(load: gl.constexpr, source, memory, SHAPE: gl.constexpr):
    """Begin a load into the place that all warps have just read for the last time, if there is one more."""
    if load < 2 * SHAPE[1]:
        if SHAPE[6] != 2:
            expect_load(load, source, memory[1], SHAPE)
        gl.thread_barrier()
        begin_load(load, source, memory, SHAPE)
    elif SHAPE[6] == 2:
        async_copy.commit_group()


@gluon.jit
def await_load(load: gl.constexpr, source, memory, SHAPE: gl.constexpr):
    """Until a load has ended; at once where it was not begun."""
    if SHAPE[6] == 2:
        async_copy.wait_group(SHAPE[4] - 1)
        fence_async_shared()
        gl.thread_barrier()
    else:
        turn, here = turn_of(load, source[8], SHAPE), load % SHAPE[1] < source[8]
        mbarrier.wait(memory[1][load % SHAPE[4]], turn, pred=here)


@gluon.jit
def beside(x):
    """Four tensors of one shape as one, in two more axes."""
    return gl.join(gl.join(x[0], x[1]), gl.join(x[2], x[3]))


@gluon.jit
def apart(x, layout: gl.constexpr):
    """What `beside` joined."""
    ab, cd = gl.split(x)
    a, b = gl.split(ab)
    c, d = gl.split(cd)
    return (
        gl.convert_layout(a, layout),
        gl.convert_layout(b, layout),
        gl.convert_layout(c, layout),
        gl.convert_layout(d, layout),
    )


@gluon.jit
def own_highest(scores):
    """By column, what each of four warps has for the highest score, for the 16 key places of its own: [4, columns]."""
    x = gl.reshape(scores, [2, 4, 16, scores.shape[1]])
    return gl.max(gl.max(x, 0), 1)


@gluon.jit
def highest(scores, keys, CROSSED: gl.constexpr, columns: gl.constexpr):
    """By column, the highest score of a split's first FIRST = 8 keys and of all, in one trip through shared memory."""
    first = own_highest(gl.where((keys < 8)[:, None], scores[0], float("-inf")))
    both = gl.maximum(gl.maximum(scores[0], scores[1]), gl.maximum(scores[2], scores[3]))
    every = own_highest(both)
    first, every, _, _ = apart(gl.max(gl.convert_layout(beside((first, every, first, every)), CROSSED), 0), columns)
    return first, every


@gluon.jit
def quarter_sums(weights, CROSSED: gl.constexpr, QUARTERS: gl.constexpr):
    """The four sums of each of a split's tiles, by column, as the full path makes them: all of them in one trip.

    The bits of a key's index are 6, then 5 and 4 for the warp, 3, then 2 to 0 for the lane.
    """
    own = ()
    for tile in gl.static_range(4):
        x = gl.reshape(weights[tile], [2, 4, 2, 8, weights[tile].shape[1]])
        own = own + (gl.sum(gl.sum(x, 2), 0),)
    x = gl.convert_layout(beside(own), CROSSED)
    x = gl.reshape(x, [2, 2, 2, 2, 2, x.shape[2], 2, 2])
    return apart(gl.sum(gl.sum(gl.sum(x, 1), 0), 2), QUARTERS)


@gluon.jit
def products(queries_s, source, memory, layout: gl.constexpr, SHAPE: gl.constexpr):
    """The scores of a split's tiles. A place is filled again when the product after its own has begun."""
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    COLUMNS: gl.constexpr = SHAPE[3]
    LAG: gl.constexpr = 0 if SHAPE[6] == 2 else 1
    zero = gl.zeros([KEYS, COLUMNS], gl.float32, layout)
    begun, scores = (), ()
    for step in gl.static_range(TILES + LAG):
        if step < TILES:
            await_load(step, source, memory, SHAPE)
            keys = memory[0][step % SHAPE[4]]
            begun = begun + (warpgroup_mma(keys, queries_s.permute([1, 0]), zero, use_acc=False, is_async=True),)
        if step >= LAG:
            scores = scores + (warpgroup_mma_wait(LAG if step < TILES else 0, [begun[step - LAG]]),)
            begin_next(step - LAG + SHAPE[4], source, memory, SHAPE)
    return scores


@gluon.jit
def weighed(scores, begin, own, weights_s, scale, layouts: gl.constexpr, SHAPE: gl.constexpr):
    """Store the weights of a split's tiles; the split's base and total."""
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    TOPS: gl.constexpr = layouts[0]
    SUMS: gl.constexpr = layouts[1]
    QUARTERS: gl.constexpr = layouts[2]
    columns: gl.constexpr = own.type.layout
    places = gl.arange(0, KEYS, gl.SliceLayout(1, scores[0].type.layout))
    seen = ()
    for tile in gl.static_range(TILES):
        # what lies in the place of a tile that was not loaded is not seen either
        seen = seen + (gl.where((begin + places + tile * KEYS)[:, None] <= own[None, :], scores[tile], float("-inf")),)
    first, every = highest(seen, places, TOPS, columns)
    base = based(gl.where(first == float("-inf"), 0.0, first), every, scale, SHAPE[7])
    weights = ()
    for tile in gl.static_range(TILES):
        weights = weights + (gl.exp2(gl.fma(seen[tile], scale, -base[None, :])),)
        weights_s[tile].permute([1, 0]).store(weights[tile].to(gl.bfloat16))
    fence_async_shared()
    sums = quarter_sums(weights, SUMS, QUARTERS)
    totals = sums[0]
    for tile in gl.static_range(1, TILES):
        totals = totals + sums[tile]
    total = gl.convert_layout(gl.sum(gl.sum(totals, 1), 0), columns)
    return part_of(base, total), total


@gluon.jit
def values_added(weights_s, source, memory, layout: gl.constexpr, SHAPE: gl.constexpr):
    """A split's weighted values, [head_dim, columns], or those of a part of head_dim."""
    begin, count, tiles = source[6], source[7], source[8]
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    COLUMNS: gl.constexpr = SHAPE[3]
    W: gl.constexpr = SHAPE[2] // SHAPE[5]
    out = gl.zeros([W, COLUMNS], gl.float32, layout)
    for tile in gl.static_range(TILES):
        values = memory[0][(TILES + tile) % SHAPE[4]]
        await_load(TILES + tile, source, memory, SHAPE)
        if tile < tiles:
            if SHAPE[6] != 2:
                if begin + (tile + 1) * KEYS > count:
                    end_with_zeros(values, begin + tile * KEYS, count, KEYS, KEYS, W)
            w = weights_s[tile].permute([1, 0])
            out = warpgroup_mma(values.permute([1, 0]), w, out, use_acc=tile > 0, is_async=True)
            out = warpgroup_mma_wait(0, [out])
        begin_next(TILES + tile + SHAPE[4], source, memory, SHAPE)
    return out


@gluon.jit
def columns_of(sequence, base, head, group, steps, query_heads, count: gl.constexpr, layout: gl.constexpr):
    """The columns of a block, one after the other for each step the heads of a group; their rows of q; which exist."""
    column = base + gl.arange(0, count, layout)
    at = (sequence * steps + column // group).to(gl.int64) * query_heads + head * group + column % group
    return column, at, column < steps * group


@gluon.jit
def queries_of(q, at, inside, q_layout: gl.constexpr, D: gl.constexpr):
    """The rows of q at a block's columns, [columns, head_dim]; zeros where there is none."""
    d = gl.arange(0, D, gl.SliceLayout(0, q_layout))
    return gl.load(q + at[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)


@gluon.jit
def write_part(out, base, total, at, inside, part, to, ALONE: gl.constexpr, PARTS: gl.constexpr):
    """Store a split's output, or this program's part of it, or the finished one where there is one split."""
    W: gl.constexpr = out.shape[0]
    d = part * W + gl.arange(0, W, gl.SliceLayout(1, out.type.layout))
    where = at[None, :] * (W * PARTS) + d[:, None]
    if ALONE:
        out = gl.fma(out, normalised(total)[None, :], 0.0)
        gl.store(to[0] + where, out.to(gl.bfloat16), inside[None, :])
        gl.store(to[1] + at, log_sum(base, total), inside & (part == 0))
    else:
        gl.store(to[0] + where, out, inside[None, :])
        gl.store(to[1] + at, base, inside & (part == 0))
        gl.store(to[2] + at, total, inside & (part == 0))


@gluon.jit(do_not_specialize=["steps", "query_heads", "kv_heads", "slots", "page_tokens"])
def decode(
    q,
    k_d,
    v_d,
    table,
    lengths,
    parts,
    bases,
    totals,
    y,
    lse,
    steps,
    query_heads,
    kv_heads,
    slots,
    page_tokens,
    scale,
    SHAPE: gl.constexpr,
    ALONE: gl.constexpr,
    TILE: gl.constexpr,
    V_TILE: gl.constexpr,
    Q_TILE: gl.constexpr,
    W_TILE: gl.constexpr,
    layouts: gl.constexpr,
):
    """One split of one sequence's keys, for all queries of one KV head: a column for each of its heads and steps.

    A program adds all of the values' elements or a part of them. It is launched while what comes before still runs.
    """
    KEYS: gl.constexpr = SHAPE[0]
    TILES: gl.constexpr = SHAPE[1]
    D: gl.constexpr = SHAPE[2]
    COLUMNS: gl.constexpr = SHAPE[3]
    PARTS: gl.constexpr = SHAPE[5]
    PLACE: gl.constexpr = SHAPE[6]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, COLUMNS, 16])
    columns: gl.constexpr = gl.SliceLayout(0, layout)
    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    gdc_launch_dependents()
    memory = memory_of(TILE, V_TILE, SHAPE)
    split, sequence, group = gl.program_id(1), gl.program_id(2), query_heads // kv_heads
    part, item = gl.program_id(0) % PARTS, gl.program_id(0) // PARTS
    head, left, begin = item % kv_heads, item // kv_heads * COLUMNS, split * (TILES * KEYS)
    gdc_wait()
    count = gl.load(lengths + sequence)
    if PLACE == 2 and not ALONE:
        if begin >= count:
            return
    rows = tile_rows(table, sequence, begin, count, slots, page_tokens, SHAPE)
    tiles = gl.minimum(TILES, gl.cdiv(count - begin, KEYS))
    source = (k_d, v_d, rows, head, part, kv_heads, begin, count, tiles)
    begin_first(source, memory, SHAPE)
    _, at, inside = columns_of(sequence, left, head, group, steps, query_heads, COLUMNS, gl.SliceLayout(1, q_layout))
    loaded = queries_of(q, at, inside, q_layout, D)
    if PLACE != 2 and not ALONE:
        # here and not before: so the length and the page are looked up beside each other
        if begin >= count:
            return
    queries_s = gl.allocate_shared_memory(gl.bfloat16, [COLUMNS, D], Q_TILE, loaded)
    weights_s = buffers(TILES, COLUMNS, KEYS, W_TILE)
    fence_async_shared()

    column, at, inside = columns_of(sequence, left, head, group, steps, query_heads, COLUMNS, columns)
    own = count - steps + column // group
    scores = products(queries_s, source, memory, layout, SHAPE)
    base, total = weighed(scores, begin, own, weights_s, scale, layouts, SHAPE)
    out = values_added(weights_s, source, memory, layout, SHAPE)
    at += split.to(gl.int64) * gl.num_programs(2) * steps * query_heads
    write_part(out, base, total, at, inside, part, (y, lse) if ALONE else (parts, bases, totals), ALONE, PARTS)


@triton.jit
def folded(
    before,
    begin,
    splits,
    length_at,
    found,
    at,
    rows,
    SPLIT: tl.constexpr,
    SLACK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The same with UNROLL more splits, from `begin` on, all of which are on their way together; and the length.

    What a sequence is too short for is read and not used: so no load waits for the length.
    """
    out, base, total, _ = before
    parts, bases, totals = found
    d = tl.arange(0, out.shape[0])
    part, part_base, part_total = (), (), ()
    for i in tl.static_range(UNROLL):
        this = tl.minimum(begin + i, splits - 1) * rows + at
        part = part + (tl.load(parts + this * out.shape[0] + d),)
        part_base = part_base + (tl.load(bases + this),)
        part_total = part_total + (tl.load(totals + this),)
    tl.debug_barrier()  # or the assembler would begin most loads only when what comes before them is done
    count = tl.load(length_at)
    for i in tl.static_range(UNROLL):
        here = (begin + i) * SPLIT < count
        this_base, this_total = tl.where(here, part_base[i], float("-inf")), tl.where(here, part_total[i], 0.0)
        kept, joined, base, total = merged(base, total, this_base, this_total, SLACK)
        out = tl.fma(tl.where(here, part[i], 0.0), joined, out * kept)
    return out, base, total, count


@triton.jit(do_not_specialize=["steps", "query_heads", "splits"])
def decode_merge(
    parts,
    bases,
    totals,
    lengths,
    y,
    lse,
    splits,
    steps,
    query_heads,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    SLACK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """One row of the output from its splits, first to last."""
    at, d = tl.program_id(0).to(tl.int64) * query_heads + tl.program_id(1), tl.arange(0, D)
    rows, length_at = tl.num_programs(0).to(tl.int64) * query_heads, lengths + tl.program_id(0) // steps
    found, done = (parts, bases, totals), (tl.zeros([D], tl.float32), float("-inf"), 0.0, 0)
    gdc_launch_dependents()
    gdc_wait()
    done = folded(done, 0, splits, length_at, found, at, rows, SPLIT, SLACK, UNROLL)
    for begin in range(UNROLL, splits, UNROLL):
        done = folded(done, begin, splits, length_at, found, at, rows, SPLIT, SLACK, UNROLL)
    out, base, total, _ = done
    tl.store(y + at * D + d, tl.fma(out, normalised(total), 0.0).to(y.dtype.element_ty))
    tl.store(lse + at, log_sum(base, total))


def unit(rank: int, axis: int, size: int) -> list[int]:
    """A step of `size` along one axis of `rank`."""
    return [size if i == axis else 0 for i in range(rank)]


def crossing(between: list[int], columns: int) -> gl.DistributedLinearLayout:
    """[4, *between, columns, 2, 2] with what each of four warps held in the registers of every warp.

    A thread keeps its columns, and its lane what it has along the axis between, if there is one.
    """
    rank = len(between) + 4
    of_lane = [unit(rank, 1, 1 << i) if between else unit(rank, 0, 0) for i in range(3)]
    more_columns = [unit(rank, rank - 3, 8 << i) for i in range((columns // 8).bit_length() - 1)]
    of_column = [unit(rank, rank - 3, 1), *more_columns]
    return gl.DistributedLinearLayout(
        [unit(rank, 0, 1), unit(rank, 0, 2), *of_column, unit(rank, rank - 2, 1), unit(rank, rank - 1, 1)],
        [unit(rank, rank - 3, 2), unit(rank, rank - 3, 4), *of_lane],
        [unit(rank, 0, 0), unit(rank, 0, 0)],
        [],
        [4, *between, columns, 2, 2],
    )


def fourths(columns: int) -> gl.DistributedLinearLayout:
    """[2, 2, columns] in every warp: what lanes sum, by bits 2 and 1 of the key's index."""
    more_columns = [unit(3, 2, 8 << i) for i in range((columns // 8).bit_length() - 1)]
    of_lane = [unit(3, 2, 2), unit(3, 2, 4), unit(3, 0, 0), unit(3, 1, 1), unit(3, 0, 1)]
    return gl.DistributedLinearLayout(
        [unit(3, 2, 1), *more_columns], of_lane, [unit(3, 0, 0), unit(3, 0, 0)], [], [2, 2, columns]
    )


def ring_of(programs: int, columns: int, head_dim: int, where: int) -> tuple[int, int]:
    """How many tiles a program has on their way, and in how many parts values are added.

    Where few programs leave multiprocessors idle, two add half of each value's elements and load everything at once.
    """
    if columns > 8 or programs > PROGRAMS:
        return FEW_SLOTS, 1
    if where != ANY_PAGES and head_dim == 128 and 2 * programs <= PROGRAMS:
        return 2 * SPLIT // KEYS, 2
    return MANY_SLOTS, 1


def attention_decode_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """The last `steps` tokens of each sequence: q and out [batch, steps, query_heads, head_dim].

    k, v [pages, page_tokens, kv_heads, head_dim] and table [batch, slots]; a contiguous cache has one page a sequence.
    """
    (batch, steps, query_heads, head_dim), (_, page_tokens, kv_heads, _), slots = q.shape, k.shape, table.shape[1]
    where, splits = placement(slots, page_tokens), triton.cdiv(slots * page_tokens, SPLIT)
    rows = steps * (query_heads // kv_heads)
    columns = min(MOST_COLUMNS, max(8, triton.next_power_of_2(rows)))
    blocks = kv_heads * triton.cdiv(rows, columns)
    ring, halves = ring_of(blocks * splits * batch, columns, head_dim, where)
    scale = math.log2(math.e) / math.sqrt(head_dim)
    kept = splits if splits > 1 else 0
    parts = torch.empty((kept, batch, steps, query_heads, head_dim), dtype=torch.float32, device=q.device)
    bases = torch.empty((kept, batch, steps, query_heads), dtype=torch.float32, device=q.device)
    totals = torch.empty((kept, batch, steps, query_heads), dtype=torch.float32, device=q.device)
    decode[(blocks * halves, splits, batch)](
        *(q, fetched(k, where), fetched(v, where, halves), table, lengths, parts, bases, totals, out, lse),
        *(steps, query_heads, kv_heads, slots, page_tokens, scale),
        SHAPE=(KEYS, SPLIT // KEYS, head_dim, columns, ring, halves, where, SLACK),
        ALONE=splits == 1,
        TILE=shared(KEYS, head_dim),
        V_TILE=shared(KEYS, head_dim // halves),
        Q_TILE=shared(columns, head_dim),
        W_TILE=shared(columns, KEYS),
        layouts=(crossing([], columns), crossing([8], columns), fourths(columns)),
        num_warps=DECODE_WARPS,
        launch_pdl=True,
    )
    if splits > 1:
        decode_merge[(batch * steps, query_heads)](
            *(parts, bases, totals, lengths, out, lse, splits, steps, query_heads),
            D=head_dim,
            SPLIT=SPLIT,
            SLACK=SLACK,
            UNROLL=min(MERGE_UNROLL, triton.next_power_of_2(splits)),
            num_warps=1,
            launch_pdl=True,
        )


# endregion decode
