"""Attention for Hopper in Gluon: keys are cut every SPLIT tokens, counted from a sequence's first key.

A split is an online softmax from scratch over tiles of KEYS keys; splits are merged first to last. The full path does
both in one program: two warpgroups with 64 queries each, a third one that fetches, and the merged output of earlier
splits in shared memory. Decode computes splits in parallel programs, and a second kernel merges them.

The full path multiplies queries by keys, decode keys by queries: eight columns hold a KV head's queries where a tile
of rows would be nearly empty. wgmma adds the products of an element in the order of the inner dimension alone, so both
give the same bits; maxima do not depend on an order; and a tile's weights are added by halves of the key's index,
which neither path's layout can change.
"""

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


@gluon.jit
def halved(weights, AXIS: gl.constexpr):
    """The sum over KEYS = 128 keys along AXIS by halves: bits 3, 6, 4, 5, 0, 1, 2 of the key's index, one by one."""
    if AXIS == 1:
        x = gl.reshape(weights, [weights.shape[0], 2, 2, 2, 2, 2, 2, 2])
    else:
        x = gl.reshape(weights, [2, 2, 2, 2, 2, 2, 2, weights.shape[1]])
    x = gl.sum(x, AXIS + 3)
    x = gl.sum(x, AXIS)
    x = gl.sum(x, AXIS + 1)
    x = gl.sum(x, AXIS)
    x = gl.sum(x, AXIS + 2)
    x = gl.sum(x, AXIS + 1)
    return gl.sum(x, AXIS)


@gluon.jit
def weighted(scores, top, total, scale, AXIS: gl.constexpr):
    """A tile's weights, the factor of what came before, and the new maximum and total, by row; keys lie along AXIS."""
    raised = gl.maximum(top, gl.max(scores, AXIS))
    finite = gl.where(raised == float("-inf"), 0.0, raised)
    weights = gl.exp2(gl.fma(scores, scale, gl.expand_dims(-(finite * scale), AXIS)))
    kept = gl.exp2((top - finite) * scale)
    total = gl.fma(total, kept, gl.convert_layout(halved(weights, AXIS), total.type.layout))
    return weights, kept, raised, total


# endregion tile


# region merge
@triton.jit
def merged(top, total, part_top, part_total, scale):
    """Factors of what came before and of the next split, and the two together.

    A split that a row does not see has the maximum -inf and changes nothing: its factors are 1 and 0.
    """
    raised = tl.maximum(top, part_top)
    finite = tl.where(raised == float("-inf"), 0.0, raised)
    kept = tl.exp2((top - finite) * scale)
    joined = tl.exp2((part_top - finite) * scale)
    return kept, joined, raised, tl.fma(part_total, joined, total * kept)


# endregion merge


# region finish
@triton.jit
def normalised(total):
    """What the output is multiplied by; 0 for a row without keys."""
    return tl.where(total > 0, tl.div_rn(1.0, tl.where(total > 0, total, 1.0)), 0.0)


@triton.jit
def log_sum(top, total, scale):
    """The natural logarithm of the sum of exp(score); -inf for a row without keys."""
    return tl.where(total > 0, (top * scale + tl.log2(total)) * 0.6931471805599453, float("-inf"))


# endregion finish


# region keys
PACKED, WHOLE_PAGES, ANY_PAGES = 0, 1, 2


def placement(slots: int, page_tokens: int) -> int:
    """Whether each sequence's keys lie in one piece, in pages of whole tiles, or in any pages."""
    return PACKED if slots == 1 else WHOLE_PAGES if page_tokens % KEYS == 0 else ANY_PAGES


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """k or v as [keys, kv_heads * head_dim]."""
    return x.view(-1, x.shape[-2] * x.shape[-1])


def fetched(x: torch.Tensor, where: int) -> torch.Tensor | TensorDescriptor:
    """k or v as a kernel fetches tiles of it: by a descriptor, or by pointers."""
    if where == ANY_PAGES:
        return x
    return TensorDescriptor.from_tensor(as_rows(x), [KEYS, x.shape[-1]], shared(KEYS, x.shape[-1]))


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
def gather(
    x, tile, place, sequence, key, count, head, kv_heads, slots, page_tokens, KEYS: gl.constexpr, D: gl.constexpr
):
    """Begin to copy a tile of k or v from its pages; zeros from the sequence's end on."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    keys = key + gl.arange(0, KEYS, gl.SliceLayout(1, layout))
    inside = keys < count
    page = gl.load(place + sequence * slots + keys // page_tokens, mask=inside, other=0)
    at = ((page.to(gl.int64) * page_tokens + keys % page_tokens) * kv_heads + head) * D
    d = gl.arange(0, D, gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(tile, x + at[:, None] + d[None, :], mask=inside[:, None])


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
ROWS, STAGES, REGISTERS = 128, 2, (240, 24)
PROGRAMS = 132


@gluon.jit
def scored(scores, key, own, KEYS: gl.constexpr):
    """A tile's scores, -inf where a key is not seen."""
    keys = key + gl.arange(0, KEYS, gl.SliceLayout(0, scores.type.layout))
    return gl.where(keys[None, :] <= own[:, None], scores, float("-inf"))


@gluon.jit
def after(total):
    """The same total, with an instruction between that is never run: the assembler may not move a wait across it.

    It would wait for the value product before the weights of the next tile are computed, instead of meanwhile.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; @p nanosleep.u32 10; mov.b32 $0, $1; }",
        "=r,r",
        [total],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


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
def work(round, call, ROWS: gl.constexpr, KEYS: gl.constexpr):
    """What a program does in a round: the sequence, its first row, queries and keys, the head, the tile's first query,
    and how many tiles of keys it sees, 0 for none.

    The tiles with the most keys come first, all heads of one beside each other; programs take turns in being first.
    """
    query_start, query_count, key_count, batch, row_tiles, query_heads = call
    programs = gl.num_programs(0)
    place = gl.where(round % 2 == 0, gl.program_id(0), programs - 1 - gl.program_id(0))
    item = round * programs + place
    row_tile = row_tiles - 1 - item // query_heads
    sequence = sequence_of(query_start, batch, row_tile, ROWS)
    start, queries = gl.load(query_start + sequence), gl.load(query_count + sequence)
    count = gl.load(key_count + sequence)
    first = (row_tile - start // ROWS - sequence) * ROWS
    seen = gl.minimum(count, count - queries + first + ROWS)
    tiles = gl.where((row_tile >= 0) & (first < queries), gl.cdiv(seen, KEYS), 0)
    return sequence, start, queries, count, item % query_heads, first, tiles


@gluon.jit
def rounds(call):
    """How many tiles a program takes at most."""
    return gl.cdiv(call[4] * call[5], gl.num_programs(0))


@gluon.jit
def join(out, earlier, all_top, all_total, top, total, scale, first):
    """Merge a finished split into the earlier ones, which lie in shared memory; the first one is kept as it is."""
    layout: gl.constexpr = gl.SliceLayout(1, out.type.layout)
    if first:
        earlier.store(out)
        joined_top, joined_total = top, total
    else:
        before, joined, joined_top, joined_total = merged(all_top, all_total, top, total, scale)
        before, joined = gl.convert_layout(before, layout), gl.convert_layout(joined, layout)
        earlier.store(gl.fma(out, joined[:, None], earlier.load(out.type.layout) * before[:, None]))
    gl.thread_barrier()
    return joined_top, joined_total


@gluon.jit
def attend(
    memory,
    bars,
    call,
    y,
    lse,
    scale,
    HALF: gl.constexpr,
    D: gl.constexpr,
    KEYS: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One warpgroup's 64 queries. The scores of a tile are computed while the values of the last one are added."""
    queries_s, keys_s, values_s, merged_s = memory
    queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty, _edge = bars
    query_heads = call[5]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    w_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    y_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    q, earlier = queries_s.index(HALF), merged_s.index(HALF)
    zero = gl.zeros([64, KEYS], gl.float32, s_layout)
    none = gl.zeros([64], gl.float32, s_rows)
    taken = 0
    held = 0
    for round in range(rounds(call)):
        _sequence, start, queries, count, head, first, tiles = work(round, call, 128, KEYS)
        if tiles > 0:
            begin = first + HALF * 64
            own = count - queries + begin + gl.arange(0, 64, s_rows)
            clear = (count - queries + begin + 1) // KEYS
            out = gl.zeros([64, D], gl.float32, o_layout)
            all_top, all_total = none + float("-inf"), none

            stage = taken % STAGES
            mbarrier.wait(queries_full.index(HALF), held & 1)
            mbarrier.wait(keys_full.index(stage), taken // STAGES & 1)
            scores = warpgroup_mma(q, keys_s.index(stage).permute([1, 0]), zero, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, [scores])
            mbarrier.arrive(keys_empty.index(stage))
            if clear < 1:
                scores = scored(scores, 0, own, KEYS)
            weights, kept, top, total = weighted(scores, none + float("-inf"), none, scale, 1)
            w = gl.convert_layout(weights.to(gl.bfloat16), w_layout)
            fresh = True
            for tile in range(1, tiles):
                stage, last = (taken + tile) % STAGES, (taken + tile - 1) % STAGES
                mbarrier.wait(keys_full.index(stage), (taken + tile) // STAGES & 1)
                next_scores = warpgroup_mma(q, keys_s.index(stage).permute([1, 0]), zero, use_acc=False, is_async=True)
                mbarrier.wait(values_full.index(last), (taken + tile - 1) // STAGES & 1)
                next_out = warpgroup_mma(w, values_s.index(last), out, use_acc=not fresh, is_async=True)
                scores = warpgroup_mma_wait(1, [next_scores])
                mbarrier.arrive(keys_empty.index(stage))
                if tile >= clear:
                    scores = scored(scores, tile * KEYS, own, KEYS)
                fresh = tile % (SPLIT // KEYS) == 0
                start_top, start_total = gl.where(fresh, float("-inf"), top), gl.where(fresh, 0.0, total)
                weights, kept, next_top, next_total = weighted(scores, start_top, start_total, scale, 1)
                next_total = after(next_total)
                out, w = warpgroup_mma_wait(0, [next_out, w])
                mbarrier.arrive(values_empty.index(last))
                if fresh:
                    all_top, all_total = join(
                        out, earlier, all_top, all_total, top, total, scale, tile == SPLIT // KEYS
                    )
                top, total = next_top, next_total
                out = out * gl.convert_layout(kept, o_rows)[:, None]
                w = gl.convert_layout(weights.to(gl.bfloat16), w_layout)
            mbarrier.arrive(queries_empty.index(HALF))
            last = (taken + tiles - 1) % STAGES
            mbarrier.wait(values_full.index(last), (taken + tiles - 1) // STAGES & 1)
            next_out = warpgroup_mma(w, values_s.index(last), out, use_acc=not fresh, is_async=True)
            out, w = warpgroup_mma_wait(0, [next_out, w])
            mbarrier.arrive(values_empty.index(last))
            if tiles > SPLIT // KEYS:
                before, joined, top, total = merged(all_top, all_total, top, total, scale)
                before, joined = gl.convert_layout(before, o_rows), gl.convert_layout(joined, o_rows)
                out = gl.fma(out, joined[:, None], earlier.load(o_layout) * before[:, None])
            # + 0.0: a split that a row does not see turns -0.0 into 0.0, so every row does
            out = gl.fma(out, gl.convert_layout(normalised(total), o_rows)[:, None], 0.0)
            row = begin + gl.arange(0, 64, s_rows)
            gl.store(lse + (start + row).to(gl.int64) * query_heads + head, log_sum(top, total, scale), row < queries)
            earlier.store(out)
            row, d = begin + gl.arange(0, 64, gl.SliceLayout(1, y_layout)), gl.arange(0, D, gl.SliceLayout(0, y_layout))
            at = (start + row).to(gl.int64) * query_heads + head
            finished = earlier.load(y_layout).to(gl.bfloat16)
            gl.store(y + at[:, None] * D + d[None, :], finished, (row < queries)[:, None])
            taken += tiles
            held += 1


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
    KEYS: gl.constexpr,
    STAGES: gl.constexpr,
    PLACE: gl.constexpr,
):
    """Fill shared memory with the tiles that the warpgroups attend to, as they leave it."""
    queries_s, keys_s, values_s, _merged_s = memory
    queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty, edge = bars
    group = call[5] // kv_heads
    taken = 0
    held = 0
    edges = 0
    for round in range(rounds(call)):
        sequence, start, _queries, count, head, first, tiles = work(round, call, 128, KEYS)
        if tiles > 0:
            for half in gl.static_range(2):
                mbarrier.wait(queries_empty.index(half), held & 1 ^ 1)
                mbarrier.expect(queries_full.index(half), 64 * D * 2)
                row = start + first + half * 64
                tma.async_copy_global_to_shared(q_d, [row, head * D], queries_full.index(half), queries_s.index(half))
            kv_head = head // group
            for tile in range(tiles):
                stage, turn, key = (taken + tile) % STAGES, (taken + tile) // STAGES & 1, tile * KEYS
                keys, values = keys_s.index(stage), values_s.index(stage)
                mbarrier.wait(keys_empty.index(stage), turn ^ 1)
                if PLACE == 2:
                    gather(k_d, keys, place, sequence, key, count, kv_head, kv_heads, slots, page_tokens, KEYS, D)
                    async_copy.commit_group()
                    async_copy.wait_group(0)
                    fence_async_shared()
                    mbarrier.arrive(keys_full.index(stage))
                    mbarrier.wait(values_empty.index(stage), turn ^ 1)
                    gather(v_d, values, place, sequence, key, count, kv_head, kv_heads, slots, page_tokens, KEYS, D)
                    async_copy.commit_group()
                    async_copy.wait_group(0)
                    fence_async_shared()
                    mbarrier.arrive(values_full.index(stage))
                else:
                    at = first_row(place, sequence, key, slots, page_tokens, PLACE)
                    mbarrier.expect(keys_full.index(stage), KEYS * D * 2)
                    tma.async_copy_global_to_shared(k_d, [at, kv_head * D], keys_full.index(stage), keys)
                    mbarrier.wait(values_empty.index(stage), turn ^ 1)
                    if key + KEYS <= count:
                        mbarrier.expect(values_full.index(stage), KEYS * D * 2)
                        tma.async_copy_global_to_shared(v_d, [at, kv_head * D], values_full.index(stage), values)
                    else:
                        mbarrier.expect(edge.index(0), KEYS * D * 2)
                        tma.async_copy_global_to_shared(v_d, [at, kv_head * D], edge.index(0), values)
                        mbarrier.wait(edge.index(0), edges & 1)
                        edges += 1
                        end_with_zeros(values, key, count, 8, KEYS, D)
                        mbarrier.arrive(values_full.index(stage))
            taken += tiles
            held += 1


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
    KEYS: gl.constexpr,
    SPLIT: gl.constexpr,
    STAGES: gl.constexpr,
    PLACE: gl.constexpr,
    TILE: gl.constexpr,
    FETCHING_WARPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    """Tiles of 128 queries of one sequence, for one head each: a sequence's last queries are those of its last keys."""
    memory = (
        gl.allocate_shared_memory(gl.bfloat16, [2, 64, D], q_d.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, D], TILE),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, D], TILE),
        gl.allocate_shared_memory(gl.float32, [2, 64, D], gl.SwizzledSharedLayout(8, 1, 4, [1, 0])),
    )
    bars = (
        barriers(2, 1),
        barriers(2, 1),
        barriers(STAGES, 1),
        barriers(STAGES, 2),
        barriers(STAGES, 1),
        barriers(STAGES, 2),
        barriers(1, 1),
    )
    fence_async_shared()
    call = (query_start, query_count, key_count, batch, row_tiles, query_heads)
    gl.warp_specialize(
        [
            (attend, (memory, bars, call, y, lse, scale, 0, D, KEYS, SPLIT, STAGES)),
            (attend, (memory, bars, call, y, lse, scale, 1, D, KEYS, SPLIT, STAGES)),
            (fetch, (memory, bars, call, q_d, k_d, v_d, place, kv_heads, slots, page_tokens, D, KEYS, STAGES, PLACE)),
        ],
        [4, FETCHING_WARPS],
        REGISTERS,
    )


def launch_full(q, k, v, place, query_start, query_count, key_count, y, lse, slots, page_tokens, where):
    (tokens, query_heads, head_dim), kv_heads, batch = q.shape, k.shape[-2], query_start.shape[0]
    rows = TensorDescriptor.from_tensor(q.view(tokens, query_heads * head_dim), [64, head_dim], shared(64, head_dim))
    row_tiles = triton.cdiv(tokens, ROWS) if batch == 1 else tokens // ROWS + batch
    full[(min(PROGRAMS, row_tiles * query_heads),)](
        *(rows, fetched(k, where), fetched(v, where), place, query_start, query_count, key_count, y, lse),
        *(batch, row_tiles, query_heads, kv_heads, slots, page_tokens, math.log2(math.e) / math.sqrt(head_dim)),
        D=head_dim,
        KEYS=KEYS,
        SPLIT=SPLIT,
        STAGES=STAGES,
        PLACE=where,
        TILE=shared(KEYS, head_dim),
        FETCHING_WARPS=4 if where == ANY_PAGES else 1,
        REGISTERS=(208, 88) if where == ANY_PAGES else REGISTERS,
        num_warps=4,
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
DECODE_WARPS, DECODE_SLOTS, MERGE_UNROLL = 4, 3, 8


@gluon.jit
def spent(load: gl.constexpr, tiles, TILES: gl.constexpr, SLOTS: gl.constexpr):
    """The parity of how often a load's slot was filled before it: a split's last tiles may not be there to load."""
    times = 0
    for earlier in gl.static_range(load):
        if earlier % SLOTS == load % SLOTS:
            times += (earlier % TILES < tiles).to(gl.int32)
    return times & 1


@gluon.jit
def begin_load(
    load: gl.constexpr,
    source,
    k_d,
    v_d,
    ring,
    filled,
    TILES: gl.constexpr,
    KEYS: gl.constexpr,
    D: gl.constexpr,
    SLOTS: gl.constexpr,
    PLACE: gl.constexpr,
):
    """Load number `load` of a split: its tiles of k one after the other, then its tiles of v."""
    place, sequence, head, kv_heads, slots, page_tokens, begin, count, tiles = source
    slot = ring.index(load % SLOTS)
    key = begin + load % TILES * KEYS
    if PLACE == 2:
        if load < TILES:
            gather(k_d, slot, place, sequence, key, count, head, kv_heads, slots, page_tokens, KEYS, D)
        elif load < 2 * TILES:
            gather(v_d, slot, place, sequence, key, count, head, kv_heads, slots, page_tokens, KEYS, D)
        async_copy.commit_group()
    elif load < 2 * TILES:  # noqa: SIM102 the compiler decides this, the device the next
        if load % TILES < tiles:
            row = first_row(place, sequence, key, slots, page_tokens, PLACE)
            mbarrier.expect(filled.index(load % SLOTS), KEYS * D * 2)
            if load < TILES:
                tma.async_copy_global_to_shared(k_d, [row, head * D], filled.index(load % SLOTS), slot)
            else:
                tma.async_copy_global_to_shared(v_d, [row, head * D], filled.index(load % SLOTS), slot)


@gluon.jit
def await_load(load: gl.constexpr, filled, tiles, TILES: gl.constexpr, SLOTS: gl.constexpr, PLACE: gl.constexpr):
    """Until a load has ended; at once where it was not begun."""
    if PLACE == 2:
        async_copy.wait_group(SLOTS - 1)
        fence_async_shared()
        gl.thread_barrier()
    else:
        mbarrier.wait(filled.index(load % SLOTS), spent(load, tiles, TILES, SLOTS), pred=load % TILES < tiles)


@gluon.jit(do_not_specialize=["steps", "query_heads", "kv_heads", "slots", "page_tokens"])
def decode(
    q,
    k_d,
    v_d,
    table,
    lengths,
    parts,
    tops,
    totals,
    y,
    lse,
    steps,
    query_heads,
    kv_heads,
    slots,
    page_tokens,
    scale,
    D: gl.constexpr,
    COLUMNS: gl.constexpr,
    KEYS: gl.constexpr,
    SPLIT: gl.constexpr,
    SLOTS: gl.constexpr,
    PLACE: gl.constexpr,
    ALONE: gl.constexpr,
    TILE: gl.constexpr,
    Q_TILE: gl.constexpr,
    W_TILE: gl.constexpr,
):
    """One split of one sequence's keys, for all queries of one KV head: a column for each of its heads and steps."""
    split, sequence = gl.program_id(0), gl.program_id(2)
    count = gl.load(lengths + sequence)
    gdc_launch_dependents()
    if not ALONE:  # noqa: SIM102 the compiler decides this, the device the next
        if split * SPLIT >= count:
            return
    TILES: gl.constexpr = SPLIT // KEYS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, COLUMNS, 16])
    columns: gl.constexpr = gl.SliceLayout(0, layout)
    head, group = gl.program_id(1) % kv_heads, query_heads // kv_heads
    base, begin = gl.program_id(1) // kv_heads * COLUMNS, split * SPLIT
    tiles = gl.cdiv(gl.minimum(SPLIT, count - begin), KEYS)
    source = (table, sequence, head, kv_heads, slots, page_tokens, begin, count, tiles)

    ring = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, KEYS, D], TILE)
    filled = barriers(SLOTS, 1)
    fence_async_shared()
    for load in gl.static_range(SLOTS):
        begin_load(load, source, k_d, v_d, ring, filled, TILES, KEYS, D, SLOTS, PLACE)

    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    c, d = base + gl.arange(0, COLUMNS, gl.SliceLayout(1, q_layout)), gl.arange(0, D, gl.SliceLayout(0, q_layout))
    at = (sequence * steps + c // group).to(gl.int64) * query_heads + head * group + c % group
    loaded = gl.load(q + at[:, None] * D + d[None, :], mask=(c < steps * group)[:, None], other=0.0)
    queries_s = gl.allocate_shared_memory(gl.bfloat16, [COLUMNS, D], Q_TILE, loaded)
    weights_s = gl.allocate_shared_memory(gl.bfloat16, [TILES, COLUMNS, KEYS], W_TILE)
    fence_async_shared()

    column = base + gl.arange(0, COLUMNS, columns)
    own = count - steps + column // group
    keys = begin + gl.arange(0, KEYS, gl.SliceLayout(1, layout))
    zero = gl.zeros([KEYS, COLUMNS], gl.float32, layout)
    total = gl.zeros([COLUMNS], gl.float32, columns)
    top = total + float("-inf")
    kept_of = ()
    for tile in gl.static_range(TILES):
        await_load(tile, filled, tiles, TILES, SLOTS, PLACE)
        scores = warpgroup_mma(ring.index(tile % SLOTS), queries_s.permute([1, 0]), zero, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, [scores])
        gl.thread_barrier()
        begin_load(tile + SLOTS, source, k_d, v_d, ring, filled, TILES, KEYS, D, SLOTS, PLACE)
        # what lies in the slot of a tile that was not loaded is not seen either
        scores = gl.where((keys + tile * KEYS)[:, None] <= own[None, :], scores, float("-inf"))
        weights, kept, top, total = weighted(scores, top, total, scale, 0)
        weights_s.index(tile).permute([1, 0]).store(weights.to(gl.bfloat16))
        kept_of = kept_of + (kept,)  # noqa: RUF005 a kernel has no star
    fence_async_shared()
    out = gl.zeros([D, COLUMNS], gl.float32, layout)
    for tile in gl.static_range(TILES):
        values = ring.index((TILES + tile) % SLOTS)
        await_load(TILES + tile, filled, tiles, TILES, SLOTS, PLACE)
        if tile < tiles:
            if PLACE != 2:  # noqa: SIM102 the compiler decides this, the device the next
                if begin + (tile + 1) * KEYS > count:
                    end_with_zeros(values, begin + tile * KEYS, count, KEYS, KEYS, D)
            out = out * kept_of[tile][None, :]
            w = weights_s.index(tile).permute([1, 0])
            out = warpgroup_mma(values.permute([1, 0]), w, out, use_acc=tile > 0, is_async=True)
            out = warpgroup_mma_wait(0, [out])
        if TILES + tile + SLOTS < 2 * TILES:
            gl.thread_barrier()
        begin_load(TILES + tile + SLOTS, source, k_d, v_d, ring, filled, TILES, KEYS, D, SLOTS, PLACE)
    at = (sequence * steps + column // group).to(gl.int64) * query_heads + head * group + column % group
    inside, d = column < steps * group, gl.arange(0, D, gl.SliceLayout(1, layout))
    if ALONE:
        out = gl.fma(out, normalised(total)[None, :], 0.0)
        gl.store(y + at[None, :] * D + d[:, None], out.to(gl.bfloat16), inside[None, :])
        gl.store(lse + at, log_sum(top, total, scale), inside)
    else:
        at += split.to(gl.int64) * gl.num_programs(2) * steps * query_heads
        gl.store(tops + at, top, inside)
        gl.store(totals + at, total, inside)
        gl.store(parts + at[None, :] * D + d[:, None], out, inside[None, :])


@triton.jit(do_not_specialize=["steps", "query_heads"])
def decode_merge(
    parts,
    tops,
    totals,
    lengths,
    y,
    lse,
    steps,
    query_heads,
    scale,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """One row of the output from its splits, first to last."""
    at, d = tl.program_id(0).to(tl.int64) * query_heads + tl.program_id(1), tl.arange(0, D)
    rows = tl.num_programs(0).to(tl.int64) * query_heads
    count = tl.load(lengths + tl.program_id(0) // steps)
    splits = tl.cdiv(count, SPLIT)
    gdc_wait()
    out = tl.load(parts + at * D + d, mask=d < count * D, other=0.0)
    top, total = tl.load(tops + at, count > 0, other=float("-inf")), tl.load(totals + at, count > 0, other=0.0)
    for first in range(1, splits, UNROLL):
        for i in tl.static_range(UNROLL):
            here, this = first + i < splits, (first + i) * rows + at
            part = tl.load(parts + this * D + d, mask=here, other=0.0)
            part_top = tl.load(tops + this, mask=here, other=float("-inf"))
            part_total = tl.load(totals + this, mask=here, other=0.0)
            kept, joined, top, total = merged(top, total, part_top, part_total, scale)
            out = tl.fma(part, joined, out * kept)
    tl.store(y + at * D + d, tl.fma(out, normalised(total), 0.0).to(y.dtype.element_ty))
    tl.store(lse + at, log_sum(top, total, scale))


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
    columns = min(64 if SPLIT <= 512 else 32, max(8, triton.next_power_of_2(rows)))
    room = 220_000 - columns * (2 * head_dim + 2 * SPLIT + 128)
    ring = min(DECODE_SLOTS, room // (2 * KEYS * head_dim))
    scale = math.log2(math.e) / math.sqrt(head_dim)
    kept = splits if splits > 1 else 0
    parts = torch.empty((kept, batch, steps, query_heads, head_dim), dtype=torch.float32, device=q.device)
    tops = torch.empty((kept, batch, steps, query_heads), dtype=torch.float32, device=q.device)
    totals = torch.empty((kept, batch, steps, query_heads), dtype=torch.float32, device=q.device)
    decode[(splits, kv_heads * triton.cdiv(rows, columns), batch)](
        *(q, fetched(k, where), fetched(v, where), table, lengths, parts, tops, totals, out, lse),
        *(steps, query_heads, kv_heads, slots, page_tokens, scale),
        D=head_dim,
        COLUMNS=columns,
        KEYS=KEYS,
        SPLIT=SPLIT,
        SLOTS=ring,
        PLACE=where,
        ALONE=splits == 1,
        TILE=shared(KEYS, head_dim),
        Q_TILE=shared(columns, head_dim),
        W_TILE=shared(columns, KEYS),
        num_warps=DECODE_WARPS,
    )
    if splits > 1:
        decode_merge[(batch * steps, query_heads)](
            *(parts, tops, totals, lengths, out, lse, steps, query_heads, scale),
            D=head_dim,
            SPLIT=SPLIT,
            UNROLL=min(MERGE_UNROLL, splits - 1),
            num_warps=1,
            launch_pdl=True,
        )


# endregion decode
