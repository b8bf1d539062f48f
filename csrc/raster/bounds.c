/* Vertices on the screen, and the pixels that a face may cover. */
#include <math.h>

#include "base/parallel.h"
#include "raster/checks.h"
#include "raster/internal.h"

#define VERTICES_A_GRAIN 8192
/* Places count 1/256 of a pixel; what is farther away than any rounding is there with its error. */
#define PARTS 256
#define FAR_AWAY 1e9
/* A place is off by less than one part, as it is cut to whole ones. */
#define MARGIN 2
/* What has no place on the screen. */
#define NOWHERE INT32_MIN

/* In columns or rows: a pixel's centre is a whole number. */
static int32_t on_screen(double quotient, double size, double shift)
{
    const double place = ((quotient * 0.5 + 0.5) * size + shift) * PARTS;
    return (int32_t)(place > FAR_AWAY ? FAR_AWAY : place < -FAR_AWAY ? -FAR_AWAY : place);
}

static hy3d__raster_place place_of(const hy3d__raster_view *view, const float *v)
{
    const double w = (double)v[3], shift = view->compat ? 0 : -0.5;
    if (view->compat ? !(w < 0 || w > 0) : !(w > 0)) {
        return (hy3d__raster_place){NOWHERE, NOWHERE};
    }
    return (hy3d__raster_place){on_screen((double)v[0] / w, view->sx, shift),
                                on_screen((double)v[1] / w, view->sy, shift)};
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
        float v[4];
        for (int k = 0; k < 4; k++) {
            v[k] = hy3d__read_f32(job->clip + 4 * i + k);
        }
        if (!finite_vertex(v)) {
            return HY3D_ERR_INVALID_ARGUMENT;
        }
        job->places[i] = place_of(&job->view, v);
    }
    return HY3D_OK;
}

hy3d_status hy3d__raster_place_vertices(hy3d__raster_job *job)
{
    const int64_t grains = (job->desc->vertices + VERTICES_A_GRAIN - 1) / VERTICES_A_GRAIN;
    return hy3d__parallel_for(job->context, grains, job->slots, job->cancel, place_grain, job);
}

static inline int32_t least(int32_t a, int32_t b, int32_t c)
{
    const int32_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

static inline int32_t most(int32_t a, int32_t b, int32_t c)
{
    const int32_t ab = a > b ? a : b;
    return ab > c ? ab : c;
}

/* The pixels between the places, within [0, size); false where there is none. */
static inline bool span(int32_t low, int32_t high, int32_t size, uint16_t *first, uint16_t *last)
{
    const int32_t from = low - MARGIN, to = high + MARGIN;
    if (to < 0) {
        return false;
    }
    const int32_t one = from > 0 ? (from + (PARTS - 1)) / PARTS : 0, other = to / PARTS;
    *first = (uint16_t)(one < size ? one : size);
    *last = (uint16_t)(other < size ? other : size - 1);
    return one <= other && one < size;
}

static const hy3d__raster_bounds nothing = {1, 0, 1, 0};

hy3d__raster_bounds hy3d__raster_bounds_of(const hy3d__raster_job *job, const int32_t *corner)
{
    const hy3d__raster_view *const view = &job->view;
    const hy3d__raster_place a = job->places[corner[0]], b = job->places[corner[1]],
                             c = job->places[corner[2]];
    const int lost = (a.x == NOWHERE) + (b.x == NOWHERE) + (c.x == NOWHERE);
    hy3d__raster_bounds out;
    if (lost != 0) {
        /* Through the eye's plane: all of the picture, the tiles will tell. */
        return view->compat || lost == 3 ? nothing
                                         : (hy3d__raster_bounds){0, (uint16_t)(view->width - 1), 0,
                                                                 (uint16_t)(view->height - 1)};
    }
    if (!span(least(a.x, b.x, c.x), most(a.x, b.x, c.x), view->width, &out.left, &out.right) ||
        !span(least(a.y, b.y, c.y), most(a.y, b.y, c.y), view->height, &out.top, &out.bottom)) {
        return nothing;
    }
    return out;
}
