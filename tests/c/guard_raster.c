/* Guard cases of the rasteriser's kernels. setup takes 1 to 8 faces and cover a tile of fixed size:
 * n is vertices there, and the pixels of the picture that `prior` belongs to. */
#include "guard_cases.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "raster/internal.h"

enum { SIDE = HY3D__TILE };

static hy3d__raster_view view_of(const guard_case *c, int64_t width, int64_t height)
{
    const hy3d_raster_desc desc = {
        .rule = c->variant % 2 ? HY3D_RASTER_COMPAT : HY3D_RASTER_TOPLEFT,
        .width = width,
        .height = height};
    return hy3d__raster_view_of(&desc);
}

/* Copies a view with zeros for its padding, since arrays are compared byte by byte. */
static void put_view(void *to, const hy3d__raster_view *view)
{
    const size_t used = offsetof(hy3d__raster_view, compat) + sizeof view->compat;
    memset(to, 0, sizeof *view);
    memcpy(to, view, used);
}

static guard_operand of_struct(size_t bytes, bool is_written)
{
    return (guard_operand){bytes, sizeof(double), GUARD_MADE, is_written};
}

static size_t faces_of(const guard_case *c)
{
    return 1 + c->variant % HY3D__FACES;
}

static void shape_setup(guard_case *c)
{
    const size_t vertices = c->n < 1 ? 1 : c->n;
    c->number[0] = vertices;
    c->number[1] = vertices < 8 ? 8 : vertices; /* faces of the mesh */
    c->count = 4;
    c->operand[0] = of_struct(sizeof(hy3d__raster_view), false);
    c->operand[1] = guard_floats(4 * vertices, GUARD_INTEGERS, false);
    c->operand[2] = guard_floats(3 * c->number[1], GUARD_MADE, false);
    c->operand[3] = of_struct(sizeof(hy3d__raster_faces), true);
}

static void make_setup(const guard_case *c, test_random *random, void *const at[])
{
    const hy3d__raster_view view = view_of(c, 33, 65);
    hy3d__raster_faces *const faces = at[3];
    int32_t *const triangles = at[2];
    put_view(at[0], &view);
    memset(faces, 0, sizeof *faces);
    for (size_t i = 0; i < 3 * c->number[1]; i++) {
        triangles[i] = (int32_t)test_between(random, 0, (int64_t)c->number[0] - 1);
    }
    for (int k = 0; k < HY3D__FACES; k++) { /* the last one among them */
        faces->face[k] =
            (int32_t)(c->number[1] - 1) - (k == 0 ? 0 : (int32_t)test_between(random, 0, 7));
    }
}

/* Of a face that is odd, and of those beyond n, nothing is promised: they are made equal. */
static void settle(hy3d__raster_faces *faces, size_t n)
{
    const unsigned there = (1U << n) - 1;
    faces->odd &= there;
    faces->careful &= there & ~faces->odd;
    for (size_t k = 0; k < HY3D__FACES; k++) {
        if (k < n && (faces->odd >> k & 1) == 0) {
            continue;
        }
        for (int i = 0; i < 3; i++) {
            faces->edge[i][0][k] = faces->edge[i][1][k] = faces->edge[i][2][k] = 0;
            faces->z[i][k] = faces->side[i][k] = 0;
        }
        faces->bound[k] = faces->nearest[k] = faces->farthest[k] = 0;
    }
}

static void call_setup(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->raster_setup_f64(faces_of(c), at[0], at[1], at[2], at[3]);
    settle(at[3], faces_of(c));
}

const guarded_kernel guard_raster_setup_f64 = {"raster_setup_f64", shape_setup, make_setup,
                                               call_setup};

/* A picture of n + 1 pixels, as wide as it may be, in one tile. */
static void shape_cover(guard_case *c)
{
    const size_t pixels = c->n + 1, rows = 1 + c->variant % 5;
    const size_t height = (pixels + SIDE - 1) / SIDE > rows ? (pixels + SIDE - 1) / SIDE : rows;
    const size_t width = (pixels + height - 1) / height;
    c->number[0] = width;
    c->number[1] = height;
    c->number[2] = width + c->variant / 5 % 3; /* pitch */
    c->count = 5;
    c->operand[0] = of_struct(sizeof(hy3d__raster_view), false);
    c->operand[1] = of_struct(sizeof(hy3d__raster_faces), false);
    c->operand[2] = (guard_operand){sizeof(hy3d__raster_box), 4, GUARD_MADE, false};
    c->operand[3] = guard_floats((height - 1) * c->number[2] + width, GUARD_INTEGERS, false);
    c->operand[4] = of_struct(sizeof(hy3d__raster_tile), true);
}

static void make_cover(const guard_case *c, test_random *random, void *const at[])
{
    static const int32_t corners[3] = {0, 1, 2};
    const hy3d__raster_view view = view_of(c, (int64_t)c->number[0], (int64_t)c->number[1]);
    const int right = (int)c->number[0] - 1, bottom = (int)c->number[1] - 1;
    const hy3d__raster_box box = {(int)test_between(random, 0, right), right,
                                  (int)test_between(random, 0, bottom), bottom};
    hy3d__raster_faces *const faces = at[1];
    hy3d__raster_tile *const tile = at[4];
    float clip[12];
    put_view(at[0], &view);
    memcpy(at[2], &box, sizeof box);
    memset(faces, 0, sizeof *faces);
    do { /* until there is one with an area */
        for (int i = 0; i < 12; i++) {
            clip[i] = i % 4 == 3 ? 1.0F : (float)test_between(random, -64, 64) / 16.0F;
        }
        hy3d__kernels_for(0)->raster_setup_f64(1, &view, clip, corners, faces);
    } while ((faces->odd & 1) != 0 && view.r > 0);
    settle(faces, 1);
    tile->x = tile->y = 0;
    tile->prior_pitch = (int64_t)c->number[2];
    tile->wants_depth = (int)(c->variant / 2 % 2);
    tile->doubts = 0;
    for (size_t i = 0; i < HY3D__TILE_PIXELS + HY3D__TILE_SLACK; i++) {
        tile->step[i] = INT32_MAX;
        tile->face[i] = 0;
        tile->depth[i] = 0;
        tile->barycentric[0][i] = tile->barycentric[1][i] = tile->barycentric[2][i] = 0;
    }
    memset(tile->doubt, 0, sizeof tile->doubt);
    tile->prior = NULL;
}

static int by_place(const void *a, const void *b)
{
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

/* Doubts come in the order of the lanes, which is no promise: they are sorted. The tile points at
 * `prior` during the call alone, so that copies of it compare. */
static void call_cover(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    hy3d__raster_tile *const tile = at[4];
    tile->prior = c->variant % 4 == 3 ? NULL : at[3];
    kernels->raster_cover_f64(at[0], at[1], 0, at[2], tile);
    tile->prior = NULL;
    qsort(tile->doubt, (size_t)tile->doubts, sizeof tile->doubt[0], by_place);
    memset(tile->doubt + tile->doubts, 0,
           sizeof tile->doubt - (size_t)tile->doubts * sizeof tile->doubt[0]);
}

const guarded_kernel guard_raster_cover_f64 = {"raster_cover_f64", shape_cover, make_cover,
                                               call_cover};

static void shape_interpolate(guard_case *c)
{
    static const size_t channels[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33};
    c->number[0] = channels[c->variant % COUNT_OF(channels)];
    c->number[1] = 3 + c->variant % 4; /* vertices */
    c->number[2] = 1 + c->variant % 6; /* faces */
    c->count = 5;
    c->operand[0] = guard_floats(c->number[0] * c->number[1], GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(3 * c->number[2], GUARD_MADE, false);
    c->operand[2] = guard_floats(c->n, GUARD_MADE, false);
    c->operand[3] = guard_floats(3 * c->n, GUARD_INTEGERS, false);
    c->operand[4] = guard_floats(c->n * c->number[0], GUARD_BITS, true);
}

static void make_interpolate(const guard_case *c, test_random *random, void *const at[])
{
    int32_t *const triangles = at[1], *const face = at[2];
    for (size_t i = 0; i < 3 * c->number[2]; i++) {
        triangles[i] = (int32_t)test_between(random, 0, (int64_t)c->number[1] - 1);
    }
    triangles[0] = (int32_t)c->number[1] - 1;
    for (size_t i = 0; i < c->n; i++) {
        face[i] = (int32_t)test_between(random, 0, (int64_t)c->number[2]);
    }
}

static void call_interpolate(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->interpolate_f32(c->n, c->number[0], (uint32_t)c->number[1], (uint32_t)c->number[2],
                             at[0], at[1], at[2], at[3], at[4]);
}

const guarded_kernel guard_interpolate_f32 = {"interpolate_f32", shape_interpolate,
                                              make_interpolate, call_interpolate};

static void shape_row(guard_case *c)
{
    c->count = 5;
    c->operand[0] = guard_floats(c->n, GUARD_MADE, false);
    c->operand[4] = guard_floats(3 * c->n, GUARD_BITS, true);
    for (int i = 1; i < 4; i++) {
        c->operand[i] = guard_floats(c->n, GUARD_BITS, false);
    }
}

static void make_row(const guard_case *c, test_random *random, void *const at[])
{
    int32_t *const face = at[0];
    for (size_t i = 0; i < c->n; i++) {
        face[i] = (int32_t)test_between(random, -1, 2);
    }
}

static void call_row(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->raster_row_f32(c->n, at[0], at[1], at[2], at[3], at[4]);
}

const guarded_kernel guard_raster_row_f32 = {"raster_row_f32", shape_row, make_row, call_row};
