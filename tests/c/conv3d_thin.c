/* Kernels of one tap in height and width, whose results may be summed in y: the same bits in every
 * layout and with every number of threads, exact, and nothing beyond the tensors is touched. */
#include "conv3d_support.h"

#include <stdlib.h>
#include <string.h>

/* Planes of whole vectors; more channels than a block, output channels with every rest of eight. */
static hy3d_conv3d_desc thin_desc(int variant)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 130, 17 + variant, 4, 8, 10, 1);

    desc.kernel[0] = variant % 2 == 0 ? 1 : 3;
    desc.pad_before[0] = variant % 4 == 3 ? 2 : 0;
    desc.pad_mode[0] = HY3D_PAD_REPLICATE;
    desc.batch = variant % 3 == 0 ? 2 : 1;
    if (variant % 4 == 2) { /* more positions than a grain takes */
        desc.in_size[1] = 9;
        desc.in_size[2] = 64;
    }
    return desc;
}

START_TEST(test_tensors_used_where_they_are_give_the_bits_of_copies)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(700 + (uint64_t)_i);
    const hy3d_conv3d_desc desc = thin_desc(_i);
    conv_problem problem = conv_problem_make(&desc, true, LAYOUT_GAPS, LAYOUT_PLAIN, LAYOUT_GAPS,
                                             &random, 0);
    conv_problem straight = problem;
    conv_view x = conv_view_make(HY3D_F32, problem.x.tensor.size, LAYOUT_PLAIN, 0xff);
    conv_view y = conv_view_make(HY3D_F32, problem.y.tensor.size, LAYOUT_PLAIN, 0xff);
    /* Whole cache lines, so that they begin where one does and end where a page does. */
    test_guard x_guard = test_guard_make(x.bytes), y_guard = test_guard_make(y.bytes);

    ck_assert_uint_eq(x.bytes % 64, 0);
    x.tensor.data = test_guard_end(&x_guard, x.bytes);
    y.tensor.data = test_guard_end(&y_guard, y.bytes);
    conv_copy(&problem.x.tensor, &x.tensor);
    straight.x.tensor = x.tensor;
    ck_assert_ok(conv_problem_run(context, &problem));
    for (int out = 0; out < 2; out++) { /* x in place, then y as well */
        if (out == 1) {
            straight.y.tensor = y.tensor;
        }
        ck_assert_ok(conv_problem_run(context, &straight));
        ck_assert_int_eq(conv_unequal(&problem.y.tensor, &straight.y.tensor), 0);
    }
    straight.x.tensor = problem.x.tensor; /* y alone */
    memset(y.tensor.data, 0xff, y.bytes);
    ck_assert_ok(conv_problem_run(context, &straight));
    ck_assert_int_eq(conv_unequal(&problem.y.tensor, &straight.y.tensor), 0);
    test_guard_free(&x_guard);
    test_guard_free(&y_guard);
    conv_view_free(&x);
    conv_view_free(&y);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

/* How positions and channels are cut follows threads; the bits must not. */
START_TEST(test_threads_change_no_bit_of_thin_kernels)
{
    test_random random = test_rng(740 + (uint64_t)_i);
    hy3d_conv3d_desc desc = thin_desc(_i);
    hy3d_context *const context = test_context(NULL, 16);

    desc.in_size[1] = 11 + _i; /* rests of vectors */
    desc.dtype = (hy3d_dtype[]){HY3D_F32, HY3D_F16, HY3D_BF16}[_i % 3];
    conv_problem problem =
        conv_problem_make(&desc, true, (conv_layout)(_i % LAYOUT_COUNT), LAYOUT_PLAIN,
                          (conv_layout)(_i % LAYOUT_EXPANDED), &random, 0);
    conv_view first = conv_view_make(desc.dtype, problem.y.tensor.size, LAYOUT_PLAIN, 0);
    for (uint32_t threads = 1; threads <= 16; threads += threads == 1 ? 1 : 3) {
        problem.desc.num_threads = threads;
        problem.desc.workspace_limit_bytes = threads % 2 == 0 ? 150000 : 0;
        ck_assert_ok(conv_problem_run(context, &problem));
        if (threads == 1) {
            conv_copy(&problem.y.tensor, &first.tensor);
        }
        ck_assert_int_eq(conv_unequal(&problem.y.tensor, &first.tensor), 0);
    }
    conv_view_free(&first);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_tensors_used_where_they_are_give_exact_integers)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(720 + (uint64_t)_i);
    const hy3d_conv3d_desc desc = thin_desc(_i);
    conv_problem problem = conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN,
                                             &random, 3);
    const size_t bytes = problem.x.bytes;
    void *memory = NULL;

    ck_assert_ok(hy3d_alloc(context, bytes, &memory)); /* aligned */
    problem.x.tensor.data = memcpy(memory, problem.x.memory, bytes);
    ck_assert_ok(conv_problem_run(context, &problem));
    ck_assert_int_eq(conv_problem_differing(&problem), 0);
    hy3d_free(context, memory);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

/* A grain has as many output channels as fit, not all of them. */
START_TEST(test_thin_kernels_take_little_memory_whatever_their_size)
{
    static const int64_t channels[][2] = {
        {16, 65536}, {16, (int64_t)1 << 20}, {384, 1152}, {1 << 20, 24}, {20000, 20000}, {16, 1}};
    static const uint32_t threads[] = {1, 2, 8};
    hy3d_context *const context = test_context(NULL, 8);

    for (size_t i = 0; i < COUNT_OF(channels) * COUNT_OF(threads) * 4; i++) {
        const int64_t *const pair = channels[i % COUNT_OF(channels)];
        hy3d_conv3d_desc desc = conv_desc(HY3D_F32, pair[0], pair[1], 5, 40, 40, 1);
        size_t workspace = 0, own = 0;
        desc.kernel[0] = i / COUNT_OF(channels) % 2 == 0 ? 1 : 3;
        desc.batch = i % 5 == 4 ? 0 : 1;
        desc.num_threads = threads[i / COUNT_OF(channels) % COUNT_OF(threads)];
        desc.workspace_limit_bytes = i / COUNT_OF(channels) / 6 == 0 ? 0 : 200000;
        const hy3d_status status = hy3d_conv3d_memory(context, &desc, false, &workspace, &own);
        ck_assert_msg(status == HY3D_OK, "case %zu: %s", i, hy3d_status_name(status));
        ck_assert_uint_le(workspace, desc.workspace_limit_bytes != 0
                                         ? desc.workspace_limit_bytes
                                         : (size_t)1400000 * desc.num_threads);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* A limit was too small for two threads where one could keep it, and the least one told was not. */
START_TEST(test_the_least_limit_told_is_enough_for_every_thread_count)
{
    static const int64_t sizes[][4] = {{10, 6, 14, 6}, {31, 13, 16, 17}, {33, 5, 13, 16},
                                       {64, 300, 40, 40}};
    static const uint32_t threads[] = {1, 2, 3, 8};
    hy3d_context *const context = test_context(NULL, 8);

    for (size_t i = 0; i < COUNT_OF(sizes) * COUNT_OF(threads); i++) {
        const int64_t *const s = sizes[i % COUNT_OF(sizes)];
        hy3d_conv3d_desc desc = conv_desc(HY3D_F16, s[0], s[1], 4, s[2], s[3], 1);
        const int64_t weight_size[] = {s[1], s[0], 3, 1, 1};
        conv_view weight = conv_view_make(HY3D_F16, weight_size, LAYOUT_PLAIN, 0);
        hy3d_conv3d_plan *plan = NULL;
        size_t least = 0, again = 0;
        desc.kernel[0] = 3;
        desc.num_threads = 1;
        desc.workspace_limit_bytes = 1;
        ck_assert_status(
            hy3d_conv3d_plan_create(context, &desc, &weight.tensor, NULL, &least, &plan),
            HY3D_ERR_WORKSPACE_TOO_SMALL);
        desc.num_threads = threads[i / COUNT_OF(sizes)];
        desc.workspace_limit_bytes = least - 1;
        ck_assert_status(
            hy3d_conv3d_plan_create(context, &desc, &weight.tensor, NULL, &again, &plan),
            HY3D_ERR_WORKSPACE_TOO_SMALL);
        ck_assert_uint_eq(again, least);
        desc.workspace_limit_bytes = least;
        ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &weight.tensor, NULL, NULL, &plan));
        ck_assert_str_eq(hy3d_conv3d_plan_strategy(plan), "thin");
        ck_assert_uint_le(hy3d_conv3d_plan_workspace_bytes(plan), least);
        hy3d_conv3d_plan_destroy(plan);
        conv_view_free(&weight);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_conv3d_thin_case(void)
{
    TCase *const tests = tcase_create("thin");
    tcase_add_loop_test(tests, test_tensors_used_where_they_are_give_the_bits_of_copies, 0, 8);
    tcase_add_loop_test(tests, test_tensors_used_where_they_are_give_exact_integers, 0, 8);
    tcase_add_loop_test(tests, test_threads_change_no_bit_of_thin_kernels, 0, 15);
    tcase_add_test(tests, test_thin_kernels_take_little_memory_whatever_their_size);
    tcase_add_test(tests, test_the_least_limit_told_is_enough_for_every_thread_count);
    return tests;
}
