#define _GNU_SOURCE
/* Panels: BLAS reads x and sums in y where they lie, and no bit depends on whether it does; nothing
 * beyond the tensors is touched, and integers are exact. */
#include "conv3d_support.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct panel_case {
    const char *what;
    hy3d_dtype dtype;
    int64_t in, out, groups, batch, kernel_t, t, h, w;
} panel_case;

/* Blocks: 1024 positions of a frame, or 512 where grains are few; 256 output channels, 192 terms. */
static const panel_case cases[] = {
    {"one block a frame", HY3D_F64, 5, 7, 1, 1, 1, 2, 11, 13},
    {"two blocks of terms", HY3D_F64, 200, 9, 1, 1, 1, 1, 12, 12},
    {"two blocks of output channels", HY3D_F64, 3, 300, 1, 2, 1, 1, 12, 12},
    {"three blocks of positions", HY3D_F64, 4, 3, 1, 1, 1, 1, 33, 40},
    {"groups", HY3D_F64, 6, 8, 2, 1, 1, 2, 12, 12},
    {"taps of time", HY3D_F64, 70, 5, 1, 1, 3, 4, 12, 11},
    {"frames that share a panel", HY3D_F64, 9, 5, 1, 1, 1, 3, 5, 7},
    {"a small frame, f32", HY3D_F32, 40, 21, 1, 1, 1, 1, 3, 5},
    {"small frames that share a panel, f32", HY3D_F32, 40, 21, 1, 2, 1, 2, 3, 4},
    {"one row", HY3D_F64, 5, 7, 1, 1, 1, 2, 1, 130},
    {"one column", HY3D_F64, 5, 7, 1, 1, 1, 2, 130, 1},
};
enum { CASES = COUNT_OF(cases) };

static hy3d_conv3d_desc case_desc(int which)
{
    const panel_case *const c = &cases[which];
    hy3d_conv3d_desc desc = conv_desc(c->dtype, c->in, c->out, c->t, c->h, c->w, 1);

    desc.groups = c->groups;
    desc.batch = c->batch;
    desc.kernel[0] = c->kernel_t;
    desc.pad_before[0] = c->kernel_t - 1; /* causal */
    desc.pad_mode[0] = HY3D_PAD_REPLICATE;
    return desc;
}

/* False, and noted, where there is no BLAS. */
static bool is_runnable(hy3d_context *context, const conv_problem *problem)
{
    if (conv_needs_missing_blas(context, problem)) {
        (void)test_has_blas(context);
        return false;
    }
    return true;
}

/* A plain tensor of the same size that ends where a page does that must not be touched. */
static hy3d_tensor guarded(const hy3d_tensor *like, test_guard *guard)
{
    conv_view view = conv_view_make(like->dtype, like->size, LAYOUT_PLAIN, 0);
    *guard = test_guard_make(view.bytes);
    view.tensor.data = test_guard_end(guard, view.bytes);
    conv_view_free(&view);
    return view.tensor;
}

static void run_and_compare(hy3d_context *context, conv_problem *problem, const hy3d_tensor *wanted,
                            const char *what)
{
    int64_t at[HY3D_TENSOR_DIMS] = {0};
    do {
        conv_set(&problem->y.tensor, at, -1.0);
    } while (conv_step(&problem->y.tensor, at));
    ck_assert_ok(conv_problem_run(context, problem));
    const int64_t count = conv_unequal(&problem->y.tensor, wanted);
    ck_assert_msg(count == 0, "%s: %lld values differ", what, (long long)count);
}

START_TEST(test_tensors_used_where_they_lie_give_the_bits_of_copies)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(760 + (uint64_t)_i);
    const hy3d_conv3d_desc desc = case_desc(_i);
    /* With room between elements: packed, and summed in a tile. */
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_GAPS, LAYOUT_PLAIN, LAYOUT_GAPS, &random, 0);
    if (is_runnable(context, &problem)) {
        test_guard x_guard, y_guard;
        const hy3d_tensor x = guarded(&problem.x.tensor, &x_guard);
        const hy3d_tensor y = guarded(&problem.y.tensor, &y_guard);
        conv_copy(&problem.x.tensor, &x);
        ck_assert_ok(conv_problem_run(context, &problem));
        for (int which = 1; which <= 3; which++) {
            conv_problem other = problem;
            other.x.tensor = which % 2 == 1 ? x : problem.x.tensor;
            other.y.tensor = which / 2 == 1 ? y : problem.y.tensor;
            conv_view wanted = conv_view_make(desc.dtype, problem.y.tensor.size, LAYOUT_PLAIN, 0);
            conv_copy(&problem.y.tensor, &wanted.tensor);
            run_and_compare(context, &other, &wanted.tensor, cases[_i].what);
            conv_view_free(&wanted);
        }
        test_guard_free(&x_guard);
        test_guard_free(&y_guard);
    }
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

/* A tensor of the same size that is every other frame of a plain one. */
static conv_view every_other_frame(const hy3d_tensor *like)
{
    int64_t size[HY3D_TENSOR_DIMS];
    memcpy(size, like->size, sizeof size);
    size[2] *= 2;
    conv_view view = conv_view_make(like->dtype, size, LAYOUT_PLAIN, 0xff);
    view.tensor.size[2] = like->size[2];
    view.tensor.stride[2] *= 2;
    return view;
}

/* And one whose rows are W apart, as in a plain one, though its columns are further. */
static conv_view far_columns(const hy3d_tensor *like)
{
    const int64_t h = like->size[3], w = like->size[4];
    const int64_t size[] = {like->size[0], like->size[1], like->size[2], w, h * w};
    conv_view view = conv_view_make(like->dtype, size, LAYOUT_PLAIN, 0xff);
    view.tensor.size[3] = h;
    view.tensor.size[4] = w;
    view.tensor.stride[3] = w;
    view.tensor.stride[4] = h * w;
    return view;
}

START_TEST(test_frames_that_do_not_follow_each_other_give_the_same_bits)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(840 + (uint64_t)_i);
    const hy3d_conv3d_desc desc = case_desc(_i);
    conv_problem plain =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    conv_view x = every_other_frame(&plain.x.tensor), y = every_other_frame(&plain.y.tensor);
    conv_view far = far_columns(&plain.y.tensor);

    if (is_runnable(context, &plain)) {
        conv_problem other = plain;
        other.x.tensor = x.tensor;
        other.y.tensor = y.tensor;
        conv_copy(&plain.x.tensor, &x.tensor);
        ck_assert_ok(conv_problem_run(context, &plain));
        run_and_compare(context, &other, &plain.y.tensor, cases[_i].what);
        other.y.tensor = far.tensor;
        run_and_compare(context, &other, &plain.y.tensor, cases[_i].what);
    }
    conv_view_free(&far);
    conv_view_free(&x);
    conv_view_free(&y);
    conv_problem_free(&plain);
    hy3d_context_destroy(context);
}
END_TEST

/* Channels one upon the other and in reverse: BLAS knows neither. */
START_TEST(test_channels_that_blas_cannot_step_over_are_packed)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(780);
    const hy3d_conv3d_desc desc = case_desc(0);
    conv_problem plain =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    conv_view wanted = conv_view_make(desc.dtype, plain.y.tensor.size, LAYOUT_PLAIN, 0);
    conv_view copy = conv_view_make(desc.dtype, plain.x.tensor.size, LAYOUT_PLAIN, 0);

    if (is_runnable(context, &plain)) {
        for (int which = 0; which < 2; which++) {
            conv_problem other = plain, same = plain;
            hy3d_tensor *const x = &other.x.tensor, *const y = &other.y.tensor;
            if (which == 0) {
                x->stride[1] = 0;
            } else {
                x->data = (double *)x->data + (x->size[1] - 1) * x->stride[1];
                x->stride[1] = -x->stride[1];
                y->data = (double *)y->data + (y->size[1] - 1) * y->stride[1];
                y->stride[1] = -y->stride[1];
            }
            conv_copy(x, &copy.tensor);
            same.x.tensor = copy.tensor;
            same.y.tensor = wanted.tensor;
            ck_assert_ok(conv_problem_run(context, &same));
            run_and_compare(context, &other, &wanted.tensor, which == 0 ? "0" : "reversed");
        }
    }
    conv_view_free(&copy);
    conv_view_free(&wanted);
    conv_problem_free(&plain);
    hy3d_context_destroy(context);
}
END_TEST

/* Two channels of `bytes` each, so far apart that BLAS's integers do not hold the distance; what is
 * between them takes addresses alone. */
static hy3d_tensor far_apart(const hy3d_tensor *like, test_guard *pages)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t step = ((size_t)INT32_MAX + 1) * sizeof(double);
    hy3d_tensor far = *like;
    pages->bytes = step + page;
    pages->pages = mmap(NULL, pages->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->pages == MAP_FAILED) {
        test_skip_here("16 GB of addresses");
    }
    ck_assert_int_eq(mprotect(pages->pages, page, PROT_READ | PROT_WRITE), 0);
    ck_assert_int_eq(mprotect(pages->pages + step, page, PROT_READ | PROT_WRITE), 0);
    far.data = pages->pages;
    far.stride[1] = (int64_t)INT32_MAX + 1;
    return far;
}

START_TEST(test_channels_further_apart_than_blas_can_count_are_packed)
{
    hy3d_context *const context = test_context(NULL, 1);
    test_random random = test_rng(781);
    const hy3d_conv3d_desc desc = conv_desc(HY3D_F64, 2, 2, 1, 12, 12, 1);
    conv_problem plain =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);

    if (is_runnable(context, &plain)) {
        test_guard x_pages, y_pages;
        conv_problem far = plain;
        far.x.tensor = far_apart(&plain.x.tensor, &x_pages);
        far.y.tensor = far_apart(&plain.y.tensor, &y_pages);
        conv_copy(&plain.x.tensor, &far.x.tensor);
        ck_assert_ok(conv_problem_run(context, &plain));
        run_and_compare(context, &far, &plain.y.tensor, "far apart");
        munmap(x_pages.pages, x_pages.bytes);
        munmap(y_pages.pages, y_pages.bytes);
    }
    conv_problem_free(&plain);
    hy3d_context_destroy(context);
}
END_TEST

/* A fusion's frames lie where they like; one of zeros must be packed, and any that are scaled. */
START_TEST(test_frames_give_the_bits_of_a_tensor)
{
    enum { FRAMES = 3, IN = 6 };
    static const float scale[IN] = {2.0F, 2.0F, 2.0F, 2.0F, 2.0F, 2.0F}, shift[IN] = {0.0F};
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(782);
    const hy3d_conv3d_desc desc = conv_desc(HY3D_F64, IN, 5, FRAMES, 11, 13, 1);
    conv_problem plain =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    conv_view y = conv_view_make(desc.dtype, plain.y.tensor.size, LAYOUT_PLAIN, 0xff);
    hy3d_conv3d_frame frames[FRAMES];
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;

    if (is_runnable(context, &plain)) {
        const hy3d_tensor *const x = &plain.x.tensor;
        for (int64_t c = 0; c < IN; c++) { /* the second frame */
            double *const values = (double *)x->data + c * x->stride[1] + x->stride[2];
            memset(values, 0, (size_t)x->stride[2] * sizeof *values);
        }
        for (int64_t t = 0; t < FRAMES; t++) {
            frames[t] = (hy3d_conv3d_frame){
                .data = t == 1 ? NULL : (const double *)x->data + t * x->stride[2],
                .stride = {x->stride[1], x->stride[3], x->stride[4]}};
        }
        ck_assert_ok(conv_problem_run(context, &plain));
        ck_assert_ok(hy3d_conv3d_plan_create(context, &desc, &plain.weight.tensor,
                                             &plain.bias.tensor, NULL, &plan));
        ck_assert_ok(hy3d_alloc(context, hy3d_conv3d_plan_workspace_bytes(plan), &workspace));
        for (int is_scaled = 0; is_scaled < 2; is_scaled++) {
            const hy3d_conv3d_fusion fusion = {.frames = frames,
                                               .scale = is_scaled == 1 ? scale : NULL,
                                               .shift = is_scaled == 1 ? shift : NULL};
            for (size_t i = 0; is_scaled == 1 && i < plain.x.bytes / sizeof(double); i++) {
                ((double *)x->data)[i] /= 2.0; /* exact */
            }
            memset(y.memory, 0xff, y.bytes);
            ck_assert_ok(hy3d_conv3d_run_fused(plan, NULL, &fusion, &y.tensor, workspace, NULL));
            ck_assert_int_eq(conv_unequal(&plain.y.tensor, &y.tensor), 0);
        }
        hy3d_free(context, workspace);
        hy3d_conv3d_plan_destroy(plan);
    }
    conv_view_free(&y);
    conv_problem_free(&plain);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_threads_and_limits_change_no_bit_of_panels)
{
    hy3d_context *const context = test_context(NULL, 16);
    test_random random = test_rng(790 + (uint64_t)_i);
    const hy3d_conv3d_desc desc = case_desc(_i);
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    conv_view first = conv_view_make(desc.dtype, problem.y.tensor.size, LAYOUT_PLAIN, 0);

    if (is_runnable(context, &problem)) {
        hy3d_conv3d_plan *plan = NULL;
        size_t needed = 0;
        ck_assert_ok(
            hy3d_conv3d_plan_create(context, &desc, &problem.weight.tensor, NULL, &needed, &plan));
        hy3d_conv3d_plan_destroy(plan);
        ck_assert_ok(conv_problem_run(context, &problem));
        conv_copy(&problem.y.tensor, &first.tensor);
        for (uint32_t threads = 1; threads <= 16; threads *= 2) {
            problem.desc.num_threads = threads;
            problem.desc.workspace_limit_bytes = threads % 4 == 1 ? 0 : 2 * needed;
            run_and_compare(context, &problem, &first.tensor, cases[_i].what);
        }
    }
    conv_view_free(&first);
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_panels_give_exact_integers)
{
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(810 + (uint64_t)_i);
    const hy3d_conv3d_desc desc = case_desc(_i);
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 3);

    if (is_runnable(context, &problem)) {
        ck_assert_ok(conv_problem_run(context, &problem));
        ck_assert_int_eq(conv_problem_differing(&problem), 0);
    }
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

/* Sums that cancel to about nothing: within the bound of docs/numerics.md, whatever the bias that
 * they begin with. */
START_TEST(test_cancelling_sums_stay_within_the_bound)
{
    enum { TERMS = 400 };
    hy3d_context *const context = test_context(NULL, 2);
    test_random random = test_rng(830);
    const hy3d_conv3d_desc desc = conv_desc(HY3D_F64, TERMS, 3, 1, 12, 12, 1);
    conv_problem problem =
        conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 0);
    int64_t at[HY3D_TENSOR_DIMS] = {0};

    if (is_runnable(context, &problem)) {
        /* Channel c + TERMS / 2 is the negative of c, times weights a part in 2^40 apart. */
        const hy3d_tensor *const x = &problem.x.tensor, *const w = &problem.weight.tensor;
        do {
            if (at[1] >= TERMS / 2) {
                int64_t other[HY3D_TENSOR_DIMS] = {at[0], at[1] - TERMS / 2, at[2], at[3], at[4]};
                conv_set(x, at, -conv_get(x, other));
            }
        } while (conv_step(x, at));
        memset(at, 0, sizeof at);
        do {
            if (at[1] >= TERMS / 2) {
                int64_t other[HY3D_TENSOR_DIMS] = {at[0], at[1] - TERMS / 2, at[2], at[3], at[4]};
                conv_set(w, at, conv_get(w, other) * (1.0 + 0x1p-40));
            }
        } while (conv_step(w, at));
        ck_assert_ok(conv_problem_run(context, &problem));
        memset(at, 0, sizeof at);
        do {
            const double bias = ((const double *)problem.bias.tensor.data)[at[1]];
            long double exact = bias, magnitude = bias < 0.0 ? -bias : bias;
            for (int64_t c = 0; c < TERMS; c++) {
                const int64_t of_x[HY3D_TENSOR_DIMS] = {at[0], c, at[2], at[3], at[4]};
                const int64_t of_w[HY3D_TENSOR_DIMS] = {at[1], c, 0, 0, 0};
                const long double term =
                    (long double)conv_get(x, of_x) * (long double)conv_get(w, of_w);
                exact += term;
                magnitude += term < 0.0L ? -term : term;
            }
            const long double off = (long double)conv_get(&problem.y.tensor, at) - exact;
            const long double n = (TERMS + 1) * 0x1p-53L;
            /* gamma_(K + 1), and the long double's own sum by the same formula. */
            const long double own = (TERMS + 1) * 0x1p-64L;
            const long double bound = (n / (1 - n) + own / (1 - own)) * magnitude;
            ck_assert_msg(off <= bound && -off <= bound, "off by %Lg of %Lg", off, bound);
        } while (conv_step(&problem.y.tensor, at));
    }
    conv_problem_free(&problem);
    hy3d_context_destroy(context);
}
END_TEST

/* Each slot: a panel of at most 192 terms and a tile of 256 channels, of at most 1024 positions. */
START_TEST(test_panels_take_little_memory_whatever_their_size)
{
    static const int64_t channels[][2] = {{16, 65536},   {16, (int64_t)1 << 20}, {384, 1152},
                                          {1 << 20, 24}, {20000, 20000},         {16, 1}};
    hy3d_context *const context = test_context(NULL, 8);

    for (size_t i = 0; i < COUNT_OF(channels) * 6; i++) {
        const int64_t *const pair = channels[i % COUNT_OF(channels)];
        hy3d_conv3d_desc desc = conv_desc(HY3D_F64, pair[0], pair[1], 5, 40, 400, 1);
        size_t workspace = 0, own = 0;
        desc.kernel[0] = i / COUNT_OF(channels) % 2 == 0 ? 1 : 3;
        desc.batch = i % 5 == 4 ? 0 : 1;
        desc.num_threads = i / COUNT_OF(channels) < 2 ? 1 : 8;
        ck_assert_ok(hy3d_conv3d_memory(context, &desc, false, &workspace, &own));
        ck_assert_uint_le(workspace, (192 + 256) * 1024 * sizeof(double) * desc.num_threads);
    }
    hy3d_context_destroy(context);
}
END_TEST

TCase *hy3d_conv3d_panel_case(void)
{
    TCase *const tests = tcase_create("panel");
    tcase_add_loop_test(tests, test_tensors_used_where_they_lie_give_the_bits_of_copies, 0, CASES);
    tcase_add_loop_test(tests, test_frames_that_do_not_follow_each_other_give_the_same_bits, 0,
                        CASES);
    tcase_add_test(tests, test_channels_that_blas_cannot_step_over_are_packed);
    tcase_add_test(tests, test_channels_further_apart_than_blas_can_count_are_packed);
    tcase_add_test(tests, test_frames_give_the_bits_of_a_tensor);
    tcase_add_loop_test(tests, test_threads_and_limits_change_no_bit_of_panels, 0, CASES);
    tcase_add_loop_test(tests, test_panels_give_exact_integers, 0, CASES);
    tcase_add_test(tests, test_cancelling_sums_stay_within_the_bound);
    tcase_add_test(tests, test_panels_take_little_memory_whatever_their_size);
    return tests;
}
