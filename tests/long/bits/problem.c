/* Values of a configuration, tensors of them, plans and runs; and the oracle. */
#include "bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv3d/plan.h"
#include "reference.h"

static int32_t *integers(size_t n)
{
    int32_t *const values = calloc(n + 1, sizeof *values);
    if (values == NULL) {
        perror("calloc");
        exit(EXIT_FAILURE);
    }
    return values;
}

/* Values of a tensor in index order; equal ones along what the layout repeats. */
static int32_t *fill(bits_random *random, const int64_t size[HY3D_TENSOR_DIMS],
                     bits_layout layout, int32_t limit)
{
    const int64_t n = bits_elems(size);
    int32_t *const values = integers((size_t)n);
    const int64_t row = size[4], plane = size[3] * row, volume = size[2] * plane;

    for (int64_t i = 0; i < n; i++) {
        values[i] = (int32_t)bits_between(random, -limit, limit);
    }
    for (int64_t i = 0; layout == BITS_EXPANDED && i < n; i++) {
        values[i] = values[i / volume * volume + i % row];
    }
    return values;
}

static void thin_out(bits_random *random, int32_t *weight, const int64_t size[HY3D_TENSOR_DIMS])
{
    const int64_t n = bits_elems(size), k = n / size[0];

    memset(weight, 0, (size_t)n * sizeof *weight);
    for (int64_t m = 0; m < size[0]; m++) {
        for (int i = 0; i < 3; i++) {
            weight[m * k + bits_between(random, 0, k - 1)] = bits_one_in(random, 2) ? 1 : -1;
        }
    }
}

void bits_problem_fill(bits_problem *p, const bits_config *c, bool is_exact, bool is_sparse)
{
    const int64_t bias_size[HY3D_TENSOR_DIMS] = {c->desc.out_channels, 1, 1, 1, 1};
    const int32_t limit = is_exact ? 3 : (1 << 24) - 1;
    bits_random random = bits_random_of(c->seed ^ 0x5eed, c->index);

    *p = (bits_problem){.config = c, .is_exact = is_exact};
    p->x = fill(&random, c->x_size, c->has_frames ? BITS_PLAIN : c->x_layout, limit);
    p->weight = fill(&random, c->weight_size, BITS_PLAIN, limit);
    p->bias = fill(&random, bias_size, BITS_PLAIN, limit);
    p->residual = fill(&random, c->y_size, c->residual_layout, limit);
    if (is_sparse) {
        thin_out(&random, p->weight, c->weight_size);
    }
    for (int64_t i = 0; i < c->desc.in_channels; i++) {
        p->scale[i] = (float)bits_between(&random, is_sparse ? -1 : -2, is_sparse ? 1 : 2);
        p->shift[i] = is_sparse ? 0.0F : (float)bits_between(&random, -2, 2);
        p->scale[i] *= is_exact ? 1.0F : (float)bits_between(&random, 1, 999) / 512.0F;
    }
    for (int t = 0; t < BITS_MOST_FRAMES; t++) {
        p->zero_frame[t] = c->has_frames && bits_one_in(&random, 6);
    }
}

static void put(const bits_view *view, const int32_t *values, bool is_exact)
{
    (is_exact ? bits_view_put : bits_view_put_reals)(view, values);
}

/* Frames are parts of one tensor whose time lies last frame first. */
static void make_frames(bits_problem *p)
{
    const hy3d_tensor *const x = &p->x_view.tensor;
    const int64_t width = (int64_t)hy3d_dtype_bytes(x->dtype);

    for (int64_t t = 0; t < x->size[2]; t++) {
        p->frames[t] = (hy3d_conv3d_frame){
            .data = p->zero_frame[t] ? NULL
                                     : (const unsigned char *)x->data + t * x->stride[2] * width,
            .stride = {x->stride[1], x->stride[3], x->stride[4]}};
    }
    p->fusion.frames = p->frames;
}

void bits_problem_place(bits_problem *p, int64_t alignment)
{
    const bits_config *const c = p->config;
    const hy3d_dtype dtype = c->desc.dtype;
    const int64_t bias_size[HY3D_TENSOR_DIMS] = {c->desc.out_channels, 1, 1, 1, 1};
    const bool exact = p->is_exact;

    p->x_view = bits_view_make(dtype, c->x_size,
                               c->has_frames && c->x_layout == BITS_EXPANDED ? BITS_PLAIN
                                                                             : c->x_layout,
                               alignment);
    p->weight_view =
        bits_view_make(dtype, c->weight_size, c->weight_layout, alignment * 5 % 16);
    p->bias_view = bits_view_make(dtype, bias_size, BITS_PLAIN, alignment * 3 % 16);
    p->y_view = bits_view_make(dtype, c->y_size, c->y_layout, alignment * 7 % 16);
    put(&p->x_view, p->x, exact);
    put(&p->weight_view, p->weight, exact);
    put(&p->bias_view, p->bias, exact);
    p->fusion = (hy3d_conv3d_fusion){.activation = c->activation};
    if (c->has_scale) {
        p->fusion.scale = p->scale;
        p->fusion.shift = p->shift;
    }
    if (c->has_frames) {
        make_frames(p);
    }
    if (c->has_residual) {
        if (!c->in_place) {
            p->residual_view =
                bits_view_make(dtype, c->y_size, c->residual_layout, alignment * 11 % 16);
        }
        put(c->in_place ? &p->y_view : &p->residual_view, p->residual, exact);
        p->fusion.residual = c->in_place ? &p->y_view.tensor : &p->residual_view.tensor;
    }
}

void bits_problem_unplace(bits_problem *p)
{
    bits_view_free(&p->x_view);
    bits_view_free(&p->weight_view);
    bits_view_free(&p->bias_view);
    bits_view_free(&p->residual_view);
    bits_view_free(&p->y_view);
}

void bits_problem_free(bits_problem *p)
{
    bits_problem_unplace(p);
    free(p->x);
    free(p->weight);
    free(p->bias);
    free(p->residual);
}

/* A plan of a kind of Winograd, whatever the cost model says: tests may look inside. */
static hy3d_status force(hy3d_context *context, const bits_problem *p,
                         const hy3d_conv3d_weights *prepared, hy3d_conv3d_plan **plan_out)
{
    const hy3d_conv3d_desc *const d = &p->config->desc;
    const uint32_t most = hy3d_context_max_threads(context);
    uint32_t threads = d->num_threads == 0 || d->num_threads > most ? most : d->num_threads;
    hy3d__winograd_kind kind;
    void *memory = NULL;
    hy3d_status status = hy3d_alloc(context, sizeof(hy3d_conv3d_plan), &memory);

    if (status != HY3D_OK || !hy3d__winograd_kind_of(p->config->forced, &kind)) {
        return HY3D_ERR_OUT_OF_MEMORY;
    }
    hy3d_conv3d_plan *const plan = memory;
    status = hy3d__conv_begin(d, hy3d_context_cpu_level(context), plan);
    if (status != HY3D_OK) {
        hy3d_free(context, memory);
        return status;
    }
    plan->context = context;
    plan->prepared = prepared;
    plan->filter = p->weight_view.tensor;
    plan->strategy = &hy3d__conv_winograd_strategy;
    hy3d__winograd_plan(plan, kind, threads);
    const size_t limit = d->workspace_limit_bytes;
    plan->slot_bytes = plan->input_bytes;
    threads = limit != 0 && limit / plan->slot_bytes < threads
                  ? (uint32_t)(limit / plan->slot_bytes)
                  : threads;
    plan->slots = (int64_t)threads > plan->grains
                      ? (uint32_t)hy3d__max_i64(plan->grains, threads > 0 ? 1 : 0)
                      : threads;
    plan->workspace_bytes = plan->slot_bytes * plan->slots;
    status = plan->slots == 0
                 ? HY3D_ERR_WORKSPACE_TOO_SMALL
                 : hy3d__conv_take_weight(plan, &p->weight_view.tensor,
                                          p->config->has_bias ? &p->bias_view.tensor : NULL);
    if (status != HY3D_OK) {
        hy3d_conv3d_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return HY3D_OK;
}

hy3d_status bits_plan(hy3d_context *context, const bits_problem *p,
                      const hy3d_conv3d_weights *prepared, hy3d_conv3d_plan **plan_out)
{
    if (p->config->forced != HY3D_FORMAT_NONE) {
        return force(context, p, prepared, plan_out);
    }
    return hy3d_conv3d_plan_create_prepared(
        context, &p->config->desc, &p->weight_view.tensor,
        p->config->has_bias ? &p->bias_view.tensor : NULL, prepared, NULL, plan_out);
}

static hy3d_status prepare(hy3d_context *context, const bits_problem *p,
                           hy3d_conv3d_weights **weights_out)
{
    hy3d_conv3d_format format = p->config->forced;
    hy3d_status status = HY3D_OK;

    if (format == HY3D_FORMAT_NONE) {
        status = hy3d_conv3d_choose_format(context, &p->config->desc, &format);
    }
    if (status == HY3D_OK && p->config->is_prepared && format != HY3D_FORMAT_NONE) {
        status = hy3d_conv3d_weights_create(context, &p->weight_view.tensor, format,
                                            p->config->desc.num_threads, NULL, weights_out);
    }
    return status;
}

hy3d_status bits_problem_run(hy3d_context *context, const bits_problem *p,
                             hy3d_conv3d_plan *plan_out)
{
    hy3d_conv3d_weights *weights = NULL;
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    hy3d_status status = prepare(context, p, &weights);

    if (status == HY3D_OK) {
        status = bits_plan(context, p, weights, &plan);
    }
    if (status == HY3D_OK) {
        const size_t limit = p->config->desc.workspace_limit_bytes;
        const size_t bytes = hy3d_conv3d_plan_workspace_bytes(plan);
        if (plan_out != NULL) {
            *plan_out = *plan;
        }
        status = limit != 0 && bytes > limit ? HY3D_ERR_OVERFLOW
                                             : hy3d_alloc(context, bytes, &workspace);
        if (status == HY3D_OK) {
            memset(workspace, 0xff, bytes < 1 << 20 ? bytes : 1 << 20);
            status = hy3d_conv3d_run_fused(plan, p->fusion.frames != NULL ? NULL
                                                                          : &p->x_view.tensor,
                                           &p->fusion, &p->y_view.tensor, workspace, NULL);
        }
    }
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    hy3d_conv3d_weights_destroy(weights);
    return status;
}

hy3d_status bits_problem_reference(const bits_problem *p)
{
    return reference_conv3d(
        &p->config->desc, p->fusion.frames != NULL ? NULL : &p->x_view.tensor,
        &p->weight_view.tensor, p->config->has_bias ? &p->bias_view.tensor : NULL, &p->fusion,
        &p->y_view.tensor);
}
