/* Seeds. The vectors are pinned for ever: a change here changes every picture made so far. */
#include "support.h"
#include <inttypes.h>
#include <stdint.h>

#include "base/philox.h"
#include "hy3d/seed.h"

Suite *hy3d_seed_suite(void);

typedef struct philox_case {
    uint32_t counter[4], key[2], block[4];
} philox_case;

/* The known answers that the Random123 distribution publishes for philox4x32-10. */
static const philox_case known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

typedef struct seed_case {
    uint64_t seed, index, image;
} seed_case;

/* Made with the twin (hy3d_rocm/_fallback/seed.py), which was written on its own. */
static const seed_case pinned[] = {
    {0, 0, 0},
    {42, 0, 42},
    {UINT64_MAX, 0, UINT64_MAX},
    {0, 1, UINT64_C(0x6369770d6ac4bd04)},
    {42, 1, UINT64_C(0xab5954a5a2ac5cb7)},
    {42, 2, UINT64_C(0xac35ae1c63f2f838)},
    {UINT64_MAX, 1, UINT64_C(0x3e6cf92663f30ee0)},
    {UINT64_C(0x0123456789abcdef), UINT64_C(0x100000000), UINT64_C(0xf1f597ddba2ef23b)},
    {1234567, UINT64_MAX, UINT64_C(0x7ebe23774e05f78b)},
};

START_TEST(test_philox_gives_the_known_answers)
{
    const philox_case *expected = &known_answers[_i];
    uint32_t block[4];
    hy3d__philox4x32_10(expected->counter, expected->key, block);
    for (int word = 0; word < 4; word++) {
        ck_assert_uint_eq(block[word], expected->block[word]);
    }
}
END_TEST

START_TEST(test_derived_seeds_never_change)
{
    const seed_case *expected = &pinned[_i];
    ck_assert_uint_eq(hy3d_seed_image(expected->seed, expected->index), expected->image);
}
END_TEST

START_TEST(test_the_first_image_uses_the_seed_itself)
{
    for (int bit = 0; bit < 64; bit++) {
        const uint64_t seed = UINT64_C(1) << bit;
        ck_assert_uint_eq(hy3d_seed_image(seed, 0), seed);
    }
}
END_TEST

START_TEST(test_every_bit_of_seed_and_index_changes_the_result)
{
    const uint64_t seed = UINT64_C(0x9a3f51c2d4e80b67), index = UINT64_C(0x123456789abcdef1);
    const uint64_t image = hy3d_seed_image(seed, index);
    for (int bit = 0; bit < 64; bit++) {
        ck_assert_uint_ne(hy3d_seed_image(seed ^ UINT64_C(1) << bit, index), image);
        ck_assert_uint_ne(hy3d_seed_image(seed, index ^ UINT64_C(1) << bit), image);
    }
}
END_TEST

START_TEST(test_output_may_be_the_counter_itself)
{
    uint32_t block[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    hy3d__philox4x32_10(block, known_answers[2].key, block);
    for (int word = 0; word < 4; word++) {
        ck_assert_uint_eq(block[word], known_answers[2].block[word]);
    }
}
END_TEST

Suite *hy3d_seed_suite(void)
{
    Suite *suite = suite_create("seed");
    TCase *tests = tcase_create("seed");
    tcase_add_loop_test(tests, test_philox_gives_the_known_answers, 0,
                        (int)(sizeof known_answers / sizeof known_answers[0]));
    tcase_add_loop_test(tests, test_derived_seeds_never_change, 0,
                        (int)(sizeof pinned / sizeof pinned[0]));
    tcase_add_test(tests, test_the_first_image_uses_the_seed_itself);
    tcase_add_test(tests, test_every_bit_of_seed_and_index_changes_the_result);
    tcase_add_test(tests, test_output_may_be_the_counter_itself);
    suite_add_tcase(suite, tests);
    return suite;
}
