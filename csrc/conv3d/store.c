/* Results to y: a residual added, then rounded once, in the order that writes memory in runs. */
#include "conv3d/plan.h"

#include "elements/elements.h"

/* Results that a residual is added to at once. */
#define CHUNK 128
/* Positions written side by side when channels are the fast dimension: one cache line is read of
 * every channel, and the lines written stay in L1. */
#define COLUMNS 16

/* Where a line of results goes: n elements of y, `stride` apart, and of the residual. */
typedef struct target {
    void *data;           /* of y, at the first element */
    const void *residual; /* the same of the residual; NULL: none */
    int64_t stride, residual_stride, n;
} target;

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

/* sum += from, of compute type. */
static void add(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n, const void *from,
                void *sum)
{
    if (dtype != HY3D_F64) {
        kernels->blend_f32((size_t)n, 1.0F, NULL, from, sum);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        ((double *)sum)[i] += ((const double *)from)[i];
    }
}

static void store_sum(const hy3d__kernels *kernels, hy3d_dtype dtype, const target *to,
                      const unsigned char *src)
{
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(dtype);
    const size_t src_bytes = dtype == HY3D_F64 ? sizeof(double) : sizeof(float);
    union {
        float f32[CHUNK];
        double f64[CHUNK];
    } sum;

    if (dtype == HY3D_F32 && to->stride == 1) { /* where it goes */
        if (to->residual != to->data) {
            hy3d__read_elements(kernels, dtype, to->residual, to->residual_stride, to->n, to->data);
        }
        add(kernels, dtype, to->n, src, to->data);
        return;
    }
    for (int64_t i = 0; i < to->n; i += CHUNK) {
        const int64_t count = hy3d__min_i64(CHUNK, to->n - i);
        hy3d__read_elements(kernels, dtype,
                            (const unsigned char *)to->residual + i * to->residual_stride * bytes,
                            to->residual_stride, count, &sum);
        add(kernels, dtype, count, src + (size_t)i * src_bytes, &sum);
        hy3d__write_elements(kernels, dtype, &sum, count,
                             (unsigned char *)to->data + i * to->stride * bytes, to->stride);
    }
}

/* Element `from` of data and those after it. */
static void store_line(const hy3d__kernels *kernels, hy3d_dtype dtype, const target *to,
                       const void *data, int64_t from)
{
    const int64_t bytes = dtype == HY3D_F64 ? sizeof(double) : sizeof(float);
    const unsigned char *const src = (const unsigned char *)data + from * bytes;

    if (to->residual == NULL) {
        hy3d__write_elements(kernels, dtype, src, to->n, to->data, to->stride);
    } else {
        store_sum(kernels, dtype, to, src);
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
            to.n = hy3d__min_i64(width, cols - w);
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
