/* With view.c the only file that knows the buffer protocol. */
#include "python/flat.h"

#include <string.h>

typedef struct item_kind {
    const char *name;
    const char *formats; /* struct codes; the item size tells them apart where a code has several */
    Py_ssize_t bytes;
} item_kind;

static const item_kind kinds[] = {
    [HY3D_PY_F32] = {"float32", "f", 4},
    [HY3D_PY_I32] = {"int32", "il", 4},
    [HY3D_PY_U8] = {"uint8", "B", 1},
};

/* A missing format is bytes, by the protocol. */
static bool format_fits(const Py_buffer *buffer, const item_kind *kind)
{
    const char *format = buffer->format == NULL ? "B" : buffer->format;
    if (*format == '@' || *format == '=' || *format == '<') {
        format++;
    }
    return format[0] != '\0' && format[1] == '\0' && strchr(kind->formats, format[0]) != NULL &&
           buffer->itemsize == kind->bytes;
}

static bool get_buffer(PyObject *object, const char *name, bool writable, hy3d_py_flat *out)
{
    if (!PyObject_CheckBuffer(object)) {
        return hy3d_py_type_error(
            "%s must be a NumPy array or another object with a buffer, not %R.", name,
            (PyObject *)Py_TYPE(object));
    }
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &out->buffer, flags) != 0) {
        if (writable && hy3d_py_may_skip()) {
            PyErr_Clear();
            hy3d_py_value_error("%s is read-only: results cannot be written there.", name);
        }
        return false;
    }
    out->held = true;
    return true;
}

static bool check(const char *name, const item_kind *kind, int ndim, const Py_buffer *buffer)
{
    if (!format_fits(buffer, kind)) {
        return hy3d_py_value_error(
            "%s has element format '%.20s' of %zd bytes: it must be %s in native byte order.", name,
            buffer->format == NULL ? "B" : buffer->format, buffer->itemsize, kind->name);
    }
    if (buffer->ndim != ndim) {
        return hy3d_py_value_error("%s has %d dimensions: it needs %d.", name, buffer->ndim, ndim);
    }
    if (!PyBuffer_IsContiguous(buffer, 'C')) {
        return hy3d_py_value_error(
            "%s is not C-contiguous: pass a copy of it, as numpy.ascontiguousarray makes.", name);
    }
    if (buffer->len != 0 && (uintptr_t)buffer->buf % (uintptr_t)kind->bytes != 0) {
        return hy3d_py_value_error(
            "%s is not aligned to its element size: pass an aligned copy of it.", name);
    }
    return true;
}

bool hy3d_py_flat_acquire(PyObject *object, const char *name, hy3d_py_item item, int ndim,
                          bool writable, hy3d_py_flat *out)
{
    memset(out, 0, sizeof *out);
    if (!get_buffer(object, name, writable, out) ||
        !check(name, &kinds[item], ndim, &out->buffer)) {
        hy3d_py_flat_release(out);
        return false;
    }
    out->data = out->buffer.buf;
    out->ndim = ndim;
    for (int i = 0; i < HY3D_PY_FLAT_DIMS; i++) {
        out->size[i] = i < ndim ? (int64_t)out->buffer.shape[i] : 1;
    }
    return true;
}

void hy3d_py_flat_release(hy3d_py_flat *flat)
{
    if (flat == NULL || !flat->held) {
        return;
    }
    /* Whoever gave the buffer may run Python code, which must neither see nor lose an exception. */
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyBuffer_Release(&flat->buffer);
    PyErr_Restore(type, value, trace);
    memset(flat, 0, sizeof *flat);
}

bool hy3d_py_flat_overlaps(const hy3d_py_flat *a, const hy3d_py_flat *b)
{
    if (!a->held || !b->held || a->buffer.len == 0 || b->buffer.len == 0) {
        return false;
    }
    /* Unsigned arithmetic: addresses are compared, never followed. */
    const uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return first < second + (uintptr_t)b->buffer.len && second < first + (uintptr_t)a->buffer.len;
}
