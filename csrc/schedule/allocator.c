/* See allocator.h. What is below 1 MiB has segments of its own, of 2 MiB, and counts for nothing
 * here. */
#include <stddef.h>
#include <string.h>

#include "base/checked.h"
#include "schedule/allocator.h"
#include "schedule/residency.h"

#define MIB INT64_C(1048576)

enum { FREE = -1, WORKSPACE = -2, GONE = -3, NONE = -1 };

/* A part of a segment; owner: a slice, or one of those above. Segments lie one behind the other,
 * the newest last. */
typedef struct block {
    int64_t size, address;
    int32_t owner, before, behind; /* neighbours in the segment */
} block;

typedef struct device {
    hy3d_context *context;
    block *blocks;
    int32_t count, room;
    int32_t *at;       /* of each slice: its block */
    int64_t left, end; /* end: of the last segment */
    hy3d_status status;
} device;

static int64_t rounded(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Adds a block in place of one that is gone; its number. */
static int32_t new_block(device *d, const block *made)
{
    int32_t at = 0;
    while (at < d->count && d->blocks[at].owner != GONE) {
        at++;
    }
    if (at == d->count) {
        d->blocks =
            hy3d__grown(d->context, d->blocks, d->count, &d->room, sizeof *d->blocks, &d->status);
        if (d->status != HY3D_OK) {
            return NONE;
        }
        d->count++;
    }
    d->blocks[at] = *made;
    return at;
}

/* A segment of one free block, NONE where there is no room. */
static int32_t new_segment(device *d, int64_t bytes)
{
    const int64_t size = bytes < 10 * MIB ? 20 * MIB : rounded(bytes, 2 * MIB);
    const bool gives_back = size > d->left;
    for (int32_t i = 0; i < d->count && gives_back; i++) {
        block *one = &d->blocks[i];
        if (one->owner == FREE && one->before == NONE && one->behind == NONE) {
            one->owner = GONE;
            d->left += one->size;
        }
    }
    if (size > d->left) {
        return NONE;
    }
    const block made = {
        .size = size, .address = d->end, .owner = FREE, .before = NONE, .behind = NONE};
    d->left -= size;
    d->end += size;
    return new_block(d, &made);
}

/* Whether an allocation rather takes a than b. */
static bool is_preferred(const block *a, const block *b)
{
    return a->size != b->size ? a->size < b->size : a->address < b->address;
}

/* The block that an owner gets; NONE where there is no room. */
static int32_t allocate(device *d, int64_t bytes, int32_t owner)
{
    const int64_t size = rounded(bytes, 512);
    int32_t best = NONE;
    for (int32_t i = 0; i < d->count; i++) {
        const block *one = &d->blocks[i];
        if (one->owner == FREE && one->size >= size &&
            (best == NONE || is_preferred(one, &d->blocks[best]))) {
            best = i;
        }
    }
    best = best == NONE ? new_segment(d, size) : best;
    if (best == NONE) {
        return NONE;
    }
    if (d->blocks[best].size - size > MIB) {
        const block rest = {.size = d->blocks[best].size - size,
                            .address = d->blocks[best].address + size,
                            .owner = FREE,
                            .before = best,
                            .behind = d->blocks[best].behind};
        const int32_t behind = new_block(d, &rest);
        if (behind == NONE) {
            return NONE;
        }
        if (rest.behind != NONE) {
            d->blocks[rest.behind].before = behind;
        }
        d->blocks[best].behind = behind;
        d->blocks[best].size = size;
    }
    d->blocks[best].owner = owner;
    return best;
}

/* One free block in place of it and the one behind it. */
static void join(device *d, int32_t at)
{
    block *one = &d->blocks[at], *next = &d->blocks[one->behind];
    one->size += next->size;
    one->behind = next->behind;
    next->owner = GONE;
    if (one->behind != NONE) {
        d->blocks[one->behind].before = at;
    }
}

static void release(device *d, int32_t at)
{
    block *one = &d->blocks[at];
    one->owner = FREE;
    if (one->behind != NONE && d->blocks[one->behind].owner == FREE) {
        join(d, at);
    }
    if (one->before != NONE && d->blocks[one->before].owner == FREE) {
        join(d, one->before);
    }
}

static bool make(device *d, const hy3d_slice *slices, int32_t slice)
{
    if (slices[slice].bytes <= MIB) {
        return true;
    }
    d->at[slice] = allocate(d, slices[slice].bytes, slice);
    return d->at[slice] != NONE;
}

static void drop(device *d, int32_t slice)
{
    if (d->at[slice] != NONE) {
        release(d, d->at[slice]);
        d->at[slice] = NONE;
    }
}

/* Whether the step's slice and workspace find room. */
static bool take(device *d, const hy3d_step *step, const int32_t *refs, const hy3d_slice *slices)
{
    if (step->op == HY3D_STEP_LOAD) {
        return make(d, slices, step->slice);
    }
    if (step->op == HY3D_STEP_DROP) {
        drop(d, step->slice);
    } else if (hy3d__makes(step)) {
        if (step->flags & HY3D_STEP_OVERWRITE) {
            const int32_t first = step->first_ref;
            const int32_t over = refs[step->op == HY3D_STEP_ADD ? first : first + step->sources];
            d->at[step->slice] = d->at[over];
            d->at[over] = NONE;
        } else if (!make(d, slices, step->slice)) {
            return false;
        }
    }
    if (step->workspace_bytes > MIB) {
        const int32_t inside = allocate(d, step->workspace_bytes, WORKSPACE);
        if (inside == NONE) {
            return false;
        }
        release(d, inside);
    }
    return true;
}

hy3d_status hy3d__finds_room(hy3d_context *context, const hy3d__arrays *arrays, int64_t room,
                             bool *finds_out)
{
    void *memory = NULL;
    const size_t slices = (size_t)arrays->sections[0].slices;
    device d = {.context = context, .left = room};
    d.status = hy3d_alloc(context, slices * sizeof(int32_t), &memory);
    d.at = memory;
    for (size_t i = 0; i < slices && d.status == HY3D_OK; i++) {
        d.at[i] = NONE;
    }
    bool finds = true;
    for (int32_t i = 0; i < arrays->sections[0].steps && finds && d.status == HY3D_OK; i++) {
        const hy3d_step *step = &arrays->steps[i];
        const int32_t *frees = &arrays->refs[step->first_ref + step->sources + step->others];
        finds = take(&d, step, arrays->refs, arrays->slices);
        for (int32_t k = 0; k < step->frees && finds; k++) {
            drop(&d, frees[k]);
        }
    }
    hy3d_free(context, d.blocks);
    hy3d_free(context, memory);
    *finds_out = finds && d.status == HY3D_OK;
    return d.status;
}
