/* Calls of the library that together pass every site of the core. */
#ifndef HY3D_TESTS_SITES_SCENARIOS_H
#define HY3D_TESTS_SITES_SCENARIOS_H

#include "hy3d/context.h"

typedef struct scenario {
    const char *name;
    /* Gives back all it takes; on success the result lies in `result`. */
    hy3d_status (*run)(hy3d_context *context, const struct scenario *self);
    void *argument;
    unsigned char *result;
    size_t bytes;
    hy3d_context_options options;
    bool needs_blas; /* at the first use of a context */
} scenario;

/* test_sites_live() before the context was made that a scenario runs with. */
extern int64_t live_outside;

/* Fills `list`; how many there are. What they point to lives as long as the program. */
enum { MOST_SCENARIOS = 32 };
int scenarios_make(scenario list[MOST_SCENARIOS]);
/* Leaves out those that need BLAS where there is none; how many are left. */
int scenarios_without_blas(scenario *list, int count);

#endif
