/* Blending of small tiles in any layout, against one multiplication and one sum at a time; and of
 * spoilt ones, which are refused before anything is written. */
#include "fuzz_schedule.h"

#include <stdlib.h>
#include <string.h>

#define FILL 0xa5

typedef struct problem {
    fuzz_tensor tile, out;
    float *window[3]; /* NULL: ones */
} problem;

static void make_problem(fuzz_input *in, problem *p)
{
    static const hy3d_dtype types[] = {HY3D_F32, HY3D_F16, HY3D_BF16, HY3D_F64};
    int64_t size[HY3D_TENSOR_DIMS];
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        size[i] = fuzz_between(in, i == 0 || fuzz_chance(in, 4) ? 0 : 1, i == 4 ? 19 : 7);
    }
    if (fuzz_chance(in, 16)) { /* longer than its buffers */
        size[4] = fuzz_between(in, 250, 600);
        size[0] = size[2] = 1;
    }
    size[0] = size[0] > 2 ? 1 : size[0];
    p->tile = fuzz_tensor_make(in, types[fuzz_byte(in) % 4], size, false, FILL);
    p->out = fuzz_tensor_make(in, types[fuzz_byte(in) % 4], size, true, FILL);
    const uint64_t seed = fuzz_bits(in);
    fuzz_tensor_fill(&p->tile.tensor, seed, 9);
    fuzz_tensor_fill(&p->out.tensor, seed * 3 + 2, 9);
    for (int i = 0; i < 3; i++) {
        p->window[i] = NULL;
        if (fuzz_chance(in, 160)) {
            uint64_t state = fuzz_bits(in) | 1U;
            p->window[i] = fuzz_room((size_t)size[2 + i] * sizeof(float), 0);
            for (int64_t k = 0; k < size[2 + i]; k++) {
                p->window[i][k] = (float)(fuzz_step(&state) >> 55) / 256.0F;
            }
        }
    }
}

static void free_problem(problem *p)
{
    fuzz_tensor_free(&p->tile);
    fuzz_tensor_free(&p->out);
    for (int i = 0; i < 3; i++) {
        free(p->window[i]);
    }
}

static float window_at(const problem *p, int i, int64_t at)
{
    return p->window[i] == NULL ? 1.0F : p->window[i][at];
}

static hy3d_status blend(hy3d_context *context, const problem *p)
{
    return hy3d_blend_accumulate(context, &p->tile.tensor, p->window[0], p->window[1],
                                 p->window[2], &p->out.tensor);
}

static void check_blend(hy3d_context *context, problem *p)
{
    fuzz_tensor wanted = fuzz_tensor_like(&p->out);
    const bool in_f64 =
        p->tile.tensor.dtype == HY3D_F64 || p->out.tensor.dtype == HY3D_F64;
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    if (!fuzz_is_empty(&wanted.tensor)) {
        do {
            const float weight = (window_at(p, 0, at[2]) * window_at(p, 1, at[3])) *
                                 window_at(p, 2, at[4]); /* of steps of 1/256: exact */
            const double tile = fuzz_get(&p->tile.tensor, at), out = fuzz_get(&wanted.tensor, at);
            const float product = (float)tile * weight;
            fuzz_set(&wanted.tensor, at,
                     in_f64 ? out + tile * (double)weight : (double)((float)out + product));
        } while (fuzz_next(&wanted.tensor, at));
    }
    const hy3d_status status = blend(context, p);
    FUZZ_CHECK(status == HY3D_OK, "%s", hy3d_status_name(status));
    FUZZ_CHECK(memcmp(wanted.memory, p->out.memory, wanted.bytes) == 0, "other bits");
    fuzz_tensor_free(&wanted);
}

static void check_spoilt(fuzz_input *in, hy3d_context *context, problem *p)
{
    fuzz_tensor before = fuzz_tensor_like(&p->out);
    const bool spoils_out = fuzz_chance(in, 128);
    fuzz_spoil(in, spoils_out ? &p->out.tensor : &p->tile.tensor, spoils_out);
    const hy3d_status status = blend(context, p);
    FUZZ_CHECK(status == HY3D_ERR_INVALID_ARGUMENT || status == HY3D_ERR_SHAPE_MISMATCH ||
                   status == HY3D_ERR_OVERFLOW,
               "%s", hy3d_status_name(status));
    FUZZ_CHECK(memcmp(before.memory, p->out.memory, before.bytes) == 0, "written after %s",
               hy3d_status_name(status));
    fuzz_tensor_free(&before);
}

/* Strides whose reach has no address, with sizes that agree. */
static void check_reach(fuzz_input *in, hy3d_context *context, problem *p)
{
    fuzz_tensor before = fuzz_tensor_like(&p->out);
    const int dim = (int)fuzz_between(in, 0, 4);
    hy3d_tensor *const victim = fuzz_chance(in, 128) ? &p->out.tensor : &p->tile.tensor;
    if (victim->size[dim] > 1) {
        victim->stride[dim] = fuzz_chance(in, 128) ? INT64_MAX : INT64_MIN + 1;
        const hy3d_status status = blend(context, p);
        FUZZ_CHECK(status == HY3D_ERR_OVERFLOW, "%s", hy3d_status_name(status));
        FUZZ_CHECK(memcmp(before.memory, p->out.memory, before.bytes) == 0, "written");
    }
    fuzz_tensor_free(&before);
}

void fuzz_blend(fuzz_input *in, hy3d_context *context)
{
    problem p;
    make_problem(in, &p);
    const uint8_t kind = fuzz_byte(in);
    if (kind < 176 || fuzz_is_empty(&p.out.tensor)) {
        check_blend(context, &p);
    } else if (kind < 216) {
        check_spoilt(in, context, &p);
    } else {
        check_reach(in, context, &p);
    }
    free_problem(&p);
}
