/* A counting sort of faces by tile. Faces are counted in parts that several threads take, and each
 * part writes where the parts before it end: so every list is in order of faces. */
#include "base/parallel.h"
#include "raster/internal.h"

/* Of the lists: tiles, and after them large faces. */
static int64_t lists(const hy3d__raster_job *job) { return job->tiles + 1; }

static uint32_t *counts_of(const hy3d__raster_job *job, int64_t chunk)
{
    return job->counts + chunk * lists(job);
}

static int64_t chunk_end(const hy3d__raster_job *job, int64_t chunk)
{
    const int64_t end = (chunk + 1) * job->chunk_faces;
    return end < job->desc->faces ? end : job->desc->faces;
}

static hy3d_status count_grain(void *argument, int64_t chunk, uint32_t slot)
{
    const hy3d__raster_job *const job = argument;
    uint32_t *const counts = counts_of(job, chunk);
    (void)slot;
    for (int64_t i = 0; i < lists(job); i++) {
        counts[i] = 0;
    }
    for (int64_t i = chunk * job->chunk_faces; i < chunk_end(job, chunk); i++) {
        if (job->bounds[i].left > job->bounds[i].right) {
            continue;
        }
        const hy3d__raster_bounds tiles = hy3d__raster_tiles_of(job->bounds[i]);
        if (hy3d__raster_is_large(tiles)) {
            counts[job->tiles]++;
            continue;
        }
        for (int64_t y = tiles.top; y <= tiles.bottom; y++) {
            for (int64_t x = tiles.left; x <= tiles.right; x++) {
                counts[y * job->tiles_across + x]++;
            }
        }
    }
    return HY3D_OK;
}

hy3d_status hy3d__raster_bin_count(hy3d__raster_job *job, int64_t *entries_out)
{
    int64_t total = 0;
    const hy3d_status status = hy3d__parallel_for(job->context, job->chunks, job->slots,
                                                  job->cancel, count_grain, job);
    if (status != HY3D_OK) {
        return status;
    }
    for (int64_t list = 0; list < lists(job); list++) {
        uint32_t before = 0; /* below 2^31: no face is twice in a list */
        job->starts[list] = total;
        for (int64_t chunk = 0; chunk < job->chunks; chunk++) {
            uint32_t *const count = counts_of(job, chunk) + list;
            const uint32_t here = *count;
            *count = before;
            before += here;
        }
        total += before;
    }
    job->starts[lists(job)] = total;
    *entries_out = total;
    return HY3D_OK;
}

static hy3d_status fill_grain(void *argument, int64_t chunk, uint32_t slot)
{
    const hy3d__raster_job *const job = argument;
    uint32_t *const places = counts_of(job, chunk);
    (void)slot;
    for (int64_t i = chunk * job->chunk_faces; i < chunk_end(job, chunk); i++) {
        if (job->bounds[i].left > job->bounds[i].right) {
            continue;
        }
        const hy3d__raster_bounds tiles = hy3d__raster_tiles_of(job->bounds[i]);
        if (hy3d__raster_is_large(tiles)) {
            job->entries[job->starts[job->tiles] + places[job->tiles]++] = (int32_t)i;
            continue;
        }
        for (int64_t y = tiles.top; y <= tiles.bottom; y++) {
            for (int64_t x = tiles.left; x <= tiles.right; x++) {
                const int64_t list = y * job->tiles_across + x;
                job->entries[job->starts[list] + places[list]++] = (int32_t)i;
            }
        }
    }
    return HY3D_OK;
}

hy3d_status hy3d__raster_bin_fill(hy3d__raster_job *job)
{
    return hy3d__parallel_for(job->context, job->chunks, job->slots, job->cancel, fill_grain, job);
}
