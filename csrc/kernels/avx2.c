/* The kernels on AVX2, FMA and F16C: each text compiled with the words of vec_avx2.h. */
#include "kernels/kernels.h"

#if HY3D__X86
#include "kernels/vec_avx2.h"

#include "kernels/lanes.h"
#endif
