/* What the programs of the sites ask of the registry. */
#ifndef HY3D_TESTS_SITES_REGISTRY_H
#define HY3D_TESTS_SITES_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#define SITES_API __attribute__((visibility("default")))

/* How many calls fail: one; it and the next one (what is tried in its place); all after it too. */
enum { SITES_ONCE = 1, SITES_TWICE = 2, SITES_FOREVER = 3 };

/* From the k-th call of any site on, from now. Children that are forked from now on count too. */
SITES_API void test_sites_arm(uint64_t k, int how);
/* No site fails; how many were called since they were armed. */
SITES_API uint64_t test_sites_disarm(void);
/* The number of the site that failed first since the last arm, or -1. */
SITES_API int test_sites_failed(void);

SITES_API int test_sites_count(void);
/* "file:line function", valid until the next call. */
SITES_API const char *test_sites_name(int site);
SITES_API const char *test_sites_function(int site);
/* How often a site was called, failed alone or with one other, and failed where all did. */
SITES_API void test_sites_tally(int site, uint64_t *asked, uint64_t *once, uint64_t *forever);
/* Blocks of memory that this process asked of the system through the allocator and has not freed. */
SITES_API int64_t test_sites_live(void);

#endif
