/* Lines of input: converted to the compute type, scaled, shifted, activated, repeated, padded. */
#include "conv3d/plan.h"

#include <math.h>
#include <string.h>

#include "elements/elements.h"

/* x * scale + shift, and silu of it, in double. */
static void change_f64(const hy3d__conv_line *line, int64_t n, double *x)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i] * (double)line->scale + (double)line->shift;
        x[i] = line->silu != 0 ? v / (1.0 + exp(-v)) : v;
    }
}

/* n elements of the line before repetition. */
static void load(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t index,
                 int64_t step, int64_t n, void *dst)
{
    const int64_t bytes = (int64_t)hy3d_dtype_bytes(line->dtype);

    hy3d__read_elements(kernels, line->dtype, line->data + index * line->stride * bytes,
                        step * line->stride, n, dst);
    if (line->is_changed && line->dtype == HY3D_F64) {
        change_f64(line, n, dst);
    } else if (line->is_changed) {
        kernels->affine_silu_f32((size_t)n, line->scale, line->shift, line->silu, dst);
    }
}

/* from[0] until `phase` elements of it are `repeat`, then from[1] and so on, `step` at a time. May
 * run in place where from's last element is dst's last: a source is never before its target. */
static void repeat_f32(const float *from, int64_t phase, int64_t step, int64_t repeat, int64_t n,
                       float *dst)
{
    int64_t i = 0;

    if (step == 1 && repeat == 2) { /* what decoders do */
        if (phase == 1) {
            dst[i++] = *from++;
        }
        for (; i + 2 <= n; i += 2) {
            const float value = *from++;
            dst[i] = value;
            dst[i + 1] = value;
        }
        phase = 0;
    }
    for (; i < n; i++) {
        dst[i] = *from;
        phase += step;
        if (phase >= repeat) {
            phase -= repeat;
            from++;
        }
    }
}

/* n elements inside of the line. */
static void load_inside(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t index,
                        int64_t step, int64_t n, void *dst)
{
    const int64_t repeat = line->repeat;

    if (n <= 0) {
        return;
    }
    if (repeat <= 1) {
        load(kernels, line, index, step, n, dst);
    } else if (line->dtype != HY3D_F64 && step <= repeat) {
        /* Each once, to the end of dst, and from there to their places. */
        const int64_t first = index / repeat;
        const int64_t count = (index + (n - 1) * step) / repeat - first + 1;
        float *const last = (float *)dst + (n - count);
        load(kernels, line, first, 1, count, last);
        repeat_f32(last, index % repeat, step, repeat, n, dst);
    } else {
        const size_t bytes = line->dtype == HY3D_F64 ? sizeof(double) : sizeof(float);
        for (int64_t i = 0; i < n; i++) {
            load(kernels, line, (index + i * step) / repeat, 1, 1,
                 (unsigned char *)dst + (size_t)i * bytes);
        }
    }
}

/* A value of compute type. */
typedef union value {
    float f32;
    double f64;
} value;

static void fill(void *dst, int64_t from, int64_t to, bool is_f64, const value *with)
{
    for (int64_t i = from; i < to; i++) {
        if (is_f64) {
            ((double *)dst)[i] = with->f64;
        } else {
            ((float *)dst)[i] = with->f32;
        }
    }
}

void hy3d__conv_load_line(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t first,
                          int64_t step, int64_t n, void *dst)
{
    const bool is_f64 = line->dtype == HY3D_F64;
    const size_t bytes = is_f64 ? sizeof(double) : sizeof(float);

    if (line->data == NULL) {
        memset(dst, 0, (size_t)n * bytes);
        return;
    }
    /* Entries [0, before) lie before the line, [inside, n) behind it. */
    const int64_t before = first >= 0 ? 0 : hy3d__min_i64(n, hy3d__conv_ceil_div(-first, step));
    const int64_t last = line->size - 1 - first;
    const int64_t inside = last < 0 ? 0 : hy3d__min_i64(n, last / step + 1);
    value left = {.f64 = 0.0}, right = {.f64 = 0.0};

    if (line->replicate && before > 0) {
        load_inside(kernels, line, 0, 1, 1, &left);
    }
    if (line->replicate && inside < n) {
        load_inside(kernels, line, line->size - 1, 1, 1, &right);
    }
    fill(dst, 0, before, is_f64, &left);
    load_inside(kernels, line, first + before * step, step, inside - before,
                (unsigned char *)dst + (size_t)before * bytes);
    fill(dst, inside, n, is_f64, &right);
}
