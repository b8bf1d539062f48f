/* Convolutions with fusions, and the same input made the long way. */
#ifndef HY3D_TESTS_CONV3D_FUSION_SUPPORT_H
#define HY3D_TESTS_CONV3D_FUSION_SUPPORT_H

#include "conv3d_support.h"

/* More input channels and frames than random descriptions have. */
enum { CONV_MOST_CHANNELS = 288, CONV_MOST_FRAMES = 96 };

typedef struct conv_fused {
    conv_problem problem;
    hy3d_conv3d_fusion fusion; /* its pointers lead into this struct: never copy it */
    conv_view frames[CONV_MOST_FRAMES];
    hy3d_conv3d_frame list[CONV_MOST_FRAMES];
    float scale[CONV_MOST_CHANNELS], shift[CONV_MOST_CHANNELS];
    conv_view residual; /* a copy of its values too where y is the residual */
    bool in_place;
} conv_fused;

/* Which fusions there are is random; activation as given, integers where limit > 0. */
void conv_fused_make(conv_fused *fused, const hy3d_conv3d_desc *desc, hy3d_activation activation,
                     test_random *random, int limit);
void conv_fused_free(conv_fused *fused);
hy3d_status conv_fused_run(hy3d_context *context, conv_fused *fused);
void conv_fused_text(const conv_fused *fused, char *text, size_t size);

/* The input as f64, NCDHW, up-sampled, scaled, shifted, activated; what it may be off by where it
 * is computed in the dtype's compute type; the largest magnitude it then has. */
typedef enum conv_input_part { INPUT_VALUE, INPUT_ERROR, INPUT_MAGNITUDE } conv_input_part;
conv_view conv_fused_input(const conv_fused *fused, conv_input_part part);
/* f64 convolution of such an input with the weights, bias and residual added; absolute: of all
 * their magnitudes; sum_only: neither bias nor residual. Plain layout. */
conv_view conv_fused_result(const conv_fused *fused, conv_input_part part, bool absolute,
                            bool sum_only);

#endif
