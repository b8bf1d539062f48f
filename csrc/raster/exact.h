/* Signs without rounding. */
#ifndef HY3D_RASTER_EXACT_H
#define HY3D_RASTER_EXACT_H

/* det(a, b, (p, q, r)) over (X, Y, W) of corners (X, Y, Z, W): the sign is exact and so is 0; the
 * value is good to some 2^-50 of itself. For finite a and b, and |p|, |q|, |r| below 2^200 with no
 * more than 53 significant bits. */
double hy3d__raster_exact(const float a[4], const float b[4], double p, double q, double r);

#endif
