/* Weights to the points, 16 output channels a vector. */
#include "conv3d/internal.h"

#include <string.h>

/* Input channels at once: the lines of 16 output channels are read in runs of this many filters. */
#define CHANNELS 8

/* `count` input channels of one output channel from c0 on, all taps, in index order. */
static void load_filter(const hy3d__kernels *kernels, const hy3d_tensor *weight, int64_t m,
                        int64_t c0, int64_t count, float *dst)
{
    const int64_t *const stride = weight->stride;
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(weight->dtype);
    const unsigned char *const base = (const unsigned char *)weight->data + m * stride[0] * bytes;
    const bool runs = stride[4] == 1 && stride[3] == 3 && stride[2] == 9 &&
                      stride[1] == 9 * weight->size[2];
    hy3d__conv_line line = {.stride = stride[4], .size = 3, .dtype = weight->dtype};

    if (runs) {
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

/* 16 output channels from m on, `count` input channels from c0 on, to element u of every product. */
static void make_block(const hy3d__kernels *kernels, const hy3d__winograd_filters *filters,
                       const hy3d_tensor *weight, int64_t m, int64_t c0, int64_t count, float *u,
                       size_t product, float *scratch)
{
    const int64_t taps = 9 * weight->size[2];
    const int64_t pitch = CHANNELS * taps;
    float *const lanes = scratch + 16 * pitch;
    const int moments = filters->kind.moments;

    for (int64_t l = 0; l < 16; l++) {
        float *const line = scratch + l * pitch;
        if (m + l < weight->size[0]) {
            load_filter(kernels, weight, m + l, c0, count, line);
        } else {
            memset(line, 0, (size_t)(count * taps) * sizeof *line);
        }
    }
    kernels->to_lanes_f32((size_t)(count * taps), scratch, (size_t)pitch, lanes);
    for (int64_t c = 0; c < count; c++) {
        for (int64_t s = 0; s < filters->segments; s++) {
            kernels->winograd_filter_f32(filters->kind.m, moments, lanes + (c * taps + s * 9) * 16,
                                         9 * 16, u + (s * filters->k + c0 + c) * 32, product,
                                         product * (size_t)moments);
        }
    }
}

void hy3d__winograd_filters_make(const hy3d__kernels *kernels,
                                 const hy3d__winograd_filters *filters, const hy3d_tensor *weight,
                                 int64_t first, int64_t count, float *u, size_t u_panels,
                                 float *scratch)
{
    const size_t product = u_panels * (size_t)filters->panel_elems;
    const int64_t channels = weight->size[1];

    for (int64_t panel = 0; panel < count; panel++) {
        float *const to = u + panel * filters->panel_elems;
        for (int64_t half = 0; half < 32; half += 16) {
            for (int64_t c0 = 0; c0 < channels; c0 += CHANNELS) {
                make_block(kernels, filters, weight, (first + panel) * 32 + half, c0,
                           hy3d__conv_min(CHANNELS, channels - c0), to + half, product, scratch);
            }
        }
        for (int64_t p = 0; channels < filters->k && p < filters->products; p++) {
            for (int64_t s = 0; s < filters->segments; s++) {
                memset(to + p * (int64_t)product + (s * filters->k + channels) * 32, 0,
                       (size_t)((filters->k - channels) * 32) * sizeof *to);
            }
        }
    }
}
