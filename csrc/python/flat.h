/* Flat arrays from Python without a copy: C-contiguous buffers of one exact type, as NumPy's. */
#ifndef HY3D_PYTHON_FLAT_H
#define HY3D_PYTHON_FLAT_H

#include "python/core.h"

#define HY3D_PY_FLAT_DIMS 3

typedef enum hy3d_py_item { HY3D_PY_F32, HY3D_PY_I32, HY3D_PY_U8 } hy3d_py_item;

/* Keeps the memory alive until hy3d_py_flat_release; an all-zero one is empty and may be released.
 * size is filled from the front, the rest being 1. data may be NULL where there are no elements. */
typedef struct hy3d_py_flat {
    Py_buffer buffer;
    bool held;
    void *data;
    int ndim;
    int64_t size[HY3D_PY_FLAT_DIMS];
} hy3d_py_flat;

/* `name` is the argument's name in the sentences, ndim 1 to HY3D_PY_FLAT_DIMS. A sentence for an
 * object without a buffer (TypeError) and for another type, other dimensions, gaps or another
 * order between elements, an address that is not aligned and, where it is to be written, a
 * read-only one (ValueError). On false *out is empty. */
bool hy3d_py_flat_acquire(PyObject *object, const char *name, hy3d_py_item item, int ndim,
                          bool writable, hy3d_py_flat *out);
/* NULL is allowed; twice is once. */
void hy3d_py_flat_release(hy3d_py_flat *flat);

/* Whether the two have a byte in common; an empty one has none. */
bool hy3d_py_flat_overlaps(const hy3d_py_flat *a, const hy3d_py_flat *b);

#endif
