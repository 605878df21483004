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

/* One call: x [rows, in] and w [out, in] hold `from`, y [rows, out] holds `to`. */
typedef struct {
    const void *x, *w;
    void *y;
    int64_t rows, in, out;
    element from, to;
} layer;

// region element
INLINE float widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest even; any NaN becomes the one quiet NaN. */
INLINE uint16_t narrow(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0u : rounded);
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
/* One running sum, first k to last. */
typedef float partial;
enum { STEP = 1 };

/* The partial sum after the next STEP products, from k on. */
INLINE partial advance(partial sum, layer l, int64_t row, int64_t o, int64_t k)
{
    return sum + load(l.x, row * l.in + k, l.from) * load(l.w, o * l.in + k, l.from);
}

/* The dot product, when no whole step is left at k. */
INLINE float finish(partial sum, layer l, int64_t row, int64_t o, int64_t k)
{
    (void)l, (void)row, (void)o, (void)k;
    return sum;
}
// endregion dot

INLINE float dot(layer l, int64_t row, int64_t o)
{
    partial sum = {0};
    int64_t k = 0;
    for (; k + STEP <= l.in; k += STEP)
        sum = advance(sum, l, row, o, k);
    return finish(sum, l, row, o, k);
}

// region full
/* Outputs whose weights stay in the cache while every row passes by. */
enum { FULL_BLOCK = 32 };

/* Outputs first to last of every row. */
INLINE void full_block(layer l, int64_t first, int64_t last)
{
    for (int64_t row = 0; row < l.rows; row++)
        for (int64_t o = first; o < last; o++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
}

INLINE void linear_full(layer l)
{
    for (int64_t first = 0; first < l.out; first += FULL_BLOCK)
        full_block(l, first, first + FULL_BLOCK < l.out ? first + FULL_BLOCK : l.out);
}

void linear_full_f32(const float *x, const float *w, float *y, const int64_t *dims)
{
    linear_full((layer){x, w, y, dims[0], dims[1], dims[2], F32, F32});
}

void linear_full_bf16(const uint16_t *x, const uint16_t *w, uint16_t *y, const int64_t *dims)
{
    linear_full((layer){x, w, y, dims[0], dims[1], dims[2], BF16, BF16});
}
// endregion full

// region decode
/* The weights are walked once; each output is made for every row while its weights are at hand. */
INLINE void linear_decode(layer l)
{
    for (int64_t o = 0; o < l.out; o++)
        for (int64_t row = 0; row < l.rows; row++)
            store(l.y, row * l.out + o, dot(l, row, o), l.to);
}

void linear_decode_f32(const float *x, const float *w, float *y, const int64_t *dims)
{
    linear_decode((layer){x, w, y, dims[0], dims[1], dims[2], F32, F32});
}

void linear_decode_bf16(const uint16_t *x, const uint16_t *w, uint16_t *y, const int64_t *dims)
{
    linear_decode((layer){x, w, y, dims[0], dims[1], dims[2], BF16, BF16});
}
// endregion decode
