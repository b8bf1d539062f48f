#include "counting.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static size_t size_of(void *memory)
{
#if defined(_WIN32)
    /* Not by _aligned_msize, which mingw-w64 has since version 11. The word before what
     * _aligned_malloc gives says where its block begins. */
    char *const given = memory, *block;
    memcpy(&block, given - sizeof block, sizeof block);
    return _msize(block) - (size_t)(given - block);
#else
    return malloc_usable_size(memory);
#endif
}

static bool must_fail(counting *memory, uint64_t ordinal)
{
    const uint64_t target = atomic_load(&memory->fail_at);
    if (target == 0 || ordinal < target) {
        return false;
    }
    return ordinal == target || atomic_load(&memory->fail_forever);
}

static void *allocate(void *context, size_t bytes)
{
    counting *const memory = context;
    const uint64_t ordinal = atomic_fetch_add(&memory->asked, 1) + 1;
    void *const made =
        must_fail(memory, ordinal) ? NULL : hy3d__system_allocator.allocate(NULL, bytes);
    if (made != NULL) {
        atomic_fetch_add(&memory->live, 1);
        atomic_fetch_add(&memory->live_bytes, size_of(made));
    }
    return made;
}

static void deallocate(void *context, void *given)
{
    counting *const memory = context;
    atomic_fetch_sub(&memory->live, 1);
    atomic_fetch_sub(&memory->live_bytes, size_of(given));
    hy3d__system_allocator.deallocate(NULL, given);
}

void counting_init(counting *memory)
{
    memory->allocator = (hy3d_allocator){allocate, deallocate, memory};
    atomic_init(&memory->asked, 0);
    atomic_init(&memory->live, 0);
    atomic_init(&memory->live_bytes, 0);
    atomic_init(&memory->fail_at, 0);
    atomic_init(&memory->fail_forever, false);
}

counting *counting_create(void)
{
    counting *const memory = malloc(sizeof *memory);
    if (memory != NULL) {
        counting_init(memory);
    }
    return memory;
}

const hy3d_allocator *counting_allocator(const counting *memory)
{
    return &memory->allocator;
}

void counting_fail(counting *memory, uint64_t k, bool forever)
{
    uint64_t target = 0;
    if (k != 0 && __builtin_add_overflow(atomic_load(&memory->asked), k, &target)) {
        target = UINT64_MAX;
    }
    /* `forever` first: a thread that sees the new target must see its meaning too. */
    atomic_store(&memory->fail_at, 0);
    atomic_store(&memory->fail_forever, forever);
    atomic_store(&memory->fail_at, target);
}

uint64_t counting_asked(const counting *memory)
{
    return atomic_load(&memory->asked);
}

uint64_t counting_live(const counting *memory)
{
    return atomic_load(&memory->live);
}

uint64_t counting_live_bytes(const counting *memory)
{
    return atomic_load(&memory->live_bytes);
}

static counting shared = {.allocator = {allocate, deallocate, &shared}};

const hy3d_allocator *test_allocator(void)
{
    return &shared.allocator;
}

void test_fail(uint64_t k, bool forever)
{
    counting_fail(&shared, k, forever);
}

uint64_t test_asked(void)
{
    return counting_asked(&shared);
}

uint64_t test_live(void)
{
    return counting_live(&shared);
}
