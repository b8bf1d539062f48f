/* Searches for the first wrong value, in grains. Each looks for its own first one, and the
 * lowest of all is kept: so it does not matter who comes when. */
#include "raster/checks.h"

#include <stdatomic.h>
#include <string.h>

#include "base/checked.h"
#include "base/parallel.h"

/* A grain is 256 KiB: about 10 us, against about 5 us to wake a thread. */
#define GRAIN 65536
/* A block is looked at as a whole, which compiles to vectors; only a bad one element by element. */
#define BLOCK 64

typedef struct search {
    const int32_t *indices; /* or */
    const float *floats;
    int64_t n;
    uint32_t limit;
    _Atomic int64_t first; /* INT64_MAX: none so far */
} search;

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool is_bad(const search *s, int64_t i)
{
    if (s->indices != NULL) {
        return (uint32_t)s->indices[i] >= s->limit;
    }
    return (bits_of(s->floats[i]) & 0x7f800000U) == 0x7f800000U;
}

static bool block_is_bad(const search *s, int64_t at)
{
    uint32_t bad = 0;
    if (s->indices != NULL) {
        const int32_t *const values = s->indices + at;
        for (int i = 0; i < BLOCK; i++) {
            bad |= (uint32_t)values[i] >= s->limit;
        }
        return bad != 0;
    }
    const float *const values = s->floats + at;
    for (int i = 0; i < BLOCK; i++) {
        bad |= (bits_of(values[i]) & 0x7f800000U) == 0x7f800000U;
    }
    return bad != 0;
}

static void keep_lowest(search *s, int64_t at)
{
    int64_t lowest = atomic_load(&s->first);
    while (at < lowest && !atomic_compare_exchange_weak(&s->first, &lowest, at)) {
    }
}

static hy3d_status search_grain(void *argument, int64_t grain, uint32_t slot)
{
    search *const s = argument;
    int64_t at = grain * GRAIN;
    const int64_t end = s->n - at < GRAIN ? s->n : at + GRAIN;
    (void)slot;
    if (at > atomic_load(&s->first)) {
        return HY3D_OK;
    }
    while (at + BLOCK <= end && !block_is_bad(s, at)) {
        at += BLOCK;
    }
    while (at < end && !is_bad(s, at)) {
        at++;
    }
    if (at < end) {
        keep_lowest(s, at);
    }
    return HY3D_OK;
}

static hy3d_status run(hy3d_context *context, search *s, uint32_t slots, const hy3d_cancel *cancel,
                       int64_t *first_out)
{
    const int64_t grains = s->n / GRAIN + (s->n % GRAIN != 0);
    atomic_init(&s->first, INT64_MAX);
    const hy3d_status status = hy3d__parallel_for(context, grains, slots, cancel, search_grain, s);
    if (status == HY3D_OK) {
        const int64_t first = atomic_load(&s->first);
        *first_out = first == INT64_MAX ? -1 : first;
    }
    return status;
}

bool hy3d__raster_fits(int64_t a, int64_t b)
{
    int64_t elements;
    return hy3d__mul_i64(a, b, &elements) && elements <= PTRDIFF_MAX / 4;
}

hy3d_status hy3d__raster_check_indices(hy3d_context *context, int64_t rows, int64_t row,
                                       const int32_t *values, uint32_t limit, uint32_t slots,
                                       const hy3d_cancel *cancel, hy3d_raster_problem *problem)
{
    search s = {.indices = values, .n = rows * row, .limit = limit};
    int64_t first = -1;
    const hy3d_status status = run(context, &s, slots, cancel, &first);
    if (status != HY3D_OK || first < 0) {
        return status;
    }
    if (problem != NULL) {
        *problem = (hy3d_raster_problem){HY3D_RASTER_BAD_INDEX, first / row, values[first]};
    }
    return HY3D_ERR_INVALID_ARGUMENT;
}

hy3d_status hy3d__raster_check_finite(hy3d_context *context, int64_t rows, int64_t row,
                                      const float *values, uint32_t slots,
                                      const hy3d_cancel *cancel, hy3d_raster_problem *problem)
{
    search s = {.floats = values, .n = rows * row};
    int64_t first = -1;
    const hy3d_status status = run(context, &s, slots, cancel, &first);
    if (status != HY3D_OK || first < 0) {
        return status;
    }
    if (problem != NULL) {
        *problem = (hy3d_raster_problem){HY3D_RASTER_NOT_FINITE, first / row, 0};
    }
    return HY3D_ERR_INVALID_ARGUMENT;
}
