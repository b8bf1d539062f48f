#include <stdatomic.h>

#include "base/os.h"
#include "hy3d/context.h"

enum { POLL_MS = 50 };

/* Relaxed order is enough: the flag carries no data, a late look costs one grain. Calls take flags
 * as const; what a poll changes is reached through `self`. */
struct hy3d_cancel {
    _Atomic bool requested;
    const hy3d_cancel *parent;
    hy3d_poll_fn poll; /* NULL: no host to ask */
    void *argument;
    hy3d_cancel *self;
    hy3d__thread_id thread; /* that polls */
    int64_t poll_at_ms;
};
_Static_assert(sizeof(hy3d_cancel) <= sizeof(hy3d_cancel_memory), "it lies in the caller's memory");

hy3d_status hy3d_cancel_create(hy3d_context *context, hy3d_cancel **cancel_out)
{
    if (context == NULL || cancel_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, sizeof(hy3d_cancel), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    hy3d_cancel *const cancel = memory;
    *cancel = (hy3d_cancel){.requested = false};
    *cancel_out = cancel;
    return HY3D_OK;
}

const hy3d_cancel *hy3d_cancel_polling(hy3d_cancel_memory *memory, const hy3d_cancel *parent,
                                       hy3d_poll_fn poll, void *argument)
{
    hy3d_cancel *const cancel = (void *)memory;
    *cancel = (hy3d_cancel){.parent = parent,
                            .poll = poll,
                            .argument = argument,
                            .self = cancel,
                            .thread = hy3d__thread_self(),
                            .poll_at_ms = hy3d__milliseconds() + POLL_MS};
    return cancel;
}

void hy3d_cancel_destroy(hy3d_context *context, hy3d_cancel *cancel)
{
    hy3d_free(context, cancel);
}

void hy3d_cancel_request(hy3d_cancel *cancel)
{
    atomic_store_explicit(&cancel->requested, true, memory_order_relaxed);
}

void hy3d_cancel_reset(hy3d_cancel *cancel)
{
    atomic_store_explicit(&cancel->requested, false, memory_order_relaxed);
}

/* The next time counts from the answer: a host that takes long is not asked more. */
static void poll_host(hy3d_cancel *cancel)
{
    cancel->poll_at_ms = INT64_MAX; /* the host may use the library, and this flag */
    if (cancel->poll(cancel->argument)) {
        hy3d_cancel_request(cancel);
    }
    cancel->poll_at_ms = hy3d__milliseconds() + POLL_MS;
}

bool hy3d_cancel_requested(const hy3d_cancel *cancel)
{
    for (; cancel != NULL; cancel = cancel->parent) {
        if (cancel->poll != NULL && hy3d__thread_is_self(cancel->thread) &&
            hy3d__milliseconds() >= cancel->poll_at_ms) {
            poll_host(cancel->self);
        }
        if (atomic_load_explicit(&cancel->requested, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}
