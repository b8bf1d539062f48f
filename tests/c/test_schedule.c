/* The decode's schedule: random and known graphs compiled under many budgets, each program replayed
 * (replay.h), each failure followed to its end (judge.h). tests/checks/schedule runs more. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

Suite *hy3d_schedule_suite(void);

enum { CASES = 3000, SHARES = 20 };

static void count_up(const judge_report *report)
{
    static const char *const orders[] = {"whole", "layers", "chunks", "prefix", "tiles"};
    for (int i = 0; i < 5; i++) {
        char what[48] = "programs replayed, by ";
        strcat(what, orders[i]);
        test_count(what, (long)report->programs[i]);
    }
}

/* Replay: build/c/check_schedule one NUMBER. */
START_TEST(test_random_programs_keep_every_promise)
{
    hy3d_context *const context = test_context("ref", 1);
    judge_report report = {0};
    for (uint64_t i = (uint64_t)_i; i < CASES; i += SHARES) {
        graphs_case made;
        graphs_seed seed;
        const graphs_numbers numbers = graphs_numbers_of(&seed, i);
        graphs_random(numbers, &made);
        ck_assert_msg(judge_case(context, &made, numbers, &report), "case %llu: %s",
                      (unsigned long long)i, report.text);
    }
    count_up(&report);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_programs_of_known_decoders_keep_every_promise)
{
    static const int64_t sizes[][3] = {{1, 4, 4}, {2, 4, 6}, {5, 8, 8}};
    hy3d_context *const context = test_context("ref", 1);
    judge_report report = {0};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const int64_t scale = _i == GRAPHS_ENCODER ? 8 : 1;
        graphs_case made;
        graphs_seed seed;
        graphs_make_known((graphs_known)_i, 4, &made);
        graphs_request(&made, sizes[i][0], scale * sizes[i][1], scale * sizes[i][2]);
        made.request.device.slice_bytes[0] = 20000;
        made.request.device.slice_bytes[1] = 3000;
        made.salt = 1 + i;
        ck_assert_msg(judge_case(context, &made, graphs_numbers_of(&seed, i), &report), "%s: %s",
                      graphs_known_name((graphs_known)_i), report.text);
    }
    count_up(&report);
    hy3d_context_destroy(context);
}
END_TEST

/* A schedule of a small decoder with slices that leave. */
static graphs_case small_case(void)
{
    graphs_case made;
    graphs_make_known(GRAPHS_HUNYUAN, 4, &made);
    graphs_request(&made, 3, 4, 4);
    made.request.device.slice_bytes[0] = 4000;
    made.request.device.slice_bytes[1] = 0;
    return made;
}

static void settle(graphs_case *made)
{
    made->request.graph.nodes = made->nodes;
    made->request.user = made;
}

static hy3d_schedule *compiled(hy3d_context *context, graphs_case *made)
{
    hy3d_schedule *schedule = NULL;
    settle(made);
    ck_assert_ok(hy3d_schedule_compile(context, &made->request, &schedule));
    return schedule;
}

static hy3d_action fall(hy3d_context *context, hy3d_schedule *schedule, hy3d_reason reason,
                        bool can_widen)
{
    hy3d_action action = HY3D_ACTION_STOP;
    ck_assert_ok(hy3d_schedule_fallback(context, schedule, HY3D_STEP_ATTEMPTS, reason, can_widen,
                                        &action));
    return action;
}

START_TEST(test_what_follows_a_failure_is_as_the_header_says)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made = small_case();
    hy3d_schedule *schedule = compiled(context, &made);
    ck_assert_int_eq(fall(context, schedule, HY3D_REASON_CANCELLED, true), HY3D_ACTION_STOP);
    ck_assert_int_eq(fall(context, schedule, HY3D_REASON_REFUSED, true), HY3D_ACTION_STEP_AGAIN);
    ck_assert_int_eq(fall(context, schedule, HY3D_REASON_NOT_FINITE, true), HY3D_ACTION_WIDER);
    ck_assert_ptr_nonnull(hy3d_schedule_program(schedule));
    for (int32_t attempts = 1; attempts < HY3D_STEP_ATTEMPTS; attempts++) {
        hy3d_action action = HY3D_ACTION_STOP;
        for (int steps = 0; steps < 2; steps++) { /* two that fail as often do not add up */
            ck_assert_ok(hy3d_schedule_fallback(context, schedule, attempts,
                                                HY3D_REASON_OUT_OF_MEMORY, false, &action));
            ck_assert_int_eq(action, HY3D_ACTION_STEP_AGAIN);
        }
    }
    ck_assert_int_eq(fall(context, schedule, HY3D_REASON_OUT_OF_MEMORY, false),
                     HY3D_ACTION_BEGIN_AGAIN);
    ck_assert_ptr_nonnull(hy3d_schedule_program(schedule));
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_every_failing_allocation_of_a_compile_is_survived)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made = small_case();
    settle(&made);
    made.request.device_budget = 60000;
    hy3d_context_trim(context);
    const uint64_t live = hy3d_context_live_allocations(context);
    for (int forever = 0; forever < 2; forever++) {
        hy3d_status status = HY3D_ERR_OUT_OF_MEMORY;
        for (uint64_t k = 1; status == HY3D_ERR_OUT_OF_MEMORY; k++) {
            hy3d_schedule *schedule = NULL;
            hy3d_context_fail_allocation(context, k, forever == 1);
            status = hy3d_schedule_compile(context, &made.request, &schedule);
            hy3d_context_fail_allocation(context, 0, false);
            ck_assert_msg(status == HY3D_ERR_OUT_OF_MEMORY || status == HY3D_OK, "allocation "
                          "%llu fails: %s", (unsigned long long)k, hy3d_status_name(status));
            if (status == HY3D_OK) {
                ck_assert_uint_gt(k, 1);
                hy3d_schedule_destroy(context, schedule);
            }
            hy3d_context_trim(context);
            ck_assert_uint_eq(hy3d_context_live_allocations(context), live);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

/* The failing fallback leaves a schedule that can be asked again. */
START_TEST(test_every_failing_allocation_of_a_fallback_is_survived)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made = small_case();
    hy3d_context_trim(context);
    const uint64_t live = hy3d_context_live_allocations(context);
    hy3d_status status = HY3D_ERR_OUT_OF_MEMORY;
    for (uint64_t k = 1; status == HY3D_ERR_OUT_OF_MEMORY; k++) {
        hy3d_action action = HY3D_ACTION_STOP;
        hy3d_schedule *const schedule = compiled(context, &made);
        hy3d_context_fail_allocation(context, k, false);
        status = hy3d_schedule_fallback(context, schedule, HY3D_STEP_ATTEMPTS,
                                        HY3D_REASON_OUT_OF_HOST_MEMORY, false, &action);
        hy3d_context_fail_allocation(context, 0, false);
        ck_assert(status == HY3D_OK || status == HY3D_ERR_OUT_OF_MEMORY);
        hy3d_schedule_destroy(context, schedule);
        hy3d_context_trim(context);
        ck_assert_uint_eq(hy3d_context_live_allocations(context), live);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_margins_are_thousandths_to_the_byte)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made = small_case();
    hy3d_schedule *schedule = NULL;
    settle(&made);
    made.request.strategies = 1U << HY3D_STRATEGY_STREAMED;
    made.request.may_spill = 0;
    made.request.device_budget = 1;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    const int64_t bytes = hy3d_schedule_smallest_budget(schedule);
    hy3d_schedule_destroy(context, schedule);
    ck_assert_int_ne(bytes % 1000, 0);
    made.request.margin_permille = 500;
    schedule = NULL;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    ck_assert_int_eq(hy3d_schedule_smallest_budget(schedule), bytes + bytes / 2);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_budget_of_the_host_holds_without_one_of_the_device)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made = small_case();
    hy3d_schedule *schedule = NULL;
    settle(&made);
    made.request.result_bytes = 5000;
    made.request.host_budget = 4999;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_step_that_was_not_tried_can_not_fail)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made = small_case();
    hy3d_schedule *const schedule = compiled(context, &made);
    hy3d_action action = HY3D_ACTION_STOP;
    ck_assert_status(hy3d_schedule_fallback(context, schedule, -1, HY3D_REASON_OUT_OF_MEMORY,
                                            false, &action),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_schedule_fallback(context, schedule, 0, HY3D_REASON_OUT_OF_MEMORY,
                                            false, &action),
                     HY3D_ERR_INVALID_ARGUMENT);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_names_are_never_null)
{
    for (int32_t i = -1; i <= HY3D_STEP_OPS; i++) {
        ck_assert_ptr_nonnull(hy3d_step_op_name(i));
        ck_assert_ptr_nonnull(hy3d_order_name(i));
        ck_assert_ptr_nonnull(hy3d_strategy_name(i));
    }
    ck_assert_str_eq(hy3d_step_op_name(HY3D_STEP_CONV), "conv");
    ck_assert_str_eq(hy3d_order_name(HY3D_ORDER_LAYERS), "layers");
    ck_assert_str_eq(hy3d_strategy_name(HY3D_STRATEGY_STREAMED), "streamed");
}
END_TEST

Suite *hy3d_schedule_suite(void)
{
    Suite *const suite = suite_create("schedule");
    TCase *const tests = tcase_create("schedule");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_random_programs_keep_every_promise, 0, SHARES);
    tcase_add_loop_test(tests, test_programs_of_known_decoders_keep_every_promise, 0,
                        GRAPHS_KNOWN);
    tcase_add_test(tests, test_what_follows_a_failure_is_as_the_header_says);
    tcase_add_test(tests, test_every_failing_allocation_of_a_compile_is_survived);
    tcase_add_test(tests, test_every_failing_allocation_of_a_fallback_is_survived);
    tcase_add_test(tests, test_margins_are_thousandths_to_the_byte);
    tcase_add_test(tests, test_a_budget_of_the_host_holds_without_one_of_the_device);
    tcase_add_test(tests, test_a_step_that_was_not_tried_can_not_fail);
    tcase_add_test(tests, test_names_are_never_null);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_schedule_replay_cases());
    suite_add_tcase(suite, hy3d_schedule_refusal_cases());
    suite_add_tcase(suite, hy3d_schedule_cut_cases());
    suite_add_tcase(suite, hy3d_schedule_team_cases());
    return suite;
}
