/* Contexts, memory, cancel flags, texts, seeds, the measured peak, layouts of prepared weights. */
#include "vectors.h"

#include <string.h>

#include "hy3d/conv3d.h"
#include "hy3d/peak.h"
#include "hy3d/seed.h"
#include "hy3d/tensor.h"

typedef struct creation {
    int64_t nowhere, no_options, word, fail_at, without;
    hy3d_context_options options;
} creation;

#define O(member, value) VECTOR_SET(creation, member, value)
static const char *const words[] = {NULL,   "ref",  "avx2",  "avx512", "",
                                    "AVX2", "avx5", "avx2 ", "sse",    "avx512f"};

static const vector creations[] = {
    {"as it is", {{0}}, OK},
    {"no options", {O(no_options, 1)}, OK},
    {"nowhere to put it", {O(nowhere, 1)}, BAD},
    {"ref", {O(word, 1)}, OK},
    {"avx2", {O(word, 2)}, OK},
    {"avx512", {O(word, 3)}, OK},
    {"an empty word", {O(word, 4)}, OK},
    {"capitals", {O(word, 5)}, BAD},
    {"a word cut off", {O(word, 6)}, BAD},
    {"a blank after it", {O(word, 7)}, BAD},
    {"another instruction set", {O(word, 8)}, BAD},
    {"a letter too many", {O(word, 9)}, BAD},
    {"one thread", {O(options.max_threads, 1)}, OK},
    {"1024 threads", {O(options.max_threads, 1024)}, OK},
    {"1025 threads are 1024", {O(options.max_threads, 1025)}, OK},
    {"threads most are 1024", {O(options.max_threads, UINT32_MAX)}, OK},
    {"the first allocation fails", {O(fail_at, 1)}, HY3D_ERR_OUT_OF_MEMORY},
    {"the second allocation fails", {O(fail_at, 2)}, HY3D_ERR_OUT_OF_MEMORY},
    {"an allocation that never comes fails", {O(fail_at, -1)}, OK},
    {"nothing that allocates", {O(without, 1)}, BAD},
    {"nothing that frees", {O(without, 2)}, BAD},
    {"neither", {O(without, 3)}, BAD},
};

static hy3d_status create(const vector *v)
{
    creation a = {.nowhere = 0};
    hy3d_context *context = NULL;

    vector_apply(v, &a);
    hy3d_allocator allocator = *test_allocator();
    if ((a.without & 1) != 0) {
        allocator.allocate = NULL;
    }
    if ((a.without & 2) != 0) {
        allocator.deallocate = NULL;
    }
    a.options.allocator = &allocator;
    a.options.cpu_level = words[a.word];
    const uint64_t live = test_live();
    test_fail((uint64_t)a.fail_at, false);
    const hy3d_status status = hy3d_context_create(a.no_options != 0 ? NULL : &a.options,
                                                   a.nowhere != 0 ? NULL : &context);
    ck_assert_msg((context != NULL) == (status == HY3D_OK), "%s", v->what);
    if (context != NULL) {
        ck_assert_uint_ge(hy3d_context_max_threads(context), 1);
        ck_assert_uint_le(hy3d_context_max_threads(context), 1024);
        ck_assert_msg(a.options.max_threads == 0 || a.options.max_threads > 1024 ||
                          hy3d_context_max_threads(context) == a.options.max_threads,
                      "%s", v->what);
    }
    hy3d_context_destroy(context);
    test_fail(0, false);
    ck_assert_msg(test_live() == live, "%s", v->what);
    return status;
}

/* Memory of no context, of no place, of sizes that nobody has. */
typedef struct demand {
    int64_t no_context, nowhere, kept;
    size_t bytes;
} demand;

#define M(member, value) VECTOR_SET(demand, member, value)
#define DEMANDS(is_kept)                                                                           \
    {"a byte", {M(kept, is_kept), M(bytes, 1)}, OK}, {"no byte", {M(kept, is_kept)}, OK},          \
    {"no context", {M(kept, is_kept), M(no_context, 1)}, BAD},                                     \
    {"nowhere to put it", {M(kept, is_kept), M(nowhere, 1)}, BAD},                                 \
    {"63 bytes", {M(kept, is_kept), M(bytes, 63)}, OK},                                            \
    {"65 bytes", {M(kept, is_kept), M(bytes, 65)}, OK},                                            \
    {"one less than a huge page", {M(kept, is_kept), M(bytes, TWO(21) - 1)}, OK},                  \
    {"a huge page", {M(kept, is_kept), M(bytes, TWO(21))}, OK},                                    \
    {"half of all addresses", {M(kept, is_kept), M(bytes, TWO(62))}, HY3D_ERR_OUT_OF_MEMORY},      \
    {"PTRDIFF_MAX", {M(kept, is_kept), M(bytes, INT64_MAX)}, BIG},                                 \
    {"PTRDIFF_MAX and one", {M(kept, is_kept), M(bytes, INT64_MIN)}, BIG},                         \
    {"SIZE_MAX", {M(kept, is_kept), M(bytes, -1)}, BIG},                                           \
    {"SIZE_MAX less a line", {M(kept, is_kept), M(bytes, -64)}, BIG},                              \
    {"SIZE_MAX less a line less one", {M(kept, is_kept), M(bytes, -65)}, BIG}

static const vector demands[] = {
    DEMANDS(0),
    DEMANDS(1),
    {"the last size there is an address for", {M(bytes, INT64_MAX - 63)}, HY3D_ERR_OUT_OF_MEMORY},
    {"one byte beyond it", {M(bytes, INT64_MAX - 62)}, BIG},
};

static hy3d_status demand_it(const vector *v)
{
    hy3d_context *const context = test_context("ref", 1);
    demand a = {.bytes = 0};
    void *memory = NULL;

    vector_apply(v, &a);
    const uint64_t live = test_live();
    const hy3d_status status = (a.kept != 0 ? hy3d_workspace_take : hy3d_alloc)(
        a.no_context != 0 ? NULL : context, a.bytes, a.nowhere != 0 ? NULL : &memory);
    ck_assert_msg((memory != NULL) == (status == HY3D_OK), "%s", v->what);
    if (memory != NULL) {
        ck_assert_uint_eq((uintptr_t)memory % 64, 0);
        memset(memory, 1, a.bytes);
    }
    (a.kept != 0 ? hy3d_workspace_give : hy3d_free)(context, memory);
    hy3d_context_trim(context);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
    return status;
}

typedef struct burning {
    int64_t no_context, nowhere, rounds;
    uint32_t threads;
} burning;

#define B(member, value) VECTOR_SET(burning, member, value)
static const vector burnings[] = {
    {"one round", {{0}}, OK},
    {"no context", {B(no_context, 1)}, BAD},
    {"nowhere to put it", {B(nowhere, 1)}, BAD},
    {"no round", {B(rounds, 0)}, BAD},
    {"rounds -1", {B(rounds, -1)}, BAD},
    {"rounds least", {B(rounds, INT64_MIN)}, BAD},
    {"rounds beyond", {B(rounds, TWO(22) + 1)}, BAD},
    {"rounds most", {B(rounds, INT64_MAX)}, BAD},
    {"threads most", {B(threads, UINT32_MAX)}, OK},
};

static hy3d_status burn(const vector *v)
{
    hy3d_context *const context = test_context(NULL, 2);
    burning a = {.rounds = 1, .threads = 1};
    double flops = -7.0;

    vector_apply(v, &a);
    const hy3d_status status = hy3d_peak_run(a.no_context != 0 ? NULL : context, a.threads,
                                             a.rounds, a.nowhere != 0 ? NULL : &flops);
    ck_assert_msg((flops > 0) == (status == HY3D_OK), "%s", v->what);
    hy3d_context_destroy(context);
    return status;
}

/* Questions that have an answer instead of a status: OK where it is the one wanted. */
typedef enum question {
    IS_BYTES, IS_DTYPE_NAME, IS_STATUS_NAME, IS_LEVEL_NAME, IS_FORMAT_NAME, IS_FORMAT_BYTES
} question;
static const struct {
    question kind;
    int64_t value;
    const char *text; /* or number */
    size_t number;
} answers[] = {
    {IS_BYTES, HY3D_F32, NULL, 4}, {IS_BYTES, HY3D_F64, NULL, 8}, {IS_BYTES, HY3D_F16, NULL, 2},
    {IS_BYTES, HY3D_BF16, NULL, 2}, {IS_BYTES, 4, NULL, 0}, {IS_BYTES, -1, NULL, 0},
    {IS_BYTES, INT32_MAX, NULL, 0}, {IS_DTYPE_NAME, HY3D_F32, "f32", 0},
    {IS_DTYPE_NAME, HY3D_BF16, "bf16", 0}, {IS_DTYPE_NAME, 4, "unknown", 0},
    {IS_DTYPE_NAME, -1, "unknown", 0}, {IS_STATUS_NAME, 0, "HY3D_OK", 0},
    {IS_STATUS_NAME, 10, "HY3D_ERR_THREAD", 0}, {IS_STATUS_NAME, 11, "unknown status", 0},
    {IS_STATUS_NAME, -1, "unknown status", 0}, {IS_STATUS_NAME, INT32_MAX, "unknown status", 0},
    {IS_LEVEL_NAME, 0, "ref", 0}, {IS_LEVEL_NAME, 2, "avx512", 0}, {IS_LEVEL_NAME, 3, "unknown", 0},
    {IS_LEVEL_NAME, -1, "unknown", 0}, {IS_FORMAT_NAME, 0, "none", 0},
    {IS_FORMAT_NAME, 1, "winograd-4x4", 0}, {IS_FORMAT_NAME, 4, "winograd-2x5x5", 0},
    {IS_FORMAT_NAME, 7, "winograd-up-4x6x6", 0}, {IS_FORMAT_NAME, 8, "winograd-3x4x4", 0}, {IS_FORMAT_NAME, 11, "unknown", 0}, {IS_FORMAT_NAME, UINT32_MAX, "unknown", 0},
    /* From product to product an odd number of lines. */
    {IS_FORMAT_BYTES, 0, NULL, 0}, {IS_FORMAT_BYTES, 1, NULL, 36 * (3 * 16 * 32 + 16) * 4},
    {IS_FORMAT_BYTES, 2, NULL, 144 * (16 * 32 + 16) * 4},
    {IS_FORMAT_BYTES, 3, NULL, 49 * (3 * 16 * 32 + 16) * 4},
    {IS_FORMAT_BYTES, 4, NULL, 196 * (16 * 32 + 16) * 4},
    {IS_FORMAT_BYTES, 5, NULL, 49 * (3 * 16 * 32 + 16) * 4},
    {IS_FORMAT_BYTES, 7, NULL, 245 * (16 * 32 + 16) * 4},
    {IS_FORMAT_BYTES, 10, NULL, 245 * (16 * 32 + 16) * 4}, {IS_FORMAT_BYTES, 11, NULL, 0},
    {IS_FORMAT_BYTES, UINT32_MAX, NULL, 0},
};

static bool is_answered(size_t i)
{
    static const int64_t kernel[3] = {3, 3, 3};
    const int number = (int)answers[i].value;
    const hy3d_conv3d_format format = (hy3d_conv3d_format)answers[i].value;
    switch (answers[i].kind) {
    case IS_BYTES:
        return hy3d_dtype_bytes((hy3d_dtype)number) == answers[i].number;
    case IS_DTYPE_NAME:
        return strcmp(hy3d_dtype_name((hy3d_dtype)number), answers[i].text) == 0;
    case IS_STATUS_NAME:
        return strcmp(hy3d_status_name((hy3d_status)number), answers[i].text) == 0;
    case IS_LEVEL_NAME:
        return strcmp(hy3d_cpu_level_name((hy3d_cpu_level)number), answers[i].text) == 0;
    case IS_FORMAT_NAME:
        return strcmp(hy3d_conv3d_format_name(format), answers[i].text) == 0;
    case IS_FORMAT_BYTES:
    default:
        return hy3d_conv3d_format_bytes(format, 1, 1, kernel) == answers[i].number;
    }
}

/* Channels and taps of layouts that have none, by one and by far; 0 bytes each. */
static const int64_t without_layout[][5] = {
    {0, 1, 3, 3, 3}, {-1, 1, 3, 3, 3}, {INT64_MIN, 1, 3, 3, 3}, {INT64_MAX, 1, 3, 3, 3},
    {TWO(31), 1, 3, 3, 3}, {1, 0, 3, 3, 3}, {1, -1, 3, 3, 3}, {1, TWO(31), 3, 3, 3},
    {1, INT64_MAX, 3, 3, 3}, {1, 1, 0, 3, 3}, {1, 1, 4, 3, 3}, {1, 1, 3, 2, 3}, {1, 1, 3, 4, 3},
    {1, 1, 3, 3, 2}, {1, 1, 3, 3, 4}, {1, 1, 3, 3, INT64_MAX}, {1, 1, INT64_MIN, 3, 3},
};

/* Words of seeds at their ends, from Philox computed apart (tests/c/test_seed.c has more). */
static const uint64_t seeds[] = {0, 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};

START_TEST(test_contexts)
{
    vectors_check(creations, COUNT_OF(creations), create);
}
END_TEST

START_TEST(test_memory)
{
    vectors_check(demands, COUNT_OF(demands), demand_it);
}
END_TEST

START_TEST(test_peaks)
{
    vectors_check(burnings, COUNT_OF(burnings), burn);
}
END_TEST

START_TEST(test_answers)
{
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        ck_assert_msg(is_answered(i), "question %zu", i);
    }
    for (size_t i = 0; i < COUNT_OF(without_layout); i++) {
        const int64_t *const row = without_layout[i];
        ck_assert_msg(hy3d_conv3d_format_bytes(1, row[0], row[1], &row[2]) == 0, "row %zu", i);
    }
    ck_assert_uint_eq(hy3d_conv3d_format_bytes(1, 1, 1, NULL), 0);
    /* More bytes than there are numbers for. */
    ck_assert_uint_eq(
        hy3d_conv3d_format_bytes(4, INT32_MAX, INT32_MAX, (int64_t[]){3, 3, 3}), 0);
}
END_TEST

START_TEST(test_index_0_of_any_seed_is_the_seed)
{
    for (size_t i = 0; i < COUNT_OF(seeds); i++) {
        ck_assert_uint_eq(hy3d_seed_image(seeds[i], 0), seeds[i]);
        ck_assert_uint_ne(hy3d_seed_image(seeds[i], UINT64_MAX), seeds[i]);
    }
}
END_TEST

START_TEST(test_what_may_be_nothing_may_be_nothing)
{
    hy3d_context *const context = test_context("ref", 1);
    const char *text = NULL;
    hy3d_cancel *cancel = NULL;

    hy3d_context_destroy(NULL);
    hy3d_context_trim(NULL);
    hy3d_free(NULL, NULL);
    hy3d_free(context, NULL);
    hy3d_workspace_give(NULL, NULL);
    hy3d_workspace_give(context, NULL);
    hy3d_cancel_destroy(context, NULL);
    hy3d_conv3d_weights_destroy(NULL);
    ck_assert(!hy3d_cancel_requested(NULL));
    ck_assert_uint_eq(hy3d_conv3d_weights_format(NULL), HY3D_FORMAT_NONE);
    ck_assert_status(hy3d_context_blas_info(NULL, &text), BAD);
    ck_assert_status(hy3d_context_blas_info(context, NULL), BAD);
    ck_assert_status(hy3d_cancel_create(NULL, &cancel), BAD);
    ck_assert_status(hy3d_cancel_create(context, NULL), BAD);
    hy3d_context_destroy(context);
}
END_TEST

int vectors_base(Suite *suite)
{
    TCase *const tests = tcase_create("base");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_contexts);
    tcase_add_test(tests, test_memory);
    tcase_add_test(tests, test_peaks);
    tcase_add_test(tests, test_answers);
    tcase_add_test(tests, test_index_0_of_any_seed_is_the_seed);
    tcase_add_test(tests, test_what_may_be_nothing_may_be_nothing);
    suite_add_tcase(suite, tests);
    /* Of the last test its four statuses. */
    return (int)(COUNT_OF(creations) + COUNT_OF(demands) + COUNT_OF(burnings) + COUNT_OF(answers) +
                 COUNT_OF(without_layout) + 2 + COUNT_OF(seeds) + 4);
}
