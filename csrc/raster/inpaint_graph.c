#include "raster/inpaint_graph.h"
#include "raster/checks.h"

#include <math.h>
#include <string.h>

/* Each operation rounded to f32. */
static float weight_of(const float *a, const float *b)
{
    const float least = 1e-4F;
    const float x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    const float distance = sqrtf((x * x + y * y) + z * z);
    const float closeness = 1.0F / (distance > least ? distance : least);
    return closeness * closeness;
}

static hy3d_status make_room(hy3d_context *context, int64_t vertices, int64_t faces,
                             hy3d__inpaint_graph *out)
{
    const size_t corners = 3 * (size_t)faces;
    void *memory[4] = {NULL, NULL, NULL, NULL};
    hy3d_status status =
        hy3d_alloc(context, (size_t)(vertices + 1) * sizeof *out->first, &memory[0]);
    out->first = memory[0];
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, corners * sizeof *out->next, &memory[1]);
        out->next = memory[1];
    }
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, corners * sizeof *out->weight, &memory[2]);
        out->weight = memory[2];
    }
    if (status == HY3D_OK) {
        status = hy3d_alloc(context, corners * sizeof *out->before, &memory[3]);
        out->before = memory[3];
    }
    return status;
}

/* Counts, then the place of each vertex's first, which walks to its end while the corners are
 * put down; so it stands one vertex on. */
hy3d_status hy3d__inpaint_graph_make(hy3d_context *context, int64_t vertices, int64_t faces,
                                     const float *positions, const int32_t *triangles,
                                     const hy3d_cancel *cancel, hy3d__inpaint_graph *out)
{
    *out = (hy3d__inpaint_graph){NULL, NULL, NULL, NULL};
    const hy3d_status status = make_room(context, vertices, faces, out);
    if (status != HY3D_OK) {
        return status;
    }
    int64_t *const first = out->first;
    memset(first, 0, (size_t)(vertices + 1) * sizeof *first);
    for (int64_t corner = 0; corner < 3 * faces; corner++) {
        if (hy3d__raster_stops(cancel, corner)) {
            return HY3D_ERR_CANCELLED;
        }
        first[triangles[corner] + 1]++;
    }
    for (int64_t v = 0; v < vertices; v++) {
        first[v + 1] += first[v];
    }
    for (int64_t corner = 0; corner < 3 * faces; corner++) {
        if (hy3d__raster_stops(cancel, corner)) {
            return HY3D_ERR_CANCELLED;
        }
        const int64_t start = corner - corner % 3;
        const int64_t after = start + (corner + 1) % 3, at = first[triangles[corner]]++;
        out->next[at] = triangles[after];
        out->before[at] = triangles[start + (corner + 2) % 3];
        out->weight[at] = weight_of(positions + 3 * (int64_t)triangles[corner],
                                    positions + 3 * (int64_t)triangles[after]);
    }
    memmove(first + 1, first, (size_t)vertices * sizeof *first);
    first[0] = 0;
    return HY3D_OK;
}

void hy3d__inpaint_graph_destroy(hy3d_context *context, hy3d__inpaint_graph *graph)
{
    hy3d_free(context, graph->before);
    hy3d_free(context, graph->weight);
    hy3d_free(context, graph->next);
    hy3d_free(context, graph->first);
    *graph = (hy3d__inpaint_graph){NULL, NULL, NULL, NULL};
}
