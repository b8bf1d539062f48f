/* Points into textures, and filling in. */
#include "fuzz_raster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct points {
    hy3d_scatter_desc desc;
    float *values, *uv, *weights;
    size_t texels;
} points;

/* What a place along one axis gives to a position; the places are exact. */
static double part_of(double place, int64_t position, bool is_nearest)
{
    const double before = floor(place), rest = place - before;
    if (is_nearest) {
        return floor(place + 0.5) >= (double)position && floor(place + 0.5) <= (double)position;
    }
    return (int64_t)before == position ? 1 - rest : (int64_t)before + 1 == position ? rest : 0;
}

/* Sums of one texel's shares: of weights, of a channel's values, of their magnitudes. */
static void share_out(const points *p, int64_t column, int64_t row, int64_t channel, double out[3])
{
    const hy3d_scatter_desc *const d = &p->desc;
    out[0] = out[1] = out[2] = 0;
    for (int64_t i = 0; i < d->points; i++) {
        const float u = p->uv[2 * i], v = p->uv[2 * i + 1];
        if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) {
            continue;
        }
        const bool is_nearest = d->filter == HY3D_SCATTER_NEAREST;
        double share = part_of((double)u * (double)(d->width - 1), column, is_nearest) *
                       part_of((double)v * (double)(d->height - 1), row, is_nearest);
        share *= p->weights == NULL ? 1 : (double)p->weights[i];
        const double value = (double)p->values[i * d->channels + channel];
        out[0] += share;
        out[1] += share * value;
        out[2] += share * fabs(value);
    }
}

static void check_texture(const points *p, const float *texture, const float *total)
{
    const hy3d_scatter_desc *const d = &p->desc;
    /* The header's bound, once for the library and once for the sums here. */
    const double bound = 2 * (0x1p-24 + 0x1p-52 * ((double)d->points + 8));
    double sums[3];
    for (size_t i = 0; i < p->texels * (size_t)d->channels; i++) {
        const int64_t texel = (int64_t)i / d->channels;
        share_out(p, texel % d->width, texel / d->width, (int64_t)i % d->channels, sums);
        const double got = (double)total[texel];
        FUZZ_CHECK(fabs(got - sums[0]) <= bound * sums[0] + 0x1p-149, "texel %lld: %g, wanted %g",
                   (long long)texel, got, sums[0]);
        if (sums[0] > 0x1p-40) {
            FUZZ_CHECK(fabs((double)texture[i] - sums[1] / sums[0]) <=
                           bound * (sums[2] / sums[0]) + 0x1p-149,
                       "value %zu: %g, wanted %g", i, (double)texture[i], sums[1] / sums[0]);
        } else if (sums[0] <= 0) {
            FUZZ_CHECK(texture[i] == 0, "value %zu: %g of nothing", i, (double)texture[i]);
        }
    }
}

static hy3d_raster_fault make_points(fuzz_input *in, points *p, bool is_whole)
{
    hy3d_scatter_desc *const d = &p->desc;
    *d = (hy3d_scatter_desc){.filter = (hy3d_scatter_filter)fuzz_between(in, 0, 1),
                             .width = fuzz_between(in, 1, 20),
                             .height = fuzz_between(in, 1, 20),
                             .channels = fuzz_between(in, 1, 5),
                             .points = fuzz_between(in, 0, 40),
                             .num_threads = (uint32_t)fuzz_between(in, 0, 3)};
    p->texels = (size_t)(d->width * d->height);
    p->values = fuzz_room((size_t)(d->points * d->channels) * 4, 0);
    p->uv = fuzz_room((size_t)d->points * 8, 0);
    hy3d_raster_fault fault = HY3D_RASTER_NO_FAULT;
    for (int64_t i = 0; i < d->points; i++) {
        for (int64_t c = 0; c < d->channels; c++) {
            p->values[i * d->channels + c] =
                is_whole ? (float)fuzz_between(in, -9, 9) : fuzz_float(in);
        }
        for (int64_t k = 2 * i; k < 2 * i + 2; k++) {
            p->uv[k] = fuzz_chance(in, 12) ? fuzz_float(in) : (float)fuzz_byte(in) / 254.0F;
            fault = fuzz_is_finite(p->uv[k]) ? fault : HY3D_RASTER_NOT_FINITE;
        }
    }
    if (fuzz_chance(in, 128)) {
        const bool is_wild = fuzz_chance(in, 24);
        p->weights = fuzz_room((size_t)d->points * 4, 0);
        for (int64_t i = 0; i < d->points; i++) {
            p->weights[i] = is_wild ? fuzz_float(in) : (float)fuzz_between(in, 0, 8) / 4;
            if (fault == HY3D_RASTER_NO_FAULT && !(p->weights[i] >= 0 &&
                                                   fuzz_is_finite(p->weights[i]))) {
                fault = HY3D_RASTER_NEGATIVE; /* or not finite */
            }
        }
    }
    return fault;
}

void fuzz_scatter(fuzz_input *in, hy3d_context *context)
{
    points p = {.weights = NULL};
    const bool is_whole = fuzz_chance(in, 128);
    const hy3d_raster_fault fault = make_points(in, &p, is_whole);
    hy3d_raster_problem problem = {HY3D_RASTER_NEGATIVE, -1, -1};
    const size_t bytes = p.texels * (size_t)p.desc.channels * 4;
    float *const texture[2] = {fuzz_room(bytes, 0xa5), fuzz_room(bytes, 0xa5)};
    float *const total[2] = {fuzz_room(p.texels * 4, 0xa5), fuzz_room(p.texels * 4, 0xa5)};
    const bool may_fail = fuzz_arm(in, context);
    hy3d_status status = hy3d_scatter(context, &p.desc, p.values, p.uv, p.weights, NULL, &problem,
                                      texture[0], total[0]);
    counting_fail(fuzz_memory(context), 0, false);
    if (!may_fail || status != HY3D_ERR_OUT_OF_MEMORY) {
        FUZZ_CHECK(status == (fault == HY3D_RASTER_NO_FAULT ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT),
                   "%s of fault %d", hy3d_status_name(status), fault);
        FUZZ_CHECK((problem.fault == HY3D_RASTER_NO_FAULT) == (status == HY3D_OK), "fault %d",
                   problem.fault);
    }
    if (status == HY3D_OK) {
        if (is_whole) {
            check_texture(&p, texture[0], total[0]);
        }
        p.desc.num_threads = p.desc.num_threads == 1 ? 3 : 1;
        status = hy3d_scatter(fuzz_other_context(context), &p.desc, p.values, p.uv, p.weights,
                              NULL, NULL, texture[1], total[1]);
        FUZZ_CHECK(status == HY3D_OK, "%s", hy3d_status_name(status));
    }
    FUZZ_CHECK(memcmp(texture[0], texture[1], bytes) == 0 &&
                   memcmp(total[0], total[1], p.texels * 4) == 0,
               "other bits, or written after %s", hy3d_status_name(status));
    for (int i = 0; i < 2; i++) {
        free(texture[i]);
        free(total[i]);
    }
    free(p.values);
    free(p.uv);
    free(p.weights);
}

typedef struct painting {
    hy3d_vertex_inpaint_desc desc;
    float *positions, *uv, *texture[3];
    int32_t *triangles, *uv_triangles;
    uint8_t *mask[3];
    size_t texels, bytes;
} painting;

static void make_painting(fuzz_input *in, painting *p)
{
    hy3d_vertex_inpaint_desc *const d = &p->desc;
    *d = (hy3d_vertex_inpaint_desc){.width = fuzz_between(in, 1, 12),
                                    .height = fuzz_between(in, 1, 12),
                                    .channels = fuzz_between(in, 1, 4),
                                    .vertices = fuzz_between(in, 1, 20),
                                    .uvs = fuzz_between(in, 1, 20),
                                    .faces = fuzz_between(in, 0, 30)};
    p->texels = (size_t)(d->width * d->height);
    p->bytes = p->texels * (size_t)d->channels * 4;
    p->positions = fuzz_room((size_t)d->vertices * 12, 0);
    p->uv = fuzz_room((size_t)d->uvs * 8, 0);
    p->triangles = fuzz_room((size_t)d->faces * 12, 0);
    p->uv_triangles = fuzz_room((size_t)d->faces * 12, 0);
    for (int i = 0; i < 3; i++) {
        p->texture[i] = fuzz_room(p->bytes, 0);
        p->mask[i] = fuzz_room(p->texels, 0);
    }
    fuzz_floats(in, p->texture[0], (int64_t)(p->bytes / 4), fuzz_chance(in, 128));
    for (size_t i = 0; i < p->texels; i++) {
        p->mask[0][i] = fuzz_chance(in, 128) ? 255 : 0;
    }
}

/* Only texels of corners may change, and their mask becomes 255. */
static void check_painted(const painting *p)
{
    const hy3d_vertex_inpaint_desc *const d = &p->desc;
    bool *const is_corner = fuzz_room(p->texels * sizeof(bool), 0);
    const size_t texel = (size_t)d->channels * 4;
    for (int64_t i = 0; i < 3 * d->faces; i++) {
        const float *const uv = p->uv + 2 * (int64_t)p->uv_triangles[i];
        float x = rintf(uv[0] * (float)(d->width - 1));
        float y = rintf((1.0F - uv[1]) * (float)(d->height - 1));
        x = x < 0 ? 0 : x > (float)(d->width - 1) ? (float)(d->width - 1) : x;
        y = y < 0 ? 0 : y > (float)(d->height - 1) ? (float)(d->height - 1) : y;
        is_corner[(size_t)y * (size_t)d->width + (size_t)x] = true;
    }
    for (size_t i = 0; i < p->texels; i++) {
        const bool is_same = memcmp((char *)p->texture[0] + i * texel,
                                    (char *)p->texture[1] + i * texel, texel) == 0;
        FUZZ_CHECK(is_corner[i] || (is_same && p->mask[0][i] == p->mask[1][i]),
                   "texel %zu is no corner's", i);
        FUZZ_CHECK(p->mask[1][i] == p->mask[0][i] || p->mask[1][i] == 255, "mask %d",
                   p->mask[1][i]);
    }
    free(is_corner);
}

static hy3d_status paint(hy3d_context *context, painting *p, int which,
                         hy3d_raster_problem *problem, int64_t *filled)
{
    memcpy(p->texture[which], p->texture[0], p->bytes);
    memcpy(p->mask[which], p->mask[0], p->texels);
    return hy3d_vertex_inpaint(context, &p->desc, p->positions, p->uv, p->triangles,
                               p->uv_triangles, NULL, problem, p->texture[which], p->mask[which],
                               filled);
}

void fuzz_inpaint(fuzz_input *in, hy3d_context *context)
{
    painting p;
    hy3d_raster_problem problem = {HY3D_RASTER_NEGATIVE, -1, -1};
    int64_t filled[2] = {-1, -1}, first[4];
    make_painting(in, &p);
    first[0] = fuzz_indices(in, p.triangles, 3 * p.desc.faces, p.desc.vertices);
    first[1] = fuzz_indices(in, p.uv_triangles, 3 * p.desc.faces, p.desc.uvs);
    first[2] = fuzz_floats(in, p.positions, 3 * p.desc.vertices, fuzz_chance(in, 128));
    first[3] = fuzz_floats(in, p.uv, 2 * p.desc.uvs, false);
    for (int64_t i = 0; i < 2 * p.desc.uvs; i++) {
        p.uv[i] = fuzz_is_finite(p.uv[i]) && fuzz_chance(in, 200) ? fabsf(fmodf(p.uv[i], 1)) : p.uv[i];
    }
    hy3d_raster_fault fault = HY3D_RASTER_NO_FAULT;
    int64_t at = -1;
    for (int i = 3; i >= 0; i--) {
        if (first[i] >= 0) {
            fault = i < 2 ? HY3D_RASTER_BAD_INDEX : HY3D_RASTER_NOT_FINITE;
            at = first[i] / (i == 3 ? 2 : 3);
        }
    }
    const bool may_fail = fuzz_arm(in, context);
    const hy3d_status status = paint(context, &p, 1, &problem, &filled[0]);
    counting_fail(fuzz_memory(context), 0, false);
    if (!may_fail || status != HY3D_ERR_OUT_OF_MEMORY) {
        fuzz_check_problem(status, &problem, fault, at);
    }
    if (status == HY3D_OK) {
        check_painted(&p);
        FUZZ_CHECK(paint(fuzz_other_context(context), &p, 2, NULL, &filled[1]) == HY3D_OK &&
                       memcmp(p.texture[1], p.texture[2], p.bytes) == 0 &&
                       memcmp(p.mask[1], p.mask[2], p.texels) == 0 && filled[0] == filled[1] &&
                       filled[0] >= 0 && filled[0] <= p.desc.vertices,
                   "painted another way, %lld filled", (long long)filled[0]);
    } else {
        FUZZ_CHECK(memcmp(p.texture[0], p.texture[1], p.bytes) == 0 &&
                       memcmp(p.mask[0], p.mask[1], p.texels) == 0 && filled[0] == -1,
                   "written in spite of %s", hy3d_status_name(status));
    }
    for (int i = 0; i < 3; i++) {
        free(p.texture[i]);
        free(p.mask[i]);
    }
    free(p.positions);
    free(p.uv);
    free(p.triangles);
    free(p.uv_triangles);
}
