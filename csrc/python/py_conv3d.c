/* conv3d: arguments and views to a plan, its workspace and its run. */
#include "python/conv_args.h"
#include "python/py_prepared.h"

/* What happens without the GIL: nothing here is a Python object. */
typedef struct job {
    const hy3d_py_conv *conv;
    const hy3d_cancel *cancel;
    hy3d_status status;
    size_t needed;
    size_t workspace_bytes;
    uint32_t threads;
    const char *strategy; /* a static text */
} job;

static void run_job(job *task)
{
    const hy3d_py_conv *const conv = task->conv;
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    task->status = hy3d_conv3d_plan_create_prepared(
        conv->context, &conv->desc, hy3d_py_conv_tensor(conv, HY3D_PY_WEIGHT),
        hy3d_py_conv_tensor(conv, HY3D_PY_BIAS), conv->prepared, &task->needed, &plan);
    if (task->status != HY3D_OK) {
        return;
    }
    task->workspace_bytes = hy3d_conv3d_plan_workspace_bytes(plan);
    task->threads = hy3d_conv3d_plan_threads(plan);
    task->strategy = hy3d_conv3d_plan_strategy(plan);
    if (task->workspace_bytes > 0) {
        task->status = hy3d_workspace_take(conv->context, task->workspace_bytes, &workspace);
    }
    if (task->status == HY3D_OK) {
        task->status =
            hy3d_conv3d_run_fused(plan, hy3d_py_conv_tensor(conv, HY3D_PY_X), &conv->fusion,
                                  hy3d_py_conv_tensor(conv, HY3D_PY_OUT), workspace, task->cancel);
        hy3d_workspace_give(conv->context, workspace);
    }
    hy3d_conv3d_plan_destroy(plan);
}

static PyObject *raise_job(const hy3d_py_state *state, const job *task)
{
    const hy3d_py_conv *const conv = task->conv;
    PyObject *const limit = conv->objects[HY3D_PY_WORKSPACE_LIMIT];
    const hy3d_status status = task->status;
    if (status == HY3D_ERR_WORKSPACE_TOO_SMALL) {
        return hy3d_py_raise(state, status,
                             "workspace_limit is %R bytes, but one grain of this convolution needs "
                             "%zu: raise it or leave it out.",
                             limit == NULL ? Py_None : limit, task->needed);
    }
    if (status == HY3D_ERR_BLAS_UNAVAILABLE) {
        return hy3d_py_raise(state, status, "No usable BLAS library: %s",
                             hy3d_context_blas_error(conv->context));
    }
    if (status == HY3D_ERR_OUT_OF_MEMORY) {
        return hy3d_py_raise(state, status,
                             "No memory for the plan or its workspace (%zu bytes): a smaller "
                             "workspace_limit or fewer threads need less.",
                             task->workspace_bytes);
    }
    if (status == HY3D_ERR_CANCELLED) {
        return hy3d_py_raise(state, status,
                             "The convolution was cancelled; out is partly written.");
    }
    if (status == HY3D_ERR_INVALID_ARGUMENT && conv->prepared != NULL &&
        !hy3d_py_prepared_check(state, conv->objects[HY3D_PY_PREPARED], &conv->desc)) {
        return NULL;
    }
    return hy3d_py_conv_raise(state, status, &conv->desc);
}

/* Runs a convolution whose arguments fit together; a new reference, or NULL. */
static PyObject *compute(const hy3d_py_state *state, const hy3d_py_conv *conv)
{
    job task = {.conv = conv, .strategy = ""};
    hy3d_py_compute compute;
    task.cancel = hy3d_py_compute_begin(&compute, state, conv->cancel);
    run_job(&task);
    task.status = hy3d_py_compute_end(&compute, task.status);
    return task.status != HY3D_OK
               ? raise_job(state, &task)
               : Py_BuildValue("(sIn)", task.strategy, (unsigned int)task.threads,
                               (Py_ssize_t)task.workspace_bytes);
}

PyObject *hy3d_py_conv3d(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const uint8_t rows[] = {
        HY3D_PY_X,         HY3D_PY_WEIGHT,   HY3D_PY_BIAS,       HY3D_PY_OUT,
        HY3D_PY_STRIDE,    HY3D_PY_DILATION, HY3D_PY_PAD_BEFORE, HY3D_PY_PAD_AFTER,
        HY3D_PY_PAD_MODES, HY3D_PY_GROUPS,   HY3D_PY_THREADS,    HY3D_PY_WORKSPACE_LIMIT,
        HY3D_PY_CANCEL,    HY3D_PY_ACCURACY, HY3D_PY_PREPARED,   HY3D_PY_FRAMES,
        HY3D_PY_SCALE,     HY3D_PY_SHIFT,    HY3D_PY_ACTIVATION, HY3D_PY_UPSAMPLE,
        HY3D_PY_RESIDUAL,  HY3D_PY_PAIRS};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_py_conv conv;
    if (!hy3d_py_conv_read(state, "OOOOOOOOOO|OOOOOOOOOOOO:conv3d", rows, args, kwargs, &conv)) {
        return NULL;
    }
    PyObject *const result = hy3d_py_conv_check(state, &conv) ? compute(state, &conv) : NULL;
    hy3d_py_conv_release(&conv);
    return result;
}

PyObject *hy3d_py_conv3d_out_size(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static const uint8_t rows[] = {HY3D_PY_IN_SIZE,  HY3D_PY_KERNEL,     HY3D_PY_STRIDE,
                                   HY3D_PY_DILATION, HY3D_PY_PAD_BEFORE, HY3D_PY_PAD_AFTER};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_py_conv conv;
    int64_t size[3];
    if (!hy3d_py_conv_read(state, "OOOOOO:conv3d_out_size", rows, args, kwargs, &conv)) {
        return NULL;
    }
    const hy3d_status status = hy3d_conv3d_out_size(&conv.desc, size);
    PyObject *const result =
        status == HY3D_OK ? hy3d_py_tuple3(size) : hy3d_py_conv_raise(state, status, &conv.desc);
    hy3d_py_conv_release(&conv);
    return result;
}
