/* panel: products of blocks of im2col by a BLAS library (panel.c). */
#ifndef HY3D_CONV3D_PANEL_H
#define HY3D_CONV3D_PANEL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hy3d__conv_panel {
    bool has_planes; /* a tap's input for the positions of a frame is a plane of x */
    int64_t span; /* output positions that are cut alike: a frame's, or all (T, H, W flattened) */
    int64_t m_block, m_blocks;
    int64_t n_block, n_blocks; /* of a span's positions */
    int64_t k_block;
} hy3d__conv_panel;

#endif
