/* Plans and runs: bits, workspaces, cancellation, threads, memory. */
#include "conv3d_support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Reals, so that another order of sums would show. One direct shape, one that takes panels. */
static hy3d_conv3d_desc bits_desc(int which)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 20, 70, 5, 20, 37, 3);
    if (which == 1) {
        desc = conv_desc(HY3D_F64, 5, 9, 5, 20, 13, 3);
    }
    desc.pad_before[0] = 2;
    desc.pad_mode[0] = HY3D_PAD_REPLICATE;
    return desc;
}

static hy3d_conv3d_plan *make_plan(hy3d_context *context, const conv_problem *problem)
{
    hy3d_conv3d_plan *plan = NULL;
    ck_assert_ok(hy3d_conv3d_plan_create(context, &problem->desc, &problem->weight.tensor,
                                         problem->has_bias ? &problem->bias.tensor : NULL, NULL,
                                         &plan));
    return plan;
}

START_TEST(test_bits_do_not_depend_on_threads_limit_or_alignment)
{
    static const uint32_t threads[] = {1, 2, 3, 8};
    hy3d_context *const context = test_context(NULL, 8);
    test_random random = test_rng(300);
    const hy3d_conv3d_desc desc = bits_desc(_i);
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    if (conv_needs_missing_blas(context, &problem)) {
        (void)test_has_blas(context);
        conv_problem_free(&problem);
        hy3d_context_destroy(context);
        return;
    }
    hy3d_conv3d_plan *plan = NULL;
    size_t needed = 0;
    ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &problem.weight.tensor, NULL, &needed,
                                         &plan));
    hy3d_conv3d_plan_destroy(plan);
    ck_assert_ok(conv_problem_run(context, &problem));
    unsigned char *const first = malloc(problem.y.bytes);
    memcpy(first, problem.y.memory, problem.y.bytes);
    /* The same values one element further on: another address modulo every vector size. */
    const size_t elem = hy3d_dtype_bytes(desc.dtype);
    unsigned char *const moved = malloc(problem.x.bytes + elem);
    memcpy(moved + elem, problem.x.memory, problem.x.bytes);

    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        const size_t limits[] = {0, needed, 2 * needed + 1, 5 * needed};
        for (size_t j = 0; j < COUNT_OF(limits); j++) {
            problem.desc.num_threads = threads[i];
            problem.desc.workspace_limit_bytes = limits[j];
            conv_problem other = problem;
            if (j % 2 == 1) {
                other.x.tensor.data = moved + elem;
            }
            memset(problem.y.memory, 0xff, problem.y.bytes);
            ck_assert_ok(conv_problem_run(context, &other));
            ck_assert_mem_eq(problem.y.memory, first, problem.y.bytes);
        }
    }
    free(moved);
    free(first);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_workspace_stays_below_the_limit_and_nothing_beyond_it_is_written)
{
    enum { CANARY = 4096 };
    hy3d_context *const context = test_context(NULL, 8);
    test_random random = test_rng(301);
    hy3d_conv3d_desc desc = bits_desc(_i);
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 3);
    if (conv_needs_missing_blas(context, &problem)) {
        (void)test_has_blas(context);
        conv_problem_free(&problem);
        hy3d_context_destroy(context);
        return;
    }
    hy3d_conv3d_plan *plan = NULL;
    size_t needed = 0;
    problem.desc.workspace_limit_bytes = 1;
    ck_assert_status(hy3d_conv3d_plan_create(context, &problem.desc, &problem.weight.tensor, NULL,
                                             &needed, &plan),
                     HY3D_ERR_WORKSPACE_TOO_SMALL);
    ck_assert_uint_gt(needed, 0);
    ck_assert_uint_lt(needed, (size_t)4 << 20);
    ck_assert_ptr_null(plan);
    unsigned char *const first = malloc(problem.y.bytes);
    for (size_t factor = 1; factor <= 4; factor++) {
        memset(problem.y.memory, 0xff, problem.y.bytes);
        problem.desc.workspace_limit_bytes = factor * needed;
        plan = make_plan(context, &problem);
        const size_t bytes = hy3d_conv3d_plan_workspace_bytes(plan);
        ck_assert_uint_le(bytes, factor * needed);
        ck_assert_uint_eq(bytes % 64, 0);
        ck_assert_uint_le(hy3d_conv3d_plan_threads(plan), factor);
        test_guard guard = test_guard_make(bytes + CANARY);
        unsigned char *const workspace = test_guard_end(&guard, bytes);
        ck_assert_uint_eq((uintptr_t)workspace % 64, 0);
        memset(workspace - CANARY / 2, 0xa5, CANARY / 2);
        ck_assert_ok(hy3d_conv3d_run(plan, &problem.x.tensor, &problem.y.tensor, workspace, NULL));
        for (int i = 1; i <= CANARY / 2; i++) {
            ck_assert_uint_eq(workspace[-i], 0xa5);
        }
        if (factor == 1) { /* the reference takes longer than all the rest */
            ck_assert_int_eq(conv_problem_differing(&problem), 0);
            memcpy(first, problem.y.memory, problem.y.bytes);
        }
        ck_assert_int_eq(memcmp(first, problem.y.memory, problem.y.bytes), 0);
        test_guard_free(&guard);
        hy3d_conv3d_plan_destroy(plan);
    }
    free(first);
    problem.desc.workspace_limit_bytes = needed - 1;
    ck_assert_status(conv_problem_run(context, &problem), HY3D_ERR_WORKSPACE_TOO_SMALL);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

/* The last element of x lies at the end of a page: vectors that read on would fault. */
START_TEST(test_nothing_beyond_the_input_is_read)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F16, HY3D_BF16};
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(302);

    for (int64_t w = 3; w < 40; w += 6) {
        for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
            const hy3d_conv3d_desc desc = conv_desc(dtypes[i], 3, 5, 3, 9, w, i == 0 ? 1 : 3);
            conv_problem problem = conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN,
                                                     LAYOUT_PLAIN, &random, 3);
            test_guard guard = test_guard_make(problem.x.bytes);
            test_guard y_guard = test_guard_make(problem.y.bytes);
            problem.x.tensor.data =
                memcpy(test_guard_end(&guard, problem.x.bytes), problem.x.memory, problem.x.bytes);
            problem.y.tensor.data = test_guard_end(&y_guard, problem.y.bytes);
            if (!conv_needs_missing_blas(context, &problem)) {
                ck_assert_ok(conv_problem_run(context, &problem));
                ck_assert_int_eq(conv_problem_differing(&problem), 0);
            }
            test_guard_free(&guard);
            test_guard_free(&y_guard);
            conv_problem_free(&problem);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_requested_cancel_stops_the_run_and_a_reset_one_does_not)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(303);
    const hy3d_conv3d_desc desc = bits_desc(0);
    conv_problem problem =
        conv_problem_make(&desc, false, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 3);
    hy3d_conv3d_plan *const plan = make_plan(context, &problem);
    hy3d_cancel *cancel = NULL;
    void *workspace = NULL;

    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace));
    hy3d_cancel_request(cancel);
    ck_assert_status(hy3d_conv3d_run(plan, &problem.x.tensor, &problem.y.tensor, workspace, cancel),
                     HY3D_ERR_CANCELLED);
    hy3d_cancel_reset(cancel);
    ck_assert_ok(hy3d_conv3d_run(plan, &problem.x.tensor, &problem.y.tensor, workspace, cancel));
    ck_assert_int_eq(conv_problem_differing(&problem), 0);
    hy3d_free(context, workspace);
    hy3d_cancel_destroy(context, cancel);
    hy3d_conv3d_plan_destroy(plan);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status create_and_destroy(hy3d_context *context, void *argument)
{
    const conv_problem *const problem = argument;
    hy3d_conv3d_plan *plan = NULL;
    const hy3d_status status =
        hy3d_conv3d_plan_create(context, &problem->desc, &problem->weight.tensor,
                                &problem->bias.tensor, NULL, &plan);
    ck_assert(status == HY3D_OK || plan == NULL);
    hy3d_conv3d_plan_destroy(plan);
    return status;
}

START_TEST(test_every_failing_allocation_of_a_plan_is_survived)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F64, HY3D_F16, HY3D_BF16};
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(304);

    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        const hy3d_conv3d_desc desc = conv_desc(dtypes[i], 3, 5, 3, 9, 9, 3);
        conv_problem problem = conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_LAST,
                                                 LAYOUT_PLAIN, &random, 3);
        if (!conv_needs_missing_blas(context, &problem)) {
            /* Plan, bias, weight; f64 has no table of offsets. */
            ck_assert_uint_eq(test_allocation_sweep(context, create_and_destroy, &problem),
                              dtypes[i] == HY3D_F64 ? 3 : 4);
        }
        conv_problem_free(&problem);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_run_allocates_nothing)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(305);
    const hy3d_conv3d_desc desc = bits_desc(0);
    conv_problem problem =
        conv_problem_make(&desc, false, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 3);
    hy3d_conv3d_plan *const plan = make_plan(context, &problem);
    void *workspace = NULL;

    ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace));
    /* The first run may start the pool's threads. */
    ck_assert_ok(hy3d_conv3d_run(plan, &problem.x.tensor, &problem.y.tensor, workspace, NULL));
    const uint64_t before = test_asked();
    ck_assert_ok(hy3d_conv3d_run(plan, &problem.x.tensor, &problem.y.tensor, workspace, NULL));
    ck_assert_uint_eq(test_asked(), before);
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

typedef struct caller {
    const hy3d_conv3d_plan *plan;
    const conv_problem *problem;
    hy3d_context *context;
    conv_view y;
    hy3d_status status;
} caller;

static void *call_several_times(void *argument)
{
    caller *const self = argument;
    void *workspace = NULL;
    self->status =
        hy3d_alloc(self->context, hy3d_conv3d_plan_workspace_bytes(self->plan), &workspace);
    for (int i = 0; i < 5 && self->status == HY3D_OK; i++) {
        memset(self->y.memory, 0xff, self->y.bytes);
        self->status = hy3d_conv3d_run(self->plan, &self->problem->x.tensor, &self->y.tensor,
                                       workspace, NULL);
    }
    hy3d_free(self->context, workspace);
    return NULL;
}

START_TEST(test_one_plan_serves_several_threads_at_once)
{
    enum { CALLERS = 4 };
    hy3d_context *const context = test_context(NULL, 3);
    test_random random = test_rng(306);
    const hy3d_conv3d_desc desc = bits_desc(0);
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    hy3d_conv3d_plan *const plan = make_plan(context, &problem);
    pthread_t threads[CALLERS];
    caller callers[CALLERS];

    ck_assert_ok(conv_problem_run(context, &problem));
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.plan = plan, .problem = &problem, .context = context};
        callers[i].y = conv_view_make(HY3D_F32, problem.y.tensor.size, LAYOUT_PLAIN, 0xff);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, call_several_times, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_ok(callers[i].status);
        ck_assert_mem_eq(callers[i].y.memory, problem.y.memory, problem.y.bytes);
        conv_view_free(&callers[i].y);
    }
    hy3d_conv3d_plan_destroy(plan);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_conv3d_run_case(void)
{
    TCase *const tests = tcase_create("run");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_bits_do_not_depend_on_threads_limit_or_alignment, 0, 2);
    tcase_add_loop_test(
        tests, test_workspace_stays_below_the_limit_and_nothing_beyond_it_is_written, 0, 2);
    tcase_add_test(tests, test_nothing_beyond_the_input_is_read);
    tcase_add_test(tests, test_a_requested_cancel_stops_the_run_and_a_reset_one_does_not);
    tcase_add_test(tests, test_every_failing_allocation_of_a_plan_is_survived);
    tcase_add_test(tests, test_run_allocates_nothing);
    tcase_add_test(tests, test_one_plan_serves_several_threads_at_once);
    return tests;
}
