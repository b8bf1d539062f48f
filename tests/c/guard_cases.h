/* The kernels of kernels.inc between pages that must not be touched: what each takes, and how it is
 * called. A kernel of the list that has no guard_NAME here does not link (test_guards.c). */
#ifndef HY3D_TESTS_GUARD_CASES_H
#define HY3D_TESTS_GUARD_CASES_H

#include "support.h"

#include "kernels/kernels.h"

#define GUARD_OPERANDS 6

typedef enum guard_fill {
    GUARD_INTEGERS, /* floats, -8 .. 8: sums are exact, products fused or not */
    GUARD_BITS,     /* any */
    GUARD_MADE,     /* the case fills it in itself */
} guard_fill;

/* One array of a call. */
typedef struct guard_operand {
    size_t bytes, unit; /* unit: its alignment, what it is moved by */
    guard_fill fill;
    bool is_written;
} guard_operand;

/* One call: length n, variant 0 .. of what else there is (rows, channels, signs, pitches). The shape
 * function fills in the operands and the numbers that the call needs. */
typedef struct guard_case {
    size_t n, variant;
    int count;
    guard_operand operand[GUARD_OPERANDS];
    size_t number[8];
    const void *forbidden; /* a page that faults */
} guard_case;

typedef struct guarded_kernel {
    const char *name;
    void (*shape)(guard_case *c);
    /* Where fill is GUARD_MADE; NULL where nothing is. */
    void (*make)(const guard_case *c, test_random *random, void *const at[]);
    void (*call)(const hy3d__kernels *kernels, const guard_case *c, void *const at[]);
} guarded_kernel;

guard_operand guard_floats(size_t n, guard_fill fill, bool is_written);

#define K(name, parameters) extern const guarded_kernel guard_##name;
#include "kernels/kernels.inc"
#undef K

#endif
