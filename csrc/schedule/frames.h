/* Frame numbers of one convolution on a video: what it makes, reads and still needs.
 *
 * "Own" frames are the convolution's output before the shuffle. After hy3d_graph_check no function
 * here can overflow: each number is at most a few times a length that was checked. */
#ifndef HY3D_SCHEDULE_FRAMES_H
#define HY3D_SCHEDULE_FRAMES_H

#include <stdint.h>

#include "hy3d/graph.h"

typedef struct hy3d__frames {
    int64_t total;  /* frames of the source */
    int64_t begin;  /* the source's frame at which the convolution's own video begins */
    int64_t passed; /* frames that pass by */
    int64_t up, stride, before, after, extent;
    int64_t made, made_first, drop; /* frames that an own frame makes; the video's first one */
    int64_t own_total, result_total;
    int keep_first;
} hy3d__frames;

/* Of a CONV node on `total` >= 1 frames. */
hy3d__frames hy3d__frames_of(const hy3d_node *node, int64_t total);
/* Own frames that can be made once source frames 0 .. stop are there. */
int64_t hy3d__frames_ready(const hy3d__frames *f, int64_t stop);
/* Frames of the result that the first `own` own frames make, with those that pass by. */
int64_t hy3d__frames_result(const hy3d__frames *f, int64_t own);
/* Own frames whose results lie all within the first `result` ones. */
int64_t hy3d__frames_within(const hy3d__frames *f, int64_t result);
/* The fewest own frames that make a frame of the result; own_total where none does. */
int64_t hy3d__frames_least(const hy3d__frames *f);
/* The source's frames that own frames first .. stop (at least one) read: at least one. */
void hy3d__frames_reads(const hy3d__frames *f, int64_t first, int64_t stop, int64_t reads_out[2]);
/* The first source frame that is still read when `own` own frames are made; `total` for none. */
int64_t hy3d__frames_needed(const hy3d__frames *f, int64_t own);

/* Multiply-accumulates of `own` frames of a CONV node on frames like those of `source`; -1 beyond
 * 63 bits. */
int64_t hy3d__conv_macs(const hy3d_node *node, const hy3d_size *source, int64_t own);
/* Those of `count` projections of some frames by an ATTENTION node; of its scores and sums for the
 * queries of frames first .. stop; and of all that it does. -1 beyond 63 bits. */
int64_t hy3d__projection_macs(const hy3d_node *node, const hy3d_size *size, int64_t frames,
                              int64_t count);
int64_t hy3d__score_macs(const hy3d_node *node, const hy3d_size *size, int64_t first, int64_t stop);
int64_t hy3d__attention_macs(const hy3d_node *node, const hy3d_size *size);
/* The size of a node's value (not INPUT's), a residual left aside. */
hy3d_status hy3d__node_size(const hy3d_node *node, const hy3d_size *source, hy3d_size *size_out);
/* How many frames of the input back a frame of the output depends on, but for that frame's own; -1:
 * on all, where a norm or attention sees the whole video or nobody knows. *rate_out: frames of the
 * output for one of the input. */
int64_t hy3d__graph_past(const hy3d_graph *graph, double *rate_out);
/* hy3d_graph_check's two parts: fields and edges; sizes of all values. */
hy3d_status hy3d__graph_edges(const hy3d_graph *graph, int32_t *node_out);
hy3d_status hy3d__graph_sizes_from(const hy3d_graph *graph, const int64_t size[3],
                                   hy3d_size *sizes_out, int32_t *node_out);

#endif
