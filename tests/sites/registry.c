#define _GNU_SOURCE
#include "registry.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_SITES = 1024 };

typedef struct test_site {
    const char *file, *function;
    int line;
} test_site;

bool test_site_fails(const test_site *const *entry);
void *test_site_memory(void *memory);
void test_site_free(void *memory);

/* The linker's ends of the section. */
extern const test_site *const __start_hy3d_sites[] __attribute__((visibility("hidden")));
extern const test_site *const __stop_hy3d_sites[] __attribute__((visibility("hidden")));

/* Shared with children that are forked, so that what fails there is counted here. */
typedef struct tallies {
    _Atomic uint64_t ordinal, fail_at;
    _Atomic int how;
    _Atomic int failed;
    struct {
        _Atomic uint64_t asked, once, forever;
    } of[MOST_SITES];
} tallies;

static tallies *shared;
static _Atomic int64_t live;

__attribute__((constructor)) static void begin(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || test_sites_count() > MOST_SITES) {
        fprintf(stderr, "no room for %d sites\n", test_sites_count());
        abort();
    }
    atomic_store(&shared->failed, -1);
}

int test_sites_count(void)
{
    return (int)(__stop_hy3d_sites - __start_hy3d_sites);
}

const char *test_sites_function(int site)
{
    return __start_hy3d_sites[site]->function;
}

const char *test_sites_name(int site)
{
    static char text[256];
    const test_site *const found = __start_hy3d_sites[site];
    const char *const folder = strstr(found->file, "csrc/");
    snprintf(text, sizeof text, "%s:%d %s", folder != NULL ? folder : found->file, found->line,
             found->function);
    return text;
}

void test_sites_arm(uint64_t k, int how)
{
    atomic_store(&shared->fail_at, 0);
    atomic_store(&shared->ordinal, 0);
    atomic_store(&shared->failed, -1);
    atomic_store(&shared->how, how);
    atomic_store(&shared->fail_at, k);
}

uint64_t test_sites_disarm(void)
{
    atomic_store(&shared->fail_at, 0);
    return atomic_load(&shared->ordinal);
}

int test_sites_failed(void)
{
    return atomic_load(&shared->failed);
}

void test_sites_tally(int site, uint64_t *asked, uint64_t *once, uint64_t *forever)
{
    *asked = atomic_load(&shared->of[site].asked);
    *once = atomic_load(&shared->of[site].once);
    *forever = atomic_load(&shared->of[site].forever);
}

int64_t test_sites_live(void)
{
    return atomic_load(&live);
}

bool test_site_fails(const test_site *const *entry)
{
    const int site = (int)(entry - __start_hy3d_sites);
    const uint64_t ordinal = atomic_fetch_add(&shared->ordinal, 1) + 1;
    const uint64_t fail_at = atomic_load(&shared->fail_at);
    atomic_fetch_add(&shared->of[site].asked, 1);
    if (fail_at == 0 || ordinal < fail_at) {
        return false;
    }
    const int how = atomic_load(&shared->how);
    if (how != SITES_FOREVER && ordinal - fail_at >= (uint64_t)how) {
        return false;
    }
    if (ordinal == fail_at) {
        atomic_store(&shared->failed, site);
    }
    atomic_fetch_add(how == SITES_FOREVER ? &shared->of[site].forever : &shared->of[site].once, 1);
    return true;
}

void *test_site_memory(void *memory)
{
    atomic_fetch_add(&live, memory != NULL);
    return memory;
}

void test_site_free(void *memory)
{
    atomic_fetch_sub(&live, memory != NULL);
    free(memory);
}
