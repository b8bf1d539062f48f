/* Which blocks of the direct strategy. Everything here follows from sizes alone, never from threads
 * or the workspace limit: the cut into grains fixes the order of every sum. */
#include "conv3d/plan.h"

/* Elements. Tile, result tile and a block of weights share an L2 of 1 to 2 MiB. */
#define TILE_ELEMS (96 * 1024)
#define RESULT_ELEMS (128 * 1024)
/* The longest sum kept in registers: long enough that adding it to the result tile costs 1 %,
 * short enough that the lines of one column of vectors stay in L1. */
#define DIRECT_BLOCK_K 432
/* Lines of the tile that one call reads: 48 lanes of each are 25 KiB, half of L1. */
#define CALL_LINES 108
#define DIRECT_MAX_TAPS 4096
#define DIRECT_MIN_POSITIONS 16
/* One output position in flight per lane and more columns than this gain nothing. */
#define MAX_COLS 640
#define M_BLOCK 256

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static hy3d__conv_axis make_axis(const hy3d_conv3d_desc *desc, int i, bool per_tap)
{
    hy3d__conv_axis axis = {.taps = desc->kernel[i],
                            .stride = desc->stride[i],
                            .dilation = desc->dilation[i],
                            .per_tap = per_tap,
                            .phases = desc->kernel[i]};

    if (!per_tap) {
        /* tap * dilation mod stride repeats after this many taps. */
        axis.phases =
            hy3d__min_i64(axis.taps, axis.stride / gcd(axis.stride, axis.dilation % axis.stride));
        axis.halo = (axis.taps - 1) * axis.dilation / axis.stride;
    }
    return axis;
}

/* Entries of the tile along an axis for n outputs. */
static int64_t axis_entries(const hy3d__conv_axis *axis, int64_t n)
{
    return axis->phases * (n + axis->halo);
}

/* Taps of a strongly dilated kernel are further apart than the outputs of a grain: then each gets
 * lines of its own. */
static hy3d__conv_axis best_axis(const hy3d_conv3d_desc *desc, int i, int64_t n)
{
    const hy3d__conv_axis shared = make_axis(desc, i, false);
    const hy3d__conv_axis own = make_axis(desc, i, true);
    return shared.halo > TILE_ELEMS || axis_entries(&own, n) <= axis_entries(&shared, n) ? own
                                                                                         : shared;
}

static int64_t run_vectors(const hy3d__conv_direct *d, int64_t rows, int64_t cols)
{
    if (d->by_row) {
        return rows * hy3d__conv_ceil_div(cols, HY3D__CONV_LANES);
    }
    return hy3d__conv_ceil_div((rows - 1) * d->row_pitch + cols, HY3D__CONV_LANES);
}

/* Pitches that follow from the axes, rows, cols and by_row. Powers of two would put the lines of
 * all channels into the same few sets of L1. */
static void set_pitches(const hy3d_conv3d_plan *plan, hy3d__conv_direct *d)
{
    d->row_pitch = d->cols + d->w.halo;
    d->phase_w_pitch = (d->rows + d->h.halo) * d->row_pitch;
    d->phase_h_pitch = d->w.phases * d->phase_w_pitch;
    d->plane_pitch = d->h.phases * d->phase_h_pitch;
    d->channel_pitch = hy3d__conv_round_up(plan->desc.kernel[0] * d->plane_pitch, HY3D__CONV_LANES);
    d->channel_pitch += d->channel_pitch % 256 == 0 ? HY3D__CONV_LANES : 0;
    d->c_pitch = HY3D__CONV_LANES * run_vectors(d, d->rows, d->cols);
    d->c_pitch += d->c_pitch % 256 == 0 ? HY3D__CONV_LANES : 0;
}

/* Estimated cycles of the grains of `rows` rows of one plane, relative to others of its shape. */
static double rows_cost(const hy3d_conv3d_plan *plan, const hy3d__conv_direct *d, int64_t rows)
{
    const double m = (double)plan->m;
    const double lines = (double)(plan->desc.kernel[0] * d->h.phases * d->w.phases * plan->c);
    const double vectors = hy3d__conv_vectors_cost(run_vectors(d, rows, d->cols));
    const double packed = lines * (double)(rows + d->h.halo) * (20.0 + 0.25 * (double)d->row_pitch);
    /* Half a cycle a multiply-add of one vector; 20 cycles a line and 4 elements a cycle to pack;
     * weights come from L3 once a grain at about 8 bytes a cycle. */
    return 0.5 * vectors * m * (double)plan->k +
           100.0 / 24.0 * vectors * m * (double)hy3d__conv_ceil_div(plan->c, d->c_block) +
           (double)d->m_blocks * packed + 0.5 * m * (double)plan->k + 3000.0 * (double)d->m_blocks;
}

/* Of a whole plane. */
static double plane_cost(const hy3d_conv3d_plan *plan, const hy3d__conv_direct *d)
{
    const int64_t left = plan->out[1] % d->rows;
    const int64_t tiles = plan->out[1] / d->rows;
    const double whole = (double)tiles * rows_cost(plan, d, d->rows);

    return (whole + (left > 0 ? rows_cost(plan, d, left) : 0.0)) * (double)d->col_blocks;
}

/* The part of four threads' time that an uneven number of equal grains leaves unused. */
static double imbalance(const hy3d_conv3d_plan *plan, const hy3d__conv_direct *d)
{
    const double grains = (double)d->m_blocks * (double)d->row_blocks * (double)d->col_blocks *
                          (double)plan->out[0] * (double)plan->desc.groups *
                          (double)(plan->desc.batch > 0 ? plan->desc.batch : 1);
    if (grains > 64.0) {
        return 1.0;
    }
    const int64_t whole = (int64_t)grains;
    return (double)(hy3d__conv_ceil_div(whole, 4) * 4) / grains;
}

/* Completes a candidate; false where it does not fit into the cache budget. */
static bool complete(const hy3d_conv3d_plan *plan, hy3d__conv_direct *d)
{
    d->h = best_axis(&plan->desc, 1, d->rows);
    if (d->h.halo > TILE_ELEMS || d->w.halo > TILE_ELEMS || d->h.phases > TILE_ELEMS ||
        d->w.phases > TILE_ELEMS) {
        return false;
    }
    d->row_blocks = hy3d__conv_ceil_div(plan->out[1], d->rows);
    set_pitches(plan, d);
    if (d->plane_pitch > TILE_ELEMS || d->channel_pitch > TILE_ELEMS ||
        hy3d__conv_round_up(d->m_block, HY3D__CONV_ROWS) * d->c_pitch > RESULT_ELEMS) {
        return false;
    }
    d->c_block = hy3d__min_i64(plan->c, TILE_ELEMS / d->channel_pitch);
    d->c_block = hy3d__min_i64(d->c_block, CALL_LINES / (plan->desc.kernel[0] * d->h.taps *
                                                         (d->w.per_tap ? d->w.taps : 1)));
    d->c_block = hy3d__min_i64(d->c_block, DIRECT_BLOCK_K / plan->taps);
    d->c_block = d->c_block < 1 ? 1 : d->c_block;
    d->c_block = hy3d__conv_ceil_div(plan->c, hy3d__conv_ceil_div(plan->c, d->c_block));
    return true;
}

/* The best rows for given m_block, axis w and by_row. */
static void try_rows(const hy3d_conv3d_plan *plan, hy3d__conv_direct candidate, double *best_cost,
                     hy3d__conv_direct *best)
{
    const int64_t most = RESULT_ELEMS / candidate.m_block / candidate.cols + 1;
    int64_t tried = 0;

    /* From the most rows that fit the result tile: a plane may have 2^40 of them. */
    for (int64_t rows = hy3d__min_i64(most, plan->out[1]); rows > 0 && tried < 64; rows--) {
        candidate.rows = rows;
        if (rows != hy3d__conv_ceil_div(plan->out[1], hy3d__conv_ceil_div(plan->out[1], rows)) ||
            !complete(plan, &candidate)) {
            continue;
        }
        tried++;
        const double cost = plane_cost(plan, &candidate) * imbalance(plan, &candidate);
        if (*best_cost <= 0.0 || cost < *best_cost) {
            *best_cost = cost;
            *best = candidate;
        }
    }
}

bool hy3d__direct_choose(hy3d_conv3d_plan *plan)
{
    hy3d__conv_direct candidate = {0};
    double cost = 0.0;
    const int64_t m_first = hy3d__conv_ceil_div(plan->m, M_BLOCK);

    if (plan->compute_bytes != sizeof(float) || plan->taps > DIRECT_MAX_TAPS ||
        plan->out[1] * plan->out[2] < DIRECT_MIN_POSITIONS) {
        return false;
    }
    candidate.col_blocks = hy3d__conv_ceil_div(plan->out[2], MAX_COLS);
    candidate.cols = hy3d__conv_round_up(hy3d__conv_ceil_div(plan->out[2], candidate.col_blocks),
                                         candidate.col_blocks > 1 ? HY3D__CONV_LANES : 1);
    candidate.col_blocks = hy3d__conv_ceil_div(plan->out[2], candidate.cols);
    for (int64_t parts = m_first; parts < m_first + 8; parts++) {
        candidate.m_block =
            hy3d__conv_round_up(hy3d__conv_ceil_div(plan->m, parts), HY3D__CONV_ROWS);
        candidate.m_blocks = hy3d__conv_ceil_div(plan->m, candidate.m_block);
        if (candidate.m_blocks != parts || (parts > m_first && candidate.m_block < 64)) {
            continue;
        }
        for (int mode = 0; mode < 3; mode++) {
            candidate.by_row = mode == 0;
            candidate.w = mode == 2 ? make_axis(&plan->desc, 2, true)
                                    : best_axis(&plan->desc, 2, candidate.cols);
            try_rows(plan, candidate, &cost, &plan->direct);
        }
    }
    return cost > 0.0;
}

/* No number of grains overflows, here and in the other strategies: each has an element of the
 * output at least, and those are below 2^60 (check.c). */
void hy3d__direct_cut(hy3d_conv3d_plan *plan, uint32_t threads)
{
    hy3d__conv_direct *const d = &plan->direct;

    (void)threads;
    plan->block_k = d->c_block * plan->taps;
    d->tile_elems = d->c_block * d->channel_pitch + HY3D__CONV_LANES * (HY3D__CONV_VECTORS + 1);
    plan->grains = plan->desc.batch * plan->desc.groups * plan->out[0] * d->row_blocks *
                   d->col_blocks * d->m_blocks;
    plan->input_bytes = (size_t)d->tile_elems * sizeof(float);
    plan->result_bytes =
        (size_t)(hy3d__conv_round_up(d->m_block, HY3D__CONV_ROWS) * d->c_pitch) * sizeof(float);
}
