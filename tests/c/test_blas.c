/* The door to BLAS. Loop index = CPU level where a test has one. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/blas.h"
#include "base/context.h"

static const char *level_name(int level)
{
    return hy3d_cpu_level_name((hy3d_cpu_level)level);
}

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
    hy3d_context *const context = context_with_library("libm.so.6");
    ck_assert_status(hy3d__blas_load(context), HY3D_ERR_BLAS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(hy3d_context_blas_error(context), "libm.so.6: has no cblas"));
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
        ck_assert_ptr_nonnull(strstr(error, "/_vendor/libhy3d_openblas.so"));
        ck_assert_ptr_nonnull(strstr(error, "libopenblas.so.0"));
        ck_assert_ptr_nonnull(strstr(error, "libopenblas.so:"));
    }
    hy3d_context_destroy(context);
    if (before != NULL) {
        setenv("HY3D_BLAS_LIBRARY", before, 1);
    }
    free(before);
}
END_TEST

/* Kernels of this build of OpenBLAS can be chosen, so the level must hold. */
START_TEST(test_a_lowered_level_limits_the_core_type)
{
    /* The wheel's Prescott calls itself by the first of the names that share its kernels. */
    static const char *const core[][2] = {{"core type Prescott", "core type Katmai"},
                                          {"core type Haswell", "core type Zen"}};
    hy3d_context *const context = test_context(level_name(_i), 1);
    const char *text = NULL;
    if (test_has_blas(context)) {
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        if (strstr(text, "DYNAMIC_ARCH") != NULL && _i < test_level_count() - 1) {
            ck_assert_msg(strstr(text, core[_i][0]) != NULL || strstr(text, core[_i][1]) != NULL,
                          "%s", text);
            ck_assert_msg(strstr(text, "NOT limited") == NULL, "%s", text);
        } else {
            ck_assert_msg(strstr(text, "core type ") != NULL, "%s", text);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_limit_that_comes_too_late_is_said)
{
    hy3d_context *const first = test_context(level_name(test_level_count() - 1), 1);
    hy3d_context *const second = test_context("ref", 1);
    const char *text = NULL;
    if (test_has_blas(first) && test_level_count() > 1) {
        ck_assert_ok(hy3d_context_blas_info(second, &text));
        ck_assert_msg(strstr(text, "NOT limited to Prescott") != NULL, "%s", text);
    }
    hy3d_context_destroy(first);
    hy3d_context_destroy(second);
}
END_TEST

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

START_TEST(test_loading_starts_no_thread_and_leaves_the_environment_as_it_was)
{
    hy3d_context *const context = test_context("ref", 1);
    setenv("OPENBLAS_NUM_THREADS", "7", 1);
    unsetenv("OPENBLAS_CORETYPE");
    const int before = count_threads();
    if (test_has_blas(context)) {
        ck_assert_int_eq(count_threads(), before);
        ck_assert_str_eq(getenv("OPENBLAS_NUM_THREADS"), "7");
        ck_assert_ptr_null(getenv("OPENBLAS_CORETYPE"));
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
        /* Set, so that both values have to be kept. */
        setenv("OPENBLAS_NUM_THREADS", "7", 1);
        setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
        hy3d_context *const context = test_context("ref", 1);
        ck_assert_uint_eq(test_allocation_sweep(context, load, NULL),
                          test_level_count() > 1 ? 2 : 1);
        ck_assert_str_eq(getenv("OPENBLAS_NUM_THREADS"), "7");
        ck_assert_str_eq(getenv("OPENBLAS_CORETYPE"), "Nehalem");
        ck_assert_str_eq(hy3d_context_blas_error(context), "");
        hy3d_context_destroy(context);
        unsetenv("OPENBLAS_NUM_THREADS");
        unsetenv("OPENBLAS_CORETYPE");
    }
}
END_TEST

enum { MOST = 40, ROOM = (MOST + 3) * (MOST + 3) };

/* Element (i, j) of op(X). */
static double at(const double *x, int stride, bool transposed, int i, int j)
{
    return transposed ? x[j * stride + i] : x[i * stride + j];
}

typedef struct problem {
    hy3d__gemm_args args;
    double a[ROOM], b[ROOM], c[ROOM], wanted[ROOM];
} problem;

/* Small integers: every sum is exact, so the answer has one value in any order and either
 * precision. Outside of C's m x n part, and inside where C is not read, stands NaN. */
static void make_problem(test_random *random, problem *of)
{
    hy3d__gemm_args *const args = &of->args;
    args->trans_a = test_between(random, 0, 1) != 0;
    args->trans_b = test_between(random, 0, 1) != 0;
    args->accumulate = test_between(random, 0, 1) != 0;
    args->m = (int32_t)test_between(random, 1, MOST);
    args->n = (int32_t)test_between(random, 1, MOST);
    args->k = (int32_t)test_between(random, 1, MOST);
    args->lda = (args->trans_a ? args->m : args->k) + (int32_t)test_between(random, 0, 3);
    args->ldb = (args->trans_b ? args->k : args->n) + (int32_t)test_between(random, 0, 3);
    args->ldc = args->n + (int32_t)test_between(random, 0, 3);
    test_fill_f64(random, of->a, ROOM, 8);
    test_fill_f64(random, of->b, ROOM, 8);
    test_fill_f64(random, of->c, ROOM, 8);
    for (int i = 0; i < ROOM; i++) {
        const bool inside = i / args->ldc < args->m && i % args->ldc < args->n;
        if (!inside || !args->accumulate) {
            of->c[i] = NAN;
        }
        of->wanted[i] = of->c[i];
    }
    for (int i = 0; i < args->m; i++) {
        for (int j = 0; j < args->n; j++) {
            double sum = args->accumulate ? of->c[i * args->ldc + j] : 0;
            for (int l = 0; l < args->k; l++) {
                sum += at(of->a, args->lda, args->trans_a, i, l) *
                       at(of->b, args->ldb, args->trans_b, l, j);
            }
            of->wanted[i * args->ldc + j] = sum;
        }
    }
}

/* Index of the first wrong element, -1: none. */
static int solve(hy3d_context *context, problem *of, bool in_double)
{
    float a[ROOM], b[ROOM], c[ROOM];
    for (int i = 0; i < ROOM; i++) {
        a[i] = (float)of->a[i];
        b[i] = (float)of->b[i];
        c[i] = (float)of->c[i];
    }
    hy3d__gemm_args args = of->args;
    args.a = in_double ? (void *)of->a : a;
    args.b = in_double ? (void *)of->b : b;
    args.c = in_double ? (void *)of->c : c;
    if (in_double) {
        hy3d__dgemm(context, &args);
    } else {
        hy3d__sgemm(context, &args);
    }
    for (int i = 0; i < ROOM; i++) {
        const double got = in_double ? of->c[i] : (double)c[i];
        if (isnan(of->wanted[i]) ? !isnan(got) : got != of->wanted[i]) {
            return i;
        }
    }
    return -1;
}

START_TEST(test_gemm_equals_the_naive_sum_on_small_integers)
{
    hy3d_context *const context = test_context(level_name(_i), 1);
    if (test_has_blas(context)) {
        test_random random = test_rng(30);
        problem *const of = malloc(sizeof *of);
        ck_assert_ptr_nonnull(of);
        for (int round = 0; round < 200; round++) {
            make_problem(&random, of);
            const int wrong = solve(context, of, round % 2 != 0);
            ck_assert_msg(wrong < 0, "round %d, element %d: m %d n %d k %d trans %d %d add %d",
                          round, wrong, of->args.m, of->args.n, of->args.k, of->args.trans_a,
                          of->args.trans_b, of->args.accumulate);
        }
        free(of);
    }
    hy3d_context_destroy(context);
}
END_TEST

typedef struct caller {
    pthread_t thread;
    hy3d_context *context;
    uint64_t seed;
    int wrong;
} caller;

static void *call_gemm(void *argument)
{
    caller *const self = argument;
    test_random random = {self->seed};
    problem *const of = malloc(sizeof *of);
    self->wrong = of == NULL;
    for (int round = 0; of != NULL && round < 20; round++) {
        make_problem(&random, of);
        self->wrong += solve(self->context, of, round % 2 != 0) >= 0;
    }
    free(of);
    return NULL;
}

/* More callers than the library has buffers for (64 in the wheel): the gate makes them wait. */
START_TEST(test_a_hundred_concurrent_callers_get_their_own_right_answers)
{
    hy3d_context *const context = test_context(NULL, 1);
    if (test_has_blas(context)) {
        caller callers[100];
        for (size_t i = 0; i < COUNT_OF(callers); i++) {
            callers[i] = (caller){.context = context, .seed = 2 * i + 1};
            ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, call_gemm, &callers[i]), 0);
        }
        for (size_t i = 0; i < COUNT_OF(callers); i++) {
            pthread_join(callers[i].thread, NULL);
            ck_assert_int_eq(callers[i].wrong, 0);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

typedef struct late_caller {
    hy3d_context *context;
    bool in_double;
    _Atomic bool is_through;
} late_caller;

static void *multiply_once(void *argument)
{
    late_caller *const self = argument;
    const double one[1] = {1};
    double result[1];
    const hy3d__gemm_args args = {.m = 1, .n = 1, .k = 1, .a = one, .lda = 1, .b = one,
                                  .ldb = 1, .c = result, .ldc = 1};
    if (self->in_double) {
        hy3d__dgemm(self->context, &args);
    } else {
        hy3d__sgemm(self->context, &args);
    }
    atomic_store(&self->is_through, true);
    return NULL;
}

START_TEST(test_a_caller_beyond_the_limit_waits_until_one_has_left)
{
    hy3d_context *const context = test_context(NULL, 1);
    if (test_has_blas(context)) {
        const char *text = NULL;
        ck_assert_ok(hy3d_context_blas_info(context, &text));
        const char *const most = strstr(text, "at most ");
        const long limit = most != NULL ? strtol(most + strlen("at most "), NULL, 10) : 0;
        const char *const threads = strstr(text, "MAX_THREADS=");
        ck_assert_int_ge(limit, 1);
        ck_assert(threads == NULL || limit == 1 || limit < strtol(threads + 12, NULL, 10));
        hy3d__pool *pool = NULL;
        for (long i = 0; i < limit; i++) {
            pool = hy3d__gate_enter(context, UINT32_MAX);
        }
        late_caller late = {.context = context, .in_double = _i != 0};
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, multiply_once, &late), 0);
        usleep(50000);
        ck_assert(!atomic_load(&late.is_through));
        hy3d__gate_leave(pool);
        pthread_join(thread, NULL);
        ck_assert(atomic_load(&late.is_through));
    }
    hy3d_context_destroy(context);
}
END_TEST

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

START_TEST(test_gemm_works_in_a_child_after_fork)
{
    hy3d_context *const context = test_context(NULL, 2);
    if (test_has_blas(context)) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(30);
            caller self = {.context = context, .seed = 99};
            call_gemm(&self);
            hy3d_context_destroy(context);
            _exit(self.wrong);
        }
        int state = -1;
        ck_assert_int_eq(waitpid(child, &state, 0), child);
        ck_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_blas_suite(void);
Suite *hy3d_blas_suite(void)
{
    Suite *const suite = suite_create("blas");
    TCase *const tests = tcase_create("blas");
    const int levels = test_level_count();
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_a_missing_library_gives_a_text_that_names_it_and_the_remedy);
    tcase_add_test(tests, test_a_library_without_gemm_is_refused_by_name);
    tcase_add_test(tests, test_an_error_text_is_never_longer_than_2_kb_and_keeps_the_remedy);
    tcase_add_test(tests, test_the_search_names_everything_it_tried);
    tcase_add_loop_test(tests, test_a_lowered_level_limits_the_core_type, 0, levels);
    tcase_add_test(tests, test_a_limit_that_comes_too_late_is_said);
    tcase_add_test(tests, test_loading_starts_no_thread_and_leaves_the_environment_as_it_was);
    tcase_add_test(tests, test_loading_survives_every_allocation_failing);
    tcase_add_loop_test(tests, test_gemm_equals_the_naive_sum_on_small_integers, 0, levels);
    tcase_add_test(tests, test_a_hundred_concurrent_callers_get_their_own_right_answers);
    tcase_add_loop_test(tests, test_a_caller_beyond_the_limit_waits_until_one_has_left, 0, 2);
    tcase_add_test(tests, test_concurrent_first_uses_load_once);
    tcase_add_test(tests, test_gemm_works_in_a_child_after_fork);
    suite_add_tcase(suite, tests);
    return suite;
}
