#include "base/blas.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context_internal.h"
#include "base/openblas.h"
#include "base/os.h"

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };
enum { NOT_LOADED = 0, LOADED = 1, FAILED = 2 };
/* Three candidates with a reason and a name each, and the remedy, are below ERROR_BYTES. */
enum { INFO_BYTES = 512, ERROR_BYTES = 2048, REASON_BYTES = 320, PATH_BYTES = 4096 };

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
typedef void (*dgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                         const double *a, int lda, const double *b, int ldb, double beta, double *c,
                         int ldc);
typedef char *(*text_fn)(void);
typedef void (*set_threads_fn)(int count);
typedef int (*get_threads_fn)(void);
/* Of the calling thread alone; gives what it was, 0: none of its own. */
typedef int (*set_local_threads_fn)(int count);

struct hy3d__blas {
    char *requested; /* copy of the option, or NULL */
    _Atomic int state;
    void *handle;
    sgemm_fn sgemm;
    dgemm_fn dgemm;
    text_fn get_config, get_corename; /* NULL: not an OpenBLAS */
    set_threads_fn set_num_threads;
    get_threads_fn get_num_threads;
    set_local_threads_fn set_local_threads; /* NULL: none. OpenBLAS's "local" is everybody's */
    uint32_t callers_limit;
    char info[INFO_BYTES];
    char error[ERROR_BYTES]; /* written before state becomes FAILED, never after */
};

/* A buffer that cuts off what does not fit. */
typedef struct text {
    char *start;
    size_t size, used;
} text;

__attribute__((format(printf, 2, 3))) static void append(text *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(out->start + out->used, out->size - out->used, format, arguments);
    va_end(arguments);
    if (length > 0) {
        const size_t room = out->size - out->used - 1;
        out->used += (size_t)length < room ? (size_t)length : room;
    }
}

/* Whether the file is our build's copy, by its name, which nobody else loads. Any other library may
 * be used by the rest of the process too, at once or later: its settings are not ours. */
static bool is_own(const char *path)
{
    static const char prefix[] = "libhy3d_";
    const char *name = path;
    for (const char *c = path; *c != '\0'; c++) {
        name = *c == '/' || *c == '\\' ? c + 1 : name;
    }
    return strncmp(name, prefix, sizeof prefix - 1) == 0;
}

typedef struct opening {
    const char *name;
    char *reason; /* REASON_BYTES */
    void *handle; /* NULL: `reason` says why */
} opening;

static void open_library(void *argument)
{
    opening *const self = argument;
    self->handle = hy3d__library_open(self->name, self->reason, REASON_BYTES);
}

/* The symbol as the scipy-openblas wheels call it, else by its plain name. The copy is how
 * an object pointer becomes a function pointer. */
static bool find_symbol(void *handle, const char *name, void *function_out)
{
    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    void *address = hy3d__library_symbol(handle, prefixed);
    if (address == NULL) {
        address = hy3d__library_symbol(handle, name);
    }
    memcpy(function_out, &address, sizeof address);
    return address != NULL;
}

/* How many threads may be inside the library at once. OpenBLAS gives every caller a buffer out of
 * a table whose size goes with MAX_THREADS; without a free one it prints a line and crashes.
 * Builds without threads (SINGLE_THREADED) may have no lock around that table, and in OpenMP
 * builds the thread number that a caller sets is everybody's: one at a time there. */
static uint32_t callers_limit(const char *config)
{
    static const char key[] = "MAX_THREADS=";
    if (strstr(config, "USE_OPENMP") != NULL || strstr(config, "SINGLE_THREADED") != NULL) {
        return 1;
    }
    const char *const found = strstr(config, key);
    const long threads = found != NULL ? strtol(found + sizeof key - 1, NULL, 10) : 0;
    return threads > 2 && threads < INT32_MAX ? (uint32_t)threads - 1 : 1;
}

/* Why the opened library cannot be used, or NULL. */
static const char *bind_library(hy3d__blas *blas)
{
    if (!find_symbol(blas->handle, "cblas_sgemm", &blas->sgemm) ||
        !find_symbol(blas->handle, "cblas_dgemm", &blas->dgemm)) {
        return "has no cblas_sgemm and cblas_dgemm";
    }
    find_symbol(blas->handle, "openblas_get_config", &blas->get_config);
    find_symbol(blas->handle, "openblas_get_corename", &blas->get_corename);
    find_symbol(blas->handle, "openblas_set_num_threads", &blas->set_num_threads);
    find_symbol(blas->handle, "openblas_get_num_threads", &blas->get_num_threads);
    find_symbol(blas->handle, "MKL_Set_Num_Threads_Local", &blas->set_local_threads);
    if (blas->get_config != NULL && strstr(blas->get_config(), "USE64BITINT") != NULL) {
        return "is built with 64-bit integers (ILP64), a 32-bit (LP64) build is needed";
    }
    return NULL;
}

/* One thread a call and as many calls as it has room for, where that changes nothing for others:
 * in our own copy, where the library counts the threads of each caller, and where it has one.
 * Otherwise the library's own threads compute, one call at a time. */
static void set_threads(hy3d__blas *blas, bool own)
{
    const bool is_openblas = blas->get_config != NULL;
    if (own && blas->set_num_threads != NULL) {
        blas->set_num_threads(1);
    }
    const bool is_single =
        own || (is_openblas && blas->get_num_threads != NULL && blas->get_num_threads() == 1);
    if (blas->set_local_threads != NULL) {
        blas->callers_limit = UINT32_MAX;
    } else {
        blas->callers_limit = is_single && is_openblas ? callers_limit(blas->get_config()) : 1;
    }
}

static void describe(const hy3d_context *context, const char *name)
{
    hy3d__blas *const blas = context->blas;
    text info = {blas->info, INFO_BYTES, 0};
    if (blas->get_config == NULL || blas->get_corename == NULL) {
        append(&info, "not an OpenBLAS: %s%s", name,
               blas->set_local_threads != NULL ? "" : "; one caller at a time, by its own threads");
        return;
    }
    const char *const wanted = hy3d__core_type(context);
    const char *const core = blas->get_corename();
    append(&info, "%s; core type %s, at most %u callers, from %s", blas->get_config(), core,
           (unsigned)blas->callers_limit, name);
    if (blas->callers_limit == 1 && blas->get_num_threads != NULL && blas->get_num_threads() > 1) {
        append(&info, "; its %d threads are left as they are", blas->get_num_threads());
    }
    if (wanted != NULL && !hy3d__core_is_within(core, context->level)) {
        append(&info,
               "; NOT limited to %s as the CPU level asks: start the program with "
               "OPENBLAS_CORETYPE=%s",
               wanted, wanted);
    }
}

/* HY3D_ERR_BLAS_UNAVAILABLE: the next candidate may do; the reason is in `error`. */
static hy3d_status try_library(hy3d_context *context, const char *name, text *error)
{
    hy3d__blas *const blas = context->blas;
    char reason[REASON_BYTES] = "";
    const bool own = is_own(name);
    opening job = {name, reason, NULL};
    if (own) {
        hy3d__run_on_one_processor(open_library, &job);
    } else {
        open_library(&job);
    }
    blas->handle = job.handle;
    if (blas->handle == NULL) {
        append(error, "\n  %s", reason);
        return HY3D_ERR_BLAS_UNAVAILABLE;
    }
    const char *const refusal = bind_library(blas);
    if (refusal != NULL) {
        append(error, "\n  %.*s: %s", REASON_BYTES, name, refusal);
        hy3d__library_close(blas->handle);
        blas->handle = NULL;
        return HY3D_ERR_BLAS_UNAVAILABLE;
    }
    set_threads(blas, own);
    describe(context, name);
    return HY3D_OK;
}

/* _vendor/ beside the shared object that this code is in; the build puts the wheel's library
 * there. */
static bool vendored_path(char path[PATH_BYTES])
{
    static const char name[] = "/_vendor/libhy3d_openblas" HY3D__LIBRARY_SUFFIX;
    if (!hy3d__library_folder(path, PATH_BYTES - sizeof name)) {
        return false;
    }
    strcat(path, name);
    return true;
}

static hy3d_status search(hy3d_context *context, text *error)
{
    static const char *const names[] = {HY3D__BLAS_NAMES};
    /* Where somebody chose, another library in its place would hide their mistake. */
    const char *const asked = context->blas->requested;
    if (asked != NULL && asked[0] != '\0') {
        return try_library(context, asked, error);
    }
    char path[PATH_BYTES];
    const int length = asked == NULL ? hy3d__setting("HY3D_BLAS_LIBRARY", path, sizeof path) : 0;
    if (length >= PATH_BYTES) {
        append(error, "\n  HY3D_BLAS_LIBRARY is longer than a path can be: %.*s", REASON_BYTES,
               path);
        return HY3D_ERR_BLAS_UNAVAILABLE;
    }
    if (length > 0) {
        return try_library(context, path, error);
    }
    hy3d_status status = HY3D_ERR_BLAS_UNAVAILABLE;
    if (vendored_path(path)) {
        status = try_library(context, path, error);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
            status = try_library(context, names[i], error);
        }
    }
    return status;
}

static hy3d_status load(hy3d_context *context)
{
    hy3d__blas *const blas = context->blas;
    static const char remedy[] =
        "\nInstall one (apt-get install libopenblas0, dnf install openblas, pip install "
        "scipy-openblas32) and, if it is not found by itself, set HY3D_BLAS_LIBRARY to the path of "
        "its shared library.";
    text error = {blas->error, ERROR_BYTES, 0};
    append(&error, "No usable BLAS library was found. Tried:");
    const hy3d_status status = search(context, &error);
    if (status == HY3D_OK) {
        blas->error[0] = '\0';
        atomic_store(&blas->state, LOADED);
    } else if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        append(&error, "%s", remedy);
        atomic_store(&blas->state, FAILED);
    }
    return status; /* out of memory: the next call tries again */
}

hy3d_status hy3d__blas_load(hy3d_context *context)
{
    hy3d__blas *const blas = context->blas;
    if (atomic_load(&blas->state) == LOADED) {
        return HY3D_OK;
    }
    hy3d__pool *lock;
    hy3d_status status = hy3d__load_lock(context, &lock);
    if (status != HY3D_OK) {
        return status;
    }
    const int state = atomic_load(&blas->state);
    status = state == LOADED ? HY3D_OK : HY3D_ERR_BLAS_UNAVAILABLE;
    if (state == NOT_LOADED) {
        status = load(context);
    }
    hy3d__load_unlock(lock);
    return status;
}

hy3d_status hy3d__blas_create(hy3d_context *context, const char *library)
{
    void *memory = NULL;
    hy3d_status status = hy3d_alloc(context, sizeof(hy3d__blas), &memory);
    if (status != HY3D_OK) {
        return status;
    }
    context->blas = memory;
    *context->blas = (hy3d__blas){.requested = NULL};
    if (library != NULL) {
        void *copy = NULL;
        status = hy3d_alloc(context, strlen(library) + 1, &copy);
        if (status != HY3D_OK) {
            return status;
        }
        context->blas->requested = strcpy(copy, library);
    }
    return HY3D_OK;
}

void hy3d__blas_destroy(hy3d_context *context)
{
    hy3d__blas *const blas = context->blas;
    if (blas == NULL) {
        return;
    }
    if (blas->handle != NULL) {
        hy3d__library_close(blas->handle);
    }
    hy3d_free(context, blas->requested);
    hy3d_free(context, blas);
    context->blas = NULL;
}

hy3d_status hy3d_context_blas_info(hy3d_context *context, const char **text_out)
{
    if (context == NULL || text_out == NULL) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_status status = hy3d__blas_load(context);
    if (status == HY3D_OK) {
        *text_out = context->blas->info;
    }
    return status;
}

const char *hy3d_context_blas_error(const hy3d_context *context)
{
    return atomic_load(&context->blas->state) == FAILED ? context->blas->error : "";
}

/* A place among the callers, and one thread where the library counts them for each caller. */
typedef struct turn {
    hy3d__pool *gate;
    int threads_before;
} turn;

static turn enter(hy3d_context *context)
{
    const hy3d__blas *const blas = context->blas;
    turn self = {hy3d__gate_enter(context, blas->callers_limit), 0};
    if (blas->set_local_threads != NULL) {
        self.threads_before = blas->set_local_threads(1);
    }
    return self;
}

static void leave(const hy3d__blas *blas, turn self)
{
    if (blas->set_local_threads != NULL) {
        (void)blas->set_local_threads(self.threads_before);
    }
    hy3d__gate_leave(self.gate);
}

void hy3d__sgemm(hy3d_context *context, const hy3d__gemm_args *args)
{
    const hy3d__blas *const blas = context->blas;
    const turn mine = enter(context);
    blas->sgemm(CBLAS_ROW_MAJOR, args->trans_a ? CBLAS_TRANS : CBLAS_NO_TRANS,
                args->trans_b ? CBLAS_TRANS : CBLAS_NO_TRANS, args->m, args->n, args->k, 1.0F,
                args->a, args->lda, args->b, args->ldb, args->accumulate ? 1.0F : 0.0F, args->c,
                args->ldc);
    leave(blas, mine);
}

void hy3d__dgemm(hy3d_context *context, const hy3d__gemm_args *args)
{
    const hy3d__blas *const blas = context->blas;
    const turn mine = enter(context);
    blas->dgemm(CBLAS_ROW_MAJOR, args->trans_a ? CBLAS_TRANS : CBLAS_NO_TRANS,
                args->trans_b ? CBLAS_TRANS : CBLAS_NO_TRANS, args->m, args->n, args->k, 1.0,
                args->a, args->lda, args->b, args->ldb, args->accumulate ? 1.0 : 0.0, args->c,
                args->ldc);
    leave(blas, mine);
}
