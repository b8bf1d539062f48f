#include <stdatomic.h>

#include "hy3d/context.h"

/* Relaxed order is enough: the flag carries no data, a late look costs one grain. */
struct hy3d_cancel {
    _Atomic bool requested;
};

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
    atomic_init(&cancel->requested, false);
    *cancel_out = cancel;
    return HY3D_OK;
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

bool hy3d_cancel_requested(const hy3d_cancel *cancel)
{
    return cancel != NULL && atomic_load_explicit(&cancel->requested, memory_order_relaxed);
}
