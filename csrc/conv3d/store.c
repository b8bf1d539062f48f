/* Results to y: a residual added, then rounded once, in the order that writes memory in runs. */
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

static void widen_half(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n,
                       const uint16_t *src, float *dst)
{
    if (dtype == HY3D_F16) {
        kernels->cvt_f16_f32((size_t)n, src, dst);
    } else {
        kernels->cvt_bf16_f32((size_t)n, src, dst);
    }
}

/* Where a line of results goes: n elements of y, `stride` apart, and of the residual. */
typedef struct target {
    void *data;           /* of y, at the first element */
    const void *residual; /* the same of the residual; NULL: none */
    int64_t stride, residual_stride, n;
} target;

static void store_f32(const hy3d__kernels *kernels, const target *to, const float *src)
{
    float *const dst = to->data;
    const float *const residual = to->residual;

    if (to->stride == 1 && (residual == NULL || to->residual_stride == 1)) {
        const float *const base = residual == NULL ? src : residual;
        if (base != dst) {
            memcpy(dst, base, (size_t)to->n * sizeof *dst);
        }
        if (residual != NULL) {
            kernels->blend_f32((size_t)to->n, 1.0F, NULL, src, dst);
        }
        return;
    }
    for (int64_t i = 0; i < to->n; i++) {
        dst[i * to->stride] =
            residual == NULL ? src[i] : src[i] + residual[i * to->residual_stride];
    }
}

static void store_f64(const target *to, const double *src)
{
    double *const dst = to->data;
    const double *const residual = to->residual;

    for (int64_t i = 0; i < to->n; i++) {
        dst[i * to->stride] =
            residual == NULL ? src[i] : src[i] + residual[i * to->residual_stride];
    }
}

/* src plus the residual's elements from first on. */
static void add_half(const hy3d__kernels *kernels, hy3d_dtype dtype, const target *to,
                     int64_t first, int64_t n, const float *src, float *sum)
{
    const uint16_t *const residual = (const uint16_t *)to->residual + first * to->residual_stride;
    uint16_t chunk[CHUNK];

    for (int64_t i = 0; i < n; i++) {
        chunk[i] = residual[i * to->residual_stride];
    }
    widen_half(kernels, dtype, n, chunk, sum);
    kernels->blend_f32((size_t)n, 1.0F, NULL, src, sum);
}

static void store_half(const hy3d__kernels *kernels, hy3d_dtype dtype, const target *to,
                       const float *src)
{
    uint16_t *const dst = to->data;
    uint16_t chunk[CHUNK];
    float sum[CHUNK];

    if (to->stride == 1 && to->residual == NULL) {
        round_half(kernels, dtype, to->n, src, dst);
        return;
    }
    for (int64_t i = 0; i < to->n; i += CHUNK) {
        const int64_t count = hy3d__conv_min(CHUNK, to->n - i);
        const float *from = src + i;
        if (to->residual != NULL) {
            add_half(kernels, dtype, to, i, count, from, sum);
            from = sum;
        }
        round_half(kernels, dtype, count, from, chunk);
        for (int64_t j = 0; j < count; j++) {
            dst[(i + j) * to->stride] = chunk[j];
        }
    }
}

/* Bytes of y and of the residual that a step along one of their dimensions takes. */
static int64_t step_bytes(const hy3d_tensor *tensor, int dim)
{
    return tensor->stride[dim] * (int64_t)hy3d_dtype_bytes(tensor->dtype);
}

/* Where the first result goes. */
static unsigned char *start(const hy3d_tensor *tensor, const hy3d__conv_result *result)
{
    int64_t offset = 0;

    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += result->at[i] * step_bytes(tensor, i);
    }
    return (unsigned char *)tensor->data + offset;
}

static void store_line(const hy3d__kernels *kernels, hy3d_dtype dtype, const target *to,
                       const void *data, int64_t from)
{
    if (dtype == HY3D_F32) {
        store_f32(kernels, to, (const float *)data + from);
    } else if (dtype == HY3D_F64) {
        store_f64(to, (const double *)data + from);
    } else {
        store_half(kernels, dtype, to, (const float *)data + from);
    }
}

void hy3d__conv_store(const hy3d__kernels *kernels, const hy3d_tensor *y,
                      const hy3d__conv_result *result)
{
    const hy3d_tensor *const residual = result->residual;
    unsigned char *const base = start(y, result);
    const unsigned char *const residual_base = residual == NULL ? NULL : start(residual, result);
    const bool channels_last = y->stride[1] == 1 && y->stride[4] != 1;
    /* Rows that follow each other here and there are one. */
    const bool joined =
        !channels_last && result->row_pitch == result->cols &&
        y->stride[3] == result->cols * y->stride[4] &&
        (residual == NULL || residual->stride[3] == result->cols * residual->stride[4]);
    const int64_t rows = joined ? 1 : result->rows;
    const int64_t cols = joined ? result->cols * result->rows : result->cols;
    /* Whole channels at once: rows of one channel are neighbours. */
    const int64_t width = channels_last ? COLUMNS : cols;
    const int64_t y_step[3] = {step_bytes(y, 1), step_bytes(y, 3), step_bytes(y, 4)};
    const hy3d_tensor *const other = residual == NULL ? y : residual;
    const int64_t residual_step[3] = {step_bytes(other, 1), step_bytes(other, 3),
                                      step_bytes(other, 4)};
    const int64_t outer = channels_last ? rows : result->channels;
    const int64_t inner = channels_last ? result->channels : rows;
    target to = {.stride = y->stride[4],
                 .residual_stride = residual == NULL ? 0 : residual->stride[4]};

    for (int64_t i = 0; i < outer; i++) {
        for (int64_t w = 0; w < cols; w += width) {
            to.n = hy3d__conv_min(width, cols - w);
            for (int64_t j = 0; j < inner; j++) {
                const int64_t c = channels_last ? j : i, r = channels_last ? i : j;
                to.data = base + c * y_step[0] + r * y_step[1] + w * y_step[2];
                if (residual != NULL) {
                    to.residual = residual_base + c * residual_step[0] + r * residual_step[1] +
                                  w * residual_step[2];
                }
                store_line(kernels, y->dtype, &to, result->data,
                           c * result->channel_pitch + r * result->row_pitch + w);
            }
        }
    }
}
