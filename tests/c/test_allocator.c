/* Memory, and the host's allocator in the place of the library's. */
#include "conv3d_support.h"

#include <string.h>

#include "base/alloc.h"

Suite *hy3d_allocator_suite(void);

START_TEST(test_memory_is_aligned_and_counted)
{
    hy3d_context *const context = test_context(NULL, 1);
    const uint64_t live = test_live();
    const uint64_t count = test_asked();
    void *memory[130];
    for (size_t i = 0; i < COUNT_OF(memory); i++) {
        ck_assert_ok(hy3d_alloc(context, i, &memory[i]));
        ck_assert_uint_eq((uintptr_t)memory[i] % 64, 0);
        memset(memory[i], 1, i);
    }
    ck_assert_uint_eq(test_live(), live + COUNT_OF(memory));
    ck_assert_uint_eq(test_asked(), count + COUNT_OF(memory));
    for (size_t i = 0; i < COUNT_OF(memory); i++) {
        hy3d_free(context, memory[i]);
    }
    hy3d_free(context, NULL);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
}
END_TEST

/* Status of the next `n` allocations as a bit each, first one lowest. */
static unsigned failures_of(hy3d_context *context, int n)
{
    unsigned failed = 0;
    for (int i = 0; i < n; i++) {
        void *memory = NULL;
        const hy3d_status status = hy3d_alloc(context, 8, &memory);
        failed |= (status == HY3D_ERR_OUT_OF_MEMORY ? 1U : 0) << i;
        hy3d_free(context, memory);
    }
    return failed;
}

START_TEST(test_the_kth_allocation_fails_once_or_for_ever)
{
    hy3d_context *const context = test_context(NULL, 1);
    test_fail(3, false);
    ck_assert_uint_eq(failures_of(context, 6), 0x04);
    test_fail(3, true);
    ck_assert_uint_eq(failures_of(context, 6), 0x3c);
    test_fail(0, false);
    ck_assert_uint_eq(failures_of(context, 6), 0);
    test_fail(UINT64_MAX, true);
    ck_assert_uint_eq(failures_of(context, 6), 0);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_context_creation_survives_every_allocation_failing)
{
    for (int forever = 0; forever < 2; forever++) {
        uint64_t k = 1;
        for (;; k++) {
            counting memory;
            counting_init(&memory);
            counting_fail(&memory, k, forever != 0);
            hy3d_context *context = NULL;
            const hy3d_context_options options = {.blas_library = "some/where.so",
                                                  .allocator = &memory.allocator};
            const hy3d_status status = hy3d_context_create(&options, &context);
            if (status == HY3D_OK) {
                ck_assert_uint_eq(counting_asked(&memory), k - 1);
                ck_assert_uint_eq(counting_live(&memory), k - 1);
                hy3d_context_destroy(context);
            }
            ck_assert_uint_eq(counting_live(&memory), 0);
            ck_assert_uint_eq(counting_live_bytes(&memory), 0);
            if (status == HY3D_OK) {
                break;
            }
            ck_assert_status(status, HY3D_ERR_OUT_OF_MEMORY);
            ck_assert_ptr_null(context);
        }
        ck_assert_uint_gt(k, 3); /* context, pool, BLAS and the name were all tried */
    }
}
END_TEST

/* A context's life: threads, prepared weights, a flag, a workspace that is kept. */
static hy3d_status live_once(const hy3d_allocator *allocator, const conv_problem *problem)
{
    const hy3d_context_options options = {.max_threads = 3, .allocator = allocator};
    hy3d_context *context = NULL;
    hy3d_conv3d_weights *weights = NULL;
    hy3d_cancel *cancel = NULL;
    hy3d_conv3d_format format;
    hy3d_status status = hy3d_context_create(&options, &context);
    if (status != HY3D_OK) {
        return status;
    }
    status = hy3d_cancel_create(context, &cancel);
    if (status == HY3D_OK) {
        status = conv_problem_run(context, problem);
    }
    if (status == HY3D_OK) {
        status = hy3d_conv3d_choose_format(context, &problem->desc, &format);
    }
    if (status == HY3D_OK && format != HY3D_FORMAT_NONE) {
        status = hy3d_conv3d_weights_create(context, &problem->weight.tensor, format, 0, NULL,
                                            &weights);
    }
    hy3d_conv3d_weights_destroy(weights);
    hy3d_cancel_destroy(context, cancel);
    hy3d_context_destroy(context);
    return status;
}

static conv_problem fast_problem(void)
{
    hy3d_conv3d_desc desc = conv_desc(HY3D_F32, 64, 64, 4, 18, 18, 3);
    test_random random = test_rng(24);
    desc.accuracy = HY3D_FAST;
    return conv_problem_make(&desc, true, LAYOUT_PLAIN, LAYOUT_PLAIN, LAYOUT_PLAIN, &random, 2);
}

START_TEST(test_every_byte_that_a_context_takes_comes_back)
{
    conv_problem problem = fast_problem();
    counting memory;
    counting_init(&memory);
    ck_assert_ok(live_once(&memory.allocator, &problem));
    ck_assert_uint_gt(counting_asked(&memory), 5);
    ck_assert_uint_eq(counting_live(&memory), 0);
    ck_assert_uint_eq(counting_live_bytes(&memory), 0);
    conv_problem_free(&problem);
}
END_TEST

START_TEST(test_each_allocation_of_a_context_s_life_may_fail)
{
    conv_problem problem = fast_problem();
    for (int forever = 0; forever < 2; forever++) {
        hy3d_status status = HY3D_ERR_OUT_OF_MEMORY;
        counting memory;
        uint64_t failed = 0;
        for (uint64_t k = 1; k == 1 || counting_asked(&memory) >= k - 1; k++) {
            counting_init(&memory);
            counting_fail(&memory, k, forever != 0);
            status = live_once(&memory.allocator, &problem);
            ck_assert_msg(status == HY3D_OK || status == HY3D_ERR_OUT_OF_MEMORY, "%llu: %s",
                          (unsigned long long)k, hy3d_status_name(status));
            failed += status != HY3D_OK;
            ck_assert_uint_eq(counting_live(&memory), 0);
            ck_assert_uint_eq(counting_live_bytes(&memory), 0);
        }
        ck_assert_ok(status); /* there was none left to fail */
        ck_assert_uint_gt(failed, 5);
    }
    conv_problem_free(&problem);
}
END_TEST

/* An allocator that notes what it is asked. */
typedef struct watched {
    size_t shift; /* of the addresses that it gives */
    int odd_sizes;
    int live;
    void *first, *last_back;
} watched;

static void *watched_get(void *context, size_t bytes)
{
    watched *const w = context;
    unsigned char *const memory = hy3d__system_allocator.allocate(NULL, bytes + 64);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0xa5, bytes + 64);
    w->odd_sizes += bytes < 64 || bytes % 64 != 0;
    w->live++;
    if (w->first == NULL) {
        w->first = memory + w->shift;
    }
    return memory + w->shift;
}

static void watched_put(void *context, void *memory)
{
    watched *const w = context;
    w->live--;
    w->last_back = memory;
    hy3d__system_allocator.deallocate(NULL, (unsigned char *)memory - w->shift);
}

START_TEST(test_sizes_are_whole_lines_and_the_context_comes_first_and_goes_last)
{
    conv_problem problem = fast_problem();
    watched w = {.shift = 0};
    const hy3d_allocator allocator = {watched_get, watched_put, &w};
    const hy3d_context_options options = {.max_threads = 1, .allocator = &allocator};
    hy3d_context *context = NULL;
    ck_assert_ok(hy3d_context_create(&options, &context));
    ck_assert_ptr_eq(w.first, context);
    for (size_t bytes = 0; bytes < 200; bytes++) {
        void *memory = NULL;
        ck_assert_ok(hy3d_alloc(context, bytes, &memory));
        hy3d_free(context, memory);
    }
    ck_assert_ok(conv_problem_run(context, &problem));
    hy3d_context_destroy(context);
    ck_assert_ptr_eq(w.last_back, w.first);
    ck_assert_int_eq(w.live, 0);
    ck_assert_int_eq(w.odd_sizes, 0);
    conv_problem_free(&problem);
}
END_TEST

START_TEST(test_memory_that_is_not_aligned_is_refused_and_given_back)
{
    for (size_t shift = 1; shift < 64; shift += shift) {
        watched w = {.shift = shift};
        const hy3d_allocator allocator = {watched_get, watched_put, &w};
        const hy3d_context_options options = {.allocator = &allocator};
        hy3d_context *context = NULL;
        ck_assert_status(hy3d_context_create(&options, &context), HY3D_ERR_UNSUPPORTED);
        ck_assert_ptr_null(context);
        ck_assert_ptr_nonnull(w.first);
        ck_assert_int_eq(w.live, 0);
    }
}
END_TEST

START_TEST(test_an_allocator_that_lacks_a_function_is_refused_before_it_is_asked)
{
    watched w = {.shift = 0};
    const hy3d_allocator halves[] = {{watched_get, NULL, &w}, {NULL, watched_put, &w}, {0}};
    for (size_t i = 0; i < COUNT_OF(halves); i++) {
        const hy3d_context_options options = {.allocator = &halves[i]};
        hy3d_context *context = NULL;
        ck_assert_status(hy3d_context_create(&options, &context), HY3D_ERR_INVALID_ARGUMENT);
        ck_assert_ptr_null(context);
    }
    ck_assert_ptr_null(w.first);
}
END_TEST

Suite *hy3d_allocator_suite(void)
{
    Suite *suite = suite_create("allocator");
    TCase *tests = tcase_create("allocator");
    tcase_add_test(tests, test_memory_is_aligned_and_counted);
    tcase_add_test(tests, test_the_kth_allocation_fails_once_or_for_ever);
    tcase_add_test(tests, test_context_creation_survives_every_allocation_failing);
    tcase_add_test(tests, test_every_byte_that_a_context_takes_comes_back);
    tcase_add_test(tests, test_each_allocation_of_a_context_s_life_may_fail);
    tcase_add_test(tests, test_sizes_are_whole_lines_and_the_context_comes_first_and_goes_last);
    tcase_add_test(tests, test_memory_that_is_not_aligned_is_refused_and_given_back);
    tcase_add_test(tests, test_an_allocator_that_lacks_a_function_is_refused_before_it_is_asked);
    suite_add_tcase(suite, tests);
    return suite;
}
