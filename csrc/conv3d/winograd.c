/* Winograd: a block of tiles to the points, one product a point, and back. */
#include "conv3d/plan.h"

static hy3d__winograd_block split_grain(const hy3d_conv3d_plan *plan, int64_t grain)
{
    const hy3d__conv_winograd *const d = &plan->winograd;
    hy3d__winograd_block b = {0};

    b.panel = grain % d->blocks_m * d->blocks.panels;
    b.panels = hy3d__min_i64(d->blocks.panels, d->filters.panels - b.panel);
    grain /= d->blocks_m;
    b.tile_w = grain % d->blocks_w * d->blocks.w;
    b.tiles_w = hy3d__min_i64(d->blocks.w, d->tiles_w - b.tile_w);
    grain /= d->blocks_w;
    b.tile_h = grain % d->blocks_h * d->blocks.h;
    b.tiles_h = hy3d__min_i64(d->blocks.h, d->tiles_h - b.tile_h);
    grain /= d->blocks_h;
    b.t = grain % d->blocks_t * d->blocks.frames;
    b.frames = hy3d__min_i64(d->blocks.frames, plan->out[0] - b.t);
    b.image = grain / d->blocks_t;
    b.rows = b.tiles_h * b.tiles_w *
             (d->filters.kind.moments == 1 ? b.frames : hy3d__conv_ceil_div(b.frames, 2));
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

/* One chunk of one product with one panel of weights. */
static void multiply(const operands *o, int64_t product, int64_t channel, const float *u, float *r,
                     const hy3d__ahead *ahead)
{
    const hy3d__winograd_filters *const f = &o->plan->winograd.filters;
    const int64_t length = hy3d__min_i64(f->chunk, f->k - channel);
    const float *const v =
        o->v + (size_t)product * o->v_point + (size_t)(channel / 16) * o->v_block;

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
    const hy3d__winograd_filters *const f = &o->plan->winograd.filters;
    const float *const u = (const float *)o->plan->prepared->data;
    const int64_t chunks = hy3d__conv_ceil_div(f->k, f->chunk);
    const size_t share = o->v_point / (size_t)(panels * chunks);

    for (int64_t p = 0; p < f->products && !hy3d_cancel_requested(o->cancel); p++) {
        const float *next = o->v + (size_t)(p + 1) * o->v_point;
        for (int64_t i = 0; i < panels; i++) {
            const float *from = u + (p * f->panels + panel + i) * f->panel_elems;
            float *const r = o->r + (p * panels + i) * o->block->rows * 32;
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
    const hy3d__winograd_filters *const f = &plan->winograd.filters;

    for (int64_t c = 0; c < f->k && !hy3d_cancel_requested(o->cancel); c += f->chunk) {
        const int64_t length = hy3d__min_i64(f->chunk, f->k - c);
        const size_t elems = (size_t)(f->segments * length * 32);
        hy3d__winograd_filters_make(plan->kernels, f, &plan->filter, panel, c, length, made, elems,
                                    scratch);
        for (int64_t p = 0; p < f->products; p++) {
            const hy3d__ahead ahead =
                look_ahead(o->v + (size_t)(p + 1) * o->v_point + (size_t)(c / 16) * o->v_block,
                           (size_t)(length / 16) * o->v_block, made, 0);
            multiply(o, p, c, made + (size_t)p * elems, o->r + p * o->block->rows * 32, &ahead);
        }
    }
}

static hy3d_status run_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_winograd *const d = &plan->winograd;
    const hy3d__winograd_filters *const f = &d->filters;
    const hy3d__winograd_block b = split_grain(plan, grain);
    float *const v = (float *)(void *)(run->workspace + plan->slot_bytes * slot);
    float *const strips = v + d->elems.v + d->elems.r;
    const int64_t halo = f->kind.moments == 1 ? plan->desc.kernel[0] - 1 : 0;
    const size_t v_block = (size_t)(b.rows + halo * b.tiles_h * b.tiles_w) * 16;
    const operands o = {.plan = plan,
                        .cancel = run->cancel,
                        .block = &b,
                        .v = v,
                        .v_block = v_block,
                        .v_point = v_block * (size_t)(f->k / 16),
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
            hy3d__winograd_output(run, &b, panel + i, o.r + i * b.rows * 32, panels * b.rows * 32,
                                  strips);
        }
    }
    return HY3D_OK;
}

static bool choose(hy3d_conv3d_plan *plan)
{
    return hy3d__winograd_choose(&plan->desc, plan->out, plan->level, &plan->winograd.filters.kind);
}

static void cut(hy3d_conv3d_plan *plan, uint32_t threads)
{
    hy3d__winograd_plan(plan, plan->winograd.filters.kind, threads);
}

static hy3d_conv3d_format format_of(const hy3d_conv3d_plan *plan)
{
    return hy3d__winograd_format(&plan->winograd.filters.kind);
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
