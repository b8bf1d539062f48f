#include "support.h"

#include <string.h>

#include "base/parallel.h"

START_TEST(test_status_names_and_texts_are_never_null)
{
    ck_assert_str_eq(hy3d_status_name(HY3D_ERR_OVERFLOW), "HY3D_ERR_OVERFLOW");
    ck_assert_str_eq(hy3d_status_name((hy3d_status)77), "unknown status");
    ck_assert_ptr_nonnull(hy3d_status_text((hy3d_status)-1));
}
END_TEST

static hy3d_status count_grain(void *argument, int64_t grain, uint32_t slot)
{
    (void)slot;
    ((int *)argument)[grain]++;
    return HY3D_OK;
}

START_TEST(test_every_grain_runs_once)
{
    hy3d_context *const context = test_context(NULL, 4);
    int seen[1000] = {0};
    ck_assert_ok(hy3d__parallel_for(context, 1000, 4, NULL, count_grain, seen));
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(seen[i], 1);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_blas_loads_or_says_why_not)
{
    hy3d_context *const context = test_context(NULL, 2);
    if (test_has_blas(context)) {
        ck_assert_str_eq(hy3d_context_blas_error(context), "");
    }
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_base_suite(void);
Suite *hy3d_base_suite(void)
{
    Suite *const suite = suite_create("base");
    TCase *const tests = tcase_create("base");
    tcase_add_test(tests, test_status_names_and_texts_are_never_null);
    tcase_add_test(tests, test_every_grain_runs_once);
    tcase_add_test(tests, test_blas_loads_or_says_why_not);
    suite_add_tcase(suite, tests);
    return suite;
}
