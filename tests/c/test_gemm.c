/* Matrix products through the door to BLAS. Loop index = CPU level where a test has one. */
#define _GNU_SOURCE
#include "support.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/blas.h"
#include "base/context_internal.h"

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
    hy3d_context *const context = test_context(hy3d_cpu_level_name((hy3d_cpu_level)_i), 1);
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

Suite *hy3d_gemm_suite(void);
Suite *hy3d_gemm_suite(void)
{
    Suite *const suite = suite_create("gemm");
    TCase *const tests = tcase_create("gemm");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_gemm_equals_the_naive_sum_on_small_integers, 0,
                        test_level_count());
    tcase_add_test(tests, test_a_hundred_concurrent_callers_get_their_own_right_answers);
    tcase_add_loop_test(tests, test_a_caller_beyond_the_limit_waits_until_one_has_left, 0, 2);
    tcase_add_test(tests, test_gemm_works_in_a_child_after_fork);
    suite_add_tcase(suite, tests);
    return suite;
}
