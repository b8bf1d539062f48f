/* Memory, counted: what malloc and free are elsewhere. */
#ifndef HY3D_BASE_ALLOC_H
#define HY3D_BASE_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/status.h"

#define HY3D__ALIGNMENT 64

/* Counters and the fault hook. Lives in the context; all fields may be touched by any thread. */
typedef struct hy3d__allocator {
    _Atomic uint64_t count;   /* asked for, failed ones included */
    _Atomic uint64_t live;    /* given out and not yet back */
    _Atomic uint64_t fail_at; /* the value of count that fails; 0: none */
    _Atomic bool fail_forever;
} hy3d__allocator;

/* As hy3d_context_fail_allocation. */
void hy3d__allocator_fail(hy3d__allocator *allocator, uint64_t k, bool forever);
/* Memory is not cleared; 0 bytes give a pointer. HY3D_ERR_OVERFLOW, HY3D_ERR_OUT_OF_MEMORY. */
hy3d_status hy3d__allocator_get(hy3d__allocator *allocator, size_t bytes, void **memory_out);
/* memory may be NULL. */
void hy3d__allocator_put(hy3d__allocator *allocator, void *memory);
/* Frees memory whose allocator lies inside it (the context itself). */
void hy3d__allocator_put_last(void *memory);

#endif
