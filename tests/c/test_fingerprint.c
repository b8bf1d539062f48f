/* The fingerprint of bytes against its definition (fingerprint.c), by long division. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "hy3d/fingerprint.h"

enum { BLOCK = 8 * HY3D_FINGERPRINT_BLOCK_WORDS, CHUNK = BLOCK * HY3D_FINGERPRINT_CHUNK_BLOCKS };
enum { MOST = 3 * CHUNK };

typedef unsigned __int128 wide;
static const uint64_t prime = (UINT64_C(1) << 61) - 1;

static uint64_t horner(uint64_t value, uint64_t key, uint64_t digit)
{
    return (uint64_t)(((wide)value * key + digit) % prime);
}

static uint64_t word_or_zeros(const unsigned char *data, size_t bytes, size_t at)
{
    uint64_t word = 0;
    for (size_t i = 0; i < 8 && at + i < bytes; i++) {
        word |= (uint64_t)data[at + i] << 8 * i;
    }
    return word;
}

static wide nh(const hy3d_fingerprint_keys *keys, const unsigned char *data, size_t bytes,
               size_t block)
{
    wide sum = 0;
    for (size_t i = 0; i < HY3D_FINGERPRINT_BLOCK_WORDS; i += 2) {
        const size_t at = block + 8 * i;
        sum += (wide)(word_or_zeros(data, bytes, at) + keys->block[i]) *
               (word_or_zeros(data, bytes, at + 8) + keys->block[i + 1]);
    }
    return sum;
}

static uint64_t slow(const hy3d_fingerprint_keys *keys, const unsigned char *data, size_t bytes,
                     const int64_t *words, size_t count, int which)
{
    const uint64_t key = keys->whole[which], mask = (UINT64_C(1) << 43) - 1;
    uint64_t whole = horner(horner(1, key, bytes & UINT32_MAX), key, (uint64_t)bytes >> 32);
    for (size_t chunk = 0; chunk < bytes; chunk += CHUNK) {
        uint64_t value = 0;
        for (size_t block = chunk; block < chunk + CHUNK && block < bytes; block += BLOCK) {
            const wide sum = nh(keys, data, bytes, block);
            value = horner(value, keys->chunk[which], (uint64_t)sum & mask);
            value = horner(value, keys->chunk[which], (uint64_t)(sum >> 43) & mask);
            value = horner(value, keys->chunk[which], (uint64_t)(sum >> 86));
        }
        whole = horner(whole, key, value);
    }
    for (size_t i = 0; i < count; i++) {
        whole = horner(whole, key, (uint64_t)words[i] & UINT32_MAX);
        whole = horner(whole, key, (uint64_t)words[i] >> 32);
    }
    return whole;
}

static unsigned char *random_bytes(test_random *random)
{
    unsigned char *const data = malloc(MOST);
    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < MOST; i++) {
        data[i] = (unsigned char)(test_next(random) >> 56);
    }
    return data;
}

START_TEST(test_every_length_and_thread_count_gives_the_value_of_the_definition)
{
    static const size_t lengths[] = {0,         1,         7,     8,         BLOCK - 1, BLOCK,
                                     BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, MOST};
    static const uint32_t threads[] = {0, 1, 2, 9};
    static const int64_t words[] = {0, -1, INT64_MAX, INT64_C(1) << 32};
    hy3d_context *const context = test_context(NULL, 3);
    hy3d_fingerprint_keys keys;
    hy3d_fingerprint_keys_make(&keys);
    test_random random = test_rng(610);
    unsigned char *const data = random_bytes(&random);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            const size_t count = (i + t) % (COUNT_OF(words) + 1);
            uint64_t value[2];
            ck_assert_ok(hy3d_fingerprint(context, &keys, data, lengths[i], words, count,
                                          threads[t], NULL, value));
            ck_assert_uint_eq(value[0], slow(&keys, data, lengths[i], words, count, 0));
            ck_assert_uint_eq(value[1], slow(&keys, data, lengths[i], words, count, 1));
        }
    }
    free(data);
    hy3d_context_destroy(context);
}
END_TEST

/* With all bits set the sums reach what has to be taken off once more: exactly the prime. */
START_TEST(test_extreme_bytes_give_the_value_of_the_definition)
{
    static const unsigned char fills[] = {0x00, 0xff, 0x80, 0x7f};
    hy3d_context *const context = test_context(NULL, 2);
    hy3d_fingerprint_keys keys;
    hy3d_fingerprint_keys_make(&keys);
    unsigned char *const data = malloc(MOST);
    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < COUNT_OF(fills); i++) {
        memset(data, fills[i], MOST);
        uint64_t value[2];
        ck_assert_ok(hy3d_fingerprint(context, &keys, data, CHUNK + 3, NULL, 0, 0, NULL, value));
        ck_assert_uint_eq(value[0], slow(&keys, data, CHUNK + 3, NULL, 0, 0));
        ck_assert_uint_eq(value[1], slow(&keys, data, CHUNK + 3, NULL, 0, 1));
    }
    free(data);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_each_changed_bit_length_and_word_changes_the_fingerprint)
{
    hy3d_context *const context = test_context(NULL, 2);
    hy3d_fingerprint_keys keys;
    hy3d_fingerprint_keys_make(&keys);
    test_random random = test_rng(611);
    unsigned char *const data = random_bytes(&random);
    const size_t bytes = CHUNK + 100;
    int64_t word = 5;
    uint64_t before[2], after[2];
    ck_assert_ok(hy3d_fingerprint(context, &keys, data, bytes, &word, 1, 0, NULL, before));
    for (int round = 0; round < 100; round++) {
        const size_t at = (size_t)test_between(&random, 0, (int64_t)bytes - 1);
        const unsigned char bit = (unsigned char)(1U << test_between(&random, 0, 7));
        data[at] ^= bit;
        ck_assert_ok(hy3d_fingerprint(context, &keys, data, bytes, &word, 1, 0, NULL, after));
        ck_assert_msg(after[0] != before[0] && after[1] != before[1], "byte %zu", at);
        data[at] ^= bit;
    }
    memset(data + bytes - 4, 0, 4); /* zeros at the end differ from nothing there */
    ck_assert_ok(hy3d_fingerprint(context, &keys, data, bytes, &word, 1, 0, NULL, before));
    ck_assert_ok(hy3d_fingerprint(context, &keys, data, bytes - 4, &word, 1, 0, NULL, after));
    ck_assert(after[0] != before[0] && after[1] != before[1]);
    word = 6;
    ck_assert_ok(hy3d_fingerprint(context, &keys, data, bytes, &word, 1, 0, NULL, after));
    ck_assert(after[0] != before[0] && after[1] != before[1]);
    free(data);
    hy3d_context_destroy(context);
}
END_TEST

typedef struct sweep {
    const hy3d_fingerprint_keys *keys;
    const unsigned char *data;
} sweep;

static hy3d_status take_one(hy3d_context *context, void *argument)
{
    const sweep *const of = argument;
    uint64_t value[2];
    return hy3d_fingerprint(context, of->keys, of->data, MOST, NULL, 0, 0, NULL, value);
}

START_TEST(test_a_fingerprint_survives_every_allocation_failing)
{
    hy3d_context *const context = test_context(NULL, 1);
    hy3d_fingerprint_keys keys;
    hy3d_fingerprint_keys_make(&keys);
    test_random random = test_rng(612);
    unsigned char *const data = random_bytes(&random);
    ck_assert_uint_eq(test_allocation_sweep(context, take_one, &(sweep){&keys, data}), 1);
    free(data);
    hy3d_context_destroy(context);
}
END_TEST

START_TEST(test_what_is_missing_is_refused_and_writes_nothing)
{
    hy3d_context *const context = test_context(NULL, 1);
    const int64_t word = 1;
    uint64_t value[2] = {3, 4};
    hy3d_fingerprint_keys keys;
    hy3d_fingerprint_keys_make(&keys);
    const hy3d_status got[] = {
        hy3d_fingerprint(NULL, &keys, &word, 8, &word, 1, 0, NULL, value),
        hy3d_fingerprint(context, NULL, &word, 8, &word, 1, 0, NULL, value),
        hy3d_fingerprint(context, &keys, NULL, 8, &word, 1, 0, NULL, value),
        hy3d_fingerprint(context, &keys, &word, 8, NULL, 1, 0, NULL, value),
        hy3d_fingerprint(context, &keys, &word, 8, &word, 1, 0, NULL, NULL),
    };
    for (size_t i = 0; i < COUNT_OF(got); i++) {
        ck_assert_int_eq(got[i], HY3D_ERR_INVALID_ARGUMENT);
    }
    ck_assert(value[0] == 3 && value[1] == 4);
    ck_assert_ok(hy3d_fingerprint(context, &keys, NULL, 0, NULL, 0, 0, NULL, value));
    hy3d_context_destroy(context);
}
END_TEST

Suite *hy3d_fingerprint_suite(void);
Suite *hy3d_fingerprint_suite(void)
{
    Suite *const suite = suite_create("fingerprint");
    TCase *const tests = tcase_create("fingerprint");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_every_length_and_thread_count_gives_the_value_of_the_definition);
    tcase_add_test(tests, test_extreme_bytes_give_the_value_of_the_definition);
    tcase_add_test(tests, test_each_changed_bit_length_and_word_changes_the_fingerprint);
    tcase_add_test(tests, test_what_is_missing_is_refused_and_writes_nothing);
    tcase_add_test(tests, test_a_fingerprint_survives_every_allocation_failing);
    suite_add_tcase(suite, tests);
    return suite;
}
