/* Arithmetic on sizes. What has an `out` notices overflow: it returns false and leaves *out alone
 * when the result does not fit. */
#ifndef HY3D_BASE_CHECKED_H
#define HY3D_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline int64_t hy3d__min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t hy3d__max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline bool hy3d__add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

static inline bool hy3d__mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

static inline bool hy3d__add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

static inline bool hy3d__mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

/* Of two that are not negative; of 0 and another that one. */
static inline int64_t hy3d__common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
