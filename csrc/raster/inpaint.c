/* Colours of vertices from their neighbours'. The rounds are Gauss-Seidel: what a corner writes,
 * the next one reads, in f32. That order is the contract, so a call is one thread's work. What
 * may be left out is a mean whose successors have not changed since it was taken: it would come
 * out the same. A front that runs against the order takes a round a step, so that this is most
 * of all means. */
#include "base/checked.h"
#include "hy3d/raster.h"
#include "raster/checks.h"
#include "raster/inpaint_graph.h"

#include <string.h>

enum { FRESH = 1, LACKS = 2 };

typedef struct inpaint_job {
    const hy3d_vertex_inpaint_desc *desc;
    const float *uv;
    const int32_t *triangles, *uv_triangles; /* triangles: our own copy, once there is room */
    const hy3d_cancel *cancel;
    float *texture;
    uint8_t *mask;
    hy3d__inpaint_graph graph;
    float *colours; /* (vertices + 1, channels): the last row is for a sum on its way */
    uint8_t *has_colour;
    uint8_t *state; /* FRESH: no successor has changed since; LACKS: none had a colour */
    int32_t *open;  /* vertices of the corners whose texel is masked out */
    int64_t open_count;
    int64_t coloured; /* vertices with a colour */
} inpaint_job;

/* Halves to even, whatever the rounding mode; x is in 0 .. 2^15. */
static int64_t round_even(float x)
{
    const int64_t whole = (int64_t)x;
    const float rest = x - (float)whole; /* exact */
    if (rest < 0.5F) {
        return whole;
    }
    return rest > 0.5F ? whole + 1 : whole + whole % 2;
}

/* A float32 that is compared before it is converted: what is far outside has no integer. */
static int64_t nearest(float position, int64_t size)
{
    if (!(position > 0.0F)) {
        return 0;
    }
    return position < (float)(size - 1) ? round_even(position) : size - 1;
}

static int64_t texel_of(const inpaint_job *job, int64_t corner)
{
    const int64_t at = hy3d__read_index(&job->uv_triangles[corner], (uint32_t)job->desc->uvs);
    const float u = hy3d__read_f32(&job->uv[2 * at]), v = hy3d__read_f32(&job->uv[2 * at + 1]);
    const int64_t width = job->desc->width, height = job->desc->height;
    const int64_t column = nearest(u * (float)(width - 1), width);
    const int64_t row = nearest((1.0F - v) * (float)(height - 1), height);
    return row * width + column;
}

static hy3d_status look_at_texels(inpaint_job *job)
{
    const size_t channels = (size_t)job->desc->channels;
    for (int64_t corner = 0; corner < 3 * job->desc->faces; corner++) {
        if (hy3d__raster_stops(job->cancel, corner)) {
            return HY3D_ERR_CANCELLED;
        }
        const int32_t vertex = job->triangles[corner];
        const int64_t texel = texel_of(job, corner);
        if (job->mask[texel] == 0) {
            job->open[job->open_count++] = vertex;
            continue;
        }
        job->coloured += job->has_colour[vertex] == 0;
        job->has_colour[vertex] = 1;
        memcpy(job->colours + channels * (size_t)vertex, job->texture + channels * (size_t)texel,
               channels * sizeof(float));
    }
    return HY3D_OK;
}

/* The mean of the successors' colours, beside the colours: a vertex may be its own successor.
 * NULL where none has a colour (and a weight: at an infinite distance it has none). */
static const float *mean_of(const inpaint_job *job, int32_t vertex)
{
    const size_t channels = (size_t)job->desc->channels;
    const hy3d__inpaint_graph *const graph = &job->graph;
    float *const sum = job->colours + channels * (size_t)job->desc->vertices;
    float weights = 0;
    memset(sum, 0, channels * sizeof(float));
    for (int64_t i = graph->first[vertex]; i < graph->first[vertex + 1]; i++) {
        const int32_t next = graph->next[i];
        if (job->has_colour[next] == 0) {
            continue;
        }
        const float *const colour = job->colours + channels * (size_t)next;
        for (size_t c = 0; c < channels; c++) {
            sum[c] += colour[c] * graph->weight[i];
        }
        weights += graph->weight[i];
    }
    for (size_t c = 0; c < channels && weights > 0; c++) {
        sum[c] /= weights;
    }
    return weights > 0 ? sum : NULL;
}

static void smooth(inpaint_job *job, int32_t vertex)
{
    const size_t bytes = (size_t)job->desc->channels * sizeof(float);
    const float *const mean = mean_of(job, vertex);
    job->state[vertex] = mean == NULL ? FRESH | LACKS : FRESH;
    float *const colour = job->colours + (size_t)job->desc->channels * (size_t)vertex;
    if (mean == NULL || (job->has_colour[vertex] != 0 && memcmp(colour, mean, bytes) == 0)) {
        return;
    }
    memcpy(colour, mean, bytes);
    job->coloured += job->has_colour[vertex] == 0;
    job->has_colour[vertex] = 1;
    for (int64_t i = job->graph.first[vertex]; i < job->graph.first[vertex + 1]; i++) {
        job->state[job->graph.before[i]] &= LACKS;
    }
}

/* Ends: a corner that has found a coloured successor always will (weights do not change, colours
 * are not taken back), so there are at most as many other rounds as open corners. */
static hy3d_status fill(inpaint_job *job)
{
    int64_t counter = 2, before = 0;
    while (counter > 0) {
        int64_t without = 0;
        for (int64_t i = 0; i < job->open_count; i++) {
            if (hy3d__raster_stops(job->cancel, i)) {
                return HY3D_ERR_CANCELLED;
            }
            const int32_t vertex = job->open[i];
            if ((job->state[vertex] & FRESH) == 0) {
                smooth(job, vertex);
            }
            without += (job->state[vertex] & LACKS) != 0;
        }
        counter += without == before ? -1 : 1;
        before = without;
    }
    return HY3D_OK;
}

static void write_back(const inpaint_job *job)
{
    const size_t channels = (size_t)job->desc->channels;
    for (int64_t corner = 0; corner < 3 * job->desc->faces; corner++) {
        const int32_t vertex = job->triangles[corner];
        if (job->has_colour[vertex] == 0) {
            continue;
        }
        const int64_t texel = texel_of(job, corner);
        memcpy(job->texture + channels * (size_t)texel, job->colours + channels * (size_t)vertex,
               channels * sizeof(float));
        job->mask[texel] = 255;
    }
}

static hy3d_status get(hy3d_context *context, int64_t elements, int64_t bytes, void **memory_out)
{
    int64_t all;
    if (!hy3d__mul_i64(elements, bytes, &all)) {
        return HY3D_ERR_OVERFLOW;
    }
    return hy3d_alloc(context, (size_t)all, memory_out);
}

static hy3d_status make_room(hy3d_context *context, inpaint_job *job)
{
    const hy3d_vertex_inpaint_desc *const desc = job->desc;
    void *memory[4] = {NULL, NULL, NULL, NULL};
    hy3d_status status =
        get(context, desc->vertices + 1, desc->channels * (int64_t)sizeof(float), &memory[0]);
    job->colours = memory[0];
    if (status == HY3D_OK) {
        status = get(context, desc->vertices, 1, &memory[1]);
        job->has_colour = memory[1];
    }
    if (status == HY3D_OK) {
        memset(job->has_colour, 0, (size_t)desc->vertices);
        status = get(context, desc->vertices, 1, &memory[2]);
        job->state = memory[2];
    }
    if (status == HY3D_OK) {
        memset(job->state, 0, (size_t)desc->vertices);
        status = get(context, 3 * desc->faces, 2 * (int64_t)sizeof(int32_t), &memory[3]);
        job->open = memory[3];
    }
    return status;
}

/* Behind the open corners. Both passes over the graph's corners, and what is gone through in
 * rounds, must be the same mesh, whatever another thread does to the caller's. */
static void keep_triangles(inpaint_job *job)
{
    const int64_t corners = 3 * job->desc->faces;
    int32_t *const kept = job->open + corners;
    for (int64_t i = 0; i < corners; i++) {
        kept[i] = hy3d__read_index(&job->triangles[i], (uint32_t)job->desc->vertices);
    }
    job->triangles = kept;
}

static hy3d_status check_sizes(const hy3d_vertex_inpaint_desc *desc)
{
    const bool is_sane = desc->width >= 1 && desc->width <= HY3D_RASTER_MOST_PIXELS_A_SIDE &&
                         desc->height >= 1 && desc->height <= HY3D_RASTER_MOST_PIXELS_A_SIDE &&
                         desc->channels >= 1 && desc->vertices >= 0 &&
                         desc->vertices <= HY3D__RASTER_MOST_INDEX && desc->uvs >= 0 &&
                         desc->uvs <= HY3D__RASTER_MOST_INDEX && desc->faces >= 0 &&
                         desc->faces < HY3D__RASTER_MOST_INDEX;
    if (!is_sane) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    return hy3d__raster_fits(desc->width * desc->height, desc->channels) &&
                   hy3d__raster_fits(desc->vertices + 1, desc->channels)
               ? HY3D_OK
               : HY3D_ERR_OVERFLOW;
}

static hy3d_status check_values(hy3d_context *context, const inpaint_job *job,
                                const float *positions, hy3d_raster_problem *problem)
{
    const hy3d_vertex_inpaint_desc *const desc = job->desc;
    hy3d_status status = hy3d__raster_check_indices(
        context, desc->faces, 3, job->triangles, (uint32_t)desc->vertices, 1, job->cancel, problem);
    if (status == HY3D_OK) {
        status = hy3d__raster_check_indices(context, desc->faces, 3, job->uv_triangles,
                                            (uint32_t)desc->uvs, 1, job->cancel, problem);
    }
    if (status == HY3D_OK) {
        status = hy3d__raster_check_finite(context, desc->vertices, 3, positions, 1, job->cancel,
                                           problem);
    }
    if (status == HY3D_OK) {
        status = hy3d__raster_check_finite(context, desc->uvs, 2, job->uv, 1, job->cancel, problem);
    }
    return status;
}

static hy3d_status run(hy3d_context *context, inpaint_job *job, const float *positions,
                       int64_t *filled)
{
    hy3d_status status = make_room(context, job);
    if (status == HY3D_OK) {
        keep_triangles(job);
        status = look_at_texels(job);
    }
    if (status == HY3D_OK) {
        status = hy3d__inpaint_graph_make(context, job->desc->vertices, job->desc->faces, positions,
                                          job->triangles, job->cancel, &job->graph);
    }
    const int64_t before = job->coloured;
    if (status == HY3D_OK) {
        status = fill(job);
    }
    if (status == HY3D_OK) {
        write_back(job);
        *filled = job->coloured - before;
    }
    hy3d__inpaint_graph_destroy(context, &job->graph);
    hy3d_free(context, job->open);
    hy3d_free(context, job->state);
    hy3d_free(context, job->has_colour);
    hy3d_free(context, job->colours);
    return status;
}

hy3d_status hy3d_vertex_inpaint(hy3d_context *context, const hy3d_vertex_inpaint_desc *desc,
                                const float *positions, const float *uv, const int32_t *triangles,
                                const int32_t *uv_triangles, const hy3d_cancel *cancel,
                                hy3d_raster_problem *problem_out, float *texture, uint8_t *mask,
                                int64_t *filled_out)
{
    if (problem_out != NULL) {
        *problem_out = (hy3d_raster_problem){HY3D_RASTER_NO_FAULT, 0, 0};
    }
    if (context == NULL || desc == NULL || texture == NULL || mask == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    inpaint_job job = {.desc = desc,
                       .uv = uv,
                       .triangles = triangles,
                       .uv_triangles = uv_triangles,
                       .cancel = cancel,
                       .texture = texture,
                       .mask = mask};
    hy3d_status status = check_sizes(desc);
    const bool is_there = (desc->vertices == 0 || positions != NULL) &&
                          (desc->uvs == 0 || uv != NULL) &&
                          (desc->faces == 0 || (triangles != NULL && uv_triangles != NULL));
    if (status == HY3D_OK && !is_there) {
        status = HY3D_ERR_INVALID_ARGUMENT;
    }
    if (status == HY3D_OK) {
        status = check_values(context, &job, positions, problem_out);
    }
    int64_t filled = 0;
    if (status == HY3D_OK) {
        status = run(context, &job, positions, &filled);
    }
    if (status == HY3D_OK && filled_out != NULL) {
        *filled_out = filled;
    }
    return status;
}
