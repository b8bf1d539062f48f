/* Vertex normals. Vertices are cut into runs, faces are sorted into the runs of their corners,
 * and a run is summed by one thread in double, faces in order: a sum depends neither on threads
 * nor on runs. */
#include "base/parallel.h"
#include "hy3d/raster.h"
#include "raster/buckets.h"
#include "raster/checks.h"

#include <math.h>
#include <string.h>

/* Sums of a run: 384 KiB, in L2 with room for positions; but at least so many runs, that a small
 * mesh has work for several threads. */
enum { MOST_SHIFT = 14, LEAST_SHIFT = 10, LEAST_RUNS = 16 };

typedef struct normals_job {
    uint32_t vertices;
    int shift; /* a run has 2^shift vertices */
    const float *positions;
    const int32_t *triangles;
    hy3d_normal_weighting weighting;
    float *normals;
    const hy3d_cancel *cancel;
    hy3d__buckets buckets;
    double *sums; /* three a vertex of a run, for each slot */
} normals_job;

typedef struct vector {
    double x, y, z;
} vector;

static vector difference(const normals_job *job, int32_t to, int32_t from)
{
    const float *const a = job->positions + 3 * (int64_t)to;
    const float *const b = job->positions + 3 * (int64_t)from;
    return (vector){(double)a[0] - (double)b[0], (double)a[1] - (double)b[1],
                    (double)a[2] - (double)b[2]};
}

static vector cross(vector a, vector b)
{
    return (vector){a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

static double dot(vector a, vector b)
{
    return a.x * b.x + a.y * b.y + a.z * b.z;
}

/* To each run once, though several corners may lie in it. */
static void bucket_pass(const void *argument, int64_t begin, int64_t end,
                        const hy3d__buckets_sink *given)
{
    const normals_job *const job = argument;
    const hy3d__buckets_sink sink = *given; /* ours: no store can change it */
    for (int64_t f = begin; f < end; f++) {
        const int32_t *const corner = job->triangles + 3 * f;
        int32_t run[3];
        for (int k = 0; k < 3; k++) {
            run[k] = hy3d__read_i32(&corner[k]) >> job->shift;
            if ((k > 0 && run[k] == run[0]) || (k > 1 && run[k] == run[1])) {
                continue;
            }
            hy3d__buckets_put(&sink, run[k], f);
        }
    }
}

/* What corner k adds the face's normal with, which is `length` long and not 0. */
static double weight_of(const normals_job *job, const int32_t *corner, int k, double length)
{
    if (job->weighting == HY3D_NORMALS_BY_AREA) {
        return 1.0;
    }
    const vector a = difference(job, corner[(k + 1) % 3], corner[k]);
    const vector b = difference(job, corner[(k + 2) % 3], corner[k]);
    return atan2(length, dot(a, b)) / length;
}

static void add_face(const normals_job *job, int64_t face, int64_t first, int64_t n, double *sums)
{
    int32_t corner[3];
    for (int k = 0; k < 3; k++) {
        corner[k] = hy3d__read_index(&job->triangles[3 * face + k], job->vertices);
    }
    const vector normal =
        cross(difference(job, corner[1], corner[0]), difference(job, corner[2], corner[0]));
    const double length = sqrt(dot(normal, normal));
    for (int k = 0; k < 3 && length > 0; k++) {
        const int64_t at = corner[k] - first;
        if (at < 0 || at >= n) {
            continue;
        }
        const double weight = weight_of(job, corner, k, length);
        sums[3 * at] += weight * normal.x;
        sums[3 * at + 1] += weight * normal.y;
        sums[3 * at + 2] += weight * normal.z;
    }
}

static hy3d_status normals_grain(void *argument, int64_t grain, uint32_t slot)
{
    const normals_job *const job = argument;
    const int64_t first = grain << job->shift, left = (int64_t)job->vertices - first;
    const int64_t most = (int64_t)1 << job->shift, n = left < most ? left : most;
    double *const sums = job->sums + 3 * most * (int64_t)slot;
    memset(sums, 0, (size_t)(3 * n) * sizeof *sums);
    for (int64_t i = job->buckets.first[grain]; i < job->buckets.first[grain + 1]; i++) {
        if (hy3d__raster_stops(job->cancel, i)) {
            return HY3D_ERR_CANCELLED; /* one run may have all faces */
        }
        if (job->buckets.items[i] != HY3D__NO_ITEM) {
            add_face(job, job->buckets.items[i], first, n, sums);
        }
    }
    float *const normals = job->normals + 3 * first;
    for (int64_t i = 0; i < n; i++) {
        /* The largest float's square's square is far inside of double's range. */
        const vector sum = {sums[3 * i], sums[3 * i + 1], sums[3 * i + 2]};
        const double length = sqrt(dot(sum, sum));
        const double scale = length > 0 ? length : 1.0;
        normals[3 * i] = (float)(sum.x / scale);
        normals[3 * i + 1] = (float)(sum.y / scale);
        normals[3 * i + 2] = (float)(sum.z / scale);
    }
    return HY3D_OK;
}

static hy3d_status run(hy3d_context *context, normals_job *job, int64_t faces, uint32_t slots)
{
    job->shift = LEAST_SHIFT;
    while (job->shift < MOST_SHIFT && job->vertices >> job->shift > LEAST_RUNS) {
        job->shift++;
    }
    const int64_t runs = (int64_t)((job->vertices - 1) >> job->shift) + 1;
    slots = runs < (int64_t)slots ? (uint32_t)runs : slots;
    hy3d_status status = hy3d__buckets_make(context, faces, runs, bucket_pass, job, slots,
                                            job->cancel, &job->buckets);
    void *memory = NULL;
    if (status == HY3D_OK) {
        status = hy3d_workspace_take(context, (3 * sizeof(double) << job->shift) * slots, &memory);
    }
    if (status == HY3D_OK) {
        job->sums = memory;
        status = hy3d__parallel_for(context, runs, slots, job->cancel, normals_grain, job);
    }
    hy3d_workspace_give(context, memory);
    hy3d__buckets_destroy(&job->buckets);
    return status;
}

hy3d_status hy3d_vertex_normals(hy3d_context *context, int64_t vertices, int64_t faces,
                                const float *positions, const int32_t *triangles,
                                hy3d_normal_weighting weighting, uint32_t num_threads,
                                const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                                float *normals)
{
    if (problem_out != NULL) {
        *problem_out = (hy3d_raster_problem){HY3D_RASTER_NO_FAULT, 0, 0};
    }
    const bool is_sane = context != NULL && vertices >= 0 && vertices <= HY3D__RASTER_MOST_INDEX &&
                         faces >= 0 && faces < HY3D__RASTER_MOST_INDEX &&
                         (vertices == 0 || (positions != NULL && normals != NULL)) &&
                         (faces == 0 || triangles != NULL) &&
                         (weighting == HY3D_NORMALS_BY_AREA || weighting == HY3D_NORMALS_BY_ANGLE);
    if (!is_sane) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const uint32_t slots = hy3d__slots(context, num_threads);
    hy3d_status status = hy3d__raster_check_indices(context, faces, 3, triangles,
                                                    (uint32_t)vertices, slots, cancel, problem_out);
    if (status == HY3D_OK) {
        status =
            hy3d__raster_check_finite(context, vertices, 3, positions, slots, cancel, problem_out);
    }
    if (status != HY3D_OK || vertices == 0) {
        return status;
    }
    normals_job job = {.vertices = (uint32_t)vertices,
                       .positions = positions,
                       .triangles = triangles,
                       .weighting = weighting,
                       .normals = normals,
                       .cancel = cancel};
    return run(context, &job, faces, slots);
}
