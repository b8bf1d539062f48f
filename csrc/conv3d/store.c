/* Results to y: converted once, in the order that writes y's memory in runs. */
#include "conv3d/internal.h"

#include <string.h>

#define CHUNK 128
/* Positions written side by side when channels are the fast dimension: one cache line is read of
 * every channel, and the lines written stay in L1. */
#define COLUMNS 16

static void round_half(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n, const float *src,
                       uint16_t *dst)
{
    if (dtype == HY3D_F16) {
        kernels->cvt_f32_f16((size_t)n, src, dst);
    } else {
        kernels->cvt_f32_bf16((size_t)n, src, dst);
    }
}

static void store_half(const hy3d__kernels *kernels, hy3d_dtype dtype, uint16_t *dst,
                       int64_t stride, int64_t n, const float *src)
{
    uint16_t chunk[CHUNK];

    if (stride == 1) {
        round_half(kernels, dtype, n, src, dst);
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t count = hy3d__conv_min(CHUNK, n - i);
        round_half(kernels, dtype, count, src + i, chunk);
        for (int64_t j = 0; j < count; j++) {
            dst[(i + j) * stride] = chunk[j];
        }
    }
}

/* n results to element `at` of y and on, `stride` elements apart. */
static void store_line(const hy3d__kernels *kernels, const hy3d_tensor *y, int64_t at,
                       int64_t stride, int64_t n, const void *src, int64_t src_at)
{
    if (y->dtype == HY3D_F32) {
        float *const dst = (float *)y->data + at;
        const float *const from = (const float *)src + src_at;
        if (stride == 1) {
            memcpy(dst, from, (size_t)n * sizeof *dst);
            return;
        }
        for (int64_t i = 0; i < n; i++) {
            dst[i * stride] = from[i];
        }
    } else if (y->dtype == HY3D_F64) {
        double *const dst = (double *)y->data + at;
        const double *const from = (const double *)src + src_at;
        for (int64_t i = 0; i < n; i++) {
            dst[i * stride] = from[i];
        }
    } else {
        store_half(kernels, y->dtype, (uint16_t *)y->data + at, stride, n,
                   (const float *)src + src_at);
    }
}

void hy3d__conv_store(const hy3d__kernels *kernels, const hy3d_tensor *y,
                      const hy3d__conv_result *result)
{
    const bool channels_last = y->stride[1] == 1 && y->stride[4] != 1;
    const int64_t step = channels_last ? COLUMNS : result->cols;
    int64_t base = 0;

    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        base += result->at[i] * y->stride[i];
    }
    if (!channels_last) { /* whole channels at once: rows of one channel are neighbours */
        for (int64_t c = 0; c < result->channels; c++) {
            for (int64_t r = 0; r < result->rows; r++) {
                store_line(kernels, y, base + c * y->stride[1] + r * y->stride[3], y->stride[4],
                           result->cols, result->data,
                           c * result->channel_pitch + r * result->row_pitch);
            }
        }
        return;
    }
    for (int64_t r = 0; r < result->rows; r++) {
        for (int64_t w = 0; w < result->cols; w += step) {
            for (int64_t c = 0; c < result->channels; c++) {
                store_line(kernels, y,
                           base + c + r * y->stride[3] + w * y->stride[4], y->stride[4],
                           hy3d__conv_min(step, result->cols - w), result->data,
                           c * result->channel_pitch + r * result->row_pitch + w);
            }
        }
    }
}
