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
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* What a tensor holds; a constant at every call, so that each entry is compiled for its own. */
typedef enum { F32, BF16 } element;

static const float EPSILON = 1e-6f;

/* One call: x and y [rows, hidden] hold `type`, weight [hidden] holds `weight_type`. */
typedef struct {
    const void *x, *weight;
    void *y;
    int64_t rows, hidden;
    element type, weight_type;
} norm;

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

// region squares
/* One running sum, first element to last. */
typedef float partial;
enum { STEP = 1 };

/* The partial sum after the squares of the next STEP elements, from k on. */
INLINE partial advance(partial sum, norm n, int64_t row, int64_t k)
{
    float value = load(n.x, row * n.hidden + k, n.type);
    return sum + value * value;
}

/* The sum of squares, when no whole step is left at k. */
INLINE float finish(partial sum, norm n, int64_t row, int64_t k)
{
    (void)n, (void)row, (void)k;
    return sum;
}
// endregion squares

INLINE float inverse_rms(float squares, int64_t hidden)
{
    return 1.0f / sqrtf(squares / (float)hidden + EPSILON);
}

// region scale
INLINE void scale_row(norm n, int64_t row, float inverse)
{
    for (int64_t k = 0; k < n.hidden; k++) {
        float scaled = load(n.x, row * n.hidden + k, n.type) * inverse;
        store(n.y, row * n.hidden + k, scaled * load(n.weight, k, n.weight_type), n.type);
    }
}
// endregion scale

INLINE void norm_row(norm n, int64_t row)
{
    partial sum = {0};
    int64_t k = 0;
    for (; k + STEP <= n.hidden; k += STEP)
        sum = advance(sum, n, row, k);
    scale_row(n, row, inverse_rms(finish(sum, n, row, k), n.hidden));
}

// region full
INLINE void rms_norm_full(norm n)
{
    for (int64_t row = 0; row < n.rows; row++)
        norm_row(n, row);
}

void rms_norm_full_f32(const float *x, const float *weight, float *y, const int64_t *dims)
{
    rms_norm_full((norm){x, weight, y, dims[0], dims[1], F32, F32});
}

void rms_norm_full_bf16(const uint16_t *x, const uint16_t *weight, uint16_t *y, const int64_t *dims)
{
    rms_norm_full((norm){x, weight, y, dims[0], dims[1], BF16, BF16});
}
// endregion full

// region decode
INLINE void rms_norm_decode(norm n)
{
    for (int64_t row = 0; row < n.rows; row++)
        norm_row(n, row);
}

void rms_norm_decode_f32(const float *x, const float *weight, float *y, const int64_t *dims)
{
    rms_norm_decode((norm){x, weight, y, dims[0], dims[1], F32, F32});
}

void rms_norm_decode_bf16(const uint16_t *x, const uint16_t *weight, uint16_t *y, const int64_t *dims)
{
    rms_norm_decode((norm){x, weight, y, dims[0], dims[1], BF16, BF16});
}
// endregion decode
