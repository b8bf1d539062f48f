/* What the tests of the texture stage's functions share. */
#ifndef HY3D_TESTS_RASTER_MESH_SUPPORT_H
#define HY3D_TESTS_RASTER_MESH_SUPPORT_H

#include "hy3d/raster.h"
#include "support.h"

/* A wavy sheet of cells x cells squares, two faces each: vertices along rows, v = row * (cells +
 * 1) + column. */
enum { SHEET = 70, SHEET_VERTICES = (SHEET + 1) * (SHEET + 1), SHEET_FACES = 2 * SHEET * SHEET };

typedef struct test_sheet {
    float positions[3 * SHEET_VERTICES];
    float uv[2 * SHEET_VERTICES];
    int32_t faces[3 * SHEET_FACES];
} test_sheet;

/* Faces in an order that the random numbers give, so that runs of vertices mix. */
void test_sheet_make(test_random *random, test_sheet *sheet);

/* Each test of these files, for the suite. */
void raster_mesh_add_values(TCase *tests);
void raster_mesh_add_refusals(TCase *tests);

#endif
