/* Runs every C suite that is there. check_hy3d [SUITE]: that suite only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#ifdef HAVE_TEST_BASE
Suite *hy3d_base_suite(void);
#endif
#ifdef HAVE_TEST_ALLOCATOR
Suite *hy3d_allocator_suite(void);
#endif
#ifdef HAVE_TEST_FINGERPRINT
Suite *hy3d_fingerprint_suite(void);
#endif
#ifdef HAVE_TEST_WORKSPACE
Suite *hy3d_workspace_suite(void);
#endif
#ifdef HAVE_TEST_PARALLEL
Suite *hy3d_parallel_suite(void);
#endif
#ifdef HAVE_TEST_FORK
Suite *hy3d_fork_suite(void);
#endif
#ifdef HAVE_TEST_BLAS
Suite *hy3d_blas_suite(void);
#endif
#ifdef HAVE_TEST_GEMM
Suite *hy3d_gemm_suite(void);
#endif
#ifdef HAVE_TEST_KERNELS
Suite *hy3d_kernels_suite(void);
#endif
#ifdef HAVE_TEST_KERNEL_MEMORY
Suite *hy3d_kernel_memory_suite(void);
#endif
#ifdef HAVE_TEST_GUARDS
Suite *hy3d_guards_suite(void);
#endif
#ifdef HAVE_TEST_SILU
Suite *hy3d_silu_suite(void);
#endif
#ifdef HAVE_TEST_PEAK
Suite *hy3d_peak_suite(void);
#endif
#ifdef HAVE_TEST_CONV_MEMORY
Suite *hy3d_conv_memory_suite(void);
#endif
#ifdef HAVE_TEST_MOMENTS
Suite *hy3d_moments_suite(void);
#endif
#ifdef HAVE_TEST_CONV3D
Suite *hy3d_conv3d_suite(void);
#endif
#ifdef HAVE_TEST_WINOGRAD
Suite *hy3d_winograd_suite(void);
#endif
#ifdef HAVE_TEST_WINOGRAD_KERNELS
Suite *hy3d_winograd_kernels_suite(void);
#endif
#ifdef HAVE_TEST_RASTER_KERNELS
Suite *hy3d_raster_kernels_suite(void);
#endif
#ifdef HAVE_TEST_TILES
Suite *hy3d_tiles_suite(void);
#endif
#ifdef HAVE_TEST_SCHEDULE
Suite *hy3d_schedule_suite(void);
#endif
#ifdef HAVE_TEST_ROUTE
Suite *hy3d_route_suite(void);
#endif
#ifdef HAVE_TEST_CACHE
Suite *hy3d_cache_suite(void);
#endif
#ifdef HAVE_TEST_SEED
Suite *hy3d_seed_suite(void);
#endif
#ifdef HAVE_TEST_RASTERIZE
Suite *hy3d_rasterize_suite(void);
#endif
#ifdef HAVE_TEST_RASTERIZE_RUNS
Suite *hy3d_rasterize_runs_suite(void);
#endif
#ifdef HAVE_TEST_RASTER_MESH
Suite *hy3d_raster_mesh_suite(void);
#endif
#ifdef HAVE_TEST_RASTER_SHARED
Suite *hy3d_raster_shared_suite(void);
#endif
#ifdef HAVE_TEST_VECTORS
Suite *hy3d_vectors_suite(void);
#endif

typedef struct named_suite {
    const char *name;
    Suite *(*make)(void);
} named_suite;

static const named_suite suites[] = {
#ifdef HAVE_TEST_BASE
    {"base", hy3d_base_suite},
#endif
#ifdef HAVE_TEST_ALLOCATOR
    {"allocator", hy3d_allocator_suite},
#endif
#ifdef HAVE_TEST_FINGERPRINT
    {"fingerprint", hy3d_fingerprint_suite},
#endif
#ifdef HAVE_TEST_WORKSPACE
    {"workspace", hy3d_workspace_suite},
#endif
#ifdef HAVE_TEST_PARALLEL
    {"parallel", hy3d_parallel_suite},
#endif
#ifdef HAVE_TEST_FORK
    {"fork", hy3d_fork_suite},
#endif
#ifdef HAVE_TEST_BLAS
    {"blas", hy3d_blas_suite},
#endif
#ifdef HAVE_TEST_GEMM
    {"gemm", hy3d_gemm_suite},
#endif
#ifdef HAVE_TEST_KERNELS
    {"kernels", hy3d_kernels_suite},
#endif
#ifdef HAVE_TEST_KERNEL_MEMORY
    {"kernel_memory", hy3d_kernel_memory_suite},
#endif
#ifdef HAVE_TEST_GUARDS
    {"guards", hy3d_guards_suite},
#endif
#ifdef HAVE_TEST_SILU
    {"silu", hy3d_silu_suite},
#endif
#ifdef HAVE_TEST_PEAK
    {"peak", hy3d_peak_suite},
#endif
#ifdef HAVE_TEST_CONV_MEMORY
    {"conv_memory", hy3d_conv_memory_suite},
#endif
#ifdef HAVE_TEST_MOMENTS
    {"moments", hy3d_moments_suite},
#endif
#ifdef HAVE_TEST_CONV3D
    {"conv3d", hy3d_conv3d_suite},
#endif
#ifdef HAVE_TEST_WINOGRAD
    {"winograd", hy3d_winograd_suite},
#endif
#ifdef HAVE_TEST_WINOGRAD_KERNELS
    {"winograd_kernels", hy3d_winograd_kernels_suite},
#endif
#ifdef HAVE_TEST_RASTER_KERNELS
    {"raster_kernels", hy3d_raster_kernels_suite},
#endif
#ifdef HAVE_TEST_TILES
    {"tiles", hy3d_tiles_suite},
#endif
#ifdef HAVE_TEST_SCHEDULE
    {"schedule", hy3d_schedule_suite},
#endif
#ifdef HAVE_TEST_ROUTE
    {"route", hy3d_route_suite},
#endif
#ifdef HAVE_TEST_CACHE
    {"cache", hy3d_cache_suite},
#endif
#ifdef HAVE_TEST_SEED
    {"seed", hy3d_seed_suite},
#endif
#ifdef HAVE_TEST_RASTERIZE
    {"rasterize", hy3d_rasterize_suite},
#endif
#ifdef HAVE_TEST_RASTERIZE_RUNS
    {"rasterize_runs", hy3d_rasterize_runs_suite},
#endif
#ifdef HAVE_TEST_RASTER_MESH
    {"raster_mesh", hy3d_raster_mesh_suite},
#endif
#ifdef HAVE_TEST_RASTER_SHARED
    {"raster_shared", hy3d_raster_shared_suite},
#endif
#ifdef HAVE_TEST_VECTORS
    {"vectors", hy3d_vectors_suite},
#endif
};

int main(int argc, char **argv)
{
    if (test_child_of_runner() == 0 && !test_notes_open()) {
        perror("tmpfile");
        return EXIT_FAILURE;
    }
    SRunner *runner = NULL;
    for (size_t i = 0; i < COUNT_OF(suites); i++) {
        if (argc > 1 && strcmp(argv[1], suites[i].name) != 0) {
            continue;
        }
        if (runner == NULL) {
            runner = srunner_create(suites[i].make());
        } else {
            srunner_add_suite(runner, suites[i].make());
        }
    }
    if (runner == NULL) {
        fprintf(stderr, "no suite of that name\n");
        return EXIT_FAILURE;
    }
    srunner_run_all(runner, CK_SILENT);
    const int failed = srunner_ntests_failed(runner);
    test_notes_report(failed != 0);
    srunner_print(runner, CK_NORMAL); /* last, so that the end of a log says what failed */
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
