/* A counting sort of faces by tile. Faces are counted in parts that several threads take, and each
 * part writes where the parts before it end: so every list is in order of faces. */
#include "base/parallel.h"
#include "raster/checks.h"
#include "raster/internal.h"

static uint32_t *counts_of(const hy3d__raster_job *job, int64_t part)
{
    return job->counts + part * (job->tiles + 1);
}

/* The faces first to last - 1 of a part. */
static int64_t first_of(const hy3d__raster_job *job, int64_t part)
{
    const int64_t first = part * job->part_faces;
    return first < job->desc->faces ? first : job->desc->faces;
}

/* Tiles from first to last. */
static hy3d__raster_bounds tiles_of(hy3d__raster_bounds b)
{
    return (hy3d__raster_bounds){b.left / HY3D__TILE, b.right / HY3D__TILE, b.top / HY3D__TILE,
                                 b.bottom / HY3D__TILE};
}

static bool is_large(hy3d__raster_bounds tiles)
{
    return (tiles.right - tiles.left + 1) * (tiles.bottom - tiles.top + 1) > HY3D__RASTER_FEW_TILES;
}

static void count(const hy3d__raster_job *job, hy3d__raster_bounds bounds, uint32_t *counts)
{
    const hy3d__raster_bounds tiles = tiles_of(bounds);
    if (is_large(tiles)) {
        counts[job->tiles]++;
        return;
    }
    for (int64_t y = tiles.top; y <= tiles.bottom; y++) {
        for (int64_t x = tiles.left; x <= tiles.right; x++) {
            counts[y * job->tiles_across + x]++;
        }
    }
}

static hy3d_status count_grain(void *argument, int64_t part, uint32_t slot)
{
    const hy3d__raster_job *const job = argument;
    const uint64_t vertices = (uint64_t)job->desc->vertices;
    uint32_t *const counts = counts_of(job, part);
    (void)slot;
    for (int64_t i = 0; i <= job->tiles; i++) {
        counts[i] = 0;
    }
    for (int64_t i = first_of(job, part); i < first_of(job, part + 1); i++) {
        if (hy3d__raster_stops(job->cancel, i)) {
            return HY3D_ERR_CANCELLED;
        }
        int32_t corner[3];
        for (int k = 0; k < 3; k++) {
            corner[k] = hy3d__read_i32(job->triangles + 3 * i + k);
        }
        if ((uint64_t)corner[0] >= vertices || (uint64_t)corner[1] >= vertices ||
            (uint64_t)corner[2] >= vertices) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        const hy3d__raster_bounds bounds = hy3d__raster_bounds_of(job, corner);
        job->bounds[i] = bounds;
        if (bounds.left <= bounds.right) {
            count(job, bounds, counts);
        }
    }
    return HY3D_OK;
}

/* Turns counts into places; the sum is how many there are. */
static int64_t place_parts(const hy3d__raster_job *job, int64_t list)
{
    uint32_t before = 0; /* below 2^31: no face is twice in a list */
    for (int64_t part = 0; part < job->parts; part++) {
        uint32_t *const at = counts_of(job, part) + list;
        const uint32_t here = *at;
        *at = before;
        before += here;
    }
    return before;
}

static void put(const hy3d__raster_job *job, int32_t face, hy3d__raster_bounds bounds,
                uint32_t *places)
{
    const hy3d__raster_bounds tiles = tiles_of(bounds);
    if (is_large(tiles)) {
        job->large[places[job->tiles]++] = face;
        return;
    }
    for (int32_t y = tiles.top; y <= tiles.bottom; y++) {
        for (int32_t x = tiles.left; x <= tiles.right; x++) {
            const int64_t tile = y * job->tiles_across + x;
            hy3d__raster_box box;
            (void)hy3d__raster_meet(bounds, x * HY3D__TILE, y * HY3D__TILE, &box);
            job->entries[job->starts[tile] + places[tile]++] = (hy3d__raster_entry){
                face, (uint8_t)box.left, (uint8_t)box.right, (uint8_t)box.top, (uint8_t)box.bottom};
        }
    }
}

static hy3d_status put_grain(void *argument, int64_t part, uint32_t slot)
{
    const hy3d__raster_job *const job = argument;
    uint32_t *const places = counts_of(job, part);
    (void)slot;
    for (int64_t i = first_of(job, part); i < first_of(job, part + 1); i++) {
        if (hy3d__raster_stops(job->cancel, i)) {
            return HY3D_ERR_CANCELLED;
        }
        if (job->bounds[i].left <= job->bounds[i].right) {
            put(job, (int32_t)i, job->bounds[i], places);
        }
    }
    return HY3D_OK;
}

hy3d_status hy3d__raster_bin_faces(hy3d__raster_job *job)
{
    const hy3d_status status =
        hy3d__parallel_for(job->context, job->parts, job->slots, job->cancel, count_grain, job);
    if (status != HY3D_OK) {
        return status;
    }
    job->starts[0] = 0;
    for (int64_t tile = 0; tile < job->tiles; tile++) {
        job->starts[tile + 1] = job->starts[tile] + place_parts(job, tile);
    }
    job->large_count = place_parts(job, job->tiles);
    return hy3d__parallel_for(job->context, job->parts, job->slots, job->cancel, put_grain, job);
}
