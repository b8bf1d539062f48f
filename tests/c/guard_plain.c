/* Guard cases of the kernels on rows of elements, of the convolution tile and of the products. */
#include "guard_cases.h"

guard_operand guard_floats(size_t n, guard_fill fill, bool is_written)
{
    return (guard_operand){n * sizeof(float), sizeof(float), fill, is_written};
}

static guard_operand halves(size_t n, bool is_written)
{
    return (guard_operand){n * sizeof(uint16_t), sizeof(uint16_t), GUARD_BITS, is_written};
}

static void shape_widen(guard_case *c)
{
    c->count = 2;
    c->operand[0] = halves(c->n, false);
    c->operand[1] = guard_floats(c->n, GUARD_BITS, true);
}

static void shape_narrow(guard_case *c)
{
    c->count = 2;
    c->operand[0] = guard_floats(c->n, GUARD_BITS, false);
    c->operand[1] = halves(c->n, true);
}

#define CONVERSION(name, shape)                                                                    \
    static void call_##name(const hy3d__kernels *kernels, const guard_case *c, void *const at[])   \
    {                                                                                              \
        kernels->name(c->n, at[0], at[1]);                                                         \
    }                                                                                              \
    const guarded_kernel guard_##name = {#name, shape, NULL, call_##name}

CONVERSION(cvt_f16_f32, shape_widen);
CONVERSION(cvt_bf16_f32, shape_widen);
CONVERSION(cvt_f32_f16, shape_narrow);
CONVERSION(cvt_f32_bf16, shape_narrow);

static void shape_blend(guard_case *c)
{
    c->count = 3;
    c->operand[0] = guard_floats(c->n, GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(c->n, GUARD_INTEGERS, false);
    c->operand[2] = guard_floats(c->n, GUARD_INTEGERS, true);
}

static void call_blend(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->blend_f32(c->n, 0.7F, c->variant % 4 == 0 ? NULL : at[0], at[1], at[2]);
}

const guarded_kernel guard_blend_f32 = {"blend_f32", shape_blend, NULL, call_blend};

/* n is k; vectors lie one after another, the last one ends with the input. */
static void shape_conv(guard_case *c)
{
    static const size_t rows[] = {1, 2, 3, 4, 8};
    const size_t mr = rows[c->variant % 5], nv = 1 + c->variant / 5 % 3, pad = c->variant / 15 % 3;
    c->number[0] = mr;
    c->number[1] = nv;
    c->number[2] = c->n + pad;       /* lda */
    c->number[3] = nv * 16 + 2 * pad; /* ldc */
    c->count = 5;
    c->operand[0] = guard_floats((mr - 1) * c->number[2] + c->n, GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(c->n == 0 ? 0 : c->n - 1 + nv * 16, GUARD_INTEGERS, false);
    c->operand[2] = guard_floats(c->n, GUARD_MADE, false);
    c->operand[3] = guard_floats(mr, GUARD_INTEGERS, false);
    c->operand[4] = guard_floats((mr - 1) * c->number[3] + nv * 16, GUARD_INTEGERS, true);
}

static void make_conv(const guard_case *c, test_random *random, void *const at[])
{
    int32_t *const offset = at[2];
    (void)random;
    for (size_t i = 0; i < c->n; i++) {
        offset[i] = (int32_t)(c->n - 1 - i);
    }
}

static void call_conv(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    const float *b[3];
    for (size_t v = 0; v < 3; v++) { /* those that are not read begin where nothing may be */
        b[v] = v < c->number[1] && c->n > 0 ? (const float *)at[1] + 16 * v : c->forbidden;
    }
    kernels->conv_f32((int)c->number[0], (int)c->number[1], c->n, at[0], c->number[2], b, at[2],
                      c->variant % 2 == 0 ? NULL : at[3], at[4], c->number[3]);
}

const guarded_kernel guard_conv_f32 = {"conv_f32", shape_conv, make_conv, call_conv};

static void shape_affine(guard_case *c)
{
    c->count = 1;
    c->operand[0] = guard_floats(c->n, GUARD_INTEGERS, true);
}

static void call_affine(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->affine_silu_f32(c->n, 0.75F, 0.3F, c->variant % 2 != 0, at[0]);
}

const guarded_kernel guard_affine_silu_f32 = {"affine_silu_f32", shape_affine, NULL, call_affine};

static void shape_affine_lanes(guard_case *c)
{
    c->count = 3;
    c->operand[0] = guard_floats(16, GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(16, GUARD_INTEGERS, false);
    c->operand[2] = guard_floats(16 * c->n, GUARD_INTEGERS, true);
}

static void call_affine_lanes(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->affine_silu_lanes_f32(c->n, at[0], at[1], c->variant % 2 != 0, at[2]);
}

const guarded_kernel guard_affine_silu_lanes_f32 = {"affine_silu_lanes_f32", shape_affine_lanes,
                                                    NULL, call_affine_lanes};

/* n is rows; segments overlap, as the frames of neighbouring outputs do. */
static void shape_gemm(guard_case *c)
{
    const size_t segments = 1 + c->variant % 3, blocks = 1 + c->variant / 3 % 2;
    const size_t block = (c->n + segments - 1 + c->variant / 6 % 2) * 16;
    const size_t a = (segments - 1) * 16 + (blocks - 1) * block + c->n * 16;
    c->number[0] = segments;
    c->number[1] = blocks;
    c->number[2] = block;
    c->count = 3;
    c->operand[0] = guard_floats(c->n == 0 ? 0 : a, GUARD_INTEGERS, false);
    c->operand[1] = guard_floats(segments * blocks * 16 * 32, GUARD_INTEGERS, false);
    c->operand[2] = guard_floats(32 * c->n, GUARD_INTEGERS, true);
}

static void call_gemm(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    const char *const page = c->forbidden;
    const hy3d__ahead ahead = {page, page, 64, 128, page + 4096, page + 4096};
    kernels->gemm_f32(c->n, c->number[0], 16, c->number[1], c->number[2], at[0], at[1], at[2],
                      (int)(c->variant / 12 % 2), &ahead);
}

const guarded_kernel guard_gemm_f32 = {"gemm_f32", shape_gemm, NULL, call_gemm};

static void shape_lanes(guard_case *c, size_t lines, size_t lanes)
{
    c->number[0] = c->n + c->variant % 4;
    c->count = 2;
    c->operand[lines] = guard_floats(c->n == 0 ? 0 : 15 * c->number[0] + c->n, GUARD_BITS,
                                     lines == 1);
    c->operand[lanes] = guard_floats(16 * c->n, GUARD_BITS, lanes == 1);
}

static void shape_to_lanes(guard_case *c)
{
    shape_lanes(c, 0, 1);
}

static void shape_from_lanes(guard_case *c)
{
    shape_lanes(c, 1, 0);
}

static void call_to_lanes(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->to_lanes_f32(c->n, at[0], c->number[0], at[1]);
}

static void call_from_lanes(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->from_lanes_f32(c->n, at[0], at[1], c->number[0]);
}

const guarded_kernel guard_to_lanes_f32 = {"to_lanes_f32", shape_to_lanes, NULL, call_to_lanes};
const guarded_kernel guard_from_lanes_f32 = {"from_lanes_f32", shape_from_lanes, NULL,
                                             call_from_lanes};

/* n is rounds. */
static void shape_peak(guard_case *c)
{
    c->count = 1;
    c->operand[0] = guard_floats(384, GUARD_INTEGERS, true);
}

static void call_peak(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->peak_f32(c->n, 0.5F, 3.0F, at[0]);
}

const guarded_kernel guard_peak_f32 = {"peak_f32", shape_peak, NULL, call_peak};

static void shape_moments(guard_case *c)
{
    c->count = 2;
    c->operand[0] = guard_floats(c->n, GUARD_INTEGERS, false);
    c->operand[1] = (guard_operand){2 * sizeof(double), sizeof(double), GUARD_BITS, true};
}

static void call_moments(const hy3d__kernels *kernels, const guard_case *c, void *const at[])
{
    kernels->moments_f32(c->n, at[0], 0.3, at[1]);
}

const guarded_kernel guard_moments_f32 = {"moments_f32", shape_moments, NULL, call_moments};
