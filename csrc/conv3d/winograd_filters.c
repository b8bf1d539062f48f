/* Weights to the points, 16 output channels a vector. */
#include "conv3d/plan.h"

#include <string.h>

#include "base/checked.h"
#include "elements/elements.h"

/* Input channels at once: the lines of 16 output channels are read in runs of this many filters. */
#define CHANNELS 8

/* Whether all of an output channel's values follow each other. */
static bool is_run(const hy3d_tensor *weight)
{
    const int64_t *const stride = weight->stride;
    return stride[4] == 1 && stride[3] == 3 && stride[2] == 9 && stride[1] == 9 * weight->size[2];
}

/* `count` input channels of one output channel from c0 on, all taps, in index order. */
static void load_filter(const hy3d__kernels *kernels, const hy3d_tensor *weight, int64_t m,
                        int64_t c0, int64_t count, float *dst)
{
    const int64_t *const stride = weight->stride;
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(weight->dtype);
    const unsigned char *const base = (const unsigned char *)weight->data + m * stride[0] * bytes;

    if (is_run(weight)) {
        hy3d__read_elements(kernels, weight->dtype, base + c0 * stride[1] * bytes, 1,
                            count * stride[1], dst);
        return;
    }
    for (int64_t c = c0; c < c0 + count; c++) {
        for (int64_t t = 0; t < weight->size[2]; t++) {
            for (int64_t h = 0; h < 3; h++) {
                const int64_t at = c * stride[1] + t * stride[2] + h * stride[3];
                hy3d__read_elements(kernels, weight->dtype, base + at * bytes, stride[4], 3, dst);
                dst += 3;
            }
        }
    }
}

/* 16 output channels from m on, `count` input channels from c0 on, to vectors of output channels;
 * zeros beyond the last of either. */
static void load_lanes(const hy3d__kernels *kernels, const hy3d_tensor *weight, int64_t m,
                       int64_t c0, int64_t count, float *lines, float *lanes)
{
    const int64_t taps = 9 * weight->size[2];
    const int64_t pitch = CHANNELS * taps;
    const int64_t there = hy3d__max_i64(0, hy3d__min_i64(count, weight->size[1] - c0));

    if (weight->dtype == HY3D_F32 && is_run(weight) && there == count &&
        m + 16 <= weight->size[0] && weight->stride[0] > 0) {
        kernels->to_lanes_f32((size_t)(count * taps),
                              (const float *)weight->data + m * weight->stride[0] + c0 * taps,
                              (size_t)weight->stride[0], lanes);
        return;
    }
    for (int64_t l = 0; l < 16; l++) {
        float *const line = lines + l * pitch;
        const int64_t loaded = m + l < weight->size[0] ? there : 0;
        if (loaded > 0) {
            load_filter(kernels, weight, m + l, c0, loaded, line);
        }
        memset(line + loaded * taps, 0, (size_t)((count - loaded) * taps) * sizeof *line);
    }
    kernels->to_lanes_f32((size_t)(count * taps), lines, (size_t)pitch, lanes);
}

/* 16 output channels from m on, input channels [c0, c0 + count) of one chunk of `length`, to u: of
 * channel c0 in the first segment. */
static void make_block(const hy3d__kernels *kernels, const hy3d__winograd_filters *filters,
                       const hy3d_tensor *weight, int64_t m, int64_t c0, int64_t count,
                       int64_t length, float *u, size_t product, float *scratch)
{
    const int64_t taps = 9 * weight->size[2];
    float *const lanes = scratch + 16 * CHANNELS * taps;
    const hy3d__winograd_time *const time = filters->kind.time;

    load_lanes(kernels, weight, m, c0, count, scratch, lanes);
    for (int64_t c = 0; c < count; c++) {
        for (int64_t s = 0; s < filters->segments; s++) {
            kernels->winograd_filter_f32(
                filters->kind.m, time->moments, time->filter[0], lanes + (c * taps + s * 9) * 16,
                9 * 16, u + (s * length + c) * 32, product, product * (size_t)time->moments);
        }
    }
}

void hy3d__winograd_filters_make(const hy3d__kernels *kernels,
                                 const hy3d__winograd_filters *filters, const hy3d_tensor *weight,
                                 int64_t panel, int64_t channel, int64_t count, float *u,
                                 size_t product, float *scratch)
{
    const int64_t end = channel + count;

    for (int64_t first = channel; first < end; first += filters->chunk) {
        const int64_t length = hy3d__min_i64(filters->chunk, end - first);
        float *const to = u + (first - channel) * filters->segments * 32;
        for (int64_t c0 = 0; c0 < length; c0 += CHANNELS) {
            for (int64_t half = 0; half < 32; half += 16) {
                make_block(kernels, filters, weight, panel * 32 + half, first + c0,
                           hy3d__min_i64(CHANNELS, length - c0), length, to + c0 * 32 + half,
                           product, scratch);
            }
        }
    }
}

/* Sizes of a layer's weights in a layout; false where it has none, or they overflow. */
static bool filters_of(hy3d_conv3d_format format, int64_t out_channels, int64_t in_channels,
                       const int64_t kernel[3], hy3d__winograd_filters *filters_out,
                       size_t *bytes_out)
{
    hy3d__winograd_kind kind;
    int64_t elems;

    if (!hy3d__winograd_kind_of(format, &kind) || out_channels < 1 || in_channels < 1 ||
        out_channels > INT32_MAX || in_channels > INT32_MAX || kernel[0] < 1 || kernel[0] > 3 ||
        kernel[1] != 3 || kernel[2] != 3 || (kind.time->moments != 1 && kernel[0] != 3) ||
        out_channels * in_channels > INT64_C(1) << 60) { /* sizes themselves would overflow */
        return false;
    }
    *filters_out = hy3d__winograd_filters_of(kind, out_channels, in_channels, kernel[0]);
    if (!hy3d__mul_i64(filters_out->panel_elems, filters_out->panels + 1, &elems) ||
        !hy3d__mul_i64(filters_out->product_elems, filters_out->products * (int64_t)sizeof(float),
                       &elems)) {
        return false;
    }
    *bytes_out = (size_t)elems;
    return true;
}

size_t hy3d__winograd_format_bytes(hy3d_conv3d_format format, int64_t out_channels,
                                   int64_t in_channels, const int64_t kernel[3])
{
    hy3d__winograd_filters filters;
    size_t bytes;
    return filters_of(format, out_channels, in_channels, kernel, &filters, &bytes) ? bytes : 0;
}

/* One panel a grain. */
typedef struct making {
    const hy3d__kernels *kernels;
    const hy3d__winograd_filters *filters;
    const hy3d_tensor *weight;
    float *u, *scratch;
    const hy3d_cancel *cancel;
} making;

static hy3d_status make_panel(void *argument, int64_t grain, uint32_t slot)
{
    const making *const m = argument;
    const hy3d__winograd_filters *const f = m->filters;
    for (int64_t c = 0; c < f->k; c += f->chunk) {
        if (hy3d_cancel_requested(m->cancel)) {
            return HY3D_ERR_CANCELLED;
        }
        hy3d__winograd_filters_make(
            m->kernels, f, m->weight, grain, c, hy3d__min_i64(f->chunk, f->k - c),
            m->u + grain * f->panel_elems + c * f->segments * 32, (size_t)f->product_elems,
            m->scratch + slot * HY3D__WINOGRAD_FILTER_ELEMS);
    }
    return HY3D_OK;
}

hy3d_status hy3d__winograd_prepare(hy3d_context *context, const hy3d_tensor *weight,
                                   hy3d_conv3d_format format, uint32_t num_threads,
                                   const hy3d_cancel *cancel, void *u)
{
    hy3d__winograd_filters filters;
    size_t bytes;
    uint32_t slots = hy3d__slots(context, num_threads);
    void *scratch = NULL;

    if (!filters_of(format, weight->size[0], weight->size[1], &weight->size[2], &filters, &bytes)) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    slots = (int64_t)slots > filters.panels ? (uint32_t)filters.panels : slots;
    hy3d_status status =
        hy3d_alloc(context, slots * HY3D__WINOGRAD_FILTER_ELEMS * sizeof(float), &scratch);
    if (status != HY3D_OK) {
        return status;
    }
    making m = {.kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(context)),
                .filters = &filters,
                .weight = weight,
                .u = u,
                .scratch = scratch,
                .cancel = cancel};
    status = hy3d__parallel_for(context, filters.panels, slots, cancel, make_panel, &m);
    hy3d_free(context, scratch);
    return status;
}
