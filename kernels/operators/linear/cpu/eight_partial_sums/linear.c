/*
 * Linear layer: y[row][o] = sum over k of x[row][k] * w[o][k], weights kept as [out, in].
 *
 * Two paths share the arithmetic and differ only in how they walk over rows and outputs: full (prefill and
 * update, many rows) and decode (few rows). Every y is one dot product over its own row and its own weights,
 * so its bits depend on neither the number of rows nor the path.
 *
 * Numbers: bfloat16 is widened exactly; products and sums are float32, each rounded on its own; y is rounded
 * once, to nearest even, when it is stored.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* What a tensor holds; a constant at every call, so that each entry is compiled for its own. */
typedef enum { F32, BF16 } element;

// region element
INLINE float widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest even; a NaN stays one. */
INLINE uint16_t narrow(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? (bits >> 16) | 0x40u : rounded);
}

INLINE float load(const void *base, int64_t i, element type)
{
    return type == F32 ? ((const float *)base)[i] : widen(((const uint16_t *)base)[i]);
}

INLINE void store(void *base, int64_t i, float value, element type)
{
    if (type == F32)
        ((float *)base)[i] = value;
    else
        ((uint16_t *)base)[i] = narrow(value);
}
// endregion element

// region dot
/* Eight running sums: sum i takes every k that is i modulo eight. */
typedef struct {
    float of[8];
} partial;
enum { STEP = 8 };

/* The partial sums after the next STEP products, of a from i on and of b from j on. */
INLINE partial advance(partial sum, const void *a, int64_t i, const void *b, int64_t j, element type)
{
    for (int n = 0; n < STEP; n++)
        sum.of[n] += load(a, i + n, type) * load(b, j + n, type);
    return sum;
}

/* The dot product, once no whole step is left; `left` products from i and j on remain. */
INLINE float finish(partial sum, const void *a, int64_t i, const void *b, int64_t j, int64_t left, element type)
{
    float total = ((sum.of[0] + sum.of[1]) + (sum.of[2] + sum.of[3])) + ((sum.of[4] + sum.of[5]) + (sum.of[6] + sum.of[7]));
    for (int64_t n = 0; n < left; n++)
        total += load(a, i + n, type) * load(b, j + n, type);
    return total;
}
// endregion dot

INLINE float dot(const void *a, int64_t i, const void *b, int64_t j, int64_t in, element type)
{
    partial sum = {0};
    int64_t k = 0;
    for (; k + STEP <= in; k += STEP)
        sum = advance(sum, a, i + k, b, j + k, type);
    return finish(sum, a, i + k, b, j + k, in - k, type);
}

// region full
/* Outputs whose weights stay in the cache while every row passes by. */
enum { FULL_BLOCK = 32 };

/* Outputs first to last of every row. x and w hold `from`, y holds `to`. */
INLINE void full_block(const void *x, const void *w, void *y, int64_t rows, int64_t in, int64_t out,
                       int64_t first, int64_t last, element from, element to)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = first; o < last; o++)
            store(y, row * out + o, dot(x, row * in, w, o * in, in, from), to);
}

INLINE void linear_full(const void *x, const void *w, void *y, const int64_t *dims, element from, element to)
{
    int64_t rows = dims[0], in = dims[1], out = dims[2];
    for (int64_t first = 0; first < out; first += FULL_BLOCK) {
        int64_t last = first + FULL_BLOCK < out ? first + FULL_BLOCK : out;
        full_block(x, w, y, rows, in, out, first, last, from, to);
    }
}

void linear_full_f32(const float *x, const float *w, float *y, const int64_t *dims)
{
    linear_full(x, w, y, dims, F32, F32);
}

void linear_full_bf16(const uint16_t *x, const uint16_t *w, uint16_t *y, const int64_t *dims)
{
    linear_full(x, w, y, dims, BF16, BF16);
}
// endregion full

// region decode
/* Few rows: the weights are walked once, and each output is made for every row while they are at hand. */
INLINE void linear_decode(const void *x, const void *w, void *y, const int64_t *dims, element from, element to)
{
    int64_t rows = dims[0], in = dims[1], out = dims[2];
    for (int64_t o = 0; o < out; o++)
        for (int64_t row = 0; row < rows; row++)
            store(y, row * out + o, dot(x, row * in, w, o * in, in, from), to);
}

void linear_decode_f32(const float *x, const float *w, float *y, const int64_t *dims)
{
    linear_decode(x, w, y, dims, F32, F32);
}

void linear_decode_bf16(const uint16_t *x, const uint16_t *w, uint16_t *y, const int64_t *dims)
{
    linear_decode(x, w, y, dims, BF16, BF16);
}
// endregion decode
