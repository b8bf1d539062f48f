/* Small convolutions: the reference's values, the same bits for every thread count, limit and kind
 * of weights, nothing written beside y's elements, and refusals that write nothing at all. */
#include "fuzz_conv3d.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

#define FILL 0xa5
#define MOST_PRODUCTS 60000
#define MOST_ELEMS 6000

typedef struct problem {
    hy3d_conv3d_desc desc;
    int64_t out[3];
    fuzz_tensor x, weight, bias, y, residual;
    bool has_bias, has_residual;
    hy3d_conv3d_fusion fusion;
    hy3d_conv3d_frame frames[16];
    float scale[64], shift[64];
    bool may_fail; /* the allocator is armed */
} problem;

static hy3d_conv3d_desc small_desc(fuzz_input *in)
{
    hy3d_conv3d_desc d = {
        .dtype = (hy3d_dtype)fuzz_between(in, 0, 3),
        .batch = fuzz_chance(in, 24) ? fuzz_between(in, 0, 3) : 1,
        .groups = fuzz_chance(in, 48) ? fuzz_between(in, 2, 4) : 1,
        .accuracy = (hy3d_accuracy)fuzz_between(in, 0, 1),
        .num_threads = (uint32_t)fuzz_between(in, 0, 4),
    };
    d.in_channels = d.groups * fuzz_between(in, 1, fuzz_chance(in, 32) ? 40 : 9);
    d.out_channels = d.groups * fuzz_between(in, 1, fuzz_chance(in, 32) ? 40 : 9);
    if (fuzz_chance(in, 64)) {
        d.workspace_limit_bytes = (size_t)fuzz_between(in, 1, 1 << 18);
    }
    const bool is_flat = fuzz_chance(in, 40);
    for (int i = 0; i < 3; i++) {
        d.upsample[i] = fuzz_chance(in, 24) ? fuzz_between(in, 0, 3) : 0;
        d.kernel[i] = is_flat && i > 0 ? 1 : fuzz_between(in, 1, 4);
        d.stride[i] = fuzz_chance(in, 40) ? fuzz_between(in, 1, 5) : 1;
        d.dilation[i] = fuzz_chance(in, 40) ? fuzz_between(in, 1, 4) : 1;
        d.pad_before[i] = fuzz_between(in, -2, 3);
        d.pad_after[i] = fuzz_between(in, -2, 3);
        d.pad_mode[i] = (hy3d_pad_mode)fuzz_between(in, 0, 1);
        d.in_size[i] = fuzz_between(in, 1, i == 2 && fuzz_chance(in, 32) ? 70 : 10) *
                       (d.upsample[i] > 1 ? d.upsample[i] : 1);
    }
    return d;
}

static bool is_small(const hy3d_conv3d_desc *d, const int64_t out[3])
{
    const int64_t places = d->batch * out[0] * out[1] * out[2];
    const int64_t taps = d->kernel[0] * d->kernel[1] * d->kernel[2];
    const int64_t inputs =
        d->batch * d->in_channels * d->in_size[0] * d->in_size[1] * d->in_size[2];
    return inputs <= MOST_ELEMS && places * d->out_channels <= MOST_ELEMS &&
           places * d->out_channels * taps * (d->in_channels / d->groups) <= MOST_PRODUCTS;
}

static void make_fusion(fuzz_input *in, problem *p)
{
    const hy3d_conv3d_desc *const d = &p->desc;
    uint64_t state = fuzz_bits(in) | 1U;
    if (fuzz_chance(in, 80) && d->in_channels <= 64) {
        for (int64_t c = 0; c < d->in_channels; c++) {
            p->scale[c] = (float)fuzz_small(&state, 2);
            p->shift[c] = (float)fuzz_small(&state, 2);
        }
        p->fusion.scale = p->scale;
        p->fusion.shift = p->shift;
    }
    p->fusion.activation = fuzz_chance(in, 24) ? HY3D_SILU : HY3D_IDENTITY;
    p->has_residual = fuzz_chance(in, 64);
    if (p->has_residual) {
        p->residual = fuzz_tensor_make(in, d->dtype, p->y.tensor.size, false, FILL);
        fuzz_tensor_fill(&p->residual.tensor, fuzz_bits(in), 4);
        p->fusion.residual = &p->residual.tensor;
    }
    if (d->batch == 1 && d->upsample[0] < 2 && d->in_size[0] <= 16 && fuzz_chance(in, 64)) {
        const hy3d_tensor *const x = &p->x.tensor;
        const size_t width = hy3d_dtype_bytes(d->dtype);
        for (int64_t t = 0; t < d->in_size[0]; t++) {
            const bool is_zero = fuzz_chance(in, 40);
            p->frames[t] = (hy3d_conv3d_frame){
                .data = is_zero ? NULL
                                : (char *)x->data + t * x->stride[2] * (int64_t)width,
                .stride = {x->stride[1], x->stride[3], x->stride[4]}};
        }
        p->fusion.frames = p->frames;
    }
}

static bool make_problem(fuzz_input *in, problem *p)
{
    *p = (problem){.desc = small_desc(in)};
    const hy3d_conv3d_desc *const d = &p->desc;
    if (hy3d_conv3d_out_size(d, p->out) != HY3D_OK || !is_small(d, p->out)) {
        return false;
    }
    int64_t x_size[] = {d->batch, d->in_channels, d->in_size[0], d->in_size[1], d->in_size[2]};
    for (int i = 0; i < 3; i++) {
        x_size[2 + i] /= d->upsample[i] > 1 ? d->upsample[i] : 1;
    }
    const int64_t w_size[] = {d->out_channels, d->in_channels / d->groups, d->kernel[0],
                              d->kernel[1], d->kernel[2]};
    const int64_t b_size[] = {d->out_channels, 1, 1, 1, 1};
    const int64_t y_size[] = {d->batch, d->out_channels, p->out[0], p->out[1], p->out[2]};
    p->x = fuzz_tensor_make(in, d->dtype, x_size, false, FILL);
    p->weight = fuzz_tensor_make(in, d->dtype, w_size, false, FILL);
    p->bias = fuzz_tensor_make(in, d->dtype, b_size, false, FILL);
    p->y = fuzz_tensor_make(in, d->dtype, y_size, true, FILL);
    p->has_bias = fuzz_chance(in, 128);
    const uint64_t seed = fuzz_bits(in);
    fuzz_tensor_fill(&p->x.tensor, seed, 3);
    fuzz_tensor_fill(&p->weight.tensor, seed * 3 + 2, 3);
    fuzz_tensor_fill(&p->bias.tensor, seed * 5 + 4, 8);
    make_fusion(in, p);
    return true;
}

static void free_problem(problem *p)
{
    fuzz_tensor_free(&p->x);
    fuzz_tensor_free(&p->weight);
    fuzz_tensor_free(&p->bias);
    fuzz_tensor_free(&p->y);
    fuzz_tensor_free(&p->residual);
}

static const hy3d_tensor *bias_of(const problem *p)
{
    return p->has_bias ? &p->bias.tensor : NULL;
}

/* A plan, its workspace to the byte, and one run into y. */
static hy3d_status run_once(hy3d_context *context, const problem *p, const hy3d_conv3d_desc *d,
                            const hy3d_conv3d_weights *prepared, const hy3d_tensor *y,
                            const hy3d_cancel *cancel, size_t *needed, bool *is_exact)
{
    hy3d_conv3d_plan *plan = NULL;
    uint32_t threads;
    hy3d_status status = hy3d_conv3d_plan_create_prepared(context, d, &p->weight.tensor, bias_of(p),
                                                          prepared, needed, &plan);
    if (status != HY3D_OK) {
        FUZZ_CHECK(plan == NULL, "a plan after %s", hy3d_status_name(status));
        return status;
    }
    const size_t bytes = hy3d_conv3d_plan_workspace_bytes(plan);
    FUZZ_CHECK(bytes <= fuzz_conv_limit(context, d, &threads) && bytes % 64 == 0 &&
                   hy3d_conv3d_plan_threads(plan) <= threads,
               "%zu bytes, %u threads", bytes, hy3d_conv3d_plan_threads(plan));
    void *const workspace = fuzz_room(bytes, 0x7f); /* no float to be used by mistake */
    *is_exact = strncmp(hy3d_conv3d_plan_strategy(plan), "winograd", 8) != 0 &&
                p->fusion.activation == HY3D_IDENTITY;
    status = hy3d_conv3d_run_fused(plan, &p->x.tensor, &p->fusion, y, workspace, cancel);
    free(workspace);
    hy3d_conv3d_plan_destroy(plan);
    return status;
}

/* Other threads, the smallest limit, prepared weights: the same bits. */
static void check_variants(hy3d_context *context, const problem *p, size_t needed)
{
    hy3d_conv3d_desc d = p->desc;
    hy3d_conv3d_format format = HY3D_FORMAT_NONE;
    hy3d_conv3d_weights *prepared = NULL;
    bool is_exact;
    size_t least = 0;
    hy3d_status status = hy3d_conv3d_choose_format(context, &d, &format);
    FUZZ_CHECK(status == HY3D_OK, "choose_format: %s", hy3d_status_name(status));
    if (format != HY3D_FORMAT_NONE) {
        status = hy3d_conv3d_weights_create(context, &p->weight.tensor, format, 2, NULL, &prepared);
        FUZZ_CHECK(status == HY3D_OK, "weights_create: %s", hy3d_status_name(status));
    }
    for (int variant = 0; variant < 3; variant++) {
        fuzz_tensor y = fuzz_tensor_like(&p->y);
        memset(y.memory, FILL, y.bytes);
        d.num_threads = variant == 0 ? 1 : 3;
        d.workspace_limit_bytes = variant == 1 ? needed : 0;
        status = run_once(context, p, &d, variant == 2 ? prepared : NULL, &y.tensor, NULL, &least,
                          &is_exact);
        FUZZ_CHECK(status == HY3D_OK, "variant %d: %s", variant, hy3d_status_name(status));
        FUZZ_CHECK(memcmp(y.memory, p->y.memory, y.bytes) == 0, "variant %d has other bits",
                   variant);
        fuzz_tensor_free(&y);
    }
    hy3d_conv3d_weights_destroy(prepared);
}

/* The reference in the same layout; zeros may differ in their sign. */
static void check_values(const problem *p)
{
    fuzz_tensor wanted = fuzz_tensor_like(&p->y);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    const hy3d_status status = reference_conv3d(
        &p->desc, &p->x.tensor, &p->weight.tensor, bias_of(p), &p->fusion, &wanted.tensor);
    FUZZ_CHECK(status == HY3D_OK, "the reference: %s", hy3d_status_name(status));
    if (memcmp(wanted.memory, p->y.memory, wanted.bytes) != 0) {
        do {
            const double got = fuzz_get(&p->y.tensor, at), should = fuzz_get(&wanted.tensor, at);
            FUZZ_CHECK(got <= should && got >= should, "%g, the reference %g, at %lld %lld %lld "
                       "%lld %lld", got, should, (long long)at[0], (long long)at[1],
                       (long long)at[2], (long long)at[3], (long long)at[4]);
        } while (fuzz_next(&p->y.tensor, at));
    }
    fuzz_tensor_free(&wanted);
}

/* A spoilt tensor is refused before anything is written. */
static void check_refusal(fuzz_input *in, hy3d_context *context, const problem *p)
{
    problem spoilt = *p;
    size_t needed = 0;
    bool is_exact;
    fuzz_tensor y = fuzz_tensor_like(&p->y);
    hy3d_tensor target = y.tensor;
    memset(y.memory, FILL, y.bytes);
    const uint8_t which = fuzz_byte(in);
    hy3d_tensor *const victims[] = {&spoilt.x.tensor, &spoilt.weight.tensor, &target,
                                    &spoilt.residual.tensor};
    hy3d_tensor *const victim = victims[which % (p->has_residual ? 4 : 3)];
    if (victim == &spoilt.x.tensor && p->fusion.frames != NULL) {
        free(y.memory); /* x is not looked at */
        return;
    }
    spoilt.fusion.residual = p->has_residual ? &spoilt.residual.tensor : NULL;
    fuzz_spoil(in, victim, victim == &target);
    const hy3d_status status =
        run_once(context, &spoilt, &spoilt.desc, NULL, &target, NULL, &needed, &is_exact);
    FUZZ_CHECK(status == HY3D_ERR_INVALID_ARGUMENT || status == HY3D_ERR_SHAPE_MISMATCH ||
                   status == HY3D_ERR_OVERFLOW || status == HY3D_ERR_WORKSPACE_TOO_SMALL,
               "a spoilt tensor (%u) gives %s", which, hy3d_status_name(status));
    for (size_t i = 0; i < y.bytes; i++) {
        FUZZ_CHECK(y.memory[i] == FILL, "byte %zu is written in spite of %s", i,
                   hy3d_status_name(status));
    }
    fuzz_tensor_free(&y);
}

static void run_problem(fuzz_input *in, hy3d_context *context, problem *p)
{
    fuzz_tensor x = fuzz_tensor_like(&p->x);
    hy3d_cancel *cancel = NULL;
    const bool cancels = fuzz_chance(in, 8);
    bool is_exact = false;
    size_t needed = 0;
    if (cancels) {
        FUZZ_CHECK(hy3d_cancel_create(context, &cancel) == HY3D_OK, "no cancel flag");
        hy3d_cancel_request(cancel);
    }
    p->may_fail = fuzz_arm(in, context);
    const hy3d_status status =
        run_once(context, p, &p->desc, NULL, &p->y.tensor, cancel, &needed, &is_exact);
    counting_fail(fuzz_memory(context), 0, false);
    FUZZ_CHECK(status == HY3D_OK || status == HY3D_ERR_WORKSPACE_TOO_SMALL ||
                   status == HY3D_ERR_BLAS_UNAVAILABLE ||
                   (status == HY3D_ERR_CANCELLED && cancels) ||
                   ((status == HY3D_ERR_OUT_OF_MEMORY || status == HY3D_ERR_THREAD) && p->may_fail),
               "%s", hy3d_status_name(status));
    FUZZ_CHECK(memcmp(x.memory, p->x.memory, x.bytes) == 0, "x was written (%s)",
               hy3d_status_name(status));
    FUZZ_CHECK(fuzz_gaps_are(&p->y, FILL), "gaps of y were written (%s)",
               hy3d_status_name(status));
    if (status == HY3D_OK && !fuzz_is_empty(&p->y.tensor)) {
        if (is_exact) {
            check_values(p);
        }
        check_variants(context, p, needed);
        if (!fuzz_is_empty(&p->x.tensor) && fuzz_chance(in, 48)) {
            check_refusal(in, context, p);
        }
    }
    hy3d_cancel_destroy(context, cancel);
    fuzz_tensor_free(&x);
}

void fuzz_conv_run(fuzz_input *in, hy3d_context *context)
{
    problem p;
    if (make_problem(in, &p)) {
        run_problem(in, context, &p);
        free_problem(&p);
    }
}
