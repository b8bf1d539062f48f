#include "rasterize_support.h"

#include <stdlib.h>
#include <string.h>

const hy3d_raster_rule raster_rules[RASTER_RULES] = {HY3D_RASTER_COMPAT, HY3D_RASTER_TOPLEFT};

const float raster_square[4][4] = {{-1, -1, 0, 1}, {1, -1, 0, 1}, {-1, 1, 0, 1}, {1, 1, 0, 1}};
const int32_t raster_two_faces[2][3] = {{0, 1, 2}, {3, 2, 1}};

raster_scene raster_scene_of(hy3d_raster_rule rule, const float *clip, int64_t vertices,
                      const int32_t *faces, int64_t count)
{
    return (raster_scene){.desc = {.rule = rule, .width = SIDE, .height = SIDE,
                                   .vertices = vertices,
                            .faces = count},
                   .clip = clip,
                   .faces = faces};
}

void *raster_must(void *memory)
{
    ck_assert_ptr_nonnull(memory);
    return memory;
}

picture picture_make(const hy3d_raster_desc *desc)
{
    const size_t pixels = (size_t)(desc->width * desc->height);
    const picture out = {raster_must(malloc(pixels * sizeof(int32_t))),
                         raster_must(malloc(pixels * 3 * sizeof(float))),
                         raster_must(malloc(pixels * sizeof(float))), pixels};
    memset(out.face_index, 0xa5, pixels * sizeof(int32_t));
    memset(out.barycentric, 0xa5, pixels * 3 * sizeof(float));
    memset(out.depth, 0xa5, pixels * sizeof(float));
    return out;
}

void picture_free(picture *p)
{
    free(p->face_index);
    free(p->barycentric);
    free(p->depth);
}

hy3d_status raster_draw(hy3d_context *context, const raster_scene *s, picture *p)
{
    return hy3d_rasterize(context, &s->desc, s->clip, s->faces, s->prior, NULL, NULL,
                          p->face_index, p->barycentric, p->depth);
}

/* Triangles of all sizes over a picture of several tiles, enough for several parts of the bins. */
raster_scene raster_crowd(hy3d_raster_rule rule, int64_t count, float *clip, int32_t *faces)
{
    test_random random = test_rng(71);
    for (int64_t i = 0; i < count; i++) {
        const int64_t reach = i % 64 == 0 ? 1500 : 40;
        const int64_t x = test_between(&random, -1100, 1100);
        const int64_t y = test_between(&random, -1100, 1100);
        for (int64_t k = 3 * i; k < 3 * i + 3; k++) {
            const float w = (float)test_between(&random, 1, 8);
            clip[4 * k] = w * (float)(x + test_between(&random, -reach, reach)) / 1000;
            clip[4 * k + 1] = w * (float)(y + test_between(&random, -reach, reach)) / 1000;
            clip[4 * k + 2] = w * (float)test_between(&random, -8, 8) / 8;
            clip[4 * k + 3] = i % 50 == 7 && k % 3 == 0 ? -w : w;
            faces[k] = (int32_t)k;
        }
    }
    return (raster_scene){.desc = {.rule = rule, .width = 211, .height = 150, .vertices = 3 * count,
                            .faces = count},
                   .clip = clip,
                   .faces = faces};
}

void assert_same_pictures(const picture *a, const picture *b)
{
    ck_assert_mem_eq(a->face_index, b->face_index, a->pixels * sizeof(int32_t));
    ck_assert_mem_eq(a->barycentric, b->barycentric, 3 * a->pixels * sizeof(float));
    ck_assert_mem_eq(a->depth, b->depth, a->pixels * sizeof(float));
}

