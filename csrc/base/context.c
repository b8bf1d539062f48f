#include "base/context_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/os.h"

/* The pool reserves a handle for each, so an absurd number must not ask for absurd memory. */
enum { MOST_THREADS = 1024 };

static hy3d_status choose_level(const hy3d_context_options *options, hy3d_cpu_level best,
                                hy3d_cpu_level *level_out)
{
    char set[16];
    const char *word = options->cpu_level;
    if (word == NULL) {
        hy3d__setting("HY3D_CPU", set, sizeof set);
        word = set;
    }
    *level_out = best;
    if (word[0] == '\0') {
        return HY3D_OK;
    }
    return hy3d__cpu_parse(word, best, level_out) ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT;
}

hy3d_status hy3d_context_create(const hy3d_context_options *options, hy3d_context **context_out)
{
    static const hy3d_context_options defaults = {0};
    if (context_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (options == NULL) {
        options = &defaults;
    }
    const hy3d_allocator *const allocator =
        options->allocator != NULL ? options->allocator : &hy3d__system_allocator;
    if (allocator->allocate == NULL || allocator->deallocate == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_cpu_level best = hy3d_cpu_detect();
    hy3d_cpu_level level;
    hy3d_status status = choose_level(options, best, &level);
    if (status != HY3D_OK) {
        return status;
    }
    void *memory;
    status = hy3d__allocator_get(allocator, sizeof(hy3d_context), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    hy3d_context *const context = memory;
    memset(context, 0, sizeof *context);
    context->allocator = *allocator;
    atomic_init(&context->pool, NULL);
    atomic_init(&context->kept, NULL);
    context->level = level;
    context->machine_level = best;
    const uint32_t threads =
        options->max_threads != 0 ? options->max_threads : hy3d__processor_count();
    context->max_threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    status = hy3d__pool_create(context);
    if (status == HY3D_OK) {
        status = hy3d__blas_create(context, options->blas_library);
    }
    if (status != HY3D_OK) {
        hy3d_context_destroy(context);
        return status;
    }
    *context_out = context;
    return HY3D_OK;
}

void hy3d_context_destroy(hy3d_context *context)
{
    if (context == NULL) {
        return;
    }
    hy3d_context_trim(context);
    hy3d__pool_destroy(context);
    hy3d__blas_destroy(context);
    const hy3d_allocator allocator = context->allocator;
    allocator.deallocate(allocator.context, context);
}

hy3d_cpu_level hy3d_context_cpu_level(const hy3d_context *context)
{
    return context->level;
}

uint32_t hy3d_context_max_threads(const hy3d_context *context)
{
    return context->max_threads;
}
