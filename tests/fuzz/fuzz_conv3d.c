/* Descriptions of convolutions: any at all through the checks and the plan, small ones through a run
 * as well (conv3d_run.c). What is right is worked out here once more, in 128 bits. */
#include "fuzz_conv3d.h"

#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

typedef struct faults {
    bool invalid, shape, overflow;
} faults;

static bool is_above_63_bits(wide value)
{
    return value > INT64_MAX;
}

/* Faults of an axis and, where it has none, its output. */
static void judge_axis(const hy3d_conv3d_desc *d, int i, faults *found, int64_t *out)
{
    const wide size = d->in_size[i], kernel = d->kernel[i];
    const int64_t up = d->upsample[i] == 0 ? 1 : d->upsample[i];
    if (size < 1 || kernel < 1 || d->stride[i] < 1 || d->dilation[i] < 1 ||
        d->pad_before[i] <= -size || d->pad_after[i] <= -size || up < 1 || (unsigned)d->pad_mode[i] > HY3D_PAD_REPLICATE) {
        found->invalid = true;
        return;
    }
    const wide padded = size + d->pad_before[i] + d->pad_after[i];
    const wide extent = (kernel - 1) * d->dilation[i] + 1;
    found->shape = found->shape || size % up != 0 || extent > padded;
    found->overflow = found->overflow || is_above_63_bits(padded) || is_above_63_bits(extent);
    *out = extent > padded || is_above_63_bits(padded)
               ? 1
               : (int64_t)((padded - extent) / d->stride[i] + 1);
}

/* Whether the bytes of so many 8-byte elements have more than 63 bits; all factors at least 1. */
static bool is_too_large(int64_t a, int64_t b, const int64_t size[3])
{
    wide bytes = 8;
    const int64_t factors[] = {a < 1 ? 1 : a, b, size[0], size[1], size[2]};
    for (size_t i = 0; i < COUNT_OF(factors); i++) {
        bytes *= factors[i];
        if (is_above_63_bits(bytes)) {
            return true;
        }
    }
    return false;
}

static faults judge(const hy3d_conv3d_desc *d, int64_t out[3])
{
    faults found = {0};
    if ((unsigned)d->dtype > HY3D_BF16 || d->batch < 0 || d->in_channels < 1 ||
        d->out_channels < 1 || d->groups < 1 || (unsigned)d->accuracy > HY3D_FAST) {
        found.invalid = true;
        return found;
    }
    for (int i = 0; i < 3; i++) {
        judge_axis(d, i, &found, &out[i]);
    }
    found.shape = found.shape || d->in_channels % d->groups != 0 ||
                  d->out_channels % d->groups != 0;
    if (!found.invalid && !found.shape) {
        found.overflow = found.overflow || is_too_large(d->batch, d->in_channels, d->in_size) ||
                         is_too_large(d->batch, d->out_channels, out) ||
                         is_too_large(d->in_channels / d->groups, d->out_channels, d->kernel) ||
                         is_above_63_bits((wide)d->in_channels * d->out_channels);
    }
    return found;
}

/* A refusal must be one of the faults that are there, and no fault may pass. */
static void check_status(hy3d_status status, const faults *found)
{
    const bool has_fault = found->invalid || found->shape || found->overflow;
    const bool is_fitting = (status == HY3D_OK && !has_fault) ||
                            (status == HY3D_ERR_INVALID_ARGUMENT && found->invalid) ||
                            (status == HY3D_ERR_SHAPE_MISMATCH && found->shape) ||
                            (status == HY3D_ERR_OVERFLOW && found->overflow);
    FUZZ_CHECK(is_fitting, "%s where invalid %d shape %d overflow %d", hy3d_status_name(status),
               found->invalid, found->shape, found->overflow);
}

static hy3d_conv3d_desc any_desc(fuzz_input *in)
{
    hy3d_conv3d_desc d = {
        .dtype = (hy3d_dtype)(fuzz_chance(in, 6) ? fuzz_number(in) : fuzz_between(in, 0, 3)),
        .batch = fuzz_number(in),
        .groups = fuzz_chance(in, 64) ? fuzz_number(in) : 1,
        .accuracy = (hy3d_accuracy)(fuzz_chance(in, 6) ? fuzz_number(in) : fuzz_between(in, 0, 1)),
        .num_threads = (uint32_t)fuzz_number(in),
        .workspace_limit_bytes = (size_t)fuzz_number(in),
    };
    /* Counts that are divisible, unless the product wraps round. */
    d.in_channels = (int64_t)((uint64_t)fuzz_number(in) * (uint64_t)d.groups);
    d.out_channels = (int64_t)((uint64_t)fuzz_number(in) * (uint64_t)d.groups);
    d.in_channels += fuzz_chance(in, 16) ? 1 : 0;
    for (int i = 0; i < 3; i++) {
        d.in_size[i] = fuzz_number(in);
        d.kernel[i] = fuzz_chance(in, 64) ? fuzz_number(in) : fuzz_between(in, 1, 5);
        d.stride[i] = fuzz_chance(in, 48) ? fuzz_number(in) : 1;
        d.dilation[i] = fuzz_chance(in, 48) ? fuzz_number(in) : 1;
        d.pad_before[i] = fuzz_chance(in, 64) ? fuzz_number(in) : fuzz_between(in, -3, 3);
        d.pad_after[i] = fuzz_chance(in, 64) ? fuzz_number(in) : fuzz_between(in, -3, 3);
        d.pad_mode[i] =
            (hy3d_pad_mode)(fuzz_chance(in, 3) ? fuzz_number(in) : fuzz_between(in, 0, 1));
        d.upsample[i] = fuzz_chance(in, 24) ? fuzz_number(in) : 0;
        if (d.upsample[i] > 1 && d.in_size[i] > 0 && d.in_size[i] < 64 && d.upsample[i] < 64) {
            d.in_size[i] *= d.upsample[i];
        }
    }
    return d;
}

size_t fuzz_conv_limit(const hy3d_context *context, const hy3d_conv3d_desc *d, uint32_t *threads)
{
    const uint32_t most = hy3d_context_max_threads(context);
    *threads = d->num_threads == 0 || d->num_threads > most ? most : d->num_threads;
    return d->workspace_limit_bytes == 0 ? ((size_t)64 << 20) * *threads
                                         : d->workspace_limit_bytes;
}

/* What memory() says, and that a plan within its limit says the same. */
static hy3d_status check_memory(hy3d_context *context, const hy3d_conv3d_desc *d, size_t *own)
{
    size_t bytes[2] = {1, 1}, owned[2] = {1, 1};
    hy3d_status status[2];
    uint32_t threads;
    const size_t limit = fuzz_conv_limit(context, d, &threads);
    for (int prepared = 0; prepared < 2; prepared++) {
        status[prepared] =
            hy3d_conv3d_memory(context, d, prepared != 0, &bytes[prepared], &owned[prepared]);
        FUZZ_CHECK(status[prepared] == HY3D_OK || status[prepared] == HY3D_ERR_OVERFLOW ||
                       status[prepared] == HY3D_ERR_WORKSPACE_TOO_SMALL,
                   "memory says %s", hy3d_status_name(status[prepared]));
        FUZZ_CHECK(status[prepared] == HY3D_OK
                       ? bytes[prepared] <= limit && bytes[prepared] % 64 == 0
                       : bytes[prepared] == 1 && owned[prepared] == 1,
                   "%zu bytes, limit %zu", bytes[prepared], limit);
    }
    *own = owned[0];
    return status[0];
}

static void check_format(hy3d_context *context, const hy3d_conv3d_desc *d)
{
    hy3d_conv3d_format format = 0xabcdU;
    const hy3d_status status = hy3d_conv3d_choose_format(context, d, &format);
    FUZZ_CHECK(status == HY3D_OK || status == HY3D_ERR_OVERFLOW, "choose_format says %s",
               hy3d_status_name(status));
    if (status == HY3D_OK) {
        const size_t bytes =
            hy3d_conv3d_format_bytes(format, d->out_channels, d->in_channels, d->kernel);
        FUZZ_CHECK((format == HY3D_FORMAT_NONE) == (bytes == 0), "format %u of %zu bytes", format,
                   bytes);
        FUZZ_CHECK(strcmp(hy3d_conv3d_format_name(format), "unknown") != 0, "format %u", format);
        FUZZ_CHECK(d->accuracy == HY3D_FAST || format == HY3D_FORMAT_NONE, "exact, format %u",
                   format);
    }
}

/* A limit of `needed` does, one byte less does not. */
static void check_needed(hy3d_context *context, const hy3d_conv3d_desc *d, size_t needed)
{
    hy3d_conv3d_desc with = *d;
    size_t bytes, owned;
    with.workspace_limit_bytes = needed;
    hy3d_status status = hy3d_conv3d_memory(context, &with, false, &bytes, &owned);
    FUZZ_CHECK(status == HY3D_OK && bytes <= needed, "%s with the %zu bytes that it named",
               hy3d_status_name(status), needed);
    if (needed > 1) {
        with.workspace_limit_bytes = needed - 1;
        status = hy3d_conv3d_memory(context, &with, false, &bytes, &owned);
        FUZZ_CHECK(status == HY3D_ERR_WORKSPACE_TOO_SMALL, "%s with one byte less than %zu",
                   hy3d_status_name(status), needed);
    }
}

/* A plan over weights that are one element, strides 0: any size is there. */
static void check_plan(hy3d_context *context, const hy3d_conv3d_desc *d, hy3d_status said)
{
    double one[1] = {0};
    const hy3d_tensor weight = {.data = one,
                                .dtype = d->dtype,
                                .size = {d->out_channels, d->in_channels / d->groups, d->kernel[0],
                                         d->kernel[1], d->kernel[2]}};
    uint32_t threads;
    const size_t limit = fuzz_conv_limit(context, d, &threads);
    hy3d_conv3d_plan *plan = NULL;
    size_t needed = 0;
    const hy3d_status status =
        hy3d_conv3d_plan_create(context, d, &weight, NULL, &needed, &plan);
    FUZZ_CHECK(status == said || (said == HY3D_OK && status == HY3D_ERR_BLAS_UNAVAILABLE),
               "memory says %s, the plan %s", hy3d_status_name(said), hy3d_status_name(status));
    FUZZ_CHECK((plan != NULL) == (status == HY3D_OK), "a plan after %s", hy3d_status_name(status));
    if (status == HY3D_ERR_WORKSPACE_TOO_SMALL) {
        FUZZ_CHECK(needed > limit, "needs %zu, limit %zu", needed, limit);
        check_needed(context, d, needed);
    }
    if (status == HY3D_OK) {
        const size_t bytes = hy3d_conv3d_plan_workspace_bytes(plan);
        FUZZ_CHECK(bytes <= limit && bytes % 64 == 0, "%zu of %zu", bytes, limit);
        FUZZ_CHECK(hy3d_conv3d_plan_threads(plan) >= 1 &&
                       hy3d_conv3d_plan_threads(plan) <= threads,
                   "%u threads of %u", hy3d_conv3d_plan_threads(plan), threads);
        hy3d_conv3d_desc with = *d;
        size_t least, owned;
        with.workspace_limit_bytes = needed;
        FUZZ_CHECK(hy3d_conv3d_memory(context, &with, false, &least, &owned) == HY3D_OK &&
                       least <= needed,
                   "%zu bytes were said to do", needed);
    }
    hy3d_conv3d_plan_destroy(plan);
}

static void fuzz_desc(fuzz_input *in, hy3d_context *context)
{
    const hy3d_conv3d_desc d = any_desc(in);
    int64_t wanted[3] = {0}, got[3] = {-7, -7, -7};
    const faults found = judge(&d, wanted);
    const hy3d_status status = hy3d_conv3d_out_size(&d, got);
    check_status(status, &found);
    for (int i = 0; i < 3; i++) {
        FUZZ_CHECK(got[i] == (status == HY3D_OK ? wanted[i] : -7), "output %lld, wanted %lld",
                   (long long)got[i], (long long)wanted[i]);
    }
    if (status != HY3D_OK) {
        size_t bytes = 1, own = 1;
        check_status(hy3d_conv3d_memory(context, &d, false, &bytes, &own), &found);
        FUZZ_CHECK(bytes == 1 && own == 1, "written on %s", hy3d_status_name(status));
        return;
    }
    size_t own = 0;
    const hy3d_status said = check_memory(context, &d, &own);
    check_format(context, &d);
    /* A plan that takes its weight in would read all of it. */
    const wide elems = (wide)d.out_channels * (d.in_channels / d.groups) * d.kernel[0] *
                       d.kernel[1] * d.kernel[2];
    if (said != HY3D_OK || (own < ((size_t)1 << 20) && elems < ((wide)1 << 17))) {
        check_plan(context, &d, said);
    }
}

void fuzz_conv3d(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size, 0};
    hy3d_context *const context = fuzz_context(fuzz_byte(&in));
    const uint64_t live = counting_live(fuzz_memory(context));
    if (fuzz_chance(&in, 96)) {
        fuzz_desc(&in, context);
    } else {
        fuzz_conv_run(&in, context);
    }
    counting_fail(fuzz_memory(context), 0, false);
    FUZZ_CHECK(counting_live(fuzz_memory(context)) == live, "%llu allocations before",
               (unsigned long long)live);
}
