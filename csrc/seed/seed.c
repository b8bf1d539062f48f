#include "hy3d/seed.h"

#include "base/philox.h"

uint64_t hy3d_seed_image(uint64_t seed, uint64_t index)
{
    if (index == 0) {
        return seed;
    }
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 'I', 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t block[4];
    hy3d__philox4x32_10(counter, key, block);
    return (uint64_t)block[0] | (uint64_t)block[1] << 32;
}
