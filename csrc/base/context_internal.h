/* The inside of hy3d_context; for csrc/base only. */
#ifndef HY3D_BASE_CONTEXT_INTERNAL_H
#define HY3D_BASE_CONTEXT_INTERNAL_H

#include <stdatomic.h>

#include "hy3d/context.h"

typedef struct hy3d__pool hy3d__pool;
typedef struct hy3d__blas hy3d__blas;
typedef struct hy3d__workspace hy3d__workspace;

struct hy3d_context {
    hy3d_allocator allocator;
    hy3d_cpu_level level, machine_level;
    uint32_t max_threads;
    _Atomic(hy3d__pool *) pool; /* replaced in a child after fork, see parallel.c */
    hy3d__blas *blas;
    _Atomic(hy3d__workspace *) kept; /* workspace.c */
};

/* parallel.c: makes the pool's locks, starts nothing. */
hy3d_status hy3d__pool_create(hy3d_context *context);
void hy3d__pool_destroy(hy3d_context *context);
/* One process-wide step at a time per context (loading BLAS). In a child it may have to make a
 * pool: HY3D_ERR_OUT_OF_MEMORY, HY3D_ERR_THREAD. */
hy3d_status hy3d__load_lock(hy3d_context *context, hy3d__pool **pool_out);
void hy3d__load_unlock(hy3d__pool *pool);
/* Lets at most `limit` callers through at a time, the others sleep. The result goes to leave;
 * NULL (out of memory in a child) means that nobody is counted. */
hy3d__pool *hy3d__gate_enter(hy3d_context *context, uint32_t limit);
void hy3d__gate_leave(hy3d__pool *pool);

/* blas.c: copies the name (NULL allowed), loads nothing. */
hy3d_status hy3d__blas_create(hy3d_context *context, const char *library);
void hy3d__blas_destroy(hy3d_context *context);

#endif
