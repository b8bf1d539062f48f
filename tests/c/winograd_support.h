/* Plans of a chosen Winograd kind, whatever the cost model says, and the bound they are held to. */
#ifndef HY3D_TESTS_WINOGRAD_SUPPORT_H
#define HY3D_TESTS_WINOGRAD_SUPPORT_H

#include "conv3d_fusion_support.h"

#include "conv3d/plan.h"

enum { WINOGRAD_FORMATS = 10 }; /* formats 1 to 10 */

/* A transform's matrices: row-major A (m x products), G (products x 3), B^T (n x n); the row of B^T
 * whose data a product has; how many positions of the data a tile is from the next. */
typedef struct winograd_matrices {
    int m, n, products, step;
    double a[6][7], g[7][3], b[7][7];
    int place[7];
} winograd_matrices;
/* m = 4, 5: rows and columns; m = 6: those of an up-sampled input; by frames at once: m = 1, 2 or 3
 * in time, and of frames in pairs: m = -4 (whose m is 4 then). */
winograd_matrices winograd_matrices_of(int m);

/* The number of frames that the kind makes at once, and whether it is of an up-sampled input. */
int winograd_frames(hy3d_conv3d_format format);
bool winograd_is_upsampled(hy3d_conv3d_format format);
/* Taps in time that the kind can do, by chance where it can do several. */
int64_t winograd_taps(hy3d_conv3d_format format, test_random *random);
/* Makes a description with these taps one that the kind can do: up-sampled, its frames in pairs. */
void winograd_suit(hy3d_conv3d_format format, test_random *random, hy3d_conv3d_desc *desc);
/* As hy3d_conv3d_plan_create_prepared, but with that kind. */
hy3d_status winograd_plan(hy3d_context *context, hy3d_conv3d_format format,
                          const conv_problem *problem, const hy3d_conv3d_weights *prepared,
                          hy3d_conv3d_plan **plan_out);
/* Plans so, allocates the workspace, runs with the fusion, releases both. */
hy3d_status winograd_run(hy3d_context *context, hy3d_conv3d_format format, conv_fused *fused,
                         bool is_prepared);

/* docs/numerics.md: |computed - exact| <= C max|x| max sum|w|, before bias and residual. */
double winograd_bound(hy3d_conv3d_format format, const hy3d_conv3d_desc *desc);
/* The largest error as a fraction of the bound, inputs' own errors, bias, residual and the last
 * rounding included; NaN counts as infinitely wrong. */
double winograd_worst_fraction(const conv_fused *fused, hy3d_conv3d_format format);

/* Leaves about three weights to an output channel: sums are then so short that the bound is far
 * below what a wrong element would change. */
void winograd_thin_out(const conv_fused *fused, test_random *random);
/* A description that every kind with so many taps in time can do that is not of an up-sampled
 * input. */
hy3d_conv3d_desc winograd_random_desc(test_random *random, int64_t taps);

TCase *hy3d_winograd_bits_case(void);
TCase *hy3d_winograd_refusal_case(void);

#endif
