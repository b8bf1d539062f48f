/* What the core asks of the operating system, and all of it: os_posix.c and os_windows.c each hold
 * the whole, so that no other file knows which system it is on. */
#ifndef HY3D_BASE_OS_H
#define HY3D_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*hy3d__thread_fn)(void *argument);

#if defined(_WIN32)
/* SRWLOCK and CONDITION_VARIABLE are one pointer each: windows.h and its macros stay outside. */
typedef struct hy3d__mutex {
    void *state;
} hy3d__mutex;
typedef struct hy3d__condition {
    void *state;
} hy3d__condition;
typedef void *hy3d__thread_handle;
typedef uint32_t hy3d__thread_id;
typedef struct hy3d__manner {
    uint32_t sse;
    uint16_t x87;
} hy3d__manner;
#define HY3D__LIBRARY_SUFFIX ".dll"
#define HY3D__BLAS_NAMES "libopenblas.dll", "libscipy_openblas.dll"
#else
#include <fenv.h>
#include <pthread.h>
typedef fenv_t hy3d__manner;
typedef pthread_mutex_t hy3d__mutex;
typedef pthread_cond_t hy3d__condition;
typedef pthread_t hy3d__thread_handle, hy3d__thread_id;
#define HY3D__LIBRARY_SUFFIX ".so"
#define HY3D__BLAS_NAMES "libopenblas.so.0", "libopenblas.so"
#endif

/* Not recursive, for the threads of one process. false: the system has no room for one. */
bool hy3d__mutex_create(hy3d__mutex *mutex);
void hy3d__mutex_destroy(hy3d__mutex *mutex);
void hy3d__mutex_lock(hy3d__mutex *mutex);
void hy3d__mutex_unlock(hy3d__mutex *mutex);

/* wait is entered and left with the mutex held, and may return with nothing signalled. */
bool hy3d__condition_create(hy3d__condition *condition);
void hy3d__condition_destroy(hy3d__condition *condition);
void hy3d__condition_wait(hy3d__condition *condition, hy3d__mutex *mutex);
void hy3d__condition_signal(hy3d__condition *condition);
void hy3d__condition_broadcast(hy3d__condition *condition);

/* The caller's memory, which stays where it is until join has returned. */
typedef struct hy3d__thread {
    hy3d__thread_handle handle;
    hy3d__thread_fn run;
    void *argument;
} hy3d__thread;

/* The thread takes no signals that are sent: a handler of the host (Python's Ctrl-C) must not run
 * on a thread it does not know. Those of its own faults it takes, so that the host can report them.
 * false: there is no thread, and nothing to join. */
bool hy3d__thread_start(hy3d__thread *thread, hy3d__thread_fn run, void *argument);
void hy3d__thread_join(hy3d__thread *thread);
/* Runs it to its end on a thread that may use one processor only, so that a library which starts a
 * thread for each processor while it is loaded starts none. Where the system gives no such thread,
 * the caller runs it. */
void hy3d__run_on_one_processor(hy3d__thread_fn run, void *argument);
hy3d__thread_id hy3d__thread_self(void);
bool hy3d__thread_is_self(hy3d__thread_id thread);

/* How the calling thread computes: the direction of rounding, whether tiny numbers are flushed to
 * 0, the precision of the x87. A new thread begins as the system has it. */
void hy3d__manner_get(hy3d__manner *manner);
void hy3d__manner_set(const hy3d__manner *manner);

/* Since some moment, never set back; a step may be 16 ms. */
int64_t hy3d__milliseconds(void);
/* Differs between a process and its children of fork. */
int64_t hy3d__process_id(void);
/* CPUs this process may run on, at least 1. */
uint32_t hy3d__processor_count(void);

/* `alignment` is a power of two and divides `bytes`, which is not 0. NULL: no memory. */
void *hy3d__memory_get(size_t alignment, size_t bytes);
/* The same for some MiB that are read all over, any number of bytes: on huge pages where the system
 * gives them on demand, else as above. */
void *hy3d__memory_get_large(size_t alignment, size_t bytes);
/* NULL is allowed. */
void hy3d__memory_put(void *memory);

/* What the process's environment says of a variable, "" where it is not set; in UTF-8 on Windows.
 * Its length: `text` has what fits. */
int hy3d__setting(const char *name, char *text, size_t bytes);

/* A shared library, its symbols kept from others. A bare name is looked for where the system keeps
 * libraries. NULL: `reason` (cut off where it is too short) names the library and says why. */
void *hy3d__library_open(const char *name, char *reason, size_t reason_bytes);
/* NULL: there is none of that name. */
void *hy3d__library_symbol(void *library, const char *name);
void hy3d__library_close(void *library);
/* The folder of the program or shared library that this code is in, without a slash at its end.
 * false: unknown, or longer than `bytes`. */
bool hy3d__library_folder(char *folder, size_t bytes);

#endif
