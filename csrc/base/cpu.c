#include "base/cpu.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* Which register files the operating system saves at a context switch. An instruction set whose
 * registers are not saved must not be used, whatever cpuid says of the processor. */
static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

static bool has_all(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

hy3d_cpu_level hy3d_cpu_detect(void)
{
    enum { SAVED_YMM = 0x06, SAVED_ZMM = 0xe6 };
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, bit_OSXSAVE | bit_FMA | bit_F16C)) {
        return HY3D_CPU_REF;
    }
    const uint64_t saved = saved_registers();
    if (!has_all(saved, SAVED_YMM) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        !has_all(b, bit_AVX2)) {
        return HY3D_CPU_REF;
    }
    const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return has_all(saved, SAVED_ZMM) && has_all(b, avx512) ? HY3D_CPU_AVX512 : HY3D_CPU_AVX2;
}
#else
hy3d_cpu_level hy3d_cpu_detect(void)
{
    return HY3D_CPU_REF;
}
#endif

const char *hy3d_cpu_level_name(hy3d_cpu_level level)
{
    switch (level) {
    case HY3D_CPU_REF:
        return "ref";
    case HY3D_CPU_AVX2:
        return "avx2";
    case HY3D_CPU_AVX512:
        return "avx512";
    }
    return "unknown";
}

bool hy3d__cpu_parse(const char *word, hy3d_cpu_level best, hy3d_cpu_level *level_out)
{
    static const hy3d_cpu_level levels[] = {HY3D_CPU_REF, HY3D_CPU_AVX2, HY3D_CPU_AVX512};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(word, hy3d_cpu_level_name(levels[i])) == 0) {
            *level_out = levels[i] < best ? levels[i] : best;
            return true;
        }
    }
    return false;
}
