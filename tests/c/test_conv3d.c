/* The convolution against its double reference on small integers, where both are exact. */
#include "conv3d_support.h"

#include <math.h>
#include <string.h>

/* Odd cases: dtype, batch, c in, c out, groups, size, kernel, stride, dilation, before, after,
 * modes. */
#define REST {0}, HY3D_EXACT, 0, 0, 0 /* up-sampling, accuracy, threads, limit, pairs */
static const hy3d_conv3d_desc cases[] = {
    /* 0: VAE layers in small: 3x3x3 without padding, causal replicate, 1x1x1, 3x1x1, conv2d */
    {HY3D_F32, 1, 16, 24, 1, {4, 9, 11}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 2, 8, 12, 1, {5, 8, 8}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {2, 1, 1}, {0, 1, 1},
     {HY3D_PAD_REPLICATE, HY3D_PAD_ZEROS, HY3D_PAD_ZEROS}, REST},
    {HY3D_F32, 1, 7, 9, 1, {2, 10, 13}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 20, 33, 1, {4, 6, 6}, {3, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 3, 6, 8, 1, {1, 17, 19}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1},
     {0}, REST},
    /* 5: strides, dilations, both, huge ones */
    {HY3D_F32, 1, 5, 6, 1, {7, 21, 23}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 0, 0}, {1, 1, 1},
     {0}, REST},
    {HY3D_F32, 1, 3, 5, 1, {9, 30, 31}, {3, 3, 3}, {1, 2, 3}, {2, 3, 2}, {0, 2, 1}, {3, 0, 2},
     {HY3D_PAD_REPLICATE, HY3D_PAD_REPLICATE, HY3D_PAD_REPLICATE}, REST},
    {HY3D_F32, 1, 2, 3, 1, {1, 40, 200}, {1, 2, 3}, {1000, 7, 50}, {1, 5, 40}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 2, 3, 1, {5, 60, 6}, {2, 4, 1}, {1, 1, 1}, {1, 17, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 1, 1, 1, {1, 5, 2000}, {1, 1, 7}, {1, 1, 1}, {1, 1, 30}, {0, 0, 90},
     {0, 0, 90}, {0}, REST},
    /* 10: groups, depthwise, one channel, tails of the kernel's rows (1 to 13) */
    {HY3D_F32, 1, 12, 18, 3, {3, 9, 9}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
     {0}, REST},
    {HY3D_F32, 1, 10, 10, 10, {4, 12, 12}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
     {1, 1, 1}, {0}, REST},
    {HY3D_F32, 1, 4, 12, 4, {3, 7, 40}, {2, 3, 5}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 130, 3, 1, {3, 10, 10}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 3, 13, 1, {3, 10, 10}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    /* 15: kernel as large as the padded input, all of it padding, one position, wide rows */
    {HY3D_F32, 1, 3, 4, 1, {2, 3, 4}, {4, 5, 6}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
     {HY3D_PAD_REPLICATE, HY3D_PAD_ZEROS, HY3D_PAD_REPLICATE}, REST},
    {HY3D_F32, 1, 2, 2, 1, {1, 1, 1}, {1, 1, 1}, {1, 5, 5}, {1, 1, 1}, {3, 9, 9}, {3, 9, 9},
     {0}, REST},
    {HY3D_F32, 1, 2, 2, 1, {1, 1, 1}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {3, 9, 9}, {3, 9, 9},
     {HY3D_PAD_REPLICATE, HY3D_PAD_REPLICATE, HY3D_PAD_REPLICATE}, REST},
    {HY3D_F32, 1, 2, 9, 1, {1, 3, 1500}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {0, 1, 1},
     {0}, REST},
    {HY3D_F32, 1, 1, 2, 1, {1, 3000, 2}, {1, 3, 1}, {1, 1, 1}, {1, 1, 1}, {0, 1, 0}, {0, 1, 0},
     {0}, REST},
    /* 20: more output channels than one block, more taps than the direct way takes */
    {HY3D_F32, 1, 2, 530, 1, {1, 8, 8}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 1, 2, 1, {18, 20, 22}, {17, 17, 17}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
    {HY3D_F32, 1, 500, 5, 1, {1, 3, 3}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}, REST},
};

static void check_problem(hy3d_context *context, const conv_problem *problem)
{
    char text[512];
    conv_problem_text(problem, text, sizeof text);
    if (conv_needs_missing_blas(context, problem)) {
        (void)test_has_blas(context);
        return;
    }
    ck_assert_msg(conv_problem_run(context, problem) == HY3D_OK, "%s", text);
    const int64_t differing = conv_problem_differing(problem);
    ck_assert_msg(differing == 0, "%lld values differ: %s", (long long)differing, text);
}

START_TEST(test_odd_cases_equal_the_reference_in_every_dtype)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F64, HY3D_F16, HY3D_BF16};
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(1);
    hy3d_conv3d_desc desc = cases[_i];

    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        desc.dtype = dtypes[i];
        conv_problem problem = conv_problem_make(&desc, i != 1, LAYOUT_PLAIN, LAYOUT_PLAIN,
                                                 LAYOUT_PLAIN, &random, 3);
        check_problem(context, &problem);
        conv_problem_free(&problem);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_every_layout_of_input_weight_and_output_gives_the_same_values)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(2);

    for (int x = 0; x < LAYOUT_COUNT; x++) {
        for (int other = 0; other < LAYOUT_EXPANDED; other++) {
            hy3d_conv3d_desc desc = cases[(x + other) % 2 == 0 ? 0 : 6];
            desc.dtype = (hy3d_dtype)((x + other) % 4);
            desc.batch = 2;
            conv_problem problem =
                conv_problem_make(&desc, true, (conv_layout)x, (conv_layout)other,
                                  (conv_layout)((x + other) % LAYOUT_EXPANDED), &random, 4);
            check_problem(context, &problem);
            conv_problem_free(&problem);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Elements that are not part of y keep their bytes. */
START_TEST(test_gaps_of_the_output_are_never_written)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(3);
    const hy3d_conv3d_desc desc = cases[1];
    conv_problem problem = conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_GAPS,
                                             &random, 3);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    ck_assert_ok(conv_problem_run(context, &problem));
    do {
        conv_set(&problem.y.tensor, at, NAN);
    } while (conv_step(&problem.y.tensor, at));
    size_t kept = 0;
    for (size_t i = 0; i < problem.y.bytes; i += sizeof(float)) {
        kept += isnan(*(const float *)(const void *)(problem.y.memory + i)) ? 1 : 0;
    }
    ck_assert_uint_eq(kept, problem.y.bytes / sizeof(float));
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_an_empty_batch_runs_and_touches_nothing)
{
    hy3d_context *const context = test_context(NULL, 2);
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 4, 5, 3, 8, 8, 3);
    hy3d_conv3d_plan *plan = NULL;
    float weight_data[5 * 4 * 27] = {0};
    const hy3d_tensor weight = {weight_data, HY3D_F32, {5, 4, 3, 3, 3}, {108, 27, 9, 3, 1}};
    const hy3d_tensor x = {NULL, HY3D_F32, {0, 4, 3, 8, 8}, {768, 192, 64, 8, 1}};
    const hy3d_tensor y = {NULL, HY3D_F32, {0, 5, 1, 6, 6}, {180, 36, 36, 6, 1}};

    desc.batch = 0;
    ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &weight, NULL, NULL, &plan));
    ck_assert_ok(hy3d_conv3d_run(plan, &x, &y, NULL, NULL));
    ck_assert_ok(reference_conv3d(&desc, &x, &weight, NULL, NULL, &y));
    hy3d_conv3d_plan_destroy(plan);
    hy3d_context_destroy(context);
}
END_TEST

/* One channel times one: what goes in comes out, in the reference and in the library, NaN as some
 * NaN, and a negative zero as the sum 0 + -0. */
START_TEST(test_every_half_pattern_passes_through_a_convolution_by_one)
{
    enum { PATTERNS = 1 << 16 };
    static uint16_t in[PATTERNS], out[PATTERNS], wanted[PATTERNS];
    const hy3d_dtype dtype = _i == 0 ? HY3D_F16 : HY3D_BF16;
    uint16_t one = _i == 0 ? 0x3c00 : 0x3f80;
    const uint16_t infinity = _i == 0 ? 0x7c00 : 0x7f80;
    const hy3d_conv3d_desc desc = conv_desc(dtype, 1, 1, 1, 256, 256, 1);
    const hy3d_tensor x = {in, dtype, {1, 1, 1, 256, 256}, {PATTERNS, PATTERNS, PATTERNS, 256, 1}};
    const hy3d_tensor weight = {&one, dtype, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    hy3d_tensor y = x;
    for (int i = 0; i < PATTERNS; i++) {
        in[i] = (uint16_t)i;
    }
    y.data = wanted;
    ck_assert_ok(reference_conv3d(&desc, &x, &weight, NULL, NULL, &y));
    hy3d_context *const context = test_context(NULL, 2);
    conv_problem problem = {.desc = desc, .x.tensor = x, .weight.tensor = weight};
    problem.y.tensor = y;
    problem.y.tensor.data = out;
    if (!conv_needs_missing_blas(context, &problem)) {
        ck_assert_ok(conv_problem_run(context, &problem));
    } else {
        memcpy(out, wanted, sizeof out);
        test_skip("blas");
    }
    for (int i = 0; i < PATTERNS; i++) {
        if ((i & 0x7fff) > infinity) {
            ck_assert_int_gt(out[i] & 0x7fff, infinity);
            ck_assert_int_gt(wanted[i] & 0x7fff, infinity);
        } else {
            ck_assert_int_eq(wanted[i], i == 0x8000 ? 0 : i);
            ck_assert_int_eq(out[i] == 0x8000 ? 0 : out[i], wanted[i]);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Twice what is more than half the largest is infinite, of either sign. */
START_TEST(test_sums_beyond_the_range_of_halves_are_infinite)
{
    uint16_t in[4] = {0x7bff, 0xfbff, 0x7800, 0xf7ff}, two = 0x4000, out[4];
    const uint16_t wanted[4] = {0x7c00, 0xfc00, 0x7c00, 0xfbff};
    const hy3d_conv3d_desc desc = conv_desc(HY3D_F16, 1, 1, 1, 1, 4, 1);
    const hy3d_tensor x = {in, HY3D_F16, {1, 1, 1, 1, 4}, {4, 4, 4, 4, 1}};
    const hy3d_tensor weight = {&two, HY3D_F16, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}};
    const hy3d_tensor y = {out, HY3D_F16, {1, 1, 1, 1, 4}, {4, 4, 4, 4, 1}};
    ck_assert_ok(reference_conv3d(&desc, &x, &weight, NULL, NULL, &y));
    ck_assert_mem_eq(out, wanted, sizeof wanted);
}
END_TEST

START_TEST(test_weights_too_large_for_memory_have_no_prepared_size)
{
    static const int64_t kernel[3] = {3, 3, 3};
    for (int format = 1; hy3d_conv3d_format_bytes((hy3d_conv3d_format)format, 64, 64, kernel) > 0;
         format++) {
        const hy3d_conv3d_format of = (hy3d_conv3d_format)format;
        ck_assert_uint_eq(hy3d_conv3d_format_bytes(of, INT32_MAX, INT32_MAX, kernel), 0);
        ck_assert_uint_eq(hy3d_conv3d_format_bytes(of, INT64_C(1) << 31, 64, kernel), 0);
        ck_assert_uint_eq(hy3d_conv3d_format_bytes(of, 64, 0, kernel), 0);
        ck_assert_uint_eq(hy3d_conv3d_format_bytes(of, 64, 64, NULL), 0);
    }
    ck_assert_uint_gt(hy3d_conv3d_format_bytes((hy3d_conv3d_format)1, 64, 64, kernel), 0);
}
END_TEST

/* 2^33 input elements that are few addresses, and outputs whose indices pass 2^31 elements. */
START_TEST(test_logical_sizes_beyond_31_bits_index_correctly)
{
    hy3d_context *const context = test_context(NULL, 2);
    const int64_t t = (int64_t)1 << 19, h = (int64_t)1 << 14;
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 1, 2, t, h, 4, 2);
    int64_t out[3];
    float x_data[4] = {1, 2, 3, 4};
    float weight_data[16], y_data[2 * 3 * 2 * 3];

    desc.stride[0] = t / 2 - 1;
    desc.stride[1] = h / 2 + 7;
    for (int i = 0; i < 16; i++) {
        weight_data[i] = (float)(i - 7);
    }
    ck_assert_ok(hy3d_conv3d_out_size(&desc, out));
    ck_assert_int_eq(out[0] * out[1] * out[2], 3 * 2 * 3);
    conv_problem p = {
        .desc = desc,
        .x.tensor = {x_data, HY3D_F32, {1, 1, t, h, 4}, {0, 0, 0, 0, 1}},
        .weight.tensor = {weight_data, HY3D_F32, {2, 1, 2, 2, 2}, {8, 8, 4, 2, 1}},
        .y.tensor = {y_data, HY3D_F32, {1, 2, 3, 2, 3}, {36, 18, 6, 3, 1}},
    };
    check_problem(context, &p);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_conv3d_suite(void);
Suite *hy3d_conv3d_suite(void)
{
    Suite *const suite = suite_create("conv3d");
    TCase *const tests = tcase_create("conv3d");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_odd_cases_equal_the_reference_in_every_dtype, 0,
                        (int)COUNT_OF(cases));
    tcase_add_test(tests, test_every_layout_of_input_weight_and_output_gives_the_same_values);
    tcase_add_test(tests, test_gaps_of_the_output_are_never_written);
    tcase_add_test(tests, test_an_empty_batch_runs_and_touches_nothing);
    tcase_add_loop_test(tests, test_every_half_pattern_passes_through_a_convolution_by_one, 0, 2);
    tcase_add_test(tests, test_weights_too_large_for_memory_have_no_prepared_size);
    tcase_add_test(tests, test_sums_beyond_the_range_of_halves_are_infinite);
    tcase_add_test(tests, test_logical_sizes_beyond_31_bits_index_correctly);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_conv3d_random_case());
    suite_add_tcase(suite, hy3d_conv3d_run_case());
    suite_add_tcase(suite, hy3d_conv3d_argument_case());
    suite_add_tcase(suite, hy3d_conv3d_kernel_case());
    suite_add_tcase(suite, hy3d_conv3d_fused_case());
    suite_add_tcase(suite, hy3d_conv3d_fused_bound_case());
    suite_add_tcase(suite, hy3d_conv3d_thin_case());
    suite_add_tcase(suite, hy3d_conv3d_panel_case());
    return suite;
}
