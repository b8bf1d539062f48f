/* The only file that knows DLPack and the buffer protocol. */
#include "python/view.h"

#include <string.h>

/* DLPack's C ABI (dmlc/dlpack): that of version 1, asked for first, and the one before, which
 * producers give that know no other. */
enum { DL_MAJOR = 1, DL_MINOR = 1 };
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 };
enum { DL_INT = 0, DL_FLOAT = 2, DL_BFLOAT = 4 };
enum { DL_READ_ONLY = 1, DL_IS_COPIED = 2 }; /* flags */

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

/* Of another major version only what is before flags may be read. */
typedef struct DLManagedTensorVersioned {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* The table of functions of a producer's type, as far as it is used here. */
typedef struct DLPackExchangeAPI {
    struct {
        struct {
            uint32_t major;
            uint32_t minor;
        } version;
        void *previous;
    } header;
    void (*unused[3])(void);
    int (*describe)(void *object, DLTensor *out); /* may be NULL */
} DLPackExchangeAPI;

/* Pinned host memory is ordinary memory for us. */
static bool host_device(int64_t type)
{
    return type == DL_CPU || type == DL_CUDA_HOST || type == DL_ROCM_HOST;
}

/* DLDeviceType, by number. */
static const char *const device_names[] = {
    [2] = "CUDA GPU",          [4] = "OpenCL device",
    [7] = "Vulkan device",     [8] = "Metal GPU",
    [9] = "VPI device",        [10] = "ROCm GPU",
    [12] = "extension device", [13] = "CUDA GPU (managed memory)",
    [14] = "oneAPI device",    [15] = "WebGPU device",
    [16] = "Hexagon DSP",      [17] = "MAIA device",
    [18] = "Trainium device",
};

static bool refuse_device(const char *name, int64_t type, int64_t number)
{
    const int64_t known = (int64_t)(sizeof device_names / sizeof device_names[0]);
    const char *const kind = type >= 0 && type < known ? device_names[type] : NULL;
    return hy3d_py_value_error(
        "%s is not in CPU memory but on %s %lld (DLPack device type %lld): the C core computes on "
        "the CPU, so pass %s.cpu().",
        name, kind == NULL ? "an unknown device" : kind, (long long)number, (long long)type, name);
}

static bool refuse_read_only(const char *name)
{
    return hy3d_py_value_error("%s is read-only: results cannot be written there.", name);
}

static bool check_dims(const char *name, int64_t ndim)
{
    if (ndim < 1 || ndim > HY3D_TENSOR_DIMS) {
        hy3d_py_value_error("%s has %lld dimensions: it needs 1 to %d.", name, (long long)ndim,
                            HY3D_TENSOR_DIMS);
        return false;
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
        return refuse_device(name, source->device.device_type, source->device.device_id);
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

/* The DLTensor of a fresh capsule, whose deleter is the view's to call from here on: whoever
 * renames the capsule owns what is in it, and two threads that are handed the same one must not
 * both do so. NULL where it is not fresh, or with an exception. */
static const DLTensor *take_managed(PyObject *capsule, hy3d_py_view *view)
{
    const DLTensor *tensor = NULL;
    HY3D_PY_LOCK(capsule);
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *const taken = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (PyCapsule_SetName(capsule, "used_dltensor_versioned") == 0) {
            view->versioned = taken;
            tensor = &taken->dl_tensor;
        }
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        DLManagedTensor *const taken = PyCapsule_GetPointer(capsule, "dltensor");
        if (PyCapsule_SetName(capsule, "used_dltensor") == 0) {
            view->managed = taken;
            tensor = &taken->dl_tensor;
        }
    }
    HY3D_PY_UNLOCK();
    return tensor;
}

/* What a versioned capsule says beside its tensor. */
static bool check_versioned(const DLManagedTensorVersioned *managed, const char *name,
                            bool writable)
{
    if (managed->version.major != DL_MAJOR) {
        return hy3d_py_value_error(
            "%s came as DLPack %lu.%lu: version %d is understood; pass a copy of it, as a NumPy "
            "array or a torch tensor.",
            name, (unsigned long)managed->version.major, (unsigned long)managed->version.minor,
            DL_MAJOR);
    }
    if (writable && (managed->flags & DL_READ_ONLY) != 0) {
        return refuse_read_only(name);
    }
    if (writable && (managed->flags & DL_IS_COPIED) != 0) {
        return hy3d_py_value_error("%s came as a copy through DLPack: results written there would "
                                   "be lost, so pass an ordinary array.",
                                   name);
    }
    return true;
}

static bool consume_capsule(PyObject *capsule, const char *name, bool writable, hy3d_py_view *view)
{
    const DLTensor *const tensor = take_managed(capsule, view);
    if (tensor == NULL) {
        return PyErr_Occurred() == NULL &&
               hy3d_py_type_error("%s.__dlpack__() gave no fresh 'dltensor' capsule but %R.", name,
                                  (PyObject *)Py_TYPE(capsule));
    }
    return (view->versioned == NULL || check_versioned(view->versioned, name, writable)) &&
           fill_from_dlpack(tensor, name, view);
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
    return good && (host_device(pair[0]) || refuse_device(name, pair[0], pair[1]));
}

/* -1 an exception that must pass; 0 without the attribute, or where it fails; 1 with it. */
static int get_attribute(PyObject *object, const char *attribute, PyObject **out)
{
    *out = PyObject_GetAttrString(object, attribute);
    if (*out != NULL) {
        return 1;
    }
    if (!hy3d_py_may_skip()) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* The same of `object.method() is True`. */
static int says_true(PyObject *object, const char *method)
{
    PyObject *function = NULL;
    const int has = get_attribute(object, method, &function);
    if (has <= 0) {
        return has;
    }
    PyObject *const answer = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    if (answer == NULL) {
        if (!hy3d_py_may_skip()) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    const int is_true = answer == Py_True;
    Py_DECREF(answer);
    return is_true;
}

/* DLPack tells addresses alone: torch leaves out that what lies there counts negated. */
static bool check_negative_bit(PyObject *object, const char *name)
{
    const int negative = says_true(object, "is_neg");
    if (negative > 0) {
        hy3d_py_value_error(
            "%s is a lazily negated view (torch's negative bit), whose memory holds "
            "other values: pass %s.resolve_neg().",
            name, name);
    }
    return negative == 0;
}

/* A producer's capsule: of version 1, or of the one before where it knows none. */
static PyObject *ask_for_capsule(PyObject *method)
{
    PyObject *const none = PyTuple_New(0);
    PyObject *const version = Py_BuildValue("{s:(ii)}", "max_version", DL_MAJOR, DL_MINOR);
    PyObject *capsule = NULL;
    if (none != NULL && version != NULL) {
        capsule = PyObject_Call(method, none, version);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_CallNoArgs(method);
        }
    }
    Py_XDECREF(version);
    Py_XDECREF(none);
    return capsule;
}

/* What an object's layout is called, where it has one that is not strided; else NULL. */
static PyObject *odd_layout(PyObject *object)
{
    PyObject *layout = NULL;
    if (get_attribute(object, "layout", &layout) <= 0) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *text = PyObject_Str(layout);
    Py_DECREF(layout);
    if (text == NULL || PyUnicode_CompareWithASCIIString(text, "torch.strided") == 0) {
        PyErr_Clear();
        Py_CLEAR(text);
    }
    return text;
}

static bool requires_grad(PyObject *object)
{
    PyObject *value = NULL;
    const bool is_true = get_attribute(object, "requires_grad", &value) > 0 && value == Py_True;
    Py_XDECREF(value);
    PyErr_Clear();
    return is_true;
}

/* Replaces the producer's exception by a sentence that quotes it and says what helps. */
static void explain_refusal(PyObject *object, const char *name)
{
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        return;
    }
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *const said = value == NULL ? Py_None : value;
    PyObject *const layout = odd_layout(object);
    if (layout != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "%s could not be read through DLPack (%S). Its layout is %S, and the C core "
                     "takes dense arrays: pass %s.to_dense().",
                     name, said, layout, name);
    } else if (requires_grad(object)) {
        PyErr_Format(
            PyExc_ValueError,
            "%s could not be read through DLPack (%S). A tensor that requires grad must be "
            "detached first: the C core has no backward pass.",
            name, said);
    } else {
        PyErr_Format(PyExc_ValueError,
                     "%s could not be read through DLPack (%S). The C core takes dense arrays of "
                     "f32, f64, f16 or bf16 in CPU memory.",
                     name, said);
    }
    Py_XDECREF(layout);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static bool acquire_dlpack(PyObject *object, PyObject *method, const char *name, bool writable,
                           hy3d_py_view *view)
{
    if (!check_dlpack_device(object, name) || !check_negative_bit(object, name)) {
        return false;
    }
    PyObject *const capsule = ask_for_capsule(method);
    if (capsule == NULL) {
        return false;
    }
    const bool good = consume_capsule(capsule, name, writable, view);
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
            refuse_read_only(name);
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

static bool acquire(PyObject *object, const char *name, bool writable, hy3d_py_view *view)
{
    PyObject *method = NULL;
    const int dlpack = get_attribute(object, "__dlpack__", &method);
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
    const bool good = acquire_dlpack(object, method, name, writable, view);
    Py_DECREF(method);
    if (good) {
        return true;
    }
    /* NumPy before 2.1 refuses DLPack for read-only arrays; their buffer serves as well. */
    const bool retry = view->managed == NULL && view->versioned == NULL &&
                       PyErr_ExceptionMatches(PyExc_BufferError) && PyObject_CheckBuffer(object);
    if (!retry) {
        explain_refusal(object, name);
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
    if (acquire(object, name, writable, view) &&
        hy3d_py_view_check(name, writable, &view->tensor)) {
        return true;
    }
    hy3d_py_view_release(view);
    return false;
}

void hy3d_py_view_release(hy3d_py_view *view)
{
    DLManagedTensor *const managed = view->managed;
    DLManagedTensorVersioned *const versioned = view->versioned;
    const bool has_buffer = view->has_buffer;
    view->managed = NULL;
    view->versioned = NULL;
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
    if (versioned != NULL && versioned->deleter != NULL) {
        versioned->deleter(versioned);
    }
    if (has_buffer) {
        PyBuffer_Release(&view->buffer);
    }
    PyErr_Restore(type, value, trace);
}

int hy3d_py_tensor_words(PyObject *capsule, PyObject *object, int64_t *words)
{
    const DLPackExchangeAPI *const table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (table == NULL) {
        return -1;
    }
    if (table->header.version.major != DL_MAJOR || table->describe == NULL) {
        return 0;
    }
    DLTensor tensor = {.data = NULL};
    if (table->describe(object, &tensor) != 0) {
        if (!hy3d_py_may_skip()) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    if (tensor.ndim < 0 || tensor.ndim > HY3D_TENSOR_DIMS || tensor.shape == NULL ||
        tensor.strides == NULL) {
        return 0;
    }
    words[0] = tensor.ndim;
    words[1] = (int64_t)tensor.dtype.code << 24 | tensor.dtype.bits << 16 | tensor.dtype.lanes;
    words[2] = (int64_t)tensor.device.device_type << 32 | (uint32_t)tensor.device.device_id;
    for (int i = 0; i < tensor.ndim; i++) {
        words[3 + 2 * i] = tensor.shape[i];
        words[4 + 2 * i] = tensor.shape[i] > 1 ? tensor.strides[i] : 0;
    }
    return 3 + 2 * tensor.ndim;
}
