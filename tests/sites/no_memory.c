/* Calls of Python objects while the interpreter's allocators fail: a library for ctypes.PyDLL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum { DOMAINS = 3 };
static const PyMemAllocatorDomain domains[DOMAINS] = {PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM,
                                                      PYMEM_DOMAIN_OBJ};
static PyMemAllocatorEx real[DOMAINS];
/* Only the thread that calls fails: the raw domain serves others, which do not hold the GIL. */
static _Thread_local bool is_armed;
static int64_t asked, fail_at;
static bool is_forever;

static bool fails(void)
{
    if (!is_armed) {
        return false;
    }
    asked++;
    return fail_at != 0 && (asked == fail_at || (is_forever && asked > fail_at));
}

static void *get(void *which, size_t size)
{
    const PyMemAllocatorEx *const a = which;
    return fails() ? NULL : a->malloc(a->ctx, size);
}

static void *get_clear(void *which, size_t count, size_t size)
{
    const PyMemAllocatorEx *const a = which;
    return fails() ? NULL : a->calloc(a->ctx, count, size);
}

static void *resize(void *which, void *memory, size_t size)
{
    const PyMemAllocatorEx *const a = which;
    return fails() ? NULL : a->realloc(a->ctx, memory, size);
}

static void put(void *which, void *memory)
{
    const PyMemAllocatorEx *const a = which;
    a->free(a->ctx, memory);
}

API PyObject *no_memory_call(PyObject *callable, PyObject *arguments, PyObject *keywords, int64_t k,
                             int forever);
API int64_t no_memory_asked(void);

/* callable(*arguments, **keywords) with its k-th allocation failing (and all after it). */
PyObject *no_memory_call(PyObject *callable, PyObject *arguments, PyObject *keywords, int64_t k,
                         int forever)
{
    for (int i = 0; i < DOMAINS; i++) {
        PyMem_GetAllocator(domains[i], &real[i]);
        PyMemAllocatorEx hook = {&real[i], get, get_clear, resize, put};
        PyMem_SetAllocator(domains[i], &hook);
    }
    asked = 0;
    fail_at = k;
    is_forever = forever != 0;
    is_armed = true;
    PyObject *const result = PyObject_Call(callable, arguments, keywords);
    is_armed = false;
    for (int i = 0; i < DOMAINS; i++) {
        PyMem_SetAllocator(domains[i], &real[i]);
    }
    return result;
}

/* By the last call. */
int64_t no_memory_asked(void)
{
    return asked;
}
