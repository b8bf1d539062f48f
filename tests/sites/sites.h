/* Put before every source of the core by the build of the sites (make csites): each place that asks
 * the system or the allocator for something becomes a numbered site that can be made to fail. The
 * sources themselves know nothing of it. */
#ifndef HY3D_TESTS_SITES_H
#define HY3D_TESTS_SITES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "hy3d/context.h"

/* One call in the sources. The linker collects pointers to all of them in the section hy3d_sites,
 * those that never run too, so that 100 % means all that was compiled. */
typedef struct test_site {
    const char *file, *function;
    int line;
} test_site;

/* Whether this call must fail; counts it. */
bool test_site_fails(const test_site *const *entry);
/* Memory in and out, so that leaks show below the allocator's own count too. */
void *test_site_memory(void *memory);
void test_site_free(void *memory);

#define TEST_SITE_NEW(name)                                                                        \
    static const test_site here_ = {__FILE__, name, __LINE__};                                     \
    static const test_site *const entry_ __attribute__((section("hy3d_sites"), used)) = &here_

#define TEST_SITE(name, arguments, failure)                                                        \
    __extension__({                                                                                \
        TEST_SITE_NEW(#name);                                                                      \
        test_site_fails(&entry_) ? (failure) : name arguments;                                     \
    })

/* Files where these are defined define TEST_SITES_SYSTEM; functions there are no sites. */
#ifndef TEST_SITES_SYSTEM
#define hy3d_alloc(context, bytes, out)                                                            \
    TEST_SITE(hy3d_alloc, (context, bytes, out), HY3D_ERR_OUT_OF_MEMORY)
#define hy3d__allocator_get(allocator, bytes, out)                                                 \
    TEST_SITE(hy3d__allocator_get, (allocator, bytes, out), HY3D_ERR_OUT_OF_MEMORY)
#endif

#define aligned_alloc(alignment, bytes)                                                            \
    test_site_memory(TEST_SITE(aligned_alloc, (alignment, bytes), NULL))
#define posix_memalign(out, alignment, bytes)                                                      \
    __extension__({                                                                                \
        const int got_ = TEST_SITE(posix_memalign, (out, alignment, bytes), ENOMEM);               \
        test_site_memory(got_ == 0 ? *(out) : NULL);                                               \
        got_;                                                                                      \
    })
#define free(memory) test_site_free(memory)
#define madvise(memory, bytes, advice) TEST_SITE(madvise, (memory, bytes, advice), -1)

#define pthread_create(thread, attributes, start, argument)                                        \
    TEST_SITE(pthread_create, (thread, attributes, start, argument), EAGAIN)
#define pthread_mutex_init(lock, attributes)                                                       \
    TEST_SITE(pthread_mutex_init, (lock, attributes), ENOMEM)
#define pthread_cond_init(condition, attributes)                                                   \
    TEST_SITE(pthread_cond_init, (condition, attributes), ENOMEM)

#define dlopen(name, flags) TEST_SITE(dlopen, (name, flags), NULL)
#define dlsym(handle, name) TEST_SITE(dlsym, (handle, name), NULL)
#define dladdr(address, found) TEST_SITE(dladdr, (address, found), 0)
#define setenv(name, value, overwrite)                                                             \
    TEST_SITE(setenv, (name, value, overwrite), (errno = ENOMEM, -1))
#define sched_getaffinity(pid, size, set)                                                          \
    TEST_SITE(sched_getaffinity, (pid, size, set), -1)
#define sysconf(name) TEST_SITE(sysconf, (name), -1)

#endif
