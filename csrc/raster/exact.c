/* Expansions after Shewchuk, "Adaptive Precision Floating-Point Arithmetic and Fast Robust
 * Geometric Predicates" (1997): a number as a sum of doubles that do not overlap.
 *
 * A product of two floats is exact in double; times a double it is two of them (Dekker's product,
 * which needs no fma: a library's fma is not to be trusted on every system). Six such products are
 * twelve doubles, summed without loss. Nothing here overflows or underflows: floats are between
 * 2^-149 and 2^128, so all parts are above 2^-1000 and below 2^500. */
#include "raster/exact.h"

#include <stddef.h>

#define TERMS 6
#define SPLITTER 134217729.0 /* 2^27 + 1 */

static void split(double a, double *high, double *low)
{
    const double c = SPLITTER * a;
    *high = c - (c - a);
    *low = a - *high;
}

static double product(double a, double b, double *error)
{
    double a_high, a_low, b_high, b_low;
    const double whole = a * b;
    split(a, &a_high, &a_low);
    split(b, &b_high, &b_low);
    *error = a_low * b_low - (((whole - a_high * b_high) - a_low * b_high) - a_high * b_low);
    return whole;
}

static double sum(double a, double b, double *error)
{
    const double whole = a + b, b_part = whole - a, a_part = whole - b_part;
    *error = (a - a_part) + (b - b_part);
    return whole;
}

/* Adds b to an expansion of n parts, smallest first. */
static void grow(double *parts, size_t n, double b)
{
    for (size_t i = 0; i < n; i++) {
        b = sum(b, parts[i], &parts[i]);
    }
    parts[n] = b;
}

double hy3d__raster_exact(const float a[4], const float b[4], double p, double q, double r)
{
    const double ax = (double)a[0], ay = (double)a[1], aw = (double)a[3];
    const double bx = (double)b[0], by = (double)b[1], bw = (double)b[3];
    const double factors[TERMS][2] = {{ay * bw, p},    {-(aw * by), p}, {aw * bx, q},
                                      {-(ax * bw), q}, {ax * by, r},    {-(ay * bx), r}};
    double parts[2 * TERMS], value = 0;

    for (size_t t = 0; t < TERMS; t++) {
        double error;
        const double whole = product(factors[t][0], factors[t][1], &error);
        grow(parts, 2 * t, error);
        grow(parts, 2 * t + 1, whole);
    }
    /* No part overlaps the next, so the sum has the largest one's sign. */
    for (size_t i = 0; i < 2 * TERMS; i++) {
        value += parts[i];
    }
    return value;
}
