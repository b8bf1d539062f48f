/* The exact sums of integers: the input is laid out once with its padding, up-sampling, scale and
 * shift, then come plain loops over it. Nothing here is the library's. */
#include "bits.h"

#include <stdio.h>
#include <stdlib.h>

/* Index before up-sampling of a padded position; -1: a zero. */
static int64_t source(const hy3d_conv3d_desc *d, int axis, int64_t padded)
{
    int64_t at = padded - d->pad_before[axis];

    if (at < 0 || at >= d->in_size[axis]) {
        if (d->pad_mode[axis] == HY3D_PAD_ZEROS) {
            return -1;
        }
        at = at < 0 ? 0 : d->in_size[axis] - 1;
    }
    return d->upsample[axis] > 1 ? at / d->upsample[axis] : at;
}

static int32_t value_at(const bits_problem *p, int64_t image, int64_t channel,
                        const int64_t at[3])
{
    const bits_config *const c = p->config;
    const int64_t *const size = c->x_size;

    if (at[0] < 0 || at[1] < 0 || at[2] < 0 || (c->has_frames && p->zero_frame[at[0]])) {
        return 0;
    }
    const int32_t value =
        p->x[(((image * size[1] + channel) * size[2] + at[0]) * size[3] + at[1]) * size[4] + at[2]];
    return c->has_scale ? value * (int32_t)p->scale[channel] + (int32_t)p->shift[channel] : value;
}

/* One channel of one image, padded. */
static void lay_out(const bits_problem *p, int64_t image, int64_t channel, const int64_t size[3],
                    int32_t *to)
{
    const hy3d_conv3d_desc *const d = &p->config->desc;
    int64_t at[3];

    for (int64_t t = 0; t < size[0]; t++) {
        at[0] = source(d, 0, t);
        for (int64_t h = 0; h < size[1]; h++) {
            at[1] = source(d, 1, h);
            for (int64_t w = 0; w < size[2]; w++) {
                at[2] = source(d, 2, w);
                *to++ = value_at(p, image, channel, at);
            }
        }
    }
}

/* Adds one input channel's share to one output channel. */
static void add(const bits_config *c, const int64_t size[3], const int32_t *x,
                const int32_t *weight, int32_t *y)
{
    const hy3d_conv3d_desc *const d = &c->desc;
    const int64_t *const k = d->kernel;

    for (int64_t tap = 0; tap < k[0] * k[1] * k[2]; tap++) {
        const int64_t dt = tap / (k[1] * k[2]) * d->dilation[0];
        const int64_t dh = tap / k[2] % k[1] * d->dilation[1], dw = tap % k[2] * d->dilation[2];
        const int32_t by = weight[tap];
        int32_t *row = y;
        if (by == 0) {
            continue;
        }
        for (int64_t t = 0; t < c->out[0]; t++) {
            for (int64_t h = 0; h < c->out[1]; h++) {
                const int32_t *const from =
                    x + ((t * d->stride[0] + dt) * size[1] + h * d->stride[1] + dh) * size[2] + dw;
                for (int64_t w = 0; w < c->out[2]; w++) {
                    row[w] += by * from[w * d->stride[2]];
                }
                row += c->out[2];
            }
        }
    }
}

int32_t *bits_oracle(const bits_problem *p)
{
    const bits_config *const c = p->config;
    const hy3d_conv3d_desc *const d = &c->desc;
    const int64_t size[3] = {d->in_size[0] + d->pad_before[0] + d->pad_after[0],
                             d->in_size[1] + d->pad_before[1] + d->pad_after[1],
                             d->in_size[2] + d->pad_before[2] + d->pad_after[2]};
    const int64_t volume = c->out[0] * c->out[1] * c->out[2];
    const int64_t taps = d->kernel[0] * d->kernel[1] * d->kernel[2];
    const int64_t in_group = d->in_channels / d->groups, out_group = d->out_channels / d->groups;
    const int64_t n = bits_elems(c->y_size);
    int32_t *const y = malloc((size_t)(n + 1) * sizeof *y);
    int32_t *const x = malloc((size_t)(size[0] * size[1] * size[2]) * sizeof *x);

    if (y == NULL || x == NULL) {
        perror("malloc");
        exit(EXIT_FAILURE);
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = (c->has_bias ? p->bias[i / volume % d->out_channels] : 0) +
               (c->has_residual ? p->residual[i] : 0);
    }
    for (int64_t image = 0; image < d->batch; image++) {
        for (int64_t channel = 0; channel < d->in_channels; channel++) {
            const int64_t first = channel / in_group * out_group;
            lay_out(p, image, channel, size, x);
            for (int64_t m = first; m < first + out_group; m++) {
                add(c, size, x, p->weight + (m * in_group + channel % in_group) * taps,
                    y + (image * d->out_channels + m) * volume);
            }
        }
    }
    free(x);
    return y;
}
