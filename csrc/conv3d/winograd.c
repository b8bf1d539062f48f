/* Winograd: a block of tiles to the points, one product a point, and back. */
#include "conv3d/internal.h"

/* The longest sum in registers; longer ones are added up in r, which keeps rounding errors of long
 * sums small (docs/numerics.md). */
#define CHAIN 512

static hy3d__winograd_block split_grain(const hy3d_conv3d_plan *plan, int64_t grain)
{
    const hy3d__conv_winograd *const d = &plan->winograd;
    hy3d__winograd_block b = {0};

    b.panel = grain % d->blocks_m * d->blocks.panels;
    b.panels = hy3d__conv_min(d->blocks.panels, d->filters.panels - b.panel);
    grain /= d->blocks_m;
    b.tile_w = grain % d->blocks_w * d->blocks.w;
    b.tiles_w = hy3d__conv_min(d->blocks.w, d->tiles_w - b.tile_w);
    grain /= d->blocks_w;
    b.tile_h = grain % d->blocks_h * d->blocks.h;
    b.tiles_h = hy3d__conv_min(d->blocks.h, d->tiles_h - b.tile_h);
    grain /= d->blocks_h;
    b.t = grain % d->blocks_t * d->blocks.frames;
    b.frames = hy3d__conv_min(d->blocks.frames, plan->out[0] - b.t);
    b.image = grain / d->blocks_t;
    b.rows = b.tiles_h * b.tiles_w *
             (d->filters.kind.moments == 1 ? b.frames : hy3d__conv_ceil_div(b.frames, 2));
    return b;
}

/* One product with one panel; sums in pieces of CHAIN at most. */
static void multiply(const hy3d_conv3d_plan *plan, const hy3d__winograd_block *b, const float *v,
                     size_t v_block, const float *u, float *r, const hy3d__ahead *ahead)
{
    const hy3d__winograd_filters *const f = &plan->winograd.filters;
    const size_t segment = (size_t)(b->tiles_h * b->tiles_w) * 16;
    const int64_t blocks = f->k / 16;
    const int64_t parts = hy3d__conv_ceil_div(f->k, CHAIN);
    const int64_t part = hy3d__conv_ceil_div(blocks, parts);
    static const hy3d__ahead nothing = {0};

    if (f->segments * f->k <= CHAIN) {
        plan->kernels->gemm_f32((size_t)b->rows, (size_t)f->segments, segment, (size_t)blocks,
                                v_block, v, u, r, 0, ahead);
        return;
    }
    for (int64_t s = 0; s < f->segments; s++) {
        for (int64_t q = 0; q < blocks; q += part) {
            const int64_t count = hy3d__conv_min(part, blocks - q);
            plan->kernels->gemm_f32((size_t)b->rows, 1, 0, (size_t)count, v_block,
                                    v + (size_t)s * segment + (size_t)q * v_block,
                                    u + (s * blocks + q) * 16 * 32, r, s + q > 0,
                                    s + q > 0 ? &nothing : ahead);
        }
    }
}

/* What is needed after product p with a panel: the next panel of weights, and a share of the data
 * of the next point. */
static hy3d__ahead look_ahead(const hy3d__conv_winograd *d, const float *u, const float *v,
                              size_t v_point, int64_t panel, int64_t panels)
{
    const size_t share = v_point / (size_t)panels;
    const float *const next = v + v_point + (size_t)panel * share;
    return (hy3d__ahead){
        .a = (const char *)next,
        .b = (const char *)(u + d->filters.panel_elems),
        .a_step = 64,
        .b_step = 128,
        .a_end = (const char *)(next + share),
        .b_end = (const char *)(u + 2 * d->filters.panel_elems),
    };
}

hy3d_status hy3d__conv_winograd_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_winograd *const d = &plan->winograd;
    const hy3d__winograd_filters *const f = &d->filters;
    const hy3d__winograd_block b = split_grain(plan, grain);
    float *const v = (float *)(void *)(run->workspace + plan->slot_bytes * slot);
    float *const r = v + d->elems.v;
    float *const strips = r + d->elems.r;
    float *const made = strips + d->elems.strips;
    const int64_t halo = f->kind.moments == 1 ? plan->desc.kernel[0] - 1 : 0;
    const size_t v_block = (size_t)(b.rows + halo * b.tiles_h * b.tiles_w) * 16;
    const size_t v_point = v_block * (size_t)(f->k / 16);

    hy3d__winograd_input(run, &b, v, strips);
    for (int64_t panel = b.panel; panel < b.panel + b.panels; panel += d->blocks.panels_at_once) {
        const int64_t panels = hy3d__conv_min(d->blocks.panels_at_once, b.panel + b.panels - panel);
        const int64_t r_panel = b.rows * 32;
        const float *u = made;
        int64_t u_panels = panels;
        if (plan->prepared != NULL) {
            u = (const float *)plan->prepared->data + panel * f->panel_elems;
            u_panels = f->panels;
        } else {
            hy3d__winograd_filters_make(plan->kernels, f, &plan->filter, panel, panels, made,
                                        (size_t)panels, strips);
        }
        for (int64_t p = 0; p < f->products; p++) {
            for (int64_t i = 0; i < panels; i++) {
                const float *const at = u + (p * u_panels + i) * f->panel_elems;
                const hy3d__ahead ahead =
                    look_ahead(d, at, v + (size_t)p * v_point, v_point, i, panels);
                multiply(plan, &b, v + (size_t)p * v_point, v_block, at, r + (p * panels + i) * r_panel,
                         &ahead);
            }
        }
        for (int64_t i = 0; i < panels; i++) {
            hy3d__winograd_output(run, &b, panel + i, r + i * r_panel, panels * r_panel, strips);
        }
    }
    return HY3D_OK;
}
