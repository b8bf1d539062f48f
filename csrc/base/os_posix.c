/* The operating system where it is POSIX. dladdr, sched_getaffinity and madvise are extensions of
 * glibc, musl and the BSDs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/os.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

bool hy3d__mutex_create(hy3d__mutex *mutex)
{
    return pthread_mutex_init(mutex, NULL) == 0;
}

void hy3d__mutex_destroy(hy3d__mutex *mutex)
{
    pthread_mutex_destroy(mutex);
}

void hy3d__mutex_lock(hy3d__mutex *mutex)
{
    pthread_mutex_lock(mutex);
}

void hy3d__mutex_unlock(hy3d__mutex *mutex)
{
    pthread_mutex_unlock(mutex);
}

bool hy3d__condition_create(hy3d__condition *condition)
{
    return pthread_cond_init(condition, NULL) == 0;
}

void hy3d__condition_destroy(hy3d__condition *condition)
{
    pthread_cond_destroy(condition);
}

void hy3d__condition_wait(hy3d__condition *condition, hy3d__mutex *mutex)
{
    pthread_cond_wait(condition, mutex);
}

void hy3d__condition_signal(hy3d__condition *condition)
{
    pthread_cond_signal(condition);
}

void hy3d__condition_broadcast(hy3d__condition *condition)
{
    pthread_cond_broadcast(condition);
}

static void *run_thread(void *argument)
{
    const hy3d__thread *const self = argument;
    self->run(self->argument);
    return NULL;
}

bool hy3d__thread_start(hy3d__thread *thread, hy3d__thread_fn run, void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t sent, before;
    thread->run = run;
    thread->argument = argument;
    sigfillset(&sent);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&sent, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &sent, &before); /* a thread inherits its maker's */
    const int error = pthread_create(&thread->handle, NULL, run_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

void hy3d__thread_join(hy3d__thread *thread)
{
    pthread_join(thread->handle, NULL);
}

typedef struct narrow_call {
    hy3d__thread_fn run;
    void *argument;
} narrow_call;

static void run_narrowly(void *argument)
{
    const narrow_call *const call = argument;
#if defined(__linux__)
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) == 0) {
        size_t first = 0;
        while (first < (size_t)CPU_SETSIZE - 1 && !CPU_ISSET(first, &all)) {
            first++;
        }
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        (void)sched_setaffinity(0, sizeof one, &one); /* of this thread alone; refused: as it was */
    }
#endif
    call->run(call->argument);
}

void hy3d__run_on_one_processor(hy3d__thread_fn run, void *argument)
{
    narrow_call call = {run, argument};
    hy3d__thread thread;
    if (hy3d__thread_start(&thread, run_narrowly, &call)) {
        hy3d__thread_join(&thread);
    } else {
        run(argument);
    }
}

hy3d__thread_id hy3d__thread_self(void)
{
    return pthread_self();
}

bool hy3d__thread_is_self(hy3d__thread_id thread)
{
    return pthread_equal(thread, pthread_self()) != 0;
}

void hy3d__manner_get(hy3d__manner *manner)
{
    fegetenv(manner);
}

void hy3d__manner_set(const hy3d__manner *manner)
{
    fesetenv(manner);
}

int64_t hy3d__milliseconds(void)
{
#if defined(CLOCK_MONOTONIC_COARSE)
    const clockid_t clock = CLOCK_MONOTONIC_COARSE; /* a quarter of the time of the exact one */
#else
    const clockid_t clock = CLOCK_MONOTONIC;
#endif
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t hy3d__process_id(void)
{
    return getpid();
}

uint32_t hy3d__processor_count(void)
{
#if defined(__linux__)
    /* The affinity mask, not the machine's count: containers and taskset narrow it. */
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int count = CPU_COUNT(&set);
        return count > 0 ? (uint32_t)count : 1;
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT32_MAX ? (uint32_t)online : 1;
}

void *hy3d__memory_get(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, bytes);
}

#define HUGE_PAGE ((size_t)2 << 20)

void *hy3d__memory_get_large(size_t alignment, size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, alignment < HUGE_PAGE ? HUGE_PAGE : alignment, bytes) != 0) {
        return NULL;
    }
#if defined(MADV_HUGEPAGE)
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* without them it is slower, no more */
#endif
    return memory;
}

void hy3d__memory_put(void *memory)
{
    free(memory);
}

int hy3d__setting(const char *name, char *text, size_t bytes)
{
    const char *const value = getenv(name);
    return snprintf(text, bytes, "%s", value != NULL ? value : "");
}

void *hy3d__library_open(const char *name, char *reason, size_t reason_bytes)
{
    void *const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *const text = dlerror(); /* names the file */
        snprintf(reason, reason_bytes, "%s", text != NULL ? text : name);
    }
    return library;
}

void *hy3d__library_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

void hy3d__library_close(void *library)
{
    dlclose(library);
}

bool hy3d__library_folder(char *folder, size_t bytes)
{
    static const char here;
    Dl_info found;
    if (dladdr(&here, &found) == 0 || found.dli_fname == NULL) {
        return false;
    }
    const char *const slash = strrchr(found.dli_fname, '/');
    const int length =
        snprintf(folder, bytes, "%.*s", slash != NULL ? (int)(slash - found.dli_fname) : 1,
                 slash != NULL ? found.dli_fname : ".");
    return length >= 0 && (size_t)length < bytes;
}
#endif
