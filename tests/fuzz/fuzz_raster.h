/* The parts of the rasteriser's target. Each makes its own scene; sound values mostly, and what is
 * wrong is known, so that the answer can be held against it. */
#ifndef HY3D_TESTS_FUZZ_RASTER_H
#define HY3D_TESTS_FUZZ_RASTER_H

#include "hy3d/raster.h"

#include "fuzz.h"

/* Whole numbers, or any floats; the index of the first that is not finite, -1: none. */
int64_t fuzz_floats(fuzz_input *in, float *out, int64_t n, bool is_whole);
/* Indices below limit, one of them wild now and then; the first bad one, -1: none. */
int64_t fuzz_indices(fuzz_input *in, int32_t *out, int64_t n, int64_t limit);
bool fuzz_is_finite(float value);
/* What is there must be what was meant: the fault, and where (-1: anywhere). */
void fuzz_check_problem(hy3d_status status, const hy3d_raster_problem *problem,
                        hy3d_raster_fault fault, int64_t at);
/* The context of the next level, so that two levels are compared. */
hy3d_context *fuzz_other_context(const hy3d_context *context);

void fuzz_rasterize(fuzz_input *in, hy3d_context *context);
void fuzz_interpolate(fuzz_input *in, hy3d_context *context);
void fuzz_scatter(fuzz_input *in, hy3d_context *context);
void fuzz_normals(fuzz_input *in, hy3d_context *context);
void fuzz_inpaint(fuzz_input *in, hy3d_context *context);

#endif
