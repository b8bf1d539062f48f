/* Shared inside csrc/conv3d only.
 *
 * Names: m output channels of a group, c input channels of a group, taps kT * kH * kW,
 * k = c * taps, the length of every sum. "Compute type" is f64 for f64, else f32. */
#ifndef HY3D_CONV3D_INTERNAL_H
#define HY3D_CONV3D_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/conv3d.h"

#include "kernels/kernels.h"

#define HY3D__CONV_ALIGN ((size_t)64)
/* Rows and lanes of the widest conv_f32 kernel call; see kernels.inc. */
#define HY3D__CONV_ROWS 8
#define HY3D__CONV_LANES 16
#define HY3D__CONV_VECTORS 3

typedef enum hy3d__conv_strategy {
    HY3D__CONV_DIRECT, /* padded input tile, micro-kernel straight on it */
    HY3D__CONV_THIN,   /* one tap in height and width: packed columns, the same micro-kernel */
    HY3D__CONV_PANEL,  /* K-blocked im2col panel, GEMM */
    HY3D__CONV_WINOGRAD, /* F(m,3) over rows and columns, products by GEMM */
} hy3d__conv_strategy;

/* How the taps of one axis map to a tile: a tap reads phase `tap % period` from entry
 * `q` = (tap * dilation) / stride on, so that neighbouring outputs are neighbours in the tile
 * whatever the stride is. per_tap gives every tap a phase of its own (q = 0, no halo). */
typedef struct hy3d__conv_axis {
    int64_t taps, stride, dilation;
    bool per_tap;
    int64_t phases; /* in the tile */
    int64_t halo;   /* entries of a phase beyond the number of outputs */
} hy3d__conv_axis;

typedef struct hy3d__conv_direct {
    hy3d__conv_axis h, w;
    int64_t m_block, m_blocks; /* output channels of a grain */
    int64_t c_block;           /* input channels in the tile at once */
    int64_t rows, row_blocks;  /* output rows of a grain */
    int64_t cols, col_blocks;  /* output columns of a grain */
    bool by_row;               /* vectors never cross a row's end; else rows are run together */
    /* Elements: between rows, h phases' w phases, h phases, kT planes, channels of the tile. */
    int64_t row_pitch, phase_w_pitch, phase_h_pitch, plane_pitch, channel_pitch;
    int64_t tile_elems;            /* tail for the vectors' over-read included */
    int64_t c_pitch;               /* result tile: between output channels */
} hy3d__conv_direct;

typedef struct hy3d__conv_thin {
    int64_t c_block;           /* input channels at once */
    int64_t m_block, m_blocks; /* output channels of a grain */
    int64_t positions, blocks; /* of a plane in a grain, whole vectors */
    bool writes_straight;      /* y may be summed where it is, without a result tile */
} hy3d__conv_thin;

typedef struct hy3d__conv_panel {
    int64_t m_block, m_blocks;
    int64_t n_block, n_blocks; /* output positions (T, H, W flattened) */
    int64_t k_block;
} hy3d__conv_panel;

/* What a layout of prepared weights says: tiles of m x m outputs, by n x n points; moments is 1
 * where the taps of time are in a product's sum, 4 for F(2,3) in time. */
typedef struct hy3d__winograd_kind {
    int m, n, moments;
} hy3d__winograd_kind;

/* Sizes of one layer's transformed weights: u[product][panel][chunk][segment][k of chunk][32]. A
 * chunk's sum stays in registers, chunks are added up in memory: short sums round less, and weights
 * that are made while running stay in L2 from where they are made to where they are used. */
typedef struct hy3d__winograd_filters {
    hy3d__winograd_kind kind;
    int64_t chunk;       /* input channels of one, a multiple of 16; the last may have fewer */
    int64_t products;    /* n * n * moments, moment fastest */
    int64_t segments, k; /* taps in a sum (kT or 1); input channels of one, rounded up to 16 */
    int64_t panels;      /* of 32 output channels */
    int64_t panel_elems; /* segments * k * 32 */
} hy3d__winograd_filters;

/* What the cost of a convolution by Winograd follows from. */
typedef struct hy3d__winograd_sizes {
    hy3d__winograd_filters filters;
    int64_t in_channels, kernel_t, frames, tiles_h, tiles_w, images;
} hy3d__winograd_sizes;

typedef struct hy3d__winograd_limits {
    hy3d_cpu_level level;
    uint32_t threads;
    size_t slot_bytes;
    bool prepared; /* else weights are transformed in the workspace */
} hy3d__winograd_limits;

/* A grain: tiles, output frames (even for pairs), panels. */
typedef struct hy3d__winograd_blocks {
    int64_t h, w, frames, panels;
    int64_t panels_at_once; /* whose products exist at once */
} hy3d__winograd_blocks;

/* Floats of a slot. A grain's data at the points is v[product][k / 16][row][16], a row being (frame
 * or pair of frames, tile); its products are r[product][panel][row][32]; u: weights made while
 * running. */
typedef struct hy3d__winograd_elems {
    int64_t v, r, strips, u;
} hy3d__winograd_elems;

typedef struct hy3d__conv_winograd {
    hy3d__winograd_filters filters;
    hy3d__winograd_blocks blocks;
    hy3d__winograd_elems elems;
    int64_t tiles_h, tiles_w; /* of a whole frame */
    int64_t blocks_h, blocks_w, blocks_t, blocks_m;
} hy3d__conv_winograd;

struct hy3d_conv3d_plan {
    hy3d_context *context;
    const hy3d__kernels *kernels;
    const hy3d_conv3d_weights *prepared; /* NULL: none */
    hy3d_conv3d_desc desc;
    int64_t out[3];
    int64_t m, c, taps, k;
    hy3d__conv_strategy strategy;
    hy3d__conv_direct direct;
    hy3d__conv_thin thin;
    int64_t block_k;  /* of direct and thin: terms of a sum in registers */
    int32_t *offsets; /* own memory: where the tile has each term of a full block */
    hy3d__conv_panel panel;
    hy3d__conv_winograd winograd;
    int64_t grains;
    size_t compute_bytes; /* of one element: 4 or 8 */
    hy3d_tensor filter;   /* as given, for weights that are transformed while running */
    const void *weight;   /* compute type, contiguous: borrowed, or own_weight */
    void *own_weight;
    void *bias; /* own, compute type, out_channels values and a kernel's rows of zeros */
    size_t own_bytes;
    /* A slot's workspace: input tile or panel first, then the result tile; Winograd's is all input. */
    size_t input_bytes, result_bytes, slot_bytes, workspace_bytes;
    uint32_t slots;
};

/* What one run passes to its grains. */
typedef struct hy3d__conv_run {
    const hy3d_conv3d_plan *plan;
    const hy3d_tensor *x; /* NULL where fusion->frames is set */
    const hy3d_tensor *y;
    const hy3d_conv3d_fusion *fusion; /* never NULL: all zeros where there is none */
    unsigned char *workspace;
    const hy3d_cancel *cancel; /* looked at within grains that take more than some ms */
} hy3d__conv_run;

/* One line of input along W: where it starts, how its elements follow, what is done to them. */
typedef struct hy3d__conv_line {
    const unsigned char *data; /* element 0; NULL: zeros */
    int64_t stride, size;      /* in elements; size counts repeated ones */
    hy3d_dtype dtype;
    bool replicate;
    int64_t repeat;     /* each element so many times; 0 is 1 */
    bool is_changed;    /* by scale, shift and silu as affine_silu_f32 */
    float scale, shift;
    int silu;
} hy3d__conv_line;

static inline int64_t hy3d__conv_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How often each position of x stands in the input along an axis. */
static inline int64_t hy3d__conv_upsample(const hy3d_conv3d_desc *desc, int axis)
{
    return desc->upsample[axis] > 1 ? desc->upsample[axis] : 1;
}

static inline int64_t hy3d__conv_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t hy3d__conv_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0 ? 1 : 0);
}

static inline int64_t hy3d__conv_round_up(int64_t a, int64_t b)
{
    return hy3d__conv_ceil_div(a, b) * b;
}

/* Rows and vectors of the next call of a conv_f32 kernel, of so many left. 4 = 2 + 2: a single
 * vector leaves the multipliers waiting for loads. */
static inline int64_t hy3d__conv_rows_next(int64_t left)
{
    return left >= HY3D__CONV_ROWS ? HY3D__CONV_ROWS : hy3d__conv_min(left, 4);
}

static inline int64_t hy3d__conv_vectors_next(int64_t left)
{
    return left == 4 ? 2 : hy3d__conv_min(left, HY3D__CONV_VECTORS);
}

/* Time of n vectors in a row, in that of a vector of a full call: calls of three, and of two, which
 * run at 93 % of their speed; a single vector waits for loads. */
static inline double hy3d__conv_vectors_cost(int64_t n)
{
    const double full = (double)(n / HY3D__CONV_VECTORS * HY3D__CONV_VECTORS);
    switch (n % HY3D__CONV_VECTORS) {
    case 1:
        return n == 1 ? 1.4 : full + 1.3;
    case 2:
        return full + 2.15;
    default:
        return full;
    }
}

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

/* geometry.c: fills plan->strategy and its blocking; sizes only, no memory. */
void hy3d__conv_choose(hy3d_conv3d_plan *plan, uint32_t threads);
/* Phase and first entry of a tap; first input index (relative) of a phase. */
int64_t hy3d__conv_tap_phase(const hy3d__conv_axis *axis, int64_t tap);
int64_t hy3d__conv_tap_entry(const hy3d__conv_axis *axis, int64_t tap);
int64_t hy3d__conv_phase_start(const hy3d__conv_axis *axis, int64_t phase);

/* source.c: the frame that a kernel's tap reads at up-sampled time index t of an image, padding
 * in time included (t may lie outside); data is NULL for a frame of zeros. */
hy3d_conv3d_frame hy3d__conv_source_frame(const hy3d__conv_run *run, int64_t image, int64_t t);
/* Row h of one channel of a frame, padding in height and up-sampling included as above. */
hy3d__conv_line hy3d__conv_source_line(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                                       int64_t channel, int64_t h);

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

/* gather.c: n elements at indices first, first + step, ... of the line as compute type; outside of
 * it zeros or the edge. */
void hy3d__conv_load_line(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t first,
                          int64_t step, int64_t n, void *dst);
/* Index in [0, size) or -1 for a zero. */
int64_t hy3d__conv_resolve(int64_t index, int64_t size, bool replicate);

/* store.c: writes results of compute type to y. */
typedef struct hy3d__conv_result {
    const void *data;
    int64_t at[HY3D_TENSOR_DIMS]; /* index in y of the first element */
    int64_t channels, rows, cols;
    int64_t channel_pitch, row_pitch; /* of data, in elements */
    const hy3d_tensor *residual;      /* added before rounding; NULL: none; may be y */
} hy3d__conv_result;
void hy3d__conv_store(const hy3d__kernels *kernels, const hy3d_tensor *y,
                      const hy3d__conv_result *result);

/* tile.c: the part of the input that a direct grain reads. */
typedef struct hy3d__conv_part {
    int64_t image, channel, channels; /* channel: among all input channels */
    int64_t t, h, w;                  /* first output position */
    int64_t rows, cols;               /* output rows and columns */
} hy3d__conv_part;
void hy3d__conv_pack_tile(const hy3d__conv_run *run, const hy3d__conv_part *part, float *tile);

/* winograd_plan.c */
bool hy3d__winograd_kind_of(hy3d_conv3d_format format, hy3d__winograd_kind *kind_out);
hy3d_conv3d_format hy3d__winograd_format(const hy3d__winograd_kind *kind);
hy3d__winograd_filters hy3d__winograd_filters_of(hy3d__winograd_kind kind, int64_t out_channels,
                                                 int64_t in_channels, int64_t kernel_t);
/* The best kind for a description that was checked; false where another strategy is expected to be
 * faster or Winograd can't do it. */
bool hy3d__winograd_choose(const hy3d_conv3d_desc *desc, const int64_t out[3], hy3d_cpu_level level,
                           hy3d__winograd_kind *kind_out);
void hy3d__winograd_plan(hy3d_conv3d_plan *plan, hy3d__winograd_kind kind, uint32_t threads);
/* Its parts: the sizes, and blocks that were chosen. */
hy3d__winograd_sizes hy3d__winograd_sizes_of(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                             hy3d__winograd_kind kind);
void hy3d__winograd_use_blocks(hy3d_conv3d_plan *plan, const hy3d__winograd_sizes *sizes,
                               const hy3d__winograd_blocks *blocks);

/* winograd_cost.c: estimates in cycles. */
#define HY3D__WINOGRAD_SLOT_BYTES ((size_t)60 << 20)
double hy3d__winograd_direct_cost(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                  hy3d_cpu_level level);
/* The cheapest blocks within the limits; the smallest ones, and 1e300, where none is. */
double hy3d__winograd_best_blocks(const hy3d__winograd_sizes *sizes,
                                  const hy3d__winograd_limits *limits,
                                  hy3d__winograd_blocks *blocks_out);
/* What the cost is a weighted sum of, for one grain, and how many of them follow each other. */
typedef struct hy3d__winograd_work {
    double products; /* rows times terms, of 32 columns each */
    double data;     /* channels' tiles to points and back */
    double weights, made;
    double rounds, bytes;
} hy3d__winograd_work;
hy3d__winograd_work hy3d__winograd_work_of(const hy3d__winograd_sizes *sizes,
                                          const hy3d__winograd_limits *limits,
                                          const hy3d__winograd_blocks *blocks);
hy3d__winograd_elems hy3d__winograd_block_elems(const hy3d__winograd_sizes *sizes,
                                                const hy3d__winograd_blocks *blocks,
                                                bool prepared);

/* winograd_filters.c: input channels [channel, channel + count) (one or more chunks) of one panel of
 * a weight to u, whose products are `product` floats apart; u[0] is chunk `channel / chunk`'s first.
 * scratch: HY3D__WINOGRAD_FILTER_ELEMS. */
#define HY3D__WINOGRAD_FILTER_ELEMS ((size_t)2 * 16 * 8 * 27)
void hy3d__winograd_filters_make(const hy3d__kernels *kernels,
                                 const hy3d__winograd_filters *filters, const hy3d_tensor *weight,
                                 int64_t panel, int64_t channel, int64_t count, float *u,
                                 size_t product, float *scratch);

/* winograd_input.c, winograd_output.c: the block of tiles of one grain. */
#define HY3D__WINOGRAD_CHUNK 16 /* tiles in a row at once: what is between two passes stays in L1 */
#define HY3D__WINOGRAD_COLUMNS (5 * HY3D__WINOGRAD_CHUNK + 2)
typedef struct hy3d__winograd_block {
    int64_t image, t, frames;      /* output frames */
    int64_t tile_h, tile_w;        /* first tile */
    int64_t tiles_h, tiles_w;      /* how many */
    int64_t rows;                  /* of a product */
    int64_t panel, panels;         /* of the grain */
} hy3d__winograd_block;
void hy3d__winograd_input(const hy3d__conv_run *run, const hy3d__winograd_block *block, float *v,
                          float *strips);
void hy3d__winograd_output(const hy3d__conv_run *run, const hy3d__winograd_block *block,
                           int64_t panel, const float *r, int64_t r_point, float *strips);

/* thin.c: false where it can't do it; then its sizes. */
bool hy3d__conv_choose_thin(hy3d_conv3d_plan *plan, uint32_t threads);
void hy3d__conv_count_thin(hy3d_conv3d_plan *plan);

/* direct.c, thin.c, panel.c, winograd.c: grains. */
hy3d_status hy3d__conv_thin_grain(void *argument, int64_t grain, uint32_t slot);
hy3d_status hy3d__conv_winograd_grain(void *argument, int64_t grain, uint32_t slot);
hy3d_status hy3d__conv_direct_grain(void *argument, int64_t grain, uint32_t slot);
hy3d_status hy3d__conv_panel_grain(void *argument, int64_t grain, uint32_t slot);

#endif
