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
    const int64_t last = d->in_size[axis] - 1;

    if (i >= 0 && i <= last) {
        return i;
    }
    if (d->pad_mode[axis] == HY3D_PAD_ZEROS) {
        return -1;
    }
    return i < 0 ? 0 : last;
}

/* What a convolution is made of. */
typedef struct problem {
    const hy3d_conv3d_desc *desc;
    const hy3d_tensor *x, *weight, *bias, *y;
    const hy3d_conv3d_fusion *fusion; /* never NULL */
} problem;

/* Input element of up-sampled indices t, h, w that lie inside. */
static double input_at(const problem *p, int64_t image, int64_t channel, const int64_t index[3])
{
    const hy3d_conv3d_fusion *const f = p->fusion;
    int64_t at[HY3D_TENSOR_DIMS] = {image, channel};
    double value;

    for (int i = 0; i < 3; i++) {
        const int64_t times = p->desc->upsample[i];
        at[2 + i] = times > 1 ? index[i] / times : index[i];
    }
    if (f->frames != NULL) {
        const hy3d_conv3d_frame *const frame = &f->frames[at[2]];
        if (frame->data == NULL) {
            return 0.0;
        }
        value =
            load(p->desc->dtype, frame->data,
                 channel * frame->stride[0] + at[3] * frame->stride[1] + at[4] * frame->stride[2]);
    } else {
        value = load_at(p->x, at);
    }
    if (f->scale != NULL) {
        value = value * (double)f->scale[channel] + (double)f->shift[channel];
    }
    return f->activation == HY3D_SILU ? value / (1.0 + exp(-value)) : value;
}

/* Sum of one output element; at is (n, co, t, h, w). */
static double sum_at(const problem *p, const int64_t at[HY3D_TENSOR_DIMS])
{
    const hy3d_conv3d_desc *const d = p->desc;
    const int64_t channels = d->in_channels / d->groups;
    const int64_t first = at[1] / (d->out_channels / d->groups) * channels;
    int64_t tap[HY3D_TENSOR_DIMS] = {at[1]}; /* index in weight */
    int64_t in[3];
    double sum = 0.0;

    for (tap[2] = 0; tap[2] < d->kernel[0]; tap[2]++) {
        in[0] = input_index(d, 0, at[2], tap[2]);
        for (tap[3] = 0; in[0] >= 0 && tap[3] < d->kernel[1]; tap[3]++) {
            in[1] = input_index(d, 1, at[3], tap[3]);
            for (tap[4] = 0; in[1] >= 0 && tap[4] < d->kernel[2]; tap[4]++) {
                in[2] = input_index(d, 2, at[4], tap[4]);
                for (tap[1] = 0; in[2] >= 0 && tap[1] < channels; tap[1]++) {
                    sum += input_at(p, at[0], first + tap[1], in) * load_at(p->weight, tap);
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
