/* A grain's input at the points.
 *
 * 16 channels at a time, a row of tiles in chunks: rows of the input become strips of vectors of
 * channels (padding, up-sampling, conversion and a fusion's operations end here), strips are
 * transformed down their columns, and then, alone or as sums and differences of frames, across. */
#include "conv3d/plan.h"

#include <string.h>

#include "elements/elements.h"

#define COLUMNS HY3D__WINOGRAD_COLUMNS
#define LINE ((size_t)COLUMNS * 16)

/* One row of 16 channels being packed. */
typedef struct row_source {
    const hy3d__conv_run *run;
    hy3d_conv3d_frame frame;
    int64_t channel, channels; /* at most 16 */
    int64_t row;               /* of x */
    int64_t up, columns;       /* repeats of a column; columns, repeated ones counted */
    const unsigned char *next; /* data of the frame that is packed next, laid out as this one */
} row_source;

/* Runs of a few hundred bytes at 16 places are too short for the processor to see them coming. */
static void prefetch_lines(const unsigned char *data, int64_t stride, int64_t bytes)
{
    for (int64_t c = 0; c < 16; c++) {
        for (int64_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(data + c * stride + i);
        }
    }
}

/* Columns [first, first + n) of x, all inside, to vectors. */
static void load_lanes(const row_source *source, int64_t first, int64_t n, float *dst)
{
    const hy3d_conv3d_plan *const plan = source->run->plan;
    const hy3d__kernels *const kernels = plan->kernels;
    const hy3d_dtype dtype = plan->desc.dtype;
    const int64_t *const stride = source->frame.stride;
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(dtype);
    const unsigned char *const data =
        (const unsigned char *)source->frame.data +
        (source->channel * stride[0] + source->row * stride[1] + first * stride[2]) * bytes;
    float lines[16 * COLUMNS];

    if (source->channels == 16 && dtype == HY3D_F32 && stride[2] == 1 && stride[0] > 0) {
        if (source->next != NULL) {
            prefetch_lines(source->next + (data - (const unsigned char *)source->frame.data),
                           stride[0] * bytes, n * bytes);
        }
        kernels->to_lanes_f32((size_t)n, (const float *)(const void *)data, (size_t)stride[0], dst);
        return;
    }
    if (source->channels == 16 && stride[0] == 1) {
        for (int64_t i = 0; i < n; i++) {
            hy3d__read_elements(kernels, dtype, data + i * stride[2] * bytes, 1, 16, dst + i * 16);
        }
        return;
    }
    for (int64_t c = 0; c < 16; c++) {
        if (c < source->channels) {
            hy3d__read_elements(kernels, dtype, data + c * stride[0] * bytes, stride[2], n,
                                lines + c * COLUMNS);
        } else {
            memset(lines + c * COLUMNS, 0, (size_t)n * sizeof *lines);
        }
    }
    kernels->to_lanes_f32((size_t)n, lines, COLUMNS, dst);
}

/* The same with the fusion's operations; lanes without a channel stay zero. */
static void pack_inside(const row_source *source, int64_t first, int64_t n, float *dst)
{
    const hy3d_conv3d_fusion *const fusion = source->run->fusion;
    float scale[16], shift[16];

    load_lanes(source, first, n, dst);
    if (fusion->scale == NULL && fusion->activation == HY3D_IDENTITY) {
        return;
    }
    for (int64_t l = 0; l < 16; l++) {
        const bool there = fusion->scale != NULL && l < source->channels;
        scale[l] = there ? fusion->scale[source->channel + l] : 1.0F;
        shift[l] = there ? fusion->shift[source->channel + l] : -0.0F; /* leaves -0 alone */
    }
    source->run->plan->kernels->affine_silu_lanes_f32((size_t)n, scale, shift,
                                                      fusion->activation == HY3D_SILU, dst);
}

/* Up-sampled columns [first, first + n), all inside. */
static void pack_columns(const row_source *source, int64_t first, int64_t n, float *dst)
{
    const int64_t up = source->up;
    float once[COLUMNS * 16];

    if (up == 1) {
        pack_inside(source, first, n, dst);
        return;
    }
    const int64_t begin = first / up;
    pack_inside(source, begin, (first + n - 1) / up - begin + 1, once);
    for (int64_t i = 0; i < n; i++) {
        memcpy(dst + i * 16, once + ((first + i) / up - begin) * 16, 16 * sizeof *dst);
    }
}

static void fill_columns(float *dst, int64_t n, const float *with)
{
    for (int64_t i = 0; i < n; i++) {
        if (with == NULL) {
            memset(dst + i * 16, 0, 16 * sizeof *dst);
        } else {
            memcpy(dst + i * 16, with, 16 * sizeof *dst);
        }
    }
}

/* A row of the strip: up-sampled columns [first, first + n), outside ones padded. */
static void pack_row(const row_source *source, int64_t first, int64_t n, float *dst)
{
    const hy3d_conv3d_desc *const desc = &source->run->plan->desc;
    const int64_t size = source->columns;
    const bool replicate = desc->pad_mode[2] == HY3D_PAD_REPLICATE;
    /* Entries [0, before) lie left of the row, [inside, n) right of it. */
    const int64_t before = hy3d__min_i64(n, first < 0 ? -first : 0);
    const int64_t inside = hy3d__min_i64(n, size - first > 0 ? size - first : 0);

    if (before < inside) {
        pack_columns(source, first + before, inside - before, dst + before * 16);
        fill_columns(dst, before, replicate ? dst + before * 16 : NULL);
        fill_columns(dst + inside * 16, n - inside, replicate ? dst + (inside - 1) * 16 : NULL);
        return;
    }
    /* Nothing of it is inside: tiles beyond the output, or wide padding. */
    float edge[16] = {0.0F};
    if (replicate) {
        pack_columns(source, first < 0 ? 0 : size - 1, 1, edge);
    }
    fill_columns(dst, n, edge);
}

/* One strip: `rows` rows of `columns` columns of 16 channels of a frame. What is cropped behind
 * counts as outside: a tile that reaches beyond the output must not read it, its results mix. */
static void pack_strip(const hy3d__conv_run *run, const hy3d_conv3d_frame *frame,
                       const hy3d_conv3d_frame *next, int64_t channel, int64_t top, int64_t left,
                       int rows, int64_t columns, float *strip)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    /* An up-sampled input that the transform knows is read as it is. */
    const bool as_is = plan->winograd.sizes.filters.kind.is_upsampled;
    const int64_t up_h = hy3d__conv_upsample(desc, 1), up_w = hy3d__conv_upsample(desc, 2);
    const int64_t height = hy3d__conv_ceil_div(hy3d__conv_end(desc, 1), as_is ? up_h : 1);
    row_source source = {.run = run,
                         .frame = *frame,
                         .channel = channel,
                         .channels = hy3d__min_i64(16, plan->c - channel),
                         .up = as_is ? 1 : up_w,
                         .columns = hy3d__conv_ceil_div(hy3d__conv_end(desc, 2), as_is ? up_w : 1),
                         .next = next->data};
    int64_t packed = -1; /* the row of x that the line before holds */

    for (int i = 0; i < rows; i++) {
        float *const line = strip + (size_t)i * LINE;
        int64_t h = hy3d__conv_resolve(top + i, height, desc->pad_mode[1] == HY3D_PAD_REPLICATE);
        if (frame->data == NULL || h < 0) {
            memset(line, 0, (size_t)columns * 16 * sizeof *line);
            packed = -1;
            continue;
        }
        h /= as_is ? 1 : up_h;
        if (h == packed) {
            memcpy(line, line - LINE, (size_t)columns * 16 * sizeof *line);
            continue;
        }
        source.row = packed = h;
        pack_row(&source, left, columns, line);
    }
}

/* What the strips of one chunk of tiles are made of and go to. */
typedef struct chunk {
    const hy3d__conv_run *run;
    const hy3d__winograd_block *block;
    int64_t channel, tile_h, tile_w, tiles; /* tiles: inside the block */
    float *v; /* of the chunk's first tile in the block's first frame */
    float *packed, *down;
} chunk;

/* Which frame of the input is number i of the block's: of frames in twos each counts once. */
static int64_t frame_number(const chunk *c, int64_t i)
{
    const hy3d_conv3d_plan *const plan = c->run->plan;
    const hy3d__conv_winograd *const d = &plan->winograd;

    const hy3d__winograd_time *const time = d->sizes.filters.kind.time;
    const bool in_twos = time->step < time->frames;

    if (!in_twos) {
        return c->block->t + i - plan->desc.pad_before[0];
    }
    const int64_t second = c->block->t + 2 * i + 1 - d->sizes.lead[0];
    return second < plan->desc.in_size[0] ? second : second - 1;
}

/* Where along an axis the data of tile `tile` begin. */
static int64_t tile_start(const hy3d_conv3d_plan *plan, int axis, int64_t tile)
{
    const hy3d__winograd_sizes *const sizes = &plan->winograd.sizes;
    const int64_t before = plan->desc.pad_before[axis] + sizes->lead[axis];

    return tile * sizes->filters.kind.step - before / (sizes->filters.kind.is_upsampled ? 2 : 1);
}

static float *ring_entry(const chunk *c, int64_t i)
{
    return c->down + (size_t)(i % HY3D__WINOGRAD_RING) * 7 * LINE;
}

/* Input frame i of the block, transformed down the columns, into its entry of the ring. */
static void make_down(const chunk *c, int64_t i)
{
    const hy3d_conv3d_plan *const plan = c->run->plan;
    const hy3d__winograd_kind kind = plan->winograd.sizes.filters.kind;
    const hy3d_conv3d_frame frame =
        hy3d__conv_source_frame(c->run, c->block->image, frame_number(c, i));
    const hy3d_conv3d_frame next =
        hy3d__conv_source_frame(c->run, c->block->image, frame_number(c, i + 1));
    const int64_t columns = kind.step * (c->tiles - 1) + kind.n;
    const int64_t top = tile_start(plan, 1, c->block->tile_h + c->tile_h);
    const int64_t left = tile_start(plan, 2, c->block->tile_w + c->tile_w);
    float *const down = ring_entry(c, i);

    pack_strip(c->run, &frame, &next, c->channel, top, left, kind.n, columns, c->packed);
    plan->kernels->winograd_down_f32(kind.m, (size_t)columns, c->packed, LINE, down, LINE);
}

static void make_chunk(const chunk *c)
{
    const hy3d_conv3d_plan *const plan = c->run->plan;
    const hy3d__conv_winograd *const d = &plan->winograd;
    const hy3d__winograd_time *const time = d->sizes.filters.kind.time;
    const int64_t tiles = c->block->tiles_h * c->block->tiles_w;
    const int64_t halo = time->moments == 1 ? plan->desc.kernel[0] - 1 : 0;
    const int64_t rows = hy3d__conv_ceil_div(c->block->frames, time->frames) + halo;
    const size_t v_moment =
        (size_t)hy3d__winograd_pitch((c->block->rows + halo * tiles) * d->sizes.filters.k);
    int64_t made = 0;

    for (int64_t row = 0; row < rows; row++) {
        for (; made < row * time->step + time->reads; made++) {
            make_down(c, made);
        }
        for (int q = 0; q < time->data_moments; q++) {
            const hy3d__winograd_sum *const sum = &time->data[q];
            const float *frames[5];
            for (int i = 0; i < sum->count; i++) {
                frames[i] = ring_entry(c, row * time->step + sum->from[i]);
            }
            plan->kernels->winograd_across_f32(d->sizes.filters.kind.m, sum->count, frames,
                                               sum->factor, (size_t)c->tiles, LINE,
                                               c->v + (size_t)q * v_moment + row * tiles * 16,
                                               (size_t)time->data_moments * v_moment, 16);
        }
    }
}

void hy3d__winograd_input(const hy3d__conv_run *run, const hy3d__winograd_block *block, float *v,
                          float *strips)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__winograd_kind kind = plan->winograd.sizes.filters.kind;
    const int64_t tiles = block->tiles_h * block->tiles_w;
    const int64_t halo = kind.time->moments == 1 ? (plan->desc.kernel[0] - 1) * tiles : 0;
    chunk c = {.run = run, .block = block, .packed = strips, .down = strips + 7 * LINE};

    for (c.tile_h = 0; c.tile_h < block->tiles_h; c.tile_h++) {
        for (c.tile_w = 0; c.tile_w < block->tiles_w; c.tile_w += HY3D__WINOGRAD_CHUNK) {
            c.tiles = hy3d__min_i64(HY3D__WINOGRAD_CHUNK, block->tiles_w - c.tile_w);
            if (hy3d_cancel_requested(run->cancel)) {
                return; /* the grain sees it too */
            }
            for (c.channel = 0; c.channel < plan->c; c.channel += 16) {
                c.v = v + c.channel * (block->rows + halo) +
                      (c.tile_h * block->tiles_w + c.tile_w) * 16;
                make_chunk(&c);
            }
        }
    }
}
