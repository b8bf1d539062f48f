/* The schedule's target, and its blending. */
#ifndef HY3D_TESTS_FUZZ_SCHEDULE_H
#define HY3D_TESTS_FUZZ_SCHEDULE_H

#include "hy3d/blend.h"
#include "hy3d/tiles.h"

#include "fuzz.h"

void fuzz_blend(fuzz_input *in, hy3d_context *context);

#endif
