/* Points into a texture. The texture is cut into bands of rows, and points are sorted into them:
 * a point on the border of two goes to both. A band is summed by one thread in double, points in
 * order, so a texel's sum depends neither on threads nor on where the borders are. Sums in
 * double cost no time here (the texels of a band stay in L2, points are what is waited for) and
 * spare a bound that grows with the points a texel gets. */
#include "base/checked.h"
#include "base/parallel.h"
#include "hy3d/raster.h"
#include "raster/buckets.h"
#include "raster/checks.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Sums of a band: 512 KiB, a quarter of what a core has in L2 today; but at least so many bands,
 * that a small texture has work for several threads. */
enum { BAND_SUMS = 65536, LEAST_BANDS = 16 };

typedef struct scatter_job {
    const hy3d_scatter_desc *desc;
    const float *values, *uv, *weights;
    float *texture, *total;
    const hy3d_cancel *cancel;
    int shift; /* a band has 2^shift rows */
    int64_t band_sums;
    hy3d__buckets buckets;
    double *sums; /* band_sums a slot */
} scatter_job;

/* The texels from (column, row) to the next ones, and the shares of the next ones. */
typedef struct target {
    int64_t column, row;
    double right, below;
} target;

/* False for a point that is left out. The target lies in the texture, whatever another thread
 * does to the arrays. */
INLINE bool aim(const scatter_job *job, int64_t point, target *to, double *weight)
{
    const float u = hy3d__read_f32(&job->uv[2 * point]);
    const float v = hy3d__read_f32(&job->uv[2 * point + 1]);
    const float w = job->weights != NULL ? hy3d__read_f32(&job->weights[point]) : 1.0F;
    if (!(u >= 0.0F && u <= 1.0F && v >= 0.0F && v <= 1.0F && w > 0.0F)) {
        return false;
    }
    /* 24 bits by 15: exact. */
    double x = (double)u * (double)(job->desc->width - 1);
    double y = (double)v * (double)(job->desc->height - 1);
    if (job->desc->filter == HY3D_SCATTER_NEAREST) {
        x = (double)(int64_t)(x + 0.5);
        y = (double)(int64_t)(y + 0.5);
    }
    to->column = (int64_t)x;
    to->row = (int64_t)y;
    to->right = x - (double)to->column;
    to->below = y - (double)to->row;
    *weight = (double)w;
    return true;
}

static void bucket_pass(const void *argument, int64_t begin, int64_t end,
                        const hy3d__buckets_sink *given)
{
    const scatter_job *const job = argument;
    const hy3d__buckets_sink sink = *given; /* ours: no store can change it */
    for (int64_t i = begin; i < end; i++) {
        target to;
        double weight;
        if (!aim(job, i, &to, &weight)) {
            continue;
        }
        const int64_t band = to.row >> job->shift;
        const int64_t last = to.below > 0 ? (to.row + 1) >> job->shift : band;
        for (int64_t b = band; b <= last; b++) {
            hy3d__buckets_put(&sink, b, i);
        }
    }
}

/* `channels` is a constant where this is inlined with one: the sums of a texel then fill
 * vectors. */
INLINE void add(const float *value, int64_t channels, double share, double *sums)
{
    for (int64_t c = 0; c < channels; c++) {
        sums[c] += share * (double)value[c];
    }
    sums[channels] += share;
}

/* One row's two texels. `sums` is the row's. */
INLINE void add_row(const float *value, int64_t channels, const target *to, double share,
                    double *sums)
{
    double *const at = sums + (channels + 1) * to->column;
    add(value, channels, share * (1.0 - to->right), at);
    if (to->right > 0) {
        add(value, channels, share * to->right, at + channels + 1);
    }
}

/* Stops early once it is cancelled: one band may have all points. */
INLINE void add_points(const scatter_job *job, int64_t channels, int64_t band, double *sums)
{
    const int64_t pitch = job->desc->width * (channels + 1), top = band << job->shift;
    const int64_t rows = (int64_t)1 << job->shift;
    for (int64_t i = job->buckets.first[band]; i < job->buckets.first[band + 1]; i++) {
        if (hy3d__raster_stops(job->cancel, i)) {
            return;
        }
        const int64_t point = job->buckets.items[i];
        const float *const value = job->values + channels * point;
        target to;
        double weight;
        if (point == HY3D__NO_ITEM || !aim(job, point, &to, &weight)) {
            continue;
        }
        const int64_t row = to.row - top;
        if (row >= 0 && row < rows) {
            add_row(value, channels, &to, weight * (1.0 - to.below), sums + row * pitch);
        }
        if (to.below > 0 && row >= -1 && row + 1 < rows) {
            add_row(value, channels, &to, weight * to.below, sums + (row + 1) * pitch);
        }
    }
}

static void store_row(const scatter_job *job, int64_t row, const double *sums)
{
    const int64_t channels = job->desc->channels, width = job->desc->width;
    float *texture = job->texture + row * width * channels;
    float *const total = job->total + row * width;
    for (int64_t x = 0; x < width; x++, sums += channels + 1, texture += channels) {
        const double weight = sums[channels];
        total[x] = (float)weight;
        for (int64_t c = 0; c < channels; c++) {
            texture[c] = weight > 0 ? (float)(sums[c] / weight) : 0.0F;
        }
    }
}

static hy3d_status scatter_grain(void *argument, int64_t band, uint32_t slot)
{
    const scatter_job *const job = argument;
    const int64_t channels = job->desc->channels, pitch = job->desc->width * (channels + 1);
    const int64_t top = band << job->shift, left = job->desc->height - top;
    double *const sums = job->sums + slot * job->band_sums;
    memset(sums, 0, (size_t)job->band_sums * sizeof *sums);
    if (channels == 1) {
        add_points(job, 1, band, sums);
    } else if (channels == 3) {
        add_points(job, 3, band, sums);
    } else {
        add_points(job, channels, band, sums);
    }
    if (hy3d_cancel_requested(job->cancel)) {
        return HY3D_ERR_CANCELLED;
    }
    for (int64_t row = 0; row < left && row < (int64_t)1 << job->shift; row++) {
        store_row(job, top + row, sums + row * pitch);
    }
    return HY3D_OK;
}

static hy3d_status check_sizes(const hy3d_scatter_desc *desc)
{
    const bool is_sane =
        desc->width >= 1 && desc->width <= HY3D_RASTER_MOST_PIXELS_A_SIDE && desc->height >= 1 &&
        desc->height <= HY3D_RASTER_MOST_PIXELS_A_SIDE && desc->channels >= 1 &&
        desc->points >= 0 && desc->points <= HY3D__RASTER_MOST_INDEX &&
        (desc->filter == HY3D_SCATTER_LINEAR || desc->filter == HY3D_SCATTER_NEAREST);
    if (!is_sane) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return hy3d__raster_fits(desc->width * desc->height, desc->channels) &&
                   hy3d__raster_fits(desc->points, desc->channels)
               ? HY3D_OK
               : HY3D_ERR_OVERFLOW;
}

static hy3d_status check_values(hy3d_context *context, const scatter_job *job, uint32_t slots,
                                const hy3d_cancel *cancel, hy3d_raster_problem *problem)
{
    const int64_t points = job->desc->points;
    hy3d_status status =
        hy3d__raster_check_finite(context, points, 2, job->uv, slots, cancel, problem);
    if (status != HY3D_OK || job->weights == NULL) {
        return status;
    }
    status = hy3d__raster_check_finite(context, points, 1, job->weights, slots, cancel, problem);
    for (int64_t i = 0; status == HY3D_OK && i < points; i++) {
        if (job->weights[i] < 0.0F) {
            if (problem != NULL) {
                *problem = (hy3d_raster_problem){HY3D_RASTER_NEGATIVE, i, 0};
            }
            return HY3D_ERR_INVALID_ARGUMENT;
        }
    }
    return status;
}

static hy3d_status run(hy3d_context *context, scatter_job *job, uint32_t slots)
{
    const int64_t height = job->desc->height, pitch = job->desc->width * (job->desc->channels + 1);
    const int64_t fit = pitch < BAND_SUMS ? BAND_SUMS / pitch : 1;
    const int64_t most = height / LEAST_BANDS + 1;
    job->shift = 0;
    while ((int64_t)2 << job->shift <= (fit < most ? fit : most)) {
        job->shift++;
    }
    job->band_sums = pitch << job->shift;
    const int64_t bands = ((height - 1) >> job->shift) + 1;
    slots = bands < (int64_t)slots ? (uint32_t)bands : slots;
    hy3d_status status = hy3d__buckets_make(context, job->desc->points, bands, bucket_pass, job,
                                            slots, job->cancel, &job->buckets);
    void *memory = NULL;
    if (status == HY3D_OK) {
        size_t bytes;
        status = hy3d__mul_size((size_t)job->band_sums, slots * sizeof(double), &bytes)
                     ? hy3d_workspace_take(context, bytes, &memory)
                     : HY3D_ERR_OVERFLOW;
    }
    if (status == HY3D_OK) {
        job->sums = memory;
        status = hy3d__parallel_for(context, bands, slots, job->cancel, scatter_grain, job);
    }
    hy3d_workspace_give(context, memory);
    hy3d__buckets_destroy(&job->buckets);
    return status;
}

hy3d_status hy3d_scatter(hy3d_context *context, const hy3d_scatter_desc *desc, const float *values,
                         const float *uv, const float *weights, const hy3d_cancel *cancel,
                         hy3d_raster_problem *problem_out, float *texture, float *total)
{
    if (problem_out != NULL) {
        *problem_out = (hy3d_raster_problem){HY3D_RASTER_NO_FAULT, 0, 0};
    }
    if (context == NULL || desc == NULL || texture == NULL || total == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    hy3d_status status = check_sizes(desc);
    if (status == HY3D_OK && desc->points != 0 && (values == NULL || uv == NULL)) {
        status = HY3D_ERR_INVALID_ARGUMENT;
    }
    if (status != HY3D_OK) {
        return status;
    }
    scatter_job job = {.desc = desc,
                       .values = values,
                       .uv = uv,
                       .weights = weights,
                       .cancel = cancel,
                       .texture = texture,
                       .total = total};
    const uint32_t slots = hy3d__slots(context, desc->num_threads);
    status = check_values(context, &job, slots, cancel, problem_out);
    return status == HY3D_OK ? run(context, &job, slots) : status;
}
