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
    hy3d_context *const context = context_of(TEST_OWN, configs[_i][0]);
    if (context != NULL) {
        const char *text = NULL;
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        ck_assert_msg(strstr(text, configs[_i][1]) != NULL, "%s", text);
        hy3d_context_destroy(context);
    }
}
END_TEST

/* 2 x 2 by 2 x 2 through the context's library, which the caller has opened too: the threads that
 * it was allowed. */
static int multiply(hy3d_context *context, void *library)
{
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, wanted[] = {19, 22, 43, 50};
    float c[4] = {0}; /* a library that MemorySanitizer does not see writes it */
    const hy3d__gemm_args args = {
        .m = 2, .n = 2, .k = 2, .a = a, .lda = 2, .b = b, .ldb = 2, .c = c, .ldc = 2};
    hy3d__sgemm(context, &args);
    ck_assert_mem_eq(c, wanted, sizeof wanted);
    return *(const int *)hy3d__library_symbol(library, "test_blas_allowed");
}

static const struct sharing {
    const char *library, *says;
    int allowed;
} sharings[] = {
    {TEST_OWN, "at most 7 callers", 1},
    {TEST_TOLD, "at most 1 callers, from " TEST_TOLD "; its 4 threads are left as they are", 4},
    {TEST_SILENT, "not an OpenBLAS: " TEST_SILENT "; one caller at a time, by its own threads", 4},
    {TEST_LOCAL, "not an OpenBLAS: " TEST_LOCAL, 1},
};

/* The threads of a library that others may use are theirs to set: a caller's own number is set for
 * the call and as before after it, one for everybody never. */
START_TEST(test_the_threads_of_a_shared_library_stay_as_they_are)
{
    const struct sharing *const self = &sharings[_i];
    hy3d_context *const context = context_of(self->library, "OpenBLAS 0.3 MAX_THREADS=8");
    if (context != NULL) {
        char reason[320];
        const char *text = NULL;
        void *const library = hy3d__library_open(self->library, reason, sizeof reason);
        ck_assert_msg(library != NULL, "%s", reason);
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        ck_assert_msg(strstr(text, self->says) != NULL, "%s", text);
        ck_assert_int_eq(multiply(context, library), self->allowed);
        int (*set_local)(int) = NULL;
        void *const address = hy3d__library_symbol(library, "MKL_Set_Num_Threads_Local");
        memcpy(&set_local, &address, sizeof set_local);
        ck_assert_int_eq(set_local != NULL ? set_local(0) : 0, 0);
        hy3d_context_destroy(context);
        hy3d__library_close(library);
    }
}
END_TEST

/* One that has one thread already, as OPENBLAS_NUM_THREADS=1 makes it, is called by many. */
START_TEST(test_a_shared_library_of_one_thread_takes_many_callers)
{
    hy3d_context *const context = context_of(TEST_TOLD, "OpenBLAS 0.3 MAX_THREADS=8");
    if (context != NULL) {
        char reason[320];
        const char *text = NULL;
        void *const library = hy3d__library_open(TEST_TOLD, reason, sizeof reason);
        ck_assert_msg(library != NULL, "%s", reason);
        void (*set_threads)(int) = NULL;
        void *const address = hy3d__library_symbol(library, "openblas_set_num_threads");
        memcpy(&set_threads, &address, sizeof set_threads);
        set_threads(1);
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        ck_assert_msg(strstr(text, "at most 7 callers") != NULL, "%s", text);
        set_threads(4);
        hy3d_context_destroy(context);
        hy3d__library_close(library);
    }
}
END_TEST

TCase *hy3d_blas_libraries_case(void)
{
    TCase *const tests = tcase_create("libraries");
    tcase_add_test(tests, test_a_build_with_wide_integers_is_refused_by_name);
    tcase_add_loop_test(tests, test_as_many_callers_are_let_in_as_the_build_has_buffers_for, 0,
                        COUNT_OF(configs));
    tcase_add_loop_test(tests, test_the_threads_of_a_shared_library_stay_as_they_are, 0,
                        COUNT_OF(sharings));
    tcase_add_test(tests, test_a_shared_library_of_one_thread_takes_many_callers);
    return tests;
}
