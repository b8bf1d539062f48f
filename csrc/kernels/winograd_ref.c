/* Winograd's transforms on four channels a vector of the compiler's own kind, products rounded
 * before they are added. */
#include "kernels/kernels.h"

#include <string.h>

#define LANES 4
#define TARGET
#define SUFFIX(name) name##__ref
typedef float vec __attribute__((vector_size(16)));

static inline vec load(const float *from)
{
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
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

#include "kernels/winograd_lanes.h"
