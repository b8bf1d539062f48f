/* The part of the Check library's interface that these tests use, for machines without Check.
 *
 * Same tests, same closing lines, one process a test (CK_FORK=no: all in one, for debuggers and
 * valgrind), CK_TIMEOUT_MULTIPLIER as Check has it. HY3D_TEST_SHARE=I/N runs each N-th test from
 * number I on, so that N programs share the work. Left out: fixtures, tags, signals and exit codes expected, logs, XML. A test that
 * fails ends its process; without fork, it jumps back to the runner and leaks what it held.
 * The runner is check_compat.c; on Windows it starts the program again for each test. */
#ifndef HY3D_TESTS_CHECK_COMPAT_H
#define HY3D_TESTS_CHECK_COMPAT_H

#include <stdint.h>
#include <string.h>

typedef struct Suite Suite;
typedef struct TCase TCase;
typedef struct SRunner SRunner;
enum print_output { CK_SILENT, CK_MINIMAL, CK_NORMAL, CK_VERBOSE };

typedef struct compat_test {
    const char *name;
    void (*run)(int _i);
} compat_test;

Suite *suite_create(const char *name);
TCase *tcase_create(const char *name);
void suite_add_tcase(Suite *suite, TCase *tcase);
/* Seconds; 4 unless told, as Check has it. */
void tcase_set_timeout(TCase *tcase, double seconds);
void compat_add(TCase *tcase, const compat_test *test, int start, int end);
SRunner *srunner_create(Suite *suite);
void srunner_add_suite(SRunner *runner, Suite *suite);
void srunner_run_all(SRunner *runner, enum print_output how);
void srunner_print(SRunner *runner, enum print_output how);
/* The test at work, "" before the first. */
const char *compat_test_name(void);
/* Ends the test at work, as passed. */
__attribute__((noreturn)) void compat_end(void);
int srunner_ntests_failed(SRunner *runner);
int srunner_ntests_run(SRunner *runner);
void srunner_free(SRunner *runner);

#ifndef TEST_PRINTF
#define TEST_PRINTF printf
#endif
__attribute__((noreturn, format(TEST_PRINTF, 3, 4))) void compat_fail(const char *file, int line,
                                                                  const char *format, ...);

#define tcase_add_test(tcase, test) compat_add(tcase, test, 0, 1)
#define tcase_add_loop_test(tcase, test, start, end) compat_add(tcase, test, start, end)

#define START_TEST(test_name)                                                                      \
    static void test_name##_fn(int _i __attribute__((unused)));                                    \
    static const compat_test test_name##_test = {#test_name, test_name##_fn};                      \
    static const compat_test *const test_name = &test_name##_test;                                 \
    static void test_name##_fn(int _i __attribute__((unused)))
#define END_TEST

/* `, ##` is not C11: the message is formatted by its own call. */
#define ck_abort_msg(...) compat_fail(__FILE__, __LINE__, __VA_ARGS__)
#define ck_abort() ck_abort_msg("Failed")
#define ck_assert_msg(condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            compat_fail(__FILE__, __LINE__, __VA_ARGS__);                                          \
        }                                                                                          \
    } while (0)
#define ck_assert(condition)                                                                       \
    ck_assert_msg(condition, "Assertion '%s' failed", #condition)

#define COMPAT_COMPARE(type, format, a, op, b)                                                     \
    do {                                                                                           \
        const type a_ = (a);                                                                       \
        const type b_ = (b);                                                                       \
        ck_assert_msg(a_ op b_, "Assertion '%s' failed: %s == " format ", %s == " format,          \
                      #a " " #op " " #b, #a, a_, #b, b_);                                          \
    } while (0)
#define COMPAT_INT(a, op, b) COMPAT_COMPARE(intmax_t, "%jd", a, op, b)
#define COMPAT_UINT(a, op, b) COMPAT_COMPARE(uintmax_t, "%ju", a, op, b)
#define COMPAT_PTR(a, op, b) COMPAT_COMPARE(void *, "%p", (void *)(uintptr_t)(a), op,              \
                                            (void *)(uintptr_t)(b))
#define COMPAT_DOUBLE(a, op, b) COMPAT_COMPARE(double, "%.17g", a, op, b)
#define COMPAT_FLOAT(a, op, b) COMPAT_COMPARE(double, "%.9g", (double)(a), op, (double)(b))
#define COMPAT_STR(a, op, b)                                                                       \
    do {                                                                                           \
        const char *const a_ = (a);                                                                \
        const char *const b_ = (b);                                                                \
        ck_assert_msg(a_ != NULL && b_ != NULL && strcmp(a_, b_) op 0,                             \
                      "Assertion '%s' failed: %s == \"%s\", %s == \"%s\"", #a " " #op " " #b, #a,  \
                      a_ != NULL ? a_ : "(null)", #b, b_ != NULL ? b_ : "(null)");                 \
    } while (0)

#define ck_assert_int_eq(a, b) COMPAT_INT(a, ==, b)
#define ck_assert_int_ne(a, b) COMPAT_INT(a, !=, b)
#define ck_assert_int_lt(a, b) COMPAT_INT(a, <, b)
#define ck_assert_int_le(a, b) COMPAT_INT(a, <=, b)
#define ck_assert_int_gt(a, b) COMPAT_INT(a, >, b)
#define ck_assert_int_ge(a, b) COMPAT_INT(a, >=, b)
#define ck_assert_uint_eq(a, b) COMPAT_UINT(a, ==, b)
#define ck_assert_uint_ne(a, b) COMPAT_UINT(a, !=, b)
#define ck_assert_uint_lt(a, b) COMPAT_UINT(a, <, b)
#define ck_assert_uint_le(a, b) COMPAT_UINT(a, <=, b)
#define ck_assert_uint_gt(a, b) COMPAT_UINT(a, >, b)
#define ck_assert_uint_ge(a, b) COMPAT_UINT(a, >=, b)
#define ck_assert_ptr_eq(a, b) COMPAT_PTR(a, ==, b)
#define ck_assert_ptr_ne(a, b) COMPAT_PTR(a, !=, b)
#define ck_assert_ptr_null(a) ck_assert_msg((a) == NULL, "Assertion '%s' failed", #a " == NULL")
#define ck_assert_ptr_nonnull(a) ck_assert_msg((a) != NULL, "Assertion '%s' failed", #a " != NULL")
#define ck_assert_str_eq(a, b) COMPAT_STR(a, ==, b)
#define ck_assert_str_ne(a, b) COMPAT_STR(a, !=, b)
#define ck_assert_double_eq(a, b) COMPAT_DOUBLE(a, ==, b)
#define ck_assert_double_le(a, b) COMPAT_DOUBLE(a, <=, b)
#define ck_assert_double_lt(a, b) COMPAT_DOUBLE(a, <, b)
#define ck_assert_double_ge(a, b) COMPAT_DOUBLE(a, >=, b)
#define ck_assert_double_gt(a, b) COMPAT_DOUBLE(a, >, b)
#define ck_assert_float_eq(a, b) COMPAT_FLOAT(a, ==, b)
#define ck_assert_float_le(a, b) COMPAT_FLOAT(a, <=, b)
#define ck_assert_float_ge(a, b) COMPAT_FLOAT(a, >=, b)
#define ck_assert_mem_eq(a, b, bytes)                                                              \
    ck_assert_msg(memcmp(a, b, bytes) == 0, "Assertion '%s' failed", #a " == " #b)
#define ck_assert_mem_ne(a, b, bytes)                                                              \
    ck_assert_msg(memcmp(a, b, bytes) != 0, "Assertion '%s' failed", #a " != " #b)

#endif
