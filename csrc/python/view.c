/* The only file that knows DLPack and the buffer protocol. */
#include "python/view.h"

#include <string.h>

/* DLPack's C ABI before version 1.0 (dmlc/dlpack), which every producer still gives to a caller
 * that does not ask for a version. */
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 };
enum { DL_INT = 0, DL_FLOAT = 2, DL_BFLOAT = 4 };

typedef struct DLTensor {
    void *data;
    struct {
        int32_t device_type;
        int32_t device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: C order */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

/* Pinned host memory is ordinary memory for us. */
static bool host_device(int64_t type)
{
    return type == DL_CPU || type == DL_CUDA_HOST || type == DL_ROCM_HOST;
}

static bool refuse_device(const char *name, int64_t type)
{
    return hy3d_py_value_error(
        "%s is not in CPU memory (DLPack device type %lld): the C core computes on the CPU, so "
        "pass %s.cpu().",
        name, (long long)type, name);
}

static bool check_dims(const char *name, int64_t ndim)
{
    if (ndim < 1 || ndim > HY3D_TENSOR_DIMS) {
        return hy3d_py_value_error("%s has %lld dimensions: it needs 1 to %d.", name,
                                   (long long)ndim, HY3D_TENSOR_DIMS);
    }
    return true;
}

static bool dtype_from_dlpack(const DLTensor *source, hy3d_dtype *out)
{
    const unsigned bits = source->dtype.bits;
    if (source->dtype.lanes != 1) {
        return false;
    }
    if (source->dtype.code == DL_BFLOAT && bits == 16) {
        *out = HY3D_BF16;
        return true;
    }
    if (source->dtype.code != DL_FLOAT || (bits != 16 && bits != 32 && bits != 64)) {
        return false;
    }
    *out = bits == 16 ? HY3D_F16 : bits == 32 ? HY3D_F32 : HY3D_F64;
    return true;
}

/* Copies shape and strides; missing strides are made in C order (an overflow there shows up in
 * hy3d_py_view_check as well, since the element count overflows too). */
static bool fill_from_dlpack(const DLTensor *source, const char *name, hy3d_py_view *view)
{
    if (!host_device(source->device.device_type)) {
        return refuse_device(name, source->device.device_type);
    }
    if (!check_dims(name, source->ndim)) {
        return false;
    }
    hy3d_tensor *const tensor = &view->tensor;
    if (!dtype_from_dlpack(source, &tensor->dtype)) {
        return hy3d_py_value_error(
            "%s has a data type (DLPack code %d, %d bits) that is not f32, f64, f16 or bf16.", name,
            (int)source->dtype.code, (int)source->dtype.bits);
    }
    if (source->shape == NULL) {
        return hy3d_py_value_error("%s has no shape in its DLPack capsule.", name);
    }
    int64_t step = 1;
    for (int i = source->ndim - 1; i >= 0; i--) {
        tensor->size[i] = source->shape[i];
        tensor->stride[i] = source->strides != NULL ? source->strides[i] : step;
        if (__builtin_mul_overflow(step, source->shape[i], &step)) {
            step = 0;
        }
    }
    view->ndim = source->ndim;
    tensor->data = source->data == NULL ? NULL : (char *)source->data + source->byte_offset;
    return true;
}

/* Whoever renames the capsule owns what is in it: two threads that are handed the same one must
 * not both do so. NULL without an exception when it was not fresh. */
static DLManagedTensor *take_managed(PyObject *capsule)
{
    DLManagedTensor *managed = NULL;
    HY3D_PY_LOCK(capsule);
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        managed = PyCapsule_GetPointer(capsule, "dltensor");
        if (PyCapsule_SetName(capsule, "used_dltensor") != 0) {
            managed = NULL;
        }
    }
    HY3D_PY_UNLOCK();
    return managed;
}

/* Takes the managed tensor out of a fresh capsule: from here on its deleter is ours to call. */
static bool consume_capsule(PyObject *capsule, const char *name, hy3d_py_view *view)
{
    DLManagedTensor *const managed = take_managed(capsule);
    if (managed == NULL) {
        return PyErr_Occurred() == NULL &&
               hy3d_py_type_error("%s.__dlpack__() gave no fresh 'dltensor' capsule but %R.", name,
                                  (PyObject *)Py_TYPE(capsule));
    }
    view->managed = managed;
    return fill_from_dlpack(&managed->dl_tensor, name, view);
}

/* Asks for the device first: a GPU tensor would be refused anyway, but with less of a sentence. */
static bool check_dlpack_device(PyObject *object, const char *name)
{
    PyObject *const device = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    if (device == NULL) {
        return false;
    }
    int64_t pair[2];
    const bool good = hy3d_py_int64_array(device, "__dlpack_device__()", 2, pair);
    Py_DECREF(device);
    return good && (host_device(pair[0]) || refuse_device(name, pair[0]));
}

/* Replaces the producer's exception by a sentence that quotes it. */
static void explain_refusal(const char *name)
{
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        return;
    }
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyErr_Format(PyExc_ValueError,
                 "%s could not be read through DLPack (%S). A tensor that requires grad must be "
                 "detached first: the C core has no backward pass.",
                 name, value == NULL ? Py_None : value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static bool acquire_dlpack(PyObject *object, const char *name, hy3d_py_view *view)
{
    if (!check_dlpack_device(object, name)) {
        return false;
    }
    PyObject *const capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    if (capsule == NULL) {
        return false;
    }
    const bool good = consume_capsule(capsule, name, view);
    Py_DECREF(capsule);
    return good;
}

/* struct codes of native byte order; bf16 has none. */
static bool dtype_from_format(const char *format, hy3d_dtype *out)
{
    if (format == NULL) {
        return false;
    }
    if (*format == '@' || *format == '=' || *format == '<') {
        format++;
    }
    if (format[0] == '\0' || format[1] != '\0') {
        return false;
    }
    switch (format[0]) {
    case 'f':
        *out = HY3D_F32;
        return true;
    case 'd':
        *out = HY3D_F64;
        return true;
    case 'e':
        *out = HY3D_F16;
        return true;
    default:
        return false;
    }
}

static bool acquire_buffer(PyObject *object, const char *name, bool writable, hy3d_py_view *view)
{
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &view->buffer, flags) != 0) {
        if (writable && hy3d_py_may_skip()) {
            PyErr_Clear();
            hy3d_py_value_error("%s is read-only: results cannot be written there.", name);
        }
        return false;
    }
    view->has_buffer = true;
    const Py_buffer *const buffer = &view->buffer;
    hy3d_tensor *const tensor = &view->tensor;
    if (!check_dims(name, buffer->ndim)) {
        return false;
    }
    if (!dtype_from_format(buffer->format, &tensor->dtype) ||
        (size_t)buffer->itemsize != hy3d_dtype_bytes(tensor->dtype)) {
        return hy3d_py_value_error(
            "%s has element format '%.20s': it must be f32, f64 or f16 in native byte order (bf16 "
            "comes in by DLPack, as torch tensors do).",
            name, buffer->format == NULL ? "B" : buffer->format);
    }
    for (int i = 0; i < buffer->ndim; i++) {
        if (buffer->strides[i] % buffer->itemsize != 0) {
            return hy3d_py_value_error(
                "%s has a stride of %zd bytes, which is no whole number of its %zd-byte elements: "
                "pass a copy of it.",
                name, buffer->strides[i], buffer->itemsize);
        }
        tensor->size[i] = buffer->shape[i];
        tensor->stride[i] = buffer->strides[i] / buffer->itemsize;
    }
    view->ndim = buffer->ndim;
    tensor->data = buffer->buf;
    return true;
}

/* -1 an exception that must pass, 0 without the attribute, 1 with it. */
static int has_dlpack(PyObject *object)
{
    PyObject *const method = PyObject_GetAttrString(object, "__dlpack__");
    if (method != NULL) {
        Py_DECREF(method);
        return 1;
    }
    if (!hy3d_py_may_skip()) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static bool acquire(PyObject *object, const char *name, bool writable, hy3d_py_view *view)
{
    const int dlpack = has_dlpack(object);
    if (dlpack < 0) {
        return false;
    }
    if (dlpack == 0) {
        if (!PyObject_CheckBuffer(object)) {
            return hy3d_py_type_error(
                "%s must be a torch tensor, a NumPy array or another object with __dlpack__ or a "
                "buffer, not %R.",
                name, (PyObject *)Py_TYPE(object));
        }
        return acquire_buffer(object, name, writable, view);
    }
    if (acquire_dlpack(object, name, view)) {
        return true;
    }
    /* NumPy refuses DLPack for read-only arrays; their buffer serves as well. */
    const bool retry = view->managed == NULL && PyErr_ExceptionMatches(PyExc_BufferError) &&
                       PyObject_CheckBuffer(object);
    if (!retry) {
        explain_refusal(name);
        return false;
    }
    PyErr_Clear();
    return acquire_buffer(object, name, writable, view);
}

bool hy3d_py_view_acquire(PyObject *object, const char *name, bool writable, hy3d_py_view *view)
{
    memset(view, 0, sizeof *view);
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        view->tensor.size[i] = 1;
    }
    if (acquire(object, name, writable, view) && hy3d_py_view_check(name, writable, &view->tensor)) {
        return true;
    }
    hy3d_py_view_release(view);
    return false;
}

void hy3d_py_view_release(hy3d_py_view *view)
{
    DLManagedTensor *const managed = view->managed;
    const bool has_buffer = view->has_buffer;
    view->managed = NULL;
    view->has_buffer = false;
    view->tensor.data = NULL;
    /* A deleter may run Python code, which must neither see nor lose an exception of ours. */
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    if (managed != NULL && managed->deleter != NULL) {
        managed->deleter(managed);
    }
    if (has_buffer) {
        PyBuffer_Release(&view->buffer);
    }
    PyErr_Restore(type, value, trace);
}
