/* Times a 3D convolution on the CPU and looks at a corner of its result.
 *
 *     make install PREFIX=$HOME/.local
 *     export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig LD_LIBRARY_PATH=$HOME/.local/lib
 *     cc -std=c11 time_conv3d.c -o time_conv3d $(pkg-config --cflags --libs hy3d_core)
 *     ./time_conv3d [IN_CHANNELS OUT_CHANNELS FRAMES ROWS COLUMNS]
 *
 * The kernel is 3 x 3 x 3, the padding keeps the size. Ends with 0, with 1 where a value is wrong,
 * with 2 after an error, with 3 where the way chosen needs a BLAS library and none is found
 * (HY3D_BLAS_LIBRARY=/path/to/libopenblas.so names one). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "hy3d/conv3d.h"

typedef long long ll;

#define RUNS 5
#define CORNER 4 /* rows of the corner, and likewise frames, columns and output channels */
#define MOST 4096

static void stop_unless_ok(hy3d_status status, const char *what)
{
    if (status != HY3D_OK) {
        fprintf(stderr, "%s: %s\n", what, hy3d_status_text(status));
        exit(2);
    }
}

/* A dense tensor of whole numbers from -3 to 3: sums of their products are exact in float. */
static hy3d_tensor tensor_of(hy3d_context *context, const int64_t size[HY3D_TENSOR_DIMS])
{
    hy3d_tensor tensor = {.dtype = HY3D_F32};
    int64_t count = 1;
    for (int i = HY3D_TENSOR_DIMS - 1; i >= 0; i--) {
        tensor.size[i] = size[i];
        tensor.stride[i] = count;
        count *= size[i];
    }
    stop_unless_ok(hy3d_alloc(context, (size_t)count * sizeof(float), &tensor.data), "tensor");
    uint32_t random = 1;
    for (int64_t i = 0; i < count; i++) {
        random = random * 1664525u + 1013904223u;
        ((float *)tensor.data)[i] = (float)((random >> 16) % 7u) - 3.0f;
    }
    return tensor;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static double seconds_now(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One value of the result: the sum that a convolution is, whole numbers in double. */
static double value_at(const hy3d_conv3d_desc *desc, const hy3d_tensor *x,
                       const hy3d_tensor *weight, int64_t channel, const int64_t at[3])
{
    double sum = 0;
    for (int64_t c = 0; c < desc->in_channels; c++) {
        for (int64_t tap = 0; tap < 27; tap++) {
            const int64_t k[3] = {tap / 9, tap / 3 % 3, tap % 3};
            int64_t from = c * x->stride[1];
            int64_t by = channel * weight->stride[0] + c * weight->stride[1];
            bool is_inside = true;
            for (int i = 0; i < 3; i++) {
                const int64_t read = at[i] + k[i] - desc->pad_before[i];
                is_inside = is_inside && read >= 0 && read < desc->in_size[i];
                from += read * x->stride[2 + i];
                by += k[i] * weight->stride[2 + i];
            }
            sum += is_inside ? (double)((const float *)x->data)[from] *
                                   (double)((const float *)weight->data)[by]
                             : 0;
        }
    }
    return sum;
}

/* The largest difference between y's first values along every axis and what they must be. */
static double corner_difference(const hy3d_conv3d_desc *desc, const hy3d_tensor *x,
                                const hy3d_tensor *weight, const hy3d_tensor *y)
{
    double most = 0;
    int64_t at[3];
    for (int64_t c = 0; c < smaller(y->size[1], CORNER); c++) {
        for (at[0] = 0; at[0] < smaller(y->size[2], CORNER); at[0]++) {
            for (at[1] = 0; at[1] < smaller(y->size[3], CORNER); at[1]++) {
                for (at[2] = 0; at[2] < smaller(y->size[4], CORNER); at[2]++) {
                    const int64_t place = c * y->stride[1] + at[0] * y->stride[2] +
                                          at[1] * y->stride[3] + at[2] * y->stride[4];
                    const double difference = fabs((double)((const float *)y->data)[place] -
                                                   value_at(desc, x, weight, c, at));
                    most = difference > most || isnan(difference) ? difference : most;
                }
            }
        }
    }
    return most;
}

/* Plans, runs and looks at it; prints a line. Returns whether the values are right. */
static bool time_one(hy3d_context *context, const hy3d_conv3d_desc *desc, const hy3d_tensor *x,
                     const hy3d_tensor *weight, const hy3d_tensor *y)
{
    const bool is_exact = desc->accuracy == HY3D_EXACT;
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    double best = INFINITY;

    const hy3d_status status = hy3d_conv3d_plan_create(context, desc, weight, NULL, NULL, &plan);
    if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        fprintf(stderr, "%s: %s\n", hy3d_status_text(status), hy3d_context_blas_error(context));
        exit(3);
    }
    stop_unless_ok(status, "plan");
    const size_t bytes = hy3d_conv3d_plan_workspace_bytes(plan);
    stop_unless_ok(hy3d_alloc(context, bytes, &workspace), "workspace");
    for (int i = 0; i < RUNS; i++) {
        const double start = seconds_now();
        stop_unless_ok(hy3d_conv3d_run(plan, x, y, workspace, NULL), "run");
        const double seconds = seconds_now() - start;
        best = seconds < best ? seconds : best;
    }
    /* Each is a multiplication and an addition, as the direct sum has them. */
    const double operations = 2.0 * 27 * (double)desc->in_channels * (double)y->size[1] *
                              (double)y->size[2] * (double)y->size[3] * (double)y->size[4];
    const double difference = corner_difference(desc, x, weight, y);
    /* The sums are whole numbers: the exact way has them, the fast one has them when rounded. */
    const bool is_right = is_exact ? difference <= 0 : difference < 0.5;
    printf("%-8s %-16s %7u %12zu %10.3f %9.2f  %.3g%s\n", is_exact ? "exact" : "fast",
           hy3d_conv3d_plan_strategy(plan), (unsigned)hy3d_conv3d_plan_threads(plan), bytes,
           1e3 * best, best > 0 ? 1e-9 * operations / best : 0.0, difference,
           is_right ? "" : " WRONG");
    hy3d_free(context, workspace);
    hy3d_conv3d_plan_destroy(plan);
    return is_right;
}

int main(int count, char **words)
{
    int64_t n[5] = {64, 64, 5, 48, 48};
    for (int i = 1; i < count; i++) {
        char *end = NULL;
        const ll value = strtoll(words[i], &end, 10);
        if (count != 6 || value < 1 || value > MOST || *end != '\0') {
            fprintf(stderr,
                    "usage: %s [IN_CHANNELS OUT_CHANNELS FRAMES ROWS COLUMNS], each 1 to "
                    "%d\n",
                    words[0], MOST);
            return 2;
        }
        n[i - 1] = value;
    }
    hy3d_conv3d_desc desc = {.dtype = HY3D_F32,
                             .batch = 1,
                             .in_channels = n[0],
                             .out_channels = n[1],
                             .groups = 1,
                             .in_size = {n[2], n[3], n[4]},
                             .kernel = {3, 3, 3},
                             .stride = {1, 1, 1},
                             .dilation = {1, 1, 1},
                             .pad_before = {1, 1, 1},
                             .pad_after = {1, 1, 1}};
    hy3d_context *context = NULL;
    bool is_right = true;

    stop_unless_ok(hy3d_context_create(NULL, &context), "context");
    const hy3d_tensor x = tensor_of(context, (const int64_t[]){1, n[0], n[2], n[3], n[4]});
    const hy3d_tensor weight = tensor_of(context, (const int64_t[]){n[1], n[0], 3, 3, 3});
    const hy3d_tensor y = tensor_of(context, (const int64_t[]){1, n[1], n[2], n[3], n[4]});

    printf("%lld to %lld channels, %lld x %lld x %lld, %s, best of %d\n", (ll)n[0], (ll)n[1],
           (ll)n[2], (ll)n[3], (ll)n[4], hy3d_cpu_level_name(hy3d_context_cpu_level(context)),
           RUNS);
    printf("%-8s %-16s %7s %12s %10s %9s  %s\n", "accuracy", "strategy", "threads", "workspace",
           "ms", "GFLOP/s", "difference");
    for (int i = 0; i < 2; i++) {
        desc.accuracy = i == 0 ? HY3D_EXACT : HY3D_FAST;
        is_right = time_one(context, &desc, &x, &weight, &y) && is_right;
    }
    hy3d_free(context, y.data);
    hy3d_free(context, weight.data);
    hy3d_free(context, x.data);
    hy3d_context_destroy(context);
    return is_right ? 0 : 1;
}
