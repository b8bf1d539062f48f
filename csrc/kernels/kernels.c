#include "kernels/kernels.h"

#define K(name, parameters) .name = hy3d_##name##__ref,
static const hy3d__kernels ref_kernels = {
#include "kernels.inc"
};
#undef K

#if HY3D__X86
#define K(name, parameters) .name = hy3d_##name##__avx2,
static const hy3d__kernels avx2_kernels = {
#include "kernels.inc"
};
#undef K

#define K(name, parameters) .name = hy3d_##name##__avx512,
static const hy3d__kernels avx512_kernels = {
#include "kernels.inc"
};
#undef K
#endif

/* The numbers are hy3d_cpu_level's; kernels include nothing of the library but their own header. */
const hy3d__kernels *hy3d__kernels_for(int level)
{
    switch (level) {
#if HY3D__X86
    case 1:
        return &avx2_kernels;
    case 2:
        return &avx512_kernels;
#endif
    default:
        return &ref_kernels;
    }
}
