/* thin: one tap in height and width; packed columns of positions, the kernel of direct (thin.c). */
#ifndef HY3D_CONV3D_THIN_H
#define HY3D_CONV3D_THIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hy3d__conv_thin {
    int64_t c_block;           /* input channels at once */
    int64_t m_block, m_blocks; /* output channels of a grain */
    int64_t positions, blocks; /* of a plane in a grain, whole vectors */
    bool writes_straight;      /* y may be summed where it is, without a result tile */
} hy3d__conv_thin;

#endif
