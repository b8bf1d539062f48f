/* Blending: every layout, type and CPU level against one plain loop, bit for bit. */
#include <stdlib.h>
#include <string.h>

#include "hy3d/blend.h"
#include "hy3d/tiles.h"
#include "kernels/kernels.h"
#include "support.h"

TCase *hy3d_tiles_blend_cases(void);

#define DIMS HY3D_TENSOR_DIMS
#define MAX_SIDE 1500

/* A tensor of its own memory with a random order of dimensions, gaps and directions. */
typedef struct random_tensor {
    hy3d_tensor view;
    unsigned char *memory;
    size_t bytes;
} random_tensor;

static random_tensor random_layout(test_random *random, const int64_t size[DIMS], hy3d_dtype dtype,
                                   bool plain)
{
    int order[DIMS] = {0, 1, 2, 3, 4};
    random_tensor made = {.view = {.dtype = dtype}};
    int64_t elems = 1, first = 0;
    for (int i = plain ? 0 : DIMS - 1; i > 0; i--) {
        const int j = (int)test_between(random, 0, i), held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
    for (int i = DIMS - 1; i >= 0; i--) {
        const int dim = order[i];
        int64_t stride = elems * (plain ? 1 : test_between(random, 1, 2));
        elems = stride * size[dim];
        if (!plain && test_between(random, 0, 3) == 0) {
            first += stride * (size[dim] - 1);
            stride = -stride;
        }
        made.view.size[dim] = size[dim];
        made.view.stride[dim] = stride;
    }
    made.bytes = (size_t)elems * hy3d_dtype_bytes(dtype);
    made.memory = malloc(made.bytes);
    ck_assert_ptr_nonnull(made.memory);
    made.view.data = made.memory + (size_t)first * hy3d_dtype_bytes(dtype);
    return made;
}

static unsigned char *at(const hy3d_tensor *tensor, const int64_t index[DIMS])
{
    int64_t offset = 0;
    for (int i = 0; i < DIMS; i++) {
        offset += index[i] * tensor->stride[i];
    }
    return (unsigned char *)tensor->data + offset * (int64_t)hy3d_dtype_bytes(tensor->dtype);
}

static double load(const hy3d_tensor *tensor, const unsigned char *from)
{
    const hy3d__kernels *reference = hy3d__kernels_for(HY3D_CPU_REF);
    double wide;
    float value;
    uint16_t half;
    if (tensor->dtype == HY3D_F64) {
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
    if (tensor->dtype == HY3D_F32) {
        memcpy(&value, from, sizeof value);
        return (double)value;
    }
    memcpy(&half, from, sizeof half);
    (tensor->dtype == HY3D_F16 ? reference->cvt_f16_f32 : reference->cvt_bf16_f32)(1, &half,
                                                                                   &value);
    return (double)value;
}

static void store(const hy3d_tensor *tensor, double wide, unsigned char *to)
{
    const hy3d__kernels *reference = hy3d__kernels_for(HY3D_CPU_REF);
    const float value = (float)wide;
    uint16_t half;
    if (tensor->dtype == HY3D_F64) {
        memcpy(to, &wide, sizeof wide);
        return;
    }
    if (tensor->dtype == HY3D_F32) {
        memcpy(to, &value, sizeof value);
        return;
    }
    (tensor->dtype == HY3D_F16 ? reference->cvt_f32_f16 : reference->cvt_f32_bf16)(1, &value,
                                                                                   &half);
    memcpy(to, &half, sizeof half);
}

static bool next_index(const int64_t size[DIMS], int64_t index[DIMS])
{
    for (int i = DIMS - 1; i >= 0; i--) {
        if (++index[i] < size[i]) {
            return true;
        }
        index[i] = 0;
    }
    return false;
}

/* Values with full mantissas, so that a different order of operations shows. */
static void fill(test_random *random, random_tensor *made)
{
    int64_t index[DIMS] = {0};
    memset(made->memory, 0x3c, made->bytes); /* the gaps: a good number in every type */
    do {
        double value = (double)test_between(random, -(1 << 24), 1 << 24) / (double)(1 << 22);
        if (made->view.dtype == HY3D_F64) {
            value += (double)test_between(random, -(1 << 24), 1 << 24) / (double)(1ULL << 48);
        }
        store(&made->view, value, at(&made->view, index));
    } while (next_index(made->view.size, index));
}

static void blend_plainly(const hy3d_tensor *tile, float *const windows[3], const hy3d_tensor *out)
{
    const bool in_f64 = tile->dtype == HY3D_F64 || out->dtype == HY3D_F64;
    int64_t index[DIMS] = {0};
    do {
        float narrow = 1.0f;
        double wide = 1.0;
        for (int axis = 0; axis < 3; axis++) {
            const float window = windows[axis] == NULL ? 1.0f : windows[axis][index[2 + axis]];
            narrow *= window;
            wide *= (double)window;
        }
        unsigned char *const place = at(out, index);
        const double from = load(tile, at(tile, index)), to = load(out, place);
        const float product = (float)from * narrow;
        store(out, in_f64 ? to + from * wide : (double)((float)to + product), place);
    } while (next_index(tile->size, index));
}

/* One random case at every CPU level: the whole memory, gaps included, must be the same. */
static void check_case(test_random *random, const int64_t size[DIMS], bool plain)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F16, HY3D_BF16, HY3D_F64};
    float weights[3][MAX_SIDE], *windows[3];
    for (int axis = 0; axis < 3; axis++) {
        ck_assert_int_le(size[axis + 2], MAX_SIDE);
        windows[axis] = test_between(random, 0, 4) == 0 ? NULL : weights[axis];
        for (int i = 0; i < MAX_SIDE; i++) {
            weights[axis][i] = (float)test_between(random, 0, 1 << 24) / (float)(1 << 24);
        }
    }
    random_tensor tile = random_layout(random, size, dtypes[test_between(random, 0, 3)], plain);
    random_tensor out = random_layout(random, size, dtypes[test_between(random, 0, 3)], plain);
    fill(random, &tile);
    fill(random, &out);
    unsigned char *const before = malloc(out.bytes), *const wanted = malloc(out.bytes);
    ck_assert(before != NULL && wanted != NULL);
    memcpy(before, out.memory, out.bytes);
    blend_plainly(&tile.view, windows, &out.view);
    memcpy(wanted, out.memory, out.bytes);
    static const char *const levels[] = {"ref", "avx2", "avx512"};
    for (int level = 0; level < test_level_count(); level++) {
        hy3d_context *context = test_context(levels[level], 1);
        memcpy(out.memory, before, out.bytes);
        ck_assert_ok(hy3d_blend_accumulate(context, &tile.view, windows[0], windows[1], windows[2],
                                           &out.view));
        ck_assert_msg(memcmp(out.memory, wanted, out.bytes) == 0, "differs at level %s, %s -> %s",
                      levels[level], hy3d_dtype_name(tile.view.dtype),
                      hy3d_dtype_name(out.view.dtype));
        hy3d_context_destroy(context);
    }
    free(before);
    free(wanted);
    free(tile.memory);
    free(out.memory);
}

START_TEST(test_every_layout_and_type_gives_the_bits_of_the_plain_loop)
{
    test_random random = test_rng(20261);
    for (int i = 0; i < 300; i++) {
        int64_t size[DIMS];
        for (int dim = 0; dim < DIMS; dim++) {
            size[dim] = test_between(&random, 1, dim == 0 ? 2 : 7);
        }
        size[test_between(&random, 1, 4)] = test_between(&random, 1, 40);
        check_case(&random, size, i % 3 == 0);
    }
}
END_TEST

START_TEST(test_rows_longer_than_a_buffer_are_joined_without_a_gap)
{
    test_random random = test_rng(20262);
    static const int64_t lengths[] = {255, 256, 257, 300, 1500}; /* far beyond: a smashed stack */
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        const int64_t wide[DIMS] = {1, 2, 1, 2, lengths[i]}, deep[DIMS] = {1, lengths[i], 1, 2, 3};
        for (int repeat = 0; repeat < 6; repeat++) {
            check_case(&random, wide, repeat % 2 == 0);
            check_case(&random, deep, false);
        }
    }
}
END_TEST

/* Integers times multiples of 2^-24 below 2^24: every product and sum is exact. */
START_TEST(test_blending_the_tiles_of_an_image_gives_the_image_back)
{
    hy3d_tiles_desc desc = {
        .latent = {6, 10, 9}, .factor = {4, 2, 2}, .causal = 1, .overlap = {1, 3, 2},
        .halo = {1, 1, 1}, .min_tile = {1, 1, 1}, .max_in_flight = 1, .level = 5,
    };
    hy3d_tiles_plan plan;
    ck_assert_ok(hy3d_tiles_make(&desc, NULL, &plan));
    const int64_t h = plan.out[1], w = plan.out[2], plane = h * w;
    const size_t n = (size_t)(plan.out[0] * plane);
    float *const image = calloc(n, sizeof *image), *const sums = calloc(n, sizeof *sums);
    ck_assert(image != NULL && sums != NULL);
    for (size_t i = 0; i < n; i++) {
        image[i] = (float)(i % 2); /* with 1/256 weights sums stay within 24 bits */
    }
    hy3d_context *context = test_context(NULL, 1);
    for (int64_t index = 0; index < plan.tiles; index++) {
        hy3d_tile place;
        float window[3][64];
        ck_assert_ok(hy3d_tiles_at(&plan, index, &place));
        hy3d_tensor tile = {.dtype = HY3D_F32, .stride = {0, 0, plane, w, 1}, .size = {1, 1}};
        for (int axis = 0; axis < 3; axis++) {
            tile.size[2 + axis] = place.out_stop[axis] - place.out_start[axis];
            ck_assert_ok(hy3d_tile_window(&place, axis, window[axis]));
        }
        const int64_t offset =
            place.out_start[0] * plane + place.out_start[1] * w + place.out_start[2];
        hy3d_tensor out = tile;
        tile.data = image + offset;
        out.data = sums + offset;
        ck_assert_ok(
            hy3d_blend_accumulate(context, &tile, window[0], window[1], window[2], &out));
    }
    ck_assert_int_gt(plan.tiles, 8);
    ck_assert_int_eq(memcmp(image, sums, n * sizeof *image), 0);
    hy3d_context_destroy(context);
    free(image);
    free(sums);
}
END_TEST

START_TEST(test_tensors_that_do_not_fit_are_refused_and_empty_ones_accepted)
{
    float numbers[16] = {0}, sums[16] = {0};
    const hy3d_tensor tile = {numbers, HY3D_F32, {1, 1, 2, 2, 4}, {16, 16, 8, 4, 1}};
    hy3d_tensor out = tile, other = tile;
    hy3d_context *context = test_context(NULL, 1);
    out.data = sums;
#define BLEND(tile_, out_) hy3d_blend_accumulate(context, tile_, NULL, NULL, NULL, out_)
    ck_assert_ok(BLEND(&tile, &out));
    ck_assert_status(BLEND(NULL, &out), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(BLEND(&tile, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_blend_accumulate(NULL, &tile, NULL, NULL, NULL, &out),
                     HY3D_ERR_INVALID_ARGUMENT);
    other.size[3] = 1;
    ck_assert_status(BLEND(&other, &out), HY3D_ERR_SHAPE_MISMATCH);
    other.size[3] = -2;
    ck_assert_status(BLEND(&other, &out), HY3D_ERR_INVALID_ARGUMENT);
    other = tile;
    other.dtype = (hy3d_dtype)17;
    ck_assert_status(BLEND(&other, &out), HY3D_ERR_INVALID_ARGUMENT);
    other = tile;
    other.data = NULL;
    ck_assert_status(BLEND(&other, &out), HY3D_ERR_INVALID_ARGUMENT);
    other = out;
    other.stride[3] = 0;
    ck_assert_status(BLEND(&tile, &other), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_ok(BLEND(&other, &out)); /* an expanded tile is fine */
    other = tile;
    other.data = NULL;
    other.size[4] = 0;
    ck_assert_ok(BLEND(&other, &other));
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) { /* as NumPy has them */
        other.stride[i] = 0;
    }
    ck_assert_ok(BLEND(&other, &other));
    for (int sign = -1; sign <= 1; sign += 2) { /* no memory reaches so far */
        other = tile;
        other.stride[2] = sign * (INT64_MAX / 2);
        ck_assert_status(BLEND(&other, &out), HY3D_ERR_OVERFLOW);
        ck_assert_status(BLEND(&tile, &other), HY3D_ERR_OVERFLOW);
    }
    other = tile;
    other.data = (char *)numbers + 1;
    ck_assert_status(BLEND(&other, &out), HY3D_ERR_INVALID_ARGUMENT);
#undef BLEND
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_tiles_blend_cases(void)
{
    TCase *tests = tcase_create("blend");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_every_layout_and_type_gives_the_bits_of_the_plain_loop);
    tcase_add_test(tests, test_rows_longer_than_a_buffer_are_joined_without_a_gap);
    tcase_add_test(tests, test_blending_the_tiles_of_an_image_gives_the_image_back);
    tcase_add_test(tests, test_tensors_that_do_not_fit_are_refused_and_empty_ones_accepted);
    return tests;
}
