/* The decode's schedule: random and known graphs compiled under many budgets, each program replayed
 * (replay.h), each failure followed to its end (judge.h). tests/long/schedule runs more. */
#include "schedule_support.h"

#include <stdlib.h>
#include <string.h>

Suite *hy3d_schedule_suite(void);

enum { SHARES = 20 };

static void count_up(const judge_report *report)
{
    static const char *const orders[] = {"whole", "layers", "chunks", "prefix", "tiles"};
    for (int i = 0; i < 5; i++) {
        char what[48] = "programs replayed, by ";
        strcat(what, orders[i]);
        test_count(what, (long)report->programs[i]);
    }
    test_count("programs replayed, of several ranks", (long)report->shared);
}

/* Replay: build/c/check_schedule one NUMBER. */
START_TEST(test_random_programs_keep_every_promise)
{
    hy3d_context *const context = test_context("ref", 1);
    judge_report report = {0};
    const uint64_t cases = (uint64_t)test_draws(250, 3000);
    for (uint64_t i = (uint64_t)_i; i < cases; i += SHARES) {
        graphs_case made;
        graphs_seed seed;
        const graphs_numbers numbers = graphs_of_number(&seed, i, &made);
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
    for (size_t i = 0; i < 2 * COUNT_OF(sizes); i++) {
        const int64_t scale = _i == GRAPHS_ENCODER ? 8 : 1;
        const int64_t *const size = sizes[i / 2];
        graphs_case made;
        graphs_seed seed;
        graphs_make_known((graphs_known)_i, 4, &made);
        graphs_request(&made, size[0], scale * size[1], scale * size[2]);
        made.request.device.slice_bytes[0] = 20000;
        made.request.device.slice_bytes[1] = 3000;
        made.request.ranks = i % 2 == 0 ? 1 : 3;
        made.salt = 1 + i / 2;
        ck_assert_msg(judge_case(context, &made, graphs_numbers_of(&seed, i / 2), &report),
                      "%s: %s", graphs_known_name((graphs_known)_i), report.text);
    }
    count_up(&report);
    hy3d_context_destroy(context);
}
END_TEST

/* A schedule of a small decoder with slices that leave. */
static void small_case(graphs_case *made)
{
    graphs_make_known(GRAPHS_HUNYUAN, 4, made);
    graphs_request(made, 3, 4, 4);
    made->request.device.slice_bytes[0] = 4000;
    made->request.device.slice_bytes[1] = 0;
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
    graphs_case made;
    small_case(&made);
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

/* Its one step is the whole decode: made again it would take as much, and as long. */
START_TEST(test_the_vaes_own_code_is_not_tried_again_for_memory)
{
    hy3d_context *const context = test_context("ref", 1);
    for (int has_more = 0; has_more < 2; has_more++) {
        graphs_case made;
        small_case(&made);
        made.request.strategies = 1U << HY3D_STRATEGY_WHOLE;
        made.request.strategies |= has_more == 1 ? 1U << HY3D_STRATEGY_STREAMED : 0U;
        made.request.own_bytes = INT64_C(1) << 40;
        made.request.device.own_seconds_share = 1e-9;
        hy3d_schedule *schedule = compiled(context, &made);
        ck_assert_int_eq(hy3d_schedule_program(schedule)->candidate.order, HY3D_ORDER_WHOLE);
        hy3d_action action = HY3D_ACTION_WIDER;
        ck_assert_ok(hy3d_schedule_fallback(context, schedule, 1, HY3D_REASON_NOT_FINITE, true,
                                            &action));
        ck_assert_int_eq(action, HY3D_ACTION_WIDER);
        ck_assert_ok(hy3d_schedule_fallback(context, schedule, 1, HY3D_REASON_OUT_OF_MEMORY,
                                            false, &action));
        ck_assert_int_eq(action, has_more == 1 ? HY3D_ACTION_BEGIN_AGAIN : HY3D_ACTION_STOP);
        hy3d_schedule_destroy(context, schedule);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_every_failing_allocation_of_a_compile_is_survived)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    small_case(&made);
    settle(&made);
    made.request.device_budget = 60000;
    hy3d_context_trim(context);
    const uint64_t live = test_live();
    for (int forever = 0; forever < 2; forever++) {
        hy3d_status status = HY3D_ERR_OUT_OF_MEMORY;
        for (uint64_t k = 1; status == HY3D_ERR_OUT_OF_MEMORY; k++) {
            hy3d_schedule *schedule = NULL;
            test_fail(k, forever == 1);
            status = hy3d_schedule_compile(context, &made.request, &schedule);
            test_fail(0, false);
            ck_assert_msg(status == HY3D_ERR_OUT_OF_MEMORY || status == HY3D_OK, "allocation "
                          "%llu fails: %s", (unsigned long long)k, hy3d_status_name(status));
            if (status == HY3D_OK) {
                ck_assert_uint_gt(k, 1);
                hy3d_schedule_destroy(context, schedule);
            }
            hy3d_context_trim(context);
            ck_assert_uint_eq(test_live(), live);
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

/* The failing fallback leaves a schedule that can be asked again. */
START_TEST(test_every_failing_allocation_of_a_fallback_is_survived)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    small_case(&made);
    hy3d_context_trim(context);
    const uint64_t live = test_live();
    hy3d_status status = HY3D_ERR_OUT_OF_MEMORY;
    for (uint64_t k = 1; status == HY3D_ERR_OUT_OF_MEMORY; k++) {
        hy3d_action action = HY3D_ACTION_STOP;
        hy3d_schedule *const schedule = compiled(context, &made);
        test_fail(k, false);
        status = hy3d_schedule_fallback(context, schedule, HY3D_STEP_ATTEMPTS,
                                        HY3D_REASON_OUT_OF_HOST_MEMORY, false, &action);
        test_fail(0, false);
        ck_assert(status == HY3D_OK || status == HY3D_ERR_OUT_OF_MEMORY);
        hy3d_schedule_destroy(context, schedule);
        hy3d_context_trim(context);
        ck_assert_uint_eq(test_live(), live);
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Wan's decoder, which goes by chunks and in tiles. */
static void chunked_case(const int32_t chunks[HY3D_SCHEDULE_MAX_CHUNKS], graphs_case *made)
{
    graphs_make_known(GRAPHS_WAN, 4, made);
    graphs_request(made, 9, 8, 8);
    memcpy(made->request.device.chunks, chunks, sizeof made->request.device.chunks);
    made->request.may_spill = 0;
    made->request.strategies = 1U << HY3D_STRATEGY_STREAMED | 1U << HY3D_STRATEGY_TILED;
    made->request.compiles_all = 1;
}

START_TEST(test_each_size_of_chunks_is_offered_and_tiles_take_the_last_that_is_given)
{
    static const int32_t given[][HY3D_SCHEDULE_MAX_CHUNKS] = {
        {4, 2, 1}, {4, 2, 0}, {4, 0, 1}, {3, 0, 0}};
    const int32_t *const chunks = given[_i];
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    chunked_case(chunks, &made);
    hy3d_schedule *const schedule = compiled(context, &made);
    const hy3d_candidate *all = NULL;
    const int32_t count = hy3d_schedule_candidates(schedule, &all);
    int32_t next = 0, last = 0, tiles = 0;
    for (int32_t i = 0; i < HY3D_SCHEDULE_MAX_CHUNKS; i++) {
        last = chunks[i] > 0 ? chunks[i] : last;
    }
    for (int32_t i = 0; i < count; i++) {
        if (all[i].order == HY3D_ORDER_TILES) {
            ck_assert_int_eq(all[i].chunk, last);
            tiles++;
            continue;
        }
        if (all[i].order == HY3D_ORDER_LAYERS) { /* takes less than any of the chunks */
            ck_assert_int_eq(tiles, 0);
            continue;
        }
        while (next < HY3D_SCHEDULE_MAX_CHUNKS && chunks[next] == 0) {
            next++;
        }
        ck_assert_int_lt(next, HY3D_SCHEDULE_MAX_CHUNKS);
        ck_assert_int_eq(all[i].order, HY3D_ORDER_CHUNKS);
        ck_assert_int_eq(all[i].chunk, chunks[next++]);
    }
    ck_assert_int_gt(tiles, 0);
    while (next < HY3D_SCHEDULE_MAX_CHUNKS) {
        ck_assert_int_eq(chunks[next++], 0); /* none was left out */
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* The least that a candidate of this order takes; INT64_MAX where there is none. */
static int64_t least_of(const hy3d_schedule *schedule, int32_t order)
{
    const hy3d_candidate *all = NULL;
    const int32_t count = hy3d_schedule_candidates(schedule, &all);
    int64_t found = INT64_MAX;
    for (int32_t i = 0; i < count; i++) {
        if (all[i].order == order && all[i].device_bytes < found) {
            found = all[i].device_bytes;
        }
    }
    return found;
}

/* The order taken under a budget. By layers it goes, or is looked at, where no chunk fits only. */
static int32_t order_under(hy3d_context *context, graphs_case *made, int64_t budget)
{
    made->request.device_budget = budget;
    hy3d_schedule *const schedule = compiled(context, made);
    const hy3d_candidate taken = hy3d_schedule_program(schedule)->candidate;
    ck_assert(taken.is_exact || taken.order == HY3D_ORDER_TILES);
    ck_assert((least_of(schedule, HY3D_ORDER_LAYERS) < INT64_MAX) ==
              (taken.order != HY3D_ORDER_CHUNKS));
    hy3d_schedule_destroy(context, schedule);
    return taken.order;
}

/* Of Wan's decoder, and of the same with norms of frames (_i 1). */
START_TEST(test_what_could_go_in_chunks_goes_by_layers_where_no_chunk_fits_and_before_tiles)
{
    static const int32_t chunks[] = {2, 1, 0};
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    chunked_case(chunks, &made);
    for (int32_t i = 0; _i == 1 && i < made.request.graph.count; i++) {
        const bool is_normed = made.nodes[i].norm == HY3D_NORM_POSITION;
        made.nodes[i].norm = is_normed ? HY3D_NORM_FRAME : made.nodes[i].norm;
    }
    made.request.may_spill = 1;
    made.request.halos[1] = (hy3d_tile_sizes){0, 0, 8};
    made.request.device.slice_bytes[0] = 1;
    made.request.device.slice_bytes[1] = 0;
    made.request.device_budget = 1;
    hy3d_schedule *schedule = NULL;
    settle(&made);
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    const int64_t in_chunks = least_of(schedule, HY3D_ORDER_CHUNKS);
    const int64_t by_layers = least_of(schedule, HY3D_ORDER_LAYERS);
    hy3d_schedule_destroy(context, schedule);
    ck_assert_int_lt(by_layers, in_chunks);
    made.request.compiles_all = 0;
    ck_assert_int_eq(order_under(context, &made, in_chunks), HY3D_ORDER_CHUNKS);
    ck_assert_int_eq(order_under(context, &made, in_chunks - 1), HY3D_ORDER_LAYERS);
    ck_assert_int_eq(order_under(context, &made, by_layers), HY3D_ORDER_LAYERS);
    ck_assert_int_eq(order_under(context, &made, by_layers - 1), HY3D_ORDER_TILES);
    made.request.compiles_all = 1; /* which changes what is told of, and not the choice */
    made.request.device_budget = in_chunks;
    schedule = compiled(context, &made);
    ck_assert_int_lt(least_of(schedule, HY3D_ORDER_LAYERS), INT64_MAX);
    ck_assert_int_eq(hy3d_schedule_program(schedule)->candidate.order, HY3D_ORDER_CHUNKS);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* Wan's decoder on a picture of many levels of tiles, with two halos. */
static void tiled_case(graphs_case *made)
{
    graphs_make_known(GRAPHS_WAN, 4, made);
    graphs_request(made, 5, 48, 64);
    made->request.halos[0] = (hy3d_tile_sizes){32, 16, 32};
    made->request.halos[1] = (hy3d_tile_sizes){16, 8, 16};
    made->request.strategies = 1U << HY3D_STRATEGY_TILED | 1U << HY3D_STRATEGY_HOST;
}

START_TEST(test_where_the_device_is_the_host_nothing_is_looked_at_twice)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    tiled_case(&made);
    hy3d_schedule *schedule = NULL;
    const hy3d_candidate *all;
    made.request.is_host = 1;
    made.request.device_budget = 1;
    made.request.strategies |= 1U << HY3D_STRATEGY_STREAMED;
    ck_assert_int_eq(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    const int32_t count = hy3d_schedule_candidates(schedule, &all);
    ck_assert_int_gt(count, 2);
    for (int32_t i = 0; i < count; i++) {
        ck_assert(!all[i].on_host);
    }
    hy3d_schedule_destroy(context, schedule);
    made.request.strategies = 1U << HY3D_STRATEGY_HOST;
    ck_assert_int_eq(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    ck_assert_int_eq(hy3d_schedule_candidates(schedule, &all), count);
    for (int32_t i = 0; i < count; i++) {
        ck_assert(all[i].on_host);
    }
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

/* tries: programs in tiles of each halo, on the device and on the host; levels: theirs there. */
START_TEST(test_tiles_that_no_kernel_can_compute_are_tried_in_three_sizes_and_then_on_the_host)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    tiled_case(&made);
    int32_t tries[2][HY3D_SCHEDULE_MAX_HALOS] = {{0}};
    int32_t levels[HY3D_SCHEDULE_MAX_HALOS][3] = {{0}};
    hy3d_candidate last = {.status = HY3D_OK};
    hy3d_schedule *const schedule = compiled(context, &made);
    do {
        last = hy3d_schedule_program(schedule)->candidate;
        if (last.order == HY3D_ORDER_TILES) {
            int32_t *const count = &tries[last.on_host][last.halo_row];
            ck_assert_int_lt(*count, 3);
            if (!last.on_host) {
                levels[last.halo_row][*count] = last.level;
            }
            ++*count;
        }
    } while (fall(context, schedule, HY3D_REASON_NO_KERNEL, false) == HY3D_ACTION_BEGIN_AGAIN);
    ck_assert(last.on_host);
    ck_assert_int_eq(tries[0][0], 3);
    ck_assert_int_eq(levels[0][0], 0);
    ck_assert_int_eq(levels[0][1], 1);
    ck_assert_int_gt(levels[0][2], 4); /* the smallest, not the next */
    ck_assert_int_ge(tries[1][0], 1);
    hy3d_schedule_destroy(context, schedule);
    hy3d_context_destroy(context);
}
END_TEST

typedef struct counted {
    graphs_case *made;
    hy3d_workspace_function inside;
    int64_t questions;
} counted;

static hy3d_status count_question(void *user, const hy3d_step *step, const hy3d_size *source,
                                  int32_t on_host, hy3d_step_memory *taken)
{
    counted *const state = user;
    state->questions += !on_host;
    return state->inside(state->made, step, source, on_host, taken);
}

/* Questions of the device that a compile under this budget asks, and what it takes. */
static int64_t questions_of(hy3d_context *context, int64_t budget, int32_t only_level,
                            hy3d_candidate *taken)
{
    graphs_case made;
    tiled_case(&made);
    hy3d_schedule *schedule = NULL;
    counted state = {.made = &made, .inside = made.request.workspace};
    made.salt = 7;
    made.request.graph.nodes = made.nodes;
    made.request.workspace = count_question;
    made.request.user = &state;
    made.request.device_budget = budget;
    made.request.only_level = only_level;
    ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedule));
    *taken = hy3d_schedule_program(schedule)->candidate;
    hy3d_schedule_destroy(context, schedule);
    return state.questions;
}

/* Says the same of nodes that are alike: `user` counts the questions. */
static hy3d_status by_size(void *user, const hy3d_step *step, const hy3d_size *source,
                           int32_t on_host, hy3d_step_memory *taken)
{
    ++*(int64_t *)user;
    taken->workspace_bytes = (1 + step->op + on_host) * (step->reads[1] - step->reads[0]) *
                             source->rows * (source->columns + (step->reads[0] == 0));
    taken->kept_bytes = 64;
    taken->shape_bytes = 16;
    taken->shape = step->op;
    return HY3D_OK;
}

START_TEST(test_nodes_that_are_alike_share_their_answers)
{
    hy3d_context *const context = test_context("ref", 1);
    const int32_t alike[64] = {0};
    int64_t questions[2] = {0, 0};
    hy3d_schedule *schedules[2];
    for (int i = 0; i < 2; i++) {
        graphs_case made;
        tiled_case(&made);
        made.request.graph.nodes = made.nodes;
        made.request.workspace = by_size;
        made.request.user = &questions[i];
        made.request.compiles_all = 1;
        made.request.alike = i == 0 ? NULL : alike;
        ck_assert_int_le(made.request.graph.count, 64);
        ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedules[i]));
    }
    const hy3d_candidate *found[2];
    const int32_t count = hy3d_schedule_candidates(schedules[0], &found[0]);
    ck_assert_int_eq(hy3d_schedule_candidates(schedules[1], &found[1]), count);
    for (int32_t i = 0; i < count; i++) {
        ck_assert_int_eq(found[0][i].device_bytes, found[1][i].device_bytes);
        ck_assert_int_eq(found[0][i].host_bytes, found[1][i].host_bytes);
        ck_assert_int_eq(found[0][i].steps, found[1][i].steps);
    }
    ck_assert_int_lt(questions[1], questions[0]);
    hy3d_schedule_destroy(context, schedules[0]);
    hy3d_schedule_destroy(context, schedules[1]);
    hy3d_context_destroy(context);
}
END_TEST

static int64_t smallest_of_tiles(hy3d_context *context)
{
    graphs_case made;
    tiled_case(&made);
    hy3d_schedule *schedule = NULL;
    settle(&made);
    made.salt = 7;
    made.request.strategies = 1U << HY3D_STRATEGY_TILED;
    made.request.device_budget = 1;
    ck_assert_status(hy3d_schedule_compile(context, &made.request, &schedule),
                     HY3D_ERR_BUDGET_TOO_SMALL);
    const int64_t smallest = hy3d_schedule_smallest_budget(schedule);
    hy3d_schedule_destroy(context, schedule);
    return smallest;
}

START_TEST(test_tiles_whose_slices_do_not_fit_are_given_up_without_a_question)
{
    hy3d_context *const context = test_context("ref", 1);
    hy3d_candidate taken, alone;
    ck_assert_int_eq(questions_of(context, 1, 0, &taken), 0);
    ck_assert(taken.on_host);
    questions_of(context, 0, 0, &taken);
    ck_assert_int_eq(taken.level, 0);
    const int64_t all = questions_of(context, taken.device_bytes / 3, 0, &taken);
    ck_assert_int_ge(taken.level, 3);
    ck_assert(!taken.on_host);
    /* Nothing of them fits, and the host is not allowed: the smallest budget is named, and does. */
    const int64_t smallest = smallest_of_tiles(context);
    questions_of(context, smallest, 0, &alone);
    ck_assert(!alone.on_host);
    ck_assert_int_eq(alone.device_bytes, smallest);
    questions_of(context, smallest - 1, 0, &alone);
    ck_assert(alone.on_host);
    /* What is asked of those given up is little beside what is asked of the one taken. */
    const int64_t own = questions_of(context, 0, taken.level + 1, &alone);
    ck_assert_int_eq(alone.device_bytes, taken.device_bytes);
    ck_assert_int_lt(all, own + own / 2);
    hy3d_context_destroy(context);
}
END_TEST

/* What is taken under this budget where the VAE's own code takes `told` bytes (-1: nobody can
 * tell), and how often that was asked. */
static hy3d_candidate taken_with_own(hy3d_context *context, int64_t told, int64_t budget,
                                     int32_t compiles_all, int32_t *asked_out)
{
    graphs_case made;
    small_case(&made);
    hy3d_schedule *schedule = NULL;
    settle(&made);
    made.own_told = told;
    made.request.own_bytes = HY3D_OWN_BYTES_ASKED;
    made.request.device.own_seconds_share = 1e6;
    made.request.may_spill = 0;
    made.request.device_budget = budget;
    made.request.compiles_all = compiles_all;
    ck_assert_ok(hy3d_schedule_compile(context, &made.request, &schedule));
    const hy3d_candidate taken = hy3d_schedule_program(schedule)->candidate;
    hy3d_schedule_destroy(context, schedule);
    *asked_out = made.own_asked;
    return taken;
}

START_TEST(test_the_bytes_of_own_code_are_asked_for_where_they_decide)
{
    hy3d_context *const context = test_context("ref", 1);
    int32_t asked = -1;
    const hy3d_candidate all = taken_with_own(context, 1, 0, 0, &asked);
    ck_assert_int_eq(all.strategy, HY3D_STRATEGY_STREAMED); /* faster, whatever the other takes */
    ck_assert_int_eq(asked, 0);
    taken_with_own(context, 1, 0, 1, &asked);
    ck_assert_int_eq(asked, 1); /* it is printed */
    ck_assert_int_eq(taken_with_own(context, 1, 1, 0, &asked).on_host, 1);
    ck_assert_int_eq(asked, 0); /* one byte is less than any code takes */
    /* Nothing that streams fits: it is asked, once, and counted as what it takes at least. */
    graphs_case made;
    small_case(&made);
    settle(&made);
    const int64_t least = replay_least_own_bytes(&made.request);
    ck_assert_int_lt(least, all.device_bytes);
    const hy3d_candidate own = taken_with_own(context, 1, least, 0, &asked);
    ck_assert_int_eq(own.strategy, HY3D_STRATEGY_WHOLE);
    ck_assert_int_eq(own.device_bytes, least);
    ck_assert_int_eq(asked, 1);
    ck_assert_int_ne(taken_with_own(context, least + 1, least, 0, &asked).strategy,
                     HY3D_STRATEGY_WHOLE);
    ck_assert_int_ne(taken_with_own(context, -1, least, 0, &asked).strategy, HY3D_STRATEGY_WHOLE);
    ck_assert_int_eq(asked, 1);
    ck_assert_int_ne(taken_with_own(context, 1, least - 1, 0, &asked).strategy,
                     HY3D_STRATEGY_WHOLE);
    ck_assert_int_eq(asked, 0);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_margins_are_thousandths_to_the_byte)
{
    hy3d_context *const context = test_context("ref", 1);
    graphs_case made;
    small_case(&made);
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
    graphs_case made;
    small_case(&made);
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
    graphs_case made;
    small_case(&made);
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
    tcase_add_test(tests, test_the_vaes_own_code_is_not_tried_again_for_memory);
    tcase_add_test(tests, test_every_failing_allocation_of_a_compile_is_survived);
    tcase_add_test(tests, test_every_failing_allocation_of_a_fallback_is_survived);
    tcase_add_loop_test(
        tests, test_each_size_of_chunks_is_offered_and_tiles_take_the_last_that_is_given, 0, 4);
    tcase_add_loop_test(
        tests, test_what_could_go_in_chunks_goes_by_layers_where_no_chunk_fits_and_before_tiles, 0,
        2);
    tcase_add_test(
        tests, test_tiles_that_no_kernel_can_compute_are_tried_in_three_sizes_and_then_on_the_host);
    tcase_add_test(tests, test_where_the_device_is_the_host_nothing_is_looked_at_twice);
    tcase_add_test(tests, test_nodes_that_are_alike_share_their_answers);
    tcase_add_test(tests, test_tiles_whose_slices_do_not_fit_are_given_up_without_a_question);
    tcase_add_test(tests, test_the_bytes_of_own_code_are_asked_for_where_they_decide);
    tcase_add_test(tests, test_margins_are_thousandths_to_the_byte);
    tcase_add_test(tests, test_a_budget_of_the_host_holds_without_one_of_the_device);
    tcase_add_test(tests, test_a_step_that_was_not_tried_can_not_fail);
    tcase_add_test(tests, test_names_are_never_null);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_schedule_replay_cases());
    suite_add_tcase(suite, hy3d_schedule_ranks_cases());
    suite_add_tcase(suite, hy3d_schedule_shards_cases());
    suite_add_tcase(suite, hy3d_schedule_refusal_cases());
    suite_add_tcase(suite, hy3d_schedule_cut_cases());
    suite_add_tcase(suite, hy3d_schedule_transfer_cases());
    suite_add_tcase(suite, hy3d_schedule_team_cases());
    suite_add_tcase(suite, hy3d_schedule_memory_cases());
    return suite;
}
