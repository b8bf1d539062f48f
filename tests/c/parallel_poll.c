/* Cancel flags that ask their host, and workers' faults. */
#define _GNU_SOURCE
#include "pool_grains.h"

#include <signal.h>
#include <time.h>

#include "base/os.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

static void pause_for(long milliseconds)
{
    const struct timespec length = {0, milliseconds * 1000000};
    nanosleep(&length, NULL);
}

static hy3d_status pause_grain(void *argument, int64_t grain, uint32_t slot)
{
    (void)argument;
    (void)grain;
    (void)slot;
    pause_for(1);
    return HY3D_OK;
}

/* A host that says yes when it is asked for the n-th time. */
typedef struct host {
    hy3d_context *context;
    hy3d__thread_id thread;
    int asked, yes_at, strangers;
    const hy3d_cancel *flag;
    hy3d_status inner; /* of a call made while it is asked */
} host;

static bool ask(void *argument)
{
    host *const of = argument;
    of->strangers += !hy3d__thread_is_self(of->thread);
    of->inner = hy3d__parallel_for(of->context, 8, 4, of->flag, pause_grain, NULL);
    return ++of->asked == of->yes_at;
}

START_TEST(test_the_calling_thread_asks_its_host_every_50_ms)
{
    hy3d_context *const context = test_context(NULL, 4);
    host of = {.context = context, .thread = hy3d__thread_self(), .yes_at = 3};
    hy3d_cancel_memory memory;
    of.flag = hy3d_cancel_polling(&memory, NULL, ask, &of);
    const int64_t began = hy3d__milliseconds();
    ck_assert_status(hy3d__parallel_for(context, INT64_MAX / 2, 4, of.flag, pause_grain, NULL),
                     HY3D_ERR_CANCELLED);
    const int64_t took = hy3d__milliseconds() - began;
    ck_assert_int_eq(of.asked, 3);
    ck_assert_int_eq(of.strangers, 0);
    ck_assert_ok(of.inner);
    ck_assert_int_ge(took, 100); /* three times 50, less the clock's steps */
    ck_assert_int_lt(took, 10000);
    ck_assert(hy3d_cancel_requested(of.flag));
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_short_call_does_not_ask)
{
    hy3d_context *const context = test_context(NULL, 4);
    host of = {.context = context, .thread = hy3d__thread_self(), .yes_at = 1};
    hy3d_cancel_memory memory;
    const hy3d_cancel *const flag = hy3d_cancel_polling(&memory, NULL, ask, &of);
    const int64_t began = hy3d__milliseconds();
    ck_assert_ok(hy3d__parallel_for(context, 4, 4, flag, pause_grain, NULL));
    ck_assert(of.asked == 0 || hy3d__milliseconds() - began > 30);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_a_polling_flag_is_requested_where_its_parent_is)
{
    hy3d_context *const context = test_context(NULL, 4);
    host of = {.context = context, .thread = hy3d__thread_self()};
    hy3d_cancel *parent = NULL;
    ck_assert_ok(hy3d_cancel_create(context, &parent));
    hy3d_cancel_memory memory;
    const hy3d_cancel *const flag = hy3d_cancel_polling(&memory, parent, ask, &of);
    ck_assert(!hy3d_cancel_requested(flag));
    hy3d_cancel_request(parent);
    ck_assert(hy3d_cancel_requested(flag));
    ck_assert_status(hy3d__parallel_for(context, 1, 1, flag, pause_grain, NULL),
                     HY3D_ERR_CANCELLED);
    hy3d_cancel_reset(parent);
    ck_assert(!hy3d_cancel_requested(flag));
    hy3d_cancel_destroy(context, parent);
    hy3d_context_destroy(context);
}
END_TEST

#if !defined(_WIN32)
enum { REPORTED = 7 };

static void report(int number)
{
    (void)number;
    _exit(REPORTED);
}

/* The caller waits: it must be a worker's fault. */
static hy3d_status fault_in_worker(void *argument, int64_t grain, uint32_t slot)
{
    int *volatile const nowhere = argument;
    (void)grain;
    if (slot != 0) {
        *nowhere = 1;
    }
    pause_for(900);
    return HY3D_OK;
}
#endif

START_TEST(test_a_fault_in_a_worker_reaches_the_hosts_handler)
{
#if defined(_WIN32)
    test_skip_here("no signal masks on Windows");
#else
    int *const nowhere = (void *)(test_guard_make(1).pages);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct sigaction action = {.sa_handler = report};
        sigaction(SIGSEGV, &action, NULL);
        sigaction(SIGBUS, &action, NULL);
        hy3d_context *context = NULL;
        const hy3d_context_options options = {.max_threads = 2};
        if (hy3d_context_create(&options, &context) == HY3D_OK) {
            hy3d__parallel_for(context, 20, 2, NULL, fault_in_worker, nowhere);
        }
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == REPORTED,
                  "the child ended with status %d: its handler did not run", status);
#endif
}
END_TEST

TCase *hy3d_parallel_poll_case(void)
{
    TCase *const tests = tcase_create("poll");
    tcase_add_test(tests, test_the_calling_thread_asks_its_host_every_50_ms);
    tcase_add_test(tests, test_a_short_call_does_not_ask);
    tcase_add_test(tests, test_a_polling_flag_is_requested_where_its_parent_is);
    tcase_add_test(tests, test_a_fault_in_a_worker_reaches_the_hosts_handler);
    return tests;
}
