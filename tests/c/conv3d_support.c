#include "conv3d_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

conv_view conv_view_make(hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS],
                         conv_layout layout, unsigned char fill)
{
    static const int orders[2][HY3D_TENSOR_DIMS] = {{0, 1, 2, 3, 4}, {0, 2, 3, 4, 1}};
    const int *const order = orders[layout == LAYOUT_LAST ? 1 : 0];
    conv_view view = {.tensor = {.dtype = dtype}};
    int64_t elems = 1, start = 0;

    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        const int dim = order[i];
        view.tensor.size[dim] = size[dim];
        view.tensor.stride[dim] = elems;
        if (layout == LAYOUT_EXPANDED && (dim == 2 || dim == 3)) {
            view.tensor.stride[dim] = 0;
            continue;
        }
        elems *= size[dim] + (layout == LAYOUT_GAPS ? 2 : 0);
        if (layout == LAYOUT_REVERSED && dim >= 3 && size[dim] > 0) {
            start += (size[dim] - 1) * view.tensor.stride[dim];
            view.tensor.stride[dim] = -view.tensor.stride[dim];
        }
    }
    view.bytes = (size_t)elems * hy3d_dtype_bytes(dtype);
    view.memory = malloc(view.bytes + 1);
    ck_assert_ptr_nonnull(view.memory);
    memset(view.memory, fill, view.bytes);
    view.tensor.data = view.memory + (size_t)start * hy3d_dtype_bytes(dtype);
    return view;
}

void conv_view_free(conv_view *view)
{
    free(view->memory);
    view->memory = NULL;
}

static int64_t offset_of(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += at[i] * tensor->stride[i];
    }
    return offset;
}

double conv_get(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS])
{
    const hy3d__kernels *const kernels = hy3d__kernels_for(HY3D_CPU_REF);
    const int64_t offset = offset_of(tensor, at);
    float value;

    switch (tensor->dtype) {
    case HY3D_F64:
        return ((const double *)tensor->data)[offset];
    case HY3D_F16:
        kernels->cvt_f16_f32(1, (const uint16_t *)tensor->data + offset, &value);
        return value;
    case HY3D_BF16:
        kernels->cvt_bf16_f32(1, (const uint16_t *)tensor->data + offset, &value);
        return value;
    case HY3D_F32:
    default:
        return ((const float *)tensor->data)[offset];
    }
}

void conv_set(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS], double value)
{
    const hy3d__kernels *const kernels = hy3d__kernels_for(HY3D_CPU_REF);
    const int64_t offset = offset_of(tensor, at);
    const float narrow = (float)value;

    switch (tensor->dtype) {
    case HY3D_F64:
        ((double *)tensor->data)[offset] = value;
        break;
    case HY3D_F16:
        kernels->cvt_f32_f16(1, &narrow, (uint16_t *)tensor->data + offset);
        break;
    case HY3D_BF16:
        kernels->cvt_f32_bf16(1, &narrow, (uint16_t *)tensor->data + offset);
        break;
    case HY3D_F32:
    default:
        ((float *)tensor->data)[offset] = narrow;
        break;
    }
}

bool conv_step(const hy3d_tensor *tensor, int64_t at[HY3D_TENSOR_DIMS])
{
    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        if (++at[i] < tensor->size[i]) {
            return true;
        }
        at[i] = 0;
    }
    return false;
}

static bool is_empty(const hy3d_tensor *tensor)
{
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tensor->size[i] == 0) {
            return true;
        }
    }
    return false;
}

void conv_fill_integers(test_random *random, const hy3d_tensor *tensor, int limit)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    if (is_empty(tensor)) {
        return;
    }
    do {
        conv_set(tensor, at, (double)test_between(random, -limit, limit));
    } while (conv_step(tensor, at));
}

void conv_fill_reals(test_random *random, const hy3d_tensor *tensor)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    if (is_empty(tensor)) {
        return;
    }
    do {
        const int64_t value = test_between(random, -(1 << 24) + 1, (1 << 24) - 1);
        conv_set(tensor, at, (double)value / (1 << 24));
    } while (conv_step(tensor, at));
}

conv_view conv_view_widen(const conv_view *view, bool absolute)
{
    conv_view wide = conv_view_make(HY3D_F64, view->tensor.size, LAYOUT_PLAIN, 0);
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    if (!is_empty(&view->tensor)) {
        do {
            const double value = conv_get(&view->tensor, at);
            conv_set(&wide.tensor, at, absolute ? fabs(value) : value);
        } while (conv_step(&view->tensor, at));
    }
    return wide;
}

void conv_copy(const hy3d_tensor *from, const hy3d_tensor *to)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    do {
        conv_set(to, at, conv_get(from, at));
    } while (conv_step(to, at));
}

int64_t conv_unequal(const hy3d_tensor *a, const hy3d_tensor *b)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    int64_t count = 0;
    do {
        count += conv_get(a, at) == conv_get(b, at) ? 0 : 1;
    } while (conv_step(a, at));
    return count;
}

hy3d_conv3d_desc conv_desc(hy3d_dtype dtype, int64_t in_channels, int64_t out_channels, int64_t t,
                           int64_t h, int64_t w, int64_t kernel)
{
    return (hy3d_conv3d_desc){
        .dtype = dtype,
        .batch = 1,
        .in_channels = in_channels,
        .out_channels = out_channels,
        .groups = 1,
        .in_size = {t, h, w},
        .kernel = {kernel, kernel, kernel},
        .stride = {1, 1, 1},
        .dilation = {1, 1, 1},
    };
}

int64_t conv_least_size(const hy3d_conv3d_desc *desc, int axis)
{
    const int64_t before = desc->pad_before[axis], after = desc->pad_after[axis];
    const int64_t extent = (desc->kernel[axis] - 1) * desc->dilation[axis] + 1;
    int64_t least = extent - before - after;

    least = least < 1 - before ? 1 - before : least;
    least = least < 1 - after ? 1 - after : least;
    return least < 1 ? 1 : least;
}

static bool is_cropped(const hy3d_conv3d_desc *desc, int axis, int64_t at)
{
    const int64_t times = desc->upsample[axis] > 1 ? desc->upsample[axis] : 1;
    const int64_t after = desc->pad_after[axis] < 0 ? desc->pad_after[axis] : 0;

    return (at + 1) * times <= -desc->pad_before[axis] ||
           at * times >= desc->in_size[axis] + after;
}

void conv_poison_cropped(const hy3d_conv3d_desc *desc, const hy3d_tensor *x, int first_axis)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (x->size[i] == 0 || (x->size[i] > 1 && x->stride[i] == 0)) {
            return;
        }
    }
    do {
        for (int i = first_axis; i < 3; i++) {
            if (is_cropped(desc, i, at[2 + i])) {
                conv_set(x, at, (double)NAN);
            }
        }
    } while (conv_step(x, at));
}

conv_problem conv_problem_make(const hy3d_conv3d_desc *desc, bool bias, conv_layout x_layout,
                               conv_layout weight_layout, conv_layout y_layout,
                               test_random *random, int limit)
{
    conv_problem p = {.desc = *desc, .has_bias = bias};
    int64_t out[3];
    ck_assert_ok(hy3d_conv3d_out_size(desc, out));
    int64_t x_size[] = {desc->batch, desc->in_channels, desc->in_size[0], desc->in_size[1],
                        desc->in_size[2]};
    for (int i = 0; i < 3; i++) {
        x_size[2 + i] /= desc->upsample[i] > 1 ? desc->upsample[i] : 1;
    }
    const int64_t w_size[] = {desc->out_channels, desc->in_channels / desc->groups,
                              desc->kernel[0], desc->kernel[1], desc->kernel[2]};
    const int64_t b_size[] = {desc->out_channels, 1, 1, 1, 1};
    const int64_t y_size[] = {desc->batch, desc->out_channels, out[0], out[1], out[2]};

    p.x = conv_view_make(desc->dtype, x_size, x_layout, 0xff);
    p.weight = conv_view_make(desc->dtype, w_size, weight_layout, 0xff);
    p.bias = conv_view_make(desc->dtype, b_size, LAYOUT_PLAIN, 0xff);
    p.y = conv_view_make(desc->dtype, y_size, y_layout, 0xff);
    if (limit > 0) {
        conv_fill_integers(random, &p.x.tensor, limit);
        conv_fill_integers(random, &p.weight.tensor, limit);
        conv_fill_integers(random, &p.bias.tensor, limit);
    } else {
        conv_fill_reals(random, &p.x.tensor);
        conv_fill_reals(random, &p.weight.tensor);
        conv_fill_reals(random, &p.bias.tensor);
    }
    conv_poison_cropped(desc, &p.x.tensor, 0);
    return p;
}

void conv_problem_free(conv_problem *problem)
{
    conv_view_free(&problem->x);
    conv_view_free(&problem->weight);
    conv_view_free(&problem->bias);
    conv_view_free(&problem->y);
}

hy3d_status conv_problem_run(hy3d_context *context, const conv_problem *problem)
{
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    hy3d_status status =
        hy3d_conv3d_plan_create(context, &problem->desc, &problem->weight.tensor,
                                problem->has_bias ? &problem->bias.tensor : NULL, NULL, &plan);
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace);
    }
    if (status == HY3D_OK) {
        status =
            hy3d_conv3d_run(plan, &problem->x.tensor, &problem->y.tensor, workspace, NULL);
    }
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    return status;
}

int64_t conv_problem_differing(const conv_problem *problem)
{
    conv_view wanted =
        conv_view_make(problem->desc.dtype, problem->y.tensor.size, LAYOUT_PLAIN, 0xff);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    int64_t differing = 0;

    ck_assert_ok(reference_conv3d(&problem->desc, &problem->x.tensor, &problem->weight.tensor,
                                  problem->has_bias ? &problem->bias.tensor : NULL, NULL,
                                  &wanted.tensor));
    if (!is_empty(&wanted.tensor)) {
        do {
            /* Also true where either is NaN. */
            differing +=
                !(conv_get(&wanted.tensor, at) == conv_get(&problem->y.tensor, at)) ? 1 : 0;
        } while (conv_step(&wanted.tensor, at));
    }
    conv_view_free(&wanted);
    return differing;
}

void conv_problem_text(const conv_problem *problem, char *text, size_t size)
{
    const hy3d_conv3d_desc *const d = &problem->desc;
    snprintf(text, size,
             "%s n %lld c %lld->%lld g %lld in %lld %lld %lld k %lld %lld %lld s %lld %lld %lld "
             "d %lld %lld %lld before %lld %lld %lld after %lld %lld %lld mode %d %d %d "
             "up %lld %lld %lld x strides %lld %lld %lld %lld %lld",
             hy3d_dtype_name(d->dtype), (long long)d->batch, (long long)d->in_channels,
             (long long)d->out_channels, (long long)d->groups, (long long)d->in_size[0],
             (long long)d->in_size[1], (long long)d->in_size[2], (long long)d->kernel[0],
             (long long)d->kernel[1], (long long)d->kernel[2], (long long)d->stride[0],
             (long long)d->stride[1], (long long)d->stride[2], (long long)d->dilation[0],
             (long long)d->dilation[1], (long long)d->dilation[2], (long long)d->pad_before[0],
             (long long)d->pad_before[1], (long long)d->pad_before[2],
             (long long)d->pad_after[0], (long long)d->pad_after[1],
             (long long)d->pad_after[2], (int)d->pad_mode[0], (int)d->pad_mode[1],
             (int)d->pad_mode[2], (long long)d->upsample[0], (long long)d->upsample[1],
             (long long)d->upsample[2], (long long)problem->x.tensor.stride[0],
             (long long)problem->x.tensor.stride[1], (long long)problem->x.tensor.stride[2],
             (long long)problem->x.tensor.stride[3], (long long)problem->x.tensor.stride[4]);
}

bool conv_needs_missing_blas(hy3d_context *context, const conv_problem *problem)
{
    hy3d_conv3d_plan *plan = NULL;
    const hy3d_status status = hy3d_conv3d_plan_create(
        context, &problem->desc, &problem->weight.tensor, NULL, NULL, &plan);
    hy3d_conv3d_plan_destroy(plan);
    return status == HY3D_ERR_BLAS_UNAVAILABLE;
}
