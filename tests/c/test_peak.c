/* The chains of multiply-adds that benchmarks hold speeds against; loop index = level. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "hy3d/peak.h"
#include "kernels/kernels.h"

enum { SUMS = 384 };

START_TEST(test_every_level_does_each_round_for_each_sum)
{
    test_guard guard = test_guard_make(SUMS * sizeof(float));
    float *const sums = test_guard_end(&guard, SUMS * sizeof(float));
    for (size_t rounds = 0; rounds <= 12; rounds++) {
        for (int i = 0; i < SUMS; i++) {
            sums[i] = (float)(4096 * i);
        }
        hy3d__kernels_for(_i)->peak_f32(rounds, 0.5F, 3.0F, sums);
        /* s -> s / 2 + 3, r times: s / 2^r + 6 (1 - 2^-r), exact in float for these. */
        const double left = ldexp(1.0, -(int)rounds);
        for (int i = 0; i < SUMS; i++) {
            ck_assert_msg((double)sums[i] == 4096.0 * i * left + 6 * (1 - left),
                          "level %d, %zu rounds, sum %d is %a", _i, rounds, i, (double)sums[i]);
        }
    }
    test_guard_free(&guard);
}
END_TEST

START_TEST(test_operations_are_those_of_all_threads)
{
    hy3d_context *const context = test_context(NULL, 2);
    double one = -1, all = -1, more = -1;
    ck_assert_ok(hy3d_peak_run(context, 1, 10, &one));
    ck_assert_ok(hy3d_peak_run(context, 0, 10, &all));
    ck_assert_ok(hy3d_peak_run(context, 1000, 10, &more));
    ck_assert(one == 8 * 10 * 768.0);
    ck_assert(all == one * hy3d_context_max_threads(context) && more == all);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_rounds_out_of_range_are_refused)
{
    hy3d_context *const context = test_context(NULL, 1);
    double flops = -1;
    ck_assert_status(hy3d_peak_run(context, 1, 0, &flops), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_peak_run(context, 1, (INT64_C(1) << 22) + 1, &flops),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_peak_run(NULL, 1, 1, &flops), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_peak_run(context, 1, 1, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert(flops == -1);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_peak_suite(void);
Suite *hy3d_peak_suite(void)
{
    Suite *const suite = suite_create("peak");
    TCase *const tests = tcase_create("peak");
    tcase_add_loop_test(tests, test_every_level_does_each_round_for_each_sum, 0,
                        test_level_count());
    tcase_add_test(tests, test_operations_are_those_of_all_threads);
    tcase_add_test(tests, test_rounds_out_of_range_are_refused);
    suite_add_tcase(suite, tests);
    return suite;
}
