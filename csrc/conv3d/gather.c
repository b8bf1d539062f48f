/* Lines of input, padded and converted to the compute type. */
#include "conv3d/internal.h"

#include <string.h>

/* Gathered before a conversion kernel runs over them; small enough for the stack. */
#define CHUNK 128

int64_t hy3d__conv_resolve(int64_t index, int64_t size, bool replicate)
{
    if (index >= 0 && index < size) {
        return index;
    }
    if (!replicate) {
        return -1;
    }
    return index < 0 ? 0 : size - 1;
}

static void fill_f32(float *dst, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = value;
    }
}

static void copy_f32(const float *src, int64_t stride, int64_t n, float *dst)
{
    if (stride == 1) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        dst[i] = src[i * stride];
    }
}

static void copy_f64(const double *src, int64_t stride, int64_t n, double *dst)
{
    if (stride == 1) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        dst[i] = src[i * stride];
    }
}

static void convert(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n, const uint16_t *src,
                    float *dst)
{
    if (dtype == HY3D_F16) {
        kernels->cvt_f16_f32((size_t)n, src, dst);
    } else {
        kernels->cvt_bf16_f32((size_t)n, src, dst);
    }
}

static void copy_half(const hy3d__kernels *kernels, hy3d_dtype dtype, const uint16_t *src,
                      int64_t stride, int64_t n, float *dst)
{
    uint16_t chunk[CHUNK];

    if (stride == 1) {
        convert(kernels, dtype, n, src, dst);
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t count = hy3d__conv_min(CHUNK, n - i);
        for (int64_t j = 0; j < count; j++) {
            chunk[j] = src[(i + j) * stride];
        }
        convert(kernels, dtype, count, chunk, dst + i);
    }
}

static void load_f32(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t index,
                     int64_t step, int64_t n, float *dst)
{
    const int64_t at = index * line->stride;

    if (n <= 0) {
        return;
    }
    if (line->dtype == HY3D_F32) {
        copy_f32((const float *)(const void *)line->data + at, step * line->stride, n, dst);
    } else {
        copy_half(kernels, line->dtype, (const uint16_t *)(const void *)line->data + at,
                  step * line->stride, n, dst);
    }
}

static void load_f64(const hy3d__conv_line *line, int64_t first, int64_t step, int64_t before,
                     int64_t inside, int64_t n, double *dst)
{
    const double *const data = (const double *)(const void *)line->data;
    const double left = line->replicate ? data[0] : 0.0;
    const double right = line->replicate ? data[(line->size - 1) * line->stride] : 0.0;

    for (int64_t i = 0; i < before; i++) {
        dst[i] = left;
    }
    if (inside > before) {
        copy_f64(data + (first + before * step) * line->stride, step * line->stride,
                 inside - before, dst + before);
    }
    for (int64_t i = inside; i < n; i++) {
        dst[i] = right;
    }
}

void hy3d__conv_load_line(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t first,
                          int64_t step, int64_t n, void *dst)
{
    /* Entries [0, before) lie before the line, [inside, n) behind it. */
    const int64_t before =
        first >= 0 ? 0 : hy3d__conv_min(n, hy3d__conv_ceil_div(-first, step));
    const int64_t last = line->size - 1 - first;
    const int64_t inside = last < 0 ? 0 : hy3d__conv_min(n, last / step + 1);

    if (line->dtype == HY3D_F64) {
        load_f64(line, first, step, before, inside, n, dst);
        return;
    }
    float *const out = dst;
    float left = 0.0F, right = 0.0F;
    if (line->replicate && before > 0) {
        load_f32(kernels, line, 0, 1, 1, &left);
    }
    if (line->replicate && inside < n) {
        load_f32(kernels, line, line->size - 1, 1, 1, &right);
    }
    fill_f32(out, before, left);
    load_f32(kernels, line, first + before * step, step, inside - before, out + before);
    fill_f32(out + inside, n - inside, right);
}
