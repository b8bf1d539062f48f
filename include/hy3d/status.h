/* Status codes: one list makes the enum, the names and the texts.
 *
 * Every function that can fail returns hy3d_status and writes its *_out arguments only on
 * HY3D_OK. The codes are part of the ABI: append, never renumber. */
#ifndef HY3D_STATUS_H
#define HY3D_STATUS_H

#include "hy3d/export.h"

/* X(code, value, text). The text says what was wrong in general; the Python layer adds the
 * offending value and the remedy. */
#define HY3D_STATUS_LIST(X)                                                                        \
    X(HY3D_OK, 0, "success")                                                                       \
    X(HY3D_ERR_INVALID_ARGUMENT, 1, "an argument is out of its range")                             \
    X(HY3D_ERR_SHAPE_MISMATCH, 2, "the sizes of the arguments do not fit each other")              \
    X(HY3D_ERR_UNSUPPORTED, 3, "this combination of options is not supported")                     \
    X(HY3D_ERR_OVERFLOW, 4, "a size does not fit in 63 bits")                                      \
    X(HY3D_ERR_OUT_OF_MEMORY, 5, "the allocator returned no memory")                               \
    X(HY3D_ERR_WORKSPACE_TOO_SMALL, 6, "the workspace limit is below what one grain needs")        \
    X(HY3D_ERR_BUDGET_TOO_SMALL, 7, "the memory budget is below what the smallest tile needs")     \
    X(HY3D_ERR_CANCELLED, 8, "the operation was cancelled")                                        \
    X(HY3D_ERR_BLAS_UNAVAILABLE, 9, "no usable BLAS library was found")                            \
    X(HY3D_ERR_THREAD, 10, "a thread or lock could not be created")

typedef enum hy3d_status {
#define HY3D_STATUS_ENUM(code, value, text) code = (value),
    HY3D_STATUS_LIST(HY3D_STATUS_ENUM)
#undef HY3D_STATUS_ENUM
} hy3d_status;

HY3D_BEGIN_DECLS

/* "HY3D_ERR_OVERFLOW" and the list's text. Never NULL: unknown values say so. Thread-safe. */
HY3D_API const char *hy3d_status_name(hy3d_status status);
HY3D_API const char *hy3d_status_text(hy3d_status status);

HY3D_END_DECLS

#endif
