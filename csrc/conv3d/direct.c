/* Direct convolution: a tile of padded input for some channels, then the micro-kernel over all of
 * its taps at once; sums of one channel block stay in registers, blocks are summed in a result
 * tile that fits in L2. Input that would only be copied is read where it is, results that would
 * only be copied are summed where they go; the bits are the same. */
#include "conv3d/internal.h"

#include <stdlib.h>

/* Fixed part of a grain. */
typedef struct grain_parts {
    hy3d__conv_part part;
    int64_t m;        /* first output channel */
    int64_t m_count;
    int64_t run_rows; /* rows that are run on their own: 1 run of all rows, or each its own */
    int64_t run_lanes;
} grain_parts;

static grain_parts split_grain(const hy3d_conv3d_plan *plan, int64_t grain)
{
    const hy3d__conv_direct *const d = &plan->direct;
    grain_parts g;
    const int64_t m_index = grain % d->m_blocks;
    grain /= d->m_blocks;
    const int64_t w_index = grain % d->col_blocks;
    grain /= d->col_blocks;
    const int64_t h_index = grain % d->row_blocks;
    grain /= d->row_blocks;
    const int64_t t = grain % plan->out[0];
    grain /= plan->out[0];
    const int64_t group = grain % plan->desc.groups;

    g.part = (hy3d__conv_part){
        .image = grain / plan->desc.groups,
        .channel = group * plan->c,
        .t = t,
        .h = h_index * d->rows,
        .w = w_index * d->cols,
        .rows = hy3d__conv_min(d->rows, plan->out[1] - h_index * d->rows),
        .cols = hy3d__conv_min(d->cols, plan->out[2] - w_index * d->cols),
    };
    g.m = group * plan->m + m_index * d->m_block;
    g.m_count = hy3d__conv_min(d->m_block, plan->m - m_index * d->m_block);
    g.run_rows = d->by_row ? g.part.rows : 1;
    g.run_lanes = d->by_row ? g.part.cols : (g.part.rows - 1) * d->row_pitch + g.part.cols;
    return g;
}

/* One block of channels: where its input is and where its results go. */
typedef struct block {
    int64_t channel, channels; /* among those of the group */
    const float *input;        /* first output's, at offset 0 */
    const int32_t *offsets;
    float *result;
    int64_t pitch; /* of results, between output channels */
} block;

/* The next block's weights of some rows, to L2: in PyTorch's order rows are far apart, too short in
 * a block for the processor to see them coming, and come from L3. Kernels of one tap in height and
 * width gain 3 to 7 % by it; others return to their weights often enough and gain nothing. */
static void prefetch_weights(const hy3d_conv3d_plan *plan, const block *of, const float *weight,
                             int64_t rows)
{
    const int64_t next = of->channels * plan->taps;
    const int64_t left = (plan->c - of->channel) * plan->taps - next;
    const int64_t n = hy3d__conv_min(next, left);

    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i += (int64_t)(HY3D__CONV_ALIGN / sizeof *weight)) {
            __builtin_prefetch(weight + r * plan->k + next + i, 0, 2);
        }
    }
}

/* All output channels of the grain for nv vectors of lanes. */
static void run_column(const hy3d_conv3d_plan *plan, const grain_parts *g, const block *of, int nv,
                       const float *const *b, int64_t lane, bool prefetch)
{
    const float *const weight =
        (const float *)plan->weight + g->m * plan->k + of->channel * plan->taps;
    const float *const bias = (const float *)plan->bias + g->m;
    int64_t rows;

    for (int64_t m = 0; m < g->m_count; m += rows) {
        const int64_t left = g->m_count - m;
        rows = left >= 8 ? 8 : hy3d__conv_min(left, 4);
        if (prefetch) {
            prefetch_weights(plan, of, weight + m * plan->k, rows);
        }
        plan->kernels->conv_f32((int)rows, nv, (size_t)(of->channels * plan->taps),
                                weight + m * plan->k, (size_t)plan->k, b, of->offsets,
                                of->channel == 0 ? bias + m : NULL,
                                of->result + m * of->pitch + lane, (size_t)of->pitch);
    }
}

static void run_block(const hy3d_conv3d_plan *plan, const grain_parts *g, const block *of)
{
    const hy3d__conv_direct *const d = &plan->direct;
    const int64_t row_vectors = hy3d__conv_ceil_div(g->run_lanes, HY3D__CONV_LANES);
    const int64_t vectors = g->run_rows * row_vectors;
    const float *next = of->input;
    const bool is_thin = plan->desc.kernel[1] * plan->desc.kernel[2] == 1;
    int64_t in_row = 0;
    int nv;

    for (int64_t v = 0; v < vectors; v += nv) {
        const float *b[HY3D__CONV_VECTORS];
        /* 4 = 2 + 2: a single vector leaves the multipliers waiting for loads. */
        nv = vectors - v == 4 ? 2 : (int)hy3d__conv_min(vectors - v, HY3D__CONV_VECTORS);
        for (int i = 0; i < nv; i++) {
            b[i] = next;
            next += HY3D__CONV_LANES;
            if (++in_row == row_vectors) {
                in_row = 0;
                next += d->row_pitch - row_vectors * HY3D__CONV_LANES;
            }
        }
        run_column(plan, g, of, nv, b, v * HY3D__CONV_LANES, is_thin && v + nv >= vectors);
    }
}

/* Input that is not changed is read where it is if rows follow each other there, vectors are
 * aligned and lines do not drive each other out. Fills the block's input and `offsets`. */
static bool straight_in(const hy3d__conv_run *run, const grain_parts *g, int32_t *offsets,
                        block *of)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    const int64_t channel = g->part.channel + of->channel;
    const float *first = NULL;

    if (!plan->direct.reads_straight || run->fusion->scale != NULL ||
        run->fusion->activation != HY3D_IDENTITY) {
        return false;
    }
    for (int64_t tap = 0; tap < plan->taps; tap++) {
        const hy3d_conv3d_frame frame = hy3d__conv_source_frame(
            run, g->part.image,
            g->part.t * desc->stride[0] + tap * desc->dilation[0] - desc->pad_before[0]);
        if (frame.data == NULL || frame.stride[2] != 1 || frame.stride[1] != g->part.cols ||
            frame.stride[0] % HY3D__CONV_LANES != 0 ||
            hy3d__conv_thrashes(frame.stride[0], of->channels * plan->taps)) {
            return false;
        }
        const float *const at = (const float *)frame.data + channel * frame.stride[0] +
                                g->part.h * frame.stride[1];
        if ((uintptr_t)at % HY3D__CONV_ALIGN != 0) {
            return false;
        }
        first = tap == 0 ? at : first;
        const int64_t distance = (int64_t)((intptr_t)at - (intptr_t)first) / (int64_t)sizeof *at;
        if (llabs(distance) + (of->channels - 1) * llabs(frame.stride[0]) > INT32_MAX) {
            return false;
        }
        for (int64_t c = 0; c < of->channels; c++) {
            offsets[c * plan->taps + tap] = (int32_t)(distance + c * frame.stride[0]);
        }
    }
    of->input = first;
    of->offsets = offsets;
    return true;
}

/* Results that would be copied to y as they are, a run of lanes a channel, are summed there. */
static bool straight_out(const hy3d__conv_run *run, const grain_parts *g, block *of)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_tensor *const y = run->y;

    if (!plan->direct.writes_straight || run->fusion->residual != NULL || y->stride[4] != 1 ||
        y->stride[3] != g->part.cols || y->stride[1] < 0) {
        return false;
    }
    of->result = (float *)y->data + g->part.image * y->stride[0] + g->m * y->stride[1] +
                 g->part.t * y->stride[2] + g->part.h * y->stride[3];
    of->pitch = y->stride[1];
    return true;
}

hy3d_status hy3d__conv_direct_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_direct *const d = &plan->direct;
    unsigned char *const memory = run->workspace + plan->slot_bytes * slot;
    float *const tile = (float *)(void *)memory;
    int32_t *const offsets = (int32_t *)(void *)memory; /* while there is no tile */
    const grain_parts g = split_grain(plan, grain);
    block of = {.result = (float *)(void *)(memory + plan->input_bytes), .pitch = d->c_pitch};
    const bool is_stored = straight_out(run, &g, &of);

    for (of.channel = 0; of.channel < plan->c; of.channel += d->c_block) {
        hy3d__conv_part part = g.part;
        of.channels = hy3d__conv_min(d->c_block, plan->c - of.channel);
        part.channel += of.channel;
        part.channels = of.channels;
        if (!straight_in(run, &g, offsets, &of)) {
            hy3d__conv_pack_tile(run, &part, tile);
            of.input = tile;
            of.offsets = d->offsets;
        }
        run_block(plan, &g, &of);
    }
    if (is_stored) {
        return HY3D_OK;
    }
    const hy3d__conv_result stored = {
        .data = of.result,
        .at = {g.part.image, g.m, g.part.t, g.part.h, g.part.w},
        .channels = g.m_count,
        .rows = g.part.rows,
        .cols = g.part.cols,
        .channel_pitch = d->c_pitch,
        /* The last columns may be fewer, and their vectors follow each other too. */
        .row_pitch = d->by_row ? hy3d__conv_round_up(g.part.cols, HY3D__CONV_LANES) : d->row_pitch,
        .residual = run->fusion->residual,
    };
    hy3d__conv_store(plan->kernels, run->y, &stored);
    return HY3D_OK;
}
