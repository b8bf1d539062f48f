/* Random configurations. Each asks for one of the ways to compute, so that all of them come often,
 * and most are small: what goes wrong at edges goes wrong in small shapes, too. */
#include "bits.h"

#include <stdio.h>
#include <string.h>

/* What a configuration is made to reach; whether it does is counted from its plan. */
typedef enum aim {
    AIM_ANY,      /* whatever comes */
    AIM_DIRECT,   /* 3x3 and so on with channels, blocks of them */
    AIM_THIN,     /* one tap in height and width */
    AIM_TINY,     /* fewer positions than a vector: panels, also in f32 */
    AIM_COLUMNS,  /* rows that are cut */
    AIM_WINOGRAD, /* a kind of it, forced */
    AIM_FAST,     /* accuracy fast as the cost model decides */
    AIM_WIDE,     /* many channels */
    AIMS
} aim;

static int64_t pick(bits_random *random, const int64_t *values, int64_t count)
{
    return values[bits_between(random, 0, count - 1)];
}

static aim random_aim(bits_random *random, bool exact)
{
    const int64_t n = bits_between(random, 0, 99);
    if (exact) {
        return n < 40   ? AIM_ANY
               : n < 58 ? AIM_DIRECT
               : n < 75 ? AIM_THIN
               : n < 86 ? AIM_TINY
               : n < 88 ? AIM_COLUMNS
               : n < 96 ? AIM_WINOGRAD
               : n < 98 ? AIM_FAST
                        : AIM_WIDE;
    }
    return n < 20   ? AIM_ANY
           : n < 45 ? AIM_DIRECT
           : n < 65 ? AIM_THIN
           : n < 75 ? AIM_TINY
           : n < 78 ? AIM_COLUMNS
           : n < 93 ? AIM_WINOGRAD
                    : AIM_FAST;
}

/* Sizes that give `room` output positions more than the one that must be. */
static void set_size(hy3d_conv3d_desc *d, int axis, int64_t room)
{
    const int64_t before = d->pad_before[axis], after = d->pad_after[axis];
    int64_t least = (d->kernel[axis] - 1) * d->dilation[axis] + 1 - before - after;
    least = least < 1 - before ? 1 - before : least; /* what crops leaves one */
    least = least < 1 - after ? 1 - after : least;
    const int64_t times = d->upsample[axis] > 1 ? d->upsample[axis] : 1;
    const int64_t size = (least < 1 ? 1 : least) + room;
    d->in_size[axis] = (size + times - 1) / times * times;
}

static void any_axes(bits_random *random, hy3d_conv3d_desc *d)
{
    static const int64_t kernels[] = {1, 1, 2, 3, 3, 4, 5};
    static const int64_t strides[] = {1, 1, 1, 2, 3, 40};
    static const int64_t dilations[] = {1, 1, 1, 2, 5};

    for (int i = 0; i < 3; i++) {
        d->kernel[i] = pick(random, kernels, 7 - (i == 0));
        d->stride[i] = pick(random, strides, 6);
        d->dilation[i] = pick(random, dilations, 5);
    }
}

static void paddings(bits_random *random, hy3d_conv3d_desc *d)
{
    for (int i = 0; i < 3; i++) {
        const int64_t kind = bits_between(random, 0, 3);
        if (kind == 0) { /* causal */
            d->pad_before[i] = (d->kernel[i] - 1) * d->dilation[i];
        } else if (kind > 1) {
            d->pad_before[i] = bits_between(random, 0, 3);
            d->pad_after[i] = bits_between(random, 0, 3);
        }
        if (bits_one_in(random, 6)) {
            *(bits_one_in(random, 2) ? &d->pad_before[i] : &d->pad_after[i]) =
                -bits_between(random, 1, 3);
        }
        if (bits_one_in(random, 40)) {
            *(bits_one_in(random, 2) ? &d->pad_before[i] : &d->pad_after[i]) = 13;
        }
        d->pad_mode[i] = bits_one_in(random, 3) ? HY3D_PAD_REPLICATE : HY3D_PAD_ZEROS;
        d->upsample[i] = bits_one_in(random, 6) ? bits_between(random, 2, 3)
                                                : bits_between(random, 0, 1);
    }
}

static void shape_thin(bits_random *random, hy3d_conv3d_desc *d, bool exact)
{
    for (int i = 1; i < 3; i++) {
        d->kernel[i] = d->stride[i] = 1;
        d->pad_before[i] = d->pad_after[i] = 0;
        d->upsample[i] = 0;
        set_size(d, i, bits_between(random, 3, exact ? 13 : 24));
    }
    const bool is_long = bits_one_in(random, exact ? 6 : 2);
    d->in_channels = d->groups * bits_between(random, 1, is_long ? 75 : 34);
    d->out_channels = d->groups * bits_between(random, 1, bits_one_in(random, 20) ? 75 : 19);
}

static void shape_winograd(bits_random *random, hy3d_conv3d_desc *d, bits_config *c, bool is_fast)
{
    c->forced = is_fast ? HY3D_FORMAT_NONE : (hy3d_conv3d_format)bits_between(random, 1, 10);
    d->dtype = (hy3d_dtype[]){HY3D_F32, HY3D_F32, HY3D_F16, HY3D_BF16}[bits_between(random, 0, 3)];
    d->accuracy = HY3D_FAST;
    d->groups = 1;
    const bool in_time = c->forced == 2 || c->forced == 4 || c->forced > 5;
    const bool is_upsampled = (c->forced > 4 && c->forced < 8) || c->forced == 10;
    d->kernel[0] = in_time ? 3 : bits_between(random, 1, 3);
    d->kernel[1] = d->kernel[2] = 3;
    d->in_channels = bits_between(random, 16, is_fast ? 48 : bits_one_in(random, 5) ? 70 : 33);
    d->out_channels = bits_between(random, 16, bits_one_in(random, 5) ? 70 : 34);
    for (int i = 0; i < 3; i++) {
        d->stride[i] = d->dilation[i] = 1;
        if (i > 0 ? is_upsampled || (is_fast && c->index % 2 == 0) : c->forced == 7) {
            d->upsample[i] = 2; /* 7: frames in pairs */
            d->pad_before[0] = i == 0 ? 0 : d->pad_before[0];
            d->pad_after[0] = i == 0 ? 0 : d->pad_after[0];
        }
        set_size(d, i, is_fast ? bits_between(random, i == 0 ? 1 : 8, i == 0 ? 3 : 20)
                               : bits_between(random, 0, i == 0 ? 2 : 8));
    }
    if (!is_fast && bits_one_in(random, 6)) {
        set_size(d, (int)bits_between(random, 1, 2), bits_between(random, 20, 40));
    }
}

/* More output channels than a block has, or more input channels than a tile. */
static void shape_wide(bits_random *random, hy3d_conv3d_desc *d)
{
    d->groups = 1;
    for (int i = 0; i < 3; i++) {
        d->kernel[i] = i == 0 ? 1 : bits_between(random, 1, 2);
        d->stride[i] = d->dilation[i] = 1;
        d->upsample[i] = 0;
        set_size(d, i, i == 0 ? 0 : bits_between(random, 3, 5));
    }
    d->in_channels = bits_one_in(random, 2) ? 160 : bits_between(random, 3, 9);
    d->out_channels = d->in_channels == 160 ? 5 : bits_between(random, 257, 700);
}

static void shape(bits_random *random, hy3d_conv3d_desc *d, bits_config *c, bool exact)
{
    static const int64_t channels[] = {1, 2, 3, 5, 8, 9, 17};
    static const int64_t room[] = {0, 1, 3, 4, 7, 12, 18};
    const aim wanted = random_aim(random, exact);

    any_axes(random, d);
    paddings(random, d);
    d->in_channels = d->groups * pick(random, channels, 7);
    d->out_channels = d->groups * pick(random, channels, 7);
    for (int i = 0; i < 3; i++) {
        set_size(d, i, pick(random, room, i == 0 ? 4 : 7));
    }
    switch (wanted) {
    case AIM_DIRECT:
        for (int i = 0; i < 3; i++) {
            d->kernel[i] = i == 0 ? bits_between(random, 1, 3) : 3;
            d->stride[i] = i > 0 && bits_one_in(random, 4) ? 2 : 1;
            d->dilation[i] = 1;
            set_size(d, i, i == 0 ? bits_between(random, 0, 2) : bits_between(random, 2, 19));
        }
        d->in_channels = d->groups * bits_between(random, 1, 40);
        d->out_channels = d->groups * bits_between(random, 1, 12);
        break;
    case AIM_THIN:
        shape_thin(random, d, exact);
        break;
    case AIM_TINY:
        for (int i = 0; i < 3; i++) {
            d->dilation[i] = 1;
            set_size(d, i, bits_between(random, 0, i == 0 ? 3 : 2));
        }
        break;
    case AIM_COLUMNS:
        d->kernel[0] = 1;
        d->batch = 1;
        d->in_channels = d->out_channels = d->groups;
        d->stride[2] = d->dilation[2] = 1;
        d->stride[1] = 3;
        set_size(d, 0, 0);
        set_size(d, 1, 1);
        set_size(d, 2, bits_between(random, 640, 1500));
        break;
    case AIM_WINOGRAD:
    case AIM_FAST:
        shape_winograd(random, d, c, wanted == AIM_FAST);
        break;
    case AIM_WIDE:
        shape_wide(random, d);
        break;
    case AIM_ANY:
    case AIMS:
    default:
        break;
    }
}

static void ways(bits_random *random, bits_config *c, bool exact)
{
    const hy3d_conv3d_desc *const d = &c->desc;
    c->has_bias = bits_one_in(random, 2);
    if (bits_one_in(random, 3)) {
        c->has_scale = bits_one_in(random, 2);
        c->has_frames = d->batch == 1 && d->upsample[0] <= 1 &&
                        d->in_size[0] <= BITS_MOST_FRAMES && bits_one_in(random, 2);
        c->has_residual = bits_one_in(random, 2);
        c->in_place = c->has_residual && bits_one_in(random, 2);
        c->activation = !exact && bits_one_in(random, 2) ? HY3D_SILU : HY3D_IDENTITY;
    }
    c->is_prepared = d->accuracy == HY3D_FAST && bits_one_in(random, 2);
    c->x_layout = (bits_layout)bits_between(random, 0, BITS_LAYOUTS - 1);
    c->weight_layout = (bits_layout)(bits_one_in(random, 2) ? 0 : bits_between(random, 0, 4));
    c->y_layout = (bits_layout)(bits_one_in(random, 2) ? 0 : bits_between(random, 0, 4));
    c->residual_layout = c->in_place ? c->y_layout : (bits_layout)bits_between(random, 0, 5);
}

bits_config bits_config_make(uint64_t seed, uint64_t index, bool exact)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F32, HY3D_F64, HY3D_F16, HY3D_BF16};
    bits_random random = bits_random_of(seed, index);
    bits_config c = {.seed = seed, .index = index};
    hy3d_conv3d_desc *const d = &c.desc;

    d->dtype = dtypes[bits_between(&random, 0, 4)];
    d->batch = bits_one_in(&random, 60) ? 0 : bits_one_in(&random, 4) ? 2 : 1;
    d->groups = bits_one_in(&random, 4) ? bits_between(&random, 2, 4) : 1;
    d->num_threads = (uint32_t)bits_between(&random, 0, 3);
    shape(&random, d, &c, exact);
    ways(&random, &c, exact);
    if (hy3d_conv3d_out_size(d, c.out) != HY3D_OK) {
        bits_config_text(&c, (char[BITS_TEXT]){0}, BITS_TEXT);
        c.desc.dtype = (hy3d_dtype)-1; /* told by whoever plans it */
        return c;
    }
    memcpy(c.x_size, (int64_t[]){d->batch, d->in_channels}, 2 * sizeof(int64_t));
    memcpy(c.weight_size, (int64_t[]){d->out_channels, d->in_channels / d->groups},
           2 * sizeof(int64_t));
    memcpy(c.y_size, (int64_t[]){d->batch, d->out_channels}, 2 * sizeof(int64_t));
    for (int i = 0; i < 3; i++) {
        c.x_size[2 + i] = d->in_size[i] / (d->upsample[i] > 1 ? d->upsample[i] : 1);
        c.weight_size[2 + i] = d->kernel[i];
        c.y_size[2 + i] = c.out[i];
    }
    return c;
}

static int put_three(char *text, size_t size, const char *name, const int64_t *v)
{
    return snprintf(text, size, " %s %lld %lld %lld", name, (long long)v[0], (long long)v[1],
                    (long long)v[2]);
}

void bits_config_text(const bits_config *c, char *text, size_t size)
{
    const hy3d_conv3d_desc *const d = &c->desc;
    size_t at = (size_t)snprintf(
        text, size, "%s n %lld c %lld->%lld groups %lld", hy3d_dtype_name(d->dtype),
        (long long)d->batch, (long long)d->in_channels, (long long)d->out_channels,
        (long long)d->groups);
    const struct {
        const char *name;
        const int64_t *values;
    } threes[] = {{"in", d->in_size},         {"kernel", d->kernel},       {"stride", d->stride},
                  {"dilation", d->dilation},  {"before", d->pad_before},   {"after", d->pad_after},
                  {"upsample", d->upsample}};
    for (size_t i = 0; i < sizeof threes / sizeof threes[0] && at < size; i++) {
        at += (size_t)put_three(text + at, size - at, threes[i].name, threes[i].values);
    }
    if (at < size) {
        snprintf(text + at, size - at,
                 " modes %d%d%d threads %u%s%s%s%s%s%s%s forced %s layouts %d %d %d %d",
                 (int)d->pad_mode[0], (int)d->pad_mode[1], (int)d->pad_mode[2], d->num_threads,
                 d->accuracy == HY3D_FAST ? " fast" : "", c->has_bias ? " bias" : "",
                 c->has_scale ? " scale" : "", c->has_frames ? " frames" : "",
                 c->activation == HY3D_SILU ? " silu" : "",
                 c->has_residual ? c->in_place ? " residual in place" : " residual" : "",
                 c->is_prepared ? " prepared" : "", hy3d_conv3d_format_name(c->forced),
                 (int)c->x_layout, (int)c->weight_layout, (int)c->y_layout,
                 (int)c->residual_layout);
    }
}
