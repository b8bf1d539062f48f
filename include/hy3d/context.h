/* The context: everything that would otherwise be a mutable static lives here.
 *
 * It owns the CPU level, the allocator, the thread pool and the BLAS handle. A
 * program makes one; the CPython extension keeps one in its module state. All functions that
 * take a context are thread-safe unless they say otherwise; the context must outlive every plan
 * made with it. */
#ifndef HY3D_CONTEXT_H
#define HY3D_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/export.h"
#include "hy3d/status.h"

/* Instruction sets that the kernels are written for, lowest first. */
typedef enum hy3d_cpu_level {
    HY3D_CPU_REF = 0,    /* portable C */
    HY3D_CPU_AVX2 = 1,   /* AVX2 + FMA + F16C */
    HY3D_CPU_AVX512 = 2, /* AVX-512 F, BW, DQ, VL */
} hy3d_cpu_level;

typedef struct hy3d_context hy3d_context;
typedef struct hy3d_cancel hy3d_cancel;

/* Where a context takes its memory from: its own, that of all that is made with it, and workspaces;
 * not that of the BLAS library and of the system's threads. Both functions may be called from any
 * thread, several at once, and in a child after fork; they must not call the library with a context
 * that uses them. */
typedef struct hy3d_allocator {
    /* `bytes` is a multiple of 64, and never 0. The memory begins at a multiple of 64 (else it is
     * given back, and the call ends with HY3D_ERR_UNSUPPORTED) and may hold anything. NULL: there
     * is none. If a workspace is kept, it is freed then and the same is asked once more. What needed
     * the memory ends with HY3D_ERR_OUT_OF_MEMORY and leaves nothing behind, or does without. */
    void *(*allocate)(void *context, size_t bytes);
    /* What allocate gave, once; never NULL. */
    void (*deallocate)(void *context, void *memory);
    void *context; /* passed to both; must outlive the hy3d_context */
} hy3d_allocator;

typedef struct hy3d_context_options {
    /* "ref", "avx2", "avx512"; NULL takes HY3D_CPU from the environment, else the best there is.
     * It can only lower the level: asking for more than the machine has gives what it has; an
     * unknown word is HY3D_ERR_INVALID_ARGUMENT. A level below the machine's also limits the
     * BLAS core type. */
    const char *cpu_level;
    /* Path or name of the BLAS library; NULL takes HY3D_BLAS_LIBRARY, else the vendored one
     * beside this code, else the system's OpenBLAS. It is loaded at the first use. */
    const char *blas_library;
    /* Upper limit on threads of one call, at most 1024; 0 is the number of CPUs this process may
     * use. */
    uint32_t max_threads;
    /* Copied. NULL is the system's memory, with huge pages for large pieces. One of the functions
     * missing is HY3D_ERR_INVALID_ARGUMENT. The context itself is the first that is allocated and
     * the last that is freed. */
    const hy3d_allocator *allocator;
} hy3d_context_options;

HY3D_BEGIN_DECLS

/* options may be NULL. Starts no thread and loads no library: both happen at the first use. */
HY3D_API hy3d_status hy3d_context_create(const hy3d_context_options *options,
                                         hy3d_context **context_out);
/* Joins the pool's threads. NULL is allowed. No call with this context may be in flight. */
HY3D_API void hy3d_context_destroy(hy3d_context *context);

HY3D_API hy3d_cpu_level hy3d_context_cpu_level(const hy3d_context *context);
HY3D_API uint32_t hy3d_context_max_threads(const hy3d_context *context);
/* "ref", "avx2", "avx512". Never NULL. */
HY3D_API const char *hy3d_cpu_level_name(hy3d_cpu_level level);
/* The best level this machine has, without any override. */
HY3D_API hy3d_cpu_level hy3d_cpu_detect(void);

/* Loads the BLAS library if that has not happened yet and describes it ("OpenBLAS 0.3.34 ...
 * SkylakeX"). The text belongs to the context. HY3D_ERR_BLAS_UNAVAILABLE: hy3d_context_blas_error
 * then says what was tried. */
HY3D_API hy3d_status hy3d_context_blas_info(hy3d_context *context, const char **text_out);
/* "" while nothing has failed. Never NULL; belongs to the context. */
HY3D_API const char *hy3d_context_blas_error(const hy3d_context *context);

/* Memory of the context's allocator, aligned to 64 bytes. hy3d_free takes NULL. */
HY3D_API hy3d_status hy3d_alloc(hy3d_context *context, size_t bytes, void **memory_out);
HY3D_API void hy3d_free(hy3d_context *context, void *memory);

/* A workspace for one call, as hy3d_alloc's memory, but given back it is kept for the next call
 * (one of them, of at most 256 MB): the system clears fresh memory, which takes a tenth of a short
 * convolution's time. give takes NULL. */
HY3D_API hy3d_status hy3d_workspace_take(hy3d_context *context, size_t bytes, void **memory_out);
HY3D_API void hy3d_workspace_give(hy3d_context *context, void *memory);
/* Frees what is kept. */
HY3D_API void hy3d_context_trim(hy3d_context *context);

/* A cancel flag: requested from any thread, looked at by long calls once per grain. */
HY3D_API hy3d_status hy3d_cancel_create(hy3d_context *context, hy3d_cancel **cancel_out);
HY3D_API void hy3d_cancel_destroy(hy3d_context *context, hy3d_cancel *cancel);
HY3D_API void hy3d_cancel_request(hy3d_cancel *cancel);
HY3D_API void hy3d_cancel_reset(hy3d_cancel *cancel);
/* cancel may be NULL: never requested. */
HY3D_API bool hy3d_cancel_requested(const hy3d_cancel *cancel);

/* Asks the host, in the midst of a call, whether to go on: true cancels the call. */
typedef bool (*hy3d_poll_fn)(void *argument);
/* Room for one flag. */
typedef union hy3d_cancel_memory {
    void *alignment;
    int64_t number;
    unsigned char bytes[64];
} hy3d_cancel_memory;
/* Makes a flag in `memory` (on the caller's stack, say); there is nothing to destroy. It is
 * requested where `parent` is (NULL: there is none), by hy3d_cancel_request, and for good once
 * poll(argument) has said true. Only the thread that made the flag polls, whenever it looks at it:
 * first after 50 ms, then every 50 ms. The library holds no lock meanwhile, so poll may call it;
 * threads that help go on. Not for a process forked after it was made. */
HY3D_API const hy3d_cancel *hy3d_cancel_polling(hy3d_cancel_memory *memory,
                                                const hy3d_cancel *parent, hy3d_poll_fn poll,
                                                void *argument);

HY3D_END_DECLS

#endif
