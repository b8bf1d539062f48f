/* How long a tier would take for a shape that nobody measured: a roofline with rough constants of a
 * mid-range card, scaled by what was measured on other shapes of the device. */
#include "hy3d/route.h"

#include <math.h>
#include <string.h>

#define DTYPES 4

/* Operations and bytes a second, in the middle of what consumer cards do in practice. */
static const double card_flops[DTYPES] = {
    [HY3D_F32] = 8.0e12, [HY3D_F64] = 3.0e11, [HY3D_F16] = 2.0e13, [HY3D_BF16] = 2.0e13};
static const double card_bytes = 3.0e11;
/* The host: the C conv3d on some eight cores, and a copy over PCIe in both directions. */
static const double host_flops = 2.0e11;
static const double pcie_bytes = 1.2e10;
static const double launch_seconds = 1.0e-5;
/* How much longer than the vendor's best kernel each tier's arithmetic takes. Neither of CONV2D and
 * VENDOR is known to be faster (CONV2D is on gfx1100), hence close to 1. */
static const double slowdown[HY3D_TIER_COUNT] = {
    [HY3D_TIER_CURRENT] = 1.0, [HY3D_TIER_VENDOR] = 1.0, [HY3D_TIER_TRITON] = 1.05,
    [HY3D_TIER_IM2COL] = 1.6,  [HY3D_TIER_GEMM] = 2.0,   [HY3D_TIER_CONV2D] = 1.5,
    [HY3D_TIER_CPU] = 1.0};
/* A product with fewer channels is far from a matrix unit's size. */
static const double unit_channels = 32;

static bool is_known(hy3d_tier tier, hy3d_dtype dtype)
{
    return (uint32_t)tier < HY3D_TIER_COUNT && (uint32_t)dtype < DTYPES;
}

/* GEMM and CONV2D make one product or convolution a tap, and each partial sum but the first reads
 * and writes the output once more. */
static double seconds_by_taps(const hy3d_route_work *work, int64_t taps, double arithmetic)
{
    const double moved = work->moved_bytes + 2 * (double)(taps - 1) * work->out_bytes;
    return fmax(arithmetic, moved / card_bytes) + (double)taps * launch_seconds;
}

double hy3d_route_baseline_seconds(hy3d_tier tier, const hy3d_route_work *work)
{
    if (work == NULL || !is_known(tier, work->dtype)) {
        return -1;
    }
    const double arithmetic = slowdown[tier] * work->flops / card_flops[work->dtype];
    switch (tier) {
    case HY3D_TIER_CPU:
        return work->flops / host_flops + work->moved_bytes / pcie_bytes;
    case HY3D_TIER_IM2COL:
        /* Written once and read once; its matrix product does not overlap with the copying. */
        return arithmetic + (work->moved_bytes + 2 * work->column_bytes) / card_bytes +
               launch_seconds;
    case HY3D_TIER_GEMM: {
        const double channels = fmax((double)work->group_channels, 1);
        return seconds_by_taps(work, work->taps, arithmetic * fmax(unit_channels / channels, 1));
    }
    case HY3D_TIER_CONV2D:
        return seconds_by_taps(work, work->time_taps, arithmetic);
    case HY3D_TIER_CURRENT:
    case HY3D_TIER_VENDOR:
    case HY3D_TIER_TRITON:
        break;
    }
    return seconds_by_taps(work, 1, arithmetic);
}

typedef struct measurement {
    hy3d_tier tier;
    hy3d_route_work work;
    double seconds;
} measurement;

struct hy3d_rates {
    double log_sum[HY3D_TIER_COUNT][DTYPES];
    int64_t count[HY3D_TIER_COUNT][DTYPES];
    measurement *seen; /* an open hash table; seconds 0 is an empty place */
    size_t capacity, used;
};

static uint64_t mix(uint64_t hash, double value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const measurement *m)
{
    const hy3d_route_work *const w = &m->work;
    const double values[] = {(double)m->tier, (double)w->dtype,     w->flops,
                             w->moved_bytes,  w->out_bytes,         w->column_bytes,
                             (double)w->taps, (double)w->time_taps, (double)w->group_channels,
                             m->seconds};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        hash = mix(hash, values[i]);
    }
    return hash;
}

/* By the bits of their numbers: a measurement is a record that comes back unchanged. */
static bool is_same(const measurement *a, const measurement *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool is_empty(const measurement *m)
{
    return !(m->seconds > 0);
}

/* The place of a measurement in a table that has room, or of the empty one where it belongs. */
static measurement *find(measurement *table, size_t capacity, const measurement *m)
{
    size_t place = (size_t)hash_of(m) & (capacity - 1);
    while (!is_empty(&table[place]) && !is_same(&table[place], m)) {
        place = (place + 1) & (capacity - 1);
    }
    return &table[place];
}

/* Room for one more: at most half of the places are used. */
static hy3d_status grow(hy3d_context *context, hy3d_rates *rates)
{
    if (2 * (rates->used + 1) <= rates->capacity) {
        return HY3D_OK;
    }
    const size_t capacity = rates->capacity == 0 ? 64 : 2 * rates->capacity;
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, capacity * sizeof *rates->seen, &memory);
    if (status != HY3D_OK) {
        return status;
    }
    memset(memory, 0, capacity * sizeof *rates->seen);
    measurement *const table = memory;
    for (size_t i = 0; i < rates->capacity; i++) {
        if (!is_empty(&rates->seen[i])) {
            *find(table, capacity, &rates->seen[i]) = rates->seen[i];
        }
    }
    hy3d_free(context, rates->seen);
    rates->seen = table;
    rates->capacity = capacity;
    return HY3D_OK;
}

hy3d_status hy3d_rates_create(hy3d_context *context, hy3d_rates **rates_out)
{
    if (context == NULL || rates_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, sizeof(hy3d_rates), &memory);
    if (status == HY3D_OK) {
        memset(memory, 0, sizeof(hy3d_rates));
        *rates_out = memory;
    }
    return status;
}

void hy3d_rates_destroy(hy3d_context *context, hy3d_rates *rates)
{
    if (rates != NULL) {
        hy3d_free(context, rates->seen);
        hy3d_free(context, rates);
    }
}

hy3d_status hy3d_rates_learn(hy3d_context *context, hy3d_rates *rates, hy3d_tier tier,
                             const hy3d_route_work *work, double seconds)
{
    if (context == NULL || rates == NULL || work == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const double guess = hy3d_route_baseline_seconds(tier, work);
    if (!(guess > 0) || !(seconds > 0) || !isfinite(seconds)) {
        return HY3D_OK;
    }
    const hy3d_status status = grow(context, rates);
    if (status != HY3D_OK) {
        return status;
    }
    measurement m;
    memset(&m, 0, sizeof m); /* its padding is compared, too */
    m.tier = tier;
    m.work.dtype = work->dtype;
    m.work.flops = work->flops;
    m.work.moved_bytes = work->moved_bytes;
    m.work.out_bytes = work->out_bytes;
    m.work.column_bytes = work->column_bytes;
    m.work.taps = work->taps;
    m.work.time_taps = work->time_taps;
    m.work.group_channels = work->group_channels;
    m.seconds = seconds;
    measurement *const place = find(rates->seen, rates->capacity, &m);
    if (is_empty(place)) {
        memcpy(place, &m, sizeof m);
        rates->used++;
        rates->log_sum[tier][work->dtype] += log(seconds / guess);
        rates->count[tier][work->dtype]++;
    }
    return HY3D_OK;
}

static double log_factor(const hy3d_rates *rates, hy3d_tier tier, hy3d_dtype dtype)
{
    return rates->log_sum[tier][dtype] / (double)rates->count[tier][dtype];
}

double hy3d_rates_factor(const hy3d_rates *rates, hy3d_tier tier, hy3d_dtype dtype)
{
    if (rates == NULL || !is_known(tier, dtype) || rates->count[tier][dtype] == 0) {
        return -1;
    }
    return exp(log_factor(rates, tier, dtype));
}

/* A fast GPU says nothing about the host, nor the host about the GPU. */
static double others_factor(const hy3d_rates *rates, hy3d_tier tier, hy3d_dtype dtype)
{
    double sum = 0;
    int64_t count = 0;
    for (int other = 0; other < HY3D_TIER_COUNT && tier != HY3D_TIER_CPU; other++) {
        if (other != HY3D_TIER_CPU && rates->count[other][dtype] > 0) {
            sum += log_factor(rates, (hy3d_tier)other, dtype);
            count++;
        }
    }
    return count == 0 ? 1 : exp(sum / (double)count);
}

double hy3d_rates_seconds(const hy3d_rates *rates, hy3d_tier tier, const hy3d_route_work *work)
{
    const double guess = hy3d_route_baseline_seconds(tier, work);
    if (rates == NULL || guess < 0) {
        return guess;
    }
    const double own = hy3d_rates_factor(rates, tier, work->dtype);
    return guess * (own < 0 ? others_factor(rates, tier, work->dtype) : own);
}
