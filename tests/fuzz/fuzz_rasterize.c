/* Pictures: of whole-numbered corners, where each pixel is decided once more in 128 bits; and of any
 * floats, where two CPU levels and thread counts must give the same bits. */
#include "fuzz_raster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

enum { MOST_FACES = 14, MOST_VERTICES = 20 };

typedef struct scene {
    hy3d_raster_desc desc;
    float *clip, *prior;
    int32_t *faces;
    size_t pixels;
    bool is_whole;
    hy3d_raster_fault fault;
    int64_t at;
} scene;

typedef struct picture {
    int32_t *face;
    float *barycentric, *depth;
} picture;

static void make_scene(fuzz_input *in, scene *s)
{
    *s = (scene){.is_whole = fuzz_chance(in, 150)};
    hy3d_raster_desc *const d = &s->desc;
    d->rule = (hy3d_raster_rule)fuzz_between(in, 0, 1);
    d->width = fuzz_between(in, 1, fuzz_chance(in, 16) ? 140 : 24);
    d->height = fuzz_between(in, 1, fuzz_chance(in, 16) ? 140 : 24);
    d->vertices = fuzz_between(in, fuzz_chance(in, 4) ? 0 : 3, MOST_VERTICES);
    d->faces = fuzz_between(in, 0, MOST_FACES);
    d->num_threads = (uint32_t)fuzz_between(in, 0, 4);
    s->pixels = (size_t)(d->width * d->height);
    s->clip = fuzz_room((size_t)d->vertices * 16, 0);
    s->faces = fuzz_room((size_t)d->faces * 12, 0);
    const int64_t odd = fuzz_floats(in, s->clip, 4 * d->vertices, s->is_whole);
    for (int64_t v = 0; s->is_whole && v < d->vertices; v++) {
        const float w = s->clip[4 * v + 3];
        s->clip[4 * v + 3] = w < -8 ? w + 8 : w < 1 ? 1 - w : w; /* mostly before the eye */
    }
    const int64_t bad = fuzz_indices(in, s->faces, 3 * d->faces, d->vertices);
    s->fault = odd >= 0   ? HY3D_RASTER_NOT_FINITE
               : bad >= 0 ? HY3D_RASTER_BAD_INDEX
                          : HY3D_RASTER_NO_FAULT;
    s->at = odd >= 0 ? odd / 4 : bad / 3;
    if (!s->is_whole && fuzz_chance(in, 64)) {
        s->prior = fuzz_room(s->pixels * 4, 0);
        for (size_t i = 0; i < s->pixels; i++) {
            s->prior[i] = i < 64 ? fuzz_float(in) : s->prior[i % 64];
        }
    }
}

static picture make_picture(const scene *s)
{
    return (picture){fuzz_room(s->pixels * 4, 0xa5), fuzz_room(s->pixels * 12, 0xa5),
                     fuzz_room(s->pixels * 4, 0xa5)};
}

static void free_picture(picture *p)
{
    free(p->face);
    free(p->barycentric);
    free(p->depth);
}

static hy3d_status draw(hy3d_context *context, const scene *s, const hy3d_cancel *cancel,
                        hy3d_raster_problem *problem, const picture *p)
{
    return hy3d_rasterize(context, &s->desc, s->clip, s->faces, s->prior, cancel, problem, p->face,
                          p->barycentric, p->depth);
}

/* det(a, b, (P, Q, R)) over (X, Y, W); *x and *y are the factors of P and Q. */
static wide determinant(const float *a, const float *b, const int64_t p[3], int64_t *x, int64_t *y)
{
    const int64_t ax = (int64_t)a[0], ay = (int64_t)a[1], aw = (int64_t)a[3];
    const int64_t bx = (int64_t)b[0], by = (int64_t)b[1], bw = (int64_t)b[3];
    *x = ay * bw - aw * by;
    *y = aw * bx - ax * bw;
    return (wide)*x * p[0] + (wide)*y * p[1] + (wide)(ax * by - ay * bx) * p[2];
}

enum { NOT_COVERED, COVERED, EITHER };

/* Whether a face covers a pixel, and Z/W there. */
static int covers(const scene *s, int64_t face, const int64_t p[3], double *depth)
{
    const bool is_compat = s->desc.rule == HY3D_RASTER_COMPAT;
    const float *v[3];
    int64_t x, y, own[3];
    wide total = 0, of_z = 0;
    for (int i = 0; i < 3; i++) {
        v[i] = s->clip + 4 * (int64_t)s->faces[3 * face + i];
    }
    own[0] = (int64_t)v[2][0];
    own[1] = (int64_t)v[2][1];
    own[2] = (int64_t)v[2][3];
    const wide det = determinant(v[0], v[1], own, &x, &y);
    const int64_t turn = det > 0 ? 1 : -1;
    if (det == 0 || p[2] == 0) {
        return NOT_COVERED;
    }
    for (int i = 0; i < 3; i++) {
        const wide edge = determinant(v[(i + 1) % 3], v[(i + 2) % 3], p, &x, &y) * turn;
        const int64_t w = (int64_t)v[i][3];
        const wide side = is_compat && w < 0 ? -edge : edge;
        const bool owns = is_compat || x * turn > 0 || (x == 0 && y * turn > 0);
        if ((is_compat && w == 0) || side < 0 || (side == 0 && !owns)) {
            return NOT_COVERED;
        }
        total += edge;
        of_z += edge * (int64_t)v[i][2];
    }
    const wide of_w = det * turn * p[2];
    *depth = (double)of_z / (double)of_w;
    if (is_compat) {
        return total == 0 ? NOT_COVERED : COVERED;
    }
    /* In the planes themselves a step of depth decides. */
    const double above = fabs(*depth) - 1;
    return above > 0x1p-27 ? NOT_COVERED : above < -0x1p-27 ? COVERED : EITHER;
}

/* Steps of depth, rounded down, held within 2^30. */
static double steps_of(const scene *s, double depth)
{
    const double steps = s->desc.rule == HY3D_RASTER_COMPAT ? (depth * 0.49999 + 0.5) * 0x1p18
                                                            : (depth * 0.5 + 0.5) * 0x1p30;
    return steps > 0x1p30 ? 0x1p30 : steps < -0x1p30 ? -0x1p30 : floor(steps);
}

static void check_pixel(const scene *s, int64_t column, int64_t row, int32_t seen)
{
    const hy3d_raster_desc *const d = &s->desc;
    const int64_t less = d->rule == HY3D_RASTER_COMPAT ? 1 : 0;
    const int64_t sx = d->width - less, sy = d->height - less;
    const int64_t p[3] = {(2 * column + 1 - d->width) * sy, (2 * row + 1 - d->height) * sx,
                          sx * sy};
    double nearest = INFINITY, own = INFINITY, depth = 0;
    bool must = false, may = false;
    for (int64_t f = 0; f < d->faces; f++) {
        const int answer = covers(s, f, p, &depth);
        must = must || answer == COVERED;
        nearest = answer == COVERED && depth < nearest ? depth : nearest;
        if (answer != NOT_COVERED && f + 1 == seen) {
            may = true;
            own = depth;
        }
    }
    FUZZ_CHECK(seen == 0 ? !must : may, "pixel %lld, %lld shows face %d", (long long)column,
               (long long)row, seen);
    FUZZ_CHECK(seen == 0 || steps_of(s, own) <= steps_of(s, nearest) + 1,
               "pixel %lld, %lld: face %d at %.17g, another one at %.17g", (long long)column,
               (long long)row, seen, own, nearest);
}

static void check_picture(const scene *s, const picture *p)
{
    for (size_t i = 0; i < s->pixels; i++) {
        const float *const b = p->barycentric + 3 * i;
        FUZZ_CHECK(p->face[i] >= 0 && p->face[i] <= s->desc.faces, "face %d", p->face[i]);
        FUZZ_CHECK(p->face[i] != 0 || (b[0] == 0 && b[1] == 0 && b[2] == 0 && isinf(p->depth[i]) &&
                                       p->depth[i] > 0),
                   "pixel %zu shows nothing and has a depth of %g", i, (double)p->depth[i]);
        if (s->is_whole) {
            check_pixel(s, (int64_t)i % s->desc.width, (int64_t)i / s->desc.width, p->face[i]);
            const float sum = b[0] + b[1] + b[2];
            FUZZ_CHECK(p->face[i] == 0 || s->desc.rule == HY3D_RASTER_COMPAT ||
                           fabsf(sum - 1) <= 0x1p-21F,
                       "pixel %zu: barycentrics sum to %.9g", i, (double)sum);
        }
    }
}

/* Another level and thread count: the same bits; and without the pictures that may be NULL. */
static void check_same(hy3d_context *context, const scene *s, const picture *p)
{
    picture again = make_picture(s);
    scene other = *s;
    hy3d_raster_problem problem;
    other.desc.num_threads = s->desc.num_threads == 1 ? 3 : 1;
    FUZZ_CHECK(draw(fuzz_other_context(context), &other, NULL, &problem, &again) == HY3D_OK,
               "not drawn again");
    FUZZ_CHECK(memcmp(again.face, p->face, s->pixels * 4) == 0 &&
                   memcmp(again.barycentric, p->barycentric, s->pixels * 12) == 0 &&
                   memcmp(again.depth, p->depth, s->pixels * 4) == 0,
               "another level draws another picture");
    memset(again.face, 0xa5, s->pixels * 4);
    FUZZ_CHECK(hy3d_rasterize(context, &s->desc, s->clip, s->faces, s->prior, NULL, NULL,
                              again.face, NULL, NULL) == HY3D_OK &&
                   memcmp(again.face, p->face, s->pixels * 4) == 0,
               "faces alone are others");
    free_picture(&again);
}

/* Descriptions that cannot be: nothing is written. */
static void spoil_desc(fuzz_input *in, hy3d_raster_desc *d)
{
    int64_t *const fields[] = {&d->width, &d->height, &d->vertices, &d->faces};
    const int64_t values[] = {0, -1, INT64_MIN, INT64_MAX, (int64_t)1 << 31};
    *fields[fuzz_byte(in) % 4] = values[fuzz_between(in, 1, 4)];
    if (fuzz_chance(in, 64)) {
        d->rule = (hy3d_raster_rule)(2 + fuzz_byte(in));
    }
}

void fuzz_rasterize(fuzz_input *in, hy3d_context *context)
{
    scene s;
    make_scene(in, &s);
    picture p = make_picture(&s);
    hy3d_raster_problem problem = {HY3D_RASTER_NEGATIVE, -1, -1};
    if (fuzz_chance(in, 8)) {
        spoil_desc(in, &s.desc);
        const hy3d_status status = draw(context, &s, NULL, &problem, &p);
        FUZZ_CHECK(status == HY3D_ERR_INVALID_ARGUMENT, "%s", hy3d_status_name(status));
        s.fault = HY3D_RASTER_BAD_INDEX; /* nothing may be written below */
    } else {
        const bool may_fail = fuzz_arm(in, context);
        const hy3d_status status = draw(context, &s, NULL, &problem, &p);
        counting_fail(fuzz_memory(context), 0, false);
        const bool failed = may_fail && status == HY3D_ERR_OUT_OF_MEMORY;
        if (!failed) {
            fuzz_check_problem(status, &problem, s.fault, s.at);
        }
        if (!failed && s.fault == HY3D_RASTER_NO_FAULT) {
            FUZZ_CHECK(status == HY3D_OK, "%s", hy3d_status_name(status));
            check_picture(&s, &p);
            check_same(context, &s, &p);
        }
    }
    for (size_t i = 0; i < s.pixels * 4 && s.fault != HY3D_RASTER_NO_FAULT; i++) {
        FUZZ_CHECK(((unsigned char *)p.face)[i] == 0xa5 && ((unsigned char *)p.depth)[i] == 0xa5,
                   "written in spite of a refusal");
    }
    free_picture(&p);
    free(s.clip);
    free(s.faces);
    free(s.prior);
}
