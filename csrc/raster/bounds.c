/* Vertices on the screen, and the pixels that faces may cover. */
#include <math.h>

#include "base/parallel.h"
#include "raster/internal.h"

#define VERTICES_A_GRAIN 8192
#define FACES_A_GRAIN 8192
/* Beyond the picture by more than any rounding; its square is still exact in f32's range. */
#define FAR_AWAY 1e9
/* A place is off by four roundings of f32 at most: of 2^-24 of the picture's width, where it lies
 * within it or no farther away than that. What is farther away is outside with its error as well. */
#define MARGIN 0x1p-21F

static float on_screen(double quotient, double size)
{
    const double place = (quotient * 0.5 + 0.5) * size;
    return (float)(place > FAR_AWAY ? FAR_AWAY : place < -FAR_AWAY ? -FAR_AWAY : place);
}

/* In columns and rows: a pixel's centre is a whole number. */
static hy3d__raster_place place_of(const hy3d__raster_view *view, const float *v)
{
    const double w = (double)v[3];
    if (view->compat ? !(w < 0 || w > 0) : !(w > 0)) {
        return (hy3d__raster_place){NAN, NAN};
    }
    const float shift = view->compat ? 0.0F : -0.5F;
    return (hy3d__raster_place){on_screen((double)v[0] / w, view->sx) + shift,
                                on_screen((double)v[1] / w, view->sy) + shift};
}

static bool finite_vertex(const float *v)
{
    return isfinite(v[0]) && isfinite(v[1]) && isfinite(v[2]) && isfinite(v[3]);
}

static hy3d_status place_grain(void *argument, int64_t grain, uint32_t slot)
{
    hy3d__raster_job *const job = argument;
    const int64_t first = grain * VERTICES_A_GRAIN, left = job->desc->vertices - first;
    const int64_t end = first + (left < VERTICES_A_GRAIN ? left : VERTICES_A_GRAIN);
    (void)slot;
    for (int64_t i = first; i < end; i++) {
        if (!finite_vertex(job->clip + 4 * i)) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        job->places[i] = place_of(&job->view, job->clip + 4 * i);
    }
    return HY3D_OK;
}

hy3d_status hy3d__raster_place_vertices(hy3d__raster_job *job)
{
    const int64_t grains = (job->desc->vertices + VERTICES_A_GRAIN - 1) / VERTICES_A_GRAIN;
    return hy3d__parallel_for(job->context, grains, job->slots, job->cancel, place_grain, job);
}

/* The whole pixels from low to high that lie within [0, size); false if none does. */
static bool span(float low, float high, int32_t size, float margin, uint16_t *first,
                 uint16_t *last)
{
    const float from = ceilf(low - margin), to = floorf(high + margin);
    const float most = (float)(size - 1);
    if (from > to || from > most || to < 0) {
        return false;
    }
    *first = (uint16_t)(from < 0 ? 0 : from);
    *last = (uint16_t)(to > most ? most : to);
    return true;
}

static float least(float a, float b, float c)
{
    const float ab = a < b ? a : b;
    return ab < c ? ab : c;
}

static float most(float a, float b, float c)
{
    const float ab = a > b ? a : b;
    return ab > c ? ab : c;
}

static const hy3d__raster_bounds nothing = {1, 0, 1, 0};

static hy3d__raster_bounds bounds_of(const hy3d__raster_job *job, const int32_t *corner)
{
    const hy3d__raster_view *const view = &job->view;
    const hy3d__raster_place a = job->places[corner[0]], b = job->places[corner[1]],
                             c = job->places[corner[2]];
    const int lost = isnan(a.x) + isnan(b.x) + isnan(c.x);
    hy3d__raster_bounds out;
    if (lost != 0) {
        /* Through the eye's plane: all of the picture, the tiles will tell. */
        return view->compat || lost == 3
                   ? nothing
                   : (hy3d__raster_bounds){0, (uint16_t)(view->width - 1), 0,
                                           (uint16_t)(view->height - 1)};
    }
    if (!span(least(a.x, b.x, c.x), most(a.x, b.x, c.x), view->width,
              (float)view->width * MARGIN, &out.left, &out.right) ||
        !span(least(a.y, b.y, c.y), most(a.y, b.y, c.y), view->height,
              (float)view->height * MARGIN, &out.top, &out.bottom)) {
        return nothing;
    }
    return out;
}

static hy3d_status bounds_grain(void *argument, int64_t grain, uint32_t slot)
{
    hy3d__raster_job *const job = argument;
    const int64_t first = grain * FACES_A_GRAIN, left = job->desc->faces - first;
    const int64_t end = first + (left < FACES_A_GRAIN ? left : FACES_A_GRAIN);
    const uint64_t vertices = (uint64_t)job->desc->vertices;
    (void)slot;
    for (int64_t i = first; i < end; i++) {
        const int32_t *const corner = job->triangles + 3 * i;
        if ((uint64_t)corner[0] >= vertices || (uint64_t)corner[1] >= vertices ||
            (uint64_t)corner[2] >= vertices) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        job->bounds[i] = bounds_of(job, corner);
    }
    return HY3D_OK;
}

hy3d_status hy3d__raster_bound_faces(hy3d__raster_job *job)
{
    const int64_t grains = (job->desc->faces + FACES_A_GRAIN - 1) / FACES_A_GRAIN;
    return hy3d__parallel_for(job->context, grains, job->slots, job->cancel, bounds_grain, job);
}
