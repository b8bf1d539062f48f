/* Fusions on small integers, where everything is exact: every strategy and the reference against
 * an input that was made the long way, at every CPU level. */
#include "conv3d_fusion_support.h"

#include <stdlib.h>
#include <string.h>

static hy3d_conv3d_desc random_desc(test_random *random)
{
    hy3d_conv3d_desc desc = conv_random_desc(random);

    for (int i = 0; i < 3; i++) {
        const int64_t times = test_between(random, 0, 3);
        if (times > 1) {
            desc.upsample[i] = times;
            desc.in_size[i] += (times - desc.in_size[i] % times) % times;
        }
    }
    desc.batch = desc.batch == 0 ? 1 : desc.batch;
    return desc;
}

/* Values of y that are not `wanted` rounded to y's type. */
static int64_t differing(const hy3d_tensor *y, const hy3d_tensor *wanted)
{
    conv_view rounded = conv_view_make(y->dtype, y->size, LAYOUT_PLAIN, 0);
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    int64_t count = 0;
    do {
        conv_set(&rounded.tensor, at, conv_get(wanted, at));
        count += conv_get(&rounded.tensor, at) == conv_get(y, at) ? 0 : 1;
    } while (conv_step(y, at));
    conv_view_free(&rounded);
    return count;
}

static void check_fused(hy3d_context *context, conv_fused *f, int index)
{
    const conv_problem *const p = &f->problem;
    const hy3d_tensor *const x = f->fusion.frames != NULL ? NULL : &p->x.tensor;
    hy3d_conv3d_fusion fusion = f->fusion;
    char text[640];

    conv_fused_text(f, text, sizeof text);
    conv_view wanted = conv_fused_result(f, INPUT_VALUE, false, false);
    const hy3d_status status = conv_fused_run(context, f);
    if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        (void)test_has_blas(context);
    } else {
        ck_assert_msg(status == HY3D_OK, "%d: %s: %s", index, hy3d_status_name(status), text);
        const int64_t count = differing(&p->y.tensor, &wanted.tensor);
        ck_assert_msg(count == 0, "%d: %lld values differ: %s", index, (long long)count, text);
    }
    /* The reference; y may have been the residual. */
    fusion.residual = fusion.residual != NULL ? &f->residual.tensor : NULL;
    ck_assert_ok(reference_conv3d(&p->desc, x, &p->weight.tensor,
                                             p->has_bias ? &p->bias.tensor : NULL, &fusion,
                                             &p->y.tensor));
    const int64_t count = differing(&p->y.tensor, &wanted.tensor);
    ck_assert_msg(count == 0, "%d: %lld of the reference differ: %s", index, (long long)count,
                  text);
    conv_view_free(&wanted);
}

START_TEST(test_random_fusions_equal_the_input_made_the_long_way)
{
    static const char *const levels[] = {"ref", "avx2", "avx512"};
    static conv_fused fused;
    if (_i >= test_level_count()) {
        return;
    }
    hy3d_context *const context = test_context(levels[_i], 3);
    test_random random = test_rng(600 + (uint64_t)_i);
    const int configurations = test_draws(15, 150);

    for (int i = 0; i < configurations; i++) {
        const hy3d_conv3d_desc desc = random_desc(&random);
        conv_fused_make(&fused, &desc, HY3D_IDENTITY, &random, 3);
        check_fused(context, &fused, i);
        conv_fused_free(&fused);
    }
    hy3d_context_destroy(context);
}
END_TEST

enum { UNPADDED = 4, VARIANTS };

/* A decoder's layer: causal replicate padding in time, zeros or the edge in space, up-sampled; or a
 * piece with its surroundings, whose planes are taken as they are. */
static hy3d_conv3d_desc decoder_desc(hy3d_dtype dtype, int variant)
{
    hy3d_conv3d_desc desc = conv_desc(dtype, 9, 12, 3, 10, 22, 3);
    for (int i = 0; i < 3; i++) {
        desc.pad_before[i] = i == 0 ? 2 : 1;
        desc.pad_after[i] = i == 0 ? 0 : 1;
        desc.pad_mode[i] = i == 0 || variant % 2 == 1 ? HY3D_PAD_REPLICATE : HY3D_PAD_ZEROS;
        desc.upsample[i] = i > 0 && (variant == 2 || variant == 3) ? 2 : 0;
        if (variant == UNPADDED) {
            desc.pad_before[i] = desc.pad_after[i] = 0;
            desc.pad_mode[i] = HY3D_PAD_ZEROS;
        }
    }
    return desc;
}

START_TEST(test_layers_of_decoders_are_exact_with_every_fusion)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F64, HY3D_F16, HY3D_BF16};
    static conv_fused fused;
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(610);
    const int rounds = test_draws(1, 3);

    for (int variant = 0; variant < VARIANTS; variant++) {
        for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
            const hy3d_conv3d_desc desc = decoder_desc(dtypes[i], variant);
            for (int round = 0; round < rounds; round++) {
                conv_fused_make(&fused, &desc, HY3D_IDENTITY, &random, 3);
                check_fused(context, &fused, variant);
                conv_fused_free(&fused);
            }
        }
    }
    hy3d_context_destroy(context);
}
END_TEST

/* Frames that are x's own give x's bits, SiLU or not, with any number of threads. */
START_TEST(test_bits_depend_neither_on_frames_nor_on_threads_or_limit)
{
    static conv_fused fused;
    hy3d_context *const context = test_context(NULL, 8);
    test_random random = test_rng(620);
    const hy3d_conv3d_desc desc = decoder_desc(_i % 2 == 0 ? HY3D_F32 : HY3D_F64, _i);

    conv_fused_make(&fused, &desc, HY3D_SILU, &random, 0);
    conv_problem *const p = &fused.problem;
    if (conv_needs_missing_blas(context, p)) {
        (void)test_has_blas(context);
        conv_fused_free(&fused);
        hy3d_context_destroy(context);
        return;
    }
    fused.fusion = (hy3d_conv3d_fusion){
        .scale = fused.scale, .shift = fused.shift, .activation = HY3D_SILU};
    ck_assert_ok(conv_fused_run(context, &fused));
    unsigned char *const first = malloc(p->y.bytes);
    memcpy(first, p->y.memory, p->y.bytes);
    for (int64_t t = 0; t < desc.in_size[0]; t++) {
        const int64_t *const stride = p->x.tensor.stride;
        fused.list[t] = (hy3d_conv3d_frame){
            .data = (const unsigned char *)p->x.tensor.data +
                    t * stride[2] * (int64_t)hy3d_dtype_bytes(desc.dtype),
            .stride = {stride[1], stride[3], stride[4]}};
    }
    size_t needed = 0;
    hy3d_conv3d_plan *plan = NULL;
    ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &p->weight.tensor, NULL, &needed, &plan));
    hy3d_conv3d_plan_destroy(plan);
    for (uint32_t round = 0; round < 8; round++) {
        fused.fusion.frames = round % 2 == 0 ? fused.list : NULL;
        p->desc.num_threads = round;
        p->desc.workspace_limit_bytes = round < 4 ? 0 : needed * (round - 3);
        memset(p->y.memory, 0xff, p->y.bytes);
        ck_assert_ok(conv_fused_run(context, &fused));
        ck_assert_mem_eq(p->y.memory, first, p->y.bytes);
    }
    free(first);
    conv_fused_free(&fused);
    hy3d_context_destroy(context);
}
END_TEST

/* Input, residual and output end where a page does, then begin where one does. */
START_TEST(test_fusions_touch_nothing_beyond_their_memory)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F16, HY3D_BF16, HY3D_F64};
    static conv_fused fused;
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(630);

    for (int64_t w = 4; w < 42; w += 2) {
        hy3d_conv3d_desc desc = conv_desc(dtypes[w / 2 % 4], 3, 5, 1, 6, w, w % 4 == 0 ? 1 : 3);
        desc.kernel[0] = 1;
        desc.upsample[1] = desc.upsample[2] = w % 3 == 0 ? 2 : 1;
        desc.pad_before[2] = w % 5;
        conv_fused_make(&fused, &desc, HY3D_IDENTITY, &random, 3);
        conv_problem *const p = &fused.problem;
        conv_view_free(&p->x);
        p->x = conv_view_make(desc.dtype, p->x.tensor.size, LAYOUT_PLAIN, 0);
        conv_fill_integers(&random, &p->x.tensor, 3);
        fused.fusion = (hy3d_conv3d_fusion){.scale = fused.scale, .shift = fused.shift};
        const size_t bytes[3] = {p->x.bytes, p->y.bytes, 3 * sizeof(float)};
        test_guard guards[3];
        void *memory[3];
        for (int i = 0; i < 3; i++) {
            guards[i] = test_guard_make(bytes[i]);
            memory[i] = test_guard_end(&guards[i], w % 8 < 4 ? bytes[i] : guards[i].bytes);
        }
        memcpy(memory[0], p->x.memory, bytes[0]);
        memcpy(memory[2], fused.scale, bytes[2]);
        p->x.tensor.data = memory[0];
        fused.fusion.scale = memory[2];
        conv_view_free(&p->y);
        p->y = conv_view_make(desc.dtype, p->y.tensor.size, LAYOUT_PLAIN, 0);
        conv_view_free(&fused.residual);
        fused.residual = conv_view_make(desc.dtype, p->y.tensor.size, LAYOUT_PLAIN, 0);
        memset(memory[1], 0, bytes[1]); /* a residual of zeros, in place */
        p->y.tensor.data = memory[1];
        fused.fusion.residual = &p->y.tensor;
        conv_view wanted = conv_fused_result(&fused, INPUT_VALUE, false, false);
        if (!conv_needs_missing_blas(context, p)) {
            ck_assert_ok(conv_fused_run(context, &fused));
            ck_assert_int_eq(differing(&p->y.tensor, &wanted.tensor), 0);
        }
        conv_view_free(&wanted);
        for (int i = 0; i < 3; i++) {
            test_guard_free(&guards[i]);
        }
        conv_fused_free(&fused);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_conv3d_fused_case(void)
{
    TCase *const tests = tcase_create("fused");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_random_fusions_equal_the_input_made_the_long_way, 0, 3);
    tcase_add_test(tests, test_layers_of_decoders_are_exact_with_every_fusion);
    tcase_add_loop_test(tests, test_bits_depend_neither_on_frames_nor_on_threads_or_limit, 0, 4);
    tcase_add_test(tests, test_fusions_touch_nothing_beyond_their_memory);
    return tests;
}
