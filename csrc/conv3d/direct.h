/* direct: a padded tile of the input, the micro-kernel straight on it. direct.c runs it,
 * direct_blocks.c chooses the blocks, direct_tile.c packs the tile. */
#ifndef HY3D_CONV3D_DIRECT_H
#define HY3D_CONV3D_DIRECT_H

#include "conv3d/conv_calls.h"
#include "conv3d/lines.h"

/* How the taps of one axis map to a tile: a tap reads phase `tap % period` from entry
 * `q` = (tap * dilation) / stride on, so that neighbouring outputs are neighbours in the tile
 * whatever the stride is. per_tap gives every tap a phase of its own (q = 0, no halo). */
typedef struct hy3d__conv_axis {
    int64_t taps, stride, dilation;
    bool per_tap;
    int64_t phases; /* in the tile */
    int64_t halo;   /* entries of a phase beyond the number of outputs */
} hy3d__conv_axis;

/* Phase and first entry of a tap; first input index (relative) of a phase. */
static inline int64_t hy3d__direct_tap_phase(const hy3d__conv_axis *axis, int64_t tap)
{
    return axis->per_tap ? tap : tap % axis->phases;
}

static inline int64_t hy3d__direct_tap_entry(const hy3d__conv_axis *axis, int64_t tap)
{
    return axis->per_tap ? 0 : tap * axis->dilation / axis->stride;
}

static inline int64_t hy3d__direct_phase_start(const hy3d__conv_axis *axis, int64_t phase)
{
    return axis->per_tap ? phase * axis->dilation : phase * axis->dilation % axis->stride;
}

typedef struct hy3d__conv_direct {
    hy3d__conv_axis h, w;
    int64_t m_block, m_blocks; /* output channels of a grain */
    int64_t c_block;           /* input channels in the tile at once */
    int64_t rows, row_blocks;  /* output rows of a grain */
    int64_t cols, col_blocks;  /* output columns of a grain */
    bool by_row;               /* vectors never cross a row's end; else rows are run together */
    /* Elements: between rows, h phases' w phases, h phases, kT planes, channels of the tile. */
    int64_t row_pitch, phase_w_pitch, phase_h_pitch, plane_pitch, channel_pitch;
    int64_t tile_elems; /* tail for the vectors' over-read included */
    int64_t c_pitch;    /* result tile: between output channels */
} hy3d__conv_direct;

/* direct_blocks.c: false where no block fits the caches' share. Then grains and bytes of a slot. */
bool hy3d__direct_choose(hy3d_conv3d_plan *plan);
void hy3d__direct_cut(hy3d_conv3d_plan *plan, uint32_t threads);

/* direct_tile.c: the part of the input that a grain reads. */
typedef struct hy3d__direct_part {
    int64_t image, channel, channels; /* channel: among all input channels */
    int64_t t, h, w;                  /* first output position */
    int64_t rows, cols;               /* output rows and columns */
} hy3d__direct_part;
void hy3d__direct_pack(const hy3d__conv_run *run, const hy3d__direct_part *part, float *tile);

#endif
