/* The part of the suite "blas" that loads libraries of its own. */
#ifndef HY3D_TESTS_BLAS_LIBRARIES_H
#define HY3D_TESTS_BLAS_LIBRARIES_H

#include "support.h"

/* Built by csrc/core.mk, found from the repository's root. */
#define TEST_TOLD "build/test-libraries/told.so"
#define TEST_SILENT "build/test-libraries/silent.so"

TCase *hy3d_blas_libraries_case(void);

#endif
