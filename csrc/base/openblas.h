/* OpenBLAS's core types: which kernels it has chosen. */
#ifndef HY3D_BASE_OPENBLAS_H
#define HY3D_BASE_OPENBLAS_H

#include <stdbool.h>

#include "hy3d/context.h"

/* OpenBLAS's name of the best kernels that stay within a level, NULL where nothing was lowered. It
 * reads OPENBLAS_CORETYPE once, while it is loaded, and setting that for it would change the
 * environment under other threads: so it is the user's to set. Prescott is the lowest of x86-64:
 * SSE3. */
const char *hy3d__core_type(const hy3d_context *context);

/* Whether kernels of this name stay within a level. Several names stand for the same kernels in
 * builds that leave some out (Prescott then calls itself Katmai), so the name that comes back
 * need not be the one that was asked for. */
bool hy3d__core_is_within(const char *core, hy3d_cpu_level level);

#endif
