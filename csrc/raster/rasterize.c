/* The entry: checks, memory, and the steps in order. */
#include <math.h>

#include "base/checked.h"
#include "base/parallel.h"
#include "raster/checks.h"
#include "raster/internal.h"

/* Counters of bins: parts of at least so many faces, and no more counters than that in all. */
#define LEAST_PART_FACES 4096
#define MOST_PARTS 16
#define MOST_COUNTERS ((int64_t)1 << 22)

static hy3d_status check(const hy3d_context *context, const hy3d_raster_desc *desc,
                         const float *clip, const int32_t *triangles, const int32_t *face_index)
{
    if (context == NULL || desc == NULL || face_index == NULL ||
        (desc->rule != HY3D_RASTER_COMPAT && desc->rule != HY3D_RASTER_TOPLEFT) ||
        desc->width < 1 || desc->width > HY3D_RASTER_MOST_PIXELS_A_SIDE || desc->height < 1 ||
        desc->height > HY3D_RASTER_MOST_PIXELS_A_SIDE || desc->vertices < 0 ||
        desc->vertices > HY3D__RASTER_MOST_INDEX || desc->faces < 0 ||
        desc->faces >= HY3D__RASTER_MOST_INDEX || (desc->vertices > 0 && clip == NULL) ||
        (desc->faces > 0 && triangles == NULL)) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return HY3D_OK;
}

hy3d__raster_view hy3d__raster_view_of(const hy3d_raster_desc *desc)
{
    const bool compat = desc->rule == HY3D_RASTER_COMPAT;
    const double sx = (double)(compat ? desc->width - 1 : desc->width);
    const double sy = (double)(compat ? desc->height - 1 : desc->height);
    const double scale = compat ? 0.49999 * 0x1p18 : 0x1p29;
    const double offset = compat ? 0x1p17 : 0x1p29;
    return (hy3d__raster_view){
        .width = (int32_t)desc->width,
        .height = (int32_t)desc->height,
        .sx = sx,
        .sy = sy,
        .r = sx * sy,
        .scale = scale,
        .offset = offset,
        .unscale = 1 / scale,
        .nearest = compat ? -(double)INFINITY : 0,
        .farthest = compat ? (double)INFINITY : 2 * offset,
        .hidden = offset + 1e-6 / 0.49999 * scale,
        .compat = compat,
    };
}

/* Lays out what the steps work on in one piece of memory; with memory NULL only adds up. */
static hy3d_status lay_out(hy3d__raster_job *job, char *memory, size_t *bytes_out)
{
    const size_t faces = (size_t)job->desc->faces, tiles = (size_t)job->tiles;
    const size_t sizes[][2] = {
        {(size_t)job->desc->vertices, sizeof(hy3d__raster_place)},
        {faces, sizeof(hy3d__raster_bounds)},
        {tiles + 1, sizeof(int64_t)},
        {(size_t)job->parts * (tiles + 1), sizeof(uint32_t)},
        {faces * HY3D__RASTER_FEW_TILES, sizeof(hy3d__raster_entry)},
        {faces, sizeof(int32_t)},
        {job->slots, hy3d__raster_tile_state_bytes()},
    };
    void *parts[sizeof sizes / sizeof sizes[0]];
    size_t at = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes;
        parts[i] = memory ? memory + at : NULL;
        if (!hy3d__mul_size(sizes[i][0], sizes[i][1], &bytes) ||
            !hy3d__add_size(bytes, 63, &bytes) || !hy3d__add_size(at, bytes / 64 * 64, &at)) {
            return HY3D_ERR_OVERFLOW;
        }
    }
    job->places = parts[0];
    job->bounds = parts[1];
    job->starts = parts[2];
    job->counts = parts[3];
    job->entries = parts[4];
    job->large = parts[5];
    job->tile_state = parts[6];
    *bytes_out = at;
    return HY3D_OK;
}

static hy3d_status draw(hy3d__raster_job *job)
{
    hy3d_status status = hy3d__raster_place_vertices(job);
    if (status == HY3D_OK) {
        status = hy3d__raster_bin_faces(job);
    }
    return status == HY3D_OK ? hy3d__raster_draw_tiles(job) : status;
}

/* The first of what is wrong, now that something is. */
static hy3d_status find_problem(const hy3d__raster_job *job, hy3d_raster_problem *problem_out)
{
    const hy3d_raster_desc *const desc = job->desc;
    hy3d_status status = hy3d__raster_check_finite(job->context, desc->vertices, 4, job->clip,
                                                   job->slots, job->cancel, problem_out);
    if (status == HY3D_OK) {
        status = hy3d__raster_check_indices(job->context, desc->faces, 3, job->triangles,
                                            (uint32_t)desc->vertices, job->slots, job->cancel,
                                            problem_out);
    }
    /* Gone, if somebody has changed the arrays meanwhile; the picture is not made all the same. */
    return status == HY3D_OK ? HY3D_ERR_INVALID_ARGUMENT : status;
}

static void plan_work(hy3d__raster_job *job)
{
    const hy3d_raster_desc *const desc = job->desc;
    const int64_t by_faces = desc->faces / LEAST_PART_FACES + 1;
    job->slots = hy3d__slots(job->context, desc->num_threads);
    job->tiles_across = (desc->width + HY3D__TILE - 1) / HY3D__TILE;
    job->tiles = job->tiles_across * ((desc->height + HY3D__TILE - 1) / HY3D__TILE);
    const int64_t by_tiles = MOST_COUNTERS / (job->tiles + 1) + 1;
    job->parts = by_faces < by_tiles ? by_faces : by_tiles;
    job->parts = job->parts < MOST_PARTS ? job->parts : MOST_PARTS;
    job->part_faces = (desc->faces + job->parts - 1) / job->parts;
}

hy3d_status hy3d_rasterize(hy3d_context *context, const hy3d_raster_desc *desc, const float *clip,
                           const int32_t *faces, const float *prior, const hy3d_cancel *cancel,
                           hy3d_raster_problem *problem_out, int32_t *face_index,
                           float *barycentric, float *depth)
{
    hy3d_status status = check(context, desc, clip, faces, face_index);
    void *memory = NULL;
    size_t bytes;
    if (problem_out != NULL) {
        *problem_out = (hy3d_raster_problem){HY3D_RASTER_NO_FAULT, 0, 0};
    }
    if (status != HY3D_OK) {
        return status;
    }
    hy3d__raster_job job = {
        .context = context,
        .kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(context)),
        .desc = desc,
        .view = hy3d__raster_view_of(desc),
        .cancel = cancel,
        .clip = clip,
        .triangles = faces,
        .prior = prior,
        .face_index = face_index,
        .barycentric = barycentric,
        .depth = depth,
    };
    plan_work(&job);
    status = lay_out(&job, NULL, &bytes);
    if (status == HY3D_OK) {
        status = hy3d_workspace_take(context, bytes, &memory);
    }
    if (status == HY3D_OK) {
        status = lay_out(&job, memory, &bytes);
    }
    if (status == HY3D_OK) {
        status = draw(&job);
    }
    hy3d_workspace_give(context, memory);
    return status == HY3D_ERR_INVALID_ARGUMENT ? find_problem(&job, problem_out) : status;
}
