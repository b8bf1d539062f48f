/* A stable counting sort: items (points, faces) into buckets (rows of a texture, runs of
 * vertices), so that each bucket is summed by one thread, its items in order. */
#ifndef HY3D_RASTER_BUCKETS_H
#define HY3D_RASTER_BUCKETS_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/status.h"

/* Bucket b holds items[first[b]] to items[first[b + 1] - 1], ascending; after them places that
 * hold HY3D__NO_ITEM, if another thread has changed what the pass looks at. */
#define HY3D__NO_ITEM (-1)

typedef struct hy3d__buckets {
    int64_t count;
    int64_t *first;
    int32_t *items;
    hy3d_context *context;
} hy3d__buckets;

/* Where a pass puts its items: the first time they are counted, the second time kept. */
typedef struct hy3d__buckets_sink {
    int64_t count;      /* of buckets */
    int64_t *cursor;    /* of each bucket: how many so far, or the next one's place */
    const int64_t *end; /* where this pass's places in a bucket end */
    int32_t *items;     /* NULL: they are counted */
} hy3d__buckets_sink;

/* No bucket and no place beyond what was counted is written to, whatever the pass says. */
static inline void hy3d__buckets_put(const hy3d__buckets_sink *sink, int64_t bucket, int64_t item)
{
    if ((uint64_t)bucket >= (uint64_t)sink->count) {
        return;
    }
    int64_t *const cursor = &sink->cursor[bucket];
    if (sink->items == NULL) {
        ++*cursor;
    } else if (*cursor < sink->end[bucket]) {
        sink->items[(*cursor)++] = (int32_t)item;
    }
}

/* Puts each of the items begin .. end - 1, in order, to the buckets it goes to: none, one or
 * several, each once. Called twice for an item; the second time it should say the same. */
typedef void (*hy3d__buckets_pass)(const void *argument, int64_t begin, int64_t end,
                                   const hy3d__buckets_sink *sink);

/* items is at most 2^31 - 1, count at least 1. *out is to be destroyed whatever is returned:
 * HY3D_ERR_OUT_OF_MEMORY, HY3D_ERR_OVERFLOW, HY3D_ERR_CANCELLED. */
hy3d_status hy3d__buckets_make(hy3d_context *context, int64_t items, int64_t count,
                               hy3d__buckets_pass pass, const void *argument, uint32_t slots,
                               const hy3d_cancel *cancel, hy3d__buckets *out);
void hy3d__buckets_destroy(hy3d__buckets *buckets);

#endif
