/* A renderer on embree for raster_peers.py: rays through pixel centres in packets of 4 x 4, coherent
 * traversal, face index and barycentrics in the order of the picture. Of embree's types only what is
 * written here; function and scene come from the caller, who has loaded version 3 or 4. */
#include <stdint.h>
#include <string.h>

enum { SIDE = 4, RAYS = SIDE * SIDE };

typedef struct packet {
    _Alignas(64) float origin[3][RAYS];
    float near[RAYS], direction[3][RAYS], time[RAYS], far[RAYS];
    uint32_t mask[RAYS], id[RAYS], flags[RAYS];
    float normal[3][RAYS], u[RAYS], v[RAYS];
    uint32_t face[RAYS], geometry[RAYS], instance[2][RAYS];
} packet;

typedef struct context_3 {
    uint32_t flags;
    void *filter;
    uint32_t instance[2];
} context_3;

typedef struct arguments_4 {
    uint32_t flags, features;
    void *context, *filter, *intersect;
    float width;
} arguments_4;

typedef void trace_3(const int *valid, void *scene, context_3 *context, packet *rays);
typedef void trace_4(const int *valid, void *scene, packet *rays, arguments_4 *arguments);

typedef struct view {
    void *scene;
    int64_t size; /* a multiple of 4 */
    float eye[3], slope;
} view;

static void aim(const view *v, int64_t x, int64_t y, packet *rays)
{
    for (int i = 0; i < RAYS; i++) {
        const float px = (float)(2 * (x + i % SIDE) + 1) / (float)v->size - 1.0f;
        const float py = (float)(2 * (y + i / SIDE) + 1) / (float)v->size - 1.0f;
        for (int axis = 0; axis < 3; axis++)
            rays->origin[axis][i] = v->eye[axis];
        rays->direction[0][i] = px * v->slope;
        rays->direction[1][i] = py * v->slope;
        rays->direction[2][i] = -1.0f;
        rays->far[i] = 1e30f;
        rays->mask[i] = rays->geometry[i] = rays->instance[0][i] = UINT32_MAX;
    }
}

static void store(const packet *rays, int64_t at, int64_t stride, int32_t *face, float *weights)
{
    for (int i = 0; i < RAYS; i++) {
        const int64_t pixel = at + i / SIDE * stride + i % SIDE;
        const int is_hit = rays->geometry[i] != UINT32_MAX;
        face[pixel] = is_hit ? (int32_t)rays->face[i] + 1 : 0;
        weights[3 * pixel] = is_hit ? 1.0f - rays->u[i] - rays->v[i] : 0.0f;
        weights[3 * pixel + 1] = is_hit ? rays->u[i] : 0.0f;
        weights[3 * pixel + 2] = is_hit ? rays->v[i] : 0.0f;
    }
}

/* Rows from first to end, multiples of 4. intersect: rtcIntersect16 of embree `version`. */
void draw(const view *v, void *intersect, int version, int64_t first, int64_t end, int32_t *face,
          float *weights)
{
    context_3 for_3 = {.flags = 1, .instance = {UINT32_MAX, UINT32_MAX}};
    arguments_4 for_4 = {.flags = 1u << 16, .features = UINT32_MAX};
    _Alignas(64) int valid[RAYS];
    packet rays;
    memset(valid, 0xFF, sizeof valid);
    memset(&rays, 0, sizeof rays);
    for (int64_t y = first; y < end; y += SIDE) {
        for (int64_t x = 0; x < v->size; x += SIDE) {
            aim(v, x, y, &rays);
            if (version == 3)
                ((trace_3 *)intersect)(valid, v->scene, &for_3, &rays);
            else
                ((trace_4 *)intersect)(valid, v->scene, &rays, &for_4);
            store(&rays, y * v->size + x, v->size, face, weights);
        }
    }
}
