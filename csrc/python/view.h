/* Arrays from Python without a copy: DLPack first, else the buffer protocol. */
#ifndef HY3D_PYTHON_VIEW_H
#define HY3D_PYTHON_VIEW_H

#include "hy3d/tensor.h"
#include "python/core.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* The view keeps the memory alive until hy3d_py_view_release; an all-zero view is empty and may be
 * released. tensor.size and stride are filled from the front, the rest being size 1, stride 0. */
typedef struct hy3d_py_view {
    hy3d_tensor tensor;
    int ndim;
    struct DLManagedTensor *managed; /* one of the two, or none; ours to delete, once */
    struct DLManagedTensorVersioned *versioned;
    Py_buffer buffer;
    bool has_buffer;
} hy3d_py_view;

/* 1 to 5 dimensions of f32, f64, f16 or bf16 in memory that the CPU can read. `name` is the
 * argument's name in the sentences. A writable view needs every element at an address of its own.
 * On false *view is empty. */
bool hy3d_py_view_acquire(PyObject *object, const char *name, bool writable, hy3d_py_view *view);
void hy3d_py_view_release(hy3d_py_view *view);

/* The checks that acquire makes once the tensor is filled in: sizes, range, alignment. */
bool hy3d_py_view_check(const char *name, bool writable, const hy3d_tensor *tensor);

/* The memory that the elements fill without a gap and without sharing, in whatever order; false
 * where they don't. */
bool hy3d_py_view_bytes(const hy3d_py_view *view, const void **first_out, size_t *bytes_out);

/* Whether the address ranges of the two have a byte in common. */
bool hy3d_py_view_overlaps(const hy3d_py_view *a, const hy3d_py_view *b);

/* What a tensor is without its address (dimensions, type, device, sizes, strides), read through the
 * table of functions that its type offers (DLPack's `__dlpack_c_exchange_api__`, a capsule), into
 * at most HY3D_PY_TENSOR_WORDS words. How many those are; 0 where it can't be told so; -1 with an
 * exception. The object must be of a type that has the table. */
enum { HY3D_PY_TENSOR_WORDS = 3 + 2 * HY3D_TENSOR_DIMS };
int hy3d_py_tensor_words(PyObject *capsule, PyObject *object, int64_t *words);

#endif
