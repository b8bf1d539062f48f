/* The kernels that are one text for every ISA: included by avx2.c and avx512.c after their vector
 * vocabulary. (The rasteriser's words are of doubles: raster_lanes.h, raster_avx2.c, _avx512.c.) */
#include "kernels/conv_lanes.h"
#include "kernels/convert_lanes.h"
#include "kernels/gemm_lanes.h"
#include "kernels/interpolate_lanes.h"
#include "kernels/moments_lanes.h"
#include "kernels/peak_lanes.h"
#include "kernels/silu_lanes.h"
#include "kernels/transpose_lanes.h"
#include "kernels/winograd_lanes.h"
