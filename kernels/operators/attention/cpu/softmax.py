"""Mechanisms on the softmax and on what it weighs: exp, maximum, sums, rescaling, the value product, the end."""

from collections.abc import Callable
from pathlib import Path

from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import edit_region

FORMS = load_module(Path(__file__).parent / "forms.py")
swap_region: Callable[[Sources, str, str, str], Sources] = FORMS.swap_region
rows_in_lanes: Callable[[Sources, str], Sources] = FORMS.rows_in_lanes

ROOT_EXPONENTIAL = """\
INLINE float exponential(float x)
{
    return expf(x);
}
"""

POLYNOMIAL = """\
// exp(x) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for exp(r), and n added to the exponent.
// Below -87 it is 0. Free of branches, so that a loop over it can be vectorised; relative error below 2e-7.
INLINE float exponential(float x)
{
    const float log2_e = 0x1.715476p+0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const float to_integer = 0x1.8p+23f;
    const float clamped = x < -87.0f ? -87.0f : x;
    const float shifted = clamped * log2_e + to_integer;
    const float n = shifted - to_integer;
    const float r = multiply_add(n, -ln2_low, multiply_add(n, -ln2_high, clamped));
    float power = multiply_add(0x1.6a241ap-10f, r, 0x1.1239f2p-7f);
    power = multiply_add(power, r, 0x1.5558f2p-5f);
    power = multiply_add(power, r, 0x1.555492p-3f);
    power = multiply_add(power, r, 0x1.fffffcp-2f);
    power = multiply_add(power, r, 1.0f);
    power = multiply_add(power, r, 1.0f);
    uint32_t exponent, bits;
    memcpy(&exponent, &shifted, sizeof exponent);
    memcpy(&bits, &power, sizeof bits);
    bits += exponent << 23;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : power;
}
"""

ROOT_MAXIMUM = """\
// The largest of `max` and the scores, in key order.
INLINE float tile_max(const float *scores, int64_t count, float max)
{
    for (int64_t key = 0; key < count; key++)
        max = scores[key] > max ? scores[key] : max;
    return max;
}
"""

LANE_MAXIMUM = """\
// The largest of `max` and the scores: by lanes, then the lanes, then the keys left over.
INLINE float tile_max(const float *scores, int64_t count, float max)
{
    int64_t key = 0;
    if (count >= LANES) {
        lanes largest = load_lanes(scores, 0, F32);
        for (key = LANES; key + LANES <= count; key += LANES) {
            const lanes next = load_lanes(scores, key, F32);
            for (int lane = 0; lane < LANES; lane++)
                largest[lane] = next[lane] > largest[lane] ? next[lane] : largest[lane];
        }
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; lane++)
                largest[lane] = largest[lane + half] > largest[lane] ? largest[lane + half] : largest[lane];
        max = largest[0] > max ? largest[0] : max;
    }
    for (; key < count; key++)
        max = scores[key] > max ? scores[key] : max;
    return max;
}
"""

ROOT_WEIGHTS = """\
// Turns scores into weights exp(score - max) and returns their sum, in key order.
INLINE float weigh(float *scores, int64_t count, float max)
{
    float sum = 0.0f;
    for (int64_t key = 0; key < count; key++) {
        scores[key] = exponential(scores[key] - max);
        sum += scores[key];
    }
    return sum;
}
"""

LANE_WEIGHTS = """\
// Turns scores into weights exp(score - max) and returns their sum: LANES running sums, lane l over the keys l,
// l + LANES, ... of whole groups; then the lanes in order; then the keys left over.
INLINE float weigh(float *scores, int64_t count, float max)
{
    for (int64_t key = 0; key < count; key++)
        scores[key] = exponential(scores[key] - max);
    int64_t key = 0;
    lanes sums = {0};
    for (; key + LANES <= count; key += LANES)
        sums += load_lanes(scores, key, F32);
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++)
        sum += sums[lane];
    for (; key < count; key++)
        sum += scores[key];
    return sum;
}
"""

ROOT_VALUES = """\
// Adds weight times value to the output, key after key.
INLINE void accumulate(float *output, const float *weights, struct tile tile, int64_t count)
{
    for (int64_t key = 0; key < count; key++)
        for (int64_t d = 0; d < tile.head_dim; d++)
            output[d] = multiply_add(weights[key], value_of(tile, key, d), output[d]);
}
"""

REGISTER_VALUES = """\
// Output elements that stay in registers over all keys of a tile.
enum { WIDE = 64, NARROW = 16 };

INLINE lanes all_lanes(float value)
{
    return value - (lanes){0};
}

// Adds weight times value to `width` elements of the output from d on, key after key.
INLINE void accumulate_part(float *output, const float *weights, struct tile tile, int64_t count, int64_t d,
                            int64_t width)
{
    lanes sums[WIDE / LANES];
UNROLLED
    for (int64_t i = 0; i < width / LANES; i++)
        sums[i] = load_lanes(output, d + i * LANES, F32);
    for (int64_t key = 0; key < count; key++)
UNROLLED
        for (int64_t i = 0; i < width / LANES; i++)
            sums[i] = multiply_add_lanes(all_lanes(weights[key]), values_of(tile, key, d + i * LANES), sums[i]);
UNROLLED
    for (int64_t i = 0; i < width / LANES; i++)
        memcpy(output + d + i * LANES, &sums[i], sizeof sums[i]);
}

INLINE void accumulate(float *output, const float *weights, struct tile tile, int64_t count)
{
    int64_t d = 0;
    for (; d + WIDE <= tile.head_dim; d += WIDE)
        accumulate_part(output, weights, tile, count, d, WIDE);
    for (; d < tile.head_dim; d += NARROW)
        accumulate_part(output, weights, tile, count, d, NARROW);
}
"""

ROOT_RESCALE = """\
INLINE void rescale(struct row *row, float max, int64_t head_dim)
{
    const float correction = exponential(row->max - max);
    row->weight_sum *= correction;
"""

SKIPPED_RESCALE = """\
INLINE void rescale(struct row *row, float max, int64_t head_dim)
{
    if (max == row->max)
        return;  // The correction is one.
    const float correction = exponential(row->max - max);
    row->weight_sum *= correction;
"""

DIVIDED = """\
    for (int64_t d = 0; d < s.head_dim; d++)
        store(s.output, index + d, row->output[d] / row->weight_sum, s.dtype);
"""

MULTIPLIED = """\
    const float reciprocal = 1.0f / row->weight_sum;
    for (int64_t d = 0; d < s.head_dim; d++)
        store(s.output, index + d, row->output[d] * reciprocal, s.dtype);
"""


def polynomial_exp(sources: Sources) -> Sources:
    """A branch-free polynomial in place of the library's expf."""
    return swap_region(sources, "exponential", ROOT_EXPONENTIAL, POLYNOMIAL)


def lane_maximum(sources: Sources) -> Sources:
    """The tile's maximum by lanes."""
    return swap_region(sources, "maximum", ROOT_MAXIMUM, LANE_MAXIMUM)


def lane_weight_sum(sources: Sources) -> Sources:
    """The weights' sum by lanes, apart from the loop over exp."""
    return swap_region(sources, "weights", ROOT_WEIGHTS, LANE_WEIGHTS)


def value_registers(sources: Sources) -> Sources:
    """The loops of the value product exchanged, so that a stretch of the output stays in registers."""
    edited = rows_in_lanes(sources, "value")
    return swap_region(edited, "values", ROOT_VALUES, REGISTER_VALUES)


def skipped_rescale(sources: Sources) -> Sources:
    """No rescaling while the maximum stands: the correction would be exactly one."""
    return edit_region(sources, "rescale", ROOT_RESCALE, SKIPPED_RESCALE)


def reciprocal(sources: Sources) -> Sources:
    """One division a row."""
    return edit_region(sources, "finish", DIVIDED, MULTIPLIED)
