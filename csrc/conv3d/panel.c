/* Panel convolution: K-blocks of im2col for a block of output positions, multiplied by GEMM and
 * summed in a result tile. For f64 and for shapes that the direct way does not suit. */
#include "conv3d/plan.h"

#include "base/blas.h"

#define M_BLOCK 256
#define PANEL_COLS 512
#define PANEL_K 384

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

static void cut(hy3d_conv3d_plan *plan, uint32_t threads)
{
    hy3d__conv_panel *const d = &plan->panel;
    const int64_t positions = plan->out[0] * plan->out[1] * plan->out[2];
    const int64_t m_limit = plan->k > INT32_MAX ? 1 : M_BLOCK;

    (void)threads;
    d->m_blocks = hy3d__conv_ceil_div(plan->m, m_limit);
    d->m_block = hy3d__conv_ceil_div(plan->m, d->m_blocks);
    d->n_block = hy3d__conv_ceil_div(positions, hy3d__conv_ceil_div(positions, PANEL_COLS));
    d->n_blocks = hy3d__conv_ceil_div(positions, d->n_block);
    d->k_block = hy3d__conv_ceil_div(plan->k, hy3d__conv_ceil_div(plan->k, PANEL_K));
    plan->grains = plan->desc.batch * plan->desc.groups * d->n_blocks * d->m_blocks;
    plan->input_bytes = (size_t)(d->k_block * d->n_block) * plan->compute_bytes;
    plan->result_bytes = (size_t)(d->m_block * d->n_block) * plan->compute_bytes;
}

/* Output position p of the flattened (T, H, W). */
static void position(const int64_t out[3], int64_t p, int64_t at[3])
{
    at[2] = p % out[2];
    at[1] = p / out[2] % out[1];
    at[0] = p / out[2] / out[1];
}

/* One panel row: input of tap (kt, kh, kw) of one channel for positions [p0, p0 + n). */
static void pack_row(const hy3d__conv_run *run, int64_t image, int64_t channel,
                     const int64_t tap[3], int64_t p0, int64_t n, unsigned char *dst)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d_conv3d_desc *const desc = &plan->desc;
    int64_t at[3];

    position(plan->out, p0, at);
    while (n > 0) {
        const int64_t count = hy3d__conv_min(n, plan->out[2] - at[2]);
        int64_t in[3];
        for (int i = 0; i < 3; i++) {
            in[i] = at[i] * desc->stride[i] + tap[i] * desc->dilation[i] - desc->pad_before[i];
        }
        const hy3d_conv3d_frame frame = hy3d__conv_source_frame(run, image, in[0]);
        const hy3d__conv_line line = hy3d__conv_source_line(run, &frame, channel, in[1]);
        hy3d__conv_load_line(plan->kernels, &line, in[2], desc->stride[2], count, dst);
        dst += (size_t)count * plan->compute_bytes;
        n -= count;
        at[2] = 0;
        if (++at[1] == plan->out[1]) {
            at[1] = 0;
            at[0]++;
        }
    }
}

/* Rows [k0, k0 + count) of the panel, n positions from p0. */
static void pack_panel(const hy3d__conv_run *run, int64_t image, int64_t first_channel, int64_t k0,
                       int64_t count, int64_t p0, int64_t n, unsigned char *panel)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    const int64_t *const kernel = plan->desc.kernel;

    for (int64_t k = k0; k < k0 + count; k++) {
        const int64_t tap_index = k % plan->taps;
        const int64_t tap[3] = {tap_index / kernel[2] / kernel[1],
                                tap_index / kernel[2] % kernel[1], tap_index % kernel[2]};
        pack_row(run, image, first_channel + k / plan->taps, tap, p0, n, panel);
        panel += (size_t)n * plan->compute_bytes;
    }
}

static void multiply(const hy3d_conv3d_plan *plan, int64_t m, int64_t m_count, int64_t k0,
                     int64_t k_count, int64_t n, const void *panel, void *result)
{
    const hy3d__gemm_args args = {
        .m = (int32_t)m_count,
        .n = (int32_t)n,
        .k = (int32_t)k_count,
        .a = (const unsigned char *)plan->weight + (size_t)(m * plan->k + k0) * plan->compute_bytes,
        /* A sum of 2^31 terms or more has blocks of one row, whose pitch does not matter. */
        .lda = (int32_t)(m_count == 1 ? k_count : plan->k),
        .b = panel,
        .ldb = (int32_t)n,
        .accumulate = k0 > 0,
        .c = result,
        .ldc = (int32_t)n,
    };
    if (plan->compute_bytes == sizeof(double)) {
        hy3d__dgemm(plan->context, &args);
    } else {
        hy3d__sgemm(plan->context, &args);
    }
}

static void add_bias(const hy3d_conv3d_plan *plan, int64_t m, int64_t m_count, int64_t n,
                     void *result)
{
    for (int64_t r = 0; r < m_count; r++) {
        if (plan->compute_bytes == sizeof(double)) {
            const double bias = ((const double *)plan->bias)[m + r];
            double *const row = (double *)result + r * n;
            for (int64_t i = 0; i < n; i++) {
                row[i] += bias;
            }
        } else {
            const float bias = ((const float *)plan->bias)[m + r];
            float *const row = (float *)result + r * n;
            for (int64_t i = 0; i < n; i++) {
                row[i] += bias;
            }
        }
    }
}

/* Line by line: a block of positions may begin and end inside a row. */
static void store_block(const hy3d__conv_run *run, int64_t image, int64_t m, int64_t m_count,
                        int64_t p0, int64_t n, const unsigned char *result)
{
    const hy3d_conv3d_plan *const plan = run->plan;
    int64_t at[3];
    int64_t done = 0;

    position(plan->out, p0, at);
    while (done < n) {
        const hy3d__conv_result stored = {
            .data = result + (size_t)done * plan->compute_bytes,
            .at = {image, m, at[0], at[1], at[2]},
            .channels = m_count,
            .rows = 1,
            .cols = hy3d__conv_min(n - done, plan->out[2] - at[2]),
            .channel_pitch = n,
            .residual = run->fusion->residual,
        };
        hy3d__conv_store(plan->kernels, run->y, &stored);
        done += stored.cols;
        position(plan->out, p0 + done, at);
    }
}

static hy3d_status run_grain(void *argument, int64_t grain, uint32_t slot)
{
    const hy3d__conv_run *const run = argument;
    const hy3d_conv3d_plan *const plan = run->plan;
    const hy3d__conv_panel *const d = &plan->panel;
    unsigned char *const panel = run->workspace + plan->slot_bytes * slot;
    unsigned char *const result = panel + plan->input_bytes;
    const int64_t positions = plan->out[0] * plan->out[1] * plan->out[2];
    const int64_t m_index = grain % d->m_blocks;
    grain /= d->m_blocks;
    const int64_t p0 = grain % d->n_blocks * d->n_block;
    grain /= d->n_blocks;
    const int64_t group = grain % plan->desc.groups;
    const int64_t image = grain / plan->desc.groups;
    const int64_t n = hy3d__conv_min(d->n_block, positions - p0);
    const int64_t m = group * plan->m + m_index * d->m_block;
    const int64_t m_count = hy3d__conv_min(d->m_block, plan->m - m_index * d->m_block);

    for (int64_t k0 = 0; k0 < plan->k; k0 += d->k_block) {
        const int64_t k_count = hy3d__conv_min(d->k_block, plan->k - k0);
        if (hy3d_cancel_requested(run->cancel)) {
            return HY3D_ERR_CANCELLED;
        }
        pack_panel(run, image, group * plan->c, k0, k_count, p0, n, panel);
        multiply(plan, m, m_count, k0, k_count, n, panel, result);
    }
    add_bias(plan, m, m_count, n, result);
    store_block(run, image, m, m_count, p0, n, result);
    return HY3D_OK;
}

const hy3d__conv_strategy hy3d__conv_panel_strategy = {
    .name = name,
    .choose = choose,
    .cut = cut,
    .run = run_grain,
    .needs_blas = true,
};
