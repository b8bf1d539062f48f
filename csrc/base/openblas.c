#include "base/openblas.h"

#include <stddef.h>

#include "base/context_internal.h"

const char *hy3d__core_type(const hy3d_context *context)
{
    if (context->level >= context->machine_level) {
        return NULL;
    }
    return context->level == HY3D_CPU_REF ? "Prescott" : "Haswell";
}

/* Letters count without their case, in ASCII whatever the locale. */
static bool is_same_name(const char *a, const char *b)
{
    const unsigned case_bit = 'a' - 'A';
    for (; *a != '\0'; a++, b++) {
        const bool is_letter = ((unsigned)*a | case_bit) - 'a' <= 'z' - 'a';
        if (*a != *b && !(is_letter && ((unsigned)*a ^ (unsigned)*b) == case_bit)) {
            return false;
        }
    }
    return *b == '\0';
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
        if (is_same_name(core, sse[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof avx / sizeof avx[0]; i++) {
        if (is_same_name(core, avx[i])) {
            return level >= HY3D_CPU_AVX2;
        }
    }
    return level >= HY3D_CPU_AVX512;
}
