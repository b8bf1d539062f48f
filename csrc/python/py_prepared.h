/* PreparedWeights: weights transformed once, for any number of calls. */
#ifndef HY3D_PYTHON_PREPARED_H
#define HY3D_PYTHON_PREPARED_H

#include "hy3d/conv3d.h"
#include "python/core.h"

/* Borrowed: whoever uses it without the GIL holds a reference to value. */
bool hy3d_py_prepared_from(const hy3d_py_state *state, PyObject *value,
                           const hy3d_conv3d_weights **out);
/* Whether value (a PreparedWeights) serves the description; else a sentence. */
bool hy3d_py_prepared_check(const hy3d_py_state *state, PyObject *value,
                            const hy3d_conv3d_desc *desc);

#endif
