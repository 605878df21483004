/*
 * y = silu(gate) * up, where a row of x holds gate in its first half and up in its second.
 * Every element is computed by itself, so a row has the same bits in any batch and on either path.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// region exponential
INLINE float exponential(float x)
{
    return expf(x);
}
// endregion exponential

// region gate
/* One row. */
INLINE void gate_row(const float *restrict x, float *restrict y, int64_t width)
{
    for (int64_t k = 0; k < width; k++)
        y[k] = x[k] / (1.0f + exponential(-x[k])) * x[width + k];
}
// endregion gate

// region full
void swiglu_full_f32(const float *x, float *y, const int64_t *dims)
{
    int64_t rows = dims[0], width = dims[1];
    for (int64_t row = 0; row < rows; row++)
        gate_row(x + row * 2 * width, y + row * width, width);
}
// endregion full

// region decode
void swiglu_decode_f32(const float *x, float *y, const int64_t *dims)
{
    int64_t rows = dims[0], width = dims[1];
    for (int64_t row = 0; row < rows; row++)
        gate_row(x + row * 2 * width, y + row * width, width);
}
// endregion decode
