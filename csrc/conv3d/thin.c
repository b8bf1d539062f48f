/* Kernels of one tap in height and width: products of weights with columns of positions.
 *
 * A plane is one line of positions. 48 of them at a time, all channels and taps of a block packed
 * one after the other, are a column that the micro-kernel reads from end to end: read where it
 * lies, every line would be in a page of its own and often in the same sets of L1 as the others
 * (a fifth of the speed at 384 channels of 40x40). Results that would only be copied are summed
 * where they go. How positions and output channels are cut changes no bit, so it may follow threads
 * and the workspace limit: only the blocks of input channels do, which follow from sizes alone. */
#include "conv3d/plan.h"

#include <string.h>

#define COLUMN (HY3D__CONV_LANES * HY3D__CONV_VECTORS)
/* Terms of a sum that is kept in registers, for up to as many taps: a column takes half of L1. */
#define MAX_TERMS 144
/* A sum of so many is not cut in two: its results need not be read again. */
#define WHOLE_TERMS 192
/* Rows of weights that stay in L2 while a grain's columns go by. */
#define MAX_ROWS 384
#define MAX_COLUMNS 8
/* Output channels of the smallest grain. */
#define LEAST_ROWS 64
/* Elements of a result tile, which shares L2 with them. */
#define RESULT_ELEMS (256 * 1024)
/* How many channels ahead lines are fetched: runs of 1.5 KB at most are too short for the processor
 * to see them coming. Worth 12 % at 512 channels of 80x80. */
#define AHEAD 8
/* Fewer terms than this: nothing is won by packing. */
#define LEAST_TERMS 16
/* Bytes of an output that L3 takes: a larger one is better written in long runs. */
#define STRAIGHT_BYTES ((int64_t)8 << 20)

/* One tap in height and width, and positions as they are in x: no padding, stride or repetition. */
static bool choose(hy3d_conv3d_plan *plan)
{
    return hy3d__conv_has_plain_planes(&plan->desc) && plan->compute_bytes == sizeof(float) &&
           plan->taps <= MAX_TERMS && plan->k >= LEAST_TERMS &&
           plan->out[1] * plan->out[2] >= HY3D__CONV_LANES;
}

static int64_t plane(const hy3d_conv3d_plan *plan)
{
    return plan->out[1] * plan->out[2];
}

/* Expected cycles of a grain: a multiply-add of a vector takes half of one, a vector of a line 8 to
 * pack, a weight that comes from L3 half of one, all else 3000. */
static double grain_cost(const hy3d_conv3d_plan *plan, const hy3d__conv_thin *d, int64_t vectors)
{
    return (double)plan->k * ((0.5 * hy3d__conv_vectors_cost(vectors) + 0.5) * (double)d->m_block +
                              8.0 * (double)vectors) +
           3000.0;
}

/* Of all grains on the threads there are. */
static double cost(const hy3d_conv3d_plan *plan, const hy3d__conv_thin *d, uint32_t threads)
{
    const int64_t vectors = hy3d__conv_ceil_div(plane(plan), HY3D__CONV_LANES);
    const int64_t each = d->positions / HY3D__CONV_LANES;
    const int64_t parts = hy3d__conv_ceil_div(vectors, each);
    const double a_plane = (double)(parts - 1) * grain_cost(plan, d, each) +
                           grain_cost(plan, d, vectors - (parts - 1) * each);
    const double planes = (double)hy3d__conv_ceil_div(plan->m, d->m_block) *
                          (double)hy3d__max_i64(1, plan->desc.batch) * (double)plan->desc.groups *
                          (double)plan->out[0];
    const double rounds = planes * (double)parts / (double)threads;
    const double whole = rounds < 64.0 ? (double)(int64_t)(rounds + 0.999999) : rounds;

    return a_plane / (double)parts * whole;
}

static int64_t channels_at_once(const hy3d_conv3d_plan *plan)
{
    const int64_t most = hy3d__max_i64(1, MAX_TERMS / plan->taps);
    return plan->k <= WHOLE_TERMS
               ? plan->c
               : hy3d__conv_ceil_div(plan->c, hy3d__conv_ceil_div(plan->c, most));
}

static int64_t slot_elems(const hy3d_conv3d_plan *plan, const hy3d__conv_thin *d)
{
    return d->c_block * plan->taps * hy3d__conv_round_up(d->positions, COLUMN) +
           d->m_block * d->positions;
}

static void choose_blocks(hy3d_conv3d_plan *plan, uint32_t threads)
{
    const size_t limit = plan->desc.workspace_limit_bytes;
    const size_t slot_bytes = limit == 0 ? SIZE_MAX : limit / threads;
    const int64_t vectors = hy3d__conv_ceil_div(plane(plan), HY3D__CONV_LANES);
    const int64_t fewest = hy3d__conv_ceil_div(vectors, MAX_COLUMNS * HY3D__CONV_VECTORS);
    const int64_t cuts = hy3d__conv_ceil_div(plan->m, RESULT_ELEMS / HY3D__CONV_LANES);
    double least = -1.0;

    hy3d__conv_thin d = {
        .c_block = channels_at_once(plan),
        .writes_straight = plan->desc.dtype == HY3D_F32 &&
                           plan->out[0] * plane(plan) <=
                               STRAIGHT_BYTES / (int64_t)sizeof(float) / plan->desc.out_channels,
    };
    /* Where no slot fits, the smallest: the same for every number of threads, so that a limit which
     * is enough for one of them is enough for all. */
    plan->thin = d;
    plan->thin.m_block = hy3d__conv_round_up(hy3d__min_i64(plan->m, LEAST_ROWS), HY3D__CONV_ROWS);
    plan->thin.positions = HY3D__CONV_LANES * hy3d__min_i64(vectors, HY3D__CONV_VECTORS);
    for (int64_t cut = cuts; cut < cuts + 8; cut++) {
        d.m_block = hy3d__conv_round_up(hy3d__conv_ceil_div(plan->m, cut), HY3D__CONV_ROWS);
        for (int64_t parts = fewest; parts <= fewest + 8 && parts <= vectors; parts++) {
            d.positions = HY3D__CONV_LANES * hy3d__conv_ceil_div(vectors, parts);
            if (d.m_block > RESULT_ELEMS / d.positions) {
                continue;
            }
            const double cycles = cost(plan, &d, threads);
            const bool fits = (size_t)slot_elems(plan, &d) <= slot_bytes / sizeof(float);
            if (fits ? least < 0.0 || cycles < least
                     : least < 0.0 && slot_elems(plan, &d) < slot_elems(plan, &plan->thin)) {
                least = fits ? cycles : least;
                plan->thin = d;
            }
        }
    }
}

static void cut(hy3d_conv3d_plan *plan, uint32_t threads)
{
    hy3d__conv_thin *const d = &plan->thin;

    choose_blocks(plan, threads);
    d->m_blocks = hy3d__conv_ceil_div(plan->m, d->m_block);
    d->blocks = hy3d__conv_ceil_div(plane(plan), d->positions);
    plan->block_k = d->c_block * plan->taps;
    plan->grains = plan->desc.batch * plan->desc.groups * plan->out[0] * d->blocks * d->m_blocks;
    plan->input_bytes =
        (size_t)(plan->block_k * hy3d__conv_round_up(d->positions, COLUMN)) * sizeof(float);
    plan->result_bytes = (size_t)(d->m_block * d->positions) * sizeof(float);
}

static hy3d__conv_span split_grain(const hy3d_conv3d_plan *plan, int64_t grain)
{
    const hy3d__conv_thin *const d = &plan->thin;
    hy3d__conv_span span;

    span.channel = grain % d->m_blocks * d->m_block; /* of the group */
    span.channels = hy3d__min_i64(d->m_block, plan->m - span.channel);
    grain /= d->m_blocks;
    span.first = grain % d->blocks * d->positions;
    span.count = hy3d__min_i64(d->positions, plane(plan) - span.first);
    grain /= d->blocks;
    span.t = grain % plan->out[0];
    grain /= plan->out[0];
    span.channel += grain % plan->desc.groups * plan->m;
    span.image = grain / plan->desc.groups;
    return span;
}

/* To its place in every column; `column` floats are between columns. */
static void spread(const float *line, int64_t n, float *dst, int64_t column)
{
    for (; n >= COLUMN; n -= COLUMN, line += COLUMN, dst += column) {
        memcpy(dst, line, COLUMN * sizeof *dst);
    }
    if (n > 0) {
        memcpy(dst, line, (size_t)n * sizeof *dst);
        memset(dst + n, 0, (size_t)(COLUMN - n) * sizeof *dst);
    }
}

/* To L2. The address may lie anywhere. */
static void prefetch(const unsigned char *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += (int64_t)HY3D__CONV_ALIGN) {
        __builtin_prefetch(data + i, 0, 2);
    }
}

/* The span's positions of one channel of a frame. */
static void pack_line(const hy3d__conv_run *run, const hy3d__conv_span *span,
                      const hy3d_conv3d_frame *frame, int64_t channel, float *dst, int64_t column)
{
    const float *const line =
        run->plan->desc.dtype == HY3D_F32 ? hy3d__conv_plane_in_place(run, frame, channel) : NULL;
    float values[MAX_COLUMNS * COLUMN];

    if (line != NULL) {
        if (channel + AHEAD < run->plan->desc.in_channels) {
            prefetch((const unsigned char *)(line + span->first + AHEAD * frame->stride[0]),
                     span->count * (int64_t)sizeof *line);
        }
        spread(line + span->first, span->count, dst, column);
        return;
    }
    hy3d__conv_plane_load(run, frame, channel, span->first, span->count, values);
    spread(values, span->count, dst, column);
}

/* Channels [channel, channel + channels) of the group, all taps, in the order of the weights. */
static void pack(const hy3d__conv_run *run, const hy3d__conv_span *span, int64_t channel,
                 int64_t channels, float *columns)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    const int64_t column = channels * plan->taps * COLUMN;
    const int64_t first = span->channel / plan->m * plan->c + channel; /* of all */

    for (int64_t tap = 0; tap < plan->taps; tap++) {
        const hy3d_conv3d_frame frame = hy3d__conv_source_frame(
            run, span->image,
            span->t * desc->stride[0] + tap * desc->dilation[0] - desc->pad_before[0]);
        for (int64_t c = 0; c < channels; c++) {
            pack_line(run, span, &frame, first + c, columns + (c * plan->taps + tap) * COLUMN,
                      column);
        }
    }
}

/* One block of channels of a grain. */
typedef struct block {
    int64_t channel, terms;
    const float *columns;
    float *result; /* of the span's first channel */
    int64_t pitch;
} block;

/* Rows [from, to) of the span times nv vectors. The next block's weights are fetched with the last
 * ones: a block of a row is too short for the processor to see it coming. */
static void multiply_rows(const hy3d_conv3d_plan *plan, const hy3d__conv_span *span,
                          const block *of, int64_t from, int64_t to, int64_t vector, int64_t nv)
{
    const int64_t first = of->channel * plan->taps;
    const bool is_last = (vector + nv) * HY3D__CONV_LANES >= span->count;
    const int64_t next = hy3d__min_i64(of->terms, plan->k - first - of->terms);
    const float *b[HY3D__CONV_VECTORS];

    for (int64_t i = 0; i < nv; i++) {
        b[i] = of->columns + (vector + i) / HY3D__CONV_VECTORS * of->terms * COLUMN +
               (vector + i) % HY3D__CONV_VECTORS * HY3D__CONV_LANES;
    }
    for (int64_t r = from, rows; r < to; r += rows) {
        const float *const weight =
            (const float *)plan->weight + (span->channel + r) * plan->k + first;
        rows = hy3d__conv_rows_next(to - r);
        for (int64_t i = 0; is_last && next > 0 && i < rows; i++) {
            prefetch((const unsigned char *)(weight + i * plan->k + of->terms),
                     next * (int64_t)sizeof *weight);
        }
        plan->kernels->conv_f32(
            (int)rows, (int)nv, (size_t)of->terms, weight, (size_t)plan->k, b, plan->offsets,
            of->channel == 0 ? (const float *)plan->bias + span->channel + r : NULL,
            of->result + r * of->pitch + vector * HY3D__CONV_LANES, (size_t)of->pitch);
    }
}

static void multiply(const hy3d_conv3d_plan *plan, const hy3d__conv_span *span, const block *of)
{
    const int64_t vectors = hy3d__conv_ceil_div(span->count, HY3D__CONV_LANES);

    for (int64_t from = 0; from < span->channels; from += MAX_ROWS) {
        const int64_t to = hy3d__min_i64(from + MAX_ROWS, span->channels);
        for (int64_t v = 0, nv; v < vectors; v += nv) {
            nv = hy3d__conv_vectors_next(vectors - v);
            multiply_rows(plan, span, of, from, to, v, nv);
        }
    }
}

static hy3d_status run_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_thin *const d = &plan->thin;
    unsigned char *const memory = run->workspace + plan->slot_bytes * slot;
    float *const columns = (float *)(void *)memory;
    const hy3d__conv_span span = split_grain(plan, grain);
    float *const straight = d->writes_straight && span.count % HY3D__CONV_LANES == 0
                                ? hy3d__conv_plane_out(run, &span)
                                : NULL;
    block of = {
        .columns = columns,
        .result = straight != NULL ? straight : (float *)(void *)(memory + plan->input_bytes),
        .pitch = straight != NULL ? run->y->stride[1] : d->positions,
    };

    for (; of.channel < plan->c; of.channel += d->c_block) {
        const int64_t channels = hy3d__min_i64(d->c_block, plan->c - of.channel);
        of.terms = channels * plan->taps;
        pack(run, &span, of.channel, channels, columns);
        multiply(plan, &span, &of);
    }
    if (straight == NULL) {
        hy3d__conv_plane_store(run, &span, of.result, of.pitch);
    }
    return HY3D_OK;
}

static int32_t offset(const hy3d_conv3d_plan *plan, int64_t i)
{
    (void)plan;
    return (int32_t)(i * COLUMN);
}

static const char *name(const hy3d_conv3d_plan *plan)
{
    (void)plan;
    return "thin";
}

const hy3d__conv_strategy hy3d__conv_thin_strategy = {
    .name = name,
    .choose = choose,
    .cut = cut,
    .offset = offset,
    .run = run_grain,
};
