/* Weights to the points, 16 output channels a vector. */
#include "conv3d/internal.h"

#include <string.h>

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
    hy3d__conv_line line = {.stride = stride[4], .size = 3, .dtype = weight->dtype};

    if (is_run(weight)) {
        line.data = base + c0 * stride[1] * bytes;
        line.size = count * stride[1];
        hy3d__conv_load_line(kernels, &line, 0, 1, line.size, dst);
        return;
    }
    for (int64_t c = c0; c < c0 + count; c++) {
        for (int64_t t = 0; t < weight->size[2]; t++) {
            for (int64_t h = 0; h < 3; h++) {
                line.data = base + (c * stride[1] + t * stride[2] + h * stride[3]) * bytes;
                hy3d__conv_load_line(kernels, &line, 0, 1, 3, dst);
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
    const int64_t there = hy3d__conv_max(0, hy3d__conv_min(count, weight->size[1] - c0));

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
    const int moments = filters->kind.moments;

    load_lanes(kernels, weight, m, c0, count, scratch, lanes);
    for (int64_t c = 0; c < count; c++) {
        for (int64_t s = 0; s < filters->segments; s++) {
            kernels->winograd_filter_f32(filters->kind.m, moments, lanes + (c * taps + s * 9) * 16,
                                         9 * 16, u + (s * length + c) * 32, product,
                                         product * (size_t)moments);
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
        const int64_t length = hy3d__conv_min(filters->chunk, end - first);
        float *const to = u + (first - channel) * filters->segments * 32;
        for (int64_t c0 = 0; c0 < length; c0 += CHANNELS) {
            for (int64_t half = 0; half < 32; half += 16) {
                make_block(kernels, filters, weight, panel * 32 + half, first + c0,
                           hy3d__conv_min(CHANNELS, length - c0), length, to + c0 * 32 + half,
                           product, scratch);
            }
        }
    }
}
