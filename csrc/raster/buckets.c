#include "raster/buckets.h"

#include <string.h>

#include "base/checked.h"
#include "base/parallel.h"

/* Chunks a thread, so that one which is late delays the others by little; and items that make a
 * chunk worth waking a thread. The order of the result depends on neither. */
enum { CHUNKS_A_SLOT = 4, LEAST_CHUNK = 8192, LOOK = 1 << 16 };

typedef struct sorting {
    hy3d__buckets *buckets;
    hy3d__buckets_pass pass;
    const void *argument;
    int64_t items, chunk;
    /* Rows of buckets->count: of each chunk where its places begin (at first how many they are),
     * one more for where the last chunk's end, and of each slot how far it has come. */
    int64_t *starts, *cursors;
    const hy3d_cancel *cancel;
} sorting;

static hy3d_status run_pass(const sorting *s, int64_t chunk, const hy3d__buckets_sink *sink)
{
    const int64_t begin = chunk * s->chunk;
    const int64_t end = s->items - begin < s->chunk ? s->items : begin + s->chunk;
    for (int64_t at = begin; at < end; at += LOOK) {
        if (hy3d_cancel_requested(s->cancel)) {
            return HY3D_ERR_CANCELLED;
        }
        s->pass(s->argument, at, end - at < LOOK ? end : at + LOOK, sink);
    }
    return HY3D_OK;
}

static hy3d_status count_grain(void *argument, int64_t chunk, uint32_t slot)
{
    const sorting *const s = argument;
    const int64_t count = s->buckets->count;
    const hy3d__buckets_sink sink = {.count = count, .cursor = s->starts + chunk * count};
    (void)slot;
    memset(sink.cursor, 0, (size_t)count * sizeof *sink.cursor);
    return run_pass(s, chunk, &sink);
}

static hy3d_status put_grain(void *argument, int64_t chunk, uint32_t slot)
{
    const sorting *const s = argument;
    const int64_t count = s->buckets->count;
    const int64_t *const start = s->starts + chunk * count;
    const hy3d__buckets_sink sink = {.count = count,
                                     .cursor = s->cursors + slot * count,
                                     .end = start + count,
                                     .items = s->buckets->items};
    memcpy(sink.cursor, start, (size_t)count * sizeof *start);
    const hy3d_status status = run_pass(s, chunk, &sink);
    for (int64_t b = 0; b < count; b++) {
        while (sink.cursor[b] < sink.end[b]) {
            sink.items[sink.cursor[b]++] = HY3D__NO_ITEM;
        }
    }
    return status;
}

/* Counts become places: buckets in order, and in a bucket chunks in order. */
static void place(const sorting *s, int64_t chunks)
{
    const int64_t count = s->buckets->count;
    int64_t next = 0;
    for (int64_t b = 0; b < count; b++) {
        s->buckets->first[b] = next;
        for (int64_t c = 0; c < chunks; c++) {
            const int64_t n = s->starts[c * count + b];
            s->starts[c * count + b] = next;
            next += n;
        }
        s->starts[chunks * count + b] = next;
    }
    s->buckets->first[count] = next;
}

static hy3d_status get(hy3d_context *context, int64_t elements, size_t bytes, void **memory_out)
{
    size_t all;
    if (!hy3d__mul_size((size_t)elements, bytes, &all)) {
        return HY3D_ERR_OVERFLOW;
    }
    return hy3d_alloc(context, all, memory_out);
}

static hy3d_status sort(hy3d_context *context, sorting *s, int64_t chunks, uint32_t slots)
{
    hy3d_status status = hy3d__parallel_for(context, chunks, slots, s->cancel, count_grain, s);
    if (status != HY3D_OK) {
        return status;
    }
    place(s, chunks);
    void *memory = NULL;
    status = get(context, s->buckets->first[s->buckets->count], sizeof(int32_t), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    s->buckets->items = memory;
    return hy3d__parallel_for(context, chunks, slots, s->cancel, put_grain, s);
}

hy3d_status hy3d__buckets_make(hy3d_context *context, int64_t items, int64_t count,
                               hy3d__buckets_pass pass, const void *argument, uint32_t slots,
                               const hy3d_cancel *cancel, hy3d__buckets *out)
{
    const int64_t most = (int64_t)slots * CHUNKS_A_SLOT, wanted = items / LEAST_CHUNK + 1;
    const int64_t parts = wanted < most ? wanted : most;
    sorting s = {.buckets = out,
                 .pass = pass,
                 .argument = argument,
                 .items = items,
                 .chunk = items / parts + 1,
                 .cancel = cancel};
    const int64_t chunks = items / s.chunk + (items % s.chunk != 0);
    void *memory = NULL;
    *out = (hy3d__buckets){.count = count, .context = context};
    hy3d_status status = get(context, count + 1, sizeof(int64_t), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    out->first = memory;
    status = get(context, chunks + 1 + slots, (size_t)count * sizeof(int64_t), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    s.starts = memory;
    s.cursors = s.starts + (chunks + 1) * count;
    status = sort(context, &s, chunks, slots);
    hy3d_free(context, s.starts);
    return status;
}

void hy3d__buckets_destroy(hy3d__buckets *buckets)
{
    hy3d_free(buckets->context, buckets->items);
    hy3d_free(buckets->context, buckets->first);
    buckets->items = NULL;
    buckets->first = NULL;
}
