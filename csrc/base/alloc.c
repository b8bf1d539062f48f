#include "base/alloc.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/os.h"

void hy3d__allocator_fail(hy3d__allocator *allocator, uint64_t k, bool forever)
{
    uint64_t target = 0;
    if (k != 0 && __builtin_add_overflow(atomic_load(&allocator->count), k, &target)) {
        target = UINT64_MAX;
    }
    /* `forever` first: a thread that sees the new target must see its meaning too. */
    atomic_store(&allocator->fail_at, 0);
    atomic_store(&allocator->fail_forever, forever);
    atomic_store(&allocator->fail_at, target);
}

static bool must_fail(hy3d__allocator *allocator, uint64_t ordinal)
{
    const uint64_t target = atomic_load(&allocator->fail_at);
    if (target == 0 || ordinal < target) {
        return false;
    }
    return ordinal == target || atomic_load(&allocator->fail_forever);
}

/* Memory of at least this much is put on huge pages where the system offers them on demand: the
 * products of a convolution by Winograd are read at up to 196 addresses far from each other, for
 * which small pages do not have enough address translations. */
#define HUGE_FROM ((size_t)2 << 20)

static void *get_memory(size_t bytes)
{
    return bytes < HUGE_FROM ? hy3d__memory_get(HY3D__ALIGNMENT, bytes - bytes % HY3D__ALIGNMENT)
                             : hy3d__memory_get_large(HY3D__ALIGNMENT, bytes);
}

hy3d_status hy3d__allocator_get(hy3d__allocator *allocator, size_t bytes, void **memory_out)
{
    const uint64_t ordinal = atomic_fetch_add(&allocator->count, 1) + 1;
    size_t padded;
    if (!hy3d__add_size(bytes == 0 ? 1 : bytes, HY3D__ALIGNMENT - 1, &padded) ||
        padded > PTRDIFF_MAX) {
        return HY3D_ERR_OVERFLOW;
    }
    if (must_fail(allocator, ordinal)) {
        return HY3D_ERR_OUT_OF_MEMORY;
    }
    void *const memory = get_memory(padded);
    if (memory == NULL) {
        return HY3D_ERR_OUT_OF_MEMORY;
    }
    atomic_fetch_add(&allocator->live, 1);
    *memory_out = memory;
    return HY3D_OK;
}

void hy3d__allocator_put(hy3d__allocator *allocator, void *memory)
{
    if (memory == NULL) {
        return;
    }
    hy3d__memory_put(memory);
    atomic_fetch_sub(&allocator->live, 1);
}

void hy3d__allocator_put_last(void *memory)
{
    hy3d__memory_put(memory);
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
    if (context != NULL) {
        hy3d__allocator_put(&context->allocator, memory);
    }
}

void hy3d_context_fail_allocation(hy3d_context *context, uint64_t k, bool forever)
{
    hy3d__allocator_fail(&context->allocator, k, forever);
}

uint64_t hy3d_context_allocation_count(const hy3d_context *context)
{
    return atomic_load(&context->allocator.count);
}

uint64_t hy3d_context_live_allocations(const hy3d_context *context)
{
    return atomic_load(&context->allocator.live);
}
