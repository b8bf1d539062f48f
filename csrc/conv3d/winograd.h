/* winograd: F(m,3) over rows and columns, and F(2,3) or F(3,3) over frames; products by gemm_f32.
 *
 * An input that is up-sampled twice in rows and columns is read as it is (F(3,2) for odd and even
 * outputs at once, 49 products for 36 of them), and one whose frames come in twos too (F(2,2), five
 * products for four frames): winograd_lanes.h has the algebra.
 *
 * winograd.c runs it, winograd_plan.c chooses which kind, winograd_cost.c has the model and the
 * blocks, winograd_filters.c, _input.c and _output.c are the transforms. */
#ifndef HY3D_CONV3D_WINOGRAD_H
#define HY3D_CONV3D_WINOGRAD_H

#include "conv3d/lines.h"

/* A sum of `count` terms: number from[i] times factor[i]. */
typedef struct hy3d__winograd_sum {
    int count, from[5];
    float factor[5];
} hy3d__winograd_sum;

/* How time is done: `frames` of the result at once from `reads` of the input, `step` frames after
 * those of the one before. The data are sums of the frames read, a product's filter is a sum of the
 * three taps and has data[place], a frame of the result is a sum of the products. moments 1: the
 * taps of time are in a product's sum. */
typedef struct hy3d__winograd_time {
    int frames, reads, step, moments, data_moments;
    int place[5];
    hy3d__winograd_sum data[5], result[4];
    float filter[5][3];
} hy3d__winograd_time;

/* What a layout of prepared weights says: tiles of m x m outputs, `step` positions of the input
 * apart, by n x n points and n_products x n_products products. */
typedef struct hy3d__winograd_kind {
    int m, n, n_products, step;
    bool is_upsampled;
    const hy3d__winograd_time *time;
} hy3d__winograd_kind;

/* Sizes of one layer's transformed weights: u[product][panel][chunk][segment][k of chunk][32]. A
 * chunk's sum stays in registers, chunks are added up in memory: short sums round less, and weights
 * that are made while running stay in L2 from where they are made to where they are used. */
typedef struct hy3d__winograd_filters {
    hy3d__winograd_kind kind;
    int64_t chunk;       /* input channels of one, a multiple of 16; the last may have fewer */
    int64_t products;    /* n_products * n_products * time->moments, moment fastest */
    int64_t points;      /* n * n * time->data_moments, likewise */
    int64_t segments, k; /* taps in a sum (kT or 1); input channels of one, rounded up to 16 */
    int64_t panels;      /* of 32 output channels */
    int64_t panel_elems; /* segments * k * 32 */
    int64_t
        product_elems; /* from product to product: of all panels, and a line where that is even */
} hy3d__winograd_filters;

/* Elements from one product, or point, to the next: an odd number of cache lines. A transform
 * writes or reads one line of each, and powers of two would have all of them in one set. */
static inline int64_t hy3d__winograd_pitch(int64_t elems)
{
    return (elems / 16 | 1) * 16;
}

/* What blocks and cost of a convolution by Winograd follow from; frames, rows and columns of tiles
 * are of a whole image, what lies before the output included. */
typedef struct hy3d__winograd_sizes {
    hy3d__winograd_filters filters;
    int64_t in_channels, kernel_t, frames, tiles_h, tiles_w, images;
    int64_t lead[3]; /* frames, rows, columns of the first tile that lie before the output */
} hy3d__winograd_sizes;

typedef struct hy3d__winograd_limits {
    hy3d_cpu_level level;
    uint32_t threads;
    size_t slot_bytes;
    bool prepared; /* else weights are transformed in the workspace */
} hy3d__winograd_limits;

/* A grain: tiles, output frames (a multiple of the kind's), panels. */
typedef struct hy3d__winograd_blocks {
    int64_t h, w, frames, panels;
    int64_t panels_at_once; /* whose products exist at once */
} hy3d__winograd_blocks;

/* Floats of a slot. A grain's data at the points is v[point][k / 16][row][16], a row being (frame
 * or so many, tile); its products are r[product][panel][row][32]; u: weights made while
 * running. */
typedef struct hy3d__winograd_elems {
    int64_t v, r, strips, u;
} hy3d__winograd_elems;

typedef struct hy3d__conv_winograd {
    hy3d__winograd_sizes sizes;
    hy3d__winograd_blocks blocks;
    hy3d__winograd_elems elems;
    int64_t blocks_h, blocks_w, blocks_t, blocks_m;
} hy3d__conv_winograd;

/* winograd_plan.c */
bool hy3d__winograd_kind_of(hy3d_conv3d_format format, hy3d__winograd_kind *kind_out);
hy3d_conv3d_format hy3d__winograd_format(const hy3d__winograd_kind *kind);
const char *hy3d__winograd_format_name(hy3d_conv3d_format format); /* NULL: none of them */
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
                               const hy3d__winograd_blocks *blocks, bool is_prepared);

/* winograd_cost.c: estimates in cycles. */
#define HY3D__WINOGRAD_SLOT_BYTES ((size_t)60 << 20)
double hy3d__winograd_direct_cost(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                  hy3d_cpu_level level);
/* The cheapest blocks within the limits, and their cost; the smallest ones, and 1e300, where none
 * is. most: below 1e300, only what costs less matters, else it is returned and the blocks mean
 * nothing. */
double hy3d__winograd_best_blocks(const hy3d__winograd_sizes *sizes,
                                  const hy3d__winograd_limits *limits, double most,
                                  hy3d__winograd_blocks *blocks_out);
/* Whether any blocks are within the limits. */
bool hy3d__winograd_fits(const hy3d__winograd_sizes *sizes, const hy3d__winograd_limits *limits);
/* What it costs to prepare the weights for one run. */
double hy3d__winograd_preparing_cost(const hy3d__winograd_sizes *sizes,
                                     const hy3d__winograd_limits *limits);
/* What the cost is a weighted sum of, for one grain, and how many of them follow each other. */
typedef struct hy3d__winograd_work {
    double products; /* rows times terms, of 32 columns each */
    double data;     /* channels' tiles to points and back */
    double weights, made;
    double grains, rounds, bytes;
} hy3d__winograd_work;
hy3d__winograd_work hy3d__winograd_work_of(const hy3d__winograd_sizes *sizes,
                                           const hy3d__winograd_limits *limits,
                                           const hy3d__winograd_blocks *blocks);
hy3d__winograd_elems hy3d__winograd_block_elems(const hy3d__winograd_sizes *sizes,
                                                const hy3d__winograd_blocks *blocks, bool prepared);

/* winograd_filters.c: bytes of a layer's weights in a layout, 0 where it has none or they overflow;
 * and these weights. */
size_t hy3d__winograd_format_bytes(hy3d_conv3d_format format, int64_t out_channels,
                                   int64_t in_channels, const int64_t kernel[3]);
hy3d_status hy3d__winograd_prepare(hy3d_context *context, const hy3d_tensor *weight,
                                   hy3d_conv3d_format format, uint32_t num_threads,
                                   const hy3d_cancel *cancel, void *u);
/* Input channels [channel, channel + count) (one or more chunks) of one panel of a weight to u,
 * whose products are `product` floats apart; u[0] is chunk `channel / chunk`'s first. scratch:
 * HY3D__WINOGRAD_FILTER_ELEMS. */
#define HY3D__WINOGRAD_FILTER_ELEMS ((size_t)2 * 16 * 8 * 27)
void hy3d__winograd_filters_make(const hy3d__kernels *kernels,
                                 const hy3d__winograd_filters *filters, const hy3d_tensor *weight,
                                 int64_t panel, int64_t channel, int64_t count, float *u,
                                 size_t product, float *scratch);

/* winograd_input.c, winograd_output.c: the block of tiles of one grain. */
#define HY3D__WINOGRAD_CHUNK 16 /* tiles in a row at once: what is between two passes stays in L1 */
#define HY3D__WINOGRAD_COLUMNS (6 * HY3D__WINOGRAD_CHUNK)
/* Frames that a row of the data reads, at most, each of 7 lines; and lines of all strips: those,
 * and the frame that is being packed. Results need fewer. */
#define HY3D__WINOGRAD_RING 5
#define HY3D__WINOGRAD_LINES (7 * (HY3D__WINOGRAD_RING + 1))
typedef struct hy3d__winograd_block {
    int64_t image, t, frames; /* output frames, those before the output counted */
    int64_t tile_h, tile_w;   /* first tile */
    int64_t tiles_h, tiles_w; /* how many */
    int64_t rows;             /* of a product */
    int64_t panel, panels;    /* of the grain */
} hy3d__winograd_block;
void hy3d__winograd_input(const hy3d__conv_run *run, const hy3d__winograd_block *block, float *v,
                          float *strips);
void hy3d__winograd_output(const hy3d__conv_run *run, const hy3d__winograd_block *block,
                           int64_t panel, const float *r, int64_t r_point, float *strips);

#endif
