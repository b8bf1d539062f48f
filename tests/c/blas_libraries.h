/* The part of the suite "blas" that loads libraries of its own. */
#ifndef HY3D_TESTS_BLAS_LIBRARIES_H
#define HY3D_TESTS_BLAS_LIBRARIES_H

#include "base/os.h"
#include "support.h"

/* Built by csrc/core.mk, found from the repository's root. */
#define TEST_OWN "build/test-libraries/libhy3d_told" HY3D__LIBRARY_SUFFIX /* ours by its name */
#define TEST_TOLD "build/test-libraries/told" HY3D__LIBRARY_SUFFIX
#define TEST_SILENT "build/test-libraries/silent" HY3D__LIBRARY_SUFFIX
#define TEST_LOCAL "build/test-libraries/local" HY3D__LIBRARY_SUFFIX

TCase *hy3d_blas_libraries_case(void);

#endif
