/* The two halves of the convolution's target. */
#ifndef HY3D_TESTS_FUZZ_CONV3D_H
#define HY3D_TESTS_FUZZ_CONV3D_H

#include "hy3d/conv3d.h"

#include "fuzz.h"

/* The limit that holds for a description, and how many threads it may take. */
size_t fuzz_conv_limit(const hy3d_context *context, const hy3d_conv3d_desc *d, uint32_t *threads);
/* A small convolution on integers, against the reference. */
void fuzz_conv_run(fuzz_input *in, hy3d_context *context);

#endif
