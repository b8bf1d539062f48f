/* What the processor offers. */
#ifndef HY3D_BASE_CPU_H
#define HY3D_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"

/* The level that a word ("ref", "avx2", "avx512") asks for, lowered to `best`. false: unknown. */
bool hy3d__cpu_parse(const char *word, hy3d_cpu_level best, hy3d_cpu_level *level_out);

#endif
