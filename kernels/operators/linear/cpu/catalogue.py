"""linear on a CPU: vector sums, register tiles and exact widening, each a small rewrite of the parent's C.

The region `dot` holds the arithmetic of one output and is shared by both paths; `full` and `decode` hold the
walks. What a walk needs of the arithmetic is `partial`, `STEP`, `advance` and `finish`, which every rewrite keeps.
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
/* LANES running sums: lane n takes every k that is n modulo LANES, first to last. */
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

INLINE lanes multiply_add(lanes sum, lanes a, lanes b)
{
    return sum + a * b;
}

INLINE float multiply_add_one(float sum, float a, float b)
{
    return sum + a * b;
}

/* The lanes one by one, lane 0 first. */
INLINE float lane_sum(lanes value)
{
    float sum = value[0];
    for (int n = 1; n < LANES; n++)
        sum += value[n];
    return sum;
}

/* The partial sums after the next STEP products, from k on. */
INLINE partial advance(partial sum, layer l, int64_t row, int64_t o, int64_t k)
{
    lanes x = load_lanes(l.x, row * l.in + k, l.from);
    return multiply_add(sum, x, load_lanes(l.w, o * l.in + k, l.from));
}

/* The last products, which fill no step, one by one. */
INLINE float add_last(float sum, layer l, int64_t row, int64_t o, int64_t k)
{
    for (; k < l.in; k++)
        sum = multiply_add_one(sum, load(l.x, row * l.in + k, l.from), load(l.w, o * l.in + k, l.from));
    return sum;
}

/* The dot product, when no whole step is left at k. */
INLINE float finish(partial sum, layer l, int64_t row, int64_t o, int64_t k)
{
    return add_last(lane_sum(sum), l, row, o, k);
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
    for (int n = 1; n < LANES; n++)
        sum += value[n];
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
        for (int n = 0; n < LANES; n++)
            other[n] = value[n ^ width];
        value += other;
    }
    return value[0];
}
"""

TWO_ROUNDINGS = """\
INLINE lanes multiply_add(lanes sum, lanes a, lanes b)
{
    return sum + a * b;
}

INLINE float multiply_add_one(float sum, float a, float b)
{
    return sum + a * b;
}
"""
# By the compiler's own name of the instruction: its header of intrinsics takes gcc a seventh of a second to read, and
# clang makes the same instruction of the loop.
ONE_ROUNDING = """\
/* One rounding for a product and its addition, in every build alike. */
INLINE lanes multiply_add(lanes sum, lanes a, lanes b)
{
#if LANES == 16 && defined(__AVX512F__) && !defined(__clang__)
    return __builtin_ia32_vfmaddps512_mask(a, b, sum, -1, 4);
#elif LANES == 8 && defined(__FMA__) && !defined(__clang__)
    return __builtin_ia32_vfmaddps256(a, b, sum);
#elif LANES == 4 && defined(__FMA__) && !defined(__clang__)
    return __builtin_ia32_vfmaddps(a, b, sum);
#else
    for (int n = 0; n < LANES; n++)
        sum[n] = __builtin_fmaf(a[n], b[n], sum[n]);
    return sum;
#endif
}

INLINE float multiply_add_one(float sum, float a, float b)
{
    return __builtin_fmaf(a, b, sum);
}
"""

ROOT_WALK = {
    "full": """\
    for (int64_t row = 0; row < l.rows; row++)
        for (int64_t o = first; o < last; o++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
""",
    "decode": """\
    for (int64_t o = 0; o < l.out; o++)
        for (int64_t row = 0; row < l.rows; row++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
""",
}
TILED_WALK = {
    "full": """\
    for (int64_t row = 0; row < l.rows; row++) {
        int64_t o = first;
        for (; o + FULL_OUTS <= last; o += FULL_OUTS)
            full_tile(l, row, o);
        for (; o < last; o++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
    }
""",
    "decode": """\
    int64_t o = 0;
    for (; o + DECODE_OUTS <= l.out; o += DECODE_OUTS)
        for (int64_t row = 0; row < l.rows; row++)
            decode_tile(l, row, o);
    for (; o < l.out; o++)
        for (int64_t row = 0; row < l.rows; row++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
""",
}
ROWS_WALK = {
    "full": """\
    int64_t o = first;
    for (; o + FULL_OUTS <= last; o += FULL_OUTS) {
        int64_t row = 0;
        for (; row + FULL_ROWS <= l.rows; row += FULL_ROWS)
            full_tile(l, row, FULL_ROWS, o);
        for (; row < l.rows; row++)
            full_tile(l, row, 1, o);
    }
    for (; o < last; o++)
        for (int64_t row = 0; row < l.rows; row++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
""",
    "decode": """\
    int64_t o = 0;
    for (; o + DECODE_OUTS <= l.out; o += DECODE_OUTS) {
        int64_t row = 0;
        for (; row + DECODE_ROWS <= l.rows; row += DECODE_ROWS)
            decode_tile(l, row, DECODE_ROWS, o);
        for (; row < l.rows; row++)
            decode_tile(l, row, 1, o);
    }
    for (; o < l.out; o++)
        for (int64_t row = 0; row < l.rows; row++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
""",
}
WALK_HEAD = {
    "full": "/* Outputs first to last of every row. */\n",
    "decode": "/* The weights are walked once; each output is made for every row while its weights are at hand. */\n",
}
"""Where a walk begins; what a rewrite adds for a path stands before it."""

FINISHED = """\
    float total[PATH_OUTS];
    for (int c = 0; c < PATH_OUTS; c++)
        total[c] = finish(sum[c], l, row, o + c, k);
"""
STORED = """\
    for (int c = 0; c < PATH_OUTS; c++)
        store(l.y, row * l.out + o + c, total[c], l.to);
"""
FINISH_HEAD = "/* One row's outputs of a tile, when no whole step is left at k. */\n"
OUTPUT_TILE = f"""\
/* Outputs made side by side: their sums do not wait for one another, and an x is loaded once for all. */
enum {{ PATH_OUTS = 4 }};

{FINISH_HEAD}INLINE void path_finish(const partial *sum, layer l, int64_t row, int64_t o, int64_t k)
{{
{FINISHED}{STORED}}}

"""
ONE_ROW = """\
INLINE void path_tile(layer l, int64_t row, int64_t o)
{
    partial sum[PATH_OUTS] = {0};
    int64_t k = 0;
    for (; k + STEP <= l.in; k += STEP)
        for (int c = 0; c < PATH_OUTS; c++)
            sum[c] = advance(sum[c], l, row, o + c, k);
    path_finish(sum, l, row, o, k);
}
"""
MANY_ROWS = """\
/* Rows of a tile: each weight is loaded once for all of them. */
enum { PATH_ROWS = 4 };

/* `rows` is a constant, at most PATH_ROWS. */
INLINE void path_tile(layer l, int64_t row, int rows, int64_t o)
{
    partial sum[PATH_ROWS][PATH_OUTS] = {0};
    int64_t k = 0;
    for (; k + STEP <= l.in; k += STEP)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < PATH_OUTS; c++)
                sum[r][c] = advance(sum[r][c], l, row + r, o + c, k);
    for (int r = 0; r < rows; r++)
        path_finish(sum[r], l, row + r, o, k);
}
"""

TOGETHER = """\
/* Lanes l of a and of b, halved: the sums of lanes eight (first) or four (then) apart, a's before b's. */
INLINE lanes path_fold_8(lanes a, lanes b)
{
    lanes low = {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]};
    lanes high = {a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
                  b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]};
    return low + high;
}

INLINE lanes path_fold_4(lanes a, lanes b)
{
    lanes low = {a[0], a[1], a[2], a[3], a[8], a[9], a[10], a[11], b[0], b[1], b[2], b[3], b[8], b[9], b[10], b[11]};
    lanes high = {a[4], a[5], a[6], a[7], a[12], a[13], a[14], a[15],
                  b[4], b[5], b[6], b[7], b[12], b[13], b[14], b[15]};
    return low + high;
}

/* Four lane sums at once: they share additions. The pairs are those of lane_sum, so the bits are too. */
INLINE void path_lane_sums(const lanes *sum, float *total)
{
    lanes v = path_fold_4(path_fold_8(sum[0], sum[1]), path_fold_8(sum[2], sum[3]));
    v += (lanes){v[2], v[3], v[0], v[1], v[6], v[7], v[4], v[5], v[10], v[11], v[8], v[9], v[14], v[15], v[12], v[13]};
    v += (lanes){v[1], v[0], v[3], v[2], v[5], v[4], v[7], v[6], v[9], v[8], v[11], v[10], v[13], v[12], v[15], v[14]};
    for (int c = 0; c < 4; c++)
        total[c] = v[4 * c];
}

"""
FINISHED_TOGETHER = """\
    float total[PATH_OUTS];
    path_lane_sums(sum, total);
    for (int c = 0; c < PATH_OUTS; c++)
        total[c] = add_last(total[c], l, row, o + c, k);
"""

STORE_FOUR = """\
/* Four neighbouring outputs in one store, rounded as narrow rounds one. */
INLINE void path_store(void *base, int64_t i, const float *total, element type)
{
    typedef uint32_t four_bits __attribute__((vector_size(16)));
    typedef uint16_t four_halves __attribute__((vector_size(8)));
    if (type == F32) {
        memcpy((float *)base + i, total, 4 * sizeof(float));
        return;
    }
    four_bits bits;
    memcpy(&bits, total, sizeof bits);
    four_bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    four_bits nan = (four_bits)((bits & 0x7fffffffu) > 0x7f800000u);
    rounded = (nan & 0x7fc0u) | (~nan & rounded);
    four_halves halves = __builtin_convertvector(rounded, four_halves);
    memcpy((uint16_t *)base + i, &halves, sizeof halves);
}

"""
STORED_TOGETHER = "    path_store(l.y, row * l.out + o, total, l.to);\n"

NARROW_ENTRY = """\
void linear_full_bf16(const uint16_t *x, const uint16_t *w, uint16_t *y, const int64_t *dims)
{
    linear_full((layer){x, w, y, dims[0], dims[1], dims[2], BF16, BF16});
}
"""
WIDENING_ENTRY = """\
/* A copy in float32, exact; NULL when there is no memory for it. The caller frees it. */
static float *widened(const uint16_t *values, int64_t count)
{
    float *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; wide && i < count; i++)
        wide[i] = widen(values[i]);
    return wide;
}

/* Every x and w is widened once instead of once a tile; without memory for that, the bits are the same. */
void linear_full_bf16(const uint16_t *x, const uint16_t *w, uint16_t *y, const int64_t *dims)
{
    float *wide_x = widened(x, dims[0] * dims[1]), *wide_w = widened(w, dims[2] * dims[1]);
    if (wide_x && wide_w)
        linear_full((layer){wide_x, wide_w, y, dims[0], dims[1], dims[2], F32, BF16});
    else
        linear_full((layer){x, w, y, dims[0], dims[1], dims[2], BF16, BF16});
    free(wide_x);
    free(wide_w);
}
"""


def _for_path(path: EntryPath, text: str) -> str:
    """A snippet that serves both paths, with one path's names."""
    return text.replace("PATH_", f"{path.upper()}_").replace("path_", f"{path}_")


def _lanes(count: int, sources: Sources) -> Sources:
    text = region(sources, "dot")
    if "#define LANES" not in text:
        return replace_region(sources, "dot", LANE_SUMS.replace("LANES 4\n", f"LANES {count}\n"))
    for fewer in (4, 8):
        if fewer < count and f"#define LANES {fewer}\n" in text:
            return edit_region(sources, "dot", f"#define LANES {fewer}\n", f"#define LANES {count}\n")
    raise Refused(f"the sum has {count} lanes or more already")


def _lane_tree(sources: Sources) -> Sources:
    return edit_region(sources, "dot", ONE_BY_ONE, BY_HALVES)


def _explicit_fma(sources: Sources) -> Sources:
    return edit_region(sources, "dot", TWO_ROUNDINGS, ONE_ROUNDING)


def _widening_load(sources: Sources) -> Sources:
    return edit_region(sources, "dot", WIDENED_IN_STEPS, WIDENED_AT_ONCE)


def _output_tile(path: EntryPath, sources: Sources) -> Sources:
    tiled = edit_region(sources, path, ROOT_WALK[path], TILED_WALK[path])
    added = _for_path(path, OUTPUT_TILE + ONE_ROW) + "\n" + WALK_HEAD[path]
    return edit_region(tiled, path, WALK_HEAD[path], added)


def _row_tile(path: EntryPath, sources: Sources) -> Sources:
    walked = edit_region(sources, path, TILED_WALK[path], ROWS_WALK[path])
    return edit_region(walked, path, _for_path(path, ONE_ROW), _for_path(path, MANY_ROWS))


def _lane_sums_together(path: EntryPath, sources: Sources) -> Sources:
    if "#define LANES 16\n" not in region(sources, "dot") or BY_HALVES not in region(sources, "dot"):
        raise Refused("four sums at once are written for 16 lanes added by halves")
    summed = edit_region(sources, path, _for_path(path, FINISHED), _for_path(path, FINISHED_TOGETHER))
    return edit_region(summed, path, FINISH_HEAD, _for_path(path, TOGETHER) + FINISH_HEAD)


def _vector_store(path: EntryPath, sources: Sources) -> Sources:
    stored = edit_region(sources, path, _for_path(path, STORED), _for_path(path, STORED_TOGETHER))
    return edit_region(stored, path, FINISH_HEAD, _for_path(path, STORE_FOUR) + FINISH_HEAD)


def _widen_once(sources: Sources) -> Sources:
    return edit_region(sources, "full", NARROW_ENTRY, WIDENING_ENTRY)


def _simd(bits: int) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        if facts.simd_bits < bits:
            return None
        return f"vector registers hold {facts.simd_bits // 32} floats, and a dot product is one chain of additions"

    return evidence


def _share(key: str, reason: str) -> Callable[[Facts], str | None]:
    def evidence(facts: Facts) -> str | None:
        share = facts.share_ratio.get(key, 0.0)
        return f"{key} takes {share:.0%} of the weighted latency; {reason}" if share >= WORTH_A_TRY_RATIO else None

    return evidence


def _lane_tree_evidence(facts: Facts) -> str | None:
    return "adding the lanes one by one is a chain as long as the lane count, once an output"


def _fma_evidence(facts: Facts) -> str | None:
    if facts.simd_bits < 256:
        return None
    return "multiplication and addition are two instructions a step, and this machine has one for both"


def _wide_bfloat16(facts: Facts) -> str | None:
    if facts.simd_bits < 256:
        return None
    return _share("bfloat16", "each vector of it is widened in several steps")(facts)


def _lanes_mechanism(count: int, gain_ratio: float) -> Mechanism:
    return Mechanism(
        name=f"lanes_{count}",
        scope="joint",
        summary=f"{count} running sums in one vector instead of one",
        rationale=f"One running sum waits for each addition; {count} lanes make {count} products a step.",
        numerical_risks="The products of an output are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=gain_ratio,
        edit=partial(_lanes, count),
        evidence=_simd(32 * count),
        contract=("dot_order",),
        excludes=tuple(name for name in LANES if int(name[6:]) > count),
    )


def _path_mechanisms(path: EntryPath, tile: float, rows: float, together: float, store: float) -> tuple[Mechanism, ...]:
    return (
        Mechanism(
            name=f"{path}_output_tile",
            scope=path,
            summary="four outputs of a row side by side in registers",
            rationale="Four independent sums hide the latency of an addition, and each x serves four outputs.",
            numerical_risks="None: every output still adds its own products in the same order.",
            falsification="No lower latency on this path, as when registers spill.",
            expected_gain_ratio=tile,
            edit=partial(_output_tile, path),
            evidence=_share(path, "one output at a time leaves the adders waiting"),
        ),
        Mechanism(
            name=f"{path}_row_tile",
            scope=path,
            summary="four rows share each loaded weight",
            rationale="A weight vector in a register serves four rows, so loads no longer bound the loop.",
            numerical_risks="None: a row's outputs are computed as before, and spare rows take the same steps alone.",
            falsification="No lower latency on this path, as when sixteen sums do not fit the registers.",
            expected_gain_ratio=rows,
            edit=partial(_row_tile, path),
            evidence=_share(path, "every row loads all weights again"),
            requires=(f"{path}_output_tile",),
            opened_by=LANES,
        ),
        Mechanism(
            name=f"{path}_lane_sums_together",
            scope=path,
            summary="the lanes of four outputs summed at once",
            rationale="Four sums share the shuffles and additions that one sum alone leaves mostly idle.",
            numerical_risks="None: the same lanes are added in the same pairs as lane_sum adds them.",
            falsification="No lower latency on this path, or a bit that differs from lane_sum's.",
            expected_gain_ratio=together,
            edit=partial(_lane_sums_together, path),
            evidence=_share(path, "each output ends with a lane sum of its own"),
            requires=("lanes_16", "lane_tree", f"{path}_output_tile"),
            opened_by=(f"{path}_row_tile", "explicit_fma"),
        ),
        Mechanism(
            name=f"{path}_vector_store",
            scope=path,
            summary="four outputs rounded and stored in one go",
            rationale="One vector rounding and one store take the place of four of each.",
            numerical_risks="None: ties, overflow and NaN are rounded as the scalar code rounds them.",
            falsification="No lower latency on this path, or a bfloat16 that is rounded differently.",
            expected_gain_ratio=store,
            edit=partial(_vector_store, path),
            evidence=_share(path, "outputs are rounded and stored one by one"),
            requires=(f"{path}_output_tile",),
            opened_by=(f"{path}_lane_sums_together",),
        ),
    )


CATALOGUE: tuple[Mechanism, ...] = (
    _lanes_mechanism(4, 3.2),
    _lanes_mechanism(8, 5.6),
    _lanes_mechanism(16, 6.8),
    Mechanism(
        name="lane_tree",
        scope="joint",
        summary="lanes summed by halves instead of one by one",
        rationale="The chain of additions at the end of an output shrinks from the lane count to its logarithm.",
        numerical_risks="The lanes are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or full and decode rows that differ in a bit.",
        expected_gain_ratio=1.2,
        edit=_lane_tree,
        evidence=_lane_tree_evidence,
        contract=("dot_order",),
        requires=(ANY_LANES,),
        opened_by=("lanes_8", "lanes_16", "full_row_tile", "decode_row_tile"),
    ),
    Mechanism(
        name="explicit_fma",
        scope="joint",
        summary="fused multiply-add by instruction, its one rounding stated",
        rationale="Contraction stays off for the compiler; the source says where a product is not rounded.",
        numerical_risks="A product is no longer rounded before it is added; both paths must change together.",
        falsification="No lower weighted latency, or a build without the instruction that gives other bits.",
        expected_gain_ratio=1.15,
        edit=_explicit_fma,
        evidence=_fma_evidence,
        contract=("fma",),
        requires=(ANY_LANES,),
        opened_by=("lanes_8", "lanes_16", "full_row_tile", "decode_row_tile"),
    ),
    Mechanism(
        name="widening_load",
        scope="joint",
        summary="bfloat16 widened by one instruction a vector",
        rationale="The compiler splits the conversion into halves and joins them again; one instruction does it.",
        numerical_risks="None: widening is exact either way.",
        falsification="No lower latency on the bfloat16 workloads.",
        expected_gain_ratio=1.2,
        edit=_widening_load,
        evidence=_wide_bfloat16,
        requires=("lanes_8|lanes_16",),
        opened_by=("lanes_16", "full_row_tile", "decode_row_tile"),
    ),
    *_path_mechanisms("full", 1.3, 1.5, 1.05, 1.01),
    Mechanism(
        name="full_widen_once",
        scope="full",
        summary="bfloat16 inputs widened once a call",
        rationale="A tile widens weights that the tile before has widened already; a float32 copy ends that.",
        numerical_risks="None: widening is exact, and without memory for the copy the old way is taken.",
        falsification="No lower latency on the bfloat16 workload, as when the copy costs more than it saves.",
        expected_gain_ratio=1.05,
        edit=_widen_once,
        evidence=_share("bfloat16", "in full every weight is widened again for each row"),
        opened_by=LANES,
    ),
    *_path_mechanisms("decode", 1.4, 1.5, 1.03, 1.01),
)
