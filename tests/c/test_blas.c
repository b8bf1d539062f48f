/* The door to BLAS. */
#define _GNU_SOURCE
#include "blas_libraries.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/blas.h"
#include "base/openblas.h"
#include "base/os.h"

#if defined(_WIN32)
#define NO_BLAS "msvcrt.dll"
#else
#define NO_BLAS "libm.so.6"
#endif

static hy3d_context *context_with_library(const char *library)
{
    const hy3d_context_options options = {.blas_library = library};
    hy3d_context *context = NULL;
    ck_assert_ok(hy3d_context_create(&options, &context));
    return context;
}

START_TEST(test_a_missing_library_gives_a_text_that_names_it_and_the_remedy)
{
    hy3d_context *const context = context_with_library("/nowhere/libnothing.so");
    ck_assert_str_eq(hy3d_context_blas_error(context), "");
    const char *text = "untouched";
    ck_assert_status(hy3d_context_blas_info(context, &text), HY3D_ERR_BLAS_UNAVAILABLE);
    ck_assert_str_eq(text, "untouched");
    const char *const error = hy3d_context_blas_error(context);
    ck_assert_ptr_nonnull(strstr(error, "/nowhere/libnothing.so"));
    ck_assert_ptr_nonnull(strstr(error, "apt-get install libopenblas0"));
    ck_assert_ptr_nonnull(strstr(error, "HY3D_BLAS_LIBRARY"));
    /* The answer and the text stay. */
    ck_assert_status(hy3d__blas_load(context), HY3D_ERR_BLAS_UNAVAILABLE);
    ck_assert_ptr_eq(hy3d_context_blas_error(context), error);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_library_without_gemm_is_refused_by_name)
{
    hy3d_context *const context = context_with_library(NO_BLAS);
    ck_assert_status(hy3d__blas_load(context), HY3D_ERR_BLAS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(hy3d_context_blas_error(context), NO_BLAS ": has no cblas"));
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_an_error_text_is_never_longer_than_2_kb_and_keeps_the_remedy)
{
    char name[10000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    hy3d_context *const context = context_with_library(name);
    ck_assert_status(hy3d__blas_load(context), HY3D_ERR_BLAS_UNAVAILABLE);
    const char *const error = hy3d_context_blas_error(context);
    ck_assert_uint_lt(strlen(error), 2048);
    ck_assert_ptr_nonnull(strstr(error, "HY3D_BLAS_LIBRARY"));
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_the_search_names_everything_it_tried)
{
    const char *const now = getenv("HY3D_BLAS_LIBRARY");
    char *const before = now != NULL ? strdup(now) : NULL;
    unsetenv("HY3D_BLAS_LIBRARY");
    hy3d_context *const context = context_with_library(NULL);
    if (hy3d__blas_load(context) != HY3D_OK) {
        const char *const error = hy3d_context_blas_error(context);
        static const char *const names[] = {HY3D__BLAS_NAMES};
        ck_assert_ptr_nonnull(
            strstr(error, "/_vendor/libhy3d_openblas" HY3D__LIBRARY_SUFFIX));
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            char named[64];
            snprintf(named, sizeof named, "%s:", names[i]);
            ck_assert_msg(strstr(error, named) != NULL, "%s: %s", named, error);
        }
    }
    hy3d_context_destroy(context);
    if (before != NULL) {
        setenv("HY3D_BLAS_LIBRARY", before, 1);
    }
    free(before);
}
END_TEST

START_TEST(test_a_variable_too_long_for_a_path_is_refused_by_name)
{
    char name[5000];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    const char *const now = getenv("HY3D_BLAS_LIBRARY");
    char *const before = now != NULL ? strdup(now) : NULL;
    setenv("HY3D_BLAS_LIBRARY", name, 1);
    hy3d_context *const context = context_with_library(NULL);
    ck_assert_status(hy3d__blas_load(context), HY3D_ERR_BLAS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(hy3d_context_blas_error(context),
                                 "HY3D_BLAS_LIBRARY is longer than a path can be: xxx"));
    hy3d_context_destroy(context);
    unsetenv("HY3D_BLAS_LIBRARY");
    if (before != NULL) {
        setenv("HY3D_BLAS_LIBRARY", before, 1);
    }
    free(before);
}
END_TEST

START_TEST(test_core_types_are_told_by_their_whole_name_in_any_case)
{
    ck_assert(hy3d__core_is_within("PRESCOTT", HY3D_CPU_REF));
    ck_assert(hy3d__core_is_within("opteron_sse3", HY3D_CPU_REF));
    ck_assert(hy3d__core_is_within("hASWELL", HY3D_CPU_AVX2));
    ck_assert(!hy3d__core_is_within("Haswell", HY3D_CPU_REF));
    /* Names that are not known may stand for anything. */
    static const char *const unknown[] = {"", "Haswel", "Haswell2", "Opteron\177SSE3", "SkylakeX"};
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        ck_assert(!hy3d__core_is_within(unknown[i], HY3D_CPU_AVX2));
        ck_assert(hy3d__core_is_within(unknown[i], HY3D_CPU_AVX512));
    }
}
END_TEST

START_TEST(test_a_level_that_the_library_does_not_keep_to_is_said_with_the_remedy)
{
    hy3d_context *const context = test_context("ref", 1);
    const char *text = NULL;
    if (test_has_blas(context) && test_level_count() > 1) {
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        ck_assert_msg(strstr(text, "NOT limited to Prescott as the CPU level asks: start the "
                                   "program with OPENBLAS_CORETYPE=Prescott") != NULL, "%s", text);
    }
    hy3d_context_destroy(context);
}
END_TEST

#if defined(_WIN32)
#define count_threads test_thread_count
#else
static int count_threads(void)
{
    DIR *const folder = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(folder);
    int count = 0;
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}
#endif

/* A thread that was joined may stand in the system's list a moment longer. */
static int count_threads_down_to(int wanted)
{
    const struct timespec moment = {0, 10000000};
    int count = count_threads();
    for (int tries = 0; count > wanted && tries < 500; tries++) {
        nanosleep(&moment, NULL);
        count = count_threads();
    }
    return count;
}

/* Whatever the environment asks for, and without changing it for a moment. */
START_TEST(test_loading_our_own_library_starts_no_thread)
{
#if defined(__linux__)
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 ||
        sched_setaffinity(0, sizeof mask, &mask) != 0) {
        test_skip_here("this system lets no thread choose its processors");
    }
#elif defined(_WIN32)
    test_skip_here("on Windows the library's threads start, and have nothing to do");
#endif
    hy3d_context *const context = test_context("ref", 1);
    setenv("OPENBLAS_NUM_THREADS", "7", 1);
    const int before = count_threads();
    if (test_has_blas(context)) {
        ck_assert_int_eq(count_threads_down_to(before), before);
        ck_assert_str_eq(getenv("OPENBLAS_NUM_THREADS"), "7");
    }
    unsetenv("OPENBLAS_NUM_THREADS");
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status load(hy3d_context *context, void *argument)
{
    (void)argument;
    return hy3d__blas_load(context);
}

START_TEST(test_loading_survives_every_allocation_failing)
{
    hy3d_context *const probe = test_context("ref", 1);
    const bool has_blas = test_has_blas(probe);
    hy3d_context_destroy(probe);
    if (has_blas) {
        hy3d_context *const context = test_context("ref", 1);
        ck_assert_uint_eq(test_allocation_sweep(context, load, NULL), 0);
        ck_assert_str_eq(hy3d_context_blas_error(context), "");
        hy3d_context_destroy(context);
    }
}
END_TEST

typedef struct caller {
    pthread_t thread;
    hy3d_context *context;
    int wrong;
} caller;

static void *load_in_thread(void *argument)
{
    caller *const self = argument;
    self->wrong = hy3d__blas_load(self->context) != HY3D_OK;
    return NULL;
}

START_TEST(test_concurrent_first_uses_load_once)
{
    hy3d_context *const probe = test_context(NULL, 1);
    const bool has_blas = test_has_blas(probe);
    hy3d_context_destroy(probe);
    if (has_blas) {
        hy3d_context *const context = test_context(NULL, 1);
        caller callers[8];
        for (size_t i = 0; i < COUNT_OF(callers); i++) {
            callers[i] = (caller){.context = context};
            ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, load_in_thread, &callers[i]),
                             0);
        }
        for (size_t i = 0; i < COUNT_OF(callers); i++) {
            pthread_join(callers[i].thread, NULL);
            ck_assert_int_eq(callers[i].wrong, 0);
        }
        hy3d_context_destroy(context);
    }
}
END_TEST

Suite *hy3d_blas_suite(void);
Suite *hy3d_blas_suite(void)
{
    Suite *const suite = suite_create("blas");
    TCase *const tests = tcase_create("blas");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_a_missing_library_gives_a_text_that_names_it_and_the_remedy);
    tcase_add_test(tests, test_a_library_without_gemm_is_refused_by_name);
    tcase_add_test(tests, test_an_error_text_is_never_longer_than_2_kb_and_keeps_the_remedy);
    tcase_add_test(tests, test_the_search_names_everything_it_tried);
    tcase_add_test(tests, test_a_variable_too_long_for_a_path_is_refused_by_name);
    tcase_add_test(tests, test_core_types_are_told_by_their_whole_name_in_any_case);
    tcase_add_test(tests, test_a_level_that_the_library_does_not_keep_to_is_said_with_the_remedy);
    tcase_add_test(tests, test_loading_our_own_library_starts_no_thread);
    tcase_add_test(tests, test_loading_survives_every_allocation_failing);
    tcase_add_test(tests, test_concurrent_first_uses_load_once);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_blas_libraries_case());
    return suite;
}
