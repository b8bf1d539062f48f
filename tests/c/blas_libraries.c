/* Libraries that say of themselves what builds of OpenBLAS say: built from tests/c/libraries. */
#define _GNU_SOURCE
#include "blas_libraries.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/blas.h"

/* NULL where the tests do not run in the repository's root. */
static hy3d_context *context_of(const char *library, const char *config)
{
    if (access(library, R_OK) != 0) {
        test_skip("library");
        return NULL;
    }
    setenv("HY3D_TEST_BLAS", config, 1);
    const hy3d_context_options options = {.blas_library = library};
    hy3d_context *context = NULL;
    ck_assert_ok(hy3d_context_create(&options, &context));
    return context;
}

START_TEST(test_a_build_with_wide_integers_is_refused_by_name)
{
    hy3d_context *const context = context_of(TEST_TOLD, "OpenBLAS USE64BITINT MAX_THREADS=8");
    if (context != NULL) {
        ck_assert_status(hy3d__blas_load(context), HY3D_ERR_BLAS_UNAVAILABLE);
        const char *const error = hy3d_context_blas_error(context);
        ck_assert_ptr_nonnull(strstr(error, TEST_TOLD ": is built with 64-bit integers"));
        hy3d_context_destroy(context);
    }
}
END_TEST

static const char *const configs[][2] = {
    {"OpenBLAS 0.3 MAX_THREADS=8", "at most 7 callers"},
    {"OpenBLAS 0.3 MAX_THREADS=3", "at most 2 callers"},
    {"OpenBLAS 0.3 MAX_THREADS=2", "at most 1 callers"},
    {"OpenBLAS 0.3 MAX_THREADS=99999999999", "at most 1 callers"},
    {"OpenBLAS 0.3 MAX_THREADS=many", "at most 1 callers"},
    {"OpenBLAS 0.3 without the number", "at most 1 callers"},
    {"OpenBLAS 0.3 USE_OPENMP MAX_THREADS=8", "at most 1 callers"},
    {"OpenBLAS 0.3 SINGLE_THREADED MAX_THREADS=8", "at most 1 callers"},
};

START_TEST(test_as_many_callers_are_let_in_as_the_build_has_buffers_for)
{
    hy3d_context *const context = context_of(TEST_TOLD, configs[_i][0]);
    if (context != NULL) {
        const char *text = NULL;
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        ck_assert_msg(strstr(text, configs[_i][1]) != NULL, "%s", text);
        hy3d_context_destroy(context);
    }
}
END_TEST

START_TEST(test_another_blas_is_used_and_called_by_its_file)
{
    hy3d_context *const context = context_of(TEST_SILENT, "");
    if (context != NULL) {
        const char *text = NULL;
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        ck_assert_str_eq(text, "not an OpenBLAS: " TEST_SILENT);
        const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, wanted[] = {19, 22, 43, 50};
        float c[4] = {0}; /* a library that MemorySanitizer does not see writes it */
        const hy3d__gemm_args args = {
            .m = 2, .n = 2, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 2, .c = c, .ldc = 2};
        hy3d__sgemm(context, &args);
        ck_assert_mem_eq(c, wanted, sizeof wanted);
        hy3d_context_destroy(context);
    }
}
END_TEST

TCase *hy3d_blas_libraries_case(void)
{
    TCase *const tests = tcase_create("libraries");
    tcase_add_test(tests, test_a_build_with_wide_integers_is_refused_by_name);
    tcase_add_loop_test(tests, test_as_many_callers_are_let_in_as_the_build_has_buffers_for, 0,
                        COUNT_OF(configs));
    tcase_add_test(tests, test_another_blas_is_used_and_called_by_its_file);
    return tests;
}
