/* Fusions on reals within the proven bound (docs/numerics.md), and what is refused. */
#include "conv3d_fusion_support.h"

#include <math.h>
#include <string.h>

/* The largest error as a fraction of its bound: inputs are off by their own errors, and every term
 * passes at most K + 3 roundings (its product, K + 1 additions with bias and residual; one more is
 * the oracle's share). */
static double worst_fraction(const conv_fused *f)
{
    const conv_problem *const p = &f->problem;
    const hy3d_conv3d_desc *const d = &p->desc;
    const double u = ldexp(1.0, d->dtype == HY3D_F64 ? -53 : -24);
    const double n = (double)(d->in_channels / d->groups * d->kernel[0] * d->kernel[1] *
                              d->kernel[2]) + 2.0;
    const double oracle = n * ldexp(1.0, -53) / (1.0 - n * ldexp(1.0, -53));
    const double gamma = n * u / (1.0 - n * u) + oracle;
    conv_view exact = conv_fused_result(f, INPUT_VALUE, false, false);
    conv_view magnitude = conv_fused_result(f, INPUT_MAGNITUDE, true, false);
    conv_view input = conv_fused_result(f, INPUT_ERROR, true, true);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    double worst = 0.0;

    do {
        const double value = conv_get(&exact.tensor, at);
        const double sum = gamma * conv_get(&magnitude.tensor, at) + conv_get(&input.tensor, at);
        const double bound = sum + conv_rounding_bound(d->dtype, value, sum);
        const double error = fabs(conv_get(&p->y.tensor, at) - value);
        /* NaN is worse than everything. */
        worst = error <= worst * bound ? worst : bound > 0.0 ? error / bound : INFINITY;
    } while (conv_step(&exact.tensor, at));
    conv_view_free(&exact);
    conv_view_free(&magnitude);
    conv_view_free(&input);
    return worst;
}

START_TEST(test_silu_and_reals_stay_within_the_proven_bound)
{
    static const char *const levels[] = {"ref", "avx2", "avx512"};
    static conv_fused fused;
    if (_i >= test_level_count()) {
        return;
    }
    hy3d_context *const context = test_context(levels[_i], 2);
    test_random random = test_rng(640 + (uint64_t)_i);

    const int configurations = test_draws(15, 80);
    for (int i = 0; i < configurations; i++) {
        hy3d_conv3d_desc desc = conv_random_desc(&random);
        char text[640];
        desc.batch = 1;
        desc.upsample[2] = desc.in_size[2] % 2 == 0 ? 2 : 0;
        conv_fused_make(&fused, &desc, i % 4 == 0 ? HY3D_IDENTITY : HY3D_SILU, &random, 0);
        conv_fused_text(&fused, text, sizeof text);
        if (conv_needs_missing_blas(context, &fused.problem)) {
            (void)test_has_blas(context);
        } else {
            ck_assert_msg(conv_fused_run(context, &fused) == HY3D_OK, "%s", text);
            const double worst = worst_fraction(&fused);
            ck_assert_msg(worst <= 1.0, "%d: %g of the bound: %s", i, worst, text);
        }
        conv_fused_free(&fused);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Padding is put on after SiLU and shift: zeros stay zeros, edges are activated ones. */
START_TEST(test_padding_comes_after_the_activation)
{
    float x_data[1] = {2.0F}, weight_data[3] = {1.0F, 10.0F, 100.0F}, y_data[1];
    const float scale = 1.0F, shift = 1.0F;
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 1, 1, 1, 1, 1, 1);
    const hy3d_tensor x = {x_data, HY3D_F32, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    const hy3d_tensor weight = {weight_data, HY3D_F32, {1, 1, 1, 1, 3}, {3, 3, 3, 3, 1}};
    const hy3d_tensor y = {y_data, HY3D_F32, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    const hy3d_conv3d_fusion fusion = {.scale = &scale, .shift = &shift};

    desc.kernel[2] = 3;
    desc.pad_before[2] = desc.pad_after[2] = 1;
    ck_assert_ok(reference_conv3d(&desc, &x, &weight, NULL, &fusion, &y));
    ck_assert_float_eq(y_data[0], 30.0F);
    desc.pad_mode[2] = HY3D_PAD_REPLICATE;
    ck_assert_ok(reference_conv3d(&desc, &x, &weight, NULL, &fusion, &y));
    ck_assert_float_eq(y_data[0], 333.0F);
}
END_TEST

static hy3d_status refused(hy3d_context *context, const hy3d_conv3d_desc *desc,
                           const hy3d_tensor *x, const hy3d_conv3d_fusion *fusion,
                           const hy3d_tensor *y)
{
    static float weight_data[4];
    const hy3d_tensor weight = {weight_data, HY3D_F32, {2, 2, 1, 1, 1}, {2, 1, 1, 1, 1}};
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    const hy3d_status reference =
        reference_conv3d(desc, x, &weight, NULL, fusion, y);

    hy3d_status status = hy3d_conv3d_plan_create(context, desc, &weight, NULL, NULL, &plan);
    if (status == HY3D_OK) {
        ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace));
        status = hy3d_conv3d_run_fused(plan, x, fusion, y, workspace, NULL);
    }
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    ck_assert_status(status, reference);
    return status;
}

START_TEST(test_each_wrong_fusion_is_refused)
{
    hy3d_context *const context = test_context(NULL, 1);
    static float data[1024];
    const float ones[2] = {1.0F, 1.0F};
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 2, 2, 3, 8, 8, 1);
    const hy3d_tensor x = {data, HY3D_F32, {1, 2, 3, 8, 8}, {384, 192, 64, 8, 1}};
    const hy3d_tensor small = {data, HY3D_F32, {1, 2, 3, 8, 4}, {192, 96, 32, 4, 1}};
    const hy3d_tensor y = {data + 384, HY3D_F32, {1, 2, 3, 8, 8}, {384, 192, 64, 8, 1}};
    const hy3d_conv3d_frame frame = {.data = data, .stride = {64, 8, 1}};
    hy3d_conv3d_frame frames[3] = {frame, {.data = NULL}, frame};
    hy3d_conv3d_fusion f = {0};
    hy3d_tensor residual = x;

    ck_assert_ok(refused(context, &desc, &x, NULL, &y));
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    f.scale = ones;
    ck_assert_status(refused(context, &desc, &x, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    f = (hy3d_conv3d_fusion){.shift = ones};
    ck_assert_status(refused(context, &desc, &x, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    f = (hy3d_conv3d_fusion){0};
    memset(&f.activation, 0x7f, sizeof f.activation);
    ck_assert_status(refused(context, &desc, &x, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    f = (hy3d_conv3d_fusion){.residual = &residual};
    ck_assert_ok(refused(context, &desc, &x, &f, &y));
    residual.dtype = HY3D_BF16;
    ck_assert_status(refused(context, &desc, &x, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    residual = small;
    ck_assert_status(refused(context, &desc, &x, &f, &y), HY3D_ERR_SHAPE_MISMATCH);
    residual = x;
    residual.data = NULL;
    ck_assert_status(refused(context, &desc, &x, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    f = (hy3d_conv3d_fusion){.frames = frames};
    ck_assert_ok(refused(context, &desc, NULL, &f, &y));
    frames[2].stride[1] = INT64_MAX / 2;
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_OVERFLOW);
    frames[2] = frame;
    frames[0].data = (const unsigned char *)data + 2;
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    frames[0] = frame;
    /* frames[1] is another than both of its neighbours. */
    desc.pairs = 1;
    ck_assert_status(refused(context, &desc, &x, NULL, &y), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    desc.pairs = 2;
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    frames[1] = frame;
    ck_assert_ok(refused(context, &desc, NULL, &f, &y));
    frames[1].stride[0] = 32; /* the same data read otherwise */
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    frames[1] = (hy3d_conv3d_frame){.data = NULL};
    frames[2] = (hy3d_conv3d_frame){.data = NULL, .stride = {1, 2, 3}}; /* zeros are zeros */
    ck_assert_ok(refused(context, &desc, NULL, &f, &y));
    frames[2] = frame;
    desc.pairs = 0;
    desc.upsample[0] = 3;
    ck_assert_status(refused(context, &desc, NULL, &f, &y), HY3D_ERR_INVALID_ARGUMENT);
    desc.upsample[0] = 1;
    desc.upsample[2] = 2;
    ck_assert_ok(refused(context, &desc, &small, NULL, &y));
    ck_assert_status(refused(context, &desc, &x, NULL, &y), HY3D_ERR_SHAPE_MISMATCH);
    desc.upsample[2] = 3;
    ck_assert_status(refused(context, &desc, &small, NULL, &y), HY3D_ERR_SHAPE_MISMATCH);
    desc.upsample[2] = -1;
    ck_assert_status(refused(context, &desc, &small, NULL, &y), HY3D_ERR_INVALID_ARGUMENT);
    desc.upsample[2] = 1;
    memset(&desc.accuracy, 0x7f, sizeof desc.accuracy);
    ck_assert_status(refused(context, &desc, &x, NULL, &y), HY3D_ERR_INVALID_ARGUMENT);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_conv3d_fused_bound_case(void)
{
    TCase *const tests = tcase_create("fused bound");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_silu_and_reals_stay_within_the_proven_bound, 0, 3);
    tcase_add_test(tests, test_padding_comes_after_the_activation);
    tcase_add_test(tests, test_each_wrong_fusion_is_refused);
    return tests;
}
