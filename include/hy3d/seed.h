/* Seeds from a counter-based generator (Philox 4x32-10, Salmon et al., SC 2011).
 *
 * Pure functions, pinned for ever by test vectors: a picture made today must be made again from
 * the same seed in ten years. */
#ifndef HY3D_SEED_H
#define HY3D_SEED_H

#include <stdint.h>

#include "hy3d/export.h"

HY3D_BEGIN_DECLS

/* Ten rounds of Philox 4x32; the known-answer vectors of the Random123 distribution hold.
 * block_out may be counter. */
HY3D_API void hy3d_philox4x32_10(const uint32_t counter[4], const uint32_t key[2],
                                 uint32_t block_out[4]);
/* Seed of image `index` of a batch: index 0 is the seed itself, so that the first image equals
 * upstream's; every other one is word 0 | word 1 << 32 of
 * Philox(counter = {index low, index high, 'I', 0}, key = {seed low, seed high}). */
HY3D_API uint64_t hy3d_seed_image(uint64_t seed, uint64_t index);
/* The same with 'S' in the counter: independent streams of one call (0 is the seed itself). */
HY3D_API uint64_t hy3d_seed_stream(uint64_t seed, uint64_t stream);

HY3D_END_DECLS

#endif
