/* A panel's products to y: transformed back on vectors of channels, then lines of channels. */
#include "conv3d/plan.h"

#include <string.h>

#define COLUMNS HY3D__WINOGRAD_COLUMNS
#define LINE ((size_t)COLUMNS * 16)
#define ROWS 6 /* of a tile, at most */

/* 16 channels (or fewer) from channel on, rows x columns positions from (t, h, w) on. */
typedef struct piece {
    int64_t image, channel, channels, t, h, w, rows, columns;
} piece;

static void store_piece(const hy3d__conv_run *run, const piece *p, const float *strip, float *lines)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_tensor *const y = run->y;
    const bool plain = y->dtype == HY3D_F32 && p->channels == 16 && run->fusion->residual == NULL;
    float *const to = y->dtype == HY3D_F32
                          ? (float *)y->data + p->image * y->stride[0] + p->channel * y->stride[1] +
                                p->t * y->stride[2] + p->h * y->stride[3] + p->w * y->stride[4]
                          : NULL;

    if (plain && y->stride[4] == 1 && y->stride[1] > 0) {
        for (int64_t i = 0; i < p->rows; i++) {
            plan->kernels->from_lanes_f32((size_t)p->columns, strip + (size_t)i * LINE,
                                          to + i * y->stride[3], (size_t)y->stride[1]);
        }
        return;
    }
    if (plain && y->stride[1] == 1) {
        for (int64_t i = 0; i < p->rows; i++) {
            for (int64_t j = 0; j < p->columns; j++) {
                memcpy(to + i * y->stride[3] + j * y->stride[4], strip + (size_t)i * LINE + j * 16,
                       16 * sizeof *to);
            }
        }
        return;
    }
    for (int64_t i = 0; i < p->rows; i++) {
        plan->kernels->from_lanes_f32((size_t)p->columns, strip + (size_t)i * LINE,
                                      lines + i * COLUMNS, ROWS * COLUMNS);
    }
    const hy3d__conv_result stored = {
        .data = lines,
        .at = {p->image, p->channel, p->t, p->h, p->w},
        .channels = p->channels,
        .rows = p->rows,
        .cols = p->columns,
        .channel_pitch = ROWS * COLUMNS,
        .row_pitch = COLUMNS,
        .residual = run->fusion->residual,
    };
    hy3d__conv_store(plan->kernels, y, &stored);
}

/* One chunk of tiles of one row of tiles, all frames of the block. `skip` floats of a strip lie
 * before the output. */
static void output_chunk(const hy3d__conv_run *run, const hy3d__winograd_block *block, piece *p,
                         const float *r, int64_t r_point, int64_t tiles, size_t skip, float *strip)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__winograd_time *const time = plan->winograd.sizes.filters.kind.time;
    const int64_t frame_tiles = block->tiles_h * block->tiles_w;
    const float *const bias = (const float *)plan->bias + p->channel;

    for (int64_t f = 0; f < block->frames; f++) {
        const hy3d__winograd_sum *const sum = &time->result[f % time->frames];
        size_t moments[5];
        p->t = block->t + f - plan->winograd.sizes.lead[0];
        if (p->t < 0) {
            continue;
        }
        for (int q = 0; q < sum->count; q++) {
            moments[q] = (size_t)(sum->from[q] * r_point);
        }
        plan->kernels->winograd_output_f32(plan->winograd.sizes.filters.kind.m, (size_t)tiles,
                                           r + f / time->frames * frame_tiles * 32, sum->count,
                                           moments, sum->factor, (size_t)(time->moments * r_point),
                                           32, bias, strip, LINE);
        store_piece(run, p, strip + skip, strip + ROWS * LINE);
    }
}

void hy3d__winograd_output(const hy3d__conv_run *run, const hy3d__winograd_block *block,
                           int64_t panel, const float *r, int64_t r_point, float *strips)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_winograd *const d = &plan->winograd;
    const int64_t m = d->sizes.filters.kind.m;
    piece p = {.image = block->image};

    for (int64_t i = 0; i < block->tiles_h; i++) {
        const int64_t top = (block->tile_h + i) * m - d->sizes.lead[1];
        p.h = hy3d__max_i64(top, 0);
        p.rows = hy3d__min_i64(top + m, plan->out[1]) - p.h;
        for (int64_t j = 0; j < block->tiles_w; j += HY3D__WINOGRAD_CHUNK) {
            const int64_t tiles = hy3d__min_i64(HY3D__WINOGRAD_CHUNK, block->tiles_w - j);
            const int64_t left = (block->tile_w + j) * m - d->sizes.lead[2];
            const float *const from = r + (i * block->tiles_w + j) * 32;
            p.w = hy3d__max_i64(left, 0);
            p.columns = hy3d__min_i64(left + m * tiles, plan->out[2]) - p.w;
            /* Both halves at once: they are neighbours in memory. */
            for (int64_t half = 0; half < 32 && panel * 32 + half < plan->m; half += 16) {
                p.channel = panel * 32 + half;
                p.channels = hy3d__min_i64(16, plan->m - p.channel);
                output_chunk(run, block, &p, from + half, r_point, tiles,
                             (size_t)(p.h - top) * LINE + (size_t)(p.w - left) * 16, strips);
            }
        }
    }
}
