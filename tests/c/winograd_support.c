#include "winograd_support.h"

#include <math.h>
#include <string.h>

/* Coefficients of the product of (x - root), lowest first. */
static void product_of_roots(const double *roots, int count, double *out)
{
    out[0] = 1.0;
    for (int i = 0; i < count; i++) {
        out[i + 1] = 0.0;
        for (int j = i + 1; j > 0; j--) {
            out[j] = out[j - 1] - roots[i] * out[j];
        }
        out[0] *= -roots[i];
    }
}

/* Outputs 2j + 1 and 2j + 2 of an input up-sampled twice, j = 0, 1, 2, and three taps: of four of
 * the input's positions. Written down from the sums themselves. */
static const winograd_matrices upsampled = {
    .m = 6, .n = 4, .products = 7, .step = 3,
    .b = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, -1, 0, 1}},
    .place = {0, 0, 1, 2, 2, 3, 3},
    .g = {{1, 0, 0}, {1, 1, 0}, {.5, .5, .5}, {.5, -.5, -.5}, {.5, .5, -.5}, {0, 1, 1}, {0, 0, 1}},
    .a = {{0, 1, 1, 0, 1, 0, 0}, {1, 0, 1, 1, 0, 0, 0}, {0, 0, 1, 0, -1, 0, 0},
          {0, 0, 1, -1, 0, 0, 0}, {0, 0, 1, 0, 1, 0, 1}, {0, 0, 1, 1, 0, 1, 0}},
};

/* The same of three positions, j = 0, 1: frames. */
static const winograd_matrices paired = {
    .m = 4, .n = 3, .products = 5, .step = 2,
    .b = {{1, -1, 0}, {0, 1, 0}, {0, -1, 1}},
    .place = {0, 0, 1, 2, 2},
    .g = {{1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {0, 1, 1}, {0, 0, 1}},
    .a = {{0, 1, 1, 0, 0}, {1, 0, 1, 0, 0}, {0, 0, 1, 0, 1}, {0, 0, 1, 1, 0}},
};

static const winograd_matrices alone = {
    .m = 1, .n = 1, .products = 1, .step = 1, .a = {{1}}, .g = {{1}}, .b = {{1}}};

winograd_matrices winograd_matrices_of(int m)
{
    static const double points[4][6] = {{0.0, 1.0, -1.0},
                                        {0.5, -0.5, 1.25, -1.25},
                                        {0.0, 0.75, -0.75, 1.25, -1.25},
                                        {0.375, -0.375, 0.875, -0.875, 1.5, -1.5}};
    if (m == 1 || m == 6 || m == -4) {
        return m == 1 ? alone : m == 6 ? upsampled : paired;
    }
    const double *const x = points[m - 2];
    winograd_matrices w = {.m = m, .n = m + 2, .products = m + 2, .step = m};
    const int finite = m + 1;

    for (int p = 0; p < finite; p++) {
        double others[6], factor = 1.0;
        int count = 0;
        for (int i = 0; i < finite; i++) {
            if (i != p) {
                others[count++] = x[i];
                factor *= x[p] - x[i];
            }
        }
        product_of_roots(others, count, w.b[p]);
        for (int i = 0; i < m; i++) {
            w.a[i][p] = pow(x[p], i);
        }
        for (int i = 0; i < 3; i++) {
            w.g[p][i] = pow(x[p], i) / factor;
        }
    }
    product_of_roots(x, finite, w.b[finite]);
    w.a[m - 1][finite] = 1.0;
    w.g[finite][2] = 1.0;
    for (int p = 0; p < w.n; p++) {
        w.place[p] = p;
    }
    return w;
}

/* max over i, a of sum over p of |A_ip| (sum over q of |B_pq|) |G_pa|. */
static double gain_of(int m)
{
    const winograd_matrices w = winograd_matrices_of(m);
    double most = 0.0;

    for (int i = 0; i < w.m; i++) {
        for (int a = 0; a < 3; a++) {
            double gain = 0.0;
            for (int p = 0; p < w.products; p++) {
                double row = 0.0;
                for (int q = 0; q < w.n; q++) {
                    row += fabs(w.b[w.place[p]][q]);
                }
                gain += fabs(w.a[i][p]) * row * fabs(w.g[p][a]);
            }
            most = fmax(most, gain);
        }
    }
    return most;
}

/* Roundings that a product passes at most, and the gain; where products are rounded before they are
 * added (ref), which is more than where they are fused. */
double winograd_bound(hy3d_conv3d_format format, const hy3d_conv3d_desc *desc)
{
    hy3d__winograd_kind kind;
    ck_assert(hy3d__winograd_kind_of(format, &kind));
    const double u = ldexp(1.0, -24);
    const hy3d__winograd_filters f = hy3d__winograd_filters_of(
        kind, desc->out_channels, desc->in_channels, desc->kernel[0]);
    const int64_t sum = f.segments * f.chunk + (f.k + f.chunk - 1) / f.chunk - 1;
    const int64_t data = kind.is_upsampled ? 2 : 2 * kind.m;
    const int64_t result = kind.is_upsampled ? 2 * 2 : 2 * kind.m;
    const int64_t weight = kind.is_upsampled ? 2 * 2 : 2 * 4;
    const int64_t time = kind.time->frames == 1   ? 0
                         : kind.time->frames == 2 ? 1 + 2 + 2
                         : kind.time->frames == 3 ? 4 + 4 + 5
                                                  : 1 + 2 + 1;
    const double n = (double)(data + weight + sum + result + time + 2);
    const double gain = gain_of(kind.m), in_time = gain_of(kind.time->frames == 4 ? -4 : kind.time->frames);

    return n * u / (1.0 - n * u) * gain * gain * in_time * (1.0 + ldexp(1.0, -40));
}

static hy3d__winograd_kind kind_of(hy3d_conv3d_format format)
{
    hy3d__winograd_kind kind;
    ck_assert(hy3d__winograd_kind_of(format, &kind));
    return kind;
}

int winograd_frames(hy3d_conv3d_format format)
{
    return kind_of(format).time->frames;
}

bool winograd_is_upsampled(hy3d_conv3d_format format)
{
    return kind_of(format).is_upsampled;
}

int64_t winograd_taps(hy3d_conv3d_format format, test_random *random)
{
    return winograd_frames(format) > 1 ? 3 : test_between(random, 1, 3);
}

void winograd_suit(hy3d_conv3d_format format, test_random *random, hy3d_conv3d_desc *desc)
{
    for (int i = 1; winograd_is_upsampled(format) && i < 3; i++) {
        desc->upsample[i] = 2;
        desc->in_size[i] += desc->in_size[i] % 2;
    }
    if (winograd_frames(format) == 4) {
        desc->pad_before[0] = desc->pad_after[0] = 0;
        desc->in_size[0] += desc->in_size[0] < 4 ? 4 : 0;
        desc->upsample[0] = test_between(random, 0, 2) == 0 ? 2 : 0;
        desc->in_size[0] += desc->upsample[0] == 2 ? desc->in_size[0] % 2 : 0;
        desc->pairs = desc->upsample[0] == 2 ? 0 : (uint32_t)test_between(random, 1, 2);
        desc->batch = 1;
    }
}

hy3d_status winograd_plan(hy3d_context *context, hy3d_conv3d_format format,
                          const conv_problem *problem, const hy3d_conv3d_weights *prepared,
                          hy3d_conv3d_plan **plan_out)
{
    const hy3d_conv3d_desc *const desc = &problem->desc;
    const uint32_t most = hy3d_context_max_threads(context);
    uint32_t threads = desc->num_threads == 0 || desc->num_threads > most ? most
                                                                          : desc->num_threads;
    hy3d__winograd_kind kind;
    void *memory = NULL;

    ck_assert(hy3d__winograd_kind_of(format, &kind));
    hy3d_status status = hy3d_alloc(context, sizeof(hy3d_conv3d_plan), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    hy3d_conv3d_plan *const plan = memory;
    ck_assert_ok(hy3d__conv_begin(desc, hy3d_context_cpu_level(context), plan));
    plan->context = context;
    plan->prepared = prepared;
    plan->filter = problem->weight.tensor;
    plan->strategy = &hy3d__conv_winograd_strategy;
    hy3d__winograd_plan(plan, kind, threads);
    const size_t limit = desc->workspace_limit_bytes;
    plan->slot_bytes = plan->input_bytes;
    if (limit != 0 && limit / plan->slot_bytes < threads) {
        threads = (uint32_t)(limit / plan->slot_bytes);
    }
    plan->slots = (int64_t)threads > plan->grains ? (uint32_t)plan->grains : threads;
    plan->workspace_bytes = plan->slot_bytes * plan->slots;
    status = plan->slots == 0
                 ? HY3D_ERR_WORKSPACE_TOO_SMALL
                 : hy3d__conv_take_weight(plan, &problem->weight.tensor,
                                          problem->has_bias ? &problem->bias.tensor : NULL);
    if (status != HY3D_OK) {
        hy3d_conv3d_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return HY3D_OK;
}

hy3d_status winograd_run(hy3d_context *context, hy3d_conv3d_format format, conv_fused *fused,
                         bool is_prepared)
{
    const conv_problem *const p = &fused->problem;
    hy3d_conv3d_weights *weights = NULL;
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    hy3d_status status = HY3D_OK;

    if (is_prepared) {
        status = hy3d_conv3d_weights_create(context, &p->weight.tensor, format, 0, NULL, &weights);
    }
    if (status == HY3D_OK) {
        status = winograd_plan(context, format, p, weights, &plan);
    }
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace);
    }
    if (status == HY3D_OK) {
        /* What a run may never read before it writes it. */
        memset(workspace, 0xff, hy3d_conv3d_plan_workspace_bytes(plan));
        status = hy3d_conv3d_run_fused(plan, fused->fusion.frames != NULL ? NULL : &p->x.tensor,
                                       &fused->fusion, &p->y.tensor, workspace, NULL);
    }
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    hy3d_conv3d_weights_destroy(weights);
    return status;
}

static double largest(const hy3d_tensor *tensor)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    double most = 0.0;
    do {
        most = fmax(most, fabs(conv_get(tensor, at)));
    } while (conv_step(tensor, at));
    return most;
}

/* The largest sum of an output channel's |w|. */
static double largest_sum(const hy3d_tensor *weight)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    double most = 0.0, sum = 0.0;
    int64_t channel = 0;
    do {
        sum = at[0] == channel ? sum : 0.0;
        channel = at[0];
        sum += fabs(conv_get(weight, at));
        most = fmax(most, sum);
    } while (conv_step(weight, at));
    return most;
}

double winograd_worst_fraction(const conv_fused *fused, hy3d_conv3d_format format)
{
    const conv_problem *const p = &fused->problem;
    const double u = ldexp(1.0, -24);
    conv_view exact = conv_fused_result(fused, INPUT_VALUE, false, false);
    conv_view input = conv_fused_input(fused, INPUT_MAGNITUDE);
    conv_view input_error = conv_fused_input(fused, INPUT_ERROR);
    const double weight = largest_sum(&p->weight.tensor);
    /* The oracle's own error is below 2^-40 of the magnitudes. */
    const double sum = weight * ((winograd_bound(format, &p->desc) + ldexp(1.0, -40)) *
                                     largest(&input.tensor) +
                                 largest(&input_error.tensor));
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    double worst = 0.0;

    do {
        const int64_t channel[HY3D_TENSOR_DIMS] = {at[1]};
        double added = p->has_bias ? fabs(conv_get(&p->bias.tensor, channel)) : 0.0;
        if (fused->fusion.residual != NULL) {
            added += fabs(conv_get(&fused->residual.tensor, at));
        }
        const double value = conv_get(&exact.tensor, at);
        /* Bias and residual pass two roundings at most. */
        const double before = sum + 2.0 * u * (1.0 + u) * added;
        const double bound = before + conv_rounding_bound(p->desc.dtype, value, before);
        const double error = fabs(conv_get(&p->y.tensor, at) - value);
        worst = error <= worst * bound ? worst : bound > 0.0 ? error / bound : INFINITY;
    } while (conv_step(&exact.tensor, at));
    conv_view_free(&exact);
    conv_view_free(&input_error);
    conv_view_free(&input);
    return worst;
}

void winograd_thin_out(const conv_fused *fused, test_random *random)
{
    const hy3d_tensor *const weight = &fused->problem.weight.tensor;
    const int64_t k = weight->size[1] * weight->size[2] * 9;
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    do {
        if (test_between(random, 0, k - 1) >= 3) {
            conv_set(weight, at, 0.0);
        }
    } while (conv_step(weight, at));
}

/* Few long axes at once: the oracle is slow. */
hy3d_conv3d_desc winograd_random_desc(test_random *random, int64_t taps)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F32, HY3D_F16, HY3D_BF16};
    const int64_t longest = test_between(random, 0, 5); /* an axis, or none */
    hy3d_conv3d_desc desc = conv_desc(dtypes[test_between(random, 0, 3)],
                                      test_between(random, 16, 33), test_between(random, 16, 33),
                                      1, 1, 1, 3);

    desc.kernel[0] = taps;
    desc.accuracy = HY3D_FAST;
    desc.num_threads = (uint32_t)test_between(random, 0, 3);
    for (int i = 0; i < 3; i++) {
        const bool is_causal = test_between(random, 0, 2) == 0;
        const bool is_wide = test_between(random, 0, 9) == 0; /* tiles of nothing but padding */
        desc.pad_before[i] = is_causal ? desc.kernel[i] - 1 : test_between(random, 0, 2);
        desc.pad_after[i] = is_causal ? 0 : test_between(random, 0, 2);
        if (is_wide) {
            *(test_between(random, 0, 1) == 0 ? &desc.pad_before[i] : &desc.pad_after[i]) =
                i == 0 ? 4 : 13;
        }
        if (test_between(random, 0, 3) == 0) { /* cropped, as the inner side of a strip is */
            *(test_between(random, 0, 1) == 0 ? &desc.pad_before[i] : &desc.pad_after[i]) =
                -test_between(random, 1, 3);
        }
        desc.pad_mode[i] = (hy3d_pad_mode)test_between(random, 0, 1);
        desc.upsample[i] = test_between(random, 0, 4) == 0 ? 2 : 0;
        const int64_t room = i == longest ? 38 : i == 0 ? 3 : 9;
        desc.in_size[i] = conv_least_size(&desc, i) + test_between(random, 0, room);
        desc.in_size[i] += desc.upsample[i] == 2 ? desc.in_size[i] % 2 : 0;
    }
    switch (test_between(random, 0, 5)) {
    case 0:
        desc.in_channels = test_between(random, 41, 80);
        break;
    case 1:
        desc.out_channels = test_between(random, 41, 80);
        break;
    case 2:
        desc.batch = 2;
        break;
    default:
        break;
    }
    return desc;
}
