/* The oracle: seven plain loops. Shares no arithmetic with the core, only its checks. */
#include "reference.h"

#include <math.h>
#include <string.h>

#include "conv3d/plan.h"

/* binary16 and bfloat16 as (exponent bits, mantissa bits): one pair of functions for both. */
typedef struct format {
    int exponent_bits, mantissa_bits;
} format;

static const format FORMAT_F16 = {5, 10};
static const format FORMAT_BF16 = {8, 7};

static double bits_to_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double decode_half(uint16_t half, format f)
{
    const int exponent_max = (1 << f.exponent_bits) - 1;
    const int bias = exponent_max >> 1;
    const uint64_t sign = (uint64_t)(half >> 15) << 63;
    const int exponent = (half >> f.mantissa_bits) & exponent_max;
    const uint64_t mantissa = half & ((1U << f.mantissa_bits) - 1U);

    if (exponent == exponent_max) {
        return bits_to_double(sign | 0x7ff0000000000000U | mantissa << (52 - f.mantissa_bits));
    }
    if (exponent == 0) {
        /* mantissa * 2^(1 - bias - mantissa_bits), both factors exact */
        const double unit = bits_to_double((uint64_t)(1023 + 1 - bias - f.mantissa_bits) << 52);
        const double magnitude = (double)mantissa * unit;
        return sign != 0 ? -magnitude : magnitude;
    }
    return bits_to_double(sign | (uint64_t)(exponent - bias + 1023) << 52 |
                          mantissa << (52 - f.mantissa_bits));
}

/* Round to nearest even straight from double: by way of f32 it would round twice. */
static uint16_t encode_half(double value, format f)
{
    const int exponent_max = (1 << f.exponent_bits) - 1;
    const int bias = exponent_max >> 1;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const unsigned sign = (unsigned)(bits >> 63) << 15;
    const int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffU;

    if (exponent == 0x7ff && mantissa != 0) { /* NaN: quiet */
        return (uint16_t)(sign | (unsigned)exponent_max << f.mantissa_bits |
                          1U << (f.mantissa_bits - 1));
    }
    int target = exponent - 1023 + bias;
    int drop = 52 - f.mantissa_bits;
    mantissa |= (uint64_t)1 << 52;
    if (target >= exponent_max) {
        return (uint16_t)(sign | (unsigned)exponent_max << f.mantissa_bits);
    }
    if (target < 1) { /* subnormal: shift further */
        drop += 1 - target;
        target = 1;
        if (drop > 54) {
            return (uint16_t)sign;
        }
    }
    const uint64_t half_way = (uint64_t)1 << (drop - 1);
    const uint64_t rest = mantissa & ((half_way << 1) - 1);
    uint64_t kept = mantissa >> drop;
    kept += rest > half_way || (rest == half_way && (kept & 1) != 0) ? 1 : 0;
    /* The hidden bit of `kept` adds one to the exponent; a carry does so again, up to infinity. */
    const unsigned exponent_field = (unsigned)(target - 1) << f.mantissa_bits;
    return (uint16_t)(sign | (exponent_field + (unsigned)kept));
}

static double load(hy3d_dtype dtype, const void *data, int64_t at)
{
    switch (dtype) {
    case HY3D_F32:
        return (double)((const float *)data)[at];
    case HY3D_F64:
        return ((const double *)data)[at];
    case HY3D_F16:
        return decode_half(((const uint16_t *)data)[at], FORMAT_F16);
    case HY3D_BF16:
        return decode_half(((const uint16_t *)data)[at], FORMAT_BF16);
    default:
        return 0.0;
    }
}

static double load_at(const hy3d_tensor *t, const int64_t at[HY3D_TENSOR_DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += at[i] * t->stride[i];
    }
    return load(t->dtype, t->data, offset);
}

static void store(const hy3d_tensor *t, int64_t at, double value)
{
    switch (t->dtype) {
    case HY3D_F32:
        ((float *)t->data)[at] = (float)value;
        break;
    case HY3D_F64:
        ((double *)t->data)[at] = value;
        break;
    case HY3D_F16:
        ((uint16_t *)t->data)[at] = encode_half(value, FORMAT_F16);
        break;
    case HY3D_BF16:
        ((uint16_t *)t->data)[at] = encode_half(value, FORMAT_BF16);
        break;
    default:
        break;
    }
}

static int64_t input_index(const hy3d_conv3d_desc *d, int axis, int64_t out, int64_t tap)
{
    const int64_t i = out * d->stride[axis] + tap * d->dilation[axis] - d->pad_before[axis];
    const int64_t crop_after = d->pad_after[axis] < 0 ? -d->pad_after[axis] : 0;
    const int64_t first = d->pad_before[axis] < 0 ? -d->pad_before[axis] : 0;
    const int64_t last = d->in_size[axis] - crop_after - 1;

    if (i >= first && i <= last) {
        return i;
    }
    if (d->pad_mode[axis] == HY3D_PAD_ZEROS) {
        return -1;
    }
    return i < first ? first : last;
}

/* What a convolution is made of. */
typedef struct problem {
    const hy3d_conv3d_desc *desc;
    const hy3d_tensor *x, *weight, *bias, *y;
    const hy3d_conv3d_fusion *fusion; /* never NULL */
} problem;

/* Elements that lie evenly apart, from the first of them on. */
typedef struct line {
    hy3d_dtype dtype;
    const void *data; /* NULL: all are zero */
    int64_t first, step;
} line;

static void load_line(const line *l, int64_t from, int64_t count, double *out)
{
    const int64_t first = l->first + from * l->step;
    if (l->data == NULL) {
        memset(out, 0, (size_t)count * sizeof *out);
        return;
    }
    if (l->dtype == HY3D_F32) { /* the commonest */
        for (int64_t i = 0; i < count; i++) {
            out[i] = (double)((const float *)l->data)[first + i * l->step];
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        out[i] = load(l->dtype, l->data, first + i * l->step);
    }
}

/* The channels of one position of the input, from `channel` on; up-sampled indices t, h, w that lie
 * inside. */
static line input_line(const problem *p, int64_t image, int64_t channel, const int64_t index[3])
{
    const hy3d_conv3d_fusion *const f = p->fusion;
    int64_t at[3];

    for (int i = 0; i < 3; i++) {
        const int64_t times = p->desc->upsample[i];
        at[i] = times > 1 ? index[i] / times : index[i];
    }
    if (f->frames != NULL) {
        const hy3d_conv3d_frame *const frame = &f->frames[at[0]];
        const int64_t *const by = frame->stride;
        return (line){p->desc->dtype, frame->data, channel * by[0] + at[1] * by[1] + at[2] * by[2],
                      by[0]};
    }
    const int64_t *const by = p->x->stride;
    return (line){p->x->dtype, p->x->data,
                  image * by[0] + channel * by[1] + at[0] * by[2] + at[1] * by[3] + at[2] * by[4],
                  by[1]};
}

/* The same channels after what is fused in front of the convolution. */
static void load_input(const problem *p, const line *from, int64_t channel, int64_t at,
                       int64_t count, double *out)
{
    const hy3d_conv3d_fusion *const f = p->fusion;

    load_line(from, at, count, out);
    if (from->data == NULL) {
        return;
    }
    for (int64_t i = 0; i < count && f->scale != NULL; i++) {
        out[i] = out[i] * (double)f->scale[channel + at + i] + (double)f->shift[channel + at + i];
    }
    for (int64_t i = 0; i < count && f->activation == HY3D_SILU; i++) {
        out[i] = out[i] / (1.0 + exp(-out[i]));
    }
}

/* Adds the products of one tap, channel after channel, to a sum. */
static double add_tap(const problem *p, const line *input, const line *weight, int64_t first,
                      double sum)
{
    enum { AT_ONCE = 64 };
    const int64_t channels = p->desc->in_channels / p->desc->groups;
    double x[AT_ONCE], w[AT_ONCE];

    for (int64_t at = 0; at < channels; at += AT_ONCE) {
        const int64_t count = channels - at < AT_ONCE ? channels - at : AT_ONCE;
        load_input(p, input, first, at, count, x);
        load_line(weight, at, count, w);
        for (int64_t i = 0; i < count; i++) {
            sum += x[i] * w[i];
        }
    }
    return sum;
}

/* Sum of one output element; at is (n, co, t, h, w). */
static double sum_at(const problem *p, const int64_t at[HY3D_TENSOR_DIMS])
{
    const hy3d_conv3d_desc *const d = p->desc;
    const int64_t *const by = p->weight->stride;
    const int64_t channels = d->in_channels / d->groups;
    const int64_t first = at[1] / (d->out_channels / d->groups) * channels;
    int64_t tap[3], in[3];
    double sum = 0.0;

    for (tap[0] = 0; tap[0] < d->kernel[0]; tap[0]++) {
        in[0] = input_index(d, 0, at[2], tap[0]);
        for (tap[1] = 0; in[0] >= 0 && tap[1] < d->kernel[1]; tap[1]++) {
            in[1] = input_index(d, 1, at[3], tap[1]);
            for (tap[2] = 0; in[1] >= 0 && tap[2] < d->kernel[2]; tap[2]++) {
                in[2] = input_index(d, 2, at[4], tap[2]);
                if (in[2] >= 0) {
                    const line input = input_line(p, at[0], first, in);
                    const line weight = {
                        p->weight->dtype, p->weight->data,
                        at[1] * by[0] + tap[0] * by[2] + tap[1] * by[3] + tap[2] * by[4], by[1]};
                    sum = add_tap(p, &input, &weight, first, sum);
                }
            }
        }
    }
    return sum;
}

static void run_all(const problem *p)
{
    const hy3d_tensor *const y = p->y;
    const hy3d_tensor *const residual = p->fusion->residual;
    int64_t at[HY3D_TENSOR_DIMS];

    for (at[0] = 0; at[0] < y->size[0]; at[0]++) {
        for (at[1] = 0; at[1] < y->size[1]; at[1]++) {
            const int64_t bias_at[HY3D_TENSOR_DIMS] = {at[1]};
            const double b = p->bias == NULL ? 0.0 : load_at(p->bias, bias_at);
            for (at[2] = 0; at[2] < y->size[2]; at[2]++) {
                for (at[3] = 0; at[3] < y->size[3]; at[3]++) {
                    for (at[4] = 0; at[4] < y->size[4]; at[4]++) {
                        const double r = residual == NULL ? 0.0 : load_at(residual, at);
                        int64_t y_at = 0;
                        for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
                            y_at += at[i] * y->stride[i];
                        }
                        store(y, y_at, sum_at(p, at) + b + r);
                    }
                }
            }
        }
    }
}

hy3d_status reference_conv3d(const hy3d_conv3d_desc *desc, const hy3d_tensor *x,
                             const hy3d_tensor *weight, const hy3d_tensor *bias,
                             const hy3d_conv3d_fusion *fusion, const hy3d_tensor *y)
{
    static const hy3d_conv3d_fusion none = {0};
    int64_t out[3];
    hy3d_status status = hy3d__conv_check_desc(desc, out);

    if (status == HY3D_OK) {
        status = hy3d__conv_check_weight(desc, weight, bias);
    }
    if (status == HY3D_OK) {
        status = hy3d__conv_check_io(desc, out, x, fusion, y);
    }
    if (status == HY3D_OK) {
        const problem p = {desc, x, weight, bias, y, fusion == NULL ? &none : fusion};
        run_all(&p);
    }
    return status;
}

void reference_sizes(size_t sizes_out[4])
{
    sizes_out[0] = sizeof(hy3d_conv3d_desc);
    sizes_out[1] = sizeof(hy3d_tensor);
    sizes_out[2] = sizeof(hy3d_conv3d_frame);
    sizes_out[3] = sizeof(hy3d_conv3d_fusion);
}
