/* A stable counting sort: items (points, faces) into buckets (rows of a texture, runs of
 * vertices), so that each bucket is summed by one thread, its items in order. */
#ifndef HY3D_RASTER_BUCKETS_H
#define HY3D_RASTER_BUCKETS_H

#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/status.h"

/* Bucket b holds items[first[b]] to items[first[b + 1] - 1], ascending. */
typedef struct hy3d__buckets {
    int64_t count;
    int64_t *first;
    int32_t *items;
    hy3d_context *context;
} hy3d__buckets;

/* For items begin .. end - 1, in order, and each bucket b that one goes to (none, one or
 * several, each once): puts the item to items[cursor[b]], unless items is NULL, and adds 1 to
 * cursor[b]. Called twice for an item, with the same outcome. */
typedef void (*hy3d__buckets_pass)(const void *argument, int64_t begin, int64_t end,
                                   int64_t *cursor, int32_t *items);

/* items is at most 2^31 - 1, count at least 1. *out is to be destroyed whatever is returned:
 * HY3D_ERR_OUT_OF_MEMORY, HY3D_ERR_OVERFLOW, HY3D_ERR_CANCELLED. */
hy3d_status hy3d__buckets_make(hy3d_context *context, int64_t items, int64_t count,
                               hy3d__buckets_pass pass, const void *argument, uint32_t slots,
                               const hy3d_cancel *cancel, hy3d__buckets *out);
void hy3d__buckets_destroy(hy3d__buckets *buckets);

#endif
