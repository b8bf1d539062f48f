/* Grains and callers that the tests of the pool share. */
#ifndef HY3D_TESTS_POOL_GRAINS_H
#define HY3D_TESTS_POOL_GRAINS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/parallel.h"
#include "support.h"

enum { MOST_SLOTS = 16, MOST_GRAINS = 4096 };

/* What a call did, counted by its grains. */
typedef struct record {
    _Atomic int runs[MOST_GRAINS];
    _Atomic int busy[MOST_SLOTS]; /* threads in a slot */
    _Atomic int inside, most_inside, shared_slots, bad_slots, total;
    uint32_t slots;
    int64_t fail_at; /* -1: none */
    hy3d_cancel *cancel;
    int64_t cancel_at;
} record;

record *make_record(uint32_t slots);
/* Argument: a record. */
hy3d_status record_grain(void *argument, int64_t grain, uint32_t slot);

/* Grains that wait until `wanted` of them are inside at once: ends only if that many threads run. */
typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t is_full;
    int wanted, arrived;
    bool is_late;
    uint64_t slots; /* one bit each */
} meeting;

#define MEETING(n) {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n, 0, false, 0}

/* Argument: a meeting. Gives up after 20 seconds with HY3D_ERR_THREAD. */
hy3d_status meet(void *argument, int64_t grain, uint32_t slot);

typedef struct caller {
    pthread_t thread;
    hy3d_context *context;
    int bad_calls;
    void *seen; /* its record while it runs */
} caller;

/* A thread's body; argument: a caller. Fifty calls, every second one with a failing grain. */
void *call_often(void *argument);

/* parallel_overlap.c, parallel_manner.c and parallel_poll.c, for the suite of the pool. */
TCase *hy3d_parallel_overlap_case(void);
TCase *hy3d_parallel_manner_case(void);
TCase *hy3d_parallel_poll_case(void);

#endif
