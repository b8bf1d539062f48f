/* What a convolution by Winograd is expected to cost, and the blocks that cost least.
 *
 * A model of cycles with five constants, fitted to the layers of video VAEs by
 * tests/bench/fit_winograd_cost.py (docs/tuning.md says how well). Blocks change no bit of a
 * result, so they may follow threads and memory; the kind may not, and is chosen for one thread. */
#include "conv3d/plan.h"

/* Blocks above this get slower where caches are smaller than on the machines measured. */
#define GOOD_BYTES 12e6

typedef struct cycles {
    double product; /* of a row with 32 columns, a channel */
    double data;    /* of a channel's tile to a point and a product's back, each */
    double weight;  /* of a float of weights that a grain reads */
    double filter;  /* of a float of weights made while running */
    double direct;  /* of a product of 16 lanes in the direct way */
} cycles;

static cycles cycles_at(hy3d_cpu_level level)
{
    switch (level) {
    case HY3D_CPU_AVX512:
        return (cycles){
            .product = 1.08, .data = 0.85, .weight = 0.6, .filter = 1.0, .direct = 0.59};
    case HY3D_CPU_AVX2:
        return (cycles){.product = 2.16, .data = 1.2, .weight = 0.6, .filter = 1.6, .direct = 1.18};
    case HY3D_CPU_REF:
    default:
        return (cycles){.product = 9.0, .data = 3.0, .weight = 0.6, .filter = 5.0, .direct = 4.6};
    }
}

double hy3d__winograd_direct_cost(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                  hy3d_cpu_level level)
{
    const double positions = (double)desc->batch * (double)out[0] * (double)out[1] * (double)out[2];
    const double k = (double)desc->in_channels * (double)desc->kernel[0] * (double)desc->kernel[1] *
                     (double)desc->kernel[2];
    return cycles_at(level).direct * positions / 16.0 * k * (double)desc->out_channels;
}

/* Rows of a product for so many frames of so many tiles. */
static int64_t row_count(const hy3d__winograd_sizes *s, int64_t frames, int64_t tiles)
{
    return tiles * hy3d__conv_ceil_div(frames, s->filters.kind.time->frames);
}

hy3d__winograd_elems hy3d__winograd_block_elems(const hy3d__winograd_sizes *s,
                                                const hy3d__winograd_blocks *b, bool prepared)
{
    const int64_t tiles = b->h * b->w;
    const int64_t rows = row_count(s, b->frames, tiles);
    const int64_t halo = s->filters.kind.time->moments == 1 ? (s->kernel_t - 1) * tiles : 0;
    return (hy3d__winograd_elems){
        .v = s->filters.points * hy3d__winograd_pitch((rows + halo) * s->filters.k),
        .r = s->filters.products * hy3d__winograd_pitch(b->panels_at_once * rows * 32),
        .strips = HY3D__WINOGRAD_LINES * (int64_t)HY3D__WINOGRAD_COLUMNS * 16,
        .u = prepared ? 0
                      : s->filters.products *
                            hy3d__winograd_pitch(s->filters.segments * s->filters.chunk * 32),
    };
}

static double block_bytes(const hy3d__winograd_elems *e)
{
    return 4.0 * (double)(e->v + e->r + e->strips + e->u);
}

hy3d__winograd_work hy3d__winograd_work_of(const hy3d__winograd_sizes *s,
                                           const hy3d__winograd_limits *limits,
                                           const hy3d__winograd_blocks *b)
{
    const double tiles = (double)(b->h * b->w);
    const double products = (double)s->filters.products;
    const double rows = (double)row_count(s, b->frames, b->h * b->w);
    const double sum = (double)(s->filters.segments * s->filters.k);
    const double panels = (double)b->panels;
    const double each = 1.0 / s->filters.kind.time->frames;
    const double weights = products * sum * 32.0 * panels;
    const double grains = (double)s->images * (double)hy3d__conv_ceil_div(s->frames, b->frames) *
                          (double)hy3d__conv_ceil_div(s->tiles_h, b->h) *
                          (double)hy3d__conv_ceil_div(s->tiles_w, b->w) *
                          (double)hy3d__conv_ceil_div(s->filters.panels, b->panels);
    const double threads = (double)limits->threads;
    const double rounds =
        grains < 64.0 * threads
            ? (double)hy3d__conv_ceil_div((int64_t)grains, (int64_t)limits->threads)
            : grains / threads;
    const hy3d__winograd_elems elems = hy3d__winograd_block_elems(s, b, limits->prepared);
    const int64_t groups = (int64_t)(rows + 13.0) / 14;
    return (hy3d__winograd_work){
        /* A group of up to 14 rows costs about half a row more than they do. */
        .products = products * sum * panels * (rows + 0.5 * (double)groups),
        .data = each * tiles *
                ((double)s->filters.points * (double)s->in_channels *
                     (double)(b->frames + s->kernel_t - 1) +
                 products * 32.0 * panels * (double)b->frames),
        .weights = weights,
        .made = limits->prepared ? 0.0 : weights,
        .grains = grains,
        .rounds = rounds,
        .bytes = block_bytes(&elems),
    };
}

/* Expected cycles of all grains on the threads there are, each grain counted as a full one. */
static double blocks_cost(const hy3d__winograd_sizes *s, const hy3d__winograd_limits *limits,
                          const hy3d__winograd_blocks *b)
{
    const cycles c = cycles_at(limits->level);
    const hy3d__winograd_work w = hy3d__winograd_work_of(s, limits, b);
    const double over = w.bytes / GOOD_BYTES - 1.0;

    return w.rounds *
           (c.product * w.products + c.data * w.data + c.weight * w.weights + c.filter * w.made +
            3000.0) *
           (1.0 + (over > 0.0 ? 0.03 * over : 0.0));
}

double hy3d__winograd_preparing_cost(const hy3d__winograd_sizes *s,
                                     const hy3d__winograd_limits *limits)
{
    const hy3d__winograd_filters *const f = &s->filters;
    const int64_t rounds = hy3d__conv_ceil_div(f->panels, (int64_t)limits->threads);
    return cycles_at(limits->level).filter * (double)rounds * (double)f->panel_elems *
           (double)f->products;
}

/* n cut into `parts` equal parts, or 0 where fewer parts give the same. */
static int64_t part_of(int64_t n, int64_t parts)
{
    const int64_t size = hy3d__conv_ceil_div(n, parts);
    return parts > 1 && hy3d__conv_ceil_div(n, parts - 1) == size ? 0 : size;
}

typedef struct search {
    const hy3d__winograd_sizes *sizes;
    const hy3d__winograd_limits *limits;
    hy3d__winograd_blocks best;
    double cost;        /* of best; negative: none yet */
    double least_bytes; /* of the smallest block seen, which is taken where none fits */
} search;

static void consider(search *found, const hy3d__winograd_blocks *b)
{
    const hy3d__winograd_elems elems =
        hy3d__winograd_block_elems(found->sizes, b, found->limits->prepared);
    const double bytes = block_bytes(&elems);
    const bool fits = bytes <= (double)found->limits->slot_bytes;

    if (fits) {
        const double cost = blocks_cost(found->sizes, found->limits, b);
        if (found->cost < 0.0 || cost < found->cost) {
            found->cost = cost;
            found->best = *b;
        }
    } else if (found->cost < 0.0 && (found->least_bytes <= 0.0 || bytes < found->least_bytes)) {
        found->least_bytes = bytes;
        found->best = *b;
    }
}

/* Panels of a grain and how many of them at once, for a block of tiles and frames. */
static void consider_panels(search *found, hy3d__winograd_blocks b)
{
    const int64_t panels = found->sizes->filters.panels;

    for (int64_t parts = 1; parts <= panels && parts <= 16; parts *= 2) {
        b.panels = hy3d__conv_ceil_div(panels, parts);
        /* Weights made while running are made a panel at a time. */
        b.panels_at_once = found->limits->prepared ? b.panels : 1;
        for (;; b.panels_at_once = 1) {
            consider(found, &b);
            if (b.panels_at_once == 1) {
                break;
            }
        }
    }
}

/* Less than any panels of the block cost: the data of all of them at once, the weights as they are,
 * no round that is not full. The last factor is for rounding. */
static double least_cost(const search *found, const cycles *c, const hy3d__winograd_blocks *b)
{
    const hy3d__winograd_limits all = {
        .level = found->limits->level, .threads = found->limits->threads, .prepared = true};
    hy3d__winograd_blocks one = *b;
    one.panels = one.panels_at_once = found->sizes->filters.panels;
    const hy3d__winograd_work w = hy3d__winograd_work_of(found->sizes, &all, &one);
    const double grains = w.grains / (double)all.threads;
    return grains * (c->product * w.products + c->data * w.data + c->weight * w.weights) * 0.999999;
}

double hy3d__winograd_best_blocks(const hy3d__winograd_sizes *sizes,
                                  const hy3d__winograd_limits *limits, double most,
                                  hy3d__winograd_blocks *blocks_out)
{
    search found = {.sizes = sizes, .limits = limits, .cost = most < 1e300 ? most : -1.0};
    const cycles c = cycles_at(limits->level);
    hy3d__winograd_blocks b = {0};

    for (int64_t t = 1; t <= sizes->frames && t <= 32; t++) {
        /* The smallest of all is tried in any case: else there may be none. */
        const int64_t part =
            t < 32 ? part_of(sizes->frames, t) : hy3d__conv_ceil_div(sizes->frames, t);
        const int64_t frames = hy3d__conv_round_up(part, sizes->filters.kind.time->frames);
        if (part == 0 || (part > 18 && t < 32) || frames == b.frames) {
            continue;
        }
        b.frames = frames;
        for (int64_t w = 1; w <= sizes->tiles_w && w <= 64; w *= 2) {
            b.w = hy3d__conv_ceil_div(sizes->tiles_w, w);
            for (int64_t h = 1; h <= 2 * sizes->tiles_h; h *= 2) {
                b.h = hy3d__conv_ceil_div(sizes->tiles_h, h);
                if (found.cost < 0.0 || least_cost(&found, &c, &b) < found.cost) {
                    consider_panels(&found, b);
                }
            }
        }
    }
    *blocks_out = found.best;
    return found.cost < 0.0 ? 1e300 : found.cost;
}

bool hy3d__winograd_fits(const hy3d__winograd_sizes *sizes, const hy3d__winograd_limits *limits)
{
    hy3d__winograd_blocks b = {.h = 1, .w = sizes->tiles_w, .panels = 1, .panels_at_once = 1};

    for (int64_t w = 1; w <= sizes->tiles_w && w <= 64; w *= 2) {
        b.w = hy3d__conv_ceil_div(sizes->tiles_w, w);
    }
    b.frames = sizes->frames < 32 ? 1 : hy3d__conv_ceil_div(sizes->frames, 32);
    b.frames = hy3d__conv_round_up(b.frames, sizes->filters.kind.time->frames);
    const hy3d__winograd_elems elems = hy3d__winograd_block_elems(sizes, &b, limits->prepared);
    return block_bytes(&elems) <= (double)limits->slot_bytes;
}
