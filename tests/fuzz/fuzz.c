#define _GNU_SOURCE /* posix_memalign: a size that is no multiple of 64 */
#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

_Noreturn void fuzz_fail(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s:%d: not so: %s\n    ", file, line, condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

uint8_t fuzz_byte(fuzz_input *in)
{
    return in->at < in->size ? in->data[in->at++] : 0;
}

bool fuzz_chance(fuzz_input *in, unsigned of256)
{
    /* Counted from the top, so that missing bytes choose what is usual. */
    return 255U - fuzz_byte(in) < of256;
}

uint64_t fuzz_bits(fuzz_input *in)
{
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) {
        bits = bits << 8 | fuzz_byte(in);
    }
    return bits;
}

int64_t fuzz_between(fuzz_input *in, int64_t low, int64_t high)
{
    const uint64_t span = (uint64_t)high - (uint64_t)low + 1;
    uint64_t bits = fuzz_byte(in);
    if (span == 0 || span > 256) {
        bits = fuzz_bits(in);
    }
    return (int64_t)((uint64_t)low + (span == 0 ? bits : bits % span));
}

int64_t fuzz_number(fuzz_input *in)
{
    const uint8_t kind = fuzz_byte(in);
    if (kind < 160) {
        return kind % 20;
    }
    if (kind < 240) { /* 2^0 .. 2^63 and their neighbours */
        const uint8_t which = fuzz_byte(in);
        const uint64_t power = (uint64_t)1 << which % 64;
        return (int64_t)(power + (uint64_t)(which / 64) - 1U);
    }
    return kind < 248 ? -1 - (int64_t)(kind - 240) * (INT64_MAX / 7) : (int64_t)fuzz_bits(in);
}

float fuzz_float(fuzz_input *in)
{
    static const uint32_t odd[] = {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000,
                                   0xff800000, 0x7fc00000, 0xff800001, 0x00000001, 0x80000001,
                                   0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x34000000,
                                   0x5f000000, 0xdf000000, 0x4b000000};
    const uint8_t kind = fuzz_byte(in);
    uint32_t bits;
    float value;
    if (kind < 200) {
        return (float)(kind % 50 - 25) / (kind < 100 ? 1.0F : 8.0F);
    }
    bits = kind < 240 ? odd[kind % COUNT_OF(odd)] : (uint32_t)(fuzz_bits(in) >> 32);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static counting memories[HY3D_CPU_AVX512 + 1];

hy3d_context *fuzz_context(unsigned level)
{
    static hy3d_context *contexts[HY3D_CPU_AVX512 + 1];
    const unsigned which = level % ((unsigned)hy3d_cpu_detect() + 1);
    if (contexts[which] == NULL) {
        counting_init(&memories[which]);
        const hy3d_context_options options = {
            .cpu_level = hy3d_cpu_level_name((hy3d_cpu_level)which),
            .max_threads = 3,
            .allocator = &memories[which].allocator};
        const hy3d_status status = hy3d_context_create(&options, &contexts[which]);
        FUZZ_CHECK(status == HY3D_OK, "%s", hy3d_status_name(status));
    }
    return contexts[which];
}

counting *fuzz_memory(const hy3d_context *context)
{
    return &memories[hy3d_context_cpu_level(context)];
}

bool fuzz_arm(fuzz_input *in, hy3d_context *context)
{
    if (!fuzz_chance(in, 12)) {
        return false;
    }
    const uint8_t when = fuzz_byte(in);
    counting_fail(fuzz_memory(context), 1U + when % 8, when >= 128);
    return true;
}

void *fuzz_room(size_t bytes, int fill)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes == 0 ? 1 : bytes) != 0) {
        fputs("no memory for the test itself\n", stderr);
        exit(3);
    }
    memset(memory, fill, bytes == 0 ? 1 : bytes);
    return memory;
}

uint64_t fuzz_step(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717U;
}

int fuzz_small(uint64_t *state, int limit)
{
    return (int)((fuzz_step(state) >> 33) % (uint64_t)(2 * limit + 1)) - limit;
}

/* Up to three dimensions trade places, so that every order can be met. */
static void choose_order(fuzz_input *in, int order[HY3D_TENSOR_DIMS])
{
    const uint8_t kind = fuzz_byte(in);
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        order[i] = i;
    }
    if (kind % 4 == 1) { /* channels last */
        static const int last[] = {0, 2, 3, 4, 1};
        memcpy(order, last, sizeof last);
    }
    for (int i = 0; kind % 4 == 2 && i < 3; i++) {
        const int a = (int)fuzz_between(in, 0, 4), b = (int)fuzz_between(in, 0, 4);
        const int kept = order[a];
        order[a] = order[b];
        order[b] = kept;
    }
}

fuzz_tensor fuzz_tensor_make(fuzz_input *in, hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS],
                             bool written, int fill)
{
    fuzz_tensor made = {.tensor = {.dtype = dtype}};
    const uint8_t gaps = fuzz_byte(in), turned = fuzz_byte(in), flat = fuzz_byte(in);
    int order[HY3D_TENSOR_DIMS];
    int64_t elems = 1, start = 0;
    choose_order(in, order);
    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        const int dim = order[i];
        const bool has_gap = gaps >= 128 && (gaps >> i & 1) != 0;
        made.tensor.size[dim] = size[dim];
        if (!written && flat >= 224 && (flat >> i & 1) != 0) {
            continue; /* one element for all of them */
        }
        made.tensor.stride[dim] = elems;
        if (turned >= 192 && (turned >> i & 1) != 0 && size[dim] > 0) {
            start += (size[dim] - 1) * elems;
            made.tensor.stride[dim] = -elems;
        }
        elems *= size[dim] + (has_gap ? 1 : 0);
    }
    made.bytes = (size_t)elems * hy3d_dtype_bytes(dtype);
    made.memory = fuzz_room(made.bytes, fill);
    made.tensor.data = made.memory + (size_t)start * hy3d_dtype_bytes(dtype);
    return made;
}

fuzz_tensor fuzz_tensor_like(const fuzz_tensor *other)
{
    fuzz_tensor made = *other;
    made.memory = fuzz_room(made.bytes, 0);
    memcpy(made.memory, other->memory, made.bytes);
    made.tensor.data = made.memory + ((unsigned char *)other->tensor.data - other->memory);
    return made;
}

void fuzz_tensor_free(fuzz_tensor *tensor)
{
    free(tensor->memory);
    tensor->memory = NULL;
}

bool fuzz_is_empty(const hy3d_tensor *tensor)
{
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tensor->size[i] == 0) {
            return true;
        }
    }
    return false;
}

bool fuzz_next(const hy3d_tensor *tensor, int64_t at[HY3D_TENSOR_DIMS])
{
    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        if (++at[i] < tensor->size[i]) {
            return true;
        }
        at[i] = 0;
    }
    return false;
}

static unsigned char *element(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        offset += at[i] * tensor->stride[i];
    }
    return (unsigned char *)tensor->data + offset * (int64_t)hy3d_dtype_bytes(tensor->dtype);
}

double fuzz_get(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS])
{
    const void *const from = element(tensor, at);
    float value;
    if (tensor->dtype == HY3D_F64) {
        return *(const double *)from;
    }
    if (tensor->dtype == HY3D_F32) {
        return (double)*(const float *)from;
    }
    const hy3d__kernels *const kernels = hy3d__kernels_for(0);
    (tensor->dtype == HY3D_F16 ? kernels->cvt_f16_f32 : kernels->cvt_bf16_f32)(1, from, &value);
    return (double)value;
}

void fuzz_set(const hy3d_tensor *tensor, const int64_t at[HY3D_TENSOR_DIMS], double value)
{
    void *const to = element(tensor, at);
    const float narrow = (float)value;
    if (tensor->dtype == HY3D_F64) {
        *(double *)to = value;
    } else if (tensor->dtype == HY3D_F32) {
        *(float *)to = narrow;
    } else {
        const hy3d__kernels *const kernels = hy3d__kernels_for(0);
        (tensor->dtype == HY3D_F16 ? kernels->cvt_f32_f16 : kernels->cvt_f32_bf16)(1, &narrow, to);
    }
}

void fuzz_tensor_fill(const hy3d_tensor *tensor, uint64_t seed, int limit)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    uint64_t state = seed | 1U;
    if (!fuzz_is_empty(tensor)) {
        do {
            fuzz_set(tensor, at, fuzz_small(&state, limit));
        } while (fuzz_next(tensor, at));
    }
}

bool fuzz_gaps_are(const fuzz_tensor *tensor, int fill)
{
    const size_t width = hy3d_dtype_bytes(tensor->tensor.dtype);
    unsigned char *const copy = fuzz_room(tensor->bytes, fill);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    memcpy(copy, tensor->memory, tensor->bytes);
    if (!fuzz_is_empty(&tensor->tensor)) {
        do {
            memset(copy + (element(&tensor->tensor, at) - tensor->memory), fill, width);
        } while (fuzz_next(&tensor->tensor, at));
    }
    bool all = true;
    for (size_t i = 0; i < tensor->bytes; i++) {
        all = all && copy[i] == (unsigned char)fill;
    }
    free(copy);
    return all;
}

void fuzz_spoil(fuzz_input *in, hy3d_tensor *tensor, bool written)
{
    const int dim = (int)fuzz_between(in, 0, HY3D_TENSOR_DIMS - 1);
    switch (fuzz_byte(in) % 6) {
    case 0:
        tensor->size[dim] += 1;
        break;
    case 1:
        tensor->size[dim] = -1 - tensor->size[dim];
        break;
    case 2:
        tensor->dtype = (hy3d_dtype)(4 + fuzz_byte(in));
        break;
    case 3:
        tensor->data = NULL;
        break;
    case 4:
        tensor->data = (char *)tensor->data + 1;
        break;
    default: /* no such memory, or two elements in one place */
        tensor->size[dim] = written && tensor->size[dim] > 1 ? tensor->size[dim] : INT64_MAX;
        tensor->stride[dim] = written ? 0 : INT64_MAX;
        break;
    }
}
