#define _GNU_SOURCE
#include "pool_grains.h"

#include <stdlib.h>
#include <time.h>

record *make_record(uint32_t slots)
{
    record *const made = calloc(1, sizeof *made);
    ck_assert_ptr_nonnull(made);
    made->slots = slots;
    made->fail_at = made->cancel_at = -1;
    return made;
}

hy3d_status record_grain(void *argument, int64_t grain, uint32_t slot)
{
    record *const to = argument;
    if (slot >= to->slots) {
        atomic_fetch_add(&to->bad_slots, 1);
        return HY3D_OK;
    }
    if (atomic_fetch_add(&to->busy[slot], 1) != 0) {
        atomic_fetch_add(&to->shared_slots, 1);
    }
    const int now = atomic_fetch_add(&to->inside, 1) + 1;
    int most = atomic_load(&to->most_inside);
    while (now > most && !atomic_compare_exchange_weak(&to->most_inside, &most, now)) {
    }
    atomic_fetch_add(&to->runs[grain], 1);
    atomic_fetch_add(&to->total, 1);
    if (grain == to->cancel_at) {
        hy3d_cancel_request(to->cancel);
    }
    atomic_fetch_sub(&to->inside, 1);
    atomic_fetch_sub(&to->busy[slot], 1);
    return grain == to->fail_at ? HY3D_ERR_UNSUPPORTED : HY3D_OK;
}

hy3d_status meet(void *argument, int64_t grain, uint32_t slot)
{
    (void)grain;
    meeting *const at = argument;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&at->lock);
    at->arrived++;
    at->slots |= UINT64_C(1) << slot;
    pthread_cond_broadcast(&at->is_full);
    while (at->arrived < at->wanted && !at->is_late) {
        at->is_late = pthread_cond_timedwait(&at->is_full, &at->lock, &until) != 0;
    }
    const bool is_late = at->is_late;
    pthread_mutex_unlock(&at->lock);
    return is_late ? HY3D_ERR_THREAD : HY3D_OK;
}

void *call_often(void *argument)
{
    enum { CALLS = 50, GRAINS = 40 };
    caller *const self = argument;
    record *const seen = calloc(1, sizeof *seen);
    if (seen == NULL) {
        self->bad_calls = -1;
        return NULL;
    }
    self->seen = seen; /* found from the caller too: a child of fork() has lost this stack */
    for (int i = 0; i < CALLS; i++) {
        *seen = (record){.slots = 3, .fail_at = i % 2 ? 7 : -1, .cancel_at = -1};
        const hy3d_status wanted = i % 2 ? HY3D_ERR_UNSUPPORTED : HY3D_OK;
        const hy3d_status got =
            hy3d__parallel_for(self->context, GRAINS, 3, NULL, record_grain, seen);
        bool good = got == wanted && seen->shared_slots == 0 && seen->bad_slots == 0;
        good = good && (i % 2 ? seen->runs[7] == 1 : seen->total == GRAINS);
        self->bad_calls += !good;
    }
    self->seen = NULL;
    free(seen);
    return NULL;
}
