/* A VAE's decoder or encoder as a graph of integers: what a decode is scheduled from (schedule.h).
 *
 * A graph holds no tensor, no weight and no name. Each node makes one value, a video (channels,
 * frames, rows, columns), and is known by its index; it reads values of nodes before it, so a graph
 * has no circle. Node 0 is the only INPUT, the last node the only OUTPUT, and every value but the
 * output's is read by some node. Frames are counted from the start of the video. Triples are
 * (T, H, W).
 *
 * Pure functions over plain structs: nothing is allocated, all are thread-safe. */
#ifndef HY3D_GRAPH_H
#define HY3D_GRAPH_H

#include <stdint.h>

#include "hy3d/export.h"
#include "hy3d/status.h"

typedef enum hy3d_op {
    HY3D_OP_INPUT = 0,
    HY3D_OP_CONV = 1,      /* norm, activation, up-sampling, padding, kernel, shuffle, residual */
    HY3D_OP_ATTENTION = 2, /* source + attention over its normalised frames */
    HY3D_OP_MAP = 3,       /* a function of single frames */
    HY3D_OP_ADD = 4,       /* source + other */
    HY3D_OP_OPAQUE = 5,    /* a VAE's own code: all frames at once */
    HY3D_OP_OUTPUT = 6,    /* gives its source away, frame after frame in order */
} hy3d_op;

typedef enum hy3d_norm {
    HY3D_NORM_NONE = 0,
    HY3D_NORM_POSITION = 1, /* over the channels of each position (RMS, L2, LayerNorm) */
    HY3D_NORM_GROUP = 2,    /* GroupNorm: mean and variance over all frames, rows and columns */
    HY3D_NORM_FRAME = 3,    /* GroupNorm of each frame by itself, over its rows and columns */
} hy3d_norm;

/* Which frames a frame's attention sees. */
typedef enum hy3d_span {
    HY3D_SPAN_FRAME = 0,  /* its own */
    HY3D_SPAN_CAUSAL = 1, /* its own and all before it */
    HY3D_SPAN_VIDEO = 2,  /* all */
} hy3d_span;

/* Fields that an operation does not have are 0 (`other` -1); the lists below say which it has.
 *
 * CONV of a source of T frames: the first `skip_first` frames pass by it and are the result's first
 * frames (channels, rows and columns are then unchanged); the convolution's own video begins at
 * frame skip_first - reread of the source. It is up-sampled (nearest; with keep_first its first
 * frame stays one frame in time), padded by `before` and `after`, convolved. Its output has
 * channels * shuffle[0] * shuffle[1] * shuffle[2] channels, which the shuffle turns into frames,
 * rows and columns; of the video's first output frame only shuffle_first frames are made where that
 * is not 0; then the first `drop` frames are dropped. The residual `other` is added last. */
typedef struct hy3d_node {
    int32_t op;
    int32_t source;   /* all but INPUT (-1) */
    int32_t other;    /* CONV: the residual or -1; ADD: the second summand; else -1 */
    int32_t norm;     /* CONV, ATTENTION */
    int64_t channels; /* of the value that the node makes */
    /* CONV */
    int32_t kernel[3], stride[3], dilation[3], up[3]; /* >= 1 */
    int32_t before[3], after[3];                      /* padding of the up-sampled input, >= 0 */
    int32_t shuffle[3];                               /* >= 1 */
    int32_t groups;                                   /* >= 1, divides both channel counts */
    int32_t keep_first;                               /* 0 or 1 */
    int32_t skip_first, reread;                       /* 0 <= reread <= skip_first */
    int32_t shuffle_first;                            /* 0: as shuffle[0]; else 1 .. shuffle[0] */
    int32_t drop;                                     /* >= 0 */
    /* ATTENTION */
    int32_t span, heads;
    int64_t width; /* channels of queries, keys and values each: a multiple of heads */
    /* MAP, OPAQUE: T frames become frames_first + (T - 1) * frames_rest / frames_per, rounded down;
     * rows and columns are multiplied by space_up and divided by space_down, without a rest. A MAP
     * has frames_per 1. */
    int32_t frames_first, frames_rest, frames_per;
    int32_t space_up[2], space_down[2];
} hy3d_node;

typedef struct hy3d_graph {
    const hy3d_node *nodes;
    int32_t count;
} hy3d_graph;

/* A value's size. */
typedef struct hy3d_size {
    int64_t channels, frames, rows, columns;
} hy3d_size;

/* The most nodes that a graph may have. */
#define HY3D_GRAPH_MAX_NODES 4096

/* Where a decode may be cut in two: behind node `node`, whose value is the only one that nodes
 * after it read. 0: before everything; -1: nowhere. scale: rows of that value for one row of the
 * input. reach: rows or columns of it at a tile's border that a cut there can change, but for
 * norms. group_norms, frame_norms: nodes behind it with HY3D_NORM_GROUP, HY3D_NORM_FRAME. */
typedef struct hy3d_cut {
    int32_t node;
    int32_t group_norms, frame_norms;
    int64_t scale, reach;
} hy3d_cut;

HY3D_BEGIN_DECLS

/* Whether the graph is one, for an input of `size` (T, H, W), each >= 1: HY3D_OK,
 * HY3D_ERR_INVALID_ARGUMENT (a field out of its range, a node that reads one at or behind itself, a
 * value nobody reads), HY3D_ERR_SHAPE_MISMATCH (sizes that can't be added, an empty value, a
 * division with a rest), HY3D_ERR_OVERFLOW (elements or multiply-accumulates beyond 63 bits).
 * *node_out (if not NULL) is the first node that is wrong, -1 where it is the graph, `size` or
 * nothing; it is written whatever the status. */
HY3D_API hy3d_status hy3d_graph_check(const hy3d_graph *graph, const int64_t size[3],
                                      int32_t *node_out);
/* The sizes of all values (graph->count of them), after the check above. */
HY3D_API hy3d_status hy3d_graph_sizes(const hy3d_graph *graph, const int64_t size[3],
                                      hy3d_size *sizes_out);
/* The first cut behind all attention, after the check above; node 0 where there is no attention,
 * -1 where no value behind the last one stands alone, or rows do not scale by whole numbers. */
HY3D_API hy3d_status hy3d_graph_cut(const hy3d_graph *graph, const int64_t size[3],
                                    hy3d_cut *cut_out);

HY3D_END_DECLS

#endif
