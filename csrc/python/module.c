/* The module hy3d_rocm._core: its table, its state, its life. */
#include "python/core.h"

#define FUNCTION(name, doc)                                                                        \
    {#name, (PyCFunction)(void (*)(void))hy3d_py_##name, METH_VARARGS | METH_KEYWORDS, doc}
#define PLAIN(name, doc) {#name, hy3d_py_##name, METH_NOARGS, doc}

/* Signatures and meanings are in _core.pyi; these lines are what help() shows. */
static PyMethodDef functions[] = {
    FUNCTION(conv3d, "3D convolution on the CPU into `out`; (strategy, threads, workspace_bytes)."),
    FUNCTION(conv3d_format, "(format, name, bytes): the layout that a convolution's weights take."),
    FUNCTION(conv3d_prepare, "Weights in a layout, transformed once; PreparedWeights."),
    FUNCTION(fingerprint, "Two numbers that stand for all bytes of an array."),
    FUNCTION(conv3d_out_size, "Output size (T, H, W) of a 3D convolution."),
    FUNCTION(resolve_device, "(device, rule): where a pipeline computes and which rule said so."),
    FUNCTION(seed_image, "Seed of one image of a batch; image 0 has the seed itself."),
    FUNCTION(schedule_plan, "Plans a decode under a budget; a dictionary."),
    FUNCTION(schedule_tile, "One tile of a plan; a dictionary."),
    FUNCTION(schedule_window, "Blend window as a memoryview of float32."),
    FUNCTION(compile_schedule, "Compiles a graph and a request into a Schedule."),
    FUNCTION(graph_sizes, "(channels, frames, rows, columns) of each value of a graph."),
    FUNCTION(route, "Which tiers compute a convolution, best first, and why not the others."),
    FUNCTION(blend_accumulate, "out += tile * window_t * window_h * window_w."),
    FUNCTION(channel_moments, "Mean and sum of squared deviations of each channel."),
    FUNCTION(rasterize, "Which face is seen at each pixel of a picture, and where on it."),
    FUNCTION(interpolate, "Attributes of vertices at the pixels of a picture, into `out`."),
    FUNCTION(scatter, "Points with values into a texture: weighted means."),
    FUNCTION(vertex_normals, "Smooth normals of a mesh's vertices."),
    FUNCTION(inpaint_vertices, "Fills a texture's unknown vertices, in place."),
    PLAIN(cpu_info, "CPU level in use, the best one, the thread limit."),
    PLAIN(blas_info, "Loads the BLAS library and describes it."),
    FUNCTION(peak_run, "Runs chains of multiply-adds; how many operations that were."),
    PLAIN(trim, "Frees the workspace that is kept from call to call."),
    {NULL, NULL, 0, NULL},
};

hy3d_py_state *hy3d_py_get_state(PyObject *module)
{
    return PyModule_GetState(module);
}

/* Who loads the module by hand can have it take its memory from elsewhere: by a capsule
 * "hy3d_allocator", set as the module's attribute `allocator` before it is executed. */
static bool find_allocator(PyObject *module, const hy3d_allocator **allocator_out)
{
    PyObject *const capsule = PyDict_GetItemString(PyModule_GetDict(module), "allocator");
    if (capsule == NULL) {
        return true;
    }
    const hy3d_allocator *const found = PyCapsule_GetPointer(capsule, "hy3d_allocator");
    if (found != NULL && (found->allocate == NULL || found->deallocate == NULL)) {
        return hy3d_py_value_error("allocator must have both its functions, allocate and "
                                   "deallocate.");
    }
    *allocator_out = found;
    return found != NULL;
}

static int make_context(PyObject *module, hy3d_py_state *state)
{
    hy3d_context_options options = {.cpu_level = NULL};
    if (!find_allocator(module, &options.allocator)) {
        return -1;
    }
    const hy3d_status status = hy3d_context_create(&options, &state->context);
    if (status == HY3D_OK) {
        return 0;
    }
    if (status != HY3D_ERR_INVALID_ARGUMENT) {
        hy3d_py_raise(state, status, NULL);
        return -1;
    }
    /* Python's copy of the environment: the C library of this module may have another. */
    PyObject *const os = PyImport_ImportModule("os");
    if (os != NULL) {
        PyObject *const level = PyObject_CallMethod(os, "getenv", "s", "HY3D_CPU");
        Py_DECREF(os);
        if (level != NULL) {
            hy3d_py_raise(state, status,
                          "HY3D_CPU is '%.40S': it must be ref, avx2 or avx512, or not be set.",
                          level);
            Py_DECREF(level);
        }
    }
    return -1;
}

static int module_exec(PyObject *module)
{
    hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_fingerprint_keys_make(&state->fingerprint_keys);
    if (hy3d_py_find_main_thread(state) != 0) {
        return -1;
    }
    state->error = hy3d_py_error_create();
    if (state->error == NULL || PyModule_AddObjectRef(module, "Hy3dError", state->error) != 0) {
        return -1;
    }
    if (make_context(module, state) != 0) {
        return -1;
    }
    if (hy3d_py_cancel_register(module, state) != 0) {
        return -1;
    }
    if (hy3d_py_prepared_register(module, state) != 0) {
        return -1;
    }
    if (hy3d_py_admission_register(module, state) != 0) {
        return -1;
    }
    if (hy3d_py_calls_register(module, state) != 0) {
        return -1;
    }
    if (hy3d_py_rates_register(module, state) != 0) {
        return -1;
    }
    return hy3d_py_program_register(module, state);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    if (state != NULL) {
        Py_VISIT(state->error);
        Py_VISIT(state->cancel_type);
        Py_VISIT(state->prepared_type);
        Py_VISIT(state->schedule_type);
        Py_VISIT(state->program_type);
        Py_VISIT(state->rates_type);
        Py_VISIT(state->calls_type);
        Py_VISIT(state->admission_type);
    }
    return 0;
}

static int module_clear(PyObject *module)
{
    hy3d_py_state *const state = hy3d_py_get_state(module);
    if (state != NULL) {
        Py_CLEAR(state->error);
        Py_CLEAR(state->cancel_type);
        Py_CLEAR(state->prepared_type);
        Py_CLEAR(state->schedule_type);
        Py_CLEAR(state->program_type);
        Py_CLEAR(state->rates_type);
        Py_CLEAR(state->calls_type);
        Py_CLEAR(state->admission_type);
    }
    return 0;
}

/* The context goes last: cancel flags and prepared weights hold a reference to the module, so none
 * is left here. */
static void module_free(void *module)
{
    hy3d_py_state *const state = hy3d_py_get_state(module);
    if (state != NULL) {
        module_clear(module);
        hy3d_context_destroy(state->context);
        state->context = NULL;
    }
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
    /* True because nothing of ours relied on the GIL: the state is written once, flags and the
     * context are atomic or locked, and containers of callers are copied before they are read. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hy3d_rocm._core",
    .m_doc = "C core of hy3d_rocm. Private: use the functions of hy3d_rocm.",
    .m_size = (Py_ssize_t)sizeof(hy3d_py_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

/* NOLINTNEXTLINE(misc-use-internal-linkage): Python finds it by its name */
PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
