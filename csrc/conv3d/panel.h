/* panel: a K-blocked im2col panel, GEMM (panel.c). */
#ifndef HY3D_CONV3D_PANEL_H
#define HY3D_CONV3D_PANEL_H

#include <stdint.h>

typedef struct hy3d__conv_panel {
    int64_t m_block, m_blocks;
    int64_t n_block, n_blocks; /* output positions (T, H, W flattened) */
    int64_t k_block;
} hy3d__conv_panel;

#endif
