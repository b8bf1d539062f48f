/* conv3d: arguments and views to a plan, its workspace and its run. */
#include "hy3d/conv3d.h"

#include "python/conv_args.h"
#include "python/core.h"
#include "python/py_prepared.h"

/* What happens without the GIL: nothing here is a Python object. */
typedef struct job {
    hy3d_context *context;
    const hy3d_py_conv *conv;
    const hy3d_conv3d_weights *prepared;
    const hy3d_cancel *cancel;
    hy3d_status status;
    size_t needed;
    size_t workspace_bytes;
    uint32_t threads;
    const char *strategy; /* a static text */
} job;

static const hy3d_tensor *tensor_or_null(const hy3d_py_view *view, bool there)
{
    return there ? &view->tensor : NULL;
}

static void run_job(job *task)
{
    const hy3d_py_conv *const conv = task->conv;
    hy3d_conv3d_plan *plan = NULL;
    void *workspace = NULL;
    task->status = hy3d_conv3d_plan_create_prepared(
        task->context, &conv->desc, &conv->views[HY3D_PY_WEIGHT].tensor,
        tensor_or_null(&conv->views[HY3D_PY_BIAS], conv->has_bias), task->prepared, &task->needed,
        &plan);
    if (task->status != HY3D_OK) {
        return;
    }
    task->workspace_bytes = hy3d_conv3d_plan_workspace_bytes(plan);
    task->threads = hy3d_conv3d_plan_threads(plan);
    task->strategy = hy3d_conv3d_plan_strategy(plan);
    if (task->workspace_bytes > 0) {
        task->status = hy3d_workspace_take(task->context, task->workspace_bytes, &workspace);
    }
    if (task->status == HY3D_OK) {
        task->status = hy3d_conv3d_run_fused(
            plan, tensor_or_null(&conv->views[HY3D_PY_X], conv->has_x), &conv->fusion.core,
            &conv->views[HY3D_PY_OUT].tensor, workspace, task->cancel);
        hy3d_workspace_give(task->context, workspace);
    }
    hy3d_conv3d_plan_destroy(plan);
}

static PyObject *raise_job(const hy3d_py_state *state, const job *task, PyObject *limit)
{
    const hy3d_status status = task->status;
    switch (status) {
    case HY3D_ERR_WORKSPACE_TOO_SMALL:
        return hy3d_py_raise(state, status,
                             "workspace_limit is %R bytes, but one grain of this convolution needs "
                             "%zu: raise it or leave it out.",
                             limit == NULL ? Py_None : limit, task->needed);
    case HY3D_ERR_BLAS_UNAVAILABLE:
        return hy3d_py_raise(state, status, "No usable BLAS library: %s",
                             hy3d_context_blas_error(state->context));
    case HY3D_ERR_OUT_OF_MEMORY:
        return hy3d_py_raise(state, status,
                             "No memory for the plan or its workspace (%zu bytes): a smaller "
                             "workspace_limit or fewer threads need less.",
                             task->workspace_bytes);
    case HY3D_ERR_CANCELLED:
        return hy3d_py_raise(state, status,
                             "The convolution was cancelled; out is partly written.");
    case HY3D_OK:
    case HY3D_ERR_INVALID_ARGUMENT:
    case HY3D_ERR_SHAPE_MISMATCH:
    case HY3D_ERR_UNSUPPORTED:
    case HY3D_ERR_OVERFLOW:
    case HY3D_ERR_BUDGET_TOO_SMALL:
    case HY3D_ERR_THREAD:
    default:
        return hy3d_py_conv_raise(state, status, &task->conv->desc);
    }
}

PyObject *hy3d_py_conv3d(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {
        "x",          "weight",    "bias",      "out",    "stride",  "dilation",
        "pad_before", "pad_after", "pad_modes", "groups", "threads", "workspace_limit",
        "cancel",     "accuracy",  "prepared",  "frames", "scale",   "shift",
        "activation", "upsample",  "residual",  NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    hy3d_py_conv_objects o = {0};
    PyObject *cancel = Py_None;
    PyObject *prepared = Py_None;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OOOOOOOOOO|OOOOOOOOOOO:conv3d", keywords, &o.x, &o.weight, &o.bias,
            &o.out, &o.stride, &o.dilation, &o.pad_before, &o.pad_after, &o.pad_modes, &o.groups,
            &o.threads, &o.workspace_limit, &cancel, &o.accuracy, &prepared, &o.frames, &o.scale,
            &o.shift, &o.activation, &o.upsample, &o.residual)) {
        return NULL;
    }
    hy3d_py_conv conv;
    job task = {.context = state->context, .conv = &conv, .strategy = ""};
    if (!hy3d_py_cancel_from(state, cancel, &task.cancel) ||
        !hy3d_py_prepared_from(state, prepared, &task.prepared)) {
        return NULL;
    }
    PyObject *result = NULL;
    /* Whoever passed them may drop them while we compute, or while arrays are asked for theirs. */
    Py_INCREF(cancel);
    Py_INCREF(prepared);
    const bool acquired = hy3d_py_conv_acquire(state, &o, &conv);
    if (acquired) {
        hy3d_py_compute compute;
        task.cancel = hy3d_py_compute_begin(&compute, state, task.cancel);
        run_job(&task);
        task.status = hy3d_py_compute_end(&compute, task.status);
        if (task.status == HY3D_OK) {
            result = Py_BuildValue("(sIn)", task.strategy, (unsigned int)task.threads,
                                   (Py_ssize_t)task.workspace_bytes);
        } else if (task.status != HY3D_ERR_INVALID_ARGUMENT ||
                   hy3d_py_prepared_check(state, prepared, &conv.desc)) {
            result = raise_job(state, &task, o.workspace_limit);
        }
    }
    if (acquired) {
        hy3d_py_conv_release(&conv);
    }
    Py_DECREF(prepared);
    Py_DECREF(cancel);
    return result;
}

PyObject *hy3d_py_conv3d_out_size(PyObject *module, PyObject *args, PyObject *kwargs)
{
    char *keywords[] = {"in_size", "kernel", "stride", "dilation", "pad_before", "pad_after", NULL};
    const hy3d_py_state *const state = hy3d_py_get_state(module);
    PyObject *o[6] = {NULL, NULL, NULL, NULL, NULL, NULL};
    hy3d_conv3d_desc desc = {.in_channels = 1, .out_channels = 1, .groups = 1};
    int64_t *const places[6] = {desc.in_size,  desc.kernel,     desc.stride,
                                desc.dilation, desc.pad_before, desc.pad_after};
    int64_t size[3];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO:conv3d_out_size", keywords, &o[0], &o[1],
                                     &o[2], &o[3], &o[4], &o[5])) {
        return NULL;
    }
    for (int i = 0; i < 6; i++) {
        const int64_t minimum = i < 4 ? 1 : 0;
        if (!hy3d_py_int64_array(o[i], keywords[i], 3, places[i]) ||
            !hy3d_py_at_least(keywords[i], places[i], minimum)) {
            return NULL;
        }
    }
    const hy3d_status status = hy3d_conv3d_out_size(&desc, size);
    return status == HY3D_OK ? hy3d_py_tuple3(size) : hy3d_py_conv_raise(state, status, &desc);
}
