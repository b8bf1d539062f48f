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

/* n results of channel c, row r, from column w on. */
static void store_line(const hy3d__kernels *kernels, const hy3d_tensor *y,
                       const hy3d__conv_result *result, int64_t c, int64_t r, int64_t w, int64_t n)
{
    const hy3d_tensor *const residual = result->residual;
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(y->dtype);
    const int64_t from = c * result->channel_pitch + r * result->row_pitch + w;
    const int64_t at[HY3D_TENSOR_DIMS] = {result->at[0], result->at[1] + c, result->at[2],
                                          result->at[3] + r, result->at[4] + w};
    target to = {.stride = y->stride[4], .n = n};
    int64_t offset = 0, residual_offset = 0;

    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += at[i] * y->stride[i];
        residual_offset += residual == NULL ? 0 : at[i] * residual->stride[i];
    }
    to.data = (unsigned char *)y->data + offset * bytes;
    if (residual != NULL) {
        to.residual = (const unsigned char *)residual->data + residual_offset * bytes;
        to.residual_stride = residual->stride[4];
    }
    if (y->dtype == HY3D_F32) {
        store_f32(kernels, &to, (const float *)result->data + from);
    } else if (y->dtype == HY3D_F64) {
        store_f64(&to, (const double *)result->data + from);
    } else {
        store_half(kernels, y->dtype, &to, (const float *)result->data + from);
    }
}

void hy3d__conv_store(const hy3d__kernels *kernels, const hy3d_tensor *y,
                      const hy3d__conv_result *result)
{
    if (y->stride[1] != 1 || y->stride[4] == 1) {
        /* Whole channels at once: rows of one channel are neighbours. */
        for (int64_t c = 0; c < result->channels; c++) {
            for (int64_t r = 0; r < result->rows; r++) {
                store_line(kernels, y, result, c, r, 0, result->cols);
            }
        }
        return;
    }
    for (int64_t r = 0; r < result->rows; r++) {
        for (int64_t w = 0; w < result->cols; w += COLUMNS) {
            for (int64_t c = 0; c < result->channels; c++) {
                store_line(kernels, y, result, c, r, w,
                           hy3d__conv_min(COLUMNS, result->cols - w));
            }
        }
    }
}
