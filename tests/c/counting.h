/* The core's own memory, counted, and failing when told: an allocator for contexts of tests. */
#ifndef HY3D_TESTS_COUNTING_H
#define HY3D_TESTS_COUNTING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"

/* Any number of contexts may share one, on any threads. */
typedef struct counting {
    hy3d_allocator allocator; /* for hy3d_context_options */
    _Atomic uint64_t asked;   /* failed ones included */
    _Atomic uint64_t live;    /* given out and not yet back */
    _Atomic uint64_t live_bytes;
    _Atomic uint64_t fail_at; /* the value of asked that fails; 0: none */
    _Atomic bool fail_forever;
} counting;

void counting_init(counting *memory);
/* For good. NULL: no memory. */
HY3D_API counting *counting_create(void);
HY3D_API const hy3d_allocator *counting_allocator(const counting *memory);
/* The k-th allocation from now on (k = 1 is the next one) fails: once, or that one and all after
 * it. k = 0: none. */
HY3D_API void counting_fail(counting *memory, uint64_t k, bool forever);
HY3D_API uint64_t counting_asked(const counting *memory);
HY3D_API uint64_t counting_live(const counting *memory);
/* With what the system rounds sizes up to. */
HY3D_API uint64_t counting_live_bytes(const counting *memory);

/* The one that C tests' contexts share. */
const hy3d_allocator *test_allocator(void);
void test_fail(uint64_t k, bool forever);
uint64_t test_asked(void);
/* The context's own and a workspace that is kept are among them (trim first): no leak means that
 * this number is the same before and after. */
uint64_t test_live(void);

#endif
