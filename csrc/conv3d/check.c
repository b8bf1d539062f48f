/* Checks of descriptions and tensors: everything that can be wrong is found here, before a plan
 * computes with it. */
#include "conv3d/plan.h"

#include "base/checked.h"
#include "base/reach.h"

static bool known_dtype(hy3d_dtype dtype)
{
    return dtype == HY3D_F32 || dtype == HY3D_F64 || dtype == HY3D_F16 || dtype == HY3D_BF16;
}

static hy3d_status check_axis(const hy3d_conv3d_desc *desc, int axis, int64_t *out)
{
    const int64_t size = desc->in_size[axis];
    const int64_t kernel = desc->kernel[axis];
    const hy3d_pad_mode mode = desc->pad_mode[axis];
    int64_t padded, extent;

    if (size < 1 || kernel < 1 || desc->stride[axis] < 1 || desc->dilation[axis] < 1 ||
        desc->pad_before[axis] <= -size || desc->pad_after[axis] <= -size ||
        desc->upsample[axis] < 0 || (mode != HY3D_PAD_ZEROS && mode != HY3D_PAD_REPLICATE)) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (size % hy3d__conv_upsample(desc, axis) != 0) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    if (!hy3d__add_i64(size, desc->pad_before[axis], &padded) ||
        !hy3d__add_i64(padded, desc->pad_after[axis], &padded) ||
        !hy3d__mul_i64(kernel - 1, desc->dilation[axis], &extent) ||
        !hy3d__add_i64(extent, 1, &extent)) {
        return HY3D_ERR_OVERFLOW;
    }
    if (extent > padded) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    *out = (padded - extent) / desc->stride[axis] + 1;
    return HY3D_OK;
}

/* Elements of an activation or weight; all of them in bytes must fit in 63 bits. */
static hy3d_status check_elems(int64_t outer, int64_t channels, const int64_t size[3])
{
    int64_t elems = 8;

    if (outer == 0) {
        outer = 1;
    }
    if (!hy3d__mul_i64(elems, outer, &elems) || !hy3d__mul_i64(elems, channels, &elems)) {
        return HY3D_ERR_OVERFLOW;
    }
    for (int i = 0; i < 3; i++) {
        if (!hy3d__mul_i64(elems, size[i], &elems)) {
            return HY3D_ERR_OVERFLOW;
        }
    }
    return HY3D_OK;
}

hy3d_status hy3d__conv_check_desc(const hy3d_conv3d_desc *desc, int64_t out[3])
{
    hy3d_status status;

    if (desc == NULL || !known_dtype(desc->dtype) || desc->batch < 0 || desc->in_channels < 1 ||
        desc->out_channels < 1 || desc->groups < 1 ||
        (desc->accuracy != HY3D_EXACT && desc->accuracy != HY3D_FAST) || desc->pairs > 2 ||
        (desc->pairs != 0 && desc->upsample[0] > 1)) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < 3; i++) {
        status = check_axis(desc, i, &out[i]);
        if (status != HY3D_OK) {
            return status;
        }
    }
    if (desc->in_channels % desc->groups != 0 || desc->out_channels % desc->groups != 0) {
        return HY3D_ERR_SHAPE_MISMATCH;
    }
    status = check_elems(desc->batch, desc->in_channels, desc->in_size);
    if (status == HY3D_OK) {
        status = check_elems(desc->batch, desc->out_channels, out);
    }
    if (status == HY3D_OK) {
        int64_t unused;
        status = check_elems(desc->in_channels / desc->groups, desc->out_channels, desc->kernel);
        /* With groups the weights' size does not bound this product; no count of both overflows. */
        if (status == HY3D_OK && !hy3d__mul_i64(desc->in_channels, desc->out_channels, &unused)) {
            status = HY3D_ERR_OVERFLOW;
        }
    }
    return status;
}

hy3d_status hy3d_conv3d_out_size(const hy3d_conv3d_desc *desc, int64_t out_size_out[3])
{
    int64_t out[3];

    if (out_size_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__conv_check_desc(desc, out);
    if (status == HY3D_OK) {
        for (int i = 0; i < 3; i++) {
            out_size_out[i] = out[i];
        }
    }
    return status;
}

/* Sizes, type, pointer, strides. */
static hy3d_status check_tensor(const hy3d_tensor *tensor, hy3d_dtype dtype,
                                const int64_t size[HY3D_TENSOR_DIMS], bool written)
{
    bool empty = false;

    if (tensor == NULL || tensor->dtype != dtype) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tensor->size[i] != size[i]) {
            return HY3D_ERR_SHAPE_MISMATCH;
        }
        empty = empty || size[i] == 0;
    }
    if (empty) {
        return HY3D_OK;
    }
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (written && size[i] > 1 && tensor->stride[i] == 0) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
    }
    return hy3d__check_reach(tensor->data, dtype, HY3D_TENSOR_DIMS, size, tensor->stride);
}

hy3d_status hy3d__conv_check_weight(const hy3d_conv3d_desc *desc, const hy3d_tensor *weight,
                                    const hy3d_tensor *bias)
{
    const int64_t weight_size[HY3D_TENSOR_DIMS] = {
        desc->out_channels, desc->in_channels / desc->groups, desc->kernel[0], desc->kernel[1],
        desc->kernel[2]};
    const int64_t bias_size[HY3D_TENSOR_DIMS] = {desc->out_channels, 1, 1, 1, 1};
    hy3d_status status = check_tensor(weight, desc->dtype, weight_size, false);

    if (status == HY3D_OK && bias != NULL) {
        status = check_tensor(bias, desc->dtype, bias_size, false);
    }
    return status;
}

hy3d_status hy3d__conv_check_filter(const hy3d_tensor *weight)
{
    return check_tensor(weight, weight->dtype, weight->size, false);
}

static bool is_same(const hy3d_conv3d_frame *a, const hy3d_conv3d_frame *b)
{
    return a->data == b->data &&
           (a->data == NULL || (a->stride[0] == b->stride[0] && a->stride[1] == b->stride[1] &&
                                a->stride[2] == b->stride[2]));
}

static hy3d_status check_frames(const hy3d_conv3d_desc *desc, const hy3d_conv3d_frame *frames)
{
    const int64_t size[3] = {desc->in_channels, desc->in_size[1] / hy3d__conv_upsample(desc, 1),
                             desc->in_size[2] / hy3d__conv_upsample(desc, 2)};

    if (desc->batch != 1 || hy3d__conv_upsample(desc, 0) != 1) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    for (int64_t t = 0; t < desc->in_size[0]; t++) {
        const hy3d_conv3d_frame *const frame = &frames[t];
        if (desc->pairs != 0 && t > 0 && (t + desc->pairs) % 2 == 0 && !is_same(frame - 1, frame)) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        const hy3d_status status = frame->data == NULL ? HY3D_OK
                                                       : hy3d__check_reach(frame->data, desc->dtype,
                                                                           3, size, frame->stride);
        if (status != HY3D_OK) {
            return status;
        }
    }
    return HY3D_OK;
}

static hy3d_status check_input(const hy3d_conv3d_desc *desc, const hy3d_tensor *x)
{
    int64_t size[HY3D_TENSOR_DIMS] = {desc->batch, desc->in_channels};

    for (int i = 0; i < 3; i++) {
        size[2 + i] = desc->in_size[i] / hy3d__conv_upsample(desc, i);
    }
    return check_tensor(x, desc->dtype, size, false);
}

hy3d_status hy3d__conv_check_io(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                const hy3d_tensor *x, const hy3d_conv3d_fusion *fusion,
                                const hy3d_tensor *y)
{
    const int64_t y_size[HY3D_TENSOR_DIMS] = {desc->batch, desc->out_channels, out[0], out[1],
                                              out[2]};
    hy3d_status status;

    if (fusion != NULL &&
        ((fusion->scale == NULL) != (fusion->shift == NULL) ||
         (fusion->activation != HY3D_IDENTITY && fusion->activation != HY3D_SILU))) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (fusion != NULL && fusion->frames != NULL) {
        status = check_frames(desc, fusion->frames);
    } else {
        status = desc->pairs != 0 ? HY3D_ERR_INVALID_ARGUMENT : check_input(desc, x);
    }
    if (status == HY3D_OK) {
        status = check_tensor(y, desc->dtype, y_size, true);
    }
    if (status == HY3D_OK && fusion != NULL && fusion->residual != NULL) {
        status = check_tensor(fusion->residual, desc->dtype, y_size, false);
    }
    return status;
}

bool hy3d__conv_is_contiguous(const hy3d_tensor *tensor)
{
    int64_t expected = 1;

    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        if (tensor->size[i] > 1 && tensor->stride[i] != expected) {
            return false;
        }
        expected *= tensor->size[i];
    }
    return true;
}
