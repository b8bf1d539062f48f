/* What must hold for a view, whichever protocol it came by. Knows neither of them. */
#include "python/view.h"

/* Sufficient for "every element has its own address": sorted by stride, each dimension steps over
 * all that lies inside it. Slices, permutations and flips of an ordinary array pass. */
static bool elements_are_distinct(const hy3d_tensor *tensor)
{
    int64_t stride[HY3D_TENSOR_DIMS];
    int64_t size[HY3D_TENSOR_DIMS];
    int count = 0;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tensor->size[i] == 0) {
            return true;
        }
        if (tensor->size[i] == 1) {
            continue;
        }
        const int64_t step = tensor->stride[i] < 0 ? -tensor->stride[i] : tensor->stride[i];
        int place = count++;
        for (; place > 0 && stride[place - 1] > step; place--) {
            stride[place] = stride[place - 1];
            size[place] = size[place - 1];
        }
        stride[place] = step;
        size[place] = tensor->size[i];
    }
    int64_t inside = 0;
    for (int i = 0; i < count; i++) {
        if (stride[i] <= inside) {
            return false;
        }
        inside += stride[i] * (size[i] - 1);
    }
    return true;
}

/* What holds for both protocols once the tensor is filled in. */
bool hy3d_py_view_check(const char *name, bool writable, const hy3d_tensor *tensor)
{
    int64_t elements = 1;
    int64_t low;
    int64_t high;
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        if (tensor->size[i] < 0) {
            return hy3d_py_value_error("%s has size %lld in dimension %d.", name,
                                       (long long)tensor->size[i], i);
        }
        if (__builtin_mul_overflow(elements, tensor->size[i], &elements)) {
            return hy3d_py_value_error("%s has more than 2**63 elements.", name);
        }
    }
    if (hy3d_tensor_range(tensor, &low, &high) != HY3D_OK) {
        return hy3d_py_value_error("%s spans more than 2**63 bytes.", name);
    }
    if (elements != 0 && tensor->data == NULL) {
        return hy3d_py_value_error("%s has elements but no memory.", name);
    }
    if (elements != 0 && (uintptr_t)tensor->data % hy3d_dtype_bytes(tensor->dtype) != 0) {
        return hy3d_py_value_error(
            "%s is not aligned to its element size: pass an aligned copy of it.", name);
    }
    if (writable && !elements_are_distinct(tensor)) {
        return hy3d_py_value_error(
            "%s has several elements at one address (an expanded or overlapping view): results "
            "cannot be written there, pass an ordinary array.",
            name);
    }
    return true;
}

bool hy3d_py_view_bytes(const hy3d_py_view *view, const void **first_out, size_t *bytes_out)
{
    const hy3d_tensor *const tensor = &view->tensor;
    int64_t low;
    int64_t high;
    int64_t bytes = (int64_t)hy3d_dtype_bytes(tensor->dtype);
    for (int i = 0; i < HY3D_TENSOR_DIMS; i++) {
        bytes *= tensor->size[i]; /* hy3d_py_view_check has multiplied them before */
    }
    if (hy3d_tensor_range(tensor, &low, &high) != HY3D_OK || high - low != bytes ||
        !elements_are_distinct(tensor)) {
        return false;
    }
    *first_out = bytes == 0 ? NULL : (const char *)tensor->data + low;
    *bytes_out = (size_t)bytes;
    return true;
}

bool hy3d_py_view_overlaps(const hy3d_py_view *a, const hy3d_py_view *b)
{
    int64_t low[2];
    int64_t high[2];
    if (hy3d_tensor_range(&a->tensor, &low[0], &high[0]) != HY3D_OK ||
        hy3d_tensor_range(&b->tensor, &low[1], &high[1]) != HY3D_OK) {
        return true;
    }
    /* Unsigned arithmetic: addresses are compared, never followed. */
    const uintptr_t first = (uintptr_t)a->tensor.data;
    const uintptr_t second = (uintptr_t)b->tensor.data;
    return first + (uintptr_t)low[0] < second + (uintptr_t)high[1] &&
           second + (uintptr_t)low[1] < first + (uintptr_t)high[0];
}
