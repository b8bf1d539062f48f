/* The workspace that a context keeps from call to call. */
#include "support.h"

#include <string.h>

START_TEST(test_what_was_given_back_is_taken_again_and_trim_frees_it)
{
    hy3d_context *const context = test_context(NULL, 1);
    const uint64_t live = test_live();
    void *first = NULL, *second = NULL, *both = NULL;

    ck_assert_ok(hy3d_workspace_take(context, 1000, &first));
    ck_assert_uint_eq((uintptr_t)first % 64, 0);
    memset(first, 1, 1000);
    hy3d_workspace_give(context, first);
    ck_assert_ok(hy3d_workspace_take(context, 500, &second));
    ck_assert_ptr_eq(second, first);
    /* One is kept, and that is in use: another call gets memory of its own. */
    ck_assert_ok(hy3d_workspace_take(context, 500, &both));
    ck_assert_ptr_ne(both, second);
    memset(both, 2, 500);
    hy3d_workspace_give(context, second);
    hy3d_workspace_give(context, both);
    ck_assert_uint_eq(test_live(), live + 1);
    hy3d_context_trim(context);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_is_too_small_or_far_too_large_is_not_taken_again)
{
    hy3d_context *const context = test_context(NULL, 1);
    const uint64_t live = test_live();
    void *memory = NULL;

    ck_assert_ok(hy3d_workspace_take(context, 1000, &memory));
    hy3d_workspace_give(context, memory);
    ck_assert_ok(hy3d_workspace_take(context, 100000, &memory));
    memset(memory, 3, 100000);
    hy3d_workspace_give(context, memory);
    ck_assert_ok(hy3d_workspace_take(context, (size_t)300 << 20, &memory));
    hy3d_workspace_give(context, memory); /* over 256 MB */
    ck_assert_uint_eq(test_live(), live);
    ck_assert_ok(hy3d_workspace_take(context, (size_t)100 << 20, &memory));
    hy3d_workspace_give(context, memory);
    ck_assert_ok(hy3d_workspace_take(context, 1000, &memory));
    hy3d_workspace_give(context, memory);
    ck_assert_uint_eq(test_live(), live + 1);
    hy3d_context_destroy(context); /* frees what is kept */
}
END_TEST

START_TEST(test_a_failing_allocation_and_bad_arguments_are_survived)
{
    hy3d_context *const context = test_context(NULL, 1);
    const uint64_t live = test_live();
    void *memory = NULL;

    test_fail(1, false);
    ck_assert_status(hy3d_workspace_take(context, 1000, &memory), HY3D_ERR_OUT_OF_MEMORY);
    ck_assert_status(hy3d_workspace_take(context, SIZE_MAX, &memory), HY3D_ERR_OVERFLOW);
    ck_assert_status(hy3d_workspace_take(NULL, 1, &memory), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_workspace_take(context, 1, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_ptr_null(memory);
    hy3d_workspace_give(context, NULL);
    hy3d_workspace_give(NULL, NULL);
    hy3d_context_trim(NULL);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_memory_that_is_kept_is_given_up_before_an_allocation_fails)
{
    hy3d_context *const context = test_context(NULL, 1);
    const uint64_t live = test_live();
    void *memory = NULL;

    ck_assert_ok(hy3d_workspace_take(context, 1000, &memory));
    hy3d_workspace_give(context, memory);
    test_fail(1, false);
    ck_assert_ok(hy3d_alloc(context, 1000, &memory));
    ck_assert_uint_eq(test_live(), live + 1);
    hy3d_free(context, memory);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_workspace_suite(void);
Suite *hy3d_workspace_suite(void)
{
    Suite *const suite = suite_create("workspace");
    TCase *const tests = tcase_create("workspace");
    tcase_add_test(tests, test_what_was_given_back_is_taken_again_and_trim_frees_it);
    tcase_add_test(tests, test_what_is_too_small_or_far_too_large_is_not_taken_again);
    tcase_add_test(tests, test_a_failing_allocation_and_bad_arguments_are_survived);
    tcase_add_test(tests, test_memory_that_is_kept_is_given_up_before_an_allocation_fails);
    suite_add_tcase(suite, tests);
    return suite;
}
