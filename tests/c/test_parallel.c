/* The thread pool. The test program's own threads stand for the host's. */
#define _GNU_SOURCE
#include "pool_grains.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/context_internal.h"
#include "base/os.h"

START_TEST(test_every_grain_runs_once_and_no_slot_is_shared)
{
    static const int64_t grains[] = {0, 1, 2, 3, 7, 64, MOST_GRAINS};
    static const uint32_t widths[] = {1, 2, 3, 16};
    for (size_t t = 0; t < COUNT_OF(widths); t++) {
        hy3d_context *const context = test_context(NULL, widths[t]);
        for (size_t s = 0; s < COUNT_OF(widths); s++) {
            for (size_t g = 0; g < COUNT_OF(grains); g++) {
                record *const seen = make_record(widths[s]);
                ck_assert_ok(hy3d__parallel_for(context, grains[g], widths[s], NULL, record_grain,
                                                seen));
                for (int64_t i = 0; i < MOST_GRAINS; i++) {
                    ck_assert_int_eq(seen->runs[i], i < grains[g]);
                }
                ck_assert_int_eq(seen->bad_slots, 0);
                ck_assert_int_eq(seen->shared_slots, 0);
                ck_assert_int_le(seen->most_inside, (int)widths[t]);
                ck_assert_int_le(seen->most_inside, (int)widths[s]);
                free(seen);
            }
        }
        hy3d_context_destroy(context);
    }
}
END_TEST

START_TEST(test_wrong_arguments_are_refused)
{
    hy3d_context *const context = test_context(NULL, 2);
    record *const seen = make_record(2);
    ck_assert_status(hy3d__parallel_for(context, 4, 0, NULL, record_grain, seen),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d__parallel_for(context, -1, 2, NULL, record_grain, seen),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d__parallel_for(context, 4, 2, NULL, NULL, seen),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d__parallel_for(NULL, 4, 2, NULL, record_grain, seen),
                     HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(seen->total, 0);
    free(seen);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_as_many_threads_run_as_there_are_slots_each_in_its_own)
{
    hy3d_context *const context = test_context(NULL, 6);
    for (int round = 0; round < 20; round++) {
        meeting all = MEETING(6);
        ck_assert_ok(hy3d__parallel_for(context, 6, 6, NULL, meet, &all));
        ck_assert_uint_eq(all.slots, 0x3f);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_nothing_starts_after_the_first_failure)
{
    hy3d_context *const context = test_context(NULL, 4);
    record *seen = make_record(1);
    seen->fail_at = 5;
    ck_assert_status(hy3d__parallel_for(context, 100, 1, NULL, record_grain, seen),
                     HY3D_ERR_UNSUPPORTED);
    ck_assert_int_eq(seen->total, 6);
    free(seen);
    /* With more threads each may finish the grain it has begun; the call still says so. */
    for (int round = 0; round < 50; round++) {
        seen = make_record(4);
        seen->fail_at = round;
        ck_assert_status(hy3d__parallel_for(context, MOST_GRAINS, 4, NULL, record_grain, seen),
                         HY3D_ERR_UNSUPPORTED);
        ck_assert_int_eq(seen->runs[round], 1);
        free(seen);
    }
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_nothing_starts_after_a_cancellation)
{
    hy3d_context *const context = test_context(NULL, 4);
    hy3d_cancel *cancel = NULL;
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    record *seen = make_record(1);
    seen->cancel = cancel;
    seen->cancel_at = 5;
    ck_assert_status(hy3d__parallel_for(context, 100, 1, cancel, record_grain, seen),
                     HY3D_ERR_CANCELLED);
    ck_assert_int_eq(seen->total, 6);
    /* Still requested: the next call runs nothing. */
    ck_assert_status(hy3d__parallel_for(context, 100, 4, cancel, record_grain, seen),
                     HY3D_ERR_CANCELLED);
    ck_assert_int_eq(seen->total, 6);
    hy3d_cancel_reset(cancel);
    free(seen);
    /* Requested in the last grain: everything has run, and the call says so. */
    seen = make_record(1);
    seen->cancel = cancel;
    seen->cancel_at = 99;
    ck_assert_ok(hy3d__parallel_for(context, 100, 1, cancel, record_grain, seen));
    ck_assert_int_eq(seen->total, 100);
    free(seen);
    hy3d_cancel_destroy(context, cancel);
    hy3d_context_destroy(context);
}
END_TEST

static hy3d_status pause_grain(void *argument, int64_t grain, uint32_t slot)
{
    (void)argument;
    (void)grain;
    (void)slot;
    const struct timespec length = {0, 200000};
    nanosleep(&length, NULL);
    return HY3D_OK;
}

static void *cancel_soon(void *argument)
{
    pause_grain(NULL, 0, 0);
    hy3d_cancel_request(argument);
    return NULL;
}

START_TEST(test_another_thread_can_cancel_an_endless_call)
{
    hy3d_context *const context = test_context(NULL, 4);
    hy3d_cancel *cancel = NULL;
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, cancel_soon, cancel), 0);
    ck_assert_status(hy3d__parallel_for(context, INT64_MAX / 2, 4, cancel, pause_grain, NULL),
                     HY3D_ERR_CANCELLED);
    pthread_join(other, NULL);
    hy3d_cancel_destroy(context, cancel);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_eight_threads_share_one_pool_without_mixing_their_calls)
{
    hy3d_context *const context = test_context(NULL, 4);
    caller callers[8];
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        callers[i] = (caller){.context = context};
        ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(callers); i++) {
        pthread_join(callers[i].thread, NULL);
        ck_assert_int_eq(callers[i].bad_calls, 0);
    }
    hy3d_context_destroy(context);
}
END_TEST

typedef struct nest {
    hy3d_context *context;
    _Atomic int inner_runs, strays;
} nest;

typedef struct nest_level {
    nest *of;
    pthread_t outer_thread;
} nest_level;

static hy3d_status inner_grain(void *argument, int64_t grain, uint32_t slot)
{
    const nest_level *const level = argument;
    atomic_fetch_add(&level->of->inner_runs, 1);
    pause_grain(NULL, grain, slot); /* time for an idle worker to come in, were it let */
    if (slot != 0 || !pthread_equal(level->outer_thread, pthread_self())) {
        atomic_fetch_add(&level->of->strays, 1);
    }
    return HY3D_OK;
}

static hy3d_status outer_grain(void *argument, int64_t grain, uint32_t slot)
{
    (void)grain;
    (void)slot;
    nest *const of = argument;
    nest_level level = {of, pthread_self()};
    return hy3d__parallel_for(of->context, 10, 4, NULL, inner_grain, &level);
}

START_TEST(test_a_call_from_inside_a_grain_runs_serially)
{
    nest of = {.context = test_context(NULL, 4)};
    meeting all = MEETING(4); /* starts the workers */
    ck_assert_ok(hy3d__parallel_for(of.context, 4, 4, NULL, meet, &all));
    for (uint32_t slots = 1; slots <= 4; slots++) {
        of.inner_runs = 0;
        ck_assert_ok(hy3d__parallel_for(of.context, 5, slots, NULL, outer_grain, &of));
        ck_assert_int_eq(of.inner_runs, 50);
        ck_assert_int_eq(of.strays, 0);
    }
    hy3d_context_destroy(of.context);
}
END_TEST

START_TEST(test_threads_that_cannot_be_created_only_cost_time)
{
    hy3d_context *const context = test_context(NULL, 4);
    record *const seen = make_record(4);
    test_fail_threads(true);
    const hy3d_status status =
        hy3d__parallel_for(context, MOST_GRAINS, 4, NULL, record_grain, seen);
    test_fail_threads(false);
    ck_assert_ok(status);
    ck_assert_int_eq(seen->total, MOST_GRAINS);
    ck_assert_int_eq(seen->most_inside, 1);
    free(seen);
    /* They are tried again at the next call. */
    meeting all = MEETING(4);
    ck_assert_ok(hy3d__parallel_for(context, 4, 4, NULL, meet, &all));
    hy3d_context_destroy(context);
}
END_TEST

#if !defined(_WIN32)
static hy3d_status count_blocked(void *argument, int64_t grain, uint32_t slot)
{
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    /* Slot 0 is the caller, whose mask is the host's business. */
    if (slot != 0 && (!sigismember(&mask, SIGINT) || sigismember(&mask, SIGSEGV))) {
        return HY3D_ERR_THREAD;
    }
    return meet(argument, grain, slot);
}

#endif

START_TEST(test_workers_leave_signals_to_the_host)
{
#if defined(_WIN32)
    test_skip_here("no signal masks on Windows");
#else
    hy3d_context *const context = test_context(NULL, 4);
    meeting all = MEETING(4);
    ck_assert_ok(hy3d__parallel_for(context, 4, 4, NULL, count_blocked, &all));
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ck_assert(!sigismember(&mask, SIGINT));
    hy3d_context_destroy(context);
#endif
}
END_TEST

typedef struct gate {
    hy3d_context *context;
    _Atomic int inside, most_inside;
} gate;

static void *pass_gate(void *argument)
{
    gate *const of = argument;
    for (int i = 0; i < 200; i++) {
        hy3d__pool *const entered = hy3d__gate_enter(of->context, 3);
        const int now = atomic_fetch_add(&of->inside, 1) + 1;
        int most = atomic_load(&of->most_inside);
        while (now > most && !atomic_compare_exchange_weak(&of->most_inside, &most, now)) {
        }
        if (i % 16 == 0) {
            pause_grain(NULL, 0, 0); /* inside, so that the gate fills up */
        }
        atomic_fetch_sub(&of->inside, 1);
        hy3d__gate_leave(entered);
    }
    return NULL;
}

START_TEST(test_the_gate_never_lets_more_than_its_limit_in)
{
    gate of = {.context = test_context(NULL, 1)};
    pthread_t threads[8];
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, pass_gate, &of), 0);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_eq(of.most_inside, 3);
    hy3d_context_destroy(of.context);
}
END_TEST

static int64_t process_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* A thread that spins uses processor time as long as it waits; one that sleeps uses that of its few
 * wake-ups. A tenth of the waiting time of one thread is far from both. */
START_TEST(test_waiting_workers_and_callers_use_no_processor_time)
{
    hy3d_context *const context = test_context(NULL, 4);
    const struct timespec wait = {0, 300000000};
    meeting all = MEETING(4);
    ck_assert_ok(hy3d__parallel_for(context, 4, 4, NULL, meet, &all));
    const int64_t before = process_ns();
    nanosleep(&wait, NULL);
    ck_assert_int_lt(process_ns() - before, wait.tv_nsec / 10);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_parallel_suite(void);
Suite *hy3d_parallel_suite(void)
{
    Suite *const suite = suite_create("parallel");
    TCase *const tests = tcase_create("parallel");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_every_grain_runs_once_and_no_slot_is_shared);
    tcase_add_test(tests, test_wrong_arguments_are_refused);
    tcase_add_test(tests, test_as_many_threads_run_as_there_are_slots_each_in_its_own);
    tcase_add_test(tests, test_nothing_starts_after_the_first_failure);
    tcase_add_test(tests, test_nothing_starts_after_a_cancellation);
    tcase_add_test(tests, test_another_thread_can_cancel_an_endless_call);
    tcase_add_test(tests, test_eight_threads_share_one_pool_without_mixing_their_calls);
    tcase_add_test(tests, test_a_call_from_inside_a_grain_runs_serially);
    tcase_add_test(tests, test_threads_that_cannot_be_created_only_cost_time);
    tcase_add_test(tests, test_workers_leave_signals_to_the_host);
    tcase_add_test(tests, test_the_gate_never_lets_more_than_its_limit_in);
    tcase_add_test(tests, test_waiting_workers_and_callers_use_no_processor_time);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, hy3d_parallel_overlap_case());
    suite_add_tcase(suite, hy3d_parallel_manner_case());
    suite_add_tcase(suite, hy3d_parallel_poll_case());
    return suite;
}
