/* Adds a decoded tile to the output, row by row.
 *
 * A row runs along W, or along C where both tensors are channels-last with channels enough. Rows
 * that are f32 and contiguous go to the kernel in place; all others go through two small buffers
 * on the stack. */
#include "hy3d/blend.h"

#include <stdbool.h>

#include "base/reach.h"
#include "elements/elements.h"

/* Elements a buffer holds: 3 KiB in all, so the row stays in L1, and a call per 256 elements
 * costs nothing beside them. */
#define BUFFER_ELEMS 256

/* Rows along C pay from here on: with 3 channels, gathering along W makes twice as many elements
 * a second (436 against 207 million), with 8 a third as many (117 against 365). */
#define MIN_CHANNEL_ROW 5

enum { DIM_C = 1, DIM_T = 2, DIM_H = 3, DIM_W = 4 };

typedef struct blend_job {
    const hy3d__kernels *kernels;
    const hy3d_tensor *tile, *out;
    const float *window[HY3D_TENSOR_DIMS]; /* NULL: ones; along N and C always */
    int row_dim;
    bool in_f64; /* either tensor is f64 */
} blend_job;

static const char *element(const hy3d_tensor *tensor, const int64_t index[HY3D_TENSOR_DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += index[i] * tensor->stride[i];
    }
    return (const char *)tensor->data + offset * (int64_t)hy3d_dtype_bytes(tensor->dtype);
}

static char *element_for_writing(const hy3d_tensor *tensor, const int64_t index[HY3D_TENSOR_DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += index[i] * tensor->stride[i];
    }
    return (char *)tensor->data + offset * (int64_t)hy3d_dtype_bytes(tensor->dtype);
}

static bool is_direct(const hy3d_tensor *tensor, int dim)
{
    return tensor->dtype == HY3D_F32 && tensor->stride[dim] == 1;
}

/* One row; index[row_dim] is 0 and comes back as 0. */
static void blend_row(const blend_job *job, int64_t index[HY3D_TENSOR_DIMS], float weight)
{
    const int dim = job->row_dim;
    const hy3d_tensor *tile = job->tile, *out = job->out;
    const bool src_direct = is_direct(tile, dim), dst_direct = is_direct(out, dim);
    const int64_t length = tile->size[dim];
    const int64_t step = src_direct && dst_direct ? length : BUFFER_ELEMS;
    float src_buffer[BUFFER_ELEMS], dst_buffer[BUFFER_ELEMS];
    for (int64_t at = 0; at < length; at += step) {
        const int64_t n = length - at < step ? length - at : step;
        index[dim] = at;
        const void *src_data = element(tile, index);
        void *dst_data = element_for_writing(out, index);
        const float *src = src_buffer;
        float *dst = dst_buffer;
        if (src_direct) {
            src = src_data;
        } else {
            hy3d__read_elements(job->kernels, tile->dtype, src_data, tile->stride[dim], n,
                                src_buffer);
        }
        if (dst_direct) {
            dst = dst_data;
        } else {
            hy3d__read_elements(job->kernels, out->dtype, dst_data, out->stride[dim], n,
                                dst_buffer);
        }
        const float *window = job->window[dim];
        job->kernels->blend_f32((size_t)n, weight, window == NULL ? NULL : window + at, src, dst);
        if (!dst_direct) {
            hy3d__write_elements(job->kernels, out->dtype, dst_buffer, n, dst_data,
                                 out->stride[dim]);
        }
    }
    index[dim] = 0;
}

/* The product is (t * h) * w in this order whichever way the rows run: the kernel multiplies the
 * row's weight by the window of the row. */
static double row_weight(const blend_job *job, const int64_t index[HY3D_TENSOR_DIMS])
{
    double weight = 1.0;
    for (int dim = DIM_T; dim <= DIM_W; dim++) {
        if (dim != job->row_dim && job->window[dim] != NULL) {
            weight *= (double)job->window[dim][index[dim]]; /* exact where both are f32 */
            weight = job->in_f64 ? weight : (double)(float)weight;
        }
    }
    return weight;
}

/* Element i of a row, in f64. */
static double value_at(const hy3d__kernels *kernels, const hy3d_tensor *tensor, const void *data,
                       int64_t offset)
{
    float value;
    if (tensor->dtype == HY3D_F64) {
        return ((const double *)data)[offset];
    }
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(tensor->dtype);
    hy3d__read_elements(kernels, tensor->dtype, (const char *)data + offset * bytes, 1, 1, &value);
    return (double)value;
}

/* One row where a tensor is f64: element by element, since nobody is in a hurry who computes so. */
static void blend_row_f64(const blend_job *job, int64_t index[HY3D_TENSOR_DIMS], double weight)
{
    const int dim = job->row_dim;
    const hy3d_tensor *tile = job->tile, *out = job->out;
    const void *src = element(tile, index);
    void *dst = element_for_writing(out, index);
    const float *window = job->window[dim];
    for (int64_t i = 0; i < tile->size[dim]; i++) {
        const double w = window == NULL ? weight : weight * (double)window[i];
        const int64_t at = i * out->stride[dim];
        const double sum = value_at(job->kernels, out, dst, at) +
                           value_at(job->kernels, tile, src, i * tile->stride[dim]) * w;
        if (out->dtype == HY3D_F64) {
            ((double *)dst)[at] = sum;
        } else {
            const float narrow = (float)sum;
            const int64_t bytes = (int64_t)hy3d_dtype_bytes(out->dtype);
            hy3d__write_elements(job->kernels, out->dtype, &narrow, 1, (char *)dst + at * bytes, 1);
        }
    }
}

static hy3d_status check_tensors(const hy3d_tensor *tile, const hy3d_tensor *out)
{
    bool empty = false;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tile->size[i] < 0 || out->size[i] < 0) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        if (tile->size[i] != out->size[i]) {
            return HY3D_ERR_SHAPE_MISMATCH;
        }
        empty = empty || tile->size[i] == 0;
    }
    if (hy3d_dtype_bytes(tile->dtype) == 0 || hy3d_dtype_bytes(out->dtype) == 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (empty) { /* whose pointers and strides mean nothing */
        return HY3D_OK;
    }
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (out->size[i] > 1 && out->stride[i] == 0) {
            return HY3D_ERR_INVALID_ARGUMENT; /* two sums in one place */
        }
    }
    const hy3d_status status =
        hy3d__check_reach(tile->data, tile->dtype, HY3D_TENSOR_DIMS, tile->size, tile->stride);
    return status != HY3D_OK
               ? status
               : hy3d__check_reach(out->data, out->dtype, HY3D_TENSOR_DIMS, out->size, out->stride);
}

/* Steps to the next row; false after the last. */
static bool next_row(const blend_job *job, int64_t index[HY3D_TENSOR_DIMS])
{
    for (int dim = DIM_W; dim >= 0; dim--) {
        if (dim == job->row_dim) {
            continue;
        }
        if (++index[dim] < job->tile->size[dim]) {
            return true;
        }
        index[dim] = 0;
    }
    return false;
}

hy3d_status hy3d_blend_accumulate(const hy3d_context *context, const hy3d_tensor *tile,
                                  const float *window_t, const float *window_h,
                                  const float *window_w, const hy3d_tensor *out)
{
    if (context == NULL || tile == NULL || out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = check_tensors(tile, out);
    if (status != HY3D_OK) {
        return status;
    }
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tile->size[i] == 0) {
            return HY3D_OK;
        }
    }
    const bool along_w = tile->stride[DIM_W] == 1 && out->stride[DIM_W] == 1;
    const bool along_c =
        tile->stride[DIM_C] == 1 && out->stride[DIM_C] == 1 && tile->size[DIM_C] >= MIN_CHANNEL_ROW;
    const blend_job job = {
        .kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(context)),
        .tile = tile,
        .out = out,
        .window = {NULL, NULL, window_t, window_h, window_w},
        .row_dim = along_c && !along_w ? DIM_C : DIM_W,
        .in_f64 = tile->dtype == HY3D_F64 || out->dtype == HY3D_F64,
    };
    int64_t index[HY3D_TENSOR_DIMS] = {0};
    do {
        const double weight = row_weight(&job, index);
        if (job.in_f64) {
            blend_row_f64(&job, index, weight);
        } else {
            blend_row(&job, index, (float)weight);
        }
    } while (next_row(&job, index));
    return HY3D_OK;
}
