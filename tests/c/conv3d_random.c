/* Random convolutions: exact ones against the reference, real-valued ones within the proven bound
 * (docs/numerics.md). */
#include "conv3d_support.h"

#include <math.h>
#include <stdlib.h>

static int64_t pick(test_random *random, const int64_t *values, size_t count)
{
    return values[test_between(random, 0, (int64_t)count - 1)];
}

hy3d_conv3d_desc conv_random_desc(test_random *random)
{
    static const int64_t channels[] = {1, 2, 3, 5, 8, 17};
    static const int64_t kernels[] = {1, 1, 2, 3, 3, 5};
    static const int64_t strides[] = {1, 1, 1, 2, 3, 40};
    static const int64_t dilations[] = {1, 1, 1, 2, 5};
    static const int64_t room[] = {0, 1, 3, 7, 18};
    hy3d_conv3d_desc desc = {
        .dtype = (hy3d_dtype)test_between(random, 0, 3),
        .batch = test_between(random, 0, 7) == 0 ? 0 : test_between(random, 1, 2),
        .groups = test_between(random, 0, 2) == 0 ? test_between(random, 2, 4) : 1,
        .num_threads = (uint32_t)test_between(random, 0, 3),
    };
    desc.in_channels = desc.groups * pick(random, channels, COUNT_OF(channels));
    desc.out_channels = desc.groups * pick(random, channels, COUNT_OF(channels));
    for (int i = 0; i < 3; i++) {
        desc.kernel[i] = pick(random, kernels, COUNT_OF(kernels));
        desc.stride[i] = pick(random, strides, COUNT_OF(strides));
        desc.dilation[i] = pick(random, dilations, COUNT_OF(dilations));
        desc.pad_before[i] = test_between(random, -2, 3);
        desc.pad_after[i] = test_between(random, -2, 3);
        desc.pad_mode[i] = (hy3d_pad_mode)test_between(random, 0, 1);
        desc.in_size[i] = conv_least_size(&desc, i) + pick(random, room, COUNT_OF(room));
    }
    if (test_between(random, 0, 5) == 0) { /* one tap in height and width, a way of its own */
        for (int i = 1; i < 3; i++) {
            desc.kernel[i] = desc.stride[i] = 1;
            desc.pad_before[i] = desc.pad_after[i] = 0;
            desc.in_size[i] = test_between(random, 1, 40);
        }
        desc.in_channels = desc.groups * test_between(random, 1, 70);
    }
    if (test_between(random, 0, 29) == 0) { /* rows that are cut into columns */
        desc.in_size[2] += test_between(random, 600, 1500);
        desc.batch = desc.in_size[0] = desc.kernel[0] = 1;
        desc.pad_before[0] = desc.pad_before[0] < 0 ? 0 : desc.pad_before[0];
        desc.pad_after[0] = desc.pad_after[0] < 0 ? 0 : desc.pad_after[0];
        desc.in_channels = desc.groups;
    }
    return desc;
}

static conv_problem random_problem(test_random *random, int limit)
{
    const hy3d_conv3d_desc desc = conv_random_desc(random);
    const conv_layout x = (conv_layout)test_between(random, 0, LAYOUT_COUNT - 1);
    const conv_layout weight = (conv_layout)test_between(random, 0, LAYOUT_EXPANDED);
    const conv_layout y = (conv_layout)test_between(random, 0, LAYOUT_EXPANDED - 1);
    return conv_problem_make(&desc, test_between(random, 0, 1) == 1, x, weight, y, random, limit);
}

START_TEST(test_random_integer_configurations_equal_the_reference)
{
    static const char *const levels[] = {"ref", "avx2", "avx512"};
    if (_i >= test_level_count()) {
        return;
    }
    hy3d_context *const context = test_context(levels[_i], 3);
    test_random random = test_rng(100 + (uint64_t)_i);
    const int configurations = test_draws(75, 1000);

    for (int i = 0; i < configurations; i++) {
        conv_problem problem = random_problem(&random, 3);
        char text[512];
        conv_problem_text(&problem, text, sizeof text);
        const hy3d_status status = conv_problem_run(context, &problem);
        if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
            (void)test_has_blas(context);
        } else {
            ck_assert_msg(status == HY3D_OK, "%d: %s: %s", i, hy3d_status_name(status), text);
            const int64_t differing = conv_problem_differing(&problem);
            ck_assert_msg(differing == 0, "%d: %lld values differ: %s", i, (long long)differing,
                          text);
        }
        conv_problem_free(&problem);
    }
    hy3d_context_destroy(context);
}
END_TEST

double conv_rounding_bound(hy3d_dtype dtype, double exact, double sum)
{
    switch (dtype) {
    case HY3D_F16:
        return ldexp(fabs(exact) + sum, -11) + ldexp(1.0, -25);
    case HY3D_BF16:
        return ldexp(fabs(exact) + sum, -8) + ldexp(1.0, -134);
    case HY3D_F32:
    case HY3D_F64:
    default:
        return 0.0;
    }
}

static double error_bound(hy3d_dtype dtype, int64_t terms, double exact, double magnitudes)
{
    const double u = dtype == HY3D_F64 ? ldexp(1.0, -53) : ldexp(1.0, -24);
    const double n = (double)terms + 1.0;
    const double gamma = n * u / (1.0 - n * u);
    /* The oracle sums in double: its own error, by the same bound. */
    const double oracle = n * ldexp(1.0, -53) / (1.0 - n * ldexp(1.0, -53));
    const double sum = (gamma + oracle) * magnitudes;

    return sum + conv_rounding_bound(dtype, exact, sum);
}

/* The largest error as a fraction of its bound. */
static double worst_fraction(const conv_problem *problem)
{
    hy3d_conv3d_desc desc = problem->desc;
    const int64_t terms = desc.in_channels / desc.groups * desc.kernel[0] * desc.kernel[1] *
                          desc.kernel[2];
    conv_view wide[2][3], result[2];
    double worst = 0.0;
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    desc.dtype = HY3D_F64;
    for (int i = 0; i < 2; i++) {
        wide[i][0] = conv_view_widen(&problem->x, i == 1);
        wide[i][1] = conv_view_widen(&problem->weight, i == 1);
        wide[i][2] = conv_view_widen(&problem->bias, i == 1);
        result[i] = conv_view_make(HY3D_F64, problem->y.tensor.size, LAYOUT_PLAIN, 0xff);
        ck_assert_ok(reference_conv3d(&desc, &wide[i][0].tensor, &wide[i][1].tensor,
                                      problem->has_bias ? &wide[i][2].tensor : NULL, NULL,
                                      &result[i].tensor));
    }
    do {
        const double exact = conv_get(&result[0].tensor, at);
        const double magnitudes = conv_get(&result[1].tensor, at);
        const double error = fabs(conv_get(&problem->y.tensor, at) - exact);
        const double bound = error_bound(problem->desc.dtype, terms, exact, magnitudes);
        /* NaN is worse than everything. */
        worst = error <= worst * bound ? worst : bound > 0.0 ? error / bound : INFINITY;
    } while (conv_step(&problem->y.tensor, at));
    for (int i = 0; i < 2; i++) {
        conv_view_free(&wide[i][0]);
        conv_view_free(&wide[i][1]);
        conv_view_free(&wide[i][2]);
        conv_view_free(&result[i]);
    }
    return worst;
}

START_TEST(test_real_values_stay_within_the_proven_bound)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(200);
    const int configurations = test_draws(20, 200);

    for (int i = 0; i < configurations; i++) {
        conv_problem problem = random_problem(&random, 0);
        char text[512];
        conv_problem_text(&problem, text, sizeof text);
        if (problem.desc.batch > 0 && !conv_needs_missing_blas(context, &problem)) {
            ck_assert_msg(conv_problem_run(context, &problem) == HY3D_OK, "%s", text);
            const double worst = worst_fraction(&problem);
            ck_assert_msg(worst <= 1.0, "%d: %g of the bound: %s", i, worst, text);
        }
        conv_problem_free(&problem);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_conv3d_random_case(void)
{
    TCase *const tests = tcase_create("random");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_random_integer_configurations_equal_the_reference, 0, 3);
    tcase_add_test(tests, test_real_values_stay_within_the_proven_bound);
    return tests;
}
