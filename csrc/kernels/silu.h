/* SiLU, v / (1 + exp(-v)): the constants that every level computes with.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), r = x - n * ln 2 with ln 2 as a part of 9 bits, whose
 * products with n are exact, and a rest. exp(r) = 1 + r + r^2 * P(r), P of degree 4 minimax for the
 * relative error of exp on |r| <= ln(2) / 2 (Remez exchange; 3.1e-9 before rounding). No fused
 * multiply-adds: all levels give the same bits.
 *
 * x is cut to -86 .. 89: below, 1 + exp(x) is 1 anyway, and at 89 exp is infinite. */
#ifndef HY3D_KERNELS_SILU_H
#define HY3D_KERNELS_SILU_H

#define HY3D__SILU_LOW (-86.0F)
#define HY3D__SILU_HIGH 89.0F
#define HY3D__SILU_LOG2E 0x1.715476p+0F
#define HY3D__SILU_LN2_HIGH 0.693359375F
#define HY3D__SILU_LN2_LOW (-0x1.bd0106p-13F)
/* Adding it rounds to a whole number n and leaves n + 126 in the lowest bits: the exponent field
 * of 2^(n - 1), which is finite where 2^n is not. */
#define HY3D__SILU_ROUND 12583038.0F
#define HY3D__SILU_P0 0x1.fffffcp-2F
#define HY3D__SILU_P1 0x1.555490p-3F
#define HY3D__SILU_P2 0x1.5558f4p-5F
#define HY3D__SILU_P3 0x1.123a6cp-7F
#define HY3D__SILU_P4 0x1.6a2352p-10F

#endif
