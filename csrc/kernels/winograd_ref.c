/* Winograd's transforms on four channels a vector of the compiler's own kind, products rounded
 * before they are added. */
#include "kernels/kernels.h"

#include <string.h>

#define LANES 4
#define TARGET
#define SUFFIX(name) name##__ref
typedef float vec __attribute__((vector_size(16)));
typedef double dvec __attribute__((vector_size(16)));

static inline vec load(const float *from)
{
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline dvec load_wide(const float *from)
{
    return (dvec){(double)from[0], (double)from[1]};
}

static inline void store_narrow(float *to, dvec value)
{
    to[0] = (float)value[0];
    to[1] = (float)value[1];
}

#define V_LOAD(p) load(p)
#define V_STORE(p, v)                                                                              \
    do {                                                                                           \
        const vec stored = (v);                                                                    \
        memcpy(p, &stored, sizeof stored);                                                         \
    } while (0)
#define V_SET(x) ((vec){x, x, x, x})
#define V_ADD(a, b) ((a) + (b))
#define V_SUB(a, b) ((a) - (b))
#define V_MUL(a, b) ((a) * (b))
#define V_FMA(a, b, c) ((a) * (b) + (c))
#define V_FNMA(a, b, c) ((c) - (a) * (b))
#define D_LOAD(p) load_wide(p)
#define D_STORE(p, v) store_narrow(p, v)
#define D_SET(x) ((dvec){x, x})
#define D_ADD(a, b) ((a) + (b))
#define D_SUB(a, b) ((a) - (b))
#define D_MUL(a, b) ((a) * (b))

#include "kernels/winograd_lanes.h"
