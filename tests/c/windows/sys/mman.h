/* Pages by VirtualAlloc: anonymous ones alone. */
#ifndef HY3D_TESTS_WINDOWS_MMAN_H
#define HY3D_TESTS_WINDOWS_MMAN_H

#include <stddef.h>

enum { PROT_NONE = 0, PROT_READ = 1, PROT_WRITE = 2 };
enum { MAP_PRIVATE = 2, MAP_ANONYMOUS = 32, MAP_NORESERVE = 64 };
#define MAP_FAILED ((void *)-1)

void *mmap(void *address, size_t bytes, int protection, int flags, int file, long offset);
int mprotect(void *address, size_t bytes, int protection);
int munmap(void *address, size_t bytes);

#endif
