#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "base/openblas.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/context.h"

hy3d_status hy3d__set_variable(hy3d_context *context, const char *name, const char *value,
                               hy3d__variable *saved)
{
    const char *const before = getenv(name);
    *saved = (hy3d__variable){.name = name};
    if (before != NULL) {
        if (strcmp(before, value) == 0) {
            return HY3D_OK;
        }
        void *copy = NULL;
        const hy3d_status status = hy3d_alloc(context, strlen(before) + 1, &copy);
        if (status != HY3D_OK) {
            return status;
        }
        strcpy(copy, before);
        saved->before = copy;
    }
    if (setenv(name, value, 1) != 0) {
        hy3d_free(context, saved->before);
        saved->before = NULL;
        return HY3D_ERR_OUT_OF_MEMORY;
    }
    saved->changed = true;
    return HY3D_OK;
}

void hy3d__restore_variable(hy3d_context *context, hy3d__variable *saved)
{
    if (saved->changed && saved->before != NULL) {
        setenv(saved->name, saved->before, 1);
    } else if (saved->changed) {
        unsetenv(saved->name);
    }
    hy3d_free(context, saved->before);
}

const char *hy3d__core_type(const hy3d_context *context)
{
    if (context->level >= context->machine_level) {
        return NULL;
    }
    return context->level == HY3D_CPU_REF ? "Prescott" : "Haswell";
}

bool hy3d__core_is_within(const char *core, hy3d_cpu_level level)
{
    static const char *const sse[] = {"Prescott", "Katmai",  "Coppermine", "Northwood",
                                      "Banias",   "Atom",    "Core2",      "Penryn",
                                      "Athlon",   "Opteron", "Dunnington", "Opteron_SSE3",
                                      "Nehalem",  "Nano",    "Barcelona",  "Bobcat"};
    static const char *const avx[] = {"Haswell",    "Zen",         "Sandybridge", "Bulldozer",
                                      "Piledriver", "Steamroller", "Excavator"};
    for (size_t i = 0; i < sizeof sse / sizeof sse[0]; i++) {
        if (strcasecmp(core, sse[i]) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof avx / sizeof avx[0]; i++) {
        if (strcasecmp(core, avx[i]) == 0) {
            return level >= HY3D_CPU_AVX2;
        }
    }
    return level >= HY3D_CPU_AVX512;
}
