/* Winograd: a block of tiles to the points, one product a point, and back. */
#include "conv3d/plan.h"

static hy3d__winograd_block split_grain(const hy3d_conv3d_plan *plan, int64_t grain)
{
    const hy3d__conv_winograd *const d = &plan->winograd;
    hy3d__winograd_block b = {0};

    b.panel = grain % d->blocks_m * d->blocks.panels;
    b.panels = hy3d__min_i64(d->blocks.panels, d->sizes.filters.panels - b.panel);
    grain /= d->blocks_m;
    b.tile_w = grain % d->blocks_w * d->blocks.w;
    b.tiles_w = hy3d__min_i64(d->blocks.w, d->sizes.tiles_w - b.tile_w);
    grain /= d->blocks_w;
    b.tile_h = grain % d->blocks_h * d->blocks.h;
    b.tiles_h = hy3d__min_i64(d->blocks.h, d->sizes.tiles_h - b.tile_h);
    grain /= d->blocks_h;
    b.t = grain % d->blocks_t * d->blocks.frames;
    b.frames = hy3d__min_i64(d->blocks.frames, d->sizes.frames - b.t);
    b.image = grain / d->blocks_t;
    b.rows =
        b.tiles_h * b.tiles_w * hy3d__conv_ceil_div(b.frames, d->sizes.filters.kind.time->frames);
    return b;
}

/* What all products of a grain share. */
typedef struct operands {
    const hy3d_conv3d_plan *plan;
    const hy3d_cancel *cancel;
    const hy3d__winograd_block *block;
    const float *v;
    size_t v_block, v_point; /* of v: between blocks of 16 channels, between points */
    float *r;
} operands;

static int64_t r_point_of(const hy3d__winograd_block *block, int64_t panels)
{
    return hy3d__winograd_pitch(panels * block->rows * 32);
}

/* A product's data: those of an up-sampled input have two of the weights for most points. */
static const float *data_of(const operands *o, int64_t product)
{
    static const int places[7] = {0, 0, 1, 2, 2, 3, 3};
    const hy3d__winograd_kind *const kind = &o->plan->winograd.sizes.filters.kind;
    const int64_t time = kind->time->place[product % kind->time->moments];
    int64_t point = product / kind->time->moments;

    if (kind->is_upsampled) {
        point = places[point / 7] * 4 + places[point % 7];
    }
    return o->v + (size_t)(point * kind->time->data_moments + time) * o->v_point;
}

/* One chunk of one product with one panel of weights. */
static void multiply(const operands *o, int64_t product, int64_t channel, const float *u, float *r,
                     const hy3d__ahead *ahead)
{
    const hy3d__winograd_filters *const f = &o->plan->winograd.sizes.filters;
    const int64_t length = hy3d__min_i64(f->chunk, f->k - channel);
    const float *const v = data_of(o, product) + (size_t)(channel / 16) * o->v_block;

    o->plan->kernels->gemm_f32((size_t)o->block->rows, (size_t)f->segments,
                               (size_t)(o->block->tiles_h * o->block->tiles_w) * 16,
                               (size_t)(length / 16), o->v_block, v, u, r, channel > 0, ahead);
}

static hy3d__ahead look_ahead(const float *a, size_t a_elems, const float *b, size_t b_elems)
{
    return (hy3d__ahead){
        .a = (const char *)a,
        .b = (const char *)b,
        .a_step = a_elems == 0 ? 0 : 64,
        .b_step = b_elems == 0 ? 0 : 128,
        .a_end = (const char *)(a + a_elems),
        .b_end = (const char *)(b + b_elems),
    };
}

/* All products with prepared weights, point by point: a point's data stays in L2 while panels go
 * by. Fetched meanwhile: the weights that follow, and a share of the next point's data. Stops early
 * once it is cancelled, as multiply_making does. */
static void multiply_prepared(const operands *o, int64_t panel, int64_t panels)
{
    const hy3d__winograd_filters *const f = &o->plan->winograd.sizes.filters;
    const float *const u = (const float *)o->plan->prepared->data;
    const int64_t chunks = hy3d__conv_ceil_div(f->k, f->chunk);
    const size_t share = o->v_point / (size_t)(panels * chunks);
    const int64_t r_point = r_point_of(o->block, panels);

    for (int64_t p = 0; p < f->products && !hy3d_cancel_requested(o->cancel); p++) {
        const float *next = data_of(o, hy3d__min_i64(p + 1, f->products - 1));
        for (int64_t i = 0; i < panels; i++) {
            const float *from = u + p * f->product_elems + (panel + i) * f->panel_elems;
            float *const r = o->r + p * r_point + i * o->block->rows * 32;
            for (int64_t c = 0; c < f->k; c += f->chunk) {
                const int64_t length = hy3d__min_i64(f->chunk, f->k - c);
                const size_t elems = (size_t)(f->segments * length * 32);
                const hy3d__ahead ahead = look_ahead(next, share, from + elems, elems);
                multiply(o, p, c, from, r, &ahead);
                from += elems;
                next += share;
            }
        }
    }
}

/* One panel, whose weights are made a chunk at a time: they never leave L2. */
static void multiply_making(const operands *o, int64_t panel, float *made, float *scratch)
{
    const hy3d_conv3d_plan *const plan = o->plan;
    const hy3d__winograd_filters *const f = &plan->winograd.sizes.filters;

    for (int64_t c = 0; c < f->k && !hy3d_cancel_requested(o->cancel); c += f->chunk) {
        const int64_t length = hy3d__min_i64(f->chunk, f->k - c);
        const size_t elems = (size_t)hy3d__winograd_pitch(f->segments * length * 32);
        hy3d__winograd_filters_make(plan->kernels, f, &plan->filter, panel, c, length, made, elems,
                                    scratch);
        for (int64_t p = 0; p < f->products; p++) {
            const hy3d__ahead ahead = look_ahead(data_of(o, hy3d__min_i64(p + 1, f->products - 1)) +
                                                     (size_t)(c / 16) * o->v_block,
                                                 (size_t)(length / 16) * o->v_block, made, 0);
            multiply(o, p, c, made + (size_t)p * elems, o->r + p * r_point_of(o->block, 1), &ahead);
        }
    }
}

static hy3d_status run_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_winograd *const d = &plan->winograd;
    const hy3d__winograd_filters *const f = &d->sizes.filters;
    const hy3d__winograd_block b = split_grain(plan, grain);
    float *const v = (float *)(void *)(run->workspace + plan->slot_bytes * slot);
    float *const strips = v + d->elems.v + d->elems.r;
    const int64_t halo = f->kind.time->moments == 1 ? plan->desc.kernel[0] - 1 : 0;
    const size_t v_block = (size_t)(b.rows + halo * b.tiles_h * b.tiles_w) * 16;
    const operands o = {.plan = plan,
                        .cancel = run->cancel,
                        .block = &b,
                        .v = v,
                        .v_block = v_block,
                        .v_point = (size_t)hy3d__winograd_pitch((int64_t)v_block * (f->k / 16)),
                        .r = v + d->elems.v};

    hy3d__winograd_input(run, &b, v, strips);
    for (int64_t panel = b.panel; panel < b.panel + b.panels; panel += d->blocks.panels_at_once) {
        const int64_t panels = hy3d__min_i64(d->blocks.panels_at_once, b.panel + b.panels - panel);
        if (plan->prepared != NULL) {
            multiply_prepared(&o, panel, panels);
        } else {
            multiply_making(&o, panel, strips + d->elems.strips, strips);
        }
        if (hy3d_cancel_requested(run->cancel)) {
            return HY3D_ERR_CANCELLED;
        }
        for (int64_t i = 0; i < panels; i++) {
            hy3d__winograd_output(run, &b, panel + i, o.r + i * b.rows * 32, r_point_of(&b, panels),
                                  strips);
        }
    }
    return HY3D_OK;
}

static bool choose(hy3d_conv3d_plan *plan)
{
    return hy3d__winograd_choose(&plan->desc, plan->out, plan->level,
                                 &plan->winograd.sizes.filters.kind);
}

static void cut(hy3d_conv3d_plan *plan, uint32_t threads)
{
    hy3d__winograd_plan(plan, plan->winograd.sizes.filters.kind, threads);
}

static hy3d_conv3d_format format_of(const hy3d_conv3d_plan *plan)
{
    return hy3d__winograd_format(&plan->winograd.sizes.filters.kind);
}

static const char *name(const hy3d_conv3d_plan *plan)
{
    return hy3d__winograd_format_name(format_of(plan));
}

static const hy3d__conv_layouts layouts = {
    .name = hy3d__winograd_format_name,
    .of_plan = format_of,
    .bytes = hy3d__winograd_format_bytes,
    .make = hy3d__winograd_prepare,
};

const hy3d__conv_strategy hy3d__conv_winograd_strategy = {
    .name = name,
    .choose = choose,
    .cut = cut,
    .run = run_grain,
    .layouts = &layouts,
};
