/* A digest of what the library computes from real data, a line for each thing: the lines must be
 * the same on every system. Uses the public headers only, so that on Windows it runs on the DLL.
 * Products that would go to a BLAS library are left out, since each system has another one, and so
 * is SiLU in f64, which is made with the system's exp(). */
#include <stdio.h>
#include <stdlib.h>

#include "hy3d/conv3d.h"
#include "hy3d/moments.h"
#include "hy3d/raster.h"
#include "hy3d/tiles.h"
#include "hy3d/seed.h"

static uint64_t state = 1;

static uint64_t next(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t word = (state ^ (state >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return word ^ (word >> 32);
}

/* -1 to 1 in steps of 2^-23. */
static float number(void)
{
    return (float)((int32_t)(next() >> 40) - (1 << 23)) / (float)(1 << 23);
}

static uint64_t digest(uint64_t before, const void *data, size_t bytes)
{
    const unsigned char *const byte = data;
    for (size_t i = 0; i < bytes; i++) {
        before = (before ^ byte[i]) * UINT64_C(1099511628211);
    }
    return before;
}

static void line(const char *what, const char *detail, int level, uint64_t value)
{
    printf("%s %s %s %016llx\n", hy3d_cpu_level_name((hy3d_cpu_level)level), what, detail,
           (unsigned long long)value);
}

static void need(hy3d_status status, const char *what)
{
    if (status != HY3D_OK) {
        printf("%s: %s\n", what, hy3d_status_text(status));
        exit(EXIT_FAILURE);
    }
}

static void *get(size_t bytes)
{
    void *const memory = calloc(1, bytes);
    if (memory == NULL) {
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* A plain tensor of numbers. f16 and bf16: their upper bits, of moderate size. */
static hy3d_tensor tensor(hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS])
{
    hy3d_tensor made = {.dtype = dtype};
    int64_t elements = 1;
    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        made.size[i] = size[i];
        made.stride[i] = elements;
        elements *= size[i];
    }
    made.data = get((size_t)elements * hy3d_dtype_bytes(dtype));
    for (int64_t i = 0; i < elements; i++) {
        const uint16_t sign = (uint16_t)((next() >> 63) << 15);
        switch (dtype) {
        case HY3D_F32:
            ((float *)made.data)[i] = number();
            break;
        case HY3D_F64:
            ((double *)made.data)[i] = (double)number();
            break;
        case HY3D_F16:
            ((uint16_t *)made.data)[i] = (uint16_t)(sign | (0x3000 + next() % 0x0c00));
            break;
        case HY3D_BF16:
            ((uint16_t *)made.data)[i] = (uint16_t)(sign | (0x3e00 + next() % 0x0180));
            break;
        }
    }
    return made;
}

static size_t bytes_of(const hy3d_tensor *of)
{
    return (size_t)(of->size[0] * of->stride[0]) * hy3d_dtype_bytes(of->dtype);
}

static void convolve(hy3d_context *context, int level, hy3d_conv3d_desc desc, bool has_silu)
{
    const int64_t *const in = desc.in_size, *const k = desc.kernel;
    const int64_t in_channels = desc.in_channels, out_channels = desc.out_channels;
    int64_t out[3];
    need(hy3d_conv3d_out_size(&desc, out), "out size");
    hy3d_tensor x = tensor(desc.dtype, (int64_t[5]){1, in_channels, in[0], in[1], in[2]});
    hy3d_tensor weight = tensor(
        desc.dtype, (int64_t[5]){out_channels, in_channels / desc.groups, k[0], k[1], k[2]});
    hy3d_tensor y = tensor(desc.dtype, (int64_t[5]){1, out_channels, out[0], out[1], out[2]});
    float *const scale = get((size_t)in_channels * sizeof(float));
    for (int64_t i = 0; i < in_channels; i++) {
        scale[i] = 1 + number() / 2;
    }
    const hy3d_conv3d_fusion fusion = {.scale = scale, .shift = scale, .activation = HY3D_SILU};
    hy3d_conv3d_plan *plan = NULL;
    size_t bytes;
    void *workspace;
    const hy3d_status status =
        hy3d_conv3d_plan_create(context, &desc, &weight, NULL, &bytes, &plan);
    if (status != HY3D_ERR_BLAS_UNAVAILABLE) {
        need(status, "plan");
        need(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace), "workspace");
        need(hy3d_conv3d_run_fused(plan, &x, has_silu ? &fusion : NULL, &y, workspace, NULL), "run");
        char detail[96];
        snprintf(detail, sizeof detail, "%s-%s-%d-%d-k%d%s", hy3d_conv3d_plan_strategy(plan),
                 hy3d_dtype_name(desc.dtype), (int)in_channels, (int)out_channels, (int)k[1],
                 has_silu ? "-silu" : "");
        line("conv3d", detail, level, digest(0, y.data, bytes_of(&y)));
        hy3d_free(context, workspace);
        hy3d_conv3d_plan_destroy(plan);
    }
    free(scale);
    free(x.data);
    free(weight.data);
    free(y.data);
}

static void convolutions(hy3d_context *context, int level)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F16, HY3D_BF16, HY3D_F64};
    static const int64_t channels[][3] = {
        {64, 64, 1}, {96, 3, 1}, {3, 32, 1}, {32, 32, 4}, {16, 16, 16}, {48, 40, 1}, {4, 4, 1}};
    for (size_t c = 0; c < sizeof channels / sizeof channels[0]; c++) {
        for (int i = 0; i < 4 * 2 * 2 * 2; i++) {
            const hy3d_dtype dtype = dtypes[i % 4];
            const int64_t k = i / 4 % 2 == 0 ? 3 : 1;
            hy3d_conv3d_desc desc = {.dtype = dtype,
                                     .batch = 1,
                                     .in_channels = channels[c][0],
                                     .out_channels = channels[c][1],
                                     .groups = channels[c][2],
                                     .in_size = {5, 19, 23},
                                     .kernel = {k, k, k},
                                     .stride = {1, 1, 1},
                                     .dilation = {1, 1, 1},
                                     .pad_before = {k - 1, k / 2, k / 2},
                                     .pad_after = {0, k / 2, k / 2},
                                     .accuracy = i / 8 % 2 == 0 ? HY3D_EXACT : HY3D_FAST};
            convolve(context, level, desc, i / 16 == 1 && dtype != HY3D_F64);
        }
    }
}

static void moments(hy3d_context *context, int level)
{
    for (hy3d_dtype dtype = HY3D_F32; dtype <= HY3D_BF16; dtype++) {
        double sums[2][9];
        if (dtype != HY3D_F64) {
            hy3d_tensor x = tensor(dtype, (int64_t[5]){1, 9, 3, 61, 53});
            need(hy3d_channel_moments(context, &x, 0, NULL, sums[0], sums[1]), "moments");
            line("moments", hy3d_dtype_name(dtype), level, digest(0, sums, sizeof sums));
            free(x.data);
        }
    }
}

static void pictures(hy3d_context *context, int level)
{
    enum { VERTICES = 600, FACES = 1000, SIDE = 300, PIXELS = SIDE * SIDE };
    float *const clip = get(VERTICES * 4 * sizeof(float));
    float *const normals = get(VERTICES * 3 * sizeof(float));
    int32_t *const faces = get(FACES * 3 * sizeof(int32_t));
    int32_t *const seen = get(PIXELS * sizeof(int32_t));
    float *const corners = get(PIXELS * 3 * sizeof(float));
    float *const depth = get(PIXELS * sizeof(float));
    float *const out = get(PIXELS * 4 * sizeof(float));
    for (int i = 0; i < VERTICES * 4; i++) {
        clip[i] = i % 4 == 3 ? 1.5F + number() : number();
    }
    for (int i = 0; i < FACES * 3; i++) {
        faces[i] = (int32_t)(next() % VERTICES);
    }
    for (int rule = 0; rule < 2; rule++) {
        const hy3d_raster_desc desc = {(hy3d_raster_rule)rule, SIDE, SIDE, VERTICES, FACES, 0};
        need(hy3d_rasterize(context, &desc, clip, faces, NULL, NULL, NULL, seen, corners, depth),
             "rasterize");
        need(hy3d_interpolate(context, VERTICES, 4, FACES, PIXELS, clip, faces, seen, corners, 0,
                              NULL, NULL, out),
             "interpolate");
        need(hy3d_vertex_normals(context, VERTICES, FACES, clip, faces,
                                 (hy3d_normal_weighting)0, 0, NULL, NULL, normals),
             "normals");
        const char *const name = rule == 0 ? "compat" : "topleft";
        line("raster", name, level, digest(0, seen, PIXELS * sizeof(int32_t)));
        line("barycentric", name, level, digest(0, corners, PIXELS * 3 * sizeof(float)));
        line("depth", name, level, digest(0, depth, PIXELS * sizeof(float)));
        line("interpolate", name, level, digest(0, out, PIXELS * 4 * sizeof(float)));
        line("normals", name, level, digest(0, normals, VERTICES * 3 * sizeof(float)));
    }
    free(clip);
    free(normals);
    free(faces);
    free(seen);
    free(corners);
    free(depth);
    free(out);
}

static void seeds_and_plans(int level)
{
    const hy3d_tiles_desc desc = {.latent = {21, 60, 104},
                                     .factor = {4, 8, 8},
                                     .causal = 1,
                                     .overlap = {1, 2, 2},
                                     .halo = {1, 1, 1},
                                     .min_tile = {2, 4, 4},
                                     .bytes_per_voxel = 12,
                                     .budget_bytes = INT64_C(60000000),
                                     .max_in_flight = 2,
                                     .level = -1};
    uint64_t seeds = 0, plans = 0;
    hy3d_tiles_plan plan;
    need(hy3d_tiles_make(&desc, NULL, &plan), "schedule");
    for (int64_t i = 0; i < plan.tiles; i++) {
        hy3d_tile tile;
        need(hy3d_tiles_at(&plan, i, &tile), "tile");
        plans = digest(plans, &tile, sizeof tile);
        const uint64_t seed = hy3d_seed_image(next(), (uint64_t)i);
        seeds = digest(seeds, &seed, sizeof seed);
    }
    line("seeds", "1", level, seeds);
    line("schedule", "1", level, plans);
}

#if defined(_WIN32)
#include <malloc.h>
#define GET(bytes) _aligned_malloc(bytes, 64)
#define PUT _aligned_free
#else
#define GET(bytes) aligned_alloc(64, bytes)
#define PUT free
#endif

/* No thread of the pool takes or gives memory back. */
static void *allocate(void *count, size_t bytes)
{
    void *const memory = GET(bytes);
    *(int64_t *)count += memory != NULL;
    return memory;
}

static void deallocate(void *count, void *memory)
{
    --*(int64_t *)count;
    PUT(memory);
}

int main(void)
{
    for (int level = 0; level <= (int)hy3d_cpu_detect(); level++) {
        int64_t live = 0;
        const hy3d_allocator allocator = {allocate, deallocate, &live};
        const hy3d_context_options options = {
            .cpu_level = hy3d_cpu_level_name((hy3d_cpu_level)level),
            .blas_library = "no-library",
            .max_threads = 3,
            .allocator = &allocator};
        hy3d_context *context = NULL;
        need(hy3d_context_create(&options, &context), "context");
        state = 1;
        seeds_and_plans(level);
        moments(context, level);
        pictures(context, level);
        convolutions(context, level);
        hy3d_context_destroy(context);
        line("leaks", "-", level, (uint64_t)live);
    }
    return EXIT_SUCCESS;
}
