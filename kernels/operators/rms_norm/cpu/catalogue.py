"""rms_norm on a CPU: vector sums, several rows side by side and vector scaling, each a small rewrite of the parent's C.

The region `squares` holds the sum of one row and `scale` what is made of it; both paths share them. `full` and
`decode` hold the walks. What a walk needs of the sum is `partial`, `STEP`, `advance` and `finish`, which every
rewrite keeps.
"""

from collections.abc import Callable
from functools import partial

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import EntryPath, Sources
from kernelbraid.kernels.operators.regions import Refused, edit_region, region, replace_region

LANES = ("lanes_4", "lanes_8", "lanes_16")
ANY_LANES = "|".join(LANES)
WORTH_A_TRY_RATIO = 0.05
"""Share of the weighted latency below which a path or dtype is not worth a rewrite of its own."""

LANE_SUMS = """\
/* LANES running sums: lane i takes every element whose place is i modulo LANES, first to last. */
#define LANES 4
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t lane_bits __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t lane_halves __attribute__((vector_size(LANES * sizeof(uint16_t))));
typedef lanes partial;
enum { STEP = LANES };

INLINE lanes load_lanes(const void *base, int64_t i, element type)
{
    lanes value;
    if (type == F32) {
        memcpy(&value, (const float *)base + i, sizeof value);
        return value;
    }
    lane_halves halves;
    memcpy(&halves, (const uint16_t *)base + i, sizeof halves);
    lane_bits bits = __builtin_convertvector(halves, lane_bits) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE lanes add_squares(lanes sum, lanes value)
{
    return sum + value * value;
}

INLINE float add_square(float sum, float value)
{
    return sum + value * value;
}

/* The lanes one by one, lane 0 first. */
INLINE float lane_sum(lanes value)
{
    float sum = value[0];
    for (int i = 1; i < LANES; i++)
        sum += value[i];
    return sum;
}

/* The partial sum after the squares of the next STEP elements, from k on. */
INLINE partial advance(partial sum, norm n, int64_t row, int64_t k)
{
    return add_squares(sum, load_lanes(n.x, row * n.hidden + k, n.type));
}

/* The sum of squares, when no whole step is left at k: the lanes' sum, then the last squares one by one. */
INLINE float finish(partial sum, norm n, int64_t row, int64_t k)
{
    float total = lane_sum(sum);
    for (; k < n.hidden; k++)
        total = add_square(total, load(n.x, row * n.hidden + k, n.type));
    return total;
}
"""

WIDENED_IN_STEPS = """\
    memcpy(&halves, (const uint16_t *)base + i, sizeof halves);
    lane_bits bits = __builtin_convertvector(halves, lane_bits) << 16;
"""
WIDENED_AT_ONCE = """\
    memcpy(&halves, (const uint16_t *)base + i, sizeof halves);
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
    typedef int16_t words __attribute__((vector_size(sizeof halves)));
    typedef int32_t doublewords __attribute__((vector_size(sizeof value)));
    lane_bits bits = (lane_bits)__builtin_ia32_pmovzxwd512_mask((words)halves, (doublewords){0}, -1) << 16;
#elif LANES == 8 && defined(__AVX2__) && !defined(__clang__)
    typedef int16_t words __attribute__((vector_size(sizeof halves)));
    lane_bits bits = (lane_bits)__builtin_ia32_pmovzxwd256((words)halves) << 16;
#else
    lane_bits bits = __builtin_convertvector(halves, lane_bits) << 16;
#endif
"""

ONE_BY_ONE = """\
/* The lanes one by one, lane 0 first. */
INLINE float lane_sum(lanes value)
{
    float sum = value[0];
    for (int i = 1; i < LANES; i++)
        sum += value[i];
    return sum;
}
"""
BY_HALVES = """\
/* Each lane with the one half the lanes away, then a quarter, and so on: every lane ends with the same sum. */
INLINE float lane_sum(lanes value)
{
    lanes other = value;
#pragma GCC unroll 4
    for (int width = LANES / 2; width > 0; width /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            other[i] = value[i ^ width];
        value += other;
    }
    return value[0];
}
"""

TWO_ROUNDINGS = """\
INLINE lanes add_squares(lanes sum, lanes value)
{
    return sum + value * value;
}

INLINE float add_square(float sum, float value)
{
    return sum + value * value;
}
"""
# By the compiler's own name of the instruction: its header of intrinsics takes gcc a seventh of a second to read, and
# clang makes the same instruction of the loop.
ONE_ROUNDING = """\
/* One rounding for a square and its addition, in every build alike. */
INLINE lanes add_squares(lanes sum, lanes value)
{
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_vfmaddps512_mask(value, value, sum, -1, 4);
#elif LANES == 8 && defined(__FMA__) && !defined(__clang__)
    return __builtin_ia32_vfmaddps256(value, value, sum);
#elif LANES == 4 && defined(__FMA__) && !defined(__clang__)
    return __builtin_ia32_vfmaddps(value, value, sum);
#else
    for (int i = 0; i < LANES; i++)
        sum[i] = __builtin_fmaf(value[i], value[i], sum[i]);
    return sum;
#endif
}

INLINE float add_square(float sum, float value)
{
    return __builtin_fmaf(value, value, sum);
}
"""

ONE_VECTOR = "typedef lanes partial;\nenum { STEP = LANES };\n"
FOUR_VECTORS = """\
typedef struct {
    lanes of[4];
} partial;
enum { STEP = 4 * LANES };
"""
ONE_VECTOR_SUM = """\
/* The partial sum after the squares of the next STEP elements, from k on. */
INLINE partial advance(partial sum, norm n, int64_t row, int64_t k)
{
    return add_squares(sum, load_lanes(n.x, row * n.hidden + k, n.type));
}

/* The sum of squares, when no whole step is left at k: the lanes' sum, then the last squares one by one. */
INLINE float finish(partial sum, norm n, int64_t row, int64_t k)
{
    float total = lane_sum(sum);
"""
FOUR_VECTOR_SUM = """\
/* The partial sum after the squares of the next STEP elements, from k on: LANES to each of the four vectors. */
INLINE partial advance(partial sum, norm n, int64_t row, int64_t k)
{
    for (int v = 0; v < 4; v++)
        sum.of[v] = add_squares(sum.of[v], load_lanes(n.x, row * n.hidden + k + v * LANES, n.type));
    return sum;
}

/*
 * The sum of squares, when no whole step is left at k: whole vectors that remain go to the first of the four,
 * the four are added in pairs, then the lanes, then the last squares one by one.
 */
INLINE float finish(partial sum, norm n, int64_t row, int64_t k)
{
    for (; k + LANES <= n.hidden; k += LANES)
        sum.of[0] = add_squares(sum.of[0], load_lanes(n.x, row * n.hidden + k, n.type));
    float total = lane_sum((sum.of[0] + sum.of[1]) + (sum.of[2] + sum.of[3]));
"""

SCALE_ONE_BY_ONE = """\
INLINE void scale_row(norm n, int64_t row, float inverse)
{
    for (int64_t k = 0; k < n.hidden; k++) {
"""
SCALE_IN_LANES = """\
/* Rounded to nearest even, a NaN kept, as narrow does one by one. */
INLINE void store_lanes(void *base, int64_t i, lanes value, element type)
{
    if (type == F32) {
        memcpy((float *)base + i, &value, sizeof value);
        return;
    }
    lane_bits bits;
    memcpy(&bits, &value, sizeof bits);
    lane_bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    lane_bits nan = (lane_bits)(value != value);
    rounded = (nan & 0x7fc0u) | (~nan & rounded);
    lane_halves halves = __builtin_convertvector(rounded, lane_halves);
    memcpy((uint16_t *)base + i, &halves, sizeof halves);
}

INLINE void scale_row(norm n, int64_t row, float inverse)
{
    int64_t k = 0;
    for (; k + LANES <= n.hidden; k += LANES) {
        lanes scaled = load_lanes(n.x, row * n.hidden + k, n.type) * inverse;
        store_lanes(n.y, row * n.hidden + k, scaled * load_lanes(n.weight, k, n.weight_type), n.type);
    }
    for (; k < n.hidden; k++) {
"""

ROUNDED_IN_STEPS = """\
    lane_bits bits;
    memcpy(&bits, &value, sizeof bits);
    lane_bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    lane_bits nan = (lane_bits)(value != value);
    rounded = (nan & 0x7fc0u) | (~nan & rounded);
    lane_halves halves = __builtin_convertvector(rounded, lane_halves);
"""
ROUNDED_AT_ONCE = f"""\
    lane_halves halves;
#if LANES == 16 && defined(__AVX512BF16__) && defined(__clang__)
    __auto_type packed = __builtin_ia32_cvtneps2bf16_512(value);
    memcpy(&halves, &packed, sizeof halves);
#elif LANES == 16 && defined(__AVX512BF16__)
    __auto_type packed = __builtin_ia32_cvtneps2bf16_v16sf(value);
    memcpy(&halves, &packed, sizeof halves);
#elif LANES == 8 && defined(__AVX512BF16__) && defined(__AVX512VL__) && !defined(__clang__)
    __auto_type packed = __builtin_ia32_cvtneps2bf16_v8sf(value);
    memcpy(&halves, &packed, sizeof halves);
#else
{ROUNDED_IN_STEPS.replace("    lane_halves halves =", "    halves =")}#endif
"""

ROW_BY_ROW = """\
INLINE void rms_norm_path(norm n)
{
    for (int64_t row = 0; row < n.rows; row++)
        norm_row(n, row);
}
"""
ROWS_SIDE_BY_SIDE = """\
/* Rows whose sums run side by side, so that none waits for another's additions. */
enum { PATH_ROWS = 4 };

INLINE void path_rows(norm n, int64_t first)
{
    partial sum[PATH_ROWS] = {0};
    int64_t k = 0;
    for (; k + STEP <= n.hidden; k += STEP)
        for (int r = 0; r < PATH_ROWS; r++)
            sum[r] = advance(sum[r], n, first + r, k);
    for (int r = 0; r < PATH_ROWS; r++)
        scale_row(n, first + r, inverse_rms(finish(sum[r], n, first + r, k), n.hidden));
}

INLINE void rms_norm_path(norm n)
{
    int64_t row = 0;
    for (; row + PATH_ROWS <= n.rows; row += PATH_ROWS)
        path_rows(n, row);
    for (; row < n.rows; row++)
        norm_row(n, row);
}
"""

NARROW_ENTRY = """\
void rms_norm_path_bf16(const uint16_t *x, const uint16_t *weight, uint16_t *y, const int64_t *dims)
{
    rms_norm_path((norm){x, weight, y, dims[0], dims[1], BF16, BF16});
}
"""
WIDENING_ENTRY = """\
/* The weight is widened once instead of once a row; without memory for that, the bits are the same. */
void rms_norm_path_bf16(const uint16_t *x, const uint16_t *weight, uint16_t *y, const int64_t *dims)
{
    float *wide = malloc((size_t)dims[1] * sizeof *wide);
    for (int64_t k = 0; wide && k < dims[1]; k++)
        wide[k] = widen(weight[k]);
    if (wide)
        rms_norm_path((norm){x, wide, y, dims[0], dims[1], BF16, F32});
    else
        rms_norm_path((norm){x, weight, y, dims[0], dims[1], BF16, BF16});
    free(wide);
}
"""


def _for_path(path: EntryPath, text: str) -> str:
    """A snippet that serves both paths, with one path's names."""
    return text.replace("PATH_", f"{path.upper()}_").replace("path_", f"{path}_").replace("_path", f"_{path}")


def _lanes(count: int, sources: Sources) -> Sources:
    text = region(sources, "squares")
    if "#define LANES" not in text:
        return replace_region(sources, "squares", LANE_SUMS.replace("LANES 4\n", f"LANES {count}\n"))
    for fewer in (4, 8):
        if fewer < count and f"#define LANES {fewer}\n" in text:
            return edit_region(sources, "squares", f"#define LANES {fewer}\n", f"#define LANES {count}\n")
    raise Refused(f"the sum has {count} lanes or more already")


def _lane_tree(sources: Sources) -> Sources:
    return edit_region(sources, "squares", ONE_BY_ONE, BY_HALVES)


def _explicit_fma(sources: Sources) -> Sources:
    return edit_region(sources, "squares", TWO_ROUNDINGS, ONE_ROUNDING)


def _widening_load(sources: Sources) -> Sources:
    return edit_region(sources, "squares", WIDENED_IN_STEPS, WIDENED_AT_ONCE)


def _four_vectors(sources: Sources) -> Sources:
    declared = edit_region(sources, "squares", ONE_VECTOR, FOUR_VECTORS)
    return edit_region(declared, "squares", ONE_VECTOR_SUM, FOUR_VECTOR_SUM)


def _vector_scale(sources: Sources) -> Sources:
    if "load_lanes" not in region(sources, "squares"):
        raise Refused("a vector of the row is loaded as the sum loads it, and this sum is scalar")
    return edit_region(sources, "scale", SCALE_ONE_BY_ONE, SCALE_IN_LANES)


def _rounding_instruction(sources: Sources) -> Sources:
    return edit_region(sources, "scale", ROUNDED_IN_STEPS, ROUNDED_AT_ONCE)


def _row_tile(path: EntryPath, sources: Sources) -> Sources:
    return edit_region(sources, path, _for_path(path, ROW_BY_ROW), _for_path(path, ROWS_SIDE_BY_SIDE))


def _weight_once(path: EntryPath, sources: Sources) -> Sources:
    return edit_region(sources, path, _for_path(path, NARROW_ENTRY), _for_path(path, WIDENING_ENTRY))


def _simd(bits: int) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        if facts.simd_bits < bits:
            return None
        return f"vector registers hold {facts.simd_bits // 32} floats, and a row's sum is one chain of additions"

    return evidence


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _always(reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        return reason

    return evidence


def _wide_bfloat16(facts: Facts) -> str | None:
    if facts.simd_bits < 256:
        return None
    return _share("bfloat16", "each vector of it is widened in several steps")(facts)


def _row_tile_evidence(path: EntryPath, facts: Facts) -> str | None:
    if "four_vectors" in facts.applied:
        return None
    return _share(path, "one row at a time leaves the adders waiting")(facts)


def _lanes_mechanism(count: int, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"lanes_{count}",
        scope="joint",
        summary=f"{count} running sums in one vector instead of one",
        rationale=f"One running sum waits for each addition; {count} lanes take {count} squares a step.",
        numerical_risks="The squares of a row are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_lanes, count),
        evidence=_simd(32 * count),
        contract=("sum_order",),
        excludes=tuple(name for name in LANES if int(name[6:]) > count),
    )


def _row_tile_mechanism(path: EntryPath, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"{path}_row_tile",
        scope=path,
        summary="the sums of four rows side by side",
        rationale="A row's sum waits for its last addition; four rows in turn fill the wait.",
        numerical_risks="None: each row adds its own squares in the same order, spare rows one at a time.",
        falsification="No lower latency on this path, as when one row's sum already fills the adders.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_row_tile, path),
        evidence=partial(_row_tile_evidence, path),
    )


def _weight_once_mechanism(path: EntryPath, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"{path}_weight_once",
        scope=path,
        summary="the bfloat16 weight widened once a call",
        rationale="Every row widens the same weight again; a float32 copy of it ends that.",
        numerical_risks="None: widening is exact, and without memory for the copy the old way is taken.",
        falsification="No lower latency on the bfloat16 workloads of this path.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_weight_once, path),
        evidence=_share("bfloat16", "every row widens the weight again"),
        opened_by=("vector_scale",),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    _lanes_mechanism(4, 2.4),
    _lanes_mechanism(8, 3.2),
    _lanes_mechanism(16, 3.4),
    Mechanism(
        name="four_vectors",
        scope="joint",
        summary="four vectors of running sums instead of one",
        rationale="One vector still waits for its last addition; four in turn fill the wait within a row.",
        numerical_risks="The squares of a row are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=1.01,
        edit=_four_vectors,
        evidence=_always("each vector addition waits for the one before it"),
        contract=("sum_order",),
        requires=(ANY_LANES,),
        opened_by=LANES,
    ),
    Mechanism(
        name="lane_tree",
        scope="joint",
        summary="lanes summed by halves instead of one by one",
        rationale="The chain of additions at the end of a row shrinks from the lane count to its logarithm.",
        numerical_risks="The lanes are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=1.01,
        edit=_lane_tree,
        evidence=_always("adding the lanes one by one is a chain as long as the lane count, once a row"),
        contract=("sum_order",),
        requires=(ANY_LANES,),
        opened_by=("lanes_8", "lanes_16", "four_vectors", "vector_scale"),
    ),
    Mechanism(
        name="explicit_fma",
        scope="joint",
        summary="fused multiply-add by instruction, its one rounding stated",
        rationale="Contraction stays off for the compiler; the source says where a square is not rounded.",
        numerical_risks="A square is no longer rounded before it is added; both paths must change together.",
        falsification="No lower weighted latency, or a build without the instruction that gives other bits.",
        expected_gain_ratio=1.02,
        edit=_explicit_fma,
        evidence=_simd(256),
        contract=("fma",),
        requires=(ANY_LANES,),
        opened_by=("lanes_8", "lanes_16", "four_vectors"),
    ),
    Mechanism(
        name="widening_load",
        scope="joint",
        summary="bfloat16 widened by one instruction a vector",
        rationale="The compiler splits the conversion into halves and joins them again; one instruction does it.",
        numerical_risks="None: widening is exact either way.",
        falsification="No lower latency on the bfloat16 workloads.",
        expected_gain_ratio=1.05,
        edit=_widening_load,
        evidence=_wide_bfloat16,
        requires=("lanes_8|lanes_16",),
        opened_by=("lanes_16", "four_vectors", "vector_scale"),
    ),
    Mechanism(
        name="vector_scale",
        scope="joint",
        summary="a row scaled, rounded and stored a vector at a time",
        rationale="Rounding stands in a function of its own, a whole vector at a time: ground for one instruction.",
        numerical_risks="None: ties, overflow and NaN are rounded as the scalar code rounds them.",
        falsification="No lower weighted latency, or a bfloat16 that is rounded differently.",
        expected_gain_ratio=0.97,
        edit=_vector_scale,
        evidence=_always("after the sums are short, most of a row's time is its scaling"),
        requires=(ANY_LANES,),
        opened_by=("lanes_8", "lanes_16", "four_vectors"),
    ),
    Mechanism(
        name="rounding_instruction",
        scope="joint",
        summary="rounding to bfloat16 by one instruction where the processor has it",
        rationale="Rounding in integer steps is most of what a bfloat16 vector costs once its sum is short.",
        numerical_risks="The instruction takes a subnormal float32 for zero and keeps a NaN's upper bits.",
        falsification="No lower latency on the bfloat16 workloads, as on a processor without the instruction.",
        expected_gain_ratio=1.2,
        edit=_rounding_instruction,
        evidence=_wide_bfloat16,
        contract=("rounding",),
        requires=("lanes_8|lanes_16", "vector_scale"),
    ),
    _row_tile_mechanism("full", 1.5),
    _row_tile_mechanism("decode", 1.5),
    _weight_once_mechanism("full", 1.03),
    _weight_once_mechanism("decode", 1.03),
)
