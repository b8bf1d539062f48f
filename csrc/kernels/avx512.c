/* The kernels on AVX-512 F, BW, DQ and VL: each text compiled with the words of vec_avx512.h. */
#include "kernels/kernels.h"

#if HY3D__X86
#include "kernels/vec_avx512.h"

#include "kernels/lanes.h"
#endif
