/* Tensors with layouts, and runs of the convolution, for the conv3d suites. */
#ifndef HY3D_TESTS_CONV3D_SUPPORT_H
#define HY3D_TESTS_CONV3D_SUPPORT_H

#include "hy3d/conv3d.h"

#include "reference.h"
#include "support.h"

typedef enum conv_layout {
    LAYOUT_PLAIN,     /* NCDHW */
    LAYOUT_LAST,      /* NDHWC */
    LAYOUT_REVERSED,  /* NCDHW, H and W with negative strides */
    LAYOUT_GAPS,      /* NCDHW, every dimension with room that is not part of the tensor */
    LAYOUT_EXPANDED,  /* inputs only: H and T have stride 0 */
    LAYOUT_COUNT
} conv_layout;

typedef struct conv_view {
    hy3d_tensor tensor;
    unsigned char *memory;
    size_t bytes;
} conv_view;

/* Uninitialised elements; all bytes of the memory are `fill`. */
conv_view conv_view_make(hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS],
                         conv_layout layout, unsigned char fill);
void conv_view_free(conv_view *view);
/* Another view with the same values as f64, plain layout; magnitudes where absolute. */
conv_view conv_view_widen(const conv_view *view, bool absolute);

double conv_get(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS]);
void conv_set(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS], double value);
/* Next index in order; false after the last. Start with all zeros and a tensor without zeros. */
bool conv_step(const hy3d_tensor *tensor, int64_t at[HY3D_TENSOR_DIMS]);
/* The least in_size (up-sampled) of an axis for one output and its paddings. */
int64_t conv_least_size(const hy3d_conv3d_desc *desc, int axis);
/* NaN where negative padding leaves nothing of x or (first_axis 1) of one frame: what a result may
 * not depend on. Nothing where elements share memory. */
void conv_poison_cropped(const hy3d_conv3d_desc *desc, const hy3d_tensor *x, int first_axis);

/* All values, to a tensor of the same size. */
void conv_copy(const hy3d_tensor *from, const hy3d_tensor *to);
/* Values that differ in any bit (as doubles, which hold every type exactly). */
int64_t conv_unequal(const hy3d_tensor *a, const hy3d_tensor *b);

/* Integers in -limit .. limit, or reals in (-1, 1) that the dtype can hold. */
void conv_fill_integers(test_random *random, const hy3d_tensor *tensor, int limit);
void conv_fill_reals(test_random *random, const hy3d_tensor *tensor);

/* Description of a plain convolution: kernel^3, stride 1, no padding. */
hy3d_conv3d_desc conv_desc(hy3d_dtype dtype, int64_t in_channels, int64_t out_channels, int64_t t,
                           int64_t h, int64_t w, int64_t kernel);
/* Tensors of a description, filled with integers (limit > 0) or reals (limit 0). */
typedef struct conv_problem {
    hy3d_conv3d_desc desc;
    bool has_bias;
    conv_view x, weight, bias, y;
} conv_problem;
conv_problem conv_problem_make(const hy3d_conv3d_desc *desc, bool bias, conv_layout x_layout,
                               conv_layout weight_layout, conv_layout y_layout,
                               test_random *random, int limit);
void conv_problem_free(conv_problem *problem);
/* Creates a plan, allocates its workspace, runs into problem->y, releases both. */
hy3d_status conv_problem_run(hy3d_context *context, const conv_problem *problem);
/* Elements of y that differ from reference_conv3d. */
int64_t conv_problem_differing(const conv_problem *problem);
/* One line that says what a problem is. */
void conv_problem_text(const conv_problem *problem, char *text, size_t size);
/* True where this description needs BLAS and there is none. */
bool conv_needs_missing_blas(hy3d_context *context, const conv_problem *problem);

/* conv3d_random.c: a description, mostly small, now and then strange. */
hy3d_conv3d_desc conv_random_desc(test_random *random);
/* docs/numerics.md: half a spacing of the result's type at a value that is off by at most `sum`. */
double conv_rounding_bound(hy3d_dtype dtype, double exact, double sum);

TCase *hy3d_conv3d_random_case(void);
TCase *hy3d_conv3d_argument_case(void);
TCase *hy3d_conv3d_run_case(void);
TCase *hy3d_conv3d_kernel_case(void);
TCase *hy3d_conv3d_fused_case(void);
TCase *hy3d_conv3d_fused_bound_case(void);
TCase *hy3d_conv3d_thin_case(void);
TCase *hy3d_conv3d_panel_case(void);

#endif
