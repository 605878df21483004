"""swiglu on a CPU: three rewrites of the root, of which two need the first."""

from kernelbraid.kernels.operators.catalogue import Facts, Mechanism
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import edit_region

LIBRARY_EXP = """\
INLINE float exponential(float x)
{
    return expf(x);
}
"""
POLYNOMIAL_EXP = """\
/*
 * exp(x) as 2^n * exp(r), with n the whole number nearest to x / ln 2 and r = x - n * ln 2, at most 0.35 in size;
 * ln 2 is subtracted in two parts so that r keeps its bits. Seven terms of the series of exp(r) leave a relative
 * error below 6e-8. x is held to [-87, 60]: 2^n is then a normal float, and past 60 the gate is 1e-26 of its
 * input anyway. A bound near 88 would let the compiler divide every input by its exp for lanes that it then
 * drops: subnormal results, which cost more than all the rest.
 */
INLINE float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 60.0f ? 60.0f : x;
    float n = x * 1.44269504f + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &n, sizeof bits);
    n -= 12582912.0f;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float e = 1.0f / 5040;
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    int32_t power = (bits - 0x4b400000 + 127) << 23;
    float scale;
    memcpy(&scale, &power, sizeof scale);
    return e * scale;
}
"""

HORNER = """\
    float e = 1.0f / 5040;
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
"""
PAIRS = """\
    float squared = r * r, fourth = squared * squared;
    float low = (1.0f + r) + squared * (0.5f + r * (1.0f / 6));
    float high = (1.0f / 24 + r * (1.0f / 120)) + squared * (1.0f / 720 + r * (1.0f / 5040));
    float e = low + fourth * high;
"""

PLAIN_LOOP = "    for (int64_t k = 0; k < width; k++)\n"
WIDE_LOOP = "#pragma GCC unroll 4\n    for (int64_t k = 0; k < width; k++)\n"

ROW_BY_ROW = """\
    for (int64_t row = 0; row < rows; row++)
        gate_row(x + row * 2 * width, y + row * width, width);
"""
ROWS_AHEAD = """\
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = 0; k < 2 * width && row + 1 < rows; k += 1024)
            __builtin_prefetch(x + (row + 1) * 2 * width + k);
        gate_row(x + row * 2 * width, y + row * width, width);
    }
"""


def _polynomial_exp(sources: Sources) -> Sources:
    return edit_region(sources, "exponential", LIBRARY_EXP, POLYNOMIAL_EXP)


def _paired_terms(sources: Sources) -> Sources:
    return edit_region(sources, "exponential", HORNER, PAIRS)


def _unrolled(sources: Sources) -> Sources:
    return edit_region(sources, "gate", PLAIN_LOOP, WIDE_LOOP)


def _next_row_ahead(sources: Sources) -> Sources:
    return edit_region(sources, "full", ROW_BY_ROW, ROWS_AHEAD)


def _always(facts: Facts) -> str:
    return "a call of the C library's expf for every element keeps the loop from being vectorised"


def _after_polynomial(facts: Facts) -> str:
    return "the loop is vectorised now, and each term of the polynomial waits for the one before it"


def _full_share(facts: Facts) -> str | None:
    share = facts.share_ratio.get("full", 0.0)
    return f"the full path takes {share:.0%} of the weighted latency and streams its input" if share > 0.1 else None


CATALOGUE: tuple[Mechanism, ...] = (
    Mechanism(
        name="polynomial_exp",
        scope="joint",
        summary="exp by range reduction and a polynomial instead of the C library",
        rationale="The compiler can vectorise arithmetic, not a call.",
        numerical_risks="exp rounds differently; both paths must change together.",
        falsification="No lower weighted latency, or an error beyond the tolerance.",
        expected_gain_ratio=4.0,
        edit=_polynomial_exp,
        evidence=_always,
        contract=("exp",),
    ),
    Mechanism(
        name="paired_terms",
        scope="joint",
        summary="the polynomial's terms in pairs instead of one after another",
        rationale="Half the terms no longer wait for one another.",
        numerical_risks="The terms are added in another order; both paths must change together.",
        falsification="No lower weighted latency, or an error beyond the tolerance.",
        expected_gain_ratio=1.05,
        edit=_paired_terms,
        evidence=_after_polynomial,
        contract=("exp",),
        requires=("polynomial_exp",),
    ),
    Mechanism(
        name="unrolled_row",
        scope="joint",
        summary="four vectors of a row in flight",
        rationale="Independent elements hide the latency of the polynomial and of the division.",
        numerical_risks="None: each element is computed as before.",
        falsification="No lower weighted latency.",
        expected_gain_ratio=1.05,
        edit=_unrolled,
        evidence=_after_polynomial,
        requires=("polynomial_exp",),
    ),
    Mechanism(
        name="next_row_ahead",
        scope="full",
        summary="the next row's input is asked for while this one is computed",
        rationale="Once arithmetic is short, a full pass waits for memory.",
        numerical_risks="None.",
        falsification="No lower latency on the full path.",
        expected_gain_ratio=1.01,
        edit=_next_row_ahead,
        evidence=_full_share,
        opened_by=("polynomial_exp",),
    ),
)
