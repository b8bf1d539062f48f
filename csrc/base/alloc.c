#include "base/alloc.h"

#include "base/checked.h"
#include "base/context_internal.h"
#include "base/os.h"

/* Memory of at least this much is put on huge pages where the system offers them on demand: the
 * products of a convolution by Winograd are read at up to 196 addresses far from each other, for
 * which small pages do not have enough address translations. */
#define HUGE_FROM ((size_t)2 << 20)

static void *get_from_system(void *context, size_t bytes)
{
    (void)context;
    return bytes < HUGE_FROM ? hy3d__memory_get(HY3D__ALIGNMENT, bytes)
                             : hy3d__memory_get_large(HY3D__ALIGNMENT, bytes);
}

static void put_to_system(void *context, void *memory)
{
    (void)context;
    hy3d__memory_put(memory);
}

const hy3d_allocator hy3d__system_allocator = {get_from_system, put_to_system, NULL};

hy3d_status hy3d__allocator_get(const hy3d_allocator *allocator, size_t bytes, void **memory_out)
{
    size_t padded;
    if (!hy3d__add_size(bytes == 0 ? 1 : bytes, HY3D__ALIGNMENT - 1, &padded) ||
        padded > PTRDIFF_MAX) {
        return HY3D_ERR_OVERFLOW;
    }
    void *const memory = allocator->allocate(allocator->context, padded - padded % HY3D__ALIGNMENT);
    if (memory == NULL) {
        return HY3D_ERR_OUT_OF_MEMORY;
    }
    /* A vector instruction would end the process later. */
    if ((uintptr_t)memory % HY3D__ALIGNMENT != 0) {
        allocator->deallocate(allocator->context, memory);
        return HY3D_ERR_UNSUPPORTED;
    }
    *memory_out = memory;
    return HY3D_OK;
}

hy3d_status hy3d_alloc(hy3d_context *context, size_t bytes, void **memory_out)
{
    if (context == NULL || memory_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__allocator_get(&context->allocator, bytes, memory_out);
    if (status != HY3D_ERR_OUT_OF_MEMORY || atomic_load(&context->kept) == NULL) {
        return status;
    }
    hy3d_context_trim(context); /* memory that nobody uses must not be why there is none */
    return hy3d__allocator_get(&context->allocator, bytes, memory_out);
}

void hy3d_free(hy3d_context *context, void *memory)
{
    if (context != NULL && memory != NULL) {
        context->allocator.deallocate(context->allocator.context, memory);
    }
}
