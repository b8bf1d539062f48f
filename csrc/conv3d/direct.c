/* Direct convolution: a tile of padded input for some channels, then the micro-kernel over all of
 * its taps at once; sums of one channel block stay in registers, blocks are summed in a result
 * tile that fits in L2. */
#include "conv3d/plan.h"

/* Fixed part of a grain. */
typedef struct grain_parts {
    hy3d__direct_part part;
    int64_t m; /* first output channel */
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

    g.part = (hy3d__direct_part){
        .image = grain / plan->desc.groups,
        .channel = group * plan->c,
        .t = t,
        .h = h_index * d->rows,
        .w = w_index * d->cols,
        .rows = hy3d__min_i64(d->rows, plan->out[1] - h_index * d->rows),
        .cols = hy3d__min_i64(d->cols, plan->out[2] - w_index * d->cols),
    };
    g.m = group * plan->m + m_index * d->m_block;
    g.m_count = hy3d__min_i64(d->m_block, plan->m - m_index * d->m_block);
    g.run_rows = d->by_row ? g.part.rows : 1;
    g.run_lanes = d->by_row ? g.part.cols : (g.part.rows - 1) * d->row_pitch + g.part.cols;
    return g;
}

/* One block of channels: where its input is and where its results go. */
typedef struct block {
    int64_t channel, channels; /* among those of the group */
    const float *input;        /* first output's, at offset 0 */
    float *result;
} block;

/* All output channels of the grain for nv vectors of lanes. */
static void run_column(const hy3d_conv3d_plan *plan, const grain_parts *g, const block *of, int nv,
                       const float *const *b, int64_t lane)
{
    const float *const weight =
        (const float *)plan->weight + g->m * plan->k + of->channel * plan->taps;
    const float *const bias = (const float *)plan->bias + g->m;
    int64_t rows;

    for (int64_t m = 0; m < g->m_count; m += rows) {
        rows = hy3d__conv_rows_next(g->m_count - m);
        plan->kernels->conv_f32(
            (int)rows, nv, (size_t)(of->channels * plan->taps), weight + m * plan->k,
            (size_t)plan->k, b, plan->offsets, of->channel == 0 ? bias + m : NULL,
            of->result + m * plan->direct.c_pitch + lane, (size_t)plan->direct.c_pitch);
    }
}

static void run_block(const hy3d_conv3d_plan *plan, const grain_parts *g, const block *of)
{
    const hy3d__conv_direct *const d = &plan->direct;
    const int64_t row_vectors = hy3d__conv_ceil_div(g->run_lanes, HY3D__CONV_LANES);
    const int64_t vectors = g->run_rows * row_vectors;
    const float *next = of->input;
    int64_t in_row = 0;
    int nv;

    for (int64_t v = 0; v < vectors; v += nv) {
        const float *b[HY3D__CONV_VECTORS];
        nv = (int)hy3d__conv_vectors_next(vectors - v);
        for (int i = 0; i < nv; i++) {
            b[i] = next;
            next += HY3D__CONV_LANES;
            if (++in_row == row_vectors) {
                in_row = 0;
                next += d->row_pitch - row_vectors * HY3D__CONV_LANES;
            }
        }
        run_column(plan, g, of, nv, b, v * HY3D__CONV_LANES);
    }
}

static hy3d_status run_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_direct *const d = &plan->direct;
    unsigned char *const memory = run->workspace + plan->slot_bytes * slot;
    float *const tile = (float *)(void *)memory;
    const grain_parts g = split_grain(plan, grain);
    block of = {.input = tile, .result = (float *)(void *)(memory + plan->input_bytes)};

    for (of.channel = 0; of.channel < plan->c; of.channel += d->c_block) {
        hy3d__direct_part part = g.part;
        of.channels = hy3d__min_i64(d->c_block, plan->c - of.channel);
        part.channel += of.channel;
        part.channels = of.channels;
        hy3d__direct_pack(run, &part, tile);
        run_block(plan, &g, &of);
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

/* In the order of the weights. */
static int32_t offset(const hy3d_conv3d_plan *plan, int64_t i)
{
    const hy3d__conv_direct *const d = &plan->direct;
    const int64_t *const kernel = plan->desc.kernel;
    const int64_t kw = i % kernel[2];
    const int64_t kh = i / kernel[2] % kernel[1];
    const int64_t kt = i / kernel[2] / kernel[1] % kernel[0];
    const int64_t c = i / plan->taps;

    return (int32_t)(c * d->channel_pitch + kt * d->plane_pitch +
                     hy3d__direct_tap_phase(&d->h, kh) * d->phase_h_pitch +
                     hy3d__direct_tap_phase(&d->w, kw) * d->phase_w_pitch +
                     hy3d__direct_tap_entry(&d->h, kh) * d->row_pitch +
                     hy3d__direct_tap_entry(&d->w, kw));
}

static const char *name(const hy3d_conv3d_plan *plan)
{
    (void)plan;
    return "direct";
}

const hy3d__conv_strategy hy3d__conv_direct_strategy = {
    .name = name,
    .choose = hy3d__direct_choose,
    .cut = hy3d__direct_cut,
    .offset = offset,
    .run = run_grain,
};
