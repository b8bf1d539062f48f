/* Calls of the pool that last beside each other. */
#define _GNU_SOURCE
#include "pool_grains.h"

#include <stdlib.h>

typedef struct pair_of_calls {
    hy3d_context *context;
    record *second;
    hy3d_status second_status;
} pair_of_calls;

static void *call_second(void *argument)
{
    pair_of_calls *const calls = argument;
    calls->second_status =
        hy3d__parallel_for(calls->context, 64, 2, NULL, record_grain, calls->second);
    return NULL;
}

/* The first call's only grain: another thread's call begins and ends while it lasts. */
static hy3d_status outlast_second(void *argument, int64_t grain, uint32_t slot)
{
    (void)grain;
    (void)slot;
    pthread_t other;
    if (pthread_create(&other, NULL, call_second, argument) != 0) {
        return HY3D_ERR_THREAD;
    }
    pthread_join(other, NULL);
    return HY3D_OK;
}

START_TEST(test_a_call_ends_while_an_earlier_one_still_runs)
{
    pair_of_calls calls = {.context = test_context(NULL, 2), .second = make_record(2)};
    for (int round = 0; round < 20; round++) {
        ck_assert_ok(hy3d__parallel_for(calls.context, 1, 2, NULL, outlast_second, &calls));
        ck_assert_ok(calls.second_status);
        ck_assert_int_eq(calls.second->total, 64 * (round + 1));
    }
    free(calls.second);
    hy3d_context_destroy(calls.context);
}
END_TEST

TCase *hy3d_parallel_overlap_case(void)
{
    TCase *const tests = tcase_create("overlap");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_a_call_ends_while_an_earlier_one_still_runs);
    return tests;
}
