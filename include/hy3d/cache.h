/* What stays in a cache that is smaller than what is asked of it. It holds keys and sizes; the
 * things themselves are the caller's.
 *
 * A decoder asks for its layers' weights in turn, again and again. Where they are larger than the
 * cache, dropping the least recently used one drops each just before it is asked for: no hit at
 * all. So what is in the cache stays, and by these rules gives way:
 *
 * - to a thing that has come round: asked for, then other things, then asked for again, while the
 *   one that gives way was not asked for once. In a scan that repeats nothing gives way, and hits
 *   are the share that fits; after a change of the model the old one's things go at the second
 *   pass.
 * - Things that are asked for many times in a row (a layer computed chunk by chunk) and have no
 *   place share a probationary one: the fourth request takes it, by when doing without has cost
 *   what making the thing costs, and if the thing in it has not been asked for lately. Room for it
 *   is made once, by those least recently used, and then kept free.
 *
 * Pure: no clock but the number of requests. Not thread-safe: the caller takes turns. */
#ifndef HY3D_CACHE_H
#define HY3D_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"

/* Requests within so many of each other are one use. Layers of one block that take turns chunk by
 * chunk lie 2 to 4 apart, eight threads at the same layer 8. */
#define HY3D_CACHE_REUSE_WINDOW 16

typedef struct hy3d_cache_key {
    uint64_t words[3];
} hy3d_cache_key;

/* clock: requests so far. used_bytes: of what is here and of what is reserved. evicted: gave way to
 * others so far. */
typedef struct hy3d_cache_info {
    int64_t clock, limit_bytes, used_bytes, entries, evicted;
} hy3d_cache_info;

typedef struct hy3d_cache hy3d_cache;

HY3D_BEGIN_DECLS

/* limit_bytes: from 0, which keeps nothing, to 2^61 - 1. */
HY3D_API hy3d_status hy3d_cache_create(hy3d_context *context, int64_t limit_bytes,
                                       hy3d_cache **cache_out);
/* NULL is allowed. */
HY3D_API void hy3d_cache_destroy(hy3d_context *context, hy3d_cache *cache);

/* One request. Every request counts, also for what is not here. is_here_out: whether the thing is.
 * HY3D_ERR_OUT_OF_MEMORY: it could not be noted, and nothing has changed. */
HY3D_API hy3d_status hy3d_cache_request(hy3d_context *context, hy3d_cache *cache,
                                        const hy3d_cache_key *key, bool *is_here_out);
/* Room for a thing that was requested before: is_reserved_out. Then put or cancel must follow. Other
 * things may have given way: where info's `evicted` has grown, hy3d_cache_has says which. Not
 * reserved: no room, or it is here or being made already, or its request is forgotten. */
HY3D_API hy3d_status hy3d_cache_reserve(hy3d_cache *cache, const hy3d_cache_key *key, int64_t bytes,
                                        bool *is_reserved_out);
/* Whether the thing is here now; not where everything was dropped meanwhile. */
HY3D_API bool hy3d_cache_put(hy3d_cache *cache, const hy3d_cache_key *key);
/* Gives back what was reserved. */
HY3D_API void hy3d_cache_cancel(hy3d_cache *cache, const hy3d_cache_key *key);
/* Lets go of one thing; whether it was here. */
HY3D_API bool hy3d_cache_drop(hy3d_cache *cache, const hy3d_cache_key *key);
/* Lets go of all things and forgets all requests; the bytes that were here. */
HY3D_API int64_t hy3d_cache_clear(hy3d_cache *cache);
/* A NULL cache holds nothing, here and below. */
HY3D_API bool hy3d_cache_has(const hy3d_cache *cache, const hy3d_cache_key *key);
HY3D_API hy3d_cache_info hy3d_cache_get_info(const hy3d_cache *cache);

HY3D_END_DECLS

#endif
