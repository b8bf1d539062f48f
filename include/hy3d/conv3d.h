/* Forward 3D convolution on the CPU (cross-correlation, as torch.nn.functional.conv3d).
 *
 * plan -> workspace -> run -> destroy. A plan is made for one shape and one weight, does all the
 * checks, says its workspace before it runs, is immutable and may be run by many threads at once,
 * each with a workspace of its own. run never allocates. */
#ifndef HY3D_CONV3D_H
#define HY3D_CONV3D_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"
#include "hy3d/tensor.h"

typedef enum hy3d_pad_mode {
    HY3D_PAD_ZEROS = 0,
    HY3D_PAD_REPLICATE = 1,
} hy3d_pad_mode;

typedef enum hy3d_accuracy {
    HY3D_EXACT = 0, /* the direct sum; error bound gamma_(K+1) sum |x w|, see docs/numerics.md */
    HY3D_FAST = 1,  /* Winograd where it is expected to be faster; error bound relative to
                       max|x| * max of sum|w| over an output channel's weights */
} hy3d_accuracy;

typedef enum hy3d_activation {
    HY3D_IDENTITY = 0,
    HY3D_SILU = 1, /* v / (1 + exp(-v)) */
} hy3d_activation;

/* How prepared weights are laid out. A number of its own for each layout, stable within a build. */
typedef uint32_t hy3d_conv3d_format;
#define HY3D_FORMAT_NONE ((hy3d_conv3d_format)0) /* weights are used as they are */

/* Arrays of three are (T, H, W). A 2D convolution is T = kernel[0] = 1. */
typedef struct hy3d_conv3d_desc {
    hy3d_dtype dtype; /* of input, weight, bias and output; f16 and bf16 are summed in f32 */
    int64_t batch;    /* >= 0 */
    int64_t in_channels, out_channels, groups; /* >= 1; both channel counts divisible by groups */
    int64_t in_size[3];                        /* >= 1 */
    int64_t kernel[3], stride[3], dilation[3]; /* >= 1 */
    /* Causal in time: before 2, after 0. Negative: so many positions of the input (up-sampled ones)
     * are cropped at that side, fewer than in_size; nothing follows from what they hold. */
    int64_t pad_before[3], pad_after[3];
    hy3d_pad_mode pad_mode[3];
    /* Nearest up-sampling of x before the convolution: in_size counts up-sampled positions, x has
     * in_size[i] / upsample[i] (exact). 0 means 1. */
    int64_t upsample[3];
    hy3d_accuracy accuracy; /* HY3D_FAST is for f32, f16 and bf16; f64 is always exact */
    /* At most this many threads; 0 is the context's maximum. Never changes a bit of the result. */
    uint32_t num_threads;
    /* Upper bound of the workspace in bytes, all threads together; 0 is 64 MB a thread. A tighter
     * bound means fewer or smaller grains in flight, never another result. */
    size_t workspace_limit_bytes;
    /* Whether frames of a fusion's list come in twos, as those of a video do that was up-sampled in
     * time: 0: perhaps not; 1: frames 0 and 1 are the same, 2 and 3, and so on, the last may be
     * alone; 2: frame 0 is alone, 1 and 2 are the same, and so on. A promise that run checks:
     * HY3D_ERR_INVALID_ARGUMENT where two differ in data or strides, or where there is no list. */
    uint32_t pairs;
} hy3d_conv3d_desc;

typedef struct hy3d_conv3d_plan hy3d_conv3d_plan;
typedef struct hy3d_conv3d_weights hy3d_conv3d_weights;

/* One frame of the input, for inputs that do not lie in one tensor. */
typedef struct hy3d_conv3d_frame {
    const void *data;  /* element (channel 0, row 0, column 0); NULL is a frame of zeros, which
                          neither scale, shift nor activation changes */
    int64_t stride[3]; /* of channels, rows, columns; in elements */
} hy3d_conv3d_frame;

/* What is done to the input as it is read and to the result before it is written, instead of in
 * passes of their own. Padding comes after all that is done to the input: a padded zero stays one.
 * Everything may be absent (NULL, 0). */
typedef struct hy3d_conv3d_fusion {
    /* The input's frames in place of x, batch 1 only: in_size[0] of them, up-sampled ones repeated
     * (upsample[0] is 1). */
    const hy3d_conv3d_frame *frames;
    const float *scale, *shift;  /* in_channels each: x * scale + shift (GroupNorm applied); both or
                                   none */
    hy3d_activation activation;  /* after them */
    const hy3d_tensor *residual; /* y's sizes and dtype, any strides: added to the result before it
                                    is rounded to y's type; may be y itself */
} hy3d_conv3d_fusion;

HY3D_BEGIN_DECLS

/* Output size (T, H, W) of a description. A kernel that does not fit into the padded input is
 * HY3D_ERR_SHAPE_MISMATCH. */
HY3D_API hy3d_status hy3d_conv3d_out_size(const hy3d_conv3d_desc *desc, int64_t out_size_out[3]);

/* Which layout a plan of this description can use prepared weights in; HY3D_FORMAT_NONE where it
 * uses them as they are. Follows from the description (threads and limit aside) and the context's
 * CPU level alone. */
HY3D_API hy3d_status hy3d_conv3d_choose_format(const hy3d_context *context,
                                               const hy3d_conv3d_desc *desc,
                                               hy3d_conv3d_format *format_out);
/* A static text ("winograd-5x5"), "none", or "unknown". */
HY3D_API const char *hy3d_conv3d_format_name(hy3d_conv3d_format format);
/* Bytes of weights in that layout; 0 for HY3D_FORMAT_NONE, unknown layouts, and weights that have
 * none or whose bytes do not fit in 63 bits. */
HY3D_API size_t hy3d_conv3d_format_bytes(hy3d_conv3d_format format, int64_t out_channels,
                                         int64_t in_channels, const int64_t kernel[3]);
/* Transforms weights once, for any number of plans; weight (f32, f16 or bf16) is only read here.
 * num_threads as in the description. Immutable: any number of plans may use it at once, and it must
 * outlive them. */
HY3D_API hy3d_status hy3d_conv3d_weights_create(hy3d_context *context, const hy3d_tensor *weight,
                                                hy3d_conv3d_format format, uint32_t num_threads,
                                                const hy3d_cancel *cancel,
                                                hy3d_conv3d_weights **weights_out);
HY3D_API void hy3d_conv3d_weights_destroy(hy3d_conv3d_weights *weights);
HY3D_API size_t hy3d_conv3d_weights_bytes(const hy3d_conv3d_weights *weights);
HY3D_API hy3d_conv3d_format hy3d_conv3d_weights_format(const hy3d_conv3d_weights *weights);

/* weight has sizes (out_channels, in_channels / groups, kT, kH, kW), any strides; bias is NULL or
 * has size[0] = out_channels (the other sizes 1). Both are of desc->dtype. The plan may read weight
 * until it is destroyed, whatever its type: keep weight and bias alive and unchanged as long.
 * HY3D_ERR_WORKSPACE_TOO_SMALL: *needed_out (if not NULL) is the smallest limit that would do; on
 * success a limit that gives this plan with one grain in flight. */
HY3D_API hy3d_status hy3d_conv3d_plan_create(hy3d_context *context, const hy3d_conv3d_desc *desc,
                                             const hy3d_tensor *weight, const hy3d_tensor *bias,
                                             size_t *needed_out, hy3d_conv3d_plan **plan_out);
/* As above, with weights that were prepared (NULL: none, then they are transformed while running,
 * part by part in the workspace). prepared must be of this context and have the sizes of weight and
 * the layout that hy3d_conv3d_choose_format gives, else HY3D_ERR_INVALID_ARGUMENT. Never another
 * result. */
HY3D_API hy3d_status hy3d_conv3d_plan_create_prepared(
    hy3d_context *context, const hy3d_conv3d_desc *desc, const hy3d_tensor *weight,
    const hy3d_tensor *bias, const hy3d_conv3d_weights *prepared, size_t *needed_out,
    hy3d_conv3d_plan **plan_out);
/* What a plan of this description takes, without a weight: bytes that run needs and bytes that the
 * plan holds, as the two functions below give them for contiguous weights. has_prepared: with
 * prepared weights, where the description has a layout for them. Costs nothing, runs nothing. */
HY3D_API hy3d_status hy3d_conv3d_memory(hy3d_context *context, const hy3d_conv3d_desc *desc,
                                        bool has_prepared, size_t *workspace_bytes_out,
                                        size_t *own_bytes_out);
HY3D_API void hy3d_conv3d_plan_destroy(hy3d_conv3d_plan *plan);

/* Bytes that run needs, 64-byte aligned; at most the limit of the description. */
HY3D_API size_t hy3d_conv3d_plan_workspace_bytes(const hy3d_conv3d_plan *plan);
/* Bytes that the plan itself holds: converted weights, or up to 64 MB of prepared ones where none
 * were given and every grain would make the same. No limit of the description counts them. */
HY3D_API size_t hy3d_conv3d_plan_own_bytes(const hy3d_conv3d_plan *plan);
/* Threads that run will use at most. */
HY3D_API uint32_t hy3d_conv3d_plan_threads(const hy3d_conv3d_plan *plan);
/* A static text naming the strategy chosen, for logs and tests. */
HY3D_API const char *hy3d_conv3d_plan_strategy(const hy3d_conv3d_plan *plan);

/* x has sizes (batch, in_channels, T, H, W), y (batch, out_channels, out T, H, W); any strides.
 * NCDHW and channels-last are the fast ones. x is never written. y must not overlap x and must not
 * have two indices at one address. Bit-identical for every thread count and workspace limit.
 * workspace: 64-byte aligned, hy3d_conv3d_plan_workspace_bytes(plan) bytes, used by no other call
 * meanwhile. cancel may be NULL; HY3D_ERR_CANCELLED leaves y partly written. */
HY3D_API hy3d_status hy3d_conv3d_run(const hy3d_conv3d_plan *plan, const hy3d_tensor *x,
                                     const hy3d_tensor *y, void *workspace,
                                     const hy3d_cancel *cancel);

/* As hy3d_conv3d_run with a fusion (NULL: none). x may be NULL where fusion->frames is set. y may
 * be the residual, and then overlaps it in every element; it overlaps nothing else. */
HY3D_API hy3d_status hy3d_conv3d_run_fused(const hy3d_conv3d_plan *plan, const hy3d_tensor *x,
                                           const hy3d_conv3d_fusion *fusion, const hy3d_tensor *y,
                                           void *workspace, const hy3d_cancel *cancel);

HY3D_END_DECLS

#endif
