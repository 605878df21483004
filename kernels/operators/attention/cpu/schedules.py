"""Mechanisms on the order of the work: tiles and what is kept of them, rows and heads that share them, entries."""

from collections.abc import Callable
from pathlib import Path

from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region

FORMS = load_module(Path(__file__).parent / "forms.py")
swap_region: Callable[[Sources, str, str, str], Sources] = FORMS.swap_region
rows_unpacked: Callable[[Sources, str], Sources] = FORMS.rows_unpacked

ROOT_FULL = """\
// One query head over the whole sequence: row i attends to keys 0 .. i.
INLINE void full_head(struct sequence s, int64_t tokens, int64_t head, struct workspace *workspace)
{
    const int64_t kv_head = head / (s.query_heads / s.kv_heads);
    struct row row;
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t index = (token * s.query_heads + head) * s.head_dim;
        start_row(&row, s, index);
        for (int64_t start = 0; start <= token; start += KV_TILE) {
            const int64_t count = smaller(KV_TILE, token + 1 - start);
            attend_tile(&row, open_tile(s, kv_head, start, count, workspace), count, workspace);
        }
        finish_row(&row, s, index);
    }
}
"""

ATTEND_ROWS = """\
// One tile for some consecutive rows, of which the first sees `seen` keys, each next one a key more, and those
// with none (seen <= 0) nothing.
INLINE void attend_rows(struct row *rows, int64_t count, int64_t seen, struct tile tile, struct workspace *workspace)
{
    for (int64_t i = seen > 0 ? 0 : 1 - seen; i < count; i++)
        attend_tile(&rows[i], tile, smaller(KV_TILE, seen + i), workspace);
}
"""

QUERY_TILE_FULL = (
    """\
// Neighbouring rows of one head that share every tile they open.
enum { QUERY_TILE = 32 };

"""
    + ATTEND_ROWS
    + """
// One query head over the whole sequence: row i attends to keys 0 .. i.
INLINE void full_head(struct sequence s, int64_t tokens, int64_t head, struct workspace *workspace)
{
    const int64_t kv_head = head / (s.query_heads / s.kv_heads);
    struct row rows[QUERY_TILE];
    for (int64_t first = 0; first < tokens; first += QUERY_TILE) {
        const int64_t count = smaller(QUERY_TILE, tokens - first);
        for (int64_t i = 0; i < count; i++)
            start_row(&rows[i], s, ((first + i) * s.query_heads + head) * s.head_dim);
        for (int64_t start = 0; start < first + count; start += KV_TILE) {
            const struct tile tile =
                open_tile(s, kv_head, start, smaller(KV_TILE, first + count - start), workspace);
            attend_rows(rows, count, first + 1 - start, tile, workspace);
        }
        for (int64_t i = 0; i < count; i++)
            finish_row(&rows[i], s, ((first + i) * s.query_heads + head) * s.head_dim);
    }
}
"""
)

ROW_GROUP = """\
// Rows whose outputs stay in registers together, so that one load of a value serves them all.
enum { ROW_GROUP = 4, GROUP_WIDE = 32, GROUP_NARROW = 16 };

// Adds weight times value to `width` output elements of each row of a group from d on, key after key.
INLINE void accumulate_group_part(struct row *rows, float (*weights)[KV_TILE], struct tile tile, int64_t count,
                                  int64_t d, int64_t width)
{
    lanes sums[ROW_GROUP][GROUP_WIDE / LANES];
UNROLLED
    for (int64_t row = 0; row < ROW_GROUP; row++)
UNROLLED
        for (int64_t i = 0; i < width / LANES; i++)
            sums[row][i] = load_lanes(rows[row].output, d + i * LANES, F32);
    for (int64_t key = 0; key < count; key++)
UNROLLED
        for (int64_t i = 0; i < width / LANES; i++) {
            const lanes values = values_of(tile, key, d + i * LANES);
UNROLLED
            for (int64_t row = 0; row < ROW_GROUP; row++)
                sums[row][i] = multiply_add_lanes(all_lanes(weights[row][key]), values, sums[row][i]);
        }
UNROLLED
    for (int64_t row = 0; row < ROW_GROUP; row++)
UNROLLED
        for (int64_t i = 0; i < width / LANES; i++)
            memcpy(rows[row].output + d + i * LANES, &sums[row][i], sizeof sums[row][i]);
}

// One tile for a group of rows, of which the first sees `seen` keys and each next one a key more: the keys that
// all of them see together, then for each row those that it sees besides.
INLINE void attend_group(struct row *rows, int64_t seen, struct tile tile)
{
    _Alignas(64) float weights[ROW_GROUP][KV_TILE];
    for (int64_t row = 0; row < ROW_GROUP; row++) {
        const int64_t count = smaller(KV_TILE, seen + row);
        score_keys(weights[row], &rows[row], tile, count);
        weigh_scores(&rows[row], weights[row], count, tile.head_dim);
    }
    const int64_t shared = smaller(KV_TILE, seen);
    int64_t d = 0;
    for (; d + GROUP_WIDE <= tile.head_dim; d += GROUP_WIDE)
        accumulate_group_part(rows, weights, tile, shared, d, GROUP_WIDE);
    for (; d < tile.head_dim; d += GROUP_NARROW)
        accumulate_group_part(rows, weights, tile, shared, d, GROUP_NARROW);
    struct tile rest = tile;
    rest.values += shared * tile.stride;
    for (int64_t row = 1; row < ROW_GROUP; row++)
        accumulate(rows[row].output, weights[row] + shared, rest, smaller(KV_TILE, seen + row) - shared);
}

// One tile for some consecutive rows, of which the first sees `seen` keys, each next one a key more, and those
// with none (seen <= 0) nothing. Compiled once for both dtypes.
static void attend_rows(struct row *restrict rows, int64_t count, int64_t seen, struct tile tile,
                        struct workspace *restrict workspace)
{
    int64_t i = seen > 0 ? 0 : 1 - seen;
    for (; i + ROW_GROUP <= count; i += ROW_GROUP)
        attend_group(&rows[i], seen + i, tile);
    for (; i < count; i++)
        attend_tile(&rows[i], tile, smaller(KV_TILE, seen + i), workspace);
}
"""

ROOT_DECODE = """\
// One token of every query head against the sequence's first `length` keys, its own included.
INLINE void decode_token(struct sequence s, int64_t length, struct workspace *workspace)
{
    struct row row;
    for (int64_t head = 0; head < s.query_heads; head++) {
        const int64_t kv_head = head / (s.query_heads / s.kv_heads);
        start_row(&row, s, head * s.head_dim);
        for (int64_t start = 0; start < length; start += KV_TILE) {
            const int64_t count = smaller(KV_TILE, length - start);
            attend_tile(&row, open_tile(s, kv_head, start, count, workspace), count, workspace);
        }
        finish_row(&row, s, head * s.head_dim);
    }
}
"""

TOGETHER_DECODE = """\
// Query heads of one KV head that share every tile they open.
enum { HEADS_TOGETHER = 8 };

INLINE void attend_heads(struct row *rows, int64_t heads, struct tile tile, int64_t count, struct workspace *workspace)
{
    for (int64_t i = 0; i < heads; i++)
        attend_tile(&rows[i], tile, count, workspace);
}

// Some query heads of one KV head, from `first` on, against the sequence's first `length` keys.
INLINE void decode_heads(struct sequence s, int64_t length, int64_t kv_head, int64_t first, int64_t heads,
                         struct workspace *workspace)
{
    struct row rows[HEADS_TOGETHER];
    for (int64_t i = 0; i < heads; i++)
        start_row(&rows[i], s, (first + i) * s.head_dim);
    for (int64_t start = 0; start < length; start += KV_TILE) {
        const int64_t count = smaller(KV_TILE, length - start);
        attend_heads(rows, heads, open_tile(s, kv_head, start, count, workspace), count, workspace);
    }
    for (int64_t i = 0; i < heads; i++)
        finish_row(&rows[i], s, (first + i) * s.head_dim);
}

// One token of every query head against the sequence's first `length` keys, its own included.
INLINE void decode_token(struct sequence s, int64_t length, struct workspace *workspace)
{
    const int64_t group = s.query_heads / s.kv_heads;
    for (int64_t kv_head = 0; kv_head < s.kv_heads; kv_head++)
        for (int64_t i = 0; i < group; i += HEADS_TOGETHER)
            decode_heads(s, length, kv_head, kv_head * group + i, smaller(HEADS_TOGETHER, group - i), workspace);
}
"""

ATTEND_HEADS = """\
INLINE void attend_heads(struct row *rows, int64_t heads, struct tile tile, int64_t count, struct workspace *workspace)
{
    for (int64_t i = 0; i < heads; i++)
        attend_tile(&rows[i], tile, count, workspace);
}
"""

HEAD_PAIR = """\
// Adds weight times value to `width` output elements of two heads from d on, key after key.
INLINE void accumulate_pair_part(struct row *rows, float (*weights)[KV_TILE], struct tile tile, int64_t count,
                                 int64_t d, int64_t width)
{
    lanes first[WIDE / LANES], second[WIDE / LANES];
UNROLLED
    for (int64_t i = 0; i < width / LANES; i++) {
        first[i] = load_lanes(rows[0].output, d + i * LANES, F32);
        second[i] = load_lanes(rows[1].output, d + i * LANES, F32);
    }
    for (int64_t key = 0; key < count; key++)
UNROLLED
        for (int64_t i = 0; i < width / LANES; i++) {
            const lanes values = values_of(tile, key, d + i * LANES);
            first[i] = multiply_add_lanes(all_lanes(weights[0][key]), values, first[i]);
            second[i] = multiply_add_lanes(all_lanes(weights[1][key]), values, second[i]);
        }
UNROLLED
    for (int64_t i = 0; i < width / LANES; i++) {
        memcpy(rows[0].output + d + i * LANES, &first[i], sizeof first[i]);
        memcpy(rows[1].output + d + i * LANES, &second[i], sizeof second[i]);
    }
}

// One tile for two heads, whose outputs stay in registers together: one load of a value serves both.
static void attend_pair(struct row *restrict rows, struct tile tile, int64_t count)
{
    _Alignas(64) float weights[2][KV_TILE];
    for (int64_t i = 0; i < 2; i++) {
        score_keys(weights[i], &rows[i], tile, count);
        weigh_scores(&rows[i], weights[i], count, tile.head_dim);
    }
    int64_t d = 0;
    for (; d + WIDE <= tile.head_dim; d += WIDE)
        accumulate_pair_part(rows, weights, tile, count, d, WIDE);
    for (; d < tile.head_dim; d += NARROW)
        accumulate_pair_part(rows, weights, tile, count, d, NARROW);
}

INLINE void attend_heads(struct row *rows, int64_t heads, struct tile tile, int64_t count, struct workspace *workspace)
{
    int64_t i = 0;
    for (; i + 2 <= heads; i += 2)
        attend_pair(&rows[i], tile, count);
    if (i < heads)
        attend_tile(&rows[i], tile, count, workspace);
}
"""

VIEWED_TILE = """\
    return (struct tile){
        .keys = at(s.keys, first, s.dtype),
        .values = at(s.values, first, s.dtype),
        .stride = s.kv_heads * s.head_dim,
        .head_dim = s.head_dim,
        .dtype = s.dtype,
    };
"""

UNPACKED_TILE = """\
    const int64_t stride = s.kv_heads * s.head_dim;
    if (s.dtype == F32)
        return (struct tile){at(s.keys, first, F32), at(s.values, first, F32), stride, s.head_dim};
    for (int64_t key = 0; key < count; key++)
        for (int64_t d = 0; d < s.head_dim; d++) {
            workspace->keys[key * s.head_dim + d] = element(s.keys, first + key * stride + d, s.dtype);
            workspace->values[key * s.head_dim + d] = element(s.values, first + key * stride + d, s.dtype);
        }
    return (struct tile){workspace->keys, workspace->values, s.head_dim, s.head_dim};
"""

FIRST_ELEMENT = """\
    const int64_t first = (start * s.kv_heads + kv_head) * s.head_dim;
"""

PREFETCH = """\
    // The tile after this one; beyond the last key a prefetch does nothing.
    const int64_t next = first + KV_TILE * s.kv_heads * s.head_dim;
    for (int64_t key = 0; key < count; key++) {
        __builtin_prefetch(at(s.keys, next + key * s.kv_heads * s.head_dim, s.dtype));
        __builtin_prefetch(at(s.values, next + key * s.kv_heads * s.head_dim, s.dtype));
    }
"""

UNPACKED_TILE_TYPE = """\
// A few consecutive keys and values of one KV head; stride is the distance between rows in elements.
struct tile {
    const float *keys, *values;
    int64_t stride, head_dim;
};
"""

VIEWED_TILE_TYPE = """\
// A few consecutive keys and values of one KV head; stride is the distance between rows in elements.
struct tile {
    const void *keys, *values;
    int64_t stride, head_dim;
    enum dtype dtype;
};
"""

TYPED_TILE = """\
INLINE void attend_typed_tile(struct row *row, struct tile tile, int64_t count, struct workspace *workspace)
{
    score_tile(workspace->scores, row, tile, count);
    weigh_scores(row, workspace->scores, count, tile.head_dim);
    accumulate(row->output, workspace->scores, tile, count);
}

SHARED void attend_f32_tile(struct row *restrict row, struct tile tile, int64_t count,
                            struct workspace *restrict workspace)
{
    tile.dtype = F32;
    attend_typed_tile(row, tile, count, workspace);
}

SHARED void attend_bf16_tile(struct row *restrict row, struct tile tile, int64_t count,
                             struct workspace *restrict workspace)
{
    tile.dtype = BF16;
    attend_typed_tile(row, tile, count, workspace);
}

INLINE void attend_tile(struct row *row, struct tile tile, int64_t count, struct workspace *workspace)
{
    (tile.dtype == F32 ? attend_f32_tile : attend_bf16_tile)(row, tile, count, workspace);
}
"""

UNTYPED_TILE = """\
SHARED void score_keys(float *restrict scores, const struct row *restrict row, struct tile tile, int64_t count)
{
    score_tile(scores, row, tile, count);
}

INLINE void attend_tile(struct row *row, struct tile tile, int64_t count, struct workspace *workspace)
{
    score_keys(workspace->scores, row, tile, count);
    weigh_scores(row, workspace->scores, count, tile.head_dim);
    accumulate(row->output, workspace->scores, tile, count);
}
"""

ROW_GROUPS = """\
    int64_t i = seen > 0 ? 0 : 1 - seen;
    for (; i + ROW_GROUP <= count; i += ROW_GROUP)
        attend_group(&rows[i], seen + i, tile);
"""

WHOLE_ROW_GROUPS = """\
    int64_t i = seen > 0 ? 0 : 1 - seen;
    // Left of the diagonal every row sees the whole tile.
    for (; seen >= KV_TILE && i + ROW_GROUP <= count; i += ROW_GROUP)
        attend_group(&rows[i], KV_TILE, tile);
    for (; i + ROW_GROUP <= count; i += ROW_GROUP)
        attend_group(&rows[i], seen + i, tile);
"""


def kv_tile_128(sources: Sources) -> Sources:
    """Twice the keys in a step of the online softmax."""
    return edit_region(sources, "kv_tile", "KV_TILE = 64", "KV_TILE = 128")


def unpacked_tile(sources: Sources) -> Sources:
    """bfloat16 keys and values widened once for all that use the tile."""
    edited = edit_region(
        sources,
        "tile",
        "    float scores[KV_TILE];\n",
        "    float scores[KV_TILE];\n"
        "    _Alignas(64) float keys[KV_TILE * MAX_HEAD_DIM], values[KV_TILE * MAX_HEAD_DIM];\n",
    )
    edited = edit_region(
        edited,
        "tile",
        ": nothing is copied to the workspace.",
        "; bfloat16 is widened into the\n// workspace, once for all that use the tile.",
    )
    edited = edit_region(edited, "tile", VIEWED_TILE_TYPE, UNPACKED_TILE_TYPE)
    edited = edit_region(edited, "tile", VIEWED_TILE, UNPACKED_TILE)
    edited = edit_region(edited, "tile_step", TYPED_TILE, UNTYPED_TILE)
    return rows_unpacked(rows_unpacked(edited, "key"), "value")


def prefetched_tile(sources: Sources) -> Sources:
    """The next tile's rows asked for while this one is worked on."""
    if "__builtin_prefetch" in region(sources, "tile"):
        raise Refused("region tile prefetches already")
    return edit_region(sources, "tile", FIRST_ELEMENT, FIRST_ELEMENT + PREFETCH)


def query_tile(sources: Sources) -> Sources:
    """Thirty-two rows share each tile they open."""
    return swap_region(sources, "full", ROOT_FULL, QUERY_TILE_FULL)


def row_group(sources: Sources) -> Sources:
    """Four rows of the value product at a time."""
    return edit_region(sources, "full", ATTEND_ROWS, ROW_GROUP)


def whole_tiles_full(sources: Sources) -> Sources:
    """Tiles left of the diagonal go without the causal limit, their key count a constant."""
    return edit_region(sources, "full", ROW_GROUPS, WHOLE_ROW_GROUPS)


def heads_together(sources: Sources) -> Sources:
    """The query heads of one KV head share each tile they open."""
    return swap_region(sources, "decode", ROOT_DECODE, TOGETHER_DECODE)


def head_pair(sources: Sources) -> Sources:
    """Two heads of the value product at a time."""
    return edit_region(sources, "decode", ATTEND_HEADS, HEAD_PAIR)


def aligned_rows(sources: Sources) -> Sources:
    """A row's query and output begin a cache line, so that no vector load straddles two."""
    return edit_region(
        sources,
        "row",
        "    float query[MAX_HEAD_DIM], output[MAX_HEAD_DIM];",
        "    _Alignas(64) float query[MAX_HEAD_DIM], output[MAX_HEAD_DIM];",
    )
