/* Data into a strategy and out of it: lines of the input with padding, up-sampling and a fusion's
 * operations done, and results to y. */
#ifndef HY3D_CONV3D_LINES_H
#define HY3D_CONV3D_LINES_H

#include "conv3d/sizes.h"
#include "kernels/kernels.h"

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
    int64_t repeat;  /* each element so many times; 0 is 1 */
    bool is_changed; /* by scale, shift and silu as affine_silu_f32 */
    float scale, shift;
    int silu;
} hy3d__conv_line;

/* Index in [0, size) or -1 for a zero. */
static inline int64_t hy3d__conv_resolve(int64_t index, int64_t size, bool replicate)
{
    if (index >= 0 && index < size) {
        return index;
    }
    if (!replicate) {
        return -1;
    }
    return index < 0 ? 0 : size - 1;
}

/* source.c: the frame that a kernel's tap reads at up-sampled time index t of an image, padding
 * in time included (t may lie outside, or behind where frames are cropped); data is NULL for a
 * frame of zeros. */
hy3d_conv3d_frame hy3d__conv_source_frame(const hy3d__conv_run *run, int64_t image, int64_t t);
/* Row h of one channel of a frame, padding in height and up-sampling included as above. What is
 * cropped of rows and columns is there: nothing of it gets into a result that is stored. */
hy3d__conv_line hy3d__conv_source_line(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                                       int64_t channel, int64_t h);

/* gather.c: n elements at indices first, first + step, ... of the line as compute type; outside of
 * it zeros or the edge. */
void hy3d__conv_load_line(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t first,
                          int64_t step, int64_t n, void *dst);
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

/* planes.c: positions of a frame, its rows one after the other. */
bool hy3d__conv_has_plain_planes(const hy3d_conv3d_desc *desc); /* output's positions are x's */
/* Of a channel, where they follow each other in compute type and nothing is done to them; NULL:
 * not so. For plain planes, as the next. */
const void *hy3d__conv_plane_in_place(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                                      int64_t channel);
/* `count` of them from `first`, as compute type. */
void hy3d__conv_plane_load(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                           int64_t channel, int64_t first, int64_t count, void *dst);
/* Results of a frame: `count` positions from `first` of `channels` channels from `channel`. */
typedef struct hy3d__conv_span {
    int64_t image, channel, channels, t, first, count;
} hy3d__conv_span;
/* Where they may be summed in y, channels y's stride apart; NULL: not there. */
void *hy3d__conv_plane_out(const hy3d__conv_run *run, const hy3d__conv_span *span);
/* To y, a residual added, from compute type; `pitch` elements between channels. */
void hy3d__conv_plane_store(const hy3d__conv_run *run, const hy3d__conv_span *span,
                            const void *results, int64_t pitch);

#endif
