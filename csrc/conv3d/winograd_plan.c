/* Which Winograd, if any, and which blocks. */
#include "conv3d/plan.h"

/* Kinds by format: 1, 2, ... */
static const hy3d__winograd_kind kinds[] = {
    {.m = 4, .n = 6, .moments = 1},
    {.m = 4, .n = 6, .moments = 4},
    {.m = 5, .n = 7, .moments = 1},
    {.m = 5, .n = 7, .moments = 4},
};
static const char *const names[] = {"winograd-4x4", "winograd-2x4x4", "winograd-5x5",
                                    "winograd-2x5x5"};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

/* Fewer channels than this leave lanes and sums too short to pay for the transforms. */
#define LEAST_CHANNELS 16
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
        if (kinds[i].m == kind->m && kinds[i].moments == kind->moments) {
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
        .products = (int64_t)kind.n * kind.n * kind.moments,
        .segments = kind.moments == 1 ? kernel_t : 1,
        .k = hy3d__conv_round_up(in_channels, 16),
        .panels = hy3d__conv_ceil_div(out_channels, 32),
    };
    f.panel_elems = f.segments * f.k * 32;
    /* Sums of about 192 terms; 128 for pairs of frames, whose 196 products of a chunk of weights
     * are 3 MB as it is. Equal chunks. */
    const int64_t most = kind.moments != 1 ? 128 : 192 / kernel_t;
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
    return (hy3d__winograd_sizes){
        .filters =
            hy3d__winograd_filters_of(kind, desc->out_channels, desc->in_channels, desc->kernel[0]),
        .in_channels = desc->in_channels,
        .kernel_t = desc->kernel[0],
        .frames = out[0],
        .tiles_h = hy3d__conv_ceil_div(out[1], kind.m),
        .tiles_w = hy3d__conv_ceil_div(out[2], kind.m),
        .images = desc->batch,
    };
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
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].moments != 1 && (desc->kernel[0] != 3 || out[0] < 2)) {
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
                               const hy3d__winograd_blocks *blocks)
{
    hy3d__conv_winograd *const d = &plan->winograd;

    d->blocks = *blocks;
    d->filters = sizes->filters;
    d->tiles_h = sizes->tiles_h;
    d->tiles_w = sizes->tiles_w;
    d->blocks_h = hy3d__conv_ceil_div(d->tiles_h, d->blocks.h);
    d->blocks_w = hy3d__conv_ceil_div(d->tiles_w, d->blocks.w);
    d->blocks_t = hy3d__conv_ceil_div(plan->out[0], d->blocks.frames);
    d->blocks_m = hy3d__conv_ceil_div(d->filters.panels, d->blocks.panels);
    d->elems = hy3d__winograd_block_elems(sizes, &d->blocks, plan->prepared != NULL);
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
    const hy3d__winograd_limits limits = {
        .level = plan->level,
        .threads = threads,
        .slot_bytes = share < HY3D__WINOGRAD_SLOT_BYTES ? share : HY3D__WINOGRAD_SLOT_BYTES,
        .prepared = plan->prepared != NULL,
    };
    hy3d__winograd_blocks blocks;

    (void)hy3d__winograd_best_blocks(&sizes, &limits, 1e300, &blocks);
    hy3d__winograd_use_blocks(plan, &sizes, &blocks);
}
