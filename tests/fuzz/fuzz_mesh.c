/* Interpolation and normals of small meshes. */
#include "fuzz_raster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct mesh {
    int64_t vertices, faces, channels, pixels;
    float *attributes, *barycentric, *out, *again;
    int32_t *triangles, *index;
} mesh;

static void free_mesh(mesh *m)
{
    free(m->attributes);
    free(m->barycentric);
    free(m->out);
    free(m->again);
    free(m->triangles);
    free(m->index);
}

/* As the header writes it down, each step rounded. */
static void check_pixels(const mesh *m)
{
    for (int64_t i = 0; i < m->pixels * m->channels; i++) {
        const int64_t pixel = i / m->channels, c = i % m->channels;
        const float *const b = m->barycentric + 3 * pixel;
        float wanted = 0;
        if (m->index[pixel] != 0) {
            const int32_t *const corner = m->triangles + 3 * ((int64_t)m->index[pixel] - 1);
            for (int k = 0; k < 3; k++) {
                const float product = b[k] * m->attributes[corner[k] * m->channels + c];
                wanted = k == 0 ? product : wanted + product;
            }
        }
        const bool is_same =
            isnan(wanted) ? isnan(m->out[i]) : m->out[i] <= wanted && m->out[i] >= wanted;
        FUZZ_CHECK(is_same, "pixel %lld channel %lld: %g, wanted %g", (long long)pixel,
                   (long long)c, (double)m->out[i], (double)wanted);
    }
}

static hy3d_status interpolate(hy3d_context *context, const mesh *m, uint32_t threads,
                               hy3d_raster_problem *problem, float *out)
{
    return hy3d_interpolate(context, m->vertices, m->channels, m->faces, m->pixels, m->attributes,
                            m->triangles, m->index, m->barycentric, threads, NULL, problem, out);
}

void fuzz_interpolate(fuzz_input *in, hy3d_context *context)
{
    mesh m = {.vertices = fuzz_between(in, 1, 12), .faces = fuzz_between(in, 0, 12)};
    hy3d_raster_problem problem = {HY3D_RASTER_NEGATIVE, -1, -1};
    m.channels = fuzz_between(in, 1, 40);
    m.pixels = fuzz_between(in, 0, 70);
    const size_t values = (size_t)(m.pixels * m.channels);
    const bool is_whole = fuzz_chance(in, 100);
    m.attributes = fuzz_room((size_t)(m.vertices * m.channels) * 4, 0);
    m.triangles = fuzz_room((size_t)m.faces * 12, 0);
    m.index = fuzz_room((size_t)m.pixels * 4, 0);
    m.barycentric = fuzz_room((size_t)m.pixels * 12, 0);
    m.out = fuzz_room(values * 4, 0xa5);
    m.again = fuzz_room(values * 4, 0xa5);
    const int64_t bad = fuzz_indices(in, m.triangles, 3 * m.faces, m.vertices);
    const int64_t bad_pixel = fuzz_indices(in, m.index, m.pixels, m.faces + 1);
    fuzz_floats(in, m.barycentric, 3 * m.pixels, is_whole);
    fuzz_floats(in, m.attributes, m.vertices * m.channels, is_whole);
    const bool is_sound = bad < 0 && bad_pixel < 0;
    const hy3d_status status =
        interpolate(context, &m, (uint32_t)fuzz_between(in, 0, 3), &problem, m.out);
    fuzz_check_problem(status, &problem,
                       is_sound ? HY3D_RASTER_NO_FAULT : HY3D_RASTER_BAD_INDEX,
                       bad >= 0 ? bad / 3 : bad_pixel);
    if (is_sound) {
        FUZZ_CHECK(status == HY3D_OK, "%s", hy3d_status_name(status));
        check_pixels(&m);
    } else {
        FUZZ_CHECK(memcmp(m.out, m.again, values * 4) == 0, "written in spite of a refusal");
    }
    /* Sizes whose product has no address, and counts that cannot be. */
    m.pixels = fuzz_number(in);
    m.channels = fuzz_number(in);
    if (m.pixels < 0 || m.channels < 1 || m.pixels > INT64_MAX / 4 / m.channels) {
        const hy3d_status refused = interpolate(context, &m, 1, &problem, m.out);
        FUZZ_CHECK(refused == HY3D_ERR_INVALID_ARGUMENT || refused == HY3D_ERR_OVERFLOW, "%s",
                   hy3d_status_name(refused));
    }
    free_mesh(&m);
}

/* Sums of whole-numbered crosses are exact, so a direction is rounded when it is made of length 1. */
static void check_directions(const mesh *m)
{
    for (int64_t v = 0; v < m->vertices; v++) {
        double sum[3] = {0, 0, 0};
        for (int64_t f = 0; f < m->faces; f++) {
            const int32_t *const corner = m->triangles + 3 * f;
            const float *const a = m->attributes + 3 * (int64_t)corner[0];
            double e[2][3];
            for (int i = 0; i < 3; i++) {
                e[0][i] = (double)m->attributes[3 * corner[1] + i] - (double)a[i];
                e[1][i] = (double)m->attributes[3 * corner[2] + i] - (double)a[i];
            }
            for (int k = 0; k < 3; k++) {
                for (int i = 0; corner[k] == v && i < 3; i++) {
                    const int j = (i + 1) % 3, l = (i + 2) % 3;
                    sum[i] += e[0][j] * e[1][l] - e[0][l] * e[1][j];
                }
            }
        }
        const double length = sqrt(sum[0] * sum[0] + sum[1] * sum[1] + sum[2] * sum[2]);
        for (int i = 0; i < 3; i++) {
            const double wanted = length > 0 ? sum[i] / length : 0;
            FUZZ_CHECK(fabs((double)m->out[3 * v + i] - wanted) <= 0x1p-24, "vertex %lld: %g, "
                       "wanted %g", (long long)v, (double)m->out[3 * v + i], wanted);
        }
    }
}

void fuzz_normals(fuzz_input *in, hy3d_context *context)
{
    mesh m = {.vertices = fuzz_between(in, 1, 30), .faces = fuzz_between(in, 0, 40)};
    hy3d_raster_problem problem = {HY3D_RASTER_NEGATIVE, -1, -1};
    const bool is_whole = fuzz_chance(in, 128);
    const size_t bytes = (size_t)m.vertices * 12;
    const hy3d_normal_weighting weighting = (hy3d_normal_weighting)fuzz_between(in, 0, 1);
    m.attributes = fuzz_room(bytes, 0);
    m.triangles = fuzz_room((size_t)m.faces * 12, 0);
    m.out = fuzz_room(bytes, 0xa5);
    m.again = fuzz_room(bytes, 0xa5);
    const int64_t bad = fuzz_indices(in, m.triangles, 3 * m.faces, m.vertices);
    const int64_t odd = fuzz_floats(in, m.attributes, 3 * m.vertices, is_whole);
    const uint32_t threads = (uint32_t)fuzz_between(in, 0, 3);
    const bool may_fail = fuzz_arm(in, context);
    hy3d_status status = hy3d_vertex_normals(context, m.vertices, m.faces, m.attributes,
                                             m.triangles, weighting, threads, NULL, &problem,
                                             m.out);
    counting_fail(fuzz_memory(context), 0, false);
    if (may_fail && status == HY3D_ERR_OUT_OF_MEMORY) {
        free_mesh(&m);
        return;
    }
    fuzz_check_problem(status, &problem,
                       bad >= 0   ? HY3D_RASTER_BAD_INDEX
                       : odd >= 0 ? HY3D_RASTER_NOT_FINITE
                                  : HY3D_RASTER_NO_FAULT,
                       bad >= 0 ? bad / 3 : odd / 3);
    if (status == HY3D_OK) {
        if (is_whole && weighting == HY3D_NORMALS_BY_AREA) {
            check_directions(&m);
        }
        status = hy3d_vertex_normals(fuzz_other_context(context), m.vertices, m.faces,
                                     m.attributes, m.triangles, weighting, threads == 1 ? 3 : 1,
                                     NULL, NULL, m.again);
        FUZZ_CHECK(status == HY3D_OK, "%s", hy3d_status_name(status));
    }
    FUZZ_CHECK(memcmp(m.out, m.again, bytes) == 0, "other bits, or written after %s",
               hy3d_status_name(status));
    free_mesh(&m);
}
