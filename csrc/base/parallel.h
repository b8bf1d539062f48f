/* The thread pool: runs grains, the caller included. */
#ifndef HY3D_BASE_PARALLEL_H
#define HY3D_BASE_PARALLEL_H

#include <stdint.h>

#include "hy3d/context.h"

/* How many threads a call that asks for num_threads takes at most; 0 asks for all. */
static inline uint32_t hy3d__slots(const hy3d_context *context, uint32_t num_threads)
{
    const uint32_t most = hy3d_context_max_threads(context);
    return num_threads == 0 || num_threads > most ? most : num_threads;
}

/* Runs one grain. `slot` is below the `slots` of the call and held by one thread at a time: it
 * picks the workspace. */
typedef hy3d_status (*hy3d__grain_fn)(void *argument, int64_t grain, uint32_t slot);

/* Runs grains 0 .. grains - 1, at most `slots` at a time (and at most the context's max_threads),
 * in any order. Blocks until all have run. After the first failure or cancellation no further
 * grain is started; the first failing status is returned. Re-entrant from several threads; a call
 * from inside a grain runs serially. Never spins. In a child after fork the pool is rebuilt at the
 * first call. A thread that cannot be created only makes the call slower. */
hy3d_status hy3d__parallel_for(hy3d_context *context, int64_t grains, uint32_t slots,
                               const hy3d_cancel *cancel, hy3d__grain_fn run, void *argument);

#endif
