/*
 * RMS normalisation: y = x * (1 / sqrt(mean(x^2) + 1e-6)) * weight, each row by itself.
 *
 * Two paths share the arithmetic and differ only in how they walk over rows: full (prefill and update, many
 * rows) and decode (few rows). A row's bits depend on that row and the weight alone, so neither the number of
 * rows nor the path can change them.
 *
 * Numbers: bfloat16 is widened exactly; squares, their sum, the inverse root and both products are float32,
 * each rounded on its own, (x * inverse) first and the weight after; y is rounded once, to nearest even, when
 * it is stored.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* What a tensor holds; a constant at every call, so that each entry is compiled for its own. */
typedef enum { F32, BF16 } element;

static const float EPSILON = 1e-6f;

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

// region squares
/* One running sum, first element to last. */
typedef float partial;
enum { STEP = 1 };

/* The partial sum after the squares of the next STEP elements, from i on. */
INLINE partial advance(partial sum, const void *x, int64_t i, element type)
{
    return sum + load(x, i, type) * load(x, i, type);
}

/* The sum of squares, once no whole step is left; `left` elements from i on remain. */
INLINE float finish(partial sum, const void *x, int64_t i, int64_t left, element type)
{
    (void)x, (void)i, (void)left, (void)type;
    return sum;
}
// endregion squares

// region scale
INLINE float inverse_rms(float squares, int64_t hidden)
{
    return 1.0f / sqrtf(squares / (float)hidden + EPSILON);
}

INLINE void scale_row(const void *x, const void *weight, void *y, int64_t at, int64_t hidden, float inverse,
                      element type)
{
    for (int64_t k = 0; k < hidden; k++)
        store(y, at + k, load(x, at + k, type) * inverse * load(weight, k, type), type);
}
// endregion scale

/* The row that starts at element `at`. */
INLINE void norm_row(const void *x, const void *weight, void *y, int64_t at, int64_t hidden, element type)
{
    partial sum = {0};
    int64_t k = 0;
    for (; k + STEP <= hidden; k += STEP)
        sum = advance(sum, x, at + k, type);
    float squares = finish(sum, x, at + k, hidden - k, type);
    scale_row(x, weight, y, at, hidden, inverse_rms(squares, hidden), type);
}

// region full
INLINE void rms_norm_full(const void *x, const void *weight, void *y, const int64_t *dims, element type)
{
    int64_t rows = dims[0], hidden = dims[1];
    for (int64_t row = 0; row < rows; row++)
        norm_row(x, weight, y, row * hidden, hidden, type);
}

void rms_norm_full_f32(const float *x, const float *weight, float *y, const int64_t *dims)
{
    rms_norm_full(x, weight, y, dims, F32);
}

void rms_norm_full_bf16(const uint16_t *x, const uint16_t *weight, uint16_t *y, const int64_t *dims)
{
    rms_norm_full(x, weight, y, dims, BF16);
}
// endregion full

// region decode
INLINE void rms_norm_decode(const void *x, const void *weight, void *y, const int64_t *dims, element type)
{
    int64_t rows = dims[0], hidden = dims[1];
    for (int64_t row = 0; row < rows; row++)
        norm_row(x, weight, y, row * hidden, hidden, type);
}

void rms_norm_decode_f32(const float *x, const float *weight, float *y, const int64_t *dims)
{
    rms_norm_decode(x, weight, y, dims, F32);
}

void rms_norm_decode_bf16(const uint16_t *x, const uint16_t *weight, uint16_t *y, const int64_t *dims)
{
    rms_norm_decode(x, weight, y, dims, BF16);
}
// endregion decode
