"""Attention for Triton: keys are cut every SPLIT tokens, counted from a sequence's first key.

A split is an online softmax from scratch; splits are merged first to last. The full path does both in one program;
decode computes splits in parallel programs, and a second kernel merges them. A tile or a split that a row does not
see leaves its state bit for bit as it was, so a row knows neither its neighbours nor where its keys are kept. Both
paths use tiles of 64 rows, as wgmma and mma.sync do not add alike.
"""

import math

import torch
import triton
import triton.language as tl

# region tile
SPLIT = 512
BLOCK_KEYS = 64


@triton.jit
def tile_step(q, k, v, seen, scale, out, top, total):
    """One tile of keys. out [rows, head_dim] and total [rows] are relative to the running maximum top [rows]."""
    scores = tl.where(seen, tl.dot(q, k), float("-inf"))
    raised = tl.maximum(top, tl.max(scores, 1))
    finite = tl.where(raised == float("-inf"), 0.0, raised)
    weights = tl.exp2(tl.fma(scores, scale, -(finite * scale)[:, None]))
    kept = tl.exp2((top - finite) * scale)
    out = tl.dot(weights.to(v.dtype), v, out * kept[:, None])
    return out, raised, total * kept + tl.sum(weights, 1)


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
@triton.jit
def key_rows(place, sequence, keys, inside, slots, page_tokens, PAGED: tl.constexpr):
    """Where keys lie in k and v: after the sequence's first row, or by its table of pages."""
    if PAGED:
        page = tl.load(place + sequence * slots + keys // page_tokens, mask=inside, other=0)
        return page.to(tl.int64) * page_tokens + keys % page_tokens
    return tl.load(place + sequence).to(tl.int64) + keys


@triton.jit
def load_tile(
    k, v, place, sequence, keys, count, head, heads, slots, page_tokens, D: tl.constexpr, PAGED: tl.constexpr
):
    """k [D, keys] and v [keys, D]; zeros from the sequence's end on, whatever the cache holds there."""
    d = tl.arange(0, D)
    inside = keys < count
    at = (key_rows(place, sequence, keys, inside, slots, page_tokens, PAGED) * heads + head) * D
    return (
        tl.load(k + at[None, :] + d[:, None], mask=inside[None, :], other=0.0),
        tl.load(v + at[:, None] + d[None, :], mask=inside[:, None], other=0.0),
    )


# endregion keys


# region full
FULL_ROWS, FULL_WARPS, FULL_STAGES = 64, 4, 3


@triton.jit
def sequence_of(query_start, batch, program, ROWS: tl.constexpr):
    """The last sequence whose tiles begin at or before this program; a sequence has one tile to spare."""
    low, high = 0, batch
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(query_start + middle) // ROWS + middle
        low = tl.where(begins <= program, middle, low)
        high = tl.where(begins <= program, high, middle)
    return low


@triton.jit(do_not_specialize=["batch", "query_heads", "kv_heads", "slots", "page_tokens"])
def full(
    q,
    k,
    v,
    place,
    query_start,
    query_count,
    key_count,
    y,
    lse,
    batch,
    query_heads,
    kv_heads,
    slots,
    page_tokens,
    scale,
    D: tl.constexpr,
    PAGED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """A tile of one sequence's queries, for one head: the sequence's last queries are those of its last keys."""
    sequence = sequence_of(query_start, batch, tl.program_id(0), ROWS)
    start, queries = tl.load(query_start + sequence), tl.load(query_count + sequence)
    first = (tl.program_id(0) - start // ROWS - sequence) * ROWS
    if first >= queries:
        return
    count = tl.load(key_count + sequence)
    head = tl.program_id(1)
    row, d = first + tl.arange(0, ROWS), tl.arange(0, D)
    at = (start + row).to(tl.int64) * query_heads + head
    tile = tl.load(q + at[:, None] * D + d[None, :], mask=(row < queries)[:, None], other=0.0)
    own = count - queries + row
    end = tl.minimum(count - queries + first + ROWS, count)
    total = tl.zeros([ROWS], tl.float32)
    top = total - float("inf")
    out = tl.zeros([ROWS, D], tl.float32)
    for split in range(0, end, SPLIT):
        part, part_top, part_total = tl.zeros_like(out), tl.zeros_like(top) - float("inf"), tl.zeros_like(total)
        for key in range(split, tl.minimum(split + SPLIT, end), KEYS):
            keys = key + tl.arange(0, KEYS)
            kt, vt = load_tile(
                k,
                v,
                place,
                sequence,
                keys,
                count,
                head // (query_heads // kv_heads),
                kv_heads,
                slots,
                page_tokens,
                D,
                PAGED,
            )
            seen = keys[None, :] <= own[:, None]
            part, part_top, part_total = tile_step(tile, kt, vt, seen, scale, part, part_top, part_total)
        kept, joined, top, total = merged(top, total, part_top, part_total, scale)
        out = tl.fma(part, joined[:, None], out * kept[:, None])
    inside = row < queries
    tl.store(
        y + at[:, None] * D + d[None, :], (out * normalised(total)[:, None]).to(y.dtype.element_ty), inside[:, None]
    )
    tl.store(lse + at, log_sum(top, total, scale), inside)


def launch_full(q, k, v, place, query_start, query_count, key_count, y, lse, slots, page_tokens, paged):
    (tokens, query_heads, head_dim), kv_heads, batch = q.shape, k.shape[-2], query_start.shape[0]
    full[(triton.cdiv(tokens, FULL_ROWS) + batch, query_heads)](
        *(q, k, v, place, query_start, query_count, key_count, y, lse),
        *(batch, query_heads, kv_heads, slots, page_tokens, math.log2(math.e) / math.sqrt(head_dim)),
        D=head_dim,
        PAGED=paged,
        ROWS=FULL_ROWS,
        KEYS=BLOCK_KEYS,
        SPLIT=SPLIT,
        num_warps=FULL_WARPS,
        num_stages=FULL_STAGES,
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
    launch_full(q, k, v, key_start, query_start, query_count, key_count, out, lse, 0, 1, False)


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
    launch_full(q, k, v, table, query_start, query_count, key_count, out, lse, table.shape[1], k.shape[1], True)


# endregion full


# region decode
DECODE_ROWS, DECODE_WARPS, DECODE_STAGES = 64, 4, 3


@triton.jit(do_not_specialize=["steps", "query_heads", "kv_heads", "slots", "page_tokens"])
def decode(
    q,
    k,
    v,
    table,
    lengths,
    parts,
    tops,
    totals,
    steps,
    query_heads,
    kv_heads,
    slots,
    page_tokens,
    scale,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One split of one sequence's keys, for all queries of one KV head: a row for each of its heads and steps."""
    split, sequence = tl.program_id(0), tl.program_id(2)
    count = tl.load(lengths + sequence)
    if split * SPLIT >= count:
        return
    head, group = tl.program_id(1) % kv_heads, query_heads // kv_heads
    row, d = tl.program_id(1) // kv_heads * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    step, inside = row // group, row < steps * group
    at = (sequence * steps + step).to(tl.int64) * query_heads + head * group + row % group
    tile = tl.load(q + at[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
    own = count - steps + step
    total = tl.zeros([ROWS], tl.float32)
    top = total - float("inf")
    out = tl.zeros([ROWS, D], tl.float32)
    for key in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, count), KEYS):
        keys = key + tl.arange(0, KEYS)
        kt, vt = load_tile(k, v, table, sequence, keys, count, head, kv_heads, slots, page_tokens, D, True)
        out, top, total = tile_step(tile, kt, vt, keys[None, :] <= own[:, None], scale, out, top, total)
    at += split.to(tl.int64) * tl.num_programs(2) * steps * query_heads
    tl.store(parts + at[:, None] * D + d[None, :], out, inside[:, None])
    tl.store(tops + at, top, inside)
    tl.store(totals + at, total, inside)


@triton.jit(do_not_specialize=["steps", "query_heads"])
def decode_merge(parts, tops, totals, lengths, y, lse, steps, query_heads, scale, D: tl.constexpr, SPLIT: tl.constexpr):
    """One row of the output from its splits, first to last."""
    at, d = tl.program_id(0).to(tl.int64) * query_heads + tl.program_id(1), tl.arange(0, D)
    rows = tl.num_programs(0).to(tl.int64) * query_heads
    splits = tl.cdiv(tl.load(lengths + tl.program_id(0) // steps), SPLIT)
    out, top, total = tl.zeros([D], tl.float32), float("-inf"), 0.0
    for split in range(splits):
        this = split * rows + at
        part, part_top, part_total = tl.load(parts + this * D + d), tl.load(tops + this), tl.load(totals + this)
        kept, joined, top, total = merged(top, total, part_top, part_total, scale)
        out = tl.fma(part, joined, out * kept)
    tl.store(y + at * D + d, (out * normalised(total)).to(y.dtype.element_ty))
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
    splits = triton.cdiv(slots * page_tokens, SPLIT)
    row_tiles = triton.cdiv(steps * (query_heads // kv_heads), DECODE_ROWS)
    scale = math.log2(math.e) / math.sqrt(head_dim)
    parts = torch.empty((splits, batch, steps, query_heads, head_dim), dtype=torch.float32, device=q.device)
    tops = torch.empty((splits, batch, steps, query_heads), dtype=torch.float32, device=q.device)
    totals = torch.empty((splits, batch, steps, query_heads), dtype=torch.float32, device=q.device)
    decode[(splits, kv_heads * row_tiles, batch)](
        *(q, k, v, table, lengths, parts, tops, totals),
        *(steps, query_heads, kv_heads, slots, page_tokens, scale),
        D=head_dim,
        ROWS=DECODE_ROWS,
        KEYS=BLOCK_KEYS,
        SPLIT=SPLIT,
        num_warps=DECODE_WARPS,
        num_stages=DECODE_STAGES,
    )
    decode_merge[(batch * steps, query_heads)](
        *(parts, tops, totals, lengths, out, lse, steps, query_heads, scale), D=head_dim, SPLIT=SPLIT, num_warps=1
    )


# endregion decode
