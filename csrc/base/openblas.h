/* What is peculiar to OpenBLAS: its environment variables and its core types. */
#ifndef HY3D_BASE_OPENBLAS_H
#define HY3D_BASE_OPENBLAS_H

#include <stdbool.h>

#include "hy3d/context.h"

/* Variables that OpenBLAS reads. Its constructor runs inside dlopen, and there, once and for the
 * life of the library, it reads OPENBLAS_NUM_THREADS (how many threads of its own it starts at
 * once) and OPENBLAS_CORETYPE (which kernels it picks); a later call can lower the thread number
 * but neither takes back the threads nor changes the kernels. So both are put into the environment
 * before dlopen and are as before after it: children and other libraries must not see them.
 * Changing the environment is not thread-safe in POSIX; the load happens once per context and the
 * window is as short as it can be. */
typedef struct hy3d__variable {
    const char *name;
    char *before; /* NULL: was not set */
    bool changed;
} hy3d__variable;

/* Sets a variable and keeps what it was; HY3D_ERR_OUT_OF_MEMORY changes nothing. */
hy3d_status hy3d__set_variable(hy3d_context *context, const char *name, const char *value,
                               hy3d__variable *saved);
/* Undoes it; a zeroed hy3d__variable is allowed. */
void hy3d__restore_variable(hy3d_context *context, hy3d__variable *saved);

/* OpenBLAS's name of the best kernels that stay within a level, NULL where nothing was lowered:
 * then its own choice is the better one (Zen, Cooper Lake, ...), and so is a core type that the
 * user has put into the environment. Prescott is the lowest of x86-64: SSE3. */
const char *hy3d__core_type(const hy3d_context *context);

/* Whether kernels of this name stay within a level. Several names stand for the same kernels in
 * builds that leave some out (Prescott then calls itself Katmai), so the name that comes back
 * need not be the one that was asked for. */
bool hy3d__core_is_within(const char *core, hy3d_cpu_level level);

#endif
