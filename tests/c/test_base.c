/* Status, dtypes, checked arithmetic, CPU level, allocator, context, cancel flag. */
#define _GNU_SOURCE
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cpu.h"
#include "hy3d/tensor.h"

static const hy3d_status every_status[] = {
#define CODE(code, value, text) code,
    HY3D_STATUS_LIST(CODE)
#undef CODE
};

START_TEST(test_every_status_has_its_own_name_and_text)
{
    for (size_t i = 0; i < COUNT_OF(every_status); i++) {
        ck_assert_int_eq((int)every_status[i], (int)i);
        for (size_t j = 0; j < i; j++) {
            ck_assert_str_ne(hy3d_status_name(every_status[i]), hy3d_status_name(every_status[j]));
            ck_assert_str_ne(hy3d_status_text(every_status[i]), hy3d_status_text(every_status[j]));
        }
    }
    ck_assert_str_eq(hy3d_status_name(HY3D_ERR_OVERFLOW), "HY3D_ERR_OVERFLOW");
}
END_TEST

START_TEST(test_unknown_values_have_names_too)
{
    ck_assert_str_eq(hy3d_status_name((hy3d_status)77), "unknown status");
    ck_assert_ptr_nonnull(hy3d_status_text((hy3d_status)77));
    ck_assert_str_eq(hy3d_dtype_name((hy3d_dtype)77), "unknown");
    ck_assert_uint_eq(hy3d_dtype_bytes((hy3d_dtype)77), 0);
    ck_assert_str_eq(hy3d_cpu_level_name((hy3d_cpu_level)77), "unknown");
}
END_TEST

START_TEST(test_dtypes_have_the_sizes_of_their_formats)
{
    ck_assert_uint_eq(hy3d_dtype_bytes(HY3D_F32), 4);
    ck_assert_uint_eq(hy3d_dtype_bytes(HY3D_F64), 8);
    ck_assert_uint_eq(hy3d_dtype_bytes(HY3D_F16), 2);
    ck_assert_uint_eq(hy3d_dtype_bytes(HY3D_BF16), 2);
    ck_assert_str_eq(hy3d_dtype_name(HY3D_BF16), "bf16");
}
END_TEST

START_TEST(test_the_range_of_a_tensor_is_from_its_lowest_byte_to_behind_its_highest)
{
    hy3d_tensor t = {.dtype = HY3D_F32, .size = {1, 3, 2, 1, 5}, .stride = {9, -20, 10, 7, 2}};
    int64_t low = 77, high = 77;
    ck_assert_ok(hy3d_tensor_range(&t, &low, &high));
    ck_assert(low == -4 * 40 && high == 4 * (10 + 8 + 1));
    t.size[2] = 0;
    t.stride[4] = INT64_MAX;
    ck_assert_ok(hy3d_tensor_range(&t, &low, &high));
    ck_assert(low == 0 && high == 0);
}
END_TEST

START_TEST(test_a_range_beyond_63_bits_or_of_no_tensor_is_refused)
{
    const int64_t most = INT64_MAX / 8;
    int64_t low = 77, high = 77;
    hy3d_tensor t = {.dtype = HY3D_F64, .size = {2, 1, 1, 1, 1}, .stride = {most, 1, 1, 1, 1}};
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, &high), HY3D_ERR_OVERFLOW); /* its last element */
    t.stride[0]++;
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, &high), HY3D_ERR_OVERFLOW); /* in bytes */
    t.stride[0] = INT64_MIN;
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, &high), HY3D_ERR_OVERFLOW);
    t.size[1] = 2;
    t.stride[0] = most / 2 + 2;
    t.stride[1] = -most / 2 - 2;
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, &high), HY3D_ERR_OVERFLOW); /* from end to end */
    t.size[2] = -1;
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, &high), HY3D_ERR_INVALID_ARGUMENT);
    t = (hy3d_tensor){.dtype = (hy3d_dtype)77};
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, &high), HY3D_ERR_INVALID_ARGUMENT);
    t.dtype = HY3D_F32;
    ck_assert_int_eq(hy3d_tensor_range(NULL, &low, &high), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(hy3d_tensor_range(&t, NULL, &high), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(hy3d_tensor_range(&t, &low, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert(low == 77 && high == 77);
}
END_TEST

START_TEST(test_checked_arithmetic_notices_every_overflow)
{
    int64_t i = 7;
    ck_assert(hy3d__add_i64(INT64_MAX - 1, 1, &i));
    ck_assert_int_eq(i, INT64_MAX);
    ck_assert(!hy3d__add_i64(INT64_MAX, 1, &i));
    ck_assert(!hy3d__add_i64(INT64_MIN, -1, &i));
    ck_assert(hy3d__mul_i64(INT64_C(3037000499), INT64_C(3037000499), &i));
    ck_assert(!hy3d__mul_i64(INT64_C(3037000500), INT64_C(3037000500), &i));
    ck_assert(!hy3d__mul_i64(INT64_MIN, -1, &i));
    ck_assert_int_eq(i, INT64_C(3037000499) * INT64_C(3037000499)); /* failures left it alone */
    size_t n = 7;
    ck_assert(hy3d__add_size(SIZE_MAX - 1, 1, &n));
    ck_assert(!hy3d__add_size(SIZE_MAX, 1, &n));
    ck_assert(!hy3d__mul_size(SIZE_MAX / 2 + 1, 2, &n));
    ck_assert_uint_eq(n, SIZE_MAX);
}
END_TEST

#if defined(__x86_64__) || defined(__i386__)
START_TEST(test_detected_level_is_the_one_the_compiler_sees)
{
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    /* F16C has no name for gcc 12's builtin; every CPU with AVX2 has it. */
    ck_assert_int_eq((int)hy3d_cpu_detect(), avx512 ? 2 : avx2 ? 1 : 0);
}
END_TEST
#endif

/* HY3D_CPU for the length of one creation. */
static hy3d_status create_level(const char *environment, const char *option, int *level_out)
{
    const char *const now = getenv("HY3D_CPU");
    char before[32] = "";
    ck_assert(now == NULL || strlen(now) < sizeof before);
    strcpy(before, now != NULL ? now : "");
    if (environment != NULL) {
        setenv("HY3D_CPU", environment, 1);
    } else {
        unsetenv("HY3D_CPU");
    }
    hy3d_context *context = NULL;
    const hy3d_context_options options = {.cpu_level = option};
    const hy3d_status status = hy3d_context_create(&options, &context);
    if (now != NULL) {
        setenv("HY3D_CPU", before, 1);
    } else {
        unsetenv("HY3D_CPU");
    }
    *level_out = status == HY3D_OK ? (int)hy3d_context_cpu_level(context) : -1;
    hy3d_context_destroy(context);
    return status;
}

START_TEST(test_cpu_override_can_only_lower_the_level)
{
    const int best = (int)hy3d_cpu_detect();
    for (int asked = 0; asked <= (int)HY3D_CPU_AVX512; asked++) {
        const char *const word = hy3d_cpu_level_name((hy3d_cpu_level)asked);
        int level;
        ck_assert_ok(create_level(NULL, word, &level));
        ck_assert_int_eq(level, asked < best ? asked : best);
        ck_assert_ok(create_level(word, NULL, &level));
        ck_assert_int_eq(level, asked < best ? asked : best);
        ck_assert_ok(create_level("nonsense", word, &level)); /* the option goes first */
        ck_assert_int_eq(level, asked < best ? asked : best);
    }
}
END_TEST

START_TEST(test_asking_for_more_than_a_machine_has_gives_what_it_has)
{
    for (int best = 0; best <= (int)HY3D_CPU_AVX512; best++) {
        for (int asked = 0; asked <= (int)HY3D_CPU_AVX512; asked++) {
            hy3d_cpu_level level;
            ck_assert(hy3d__cpu_parse(hy3d_cpu_level_name((hy3d_cpu_level)asked),
                                      (hy3d_cpu_level)best, &level));
            ck_assert_int_eq((int)level, asked < best ? asked : best);
        }
    }
}
END_TEST

START_TEST(test_no_override_takes_the_best_and_an_unknown_one_is_refused)
{
    int level;
    ck_assert_ok(create_level(NULL, NULL, &level));
    ck_assert_int_eq(level, (int)hy3d_cpu_detect());
    ck_assert_ok(create_level("", NULL, &level));
    ck_assert_int_eq(level, (int)hy3d_cpu_detect());
    ck_assert_status(create_level("AVX2", NULL, &level), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(create_level(NULL, "sse2", &level), HY3D_ERR_INVALID_ARGUMENT);
}
END_TEST

START_TEST(test_impossible_sizes_are_refused_and_leave_the_output_alone)
{
    hy3d_context *const context = test_context(NULL, 1);
    void *memory = context;
    ck_assert_status(hy3d_alloc(context, SIZE_MAX, &memory), HY3D_ERR_OVERFLOW);
    ck_assert_status(hy3d_alloc(context, (size_t)PTRDIFF_MAX + 1, &memory), HY3D_ERR_OVERFLOW);
    ck_assert_status(hy3d_alloc(context, PTRDIFF_MAX - 127, &memory), HY3D_ERR_OUT_OF_MEMORY);
    ck_assert_status(hy3d_alloc(context, 1, NULL), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_status(hy3d_alloc(NULL, 1, &memory), HY3D_ERR_INVALID_ARGUMENT);
    ck_assert_ptr_eq(memory, context);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_context_knows_its_thread_limit)
{
    hy3d_context *context = test_context(NULL, 5);
    ck_assert_uint_eq(hy3d_context_max_threads(context), 5);
    hy3d_context_destroy(context);
    ck_assert_ok(hy3d_context_create(NULL, &context));
    ck_assert_uint_ge(hy3d_context_max_threads(context), 1);
    hy3d_context_destroy(context);
    context = test_context(NULL, UINT32_MAX);
    ck_assert_uint_eq(hy3d_context_max_threads(context), 1024);
    hy3d_context_destroy(context);
    hy3d_context_destroy(NULL);
    ck_assert_status(hy3d_context_create(NULL, NULL), HY3D_ERR_INVALID_ARGUMENT);
}
END_TEST

static hy3d_status make_cancel(hy3d_context *context, void *argument)
{
    (void)argument;
    hy3d_cancel *cancel;
    const hy3d_status status = hy3d_cancel_create(context, &cancel);
    if (status == HY3D_OK) {
        hy3d_cancel_destroy(context, cancel);
    }
    return status;
}

START_TEST(test_cancel_flag_is_set_reset_and_never_set_when_null)
{
    hy3d_context *const context = test_context(NULL, 1);
    hy3d_cancel *cancel = NULL;
    ck_assert_ok(hy3d_cancel_create(context, &cancel));
    ck_assert(!hy3d_cancel_requested(cancel));
    hy3d_cancel_request(cancel);
    ck_assert(hy3d_cancel_requested(cancel));
    hy3d_cancel_reset(cancel);
    ck_assert(!hy3d_cancel_requested(cancel));
    ck_assert(!hy3d_cancel_requested(NULL));
    hy3d_cancel_destroy(context, cancel);
    hy3d_cancel_destroy(context, NULL);
    ck_assert_uint_eq(test_allocation_sweep(context, make_cancel, NULL), 1);
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_base_suite(void);
Suite *hy3d_base_suite(void)
{
    Suite *const suite = suite_create("base");
    TCase *const tests = tcase_create("base");
    tcase_add_test(tests, test_every_status_has_its_own_name_and_text);
    tcase_add_test(tests, test_unknown_values_have_names_too);
    tcase_add_test(tests, test_dtypes_have_the_sizes_of_their_formats);
    tcase_add_test(tests,
                   test_the_range_of_a_tensor_is_from_its_lowest_byte_to_behind_its_highest);
    tcase_add_test(tests, test_a_range_beyond_63_bits_or_of_no_tensor_is_refused);
    tcase_add_test(tests, test_checked_arithmetic_notices_every_overflow);
#if defined(__x86_64__) || defined(__i386__)
    tcase_add_test(tests, test_detected_level_is_the_one_the_compiler_sees);
#endif
    tcase_add_test(tests, test_cpu_override_can_only_lower_the_level);
    tcase_add_test(tests, test_asking_for_more_than_a_machine_has_gives_what_it_has);
    tcase_add_test(tests, test_no_override_takes_the_best_and_an_unknown_one_is_refused);
    tcase_add_test(tests, test_impossible_sizes_are_refused_and_leave_the_output_alone);
    tcase_add_test(tests, test_context_knows_its_thread_limit);
    tcase_add_test(tests, test_cancel_flag_is_set_reset_and_never_set_when_null);
    suite_add_tcase(suite, tests);
    return suite;
}
