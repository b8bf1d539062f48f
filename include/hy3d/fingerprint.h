/* A fingerprint of bytes: whether weights are still what they were, by reading all of them.
 *
 * Different bytes of one length have the same fingerprint with a probability below 2^-63 over the
 * choice of keys (see fingerprint.c); the keys are fixed, so this holds for whatever was not made
 * with them in view. Costs one pass over the memory, at about its bandwidth. */
#ifndef HY3D_FINGERPRINT_H
#define HY3D_FINGERPRINT_H

#include <stddef.h>
#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"

#define HY3D_FINGERPRINT_BLOCK_WORDS 256
#define HY3D_FINGERPRINT_CHUNK_BLOCKS 128 /* 256 KiB: what a thread takes at once */

typedef struct hy3d_fingerprint_keys {
    uint64_t block[HY3D_FINGERPRINT_BLOCK_WORDS];
    uint64_t chunk[2], whole[2]; /* below 2^61 - 1 */
} hy3d_fingerprint_keys;

HY3D_BEGIN_DECLS

/* Fills the keys; the same ones each time. */
HY3D_API void hy3d_fingerprint_keys_make(hy3d_fingerprint_keys *keys_out);

/* The fingerprint of the bytes and then of the words (sizes, types: what the bytes mean), two
 * values below 2^61 - 1. num_threads 0 is the context's maximum; no count changes the result.
 * data may be NULL where bytes is 0, words where count is 0, cancel in any case. Allocates 16 bytes
 * a chunk. */
HY3D_API hy3d_status hy3d_fingerprint(hy3d_context *context, const hy3d_fingerprint_keys *keys,
                                      const void *data, size_t bytes, const int64_t *words,
                                      size_t count, uint32_t num_threads, const hy3d_cancel *cancel,
                                      uint64_t value_out[2]);

HY3D_END_DECLS

#endif
