"""Mechanisms on the products of one query with the keys of a tile: lanes, their sums, fused arithmetic."""

from collections.abc import Callable
from pathlib import Path

from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region

FORMS = load_module(Path(__file__).parent / "forms.py")
swap_region: Callable[[Sources, str, str, str], Sources] = FORMS.swap_region
rows_in_lanes: Callable[[Sources, str], Sources] = FORMS.rows_in_lanes

ROOT_DOT = """\
// One running sum, in the order of the head dimension.
INLINE float dot(const float *query, struct tile tile, int64_t key)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < tile.head_dim; d++)
        sum = multiply_add(query[d], key_of(tile, key, d), sum);
    return sum;
}
"""

LANE_TYPES = """
// Before a loop whose count is a constant: its body as often, so that an array it walks stays in registers.
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

// Neighbouring elements of a row that one instruction takes together.
enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t word_lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t half_lanes __attribute__((vector_size(LANES * sizeof(uint16_t))));

INLINE lanes load_lanes(const void *data, int64_t index, enum dtype dtype)
{
    lanes loaded;
    if (dtype == F32) {
        memcpy(&loaded, (const float *)data + index, sizeof loaded);
        return loaded;
    }
    half_lanes halves;
    memcpy(&halves, (const uint16_t *)data + index, sizeof halves);
    const word_lanes words = __builtin_convertvector(halves, word_lanes) << 16;
    memcpy(&loaded, &words, sizeof loaded);
    return loaded;
}

// multiply_add in every lane.
INLINE lanes multiply_add_lanes(lanes a, lanes b, lanes c)
{
    return a * b + c;
}
"""

LANE_DOT = """\
// LANES running sums, lane l over the elements l, l + LANES, ...; then the lanes are added in order.
INLINE float sum_of_lanes(lanes values)
{
    float sum = values[0];
    for (int lane = 1; lane < LANES; lane++)
        sum += values[lane];
    return sum;
}

INLINE float dot(const float *query, struct tile tile, int64_t key)
{
    lanes sums = {0};
    for (int64_t d = 0; d < tile.head_dim; d += LANES)
        sums = multiply_add_lanes(load_lanes(query, d, F32), keys_of(tile, key, d), sums);
    return sum_of_lanes(sums);
}
"""

ROOT_SCORES = """\
INLINE void score_tile(float *scores, const struct row *row, struct tile tile, int64_t count)
{
    for (int64_t key = 0; key < count; key++)
        scores[key] = dot(row->query, tile, key) * row->scale;
}
"""

KEY_GROUP_SCORES = """\
// Keys whose sums run beside each other and share one load of the query.
enum { KEY_GROUP = 4 };

INLINE void score_tile(float *scores, const struct row *row, struct tile tile, int64_t count)
{
    int64_t key = 0;
    for (; key + KEY_GROUP <= count; key += KEY_GROUP) {
        lanes sums[KEY_GROUP] = {{0}};
        for (int64_t d = 0; d < tile.head_dim; d += LANES) {
            const lanes query = load_lanes(row->query, d, F32);
UNROLLED
            for (int64_t i = 0; i < KEY_GROUP; i++)
                sums[i] = multiply_add_lanes(query, keys_of(tile, key + i, d), sums[i]);
        }
UNROLLED
        for (int64_t i = 0; i < KEY_GROUP; i++)
            scores[key + i] = sum_of_lanes(sums[i]) * row->scale;
    }
    for (; key < count; key++)
        scores[key] = dot(row->query, tile, key) * row->scale;
}
"""

FOUR_DOTS = """\

// LANES running sums for each of four keys, lane l over the elements l, l + LANES, ...; a key beyond `last` is read
// as `last`.
INLINE void four_dots(lanes *sums, const float *query, struct tile tile, int64_t key, int64_t last)
{
    for (int64_t d = 0; d < tile.head_dim; d += LANES) {
        const lanes part = load_lanes(query, d, F32);
UNROLLED
        for (int64_t i = 0; i < 4; i++)
            sums[i] = multiply_add_lanes(part, keys_of(tile, smaller(key + i, last), d), sums[i]);
    }
}

"""

BATCHED_DOT = f"""\
// Adds the upper half of each operand's lanes to its lower half, and interleaves the two results.
INLINE lanes fold(lanes a, lanes b)
{{
    const lanes lower = {{a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3],
                         a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]}};
    const lanes upper = {{a[8],  b[8],  a[9],  b[9],  a[10], b[10], a[11], b[11],
                         a[12], b[12], a[13], b[13], a[14], b[14], a[15], b[15]}};
    return lower + upper;
}}

// Four of the sixteen sums, every fourth from i on, folded twice.
INLINE lanes fold_four(const lanes *sums, int i)
{{
    return fold(fold(sums[i], sums[i + 8]), fold(sums[i + 4], sums[i + 12]));
}}
{FOUR_DOTS}\
// Lane i is the dot product with key + i, or with `last` if that lies beyond. The lanes of all sixteen running
// sums are added together, folded by halves: l with l + 8, + 4, + 2, + 1.
INLINE lanes dots(const float *query, struct tile tile, int64_t key, int64_t last)
{{
    lanes sums[LANES] = {{{{0}}}};
    four_dots(&sums[0], query, tile, key, last);
    four_dots(&sums[4], query, tile, key + 4, last);
    four_dots(&sums[8], query, tile, key + 8, last);
    four_dots(&sums[12], query, tile, key + 12, last);
    return fold(fold(fold_four(sums, 0), fold_four(sums, 2)), fold(fold_four(sums, 1), fold_four(sums, 3)));
}}
"""


def _narrow_batched_dot(lower: str, upper: str, count: str, dots: str) -> str:
    """The same for fewer lanes."""
    return f"""\
// Adds the upper half of each operand's lanes to its lower half, and interleaves the two results.
INLINE lanes fold(lanes a, lanes b)
{{
    const lanes lower = {{{lower}}};
    const lanes upper = {{{upper}}};
    return lower + upper;
}}
{FOUR_DOTS}\
// Lane i is the dot product with key + i, or with `last` if that lies beyond. The lanes of all {count} running sums
// are added together, folded by halves.
INLINE lanes dots(const float *query, struct tile tile, int64_t key, int64_t last)
{{
    lanes sums[LANES] = {{{{0}}}};
{dots}}}
"""


BATCHED_DOT_8 = _narrow_batched_dot(
    "a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]",
    "a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]",
    "eight",
    """\
    four_dots(&sums[0], query, tile, key, last);
    four_dots(&sums[4], query, tile, key + 4, last);
    const lanes even = fold(fold(sums[0], sums[4]), fold(sums[2], sums[6]));
    const lanes odd = fold(fold(sums[1], sums[5]), fold(sums[3], sums[7]));
    return fold(even, odd);
""",
)

BATCHED_DOT_4 = _narrow_batched_dot(
    "a[0], b[0], a[1], b[1]",
    "a[2], b[2], a[3], b[3]",
    "four",
    """\
    four_dots(sums, query, tile, key, last);
    return fold(fold(sums[0], sums[2]), fold(sums[1], sums[3]));
""",
)

BATCHED_SCORES = """\
// Scores come LANES at a time; KV_TILE is a multiple of LANES, so the last group ends inside the tile's scores.
INLINE void score_tile(float *scores, const struct row *row, struct tile tile, int64_t count)
{
    int64_t key = 0;
    for (; key + LANES <= count; key += LANES) {
        const lanes whole = dots(row->query, tile, key, key + LANES) * row->scale;
        memcpy(scores + key, &whole, sizeof whole);
    }
    if (key < count) {
        const lanes rest = dots(row->query, tile, key, count - 1) * row->scale;
        memcpy(scores + key, &rest, sizeof rest);
    }
}
"""

SCALED = " * row->scale"


def _scored(sources: Sources, olds: tuple[str, ...], new: str) -> Sources:
    """Region scores in one of the old forms becomes the new one; where the scale was folded away, it stays so."""
    present = region(sources, "scores")
    for old in olds:
        if present == old:
            return replace_region(sources, "scores", new)
        if present == old.replace(SCALED, ""):
            return replace_region(sources, "scores", new.replace(SCALED, ""))
    raise Refused("region scores is not in a form this rewrite knows")


def lanes_4(sources: Sources) -> Sources:
    """The dot product in four lanes, and the vector types that later mechanisms use."""
    edited = rows_in_lanes(sources, "key")
    edited = replace_region(edited, "arithmetic", region(edited, "arithmetic") + LANE_TYPES)
    return swap_region(edited, "dot", ROOT_DOT, LANE_DOT)


def lanes_8(sources: Sources) -> Sources:
    """Eight lanes instead of four."""
    return edit_region(sources, "arithmetic", "enum { LANES = 4 };", "enum { LANES = 8 };")


def lanes_16(sources: Sources) -> Sources:
    """Sixteen lanes instead of eight."""
    return edit_region(sources, "arithmetic", "enum { LANES = 8 };", "enum { LANES = 16 };")


def batched_lane_sum(sources: Sources) -> Sources:
    """Sixteen keys at a time, whose lanes are summed by one tree of folds."""
    return _batched(sources, BATCHED_DOT)


def batched_lane_sum_8(sources: Sources) -> Sources:
    """Eight keys of eight lanes at a time, summed the same way."""
    return _batched(sources, BATCHED_DOT_8)


def batched_lane_sum_4(sources: Sources) -> Sources:
    """Four keys of four lanes at a time, summed the same way."""
    return _batched(sources, BATCHED_DOT_4)


def _batched(sources: Sources, new: str) -> Sources:
    edited = swap_region(sources, "dot", LANE_DOT, new)
    return _scored(edited, (ROOT_SCORES, KEY_GROUP_SCORES), BATCHED_SCORES)


def key_group(sources: Sources) -> Sources:
    """Four keys at a time, each with its own sums."""
    return _scored(sources, (ROOT_SCORES,), KEY_GROUP_SCORES)


def fused_multiply_add(sources: Sources) -> Sources:
    """One rounding for product and sum, in scalar and lane arithmetic alike."""
    edited = edit_region(
        sources, "arithmetic", "// The product is rounded, then the sum: contraction is off.", "// Rounded once."
    )
    edited = edit_region(
        edited,
        "arithmetic",
        "float multiply_add(float a, float b, float c)\n{\n    return a * b + c;",
        "float multiply_add(float a, float b, float c)\n{\n    return __builtin_fmaf(a, b, c);",
    )
    return edit_region(
        edited,
        "arithmetic",
        "    return a * b + c;",
        "    lanes sum;\n    for (int lane = 0; lane < LANES; lane++)\n"
        "        sum[lane] = multiply_add(a[lane], b[lane], c[lane]);\n    return sum;",
    )


def scale_query(sources: Sources) -> Sources:
    """The scale multiplies the query once instead of every score."""
    scores = region(sources, "scores")
    if SCALED not in scores:
        raise Refused("region scores does not apply the scale")
    edited = replace_region(sources, "scores", scores.replace(SCALED, ""))
    edited = edit_region(edited, "start", "    row->scale = 1.0f / sqrtf", "    const float scale = 1.0f / sqrtf")
    edited = edit_region(
        edited, "start", "element(s.queries, index + d, s.dtype);", "element(s.queries, index + d, s.dtype) * scale;"
    )
    return edit_region(edited, "row", "float max, weight_sum, scale;", "float max, weight_sum;")
