/* Tensors that lie in odd ways, and integers put into them and read back without the library's
 * conversions. */
#include "bits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bits_random bits_random_of(uint64_t seed, uint64_t index)
{
    return (bits_random){seed * 0xd1342543de82ef95U + index * 0x2545f4914f6cdd1dU};
}

uint64_t bits_next(bits_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15U;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return z ^ z >> 31;
}

int64_t bits_between(bits_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)((bits_next(random) >> 11) % ((uint64_t)(high - low) + 1));
}

bool bits_one_in(bits_random *random, int64_t n)
{
    return bits_between(random, 1, n) == 1;
}

int64_t bits_elems(const int64_t size[HY3D_TENSOR_DIMS])
{
    int64_t elems = 1;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        elems *= size[i];
    }
    return elems;
}

bool bits_repeats(bits_layout layout, int dim)
{
    return layout == BITS_EXPANDED && (dim == 2 || dim == 3);
}

bits_view bits_view_make(hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS],
                         bits_layout layout, int64_t offset_elems)
{
    static const int orders[3][HY3D_TENSOR_DIMS] = {
        {0, 1, 2, 3, 4}, {0, 2, 3, 4, 1}, {4, 2, 0, 1, 3}};
    const int *const order = orders[layout == BITS_LAST ? 1 : layout == BITS_PERMUTED ? 2 : 0];
    const size_t width = hy3d_dtype_bytes(dtype);
    bits_view view = {.tensor = {.dtype = dtype}};
    int64_t elems = 1, start = 0;

    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        const int dim = order[i];
        view.tensor.size[dim] = size[dim];
        view.tensor.stride[dim] = bits_repeats(layout, dim) ? 0 : elems;
        elems *= bits_repeats(layout, dim) ? 1 : size[dim] + (layout == BITS_GAPS ? 2 : 0);
        if (layout == BITS_REVERSED && dim >= 3 && size[dim] > 0) {
            start += (size[dim] - 1) * view.tensor.stride[dim];
            view.tensor.stride[dim] = -view.tensor.stride[dim];
        }
    }
    view.bytes = (size_t)elems * width;
    view.memory = malloc(view.bytes + (size_t)offset_elems * width + 128);
    if (view.memory == NULL) {
        perror("malloc");
        exit(EXIT_FAILURE);
    }
    view.begin = view.memory + (64 - (uintptr_t)view.memory % 64) % 64 +
                 (size_t)offset_elems * width;
    memset(view.begin, 0xff, view.bytes);
    view.tensor.data = view.begin + (size_t)start * width;
    return view;
}

void bits_view_free(bits_view *view)
{
    free(view->memory);
    *view = (bits_view){.memory = NULL};
}

/* An integer to a 16-bit type with so many bits after the hidden one; nearest, halves to even. */
static uint16_t half_of(int32_t value, int mantissa_bits, int bias)
{
    const uint32_t sign = value < 0 ? 0x8000U : 0;
    uint64_t kept = (uint64_t)(value < 0 ? -(int64_t)value : value);
    int exponent = 0;

    if (kept == 0) {
        return 0;
    }
    while (kept >> (exponent + 1) != 0) {
        exponent++;
    }
    if (exponent <= mantissa_bits) {
        kept <<= mantissa_bits - exponent;
    } else {
        const int drop = exponent - mantissa_bits;
        const uint64_t rest = kept & (((uint64_t)1 << drop) - 1), half = (uint64_t)1 << (drop - 1);
        kept >>= drop;
        kept += rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
    }
    /* The hidden bit adds one to the exponent, and a carry another one. */
    const uint64_t bits = ((uint64_t)(exponent + bias - 1) << mantissa_bits) + kept;
    const uint64_t infinity = (uint64_t)(mantissa_bits == 10 ? 31 : 255) << mantissa_bits;
    return (uint16_t)(sign | (bits > infinity ? infinity : bits));
}

static void encode(hy3d_dtype dtype, int32_t value, void *to)
{
    const float single = (float)value; /* exact below 2^24 */
    const double wide = (double)value;
    uint16_t half;

    switch (dtype) {
    case HY3D_F64:
        memcpy(to, &wide, sizeof wide);
        break;
    case HY3D_F16:
    case HY3D_BF16:
        half = dtype == HY3D_F16 ? half_of(value, 10, 15) : half_of(value, 7, 127);
        memcpy(to, &half, sizeof half);
        break;
    case HY3D_F32:
    default:
        memcpy(to, &single, sizeof single);
        break;
    }
}

static unsigned char *address(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += at[i] * tensor->stride[i];
    }
    return (unsigned char *)tensor->data + offset * (int64_t)hy3d_dtype_bytes(tensor->dtype);
}

static bool step(const hy3d_tensor *tensor, int64_t at[HY3D_TENSOR_DIMS])
{
    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        if (++at[i] < tensor->size[i]) {
            return true;
        }
        at[i] = 0;
    }
    return false;
}

void bits_view_put(const bits_view *view, const int32_t *values)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    if (bits_elems(view->tensor.size) == 0) {
        return;
    }
    do {
        encode(view->tensor.dtype, *values++, address(&view->tensor, at));
    } while (step(&view->tensor, at));
}

void bits_view_put_reals(const bits_view *view, const int32_t *values)
{
    const hy3d_dtype dtype = view->tensor.dtype;
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    if (bits_elems(view->tensor.size) == 0) {
        return;
    }
    do {
        unsigned char *const to = address(&view->tensor, at);
        const double value = ldexp((double)*values, -24);
        const float single = (float)value;
        uint32_t word;
        memcpy(&word, &single, sizeof word);
        /* The types' leading bits are enough here: any value will do. */
        const uint16_t brain = (uint16_t)(word >> 16);
        const uint16_t half = half_of(*values >> 13, 10, 15 - 11);
        memcpy(to, dtype == HY3D_F64    ? (const void *)&value
                   : dtype == HY3D_F16  ? (const void *)&half
                   : dtype == HY3D_BF16 ? (const void *)&brain
                                        : (const void *)&single,
               hy3d_dtype_bytes(dtype));
        values++;
    } while (step(&view->tensor, at));
}

int64_t bits_view_differing(const bits_view *view, const int32_t *wanted, int64_t *other_zeros)
{
    const size_t width = hy3d_dtype_bytes(view->tensor.dtype);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    int64_t differing = 0;

    if (bits_elems(view->tensor.size) == 0) {
        return 0;
    }
    do {
        unsigned char bits[8];
        const unsigned char *const got = address(&view->tensor, at);
        encode(view->tensor.dtype, *wanted, bits);
        if (memcmp(got, bits, width) != 0) {
            bool is_zero = *wanted == 0 && got[width - 1] == 0x80;
            for (size_t i = 0; i + 1 < width; i++) {
                is_zero = is_zero && got[i] == 0;
            }
            *(is_zero ? other_zeros : &differing) += 1;
        }
        wanted++;
    } while (step(&view->tensor, at));
    return differing;
}

static double decode(hy3d_dtype dtype, const unsigned char *from)
{
    uint16_t half;
    uint32_t word;
    float single;

    memcpy(&half, from, sizeof half);
    if (dtype == HY3D_F16) {
        const int exponent = half >> 10 & 31, mantissa = half & 1023;
        const double size = exponent == 31  ? (double)NAN
                            : exponent == 0 ? ldexp(mantissa, -24)
                                            : ldexp(1024 + mantissa, exponent - 25);
        return half >> 15 != 0 ? -size : size;
    }
    word = (uint32_t)half << 16;
    memcpy(&single, dtype == HY3D_BF16 ? (const void *)&word : (const void *)from, sizeof single);
    return (double)single;
}

int64_t bits_view_far(const bits_view *view, const int32_t *wanted)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    int64_t far = 0;

    if (bits_elems(view->tensor.size) == 0) {
        return 0;
    }
    do {
        const double got = decode(view->tensor.dtype, address(&view->tensor, at));
        /* Also true for NaN. */
        far += !(fabs(got - (double)*wanted++) < 0.5) ? 1 : 0;
    } while (step(&view->tensor, at));
    return far;
}

int64_t bits_view_strays(const bits_view *view)
{
    const size_t width = hy3d_dtype_bytes(view->tensor.dtype);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    int64_t strays = 0;

    if (bits_elems(view->tensor.size) > 0) {
        do {
            memset(address(&view->tensor, at), 0xff, width);
        } while (step(&view->tensor, at));
    }
    for (size_t i = 0; i < view->bytes; i++) {
        strays += view->begin[i] != 0xff ? 1 : 0;
    }
    return strays;
}

unsigned char *bits_view_elements(const bits_view *view)
{
    const size_t width = hy3d_dtype_bytes(view->tensor.dtype);
    unsigned char *const elements = malloc((size_t)bits_elems(view->tensor.size) * width + 1);
    unsigned char *to = elements;
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    if (elements == NULL) {
        perror("malloc");
        exit(EXIT_FAILURE);
    }
    do {
        memcpy(to, address(&view->tensor, at), width);
        to += width;
    } while (step(&view->tensor, at));
    return elements;
}
