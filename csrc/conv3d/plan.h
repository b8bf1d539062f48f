/* Plans, and what a strategy is; inside csrc/conv3d only. */
#ifndef HY3D_CONV3D_PLAN_H
#define HY3D_CONV3D_PLAN_H

#include "base/parallel.h"
#include "conv3d/direct.h"
#include "conv3d/lines.h"
#include "conv3d/panel.h"
#include "conv3d/sizes.h"
#include "conv3d/thin.h"
#include "conv3d/winograd.h"
#include "kernels/kernels.h"

/* Layouts of weights that are transformed once for many plans. A format is a number of one strategy
 * alone, 1 or more; the functions below are asked for those that `name` knows. */
typedef struct hy3d__conv_layouts {
    const char *(*name)(hy3d_conv3d_format format); /* NULL: not one of this strategy's */
    hy3d_conv3d_format (*of_plan)(const hy3d_conv3d_plan *plan);
    /* 0 where such weights have no such layout, or one whose bytes do not fit in 63 bits. */
    size_t (*bytes)(hy3d_conv3d_format format, int64_t out_channels, int64_t in_channels,
                    const int64_t kernel[3]);
    /* Fills data, that many bytes. */
    hy3d_status (*make)(hy3d_context *context, const hy3d_tensor *weight, hy3d_conv3d_format format,
                        uint32_t num_threads, const hy3d_cancel *cancel, void *data);
} hy3d__conv_layouts;

/* A way to compute a convolution. */
typedef struct hy3d__conv_strategy {
    const char *(*name)(const hy3d_conv3d_plan *plan);
    /* Whether it computes this description, and is expected to be faster than those after it. From
     * sizes and the CPU level alone, never from threads or the workspace limit. */
    bool (*choose)(hy3d_conv3d_plan *plan);
    /* After choose: the blocks, grains, input_bytes and result_bytes (and block_k). Blocks may
     * follow threads and the limit where that changes no bit of the result. */
    void (*cut)(hy3d_conv3d_plan *plan, uint32_t threads);
    /* Where a grain's input has term i of a block_k's sum; NULL: it needs no offsets. */
    int32_t (*offset)(const hy3d_conv3d_plan *plan, int64_t i);
    /* One grain; its argument is a hy3d__conv_run. */
    hy3d__grain_fn run;
    /* NULL: it reads plan->weight; else plan->prepared, or plan->filter where that is NULL. */
    const hy3d__conv_layouts *layouts;
    bool needs_blas;
} hy3d__conv_strategy;

extern const hy3d__conv_strategy hy3d__conv_direct_strategy, hy3d__conv_panel_strategy,
    hy3d__conv_thin_strategy, hy3d__conv_winograd_strategy;
/* strategies.c: all of them, in the order in which they are asked; NULL ends the list. */
extern const hy3d__conv_strategy *const hy3d__conv_strategies[];

struct hy3d_conv3d_plan {
    hy3d_context *context;
    hy3d_cpu_level level;
    const hy3d__kernels *kernels;
    const hy3d_conv3d_weights *prepared; /* NULL: none */
    hy3d_conv3d_desc desc;
    int64_t out[3];
    int64_t m, c, taps, k;
    size_t compute_bytes; /* of one element: 4 or 8 */
    const hy3d__conv_strategy *strategy;
    union { /* what the strategy keeps for itself */
        hy3d__conv_direct direct;
        hy3d__conv_thin thin;
        hy3d__conv_panel panel;
        hy3d__conv_winograd winograd;
    };
    int64_t grains;
    int64_t block_k;    /* of a strategy with offsets: terms of a sum in registers */
    int32_t *offsets;   /* own memory, one for each of them */
    hy3d_tensor filter; /* as given, for weights that are transformed while running */
    /* The layout that the plan prepares weights in for itself, once it takes them; none where there
     * are prepared ones, or each grain makes its own. is_short: not to be done, for want of
     * memory. */
    hy3d_conv3d_format own_format;
    hy3d_conv3d_weights *own_prepared;
    bool is_short;
    const void *weight; /* compute type, contiguous: borrowed, or own_weight */
    void *own_weight;
    void *bias; /* own, compute type, out_channels values and a kernel's rows of zeros */
    size_t own_bytes;
    /* A slot's workspace: what the input becomes, then the result tile, where there is one. */
    size_t input_bytes, result_bytes, slot_bytes, workspace_bytes;
    uint32_t slots;
};

/* plan.c: a plan of a description that it checks, with nothing but sizes. */
hy3d_status hy3d__conv_begin(const hy3d_conv3d_desc *desc, hy3d_cpu_level level,
                             hy3d_conv3d_plan *plan_out);

/* check.c */
hy3d_status hy3d__conv_check_desc(const hy3d_conv3d_desc *desc, int64_t out[3]);
hy3d_status hy3d__conv_check_weight(const hy3d_conv3d_desc *desc, const hy3d_tensor *weight,
                                    const hy3d_tensor *bias);
/* A weight by itself: its pointer and that the address of no element overflows. */
hy3d_status hy3d__conv_check_filter(const hy3d_tensor *weight);
hy3d_status hy3d__conv_check_io(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                const hy3d_tensor *x, const hy3d_conv3d_fusion *fusion,
                                const hy3d_tensor *y); /* fusion may be NULL */
bool hy3d__conv_is_contiguous(const hy3d_tensor *tensor);

/* weights.c */
hy3d_status hy3d__conv_take_weight(hy3d_conv3d_plan *plan, const hy3d_tensor *weight,
                                   const hy3d_tensor *bias);
/* Bytes that it takes, of weights that are contiguous. */
size_t hy3d__conv_taken_bytes(const hy3d_conv3d_plan *plan);

/* prepared.c */
struct hy3d_conv3d_weights {
    hy3d_context *context;
    hy3d_conv3d_format format;
    int64_t out_channels, in_channels, kernel[3];
    size_t bytes;
    void *data;
};
/* Whether plan->prepared is what the plan's strategy, once chosen, can use. */
hy3d_status hy3d__conv_check_prepared(const hy3d_conv3d_plan *plan);

#endif
