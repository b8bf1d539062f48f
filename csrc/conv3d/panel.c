/* Panel convolution: K-blocks of im2col for a block of output positions, multiplied by a BLAS
 * library. For f64 and for shapes that the direct way does not suit.
 *
 * A 1x1x1 kernel's panel lies in x: where its positions follow each other there, BLAS reads them in
 * place; where they do in y, it sums there. Which products are asked for follows from sizes alone,
 * so no bit depends on either. */
#include "conv3d/plan.h"

#include "base/blas.h"

/* Of a grain: BLAS packs the weights anew for each, so its positions are many. But a layer of few
 * grains has smaller ones, for more threads. */
#define MOST_POSITIONS 1024
#define FEW_GRAINS 16
#define MOST_CHANNELS 256
/* Terms of a panel, which is packed, read once and packed again by BLAS, all of it in L2. */
#define MOST_TERMS 192
/* Frames of fewer positions share panels. */
#define PLANE_POSITIONS 128

static const char *name(const hy3d_conv3d_plan *plan)
{
    return plan->compute_bytes == sizeof(double) ? "panel-dgemm" : "panel-sgemm";
}

/* It computes anything. */
static bool choose(hy3d_conv3d_plan *plan)
{
    (void)plan;
    return true;
}

/* Blocks of at most so many positions; the number of grains. */
static int64_t cut_positions(hy3d_conv3d_plan *plan, int64_t most)
{
    hy3d__conv_panel *const d = &plan->panel;
    const int64_t positions = plan->out[0] * plan->out[1] * plan->out[2];

    d->n_block = hy3d__conv_ceil_div(d->span, hy3d__conv_ceil_div(d->span, most));
    d->n_blocks = hy3d__conv_ceil_div(d->span, d->n_block);
    return plan->desc.batch * plan->desc.groups * (positions / d->span) * d->n_blocks * d->m_blocks;
}

static void cut(hy3d_conv3d_plan *plan, uint32_t threads)
{
    hy3d__conv_panel *const d = &plan->panel;
    const int64_t plane = plan->out[1] * plan->out[2];

    (void)threads;
    d->has_planes = hy3d__conv_has_plain_planes(&plan->desc);
    d->span = plane >= PLANE_POSITIONS ? plane : plan->out[0] * plane;
    d->m_blocks = hy3d__conv_ceil_div(plan->m, plan->k > INT32_MAX ? 1 : MOST_CHANNELS);
    d->m_block = hy3d__conv_ceil_div(plan->m, d->m_blocks);
    d->k_block = hy3d__conv_ceil_div(plan->k, hy3d__conv_ceil_div(plan->k, MOST_TERMS));
    plan->grains = cut_positions(plan, MOST_POSITIONS);
    if (plan->grains < FEW_GRAINS) {
        plan->grains = cut_positions(plan, MOST_POSITIONS / 2);
    }
    plan->input_bytes = (size_t)(d->k_block * d->n_block) * plan->compute_bytes;
    plan->result_bytes = (size_t)(d->m_block * d->n_block) * plan->compute_bytes;
}

/* A grain: `count` positions from `first` of the flattened (T, H, W), output channels
 * [channel, channel + channels) of all. */
typedef struct block {
    int64_t image, group, channel, channels, first, count;
} block;

static block split_grain(const hy3d_conv3d_plan *plan, int64_t grain)
{
    const hy3d__conv_panel *const d = &plan->panel;
    const int64_t spans = plan->out[0] * plan->out[1] * plan->out[2] / d->span;
    block b;

    const int64_t m = grain % d->m_blocks * d->m_block;
    grain /= d->m_blocks;
    const int64_t at = grain % d->n_blocks * d->n_block;
    grain /= d->n_blocks;
    b.first = grain % spans * d->span + at;
    b.count = hy3d__min_i64(d->n_block, d->span - at);
    grain /= spans;
    b.group = grain % plan->desc.groups;
    b.image = grain / plan->desc.groups;
    b.channel = b.group * plan->m + m;
    b.channels = hy3d__min_i64(d->m_block, plan->m - m);
    return b;
}

/* The block's part in the frame of its position `done`. */
static hy3d__conv_span part(const hy3d_conv3d_plan *plan, const block *b, int64_t done)
{
    const int64_t plane = plan->out[1] * plan->out[2];
    const int64_t first = b->first + done;

    return (hy3d__conv_span){
        .image = b->image,
        .channel = b->channel,
        .channels = b->channels,
        .t = first / plane,
        .first = first % plane,
        .count = hy3d__min_i64(b->count - done, plane - first % plane),
    };
}

/* Input of tap (kt, kh, kw) of one channel for the positions of a span, row by row. */
static void pack_rows(const hy3d__conv_run *run, const hy3d__conv_span *span,
                      const hy3d_conv3d_frame *frame, int64_t channel, const int64_t tap[3],
                      unsigned char *dst)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    int64_t h = span->first / plan->out[2], w = span->first % plan->out[2];

    for (int64_t left = span->count, n; left > 0; left -= n, h++, w = 0) {
        n = hy3d__min_i64(left, plan->out[2] - w);
        const hy3d__conv_line line = hy3d__conv_source_line(
            run, frame, channel,
            h * desc->stride[1] + tap[1] * desc->dilation[1] - desc->pad_before[1]);
        hy3d__conv_load_line(plan->kernels, &line,
                             w * desc->stride[2] + tap[2] * desc->dilation[2] - desc->pad_before[2],
                             desc->stride[2], n, dst);
        dst += (size_t)n * plan->compute_bytes;
    }
}

/* The frame that tap kt of the span's results reads. */
static hy3d_conv3d_frame frame_of(const hy3d__conv_run *run, const hy3d__conv_span *span,
                                  int64_t kt)
{
    const hy3d_conv3d_desc *const desc = &run->plan->desc;
    return hy3d__conv_source_frame(
        run, span->image, span->t * desc->stride[0] + kt * desc->dilation[0] - desc->pad_before[0]);
}

/* Rows [k, k + count) of the panel. */
static void pack(const hy3d__conv_run *run, const block *b, int64_t k, int64_t count,
                 unsigned char *panel)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const int64_t *const kernel = plan->desc.kernel;
    hy3d__conv_span span;

    for (int64_t done = 0; done < b->count; done += span.count) {
        unsigned char *row = panel + (size_t)done * plan->compute_bytes;
        span = part(plan, b, done);
        for (int64_t i = k; i < k + count; i++, row += (size_t)b->count * plan->compute_bytes) {
            const int64_t channel = b->group * plan->c + i / plan->taps, at = i % plan->taps;
            const int64_t tap[3] = {at / kernel[2] / kernel[1], at / kernel[2] % kernel[1],
                                    at % kernel[2]};
            const hy3d_conv3d_frame frame = frame_of(run, &span, tap[0]);
            if (plan->panel.has_planes) {
                hy3d__conv_plane_load(run, &frame, channel, span.first, span.count, row);
            } else {
                pack_rows(run, &span, &frame, channel, tap, row);
            }
        }
    }
}

/* Whether BLAS takes rows of n elements that lie so far apart. */
static bool is_pitch(int64_t pitch, int64_t n)
{
    return pitch >= n && pitch <= INT32_MAX;
}

/* The panel of channels from k on, where x has it. */
static bool use_x(const hy3d__conv_run *run, const block *b, int64_t k, hy3d__gemm_args *product)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_span span = part(plan, b, 0);

    if (!plan->panel.has_planes || plan->taps != 1 || span.count != b->count) {
        return false;
    }
    const hy3d_conv3d_frame frame = frame_of(run, &span, 0);
    const unsigned char *const line =
        hy3d__conv_plane_in_place(run, &frame, b->group * plan->c + k);
    if (line == NULL || !is_pitch(frame.stride[0], b->count)) {
        return false;
    }
    product->b = line + (size_t)span.first * plan->compute_bytes;
    product->ldb = (int32_t)frame.stride[0];
    return true;
}

/* The block's results, where they may be summed in y. */
static bool use_y(const hy3d__conv_run *run, const block *b, hy3d__gemm_args *product)
{
    const hy3d__conv_span span = part(run->plan, b, 0);
    const int64_t pitch = run->y->stride[1];

    if (span.count != b->count || !is_pitch(pitch, b->count)) {
        return false;
    }
    product->c = hy3d__conv_plane_out(run, &span);
    product->ldc = (int32_t)pitch;
    return product->c != NULL;
}

/* What sums begin with. */
static void put_bias(const hy3d_conv3d_plan *plan, const block *b, const hy3d__gemm_args *product)
{
    for (int64_t r = 0; r < b->channels; r++) {
        if (plan->compute_bytes == sizeof(double)) {
            const double bias = ((const double *)plan->bias)[b->channel + r];
            double *const row = (double *)product->c + r * product->ldc;
            for (int64_t i = 0; i < b->count; i++) {
                row[i] = bias;
            }
        } else {
            const float bias = ((const float *)plan->bias)[b->channel + r];
            float *const row = (float *)product->c + r * product->ldc;
            for (int64_t i = 0; i < b->count; i++) {
                row[i] = bias;
            }
        }
    }
}

/* Adds the products of terms [k, k + product->k). */
static void multiply(const hy3d_conv3d_plan *plan, const block *b, int64_t k,
                     hy3d__gemm_args *product)
{
    product->a = (const unsigned char *)plan->weight +
                 (size_t)(b->channel * plan->k + k) * plan->compute_bytes;
    /* A sum of 2^31 terms or more has blocks of one row, whose pitch does not matter. */
    product->lda = b->channels == 1 ? product->k : (int32_t)plan->k;
    if (plan->compute_bytes == sizeof(double)) {
        hy3d__dgemm(plan->context, product);
    } else {
        hy3d__sgemm(plan->context, product);
    }
}

static void store(const hy3d__conv_run *run, const block *b, const unsigned char *results)
{
    hy3d__conv_span span;

    for (int64_t done = 0; done < b->count; done += span.count) {
        span = part(run->plan, b, done);
        hy3d__conv_plane_store(run, &span, results + (size_t)done * run->plan->compute_bytes,
                               b->count);
    }
}

static hy3d_status run_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    unsigned char *const panel = run->workspace + plan->slot_bytes * slot;
    unsigned char *const tile = panel + plan->input_bytes;
    const block b = split_grain(plan, grain);
    hy3d__gemm_args product = {.m = (int32_t)b.channels, .n = (int32_t)b.count, .accumulate = true};
    const bool in_y = use_y(run, &b, &product);

    if (!in_y) {
        product.c = tile;
        product.ldc = product.n;
    }
    put_bias(plan, &b, &product);
    for (int64_t k = 0; k < plan->k; k += product.k) {
        product.k = (int32_t)hy3d__min_i64(plan->panel.k_block, plan->k - k);
        if (hy3d_cancel_requested(run->cancel)) {
            return HY3D_ERR_CANCELLED;
        }
        if (!use_x(run, &b, k, &product)) {
            pack(run, &b, k, product.k, panel);
            product.b = panel;
            product.ldb = product.n;
        }
        multiply(plan, &b, k, &product);
    }
    if (!in_y) {
        store(run, &b, tile);
    }
    return HY3D_OK;
}

const hy3d__conv_strategy hy3d__conv_panel_strategy = {
    .name = name,
    .choose = choose,
    .cut = cut,
    .run = run_grain,
    .needs_blas = true,
};
