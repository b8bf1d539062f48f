/* Seeds from a counter-based generator (Philox 4x32-10, Salmon et al., SC 2011).
 *
 * Pure functions, pinned for ever by test vectors: a picture made today must be made again from
 * the same seed in ten years. */
#ifndef HY3D_SEED_H
#define HY3D_SEED_H

#include <stdint.h>

#include "hy3d/export.h"

HY3D_BEGIN_DECLS

/* Seed of image `index` of a batch: index 0 is the seed itself, so that the first image equals
 * upstream's; every other one is word 0 | word 1 << 32 of
 * Philox(counter = {index low, index high, 'I', 0}, key = {seed low, seed high}). */
HY3D_API uint64_t hy3d_seed_image(uint64_t seed, uint64_t index);

HY3D_END_DECLS

#endif
