#include "base/philox.h"

#define PHILOX_ROUNDS 10
/* Multipliers and key increments of the paper (table 2); the increments are the fractional parts
 * of the golden ratio and of the square root of 3. */
#define PHILOX_M0 UINT64_C(0xD2511F53)
#define PHILOX_M1 UINT64_C(0xCD9E8D57)
#define PHILOX_W0 UINT32_C(0x9E3779B9)
#define PHILOX_W1 UINT32_C(0xBB67AE85)

static uint32_t low32(uint64_t value)
{
    return (uint32_t)(value & UINT32_MAX);
}

static uint32_t high32(uint64_t value)
{
    return (uint32_t)(value >> 32);
}

void hy3d__philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t block_out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t product0 = PHILOX_M0 * c0;
        const uint64_t product1 = PHILOX_M1 * c2;
        c0 = high32(product1) ^ c1 ^ k0;
        c1 = low32(product1);
        c2 = high32(product0) ^ c3 ^ k1;
        c3 = low32(product0);
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    block_out[0] = c0;
    block_out[1] = c1;
    block_out[2] = c2;
    block_out[3] = c3;
}
