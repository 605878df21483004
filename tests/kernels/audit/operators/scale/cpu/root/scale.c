#include <stdint.h>

// region row
static void scale_row(const float *x, const float *w, float f, float *y, int64_t width)
{
    for (int64_t i = 0; i < width; i++)
        y[i] = (x[i] * w[i]) * f;
}
// endregion row

void scale_full(const float *x, const float *w, const float *f, float *y, const int64_t *dims)
{
    for (int64_t row = 0; row < dims[0]; row++)
        scale_row(x + row * dims[1], w, f[row], y + row * dims[1], dims[1]);
}

void scale_decode(const float *x, const float *w, const float *f, float *y, const int64_t *dims)
{
    scale_full(x, w, f, y, dims);
}
