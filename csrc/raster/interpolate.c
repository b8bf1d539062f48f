/* Attributes of vertices at pixels, in grains of pixels. All indices are looked at before, which
 * costs a tenth of the time; the kernel bounds them again, in case another thread changes them. */
#include "base/parallel.h"
#include "hy3d/raster.h"
#include "kernels/kernels.h"
#include "raster/checks.h"

/* Values that a grain writes, about: 256 KiB, 60 us. */
#define GRAIN_VALUES 65536

typedef struct interpolate_job {
    const hy3d__kernels *kernels;
    uint32_t vertices, faces;
    int64_t channels, pixels, grain;
    const float *attributes;
    const int32_t *triangles, *face_index;
    const float *barycentric;
    float *out;
} interpolate_job;

static hy3d_status interpolate_grain(void *argument, int64_t grain, uint32_t slot)
{
    const interpolate_job *const job = argument;
    const int64_t first = grain * job->grain, left = job->pixels - first;
    const int64_t n = left < job->grain ? left : job->grain;
    (void)slot;
    job->kernels->interpolate_f32((size_t)n, (size_t)job->channels, job->vertices, job->faces,
                                  job->attributes, job->triangles, job->face_index + first,
                                  job->barycentric + 3 * first, job->out + job->channels * first);
    return HY3D_OK;
}

static hy3d_status check_sizes(const interpolate_job *job, int64_t vertices, int64_t faces)
{
    const bool is_sane = vertices >= 0 && vertices <= HY3D__RASTER_MOST_INDEX &&
                         job->channels >= 1 && faces >= 0 && faces < HY3D__RASTER_MOST_INDEX &&
                         job->pixels >= 0;
    if (!is_sane) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (!hy3d__raster_fits(vertices, job->channels) ||
        !hy3d__raster_fits(job->pixels, job->channels) || !hy3d__raster_fits(job->pixels, 3)) {
        return HY3D_ERR_OVERFLOW;
    }
    const bool is_there =
        (vertices == 0 || job->attributes != NULL) && (faces == 0 || job->triangles != NULL) &&
        (job->pixels == 0 ||
         (job->face_index != NULL && job->barycentric != NULL && job->out != NULL));
    return is_there ? HY3D_OK : HY3D_ERR_INVALID_ARGUMENT;
}

hy3d_status hy3d_interpolate(hy3d_context *context, int64_t vertices, int64_t channels,
                             int64_t faces, int64_t pixels, const float *attributes,
                             const int32_t *triangles, const int32_t *face_index,
                             const float *barycentric, uint32_t num_threads,
                             const hy3d_cancel *cancel, hy3d_raster_problem *problem_out,
                             float *out)
{
    if (problem_out != NULL) {
        *problem_out = (hy3d_raster_problem){HY3D_RASTER_NO_FAULT, 0, 0};
    }
    if (context == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    interpolate_job job = {
        .kernels = hy3d__kernels_for((int)hy3d_context_cpu_level(context)),
        .vertices = (uint32_t)vertices,
        .faces = (uint32_t)faces,
        .channels = channels,
        .pixels = pixels,
        .attributes = attributes,
        .triangles = triangles,
        .face_index = face_index,
        .barycentric = barycentric,
        .out = out,
    };
    hy3d_status status = check_sizes(&job, vertices, faces);
    if (status != HY3D_OK) {
        return status;
    }
    const uint32_t slots = hy3d__slots(context, num_threads);
    status = hy3d__raster_check_indices(context, faces, 3, triangles, (uint32_t)vertices, slots,
                                        cancel, problem_out);
    if (status == HY3D_OK) {
        status = hy3d__raster_check_indices(context, pixels, 1, face_index, (uint32_t)faces + 1,
                                            slots, cancel, problem_out);
    }
    if (status != HY3D_OK) {
        return status;
    }
    job.grain = channels < GRAIN_VALUES / 64 ? GRAIN_VALUES / channels : 64;
    const int64_t grains = pixels / job.grain + (pixels % job.grain != 0);
    return hy3d__parallel_for(context, grains, slots, cancel, interpolate_grain, &job);
}
