/* Successors of vertices and what their colours weigh. */
#ifndef HY3D_RASTER_INPAINT_GRAPH_H
#define HY3D_RASTER_INPAINT_GRAPH_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/status.h"

/* The corner after each of vertex v's corners: next[first[v]] to next[first[v + 1] - 1], faces in
 * order; 1 / max(distance, 1e-4)^2 in f32; and the corner before each. */
typedef struct hy3d__inpaint_graph {
    int64_t *first;
    int32_t *next, *before;
    float *weight;
} hy3d__inpaint_graph;

/* Indices are in range. *out is to be destroyed whatever is returned: HY3D_ERR_OUT_OF_MEMORY,
 * HY3D_ERR_CANCELLED. */
hy3d_status hy3d__inpaint_graph_make(hy3d_context *context, int64_t vertices, int64_t faces,
                                     const float *positions, const int32_t *triangles,
                                     const hy3d_cancel *cancel, hy3d__inpaint_graph *out);
void hy3d__inpaint_graph_destroy(hy3d_context *context, hy3d__inpaint_graph *graph);

#endif
