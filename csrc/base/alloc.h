/* Memory: what malloc and free are elsewhere. */
#ifndef HY3D_BASE_ALLOC_H
#define HY3D_BASE_ALLOC_H

#include <stddef.h>

#include "hy3d/context.h"

#define HY3D__ALIGNMENT 64

extern const hy3d_allocator hy3d__system_allocator;

/* Memory is not cleared. 0 bytes give a valid pointer. HY3D_ERR_OVERFLOW, HY3D_ERR_OUT_OF_MEMORY;
 * HY3D_ERR_UNSUPPORTED for memory that is not aligned. */
hy3d_status hy3d__allocator_get(const hy3d_allocator *allocator, size_t bytes, void **memory_out);

#endif
