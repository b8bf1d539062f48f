/* One table of what was requested, what is here and what is being made. */
#include "hy3d/cache.h"

#include <string.h>

#include "base/checked.h"

/* The probationary place is taken by the request of this number in a use, and from a thing that was
 * not asked for in so many requests. */
enum { ASKED = 4, PATIENCE = 8 };
/* Requests for things that are not here are remembered too: more than the layers of any decoder. */
enum { REMEMBERED = 4096 };

typedef enum state {
    ABSENT = 0,
    MAKING, /* room is reserved */
    HERE,
} state;

/* is_known: its requests are remembered. start, last: the first and the last one of this use; count:
 * of this use; before: the first one of the use before, 0 where there was none. used: when a thing
 * that is here was requested or made last. */
typedef struct entry {
    hy3d_cache_key key;
    state state;
    bool is_known, is_probationary;
    int64_t start, last, count, before, used, bytes;
} entry;

struct hy3d_cache {
    entry *entries; /* in no order; those of a decode are some sixty */
    int32_t count, capacity, known;
    int64_t clock, limit, used, evicted, probation_bytes;
};

static entry *find(const hy3d_cache *cache, const hy3d_cache_key *key)
{
    for (int32_t i = 0; cache != NULL && key != NULL && i < cache->count; i++) {
        if (memcmp(&cache->entries[i].key, key, sizeof *key) == 0) {
            return &cache->entries[i];
        }
    }
    return NULL;
}

static entry *find_in(const hy3d_cache *cache, const hy3d_cache_key *key, state wanted)
{
    entry *const found = find(cache, key);
    return found != NULL && found->state == wanted ? found : NULL;
}

/* An entry about which nothing is left to say gives its place to the last one. */
static void tidy(hy3d_cache *cache, entry *e)
{
    if (e->state == ABSENT && !e->is_known) {
        *e = cache->entries[--cache->count];
    }
}

hy3d_status hy3d_cache_create(hy3d_context *context, int64_t limit_bytes, hy3d_cache **cache_out)
{
    if (context == NULL || cache_out == NULL || limit_bytes < 0 || limit_bytes > INT64_MAX / 4) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, sizeof(hy3d_cache), &memory);
    if (status == HY3D_OK) {
        memset(memory, 0, sizeof(hy3d_cache));
        hy3d_cache *const cache = memory;
        cache->limit = limit_bytes;
        *cache_out = cache;
    }
    return status;
}

void hy3d_cache_destroy(hy3d_context *context, hy3d_cache *cache)
{
    if (cache != NULL) {
        hy3d_free(context, cache->entries);
        hy3d_free(context, cache);
    }
}

static hy3d_status make_room(hy3d_context *context, hy3d_cache *cache)
{
    if (cache->count < cache->capacity) {
        return HY3D_OK;
    }
    const int32_t capacity = cache->capacity == 0 ? 64 : 2 * cache->capacity;
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, (size_t)capacity * sizeof(entry), &memory);
    if (status == HY3D_OK) {
        if (cache->count > 0) {
            memcpy(memory, cache->entries, (size_t)cache->count * sizeof(entry));
        }
        hy3d_free(context, cache->entries);
        cache->entries = memory;
        cache->capacity = capacity;
    }
    return status;
}

/* The requests that lie back furthest. */
static void forget_one(hy3d_cache *cache)
{
    entry *oldest = NULL;
    for (int32_t i = 0; i < cache->count; i++) {
        entry *const e = &cache->entries[i];
        if (e->is_known && (oldest == NULL || e->last < oldest->last)) {
            oldest = e;
        }
    }
    oldest->is_known = false;
    cache->known--;
    tidy(cache, oldest);
}

static void note(hy3d_cache *cache, entry *e)
{
    const int64_t now = cache->clock;
    if (!e->is_known) {
        e->is_known = true;
        e->start = now;
        e->before = e->count = 0;
        cache->known++;
    } else if (now - e->last > HY3D_CACHE_REUSE_WINDOW) {
        e->before = e->start;
        e->start = now;
        e->count = 0;
    }
    e->count++;
    e->last = now;
    if (e->state == HERE) {
        e->used = now;
    }
}

hy3d_status hy3d_cache_request(hy3d_context *context, hy3d_cache *cache, const hy3d_cache_key *key,
                               bool *is_here_out)
{
    if (context == NULL || cache == NULL || key == NULL || is_here_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    entry *e = find(cache, key);
    if (e == NULL) {
        const hy3d_status status = make_room(context, cache);
        if (status != HY3D_OK) {
            return status;
        }
        e = &cache->entries[cache->count++];
        *e = (entry){.key = *key};
    }
    cache->clock++;
    note(cache, e);
    *is_here_out = e->state == HERE;
    if (cache->known > REMEMBERED) {
        forget_one(cache);
    }
    return HY3D_OK;
}

static void evict(hy3d_cache *cache, entry *e)
{
    cache->used -= e->bytes;
    cache->evicted++;
    e->state = ABSENT;
    tidy(cache, e);
}

/* Of the things that are here and were last used before `until`, the one that lies back furthest;
 * NULL for none. */
static entry *oldest_before(const hy3d_cache *cache, int64_t until)
{
    entry *oldest = NULL;
    for (int32_t i = 0; i < cache->count; i++) {
        entry *const e = &cache->entries[i];
        if (e->state == HERE && e->used < until && (oldest == NULL || e->used < oldest->used)) {
            oldest = e;
        }
    }
    return oldest;
}

static void evict_until(hy3d_cache *cache, int64_t until, int64_t most_bytes)
{
    while (cache->used > most_bytes) {
        entry *const oldest = oldest_before(cache, until);
        if (oldest == NULL) {
            return;
        }
        evict(cache, oldest);
    }
}

/* Things that were not asked for since the use before this one began make room. */
static bool take_from_stale(hy3d_cache *cache, int64_t before, int64_t bytes, int64_t room)
{
    int64_t stale = 0;
    for (int32_t i = 0; i < cache->count; i++) {
        const entry *const e = &cache->entries[i];
        stale += e->state == HERE && e->used < before ? e->bytes : 0;
    }
    if (before == 0 || cache->used - stale + bytes > room) {
        return false;
    }
    evict_until(cache, before, room - bytes);
    return true;
}

/* The probationary place, if nobody has just used it; never more than half the cache. */
static bool take_probationary_room(hy3d_cache *cache, int64_t bytes)
{
    if (bytes > cache->limit / 2) {
        return false;
    }
    for (int32_t i = 0; i < cache->count; i++) {
        const entry *const e = &cache->entries[i];
        const bool is_busy = e->state == MAKING || cache->clock - e->used <= PATIENCE;
        if (e->state != ABSENT && e->is_probationary && is_busy) {
            return false;
        }
    }
    for (int32_t i = cache->count - 1; i >= 0; i--) {
        if (cache->entries[i].state == HERE && cache->entries[i].is_probationary) {
            evict(cache, &cache->entries[i]); /* what takes its place was looked at already */
        }
    }
    cache->probation_bytes = hy3d__max_i64(cache->probation_bytes, bytes);
    evict_until(cache, INT64_MAX, cache->limit - cache->probation_bytes);
    return cache->used + bytes <= cache->limit;
}

hy3d_status hy3d_cache_reserve(hy3d_cache *cache, const hy3d_cache_key *key, int64_t bytes,
                               bool *is_reserved_out)
{
    if (cache == NULL || key == NULL || bytes < 0 || is_reserved_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    *is_reserved_out = false;
    const entry *const e = find_in(cache, key, ABSENT);
    if (e == NULL || bytes > cache->limit) {
        return HY3D_OK;
    }
    const int64_t room = cache->limit - cache->probation_bytes;
    const int64_t count = e->count;
    const bool fits = cache->used + bytes <= room || take_from_stale(cache, e->before, bytes, room);
    if (!fits && (count < ASKED || !take_probationary_room(cache, bytes))) {
        return HY3D_OK;
    }
    entry *const found = find(cache, key); /* evicting may have moved it */
    found->state = MAKING;
    found->is_probationary = !fits;
    found->bytes = bytes;
    cache->used += bytes;
    *is_reserved_out = true;
    return HY3D_OK;
}

bool hy3d_cache_put(hy3d_cache *cache, const hy3d_cache_key *key)
{
    entry *const e = find_in(cache, key, MAKING);
    if (e == NULL) {
        return false;
    }
    e->state = HERE;
    e->used = cache->clock;
    return true;
}

void hy3d_cache_cancel(hy3d_cache *cache, const hy3d_cache_key *key)
{
    entry *const e = find_in(cache, key, MAKING);
    if (e != NULL) {
        cache->used -= e->bytes;
        e->state = ABSENT;
        tidy(cache, e);
    }
}

bool hy3d_cache_drop(hy3d_cache *cache, const hy3d_cache_key *key)
{
    entry *const e = find_in(cache, key, HERE);
    if (e == NULL) {
        return false;
    }
    cache->used -= e->bytes;
    e->state = ABSENT;
    tidy(cache, e);
    return true;
}

int64_t hy3d_cache_clear(hy3d_cache *cache)
{
    int64_t held = 0;
    if (cache == NULL) {
        return held;
    }
    for (int32_t i = 0; i < cache->count; i++) {
        held += cache->entries[i].state == HERE ? cache->entries[i].bytes : 0;
    }
    cache->count = cache->known = 0;
    cache->used = cache->probation_bytes = 0;
    return held;
}

bool hy3d_cache_has(const hy3d_cache *cache, const hy3d_cache_key *key)
{
    return find_in(cache, key, HERE) != NULL;
}

hy3d_cache_info hy3d_cache_get_info(const hy3d_cache *cache)
{
    int64_t entries = 0;
    if (cache == NULL) {
        return (hy3d_cache_info){.clock = 0};
    }
    for (int32_t i = 0; i < cache->count; i++) {
        entries += cache->entries[i].state == HERE;
    }
    return (hy3d_cache_info){.clock = cache->clock,
                             .limit_bytes = cache->limit,
                             .used_bytes = cache->used,
                             .entries = entries,
                             .evicted = cache->evicted};
}
