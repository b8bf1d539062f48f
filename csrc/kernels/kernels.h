/* Micro-kernels. kernels.inc lists them once; from the list come the prototypes of every ISA, the
 * table type and the three tables (ref, avx2, avx512). A kernel not in the list does not link. */
#ifndef HY3D_KERNELS_H
#define HY3D_KERNELS_H

#include <stddef.h>
#include <stdint.h>


typedef struct hy3d__kernels {
#define K(name, parameters) void(*name) parameters;
#include "kernels.inc"
#undef K
} hy3d__kernels;

#define K(name, parameters)                                                                        \
    void hy3d_##name##__ref parameters;                                                            \
    void hy3d_##name##__avx2 parameters;                                                           \
    void hy3d_##name##__avx512 parameters;
#include "kernels.inc"
#undef K

/* Table of a level; level is a hy3d_cpu_level value, unknown ones give the reference. */
const hy3d__kernels *hy3d__kernels_for(int level);

#endif
