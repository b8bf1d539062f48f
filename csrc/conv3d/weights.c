/* Weights and bias in the compute type. f32 and f64 weights that are contiguous are borrowed: the
 * micro-kernel and GEMM read them where they are, so that a plan costs next to nothing. */
#include "conv3d/plan.h"

#include "elements/elements.h"

/* A kernel's rows, or a panel's columns, beyond the last channel read zeros. */
#define BIAS_TAIL 32

static hy3d_status take(hy3d_conv3d_plan *plan, int64_t elems, void **memory_out)
{
    const size_t bytes = (size_t)elems * plan->compute_bytes;
    const hy3d_status status = hy3d_alloc(plan->context, bytes, memory_out);

    if (status == HY3D_OK) {
        plan->own_bytes += bytes;
    }
    return status;
}

/* All elements of a weight in index order. */
static void copy_weight(const hy3d_conv3d_plan *plan, const hy3d_tensor *weight, void *dst)
{
    const int64_t *const size = weight->size;
    const int64_t *const stride = weight->stride;
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(weight->dtype);
    unsigned char *to = dst;
    int64_t run = size[4];
    const bool rows_join = stride[3] == stride[4] * size[4];

    run *= rows_join ? size[3] : 1;
    for (int64_t m = 0; m < size[0]; m++) {
        for (int64_t c = 0; c < size[1]; c++) {
            for (int64_t t = 0; t < size[2]; t++) {
                for (int64_t h = 0; h < (rows_join ? 1 : size[3]); h++) {
                    const int64_t at =
                        m * stride[0] + c * stride[1] + t * stride[2] + h * stride[3];
                    hy3d__read_elements(plan->kernels, weight->dtype,
                                        (const unsigned char *)weight->data + at * bytes, stride[4],
                                        run, to);
                    to += (size_t)run * plan->compute_bytes;
                }
            }
        }
    }
}

static hy3d_status take_bias(hy3d_conv3d_plan *plan, const hy3d_tensor *bias)
{
    const int64_t elems = plan->desc.out_channels + BIAS_TAIL;
    const hy3d_status status = take(plan, elems, &plan->bias);

    if (status != HY3D_OK) {
        return status;
    }
    for (size_t i = 0; i < (size_t)elems * plan->compute_bytes; i++) {
        ((unsigned char *)plan->bias)[i] = 0;
    }
    if (bias != NULL) {
        hy3d__read_elements(plan->kernels, bias->dtype, bias->data, bias->stride[0], bias->size[0],
                            plan->bias);
    }
    return HY3D_OK;
}

hy3d_status hy3d__conv_take_weight(hy3d_conv3d_plan *plan, const hy3d_tensor *weight,
                                   const hy3d_tensor *bias)
{
    const bool computable = weight->dtype == HY3D_F32 || weight->dtype == HY3D_F64;
    hy3d_status status = take_bias(plan, bias);

    if (status == HY3D_OK && plan->own_format != HY3D_FORMAT_NONE) {
        /* own_bytes has them already. */
        const hy3d_status made =
            hy3d_conv3d_weights_create(plan->context, weight, plan->own_format,
                                       plan->desc.num_threads, NULL, &plan->own_prepared);
        plan->prepared = plan->own_prepared;
        return made;
    }
    if (status != HY3D_OK || plan->strategy->layouts != NULL) {
        return status;
    }
    if (computable && hy3d__conv_is_contiguous(weight)) {
        plan->weight = weight->data;
        return HY3D_OK;
    }
    status = take(plan, plan->desc.out_channels * plan->k, &plan->own_weight);
    if (status == HY3D_OK) {
        copy_weight(plan, weight, plan->own_weight);
        plan->weight = plan->own_weight;
    }
    return status;
}

size_t hy3d__conv_taken_bytes(const hy3d_conv3d_plan *plan)
{
    const bool halves = plan->desc.dtype == HY3D_F16 || plan->desc.dtype == HY3D_BF16;
    int64_t elems = plan->desc.out_channels + BIAS_TAIL;

    if (halves && plan->strategy->layouts == NULL) {
        elems += plan->desc.out_channels * plan->k;
    }
    return (size_t)elems * plan->compute_bytes;
}
