#include "conv3d_fusion_support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t times(const hy3d_conv3d_desc *desc, int axis)
{
    return desc->upsample[axis] > 1 ? desc->upsample[axis] : 1;
}

static void fill(test_random *random, const hy3d_tensor *tensor, int limit)
{
    if (limit > 0) {
        conv_fill_integers(random, tensor, limit);
    } else {
        conv_fill_reals(random, tensor);
    }
}

/* Every frame in memory of its own with strides of its own; some are zeros, some the one before. */
static void make_frames(conv_fused *f, test_random *random, int limit)
{
    const hy3d_conv3d_desc *const desc = &f->problem.desc;
    const int64_t size[HY3D_TENSOR_DIMS] = {1, desc->in_channels, 1,
                                            desc->in_size[1] / times(desc, 1),
                                            desc->in_size[2] / times(desc, 2)};

    for (int64_t t = 0; t < desc->in_size[0]; t++) {
        const int64_t kind = test_between(random, 0, 7);
        if (desc->pairs != 0 && t > 0 && (t - desc->pairs) % 2 == 0) {
            f->list[t] = f->list[t - 1];
            continue;
        }
        if (kind == 0 || (kind == 1 && t > 0)) {
            f->list[t] = kind == 0 ? (hy3d_conv3d_frame){.data = NULL} : f->list[t - 1];
            continue;
        }
        f->frames[t] = conv_view_make(desc->dtype, size,
                                      (conv_layout)test_between(random, 0, LAYOUT_COUNT - 1), 0xff);
        fill(random, &f->frames[t].tensor, limit);
        conv_poison_cropped(desc, &f->frames[t].tensor, 1);
        const int64_t *const stride = f->frames[t].tensor.stride;
        f->list[t] = (hy3d_conv3d_frame){.data = f->frames[t].tensor.data,
                                         .stride = {stride[1], stride[3], stride[4]}};
    }
    f->fusion.frames = f->list;
}

static void make_residual(conv_fused *f, test_random *random, int limit)
{
    const hy3d_tensor *const y = &f->problem.y.tensor;
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    f->residual = conv_view_make(y->dtype, y->size,
                                 (conv_layout)test_between(random, 0, LAYOUT_EXPANDED), 0xff);
    fill(random, &f->residual.tensor, limit);
    f->in_place = test_between(random, 0, 1) == 1;
    f->fusion.residual = f->in_place ? y : &f->residual.tensor;
    if (f->in_place && y->size[0] > 0) {
        do {
            conv_set(y, at, conv_get(&f->residual.tensor, at));
        } while (conv_step(y, at));
    }
}

void conv_fused_make(conv_fused *f, const hy3d_conv3d_desc *desc, hy3d_activation activation,
                     test_random *random, int limit)
{
    memset(f, 0, sizeof *f);
    ck_assert_int_le(desc->in_channels, CONV_MOST_CHANNELS);
    f->problem = conv_problem_make(
        desc, test_between(random, 0, 1) == 1,
        (conv_layout)test_between(random, 0, LAYOUT_COUNT - 1),
        (conv_layout)test_between(random, 0, LAYOUT_EXPANDED),
        (conv_layout)test_between(random, 0, LAYOUT_EXPANDED - 1), random, limit);
    f->fusion.activation = activation;
    if (test_between(random, 0, 3) > 0) {
        test_fill_f32(random, f->scale, CONV_MOST_CHANNELS, 2);
        test_fill_f32(random, f->shift, CONV_MOST_CHANNELS, 2);
        for (int i = 0; limit == 0 && i < CONV_MOST_CHANNELS; i++) {
            f->scale[i] *= (float)test_between(random, 1, 999) / 333;
            f->shift[i] *= (float)test_between(random, 1, 999) / 777;
        }
        f->fusion.scale = f->scale;
        f->fusion.shift = f->shift;
    }
    if (desc->batch == 1 && times(desc, 0) == 1 && desc->in_size[0] <= CONV_MOST_FRAMES &&
        (test_between(random, 0, 1) == 1 || desc->pairs != 0)) {
        make_frames(f, random, limit);
    }
    if (test_between(random, 0, 1) == 1) {
        make_residual(f, random, limit);
    }
}

void conv_fused_free(conv_fused *f)
{
    for (int i = 0; i < CONV_MOST_FRAMES; i++) {
        conv_view_free(&f->frames[i]);
    }
    conv_view_free(&f->residual);
    conv_problem_free(&f->problem);
}

hy3d_status conv_fused_run(hy3d_context *context, conv_fused *f)
{
    const conv_problem *const p = &f->problem;
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    hy3d_status status =
        hy3d_conv3d_plan_create(context, &p->desc, &p->weight.tensor,
                                p->has_bias ? &p->bias.tensor : NULL, NULL, &plan);
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace);
    }
    if (status == HY3D_OK) {
        status = hy3d_conv3d_run_fused(plan, f->fusion.frames != NULL ? NULL : &p->x.tensor,
                                       &f->fusion, &p->y.tensor, workspace, NULL);
    }
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    return status;
}

void conv_fused_text(const conv_fused *f, char *text, size_t size)
{
    char problem[512];
    conv_problem_text(&f->problem, problem, sizeof problem);
    snprintf(text, size, "%s%s%s%s%s", problem, f->fusion.frames != NULL ? " frames" : "",
             f->fusion.scale != NULL ? " scale" : "",
             f->fusion.activation == HY3D_SILU ? " silu" : "",
             f->fusion.residual == NULL ? ""
             : f->in_place              ? " residual in place"
                                        : " residual");
}

/* Error of one input value, by the steps of affine_silu_f32: product and sum rounded, SiLU (whose
 * slope is below 1.1) within 3 u and 2^-121 absolutely. In double SiLU has an exp within 2 u. */
static double input_part(const conv_fused *f, double x, int64_t channel, conv_input_part part)
{
    const bool is_f64 = f->problem.desc.dtype == HY3D_F64;
    const double u = ldexp(1.0, is_f64 ? -53 : -24) + ldexp(1.0, -50);
    const bool is_scaled = f->fusion.scale != NULL;
    const double product = is_scaled ? x * (double)f->scale[channel] : x;
    double value = is_scaled ? product + (double)f->shift[channel] : x;
    double error =
        is_scaled ? u * fabs(product) + u * (fabs(value) + u * fabs(product)) : 0.0;

    if (f->fusion.activation == HY3D_SILU) {
        value = value / (1.0 + exp(-value));
        error = 1.1 * error;
        error += (is_f64 ? 5.0 : 3.0) * u * (fabs(value) + error) + ldexp(1.0, -121);
    }
    return part == INPUT_VALUE ? value : part == INPUT_ERROR ? error : fabs(value) + error;
}

conv_view conv_fused_input(const conv_fused *f, conv_input_part part)
{
    const hy3d_conv3d_desc *const desc = &f->problem.desc;
    const int64_t size[HY3D_TENSOR_DIMS] = {desc->batch, desc->in_channels, desc->in_size[0],
                                            desc->in_size[1], desc->in_size[2]};
    conv_view input = conv_view_make(HY3D_F64, size, LAYOUT_PLAIN, 0);
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    do {
        int64_t from[HY3D_TENSOR_DIMS] = {at[0], at[1], at[2] / times(desc, 0),
                                          at[3] / times(desc, 1), at[4] / times(desc, 2)};
        hy3d_tensor source = f->problem.x.tensor;
        if (f->fusion.frames != NULL) {
            const hy3d_conv3d_frame *const frame = &f->list[at[2]];
            if (frame->data == NULL) {
                conv_set(&input.tensor, at, 0.0);
                continue;
            }
            memcpy(&source.data, &frame->data, sizeof source.data);
            source.stride[1] = frame->stride[0];
            source.stride[3] = frame->stride[1];
            source.stride[4] = frame->stride[2];
            from[2] = 0;
        }
        conv_set(&input.tensor, at, input_part(f, conv_get(&source, from), at[1], part));
    } while (conv_step(&input.tensor, at));
    return input;
}

conv_view conv_fused_result(const conv_fused *f, conv_input_part part, bool absolute,
                            bool sum_only)
{
    const conv_problem *const p = &f->problem;
    hy3d_conv3d_desc desc = p->desc;
    conv_view input = conv_fused_input(f, part);
    conv_view weight = conv_view_widen(&p->weight, absolute);
    conv_view bias = conv_view_widen(&p->bias, absolute);
    conv_view y = conv_view_make(HY3D_F64, p->y.tensor.size, LAYOUT_PLAIN, 0xff);
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    desc.dtype = HY3D_F64;
    desc.upsample[0] = desc.upsample[1] = desc.upsample[2] = 1;
    desc.pairs = 0;
    ck_assert_ok(reference_conv3d(&desc, &input.tensor, &weight.tensor,
                                  p->has_bias && !sum_only ? &bias.tensor : NULL, NULL,
                                  &y.tensor));
    if (f->fusion.residual != NULL && !sum_only) {
        do {
            const double residual = conv_get(&f->residual.tensor, at);
            conv_set(&y.tensor, at,
                     conv_get(&y.tensor, at) + (absolute ? fabs(residual) : residual));
        } while (conv_step(&y.tensor, at));
    }
    conv_view_free(&input);
    conv_view_free(&weight);
    conv_view_free(&bias);
    return y;
}
