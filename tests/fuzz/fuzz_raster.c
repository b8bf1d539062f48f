/* The rasteriser and what a texture stage does after it: one part of them an input. */
#include "fuzz_raster.h"

#include <string.h>

bool fuzz_is_finite(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7f800000U) != 0x7f800000U;
}

int64_t fuzz_floats(fuzz_input *in, float *out, int64_t n, bool is_whole)
{
    int64_t first = -1;
    for (int64_t i = 0; i < n; i++) {
        out[i] = is_whole ? (float)fuzz_between(in, -12, 12) : fuzz_float(in);
        if (!fuzz_is_finite(out[i])) {
            if (in->at >= in->size || !fuzz_chance(in, 32)) {
                out[i] = 3.0e38F; /* finite mostly, or all scenes are refused */
            } else if (first < 0) {
                first = i;
            }
        }
    }
    return first;
}

int64_t fuzz_indices(fuzz_input *in, int32_t *out, int64_t n, int64_t limit)
{
    int64_t first = -1;
    for (int64_t i = 0; i < n; i++) {
        out[i] = limit < 1 ? 0 : (int32_t)(fuzz_byte(in) % limit);
    }
    if (n > 0 && fuzz_chance(in, 20)) {
        out[fuzz_between(in, 0, n - 1)] = (int32_t)fuzz_number(in);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        first = out[i] < 0 || out[i] >= limit ? i : first;
    }
    return first;
}

void fuzz_check_problem(hy3d_status status, const hy3d_raster_problem *problem,
                        hy3d_raster_fault fault, int64_t at)
{
    if (fault == HY3D_RASTER_NO_FAULT) {
        FUZZ_CHECK(status != HY3D_ERR_INVALID_ARGUMENT && problem->fault == HY3D_RASTER_NO_FAULT,
                   "%s, fault %d at %lld, of sound values", hy3d_status_name(status),
                   problem->fault, (long long)problem->at);
        return;
    }
    FUZZ_CHECK(status == HY3D_ERR_INVALID_ARGUMENT && problem->fault == fault &&
                   (at < 0 || problem->at == at),
               "%s, fault %d at %lld, not %d at %lld", hy3d_status_name(status), problem->fault,
               (long long)problem->at, fault, (long long)at);
}

hy3d_context *fuzz_other_context(const hy3d_context *context)
{
    return fuzz_context((unsigned)hy3d_context_cpu_level(context) + 1);
}

void fuzz_raster(const uint8_t *data, size_t size)
{
    static void (*const parts[])(fuzz_input *, hy3d_context *) = {
        fuzz_rasterize, fuzz_interpolate, fuzz_scatter, fuzz_normals, fuzz_inpaint, fuzz_rasterize};
    fuzz_input in = {data, size, 0};
    const uint8_t kind = fuzz_byte(&in);
    hy3d_context *const context = fuzz_context(kind / COUNT_OF(parts));
    hy3d_context_trim(context);
    const uint64_t live = counting_live(fuzz_memory(context));
    parts[kind % COUNT_OF(parts)](&in, context);
    counting_fail(fuzz_memory(context), 0, false);
    hy3d_context_trim(context);
    FUZZ_CHECK(counting_live(fuzz_memory(context)) == live, "%llu allocations before",
               (unsigned long long)live);
}
