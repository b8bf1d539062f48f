/* Lines of input: converted to the compute type, scaled, shifted, activated, repeated, padded. */
#include "conv3d/internal.h"

#include <math.h>
#include <string.h>

/* Gathered before a conversion kernel runs over them; small enough for the stack. */
#define CHUNK 128

int64_t hy3d__conv_resolve(int64_t index, int64_t size, bool replicate)
{
    if (index >= 0 && index < size) {
        return index;
    }
    if (!replicate) {
        return -1;
    }
    return index < 0 ? 0 : size - 1;
}

static void fill_f32(float *dst, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = value;
    }
}

static void copy_f32(const float *src, int64_t stride, int64_t n, float *dst)
{
    if (stride == 1) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        dst[i] = src[i * stride];
    }
}

static void copy_f64(const double *src, int64_t stride, int64_t n, double *dst)
{
    if (stride == 1) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        dst[i] = src[i * stride];
    }
}

static void convert(const hy3d__kernels *kernels, hy3d_dtype dtype, int64_t n, const uint16_t *src,
                    float *dst)
{
    if (dtype == HY3D_F16) {
        kernels->cvt_f16_f32((size_t)n, src, dst);
    } else {
        kernels->cvt_bf16_f32((size_t)n, src, dst);
    }
}

static void copy_half(const hy3d__kernels *kernels, hy3d_dtype dtype, const uint16_t *src,
                      int64_t stride, int64_t n, float *dst)
{
    uint16_t chunk[CHUNK];

    if (stride == 1) {
        convert(kernels, dtype, n, src, dst);
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) {
        const int64_t count = hy3d__conv_min(CHUNK, n - i);
        for (int64_t j = 0; j < count; j++) {
            chunk[j] = src[(i + j) * stride];
        }
        convert(kernels, dtype, count, chunk, dst + i);
    }
}

/* n elements of the line before repetition. */
static void load_f32(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t index,
                     int64_t step, int64_t n, float *dst)
{
    const int64_t at = index * line->stride;

    if (line->dtype == HY3D_F32) {
        copy_f32((const float *)(const void *)line->data + at, step * line->stride, n, dst);
    } else {
        copy_half(kernels, line->dtype, (const uint16_t *)(const void *)line->data + at,
                  step * line->stride, n, dst);
    }
    if (line->is_changed) {
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
static void load_inside_f32(const hy3d__kernels *kernels, const hy3d__conv_line *line,
                            int64_t index, int64_t step, int64_t n, float *dst)
{
    const int64_t repeat = line->repeat;

    if (n <= 0) {
        return;
    }
    if (repeat <= 1) {
        load_f32(kernels, line, index, step, n, dst);
    } else if (step <= repeat) {
        /* Each once, to the end of dst, and from there to their places. */
        const int64_t first = index / repeat;
        const int64_t count = (index + (n - 1) * step) / repeat - first + 1;
        load_f32(kernels, line, first, 1, count, dst + (n - count));
        repeat_f32(dst + (n - count), index % repeat, step, repeat, n, dst);
    } else {
        for (int64_t i = 0; i < n; i++) {
            load_f32(kernels, line, (index + i * step) / repeat, 1, 1, dst + i);
        }
    }
}

static void load_inside_f64(const hy3d__conv_line *line, int64_t index, int64_t step, int64_t n,
                            double *dst)
{
    const double *const data = (const double *)(const void *)line->data;

    if (line->repeat <= 1 && n > 0) {
        copy_f64(data + index * line->stride, step * line->stride, n, dst);
    }
    for (int64_t i = 0; line->repeat > 1 && i < n; i++) {
        dst[i] = data[(index + i * step) / line->repeat * line->stride];
    }
    for (int64_t i = 0; line->is_changed && i < n; i++) {
        const double v = dst[i] * (double)line->scale + (double)line->shift;
        dst[i] = line->silu != 0 ? v / (1.0 + exp(-v)) : v;
    }
}

static void load_line_f64(const hy3d__conv_line *line, int64_t first, int64_t step, int64_t before,
                          int64_t inside, int64_t n, double *dst)
{
    double left = 0.0, right = 0.0;

    if (line->replicate && before > 0) {
        load_inside_f64(line, 0, 1, 1, &left);
    }
    if (line->replicate && inside < n) {
        load_inside_f64(line, line->size - 1, 1, 1, &right);
    }
    for (int64_t i = 0; i < before; i++) {
        dst[i] = left;
    }
    load_inside_f64(line, first + before * step, step, inside - before, dst + before);
    for (int64_t i = inside; i < n; i++) {
        dst[i] = right;
    }
}

void hy3d__conv_load_line(const hy3d__kernels *kernels, const hy3d__conv_line *line, int64_t first,
                          int64_t step, int64_t n, void *dst)
{
    const bool is_f64 = line->dtype == HY3D_F64;

    if (line->data == NULL) {
        memset(dst, 0, (size_t)n * (is_f64 ? sizeof(double) : sizeof(float)));
        return;
    }
    /* Entries [0, before) lie before the line, [inside, n) behind it. */
    const int64_t before =
        first >= 0 ? 0 : hy3d__conv_min(n, hy3d__conv_ceil_div(-first, step));
    const int64_t last = line->size - 1 - first;
    const int64_t inside = last < 0 ? 0 : hy3d__conv_min(n, last / step + 1);

    if (is_f64) {
        load_line_f64(line, first, step, before, inside, n, dst);
        return;
    }
    float *const out = dst;
    float left = 0.0F, right = 0.0F;
    if (line->replicate && before > 0) {
        load_inside_f32(kernels, line, 0, 1, 1, &left);
    }
    if (line->replicate && inside < n) {
        load_inside_f32(kernels, line, line->size - 1, 1, 1, &right);
    }
    fill_f32(out, before, left);
    load_inside_f32(kernels, line, first + before * step, step, inside - before, out + before);
    fill_f32(out + inside, n - inside, right);
}
