/* PreparedWeights, and the two functions that lead to one. */
#include "python/py_prepared.h"

#include <string.h>

#include "python/conv_args.h"

typedef struct prepared_object {
    PyObject_HEAD
    hy3d_conv3d_weights *weights;
    int64_t size[HY3D_TENSOR_DIMS]; /* of the weights they were made from */
    PyObject *module;               /* keeps the context alive that the memory belongs to */
} prepared_object;

static prepared_object *cast(PyObject *self)
{
    void *const memory = self;
    return memory;
}

static int prepared_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(cast(self)->module);
    return 0;
}

/* No tp_clear, as for CancelFlag: the module is needed until the memory has gone back. */
static void prepared_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    prepared_object *const object = cast(self);
    PyObject_GC_UnTrack(self);
    hy3d_conv3d_weights_destroy(object->weights);
    Py_XDECREF(object->module);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *prepared_format(PyObject *self, void *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLong(hy3d_conv3d_weights_format(cast(self)->weights));
}

static PyObject *prepared_nbytes(PyObject *self, void *ignored)
{
    (void)ignored;
    return PyLong_FromSize_t(hy3d_conv3d_weights_bytes(cast(self)->weights));
}

static PyObject *size_tuple(const int64_t size[HY3D_TENSOR_DIMS])
{
    return Py_BuildValue("(LLLLL)", (long long)size[0], (long long)size[1], (long long)size[2],
                         (long long)size[3], (long long)size[4]);
}

static PyGetSetDef prepared_getset[] = {
    {"format", prepared_format, NULL, "The layout's number, as conv3d_format gives it.", NULL},
    {"nbytes", prepared_nbytes, NULL, "Bytes that are held.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot prepared_slots[] = {
    {Py_tp_doc, "Weights transformed once, for any number of conv3d calls, at once too."},
    {Py_tp_dealloc, prepared_dealloc},
    {Py_tp_traverse, prepared_traverse},
    {Py_tp_getset, prepared_getset},
    {0, NULL},
};

static PyType_Spec prepared_spec = {
    .name = "hy3d_rocm._core.PreparedWeights",
    .basicsize = (int)sizeof(prepared_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = prepared_slots,
};

int hy3d_py_prepared_register(PyObject *module, hy3d_py_state *state)
{
    state->prepared_type = PyType_FromModuleAndSpec(module, &prepared_spec, NULL);
    if (state->prepared_type == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PreparedWeights", state->prepared_type);
}

bool hy3d_py_prepared_from(const hy3d_py_state *state, PyObject *value,
                           const hy3d_conv3d_weights **out)
{
    /* Those of another copy of the module have another type, and another context. */
    if ((PyObject *)Py_TYPE(value) != state->prepared_type) {
        return hy3d_py_type_error("prepared must be a PreparedWeights or None, not %R.",
                                  (PyObject *)Py_TYPE(value));
    }
    *out = cast(value)->weights;
    return true;
}

static bool refuse_sizes(const int64_t had[HY3D_TENSOR_DIMS],
                         const int64_t wanted[HY3D_TENSOR_DIMS])
{
    PyObject *const a = size_tuple(had);
    PyObject *const b = size_tuple(wanted);
    if (a != NULL && b != NULL) {
        hy3d_py_value_error("prepared was made from weights %R, but weight is %R: prepare these.",
                            a, b);
    }
    Py_XDECREF(a);
    Py_XDECREF(b);
    return false;
}

bool hy3d_py_prepared_check(const hy3d_py_state *state, PyObject *value,
                            const hy3d_conv3d_desc *desc)
{
    const int64_t wanted[HY3D_TENSOR_DIMS] = {desc->out_channels, desc->in_channels / desc->groups,
                                              desc->kernel[0], desc->kernel[1], desc->kernel[2]};
    const hy3d_conv3d_format had = hy3d_conv3d_weights_format(cast(value)->weights);
    hy3d_conv3d_format format = HY3D_FORMAT_NONE;
    if (memcmp(wanted, cast(value)->size, sizeof wanted) != 0) {
        return refuse_sizes(cast(value)->size, wanted);
    }
    const hy3d_status status = hy3d_conv3d_choose_format(state->context, desc, &format);
    if (status != HY3D_OK) {
        hy3d_py_conv_raise(state, status, desc);
        return false;
    }
    if (format != had) {
        return hy3d_py_value_error("prepared has the layout '%s', but this convolution takes '%s': "
                                   "ask conv3d_format for its shape and accuracy.",
                                   hy3d_conv3d_format_name(had), hy3d_conv3d_format_name(format));
    }
    return true;
}

static PyObject *raise_job(const hy3d_py_state *state, hy3d_status status, const hy3d_py_conv *conv)
{
    const hy3d_tensor *const weight = &hy3d_py_conv_view(conv, HY3D_PY_WEIGHT)->tensor;
    const int64_t *const size = weight->size;
    if (status == HY3D_ERR_OUT_OF_MEMORY) {
        return hy3d_py_raise(state, status,
                             "No memory for prepared weights (%zu bytes): call without them.",
                             hy3d_conv3d_format_bytes(conv->format, size[0], size[1], &size[2]));
    }
    if (status == HY3D_ERR_CANCELLED) {
        return hy3d_py_raise(state, status, "The preparation of weights was cancelled.");
    }
    PyObject *const sizes = size_tuple(size);
    if (sizes != NULL) {
        hy3d_py_raise(state, status,
                      "Weights %R of %s cannot be prepared in the layout %u ('%s'), %s: take the "
                      "layout that conv3d_format gives.",
                      sizes, hy3d_dtype_name(weight->dtype), (unsigned int)conv->format,
                      hy3d_conv3d_format_name(conv->format), hy3d_status_text(status));
        Py_DECREF(sizes);
    }
    return NULL;
}

/* The weights first: the collector shows the object to other threads as soon as it is there. */
static PyObject *prepare(PyObject *module, const hy3d_py_state *state, const hy3d_py_conv *conv)
{
    const hy3d_tensor *const weight = &hy3d_py_conv_view(conv, HY3D_PY_WEIGHT)->tensor;
    hy3d_conv3d_weights *weights = NULL;
    hy3d_py_compute compute;
    const hy3d_cancel *const cancel = hy3d_py_compute_begin(&compute, state, conv->cancel);
    hy3d_status status = hy3d_conv3d_weights_create(state->context, weight, conv->format,
                                                    conv->desc.num_threads, cancel, &weights);
    status = hy3d_py_compute_end(&compute, status);
    if (status != HY3D_OK) {
        hy3d_conv3d_weights_destroy(weights); /* interrupted after the last of the work */
        return raise_job(state, status, conv);
    }
    void *const type = state->prepared_type;
    /* NULL once the garbage collector has cleared the module. */
    PyObject *const self = type == NULL ? PyErr_NoMemory() : PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        hy3d_conv3d_weights_destroy(weights);
        return NULL;
    }
    prepared_object *const object = cast(self);
    object->weights = weights;
    Py_INCREF(module);
    object->module = module;
    memcpy(object->size, weight->size, sizeof object->size);
    return self;
}

PyObject *hy3d_py_conv3d_prepare(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const uint8_t rows[] = {HY3D_PY_WEIGHT, HY3D_PY_FORMAT, HY3D_PY_THREADS, HY3D_PY_CANCEL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_py_conv conv;
    if (!hy3d_py_conv_read(state, "OO|OO:conv3d_prepare", rows, args, kwargs, &conv)) {
        return NULL;
    }
    PyObject *const result = prepare(module, state, &conv);
    hy3d_py_conv_release(&conv);
    return result;
}

static bool check_upsample(const hy3d_conv3d_desc *desc)
{
    for (int i = 0; i < 3; i++) {
        if (desc->in_size[i] % desc->upsample[i] != 0) {
            return hy3d_py_value_error(
                "in_size has %lld positions, which are no whole number of %lld "
                "repeats: it counts up-sampled ones.",
                (long long)desc->in_size[i], (long long)desc->upsample[i]);
        }
    }
    return true;
}

/* Sizes in place of arrays. */
static bool read_desc(const hy3d_py_state *state, PyObject *args, PyObject *kwargs,
                      hy3d_conv3d_desc *desc)
{
    static const uint8_t rows[] = {HY3D_PY_IN_SIZE,    HY3D_PY_IN_CHANNELS, HY3D_PY_OUT_CHANNELS,
                                   HY3D_PY_KERNEL,     HY3D_PY_STRIDE,      HY3D_PY_DILATION,
                                   HY3D_PY_PAD_BEFORE, HY3D_PY_PAD_AFTER,   HY3D_PY_PAD_MODES,
                                   HY3D_PY_GROUPS,     HY3D_PY_DTYPE,       HY3D_PY_ACCURACY,
                                   HY3D_PY_UPSAMPLE,   HY3D_PY_BATCH,       HY3D_PY_PAIRS};
    hy3d_py_conv conv;
    if (!hy3d_py_conv_read(state, "OOOOOOOOOOOO|OOO:conv3d_format", rows, args, kwargs, &conv)) {
        return false;
    }
    *desc = conv.desc;
    hy3d_py_conv_release(&conv);
    return hy3d_py_conv_groups(desc) && hy3d_py_conv_pairs(desc) && check_upsample(desc);
}

PyObject *hy3d_py_conv3d_format(PyObject *module, PyObject *args, PyObject *kwargs)
{
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_conv3d_desc desc;
    hy3d_conv3d_format format = HY3D_FORMAT_NONE;
    if (!read_desc(state, args, kwargs, &desc)) {
        return NULL;
    }
    const hy3d_status status = hy3d_conv3d_choose_format(state->context, &desc, &format);
    if (status != HY3D_OK) {
        return hy3d_py_conv_raise(state, status, &desc);
    }
    const size_t bytes =
        hy3d_conv3d_format_bytes(format, desc.out_channels, desc.in_channels, desc.kernel);
    return Py_BuildValue("(Isn)", (unsigned int)format, hy3d_conv3d_format_name(format),
                         (Py_ssize_t)bytes);
}
