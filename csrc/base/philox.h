/* Random numbers from a counter (Philox 4x32-10, Salmon et al., SC 2011). */
#ifndef HY3D_BASE_PHILOX_H
#define HY3D_BASE_PHILOX_H

#include <stdint.h>

/* The known-answer vectors of the Random123 distribution hold. block_out may be counter. */
void hy3d__philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t block_out[4]);

#endif
