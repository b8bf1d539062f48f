/* Which Winograd, if any, and which blocks. */
#include "conv3d/plan.h"

/* Each frame by itself; F(2,3) at 0, 1, -1; F(3,3) at +-1/2, +-5/4; F(2,2) of frames in twos at 0
 * and 1, where both of two have one product. All with infinity. docs/numerics.md has the errors. */
static const hy3d__winograd_time one = {
    .frames = 1,
    .reads = 1,
    .step = 1,
    .moments = 1,
    .data_moments = 1,
    .data = {{1, {0}, {1}}},
    .result = {{1, {0}, {1}}},
};
static const hy3d__winograd_time two = {
    .frames = 2,
    .reads = 4,
    .step = 2,
    .moments = 4,
    .data_moments = 4,
    .place = {0, 1, 2, 3},
    .data = {{2, {0, 2}, {1, -1}}, {2, {1, 2}, {1, 1}}, {2, {2, 1}, {1, -1}}, {2, {1, 3}, {1, -1}}},
    .filter = {{1, 0, 0}, {0.5F, 0.5F, 0.5F}, {0.5F, -0.5F, 0.5F}, {0, 0, 1}},
    .result = {{3, {0, 1, 2}, {1, 1, 1}}, {3, {1, 2, 3}, {1, -1, -1}}},
};
static const hy3d__winograd_time three = {
    .frames = 3,
    .reads = 5,
    .step = 3,
    .moments = 5,
    .data_moments = 5,
    .place = {0, 1, 2, 3, 4},
    .data = {{4, {0, 1, 2, 3}, {-0.78125F, -1.5625F, 0.5F, 1}},
             {4, {0, 1, 2, 3}, {0.78125F, -1.5625F, -0.5F, 1}},
             {4, {0, 1, 2, 3}, {-0.3125F, -0.25F, 1.25F, 1}},
             {4, {0, 1, 2, 3}, {0.3125F, -0.25F, -1.25F, 1}},
             {3, {0, 2, 4}, {0.390625F, -1.8125F, 1}}},
    .filter = {{-16.0F / 21, -8.0F / 21, -4.0F / 21},
               {16.0F / 21, -8.0F / 21, 4.0F / 21},
               {32.0F / 105, 8.0F / 21, 10.0F / 21},
               {-32.0F / 105, 8.0F / 21, -10.0F / 21},
               {0, 0, 1}},
    .result = {{4, {0, 1, 2, 3}, {1, 1, 1, 1}},
               {4, {0, 1, 2, 3}, {0.5F, -0.5F, 1.25F, -1.25F}},
               {5, {0, 1, 2, 3, 4}, {0.25F, 0.25F, 1.5625F, 1.5625F, 1}}},
};
static const hy3d__winograd_time twice = {
    .frames = 4,
    .reads = 3,
    .step = 2,
    .moments = 5,
    .data_moments = 3,
    .place = {0, 0, 1, 2, 2},
    .data = {{2, {0, 1}, {1, -1}}, {1, {1}, {1}}, {2, {2, 1}, {1, -1}}},
    .filter = {{1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {0, 1, 1}, {0, 0, 1}},
    .result = {{2, {1, 2}, {1, 1}}, {2, {0, 2}, {1, 1}}, {2, {2, 4}, {1, 1}}, {2, {2, 3}, {1, 1}}},
};

/* Kinds by format: 1, 2, ... */
#define PLAIN(m, points, way) {(m), (points), (points), (m), false, (way)}
#define UP(way) {6, 4, 7, 3, true, (way)}
static const hy3d__winograd_kind kinds[] = {
    PLAIN(4, 6, &one), PLAIN(4, 6, &two), PLAIN(5, 7, &one),   PLAIN(5, 7, &two),   UP(&one),
    UP(&two),          UP(&twice),        PLAIN(4, 6, &three), PLAIN(5, 7, &three), UP(&three),
};
static const char *const names[] = {
    "winograd-4x4",    "winograd-2x4x4",    "winograd-5x5",      "winograd-2x5x5",
    "winograd-up-6x6", "winograd-up-2x6x6", "winograd-up-4x6x6", "winograd-3x4x4",
    "winograd-3x5x5",  "winograd-up-3x6x6",
};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

/* Fewer channels than this leave lanes and sums too short to pay for the transforms. */
#define LEAST_CHANNELS 16
/* Of weights that a plan prepares for itself. */
#define MOST_OWN_BYTES ((size_t)64 << 20)
/* Expected cycles against the direct way's: below, the doubt about both decides for exactness. */
#define WORTH 0.85

bool hy3d__winograd_kind_of(hy3d_conv3d_format format, hy3d__winograd_kind *kind_out)
{
    if (format < 1 || format > KINDS) {
        return false;
    }
    *kind_out = kinds[format - 1];
    return true;
}

hy3d_conv3d_format hy3d__winograd_format(const hy3d__winograd_kind *kind)
{
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].m == kind->m && kinds[i].time == kind->time) {
            return (hy3d_conv3d_format)(i + 1);
        }
    }
    return HY3D_FORMAT_NONE;
}

const char *hy3d__winograd_format_name(hy3d_conv3d_format format)
{
    return format < 1 || format > KINDS ? NULL : names[format - 1];
}

hy3d__winograd_filters hy3d__winograd_filters_of(hy3d__winograd_kind kind, int64_t out_channels,
                                                 int64_t in_channels, int64_t kernel_t)
{
    hy3d__winograd_filters f = {
        .kind = kind,
        .products = (int64_t)kind.n_products * kind.n_products * kind.time->moments,
        .points = (int64_t)kind.n * kind.n * kind.time->data_moments,
        .segments = kind.time->moments == 1 ? kernel_t : 1,
        .k = hy3d__conv_round_up(in_channels, 16),
        .panels = hy3d__conv_ceil_div(out_channels, 32),
    };
    f.panel_elems = f.segments * f.k * 32;
    f.product_elems = hy3d__winograd_pitch(f.panels * f.panel_elems);
    /* Sums of about 192 terms; 128 for several frames at once, whose 196 to 245 products of a chunk
     * of weights are 3 MB as it is. Equal chunks. */
    const int64_t most = kind.time->moments != 1 ? 128 : 192 / kernel_t;
    f.chunk = hy3d__conv_ceil_div(f.k, hy3d__conv_ceil_div(f.k, most));
    f.chunk = hy3d__conv_round_up(f.chunk, 16);
    return f;
}

/* What Winograd can compute at all. */
static bool is_possible(const hy3d_conv3d_desc *desc, const int64_t out[3])
{
    const double positions = (double)out[0] * (double)out[1] * (double)out[2];

    for (int i = 0; i < 3; i++) {
        if (desc->stride[i] != 1 || desc->dilation[i] != 1) {
            return false;
        }
    }
    return desc->accuracy == HY3D_FAST && desc->dtype != HY3D_F64 && desc->groups == 1 &&
           desc->kernel[0] <= 3 && desc->kernel[1] == 3 && desc->kernel[2] == 3 &&
           desc->in_channels >= LEAST_CHANNELS && desc->out_channels >= LEAST_CHANNELS &&
           /* So that sizes of blocks stay far from overflow. */
           desc->in_channels <= (1 << 20) && desc->out_channels <= (1 << 20) &&
           positions * (double)desc->in_channels <= 1e14 &&
           positions * (double)desc->out_channels <= 1e14;
}

hy3d__winograd_sizes hy3d__winograd_sizes_of(const hy3d_conv3d_desc *desc, const int64_t out[3],
                                             hy3d__winograd_kind kind)
{
    hy3d__winograd_sizes s = {
        .filters =
            hy3d__winograd_filters_of(kind, desc->out_channels, desc->in_channels, desc->kernel[0]),
        .in_channels = desc->in_channels,
        .kernel_t = desc->kernel[0],
        .images = desc->batch,
    };
    /* Whole tiles of an up-sampled input begin with the second of two equal positions. */
    s.lead[0] = kind.time == &twice ? hy3d__conv_pairs(desc) - 1 : 0;
    for (int i = 1; kind.is_upsampled && i < 3; i++) {
        s.lead[i] = desc->pad_before[i] % 2 == 0 ? 0 : 1; /* -1: the first copy is cropped */
    }
    s.frames = out[0] + s.lead[0];
    s.tiles_h = hy3d__conv_ceil_div(out[1] + s.lead[1], kind.m);
    s.tiles_w = hy3d__conv_ceil_div(out[2] + s.lead[2], kind.m);
    return s;
}

/* Whether the kind can compute what Winograd can compute at all. */
static bool suits(const hy3d__winograd_kind *kind, const hy3d_conv3d_desc *desc,
                  const int64_t out[3])
{
    const bool is_time_padded = desc->pad_before[0] != 0 || desc->pad_after[0] != 0;

    return (kind->time->moments == 1 || (desc->kernel[0] == 3 && out[0] > 1)) &&
           (!kind->is_upsampled || (desc->upsample[1] == 2 && desc->upsample[2] == 2)) &&
           (kind->time != &twice || (hy3d__conv_pairs(desc) != 0 && !is_time_padded));
}

/* A format must not depend on whether weights were prepared, so room to make a panel of them while
 * running is asked for in any case. */
static bool fits_unprepared(const hy3d_conv3d_desc *desc, const int64_t out[3],
                            hy3d_cpu_level level, hy3d__winograd_kind kind)
{
    const hy3d__winograd_sizes sizes = hy3d__winograd_sizes_of(desc, out, kind);
    const hy3d__winograd_limits limits = {
        .level = level, .threads = 1, .slot_bytes = HY3D__WINOGRAD_SLOT_BYTES, .prepared = false};

    return hy3d__winograd_fits(&sizes, &limits);
}

bool hy3d__winograd_choose(const hy3d_conv3d_desc *desc, const int64_t out[3], hy3d_cpu_level level,
                           hy3d__winograd_kind *kind_out)
{
    double best = WORTH * hy3d__winograd_direct_cost(desc, out, level);
    bool found = false;

    if (!is_possible(desc, out)) {
        return false;
    }
    /* The last ones are the fastest as a rule, and what costs more than they do is soon given
     * up. */
    for (int i = KINDS - 1; i >= 0; i--) {
        if (!suits(&kinds[i], desc, out)) {
            continue;
        }
        const hy3d__winograd_sizes sizes = hy3d__winograd_sizes_of(desc, out, kinds[i]);
        const hy3d__winograd_limits limits = {.level = level,
                                              .threads = 1,
                                              .slot_bytes = HY3D__WINOGRAD_SLOT_BYTES,
                                              .prepared = true};
        hy3d__winograd_blocks blocks;
        const double cost = hy3d__winograd_best_blocks(&sizes, &limits, best, &blocks);
        if (cost < best) {
            best = cost;
            *kind_out = kinds[i];
            found = true;
        }
    }
    return found && fits_unprepared(desc, out, level, *kind_out);
}

void hy3d__winograd_use_blocks(hy3d_conv3d_plan *plan, const hy3d__winograd_sizes *sizes,
                               const hy3d__winograd_blocks *blocks, bool is_prepared)
{
    hy3d__conv_winograd *const d = &plan->winograd;

    d->blocks = *blocks;
    d->sizes = *sizes;
    d->blocks_h = hy3d__conv_ceil_div(sizes->tiles_h, d->blocks.h);
    d->blocks_w = hy3d__conv_ceil_div(sizes->tiles_w, d->blocks.w);
    d->blocks_t = hy3d__conv_ceil_div(sizes->frames, d->blocks.frames);
    d->blocks_m = hy3d__conv_ceil_div(sizes->filters.panels, d->blocks.panels);
    d->elems = hy3d__winograd_block_elems(sizes, &d->blocks, is_prepared);
    plan->grains = plan->desc.batch * d->blocks_t * d->blocks_h * d->blocks_w * d->blocks_m;
    plan->input_bytes =
        (size_t)(d->elems.v + d->elems.r + d->elems.strips + d->elems.u) * sizeof(float);
    plan->result_bytes = 0;
}

void hy3d__winograd_plan(hy3d_conv3d_plan *plan, hy3d__winograd_kind kind, uint32_t threads)
{
    const size_t limit = plan->desc.workspace_limit_bytes;
    const hy3d__winograd_sizes sizes = hy3d__winograd_sizes_of(&plan->desc, plan->out, kind);
    const size_t share = limit == 0 ? HY3D__WINOGRAD_SLOT_BYTES : limit / threads;
    hy3d__winograd_limits limits = {
        .level = plan->level,
        .threads = threads,
        .slot_bytes = share < HY3D__WINOGRAD_SLOT_BYTES ? share : HY3D__WINOGRAD_SLOT_BYTES,
        .prepared = plan->prepared != NULL,
    };
    hy3d__winograd_blocks blocks, others;
    const double cost = hy3d__winograd_best_blocks(&sizes, &limits, 1e300, &blocks);

    /* Where every grain would make the same weights, the plan makes them once; and where there is
     * no room for a grain to make them: what a limit allows with them it must allow again. */
    plan->own_format = HY3D_FORMAT_NONE;
    if (!limits.prepared && !plan->is_short) {
        const hy3d_conv3d_format format = hy3d__winograd_format(&kind);
        const size_t bytes = hy3d__winograd_format_bytes(format, plan->desc.out_channels,
                                                         plan->desc.in_channels, plan->desc.kernel);
        const bool fits = cost < 1e300;
        limits.prepared = true;
        const double left = fits ? cost - hy3d__winograd_preparing_cost(&sizes, &limits) : 1e300;
        if (bytes <= MOST_OWN_BYTES && left > 0.0 &&
            (hy3d__winograd_best_blocks(&sizes, &limits, left, &others) < left || !fits)) {
            plan->own_format = format;
            plan->own_bytes += bytes + sizeof *plan->own_prepared;
            blocks = others;
        } else {
            limits.prepared = false;
        }
    }
    hy3d__winograd_use_blocks(plan, &sizes, &blocks, limits.prepared);
}
