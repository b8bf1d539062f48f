/* The workspace that is kept from call to call. */
#include <stddef.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/context_internal.h"

#define MOST_KEPT ((size_t)256 << 20)
/* Larger than asked for by this factor it would only hold memory that nobody uses. */
#define LOOSE 4
#define LEAST_LOOSE ((size_t)16 << 20)

/* Before the memory that callers see. */
struct hy3d__workspace {
    size_t bytes;
};
#define HEADER ((size_t)HY3D__ALIGNMENT)

hy3d_status hy3d_workspace_take(hy3d_context *context, size_t bytes, void **memory_out)
{
    size_t padded;
    void *memory = NULL;

    if (context == NULL || memory_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (!hy3d__add_size(bytes, HEADER, &padded)) {
        return HY3D_ERR_OVERFLOW;
    }
    hy3d__workspace *const kept = atomic_exchange(&context->kept, NULL);
    if (kept != NULL && kept->bytes >= bytes &&
        (kept->bytes / LOOSE <= bytes || kept->bytes <= LEAST_LOOSE)) {
        *memory_out = (unsigned char *)kept + HEADER;
        return HY3D_OK;
    }
    hy3d_free(context, kept);
    const hy3d_status status = hy3d_alloc(context, padded, &memory);
    if (status == HY3D_OK) {
        ((hy3d__workspace *)memory)->bytes = bytes;
        *memory_out = (unsigned char *)memory + HEADER;
    }
    return status;
}

void hy3d_workspace_give(hy3d_context *context, void *memory)
{
    if (context == NULL || memory == NULL) {
        return;
    }
    hy3d__workspace *const given = (void *)((unsigned char *)memory - HEADER);
    hy3d_free(context, given->bytes <= MOST_KEPT ? atomic_exchange(&context->kept, given) : given);
}

void hy3d_context_trim(hy3d_context *context)
{
    if (context != NULL) {
        hy3d_free(context, atomic_exchange(&context->kept, NULL));
    }
}
