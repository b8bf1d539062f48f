/* What must not change a bit of a Winograd result, and memory that it must not touch. */
#include "winograd_support.h"

#include <stdlib.h>
#include <string.h>

static void make(conv_fused *f, hy3d_conv3d_format format, hy3d_dtype dtype, test_random *random)
{
    hy3d_conv3d_desc desc = conv_desc(dtype, 37, 41, 5, 13, 33, 3);
    desc.accuracy = HY3D_FAST;
    desc.kernel[0] = winograd_frames(format) > 1 ? 3 : 2;
    for (int i = 0; i < 3; i++) {
        desc.pad_before[i] = i == 0 ? 2 : 1;
        desc.pad_after[i] = i == 0 ? 0 : 1;
        desc.pad_mode[i] = i == 0 ? HY3D_PAD_REPLICATE : HY3D_PAD_ZEROS;
    }
    desc.in_size[1] += winograd_is_upsampled(format) ? 1 : 0; /* some of the last row of tiles */
    winograd_suit(format, random, &desc);
    conv_fused_make(f, &desc, HY3D_SILU, random, 0);
    f->fusion = (hy3d_conv3d_fusion){
        .frames = desc.pairs != 0 ? f->list : NULL,
        .scale = f->scale, .shift = f->shift, .activation = HY3D_SILU};
}

/* The smallest workspace that a forced plan of one thread is content with. */
static size_t least_workspace(hy3d_context *context, hy3d_conv3d_format format, conv_fused *f)
{
    hy3d_conv3d_plan *plan = NULL;
    conv_problem p = f->problem;
    size_t low = 0, high = (size_t)64 << 20;

    p.desc.num_threads = 1;
    while (low + 1 < high) {
        p.desc.workspace_limit_bytes = low + (high - low) / 2;
        const hy3d_status status = winograd_plan(context, format, &p, NULL, &plan);
        if (status == HY3D_OK) {
            hy3d_conv3d_plan_destroy(plan);
            high = p.desc.workspace_limit_bytes;
        } else {
            ck_assert_status(status, HY3D_ERR_WORKSPACE_TOO_SMALL);
            low = p.desc.workspace_limit_bytes;
        }
    }
    return high;
}

START_TEST(test_bits_follow_neither_threads_limits_nor_preparation)
{
    static const uint32_t threads[] = {1, 2, 5};
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_BF16};
    static conv_fused fused;
    const hy3d_conv3d_format format = (hy3d_conv3d_format)(_i % WINOGRAD_FORMATS + 1);
    hy3d_context *const context = test_context(NULL, 5);
    test_random random = test_rng(870 + (uint64_t)_i);

    make(&fused, format, dtypes[_i / WINOGRAD_FORMATS], &random);
    conv_problem *const p = &fused.problem;
    ck_assert_ok(winograd_run(context, format, &fused, false));
    unsigned char *const first = malloc(p->y.bytes);
    memcpy(first, p->y.memory, p->y.bytes);
    const size_t least = least_workspace(context, format, &fused);
    const size_t limits[] = {0, least, 2 * least + 64, 7 * least};
    for (size_t i = 0; i < COUNT_OF(threads) * COUNT_OF(limits) * 2; i++) {
        p->desc.num_threads = threads[i / 2 % COUNT_OF(threads)];
        p->desc.workspace_limit_bytes = limits[i / 2 / COUNT_OF(threads)];
        memset(p->y.memory, 0xff, p->y.bytes);
        ck_assert_ok(winograd_run(context, format, &fused, i % 2 == 1));
        ck_assert_msg(memcmp(p->y.memory, first, p->y.bytes) == 0,
                      "%u threads, limit %zu, %s", p->desc.num_threads,
                      p->desc.workspace_limit_bytes, i % 2 == 1 ? "prepared" : "made");
    }
    free(first);
    conv_fused_free(&fused);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_avx512_gives_the_bits_of_avx2)
{
    static conv_fused fused;
    const hy3d_conv3d_format format = (hy3d_conv3d_format)(_i + 1);
    if (test_level_count() < 3) {
        return;
    }
    hy3d_context *const wide = test_context("avx512", 1);
    hy3d_context *const narrow = test_context("avx2", 1);
    test_random random = test_rng(880 + (uint64_t)_i);

    for (int round = 0; round < 3; round++) {
        make(&fused, format, (hy3d_dtype[]){HY3D_F32, HY3D_F16, HY3D_BF16}[round], &random);
        conv_problem *const p = &fused.problem;
        ck_assert_ok(winograd_run(wide, format, &fused, round == 0));
        unsigned char *const first = malloc(p->y.bytes);
        memcpy(first, p->y.memory, p->y.bytes);
        memset(p->y.memory, 0xff, p->y.bytes);
        ck_assert_ok(winograd_run(narrow, format, &fused, round == 1));
        ck_assert_mem_eq(p->y.memory, first, p->y.bytes);
        free(first);
        conv_fused_free(&fused);
    }
    hy3d_context_destroy(wide);
    hy3d_context_destroy(narrow);
}
END_TEST

/* Input, output, weight and workspace end where a page does, then begin where one does. */
START_TEST(test_winograd_touches_nothing_beyond_its_memory)
{
    static const hy3d_dtype dtypes[] = {HY3D_F32, HY3D_F16, HY3D_BF16};
    static conv_fused fused;
    const hy3d_conv3d_format format = (hy3d_conv3d_format)(_i + 1);
    hy3d_context *const context = test_context(NULL, 1);
    test_random random = test_rng(890 + (uint64_t)_i);

    for (int round = 0; round < 24; round++) {
        hy3d_conv3d_desc desc = conv_desc(dtypes[round % 3], 16 + round % 3, 16 + round % 5, 3,
                                          3 + round % 7, 3 + round, 3);
        desc.accuracy = HY3D_FAST;
        winograd_suit(format, &random, &desc);
        if (desc.pairs != 0) { /* x is looked at here, not frames */
            desc.pairs = 0;
            desc.upsample[0] = 2;
            desc.in_size[0] += desc.in_size[0] % 2;
        }
        conv_fused_make(&fused, &desc, HY3D_IDENTITY, &random, 0);
        conv_problem *const p = &fused.problem;
        conv_view *const views[3] = {&p->x, &p->weight, &p->y};
        test_guard guards[4];
        hy3d_conv3d_plan *plan = NULL;
        fused.fusion = (hy3d_conv3d_fusion){0};
        for (int i = 0; i < 3; i++) {
            const conv_layout layout = round % 2 == 0 || i == 1 ? LAYOUT_PLAIN : LAYOUT_LAST;
            int64_t size[HY3D_TENSOR_DIMS];
            memcpy(size, views[i]->tensor.size, sizeof size);
            conv_view_free(views[i]);
            *views[i] = conv_view_make(desc.dtype, size, layout, 0);
            conv_fill_reals(&random, &views[i]->tensor);
            guards[i] = test_guard_make(views[i]->bytes);
            void *const memory = test_guard_end(
                &guards[i], round % 4 < 2 ? views[i]->bytes : guards[i].bytes);
            views[i]->tensor.data = memcpy(memory, views[i]->memory, views[i]->bytes);
        }
        ck_assert_ok(winograd_plan(context, format, p, NULL, &plan));
        guards[3] = test_guard_make(hy3d_conv3d_plan_workspace_bytes(plan));
        void *const workspace =
            test_guard_end(&guards[3], round % 4 < 2 ? hy3d_conv3d_plan_workspace_bytes(plan)
                                                     : guards[3].bytes);
        ck_assert_ok(hy3d_conv3d_run(plan, &p->x.tensor, &p->y.tensor, workspace, NULL));
        ck_assert(winograd_worst_fraction(&fused, format) <= 1.0);
        hy3d_conv3d_plan_destroy(plan);
        for (int i = 0; i < 4; i++) {
            test_guard_free(&guards[i]);
        }
        conv_fused_free(&fused);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_winograd_bits_case(void)
{
    TCase *const tests = tcase_create("bits");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_bits_follow_neither_threads_limits_nor_preparation, 0,
                        2 * WINOGRAD_FORMATS);
    tcase_add_loop_test(tests, test_avx512_gives_the_bits_of_avx2, 0, WINOGRAD_FORMATS);
    tcase_add_loop_test(tests, test_winograd_touches_nothing_beyond_its_memory, 0,
                        WINOGRAD_FORMATS);
    return tests;
}
