/* Scenes and pictures for the tests of hy3d_rasterize. */
#ifndef HY3D_TESTS_RASTERIZE_SUPPORT_H
#define HY3D_TESTS_RASTERIZE_SUPPORT_H

#include "support.h"

#include "hy3d/raster.h"

enum { RASTER_RULES = 2, SIDE = 4, PIXELS = SIDE * SIDE };
extern const hy3d_raster_rule raster_rules[RASTER_RULES];

/* A square from corner to corner, of two faces that share the diagonal. */
extern const float raster_square[4][4];
extern const int32_t raster_two_faces[2][3];

typedef struct raster_scene {
    hy3d_raster_desc desc;
    const float *clip;
    const int32_t *faces;
    const float *prior;
} raster_scene;

typedef struct picture {
    int32_t *face_index;
    float *barycentric, *depth;
    size_t pixels;
} picture;

/* A picture of SIDE by SIDE. */
raster_scene raster_scene_of(hy3d_raster_rule rule, const float *clip, int64_t vertices,
                             const int32_t *faces, int64_t count);
/* Triangles of all sizes over a picture of several tiles, some with a corner behind the eye, into
 * clip (3 count, 4) and faces (count, 3). */
raster_scene raster_crowd(hy3d_raster_rule rule, int64_t count, float *clip, int32_t *faces);

/* Memory that was asked for; fails the test where it is NULL. */
void *raster_must(void *memory);

/* Full of rubbish. Fails the test without memory. */
picture picture_make(const hy3d_raster_desc *desc);
void picture_free(picture *p);
hy3d_status raster_draw(hy3d_context *context, const raster_scene *s, picture *p);
void assert_same_pictures(const picture *a, const picture *b);

#endif
