/* What the parts of check_bits share: random configurations, tensors that lie in odd ways, an
 * oracle of its own, and what workers count. main.c says what the program does. */
#ifndef HY3D_BENCH_BITS_H
#define HY3D_BENCH_BITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/conv3d.h"

enum {
    BITS_MOST_CHANNELS = 320,
    BITS_MOST_FRAMES = 64,
    BITS_FORMATS = 4,      /* prepared layouts, 1 to 4: kinds of Winograd */
    BITS_MOST_FAILURES = 8,
    BITS_TEXT = 640,
};

/* splitmix64: a state of (seed, index) gives the same numbers everywhere. */
typedef struct bits_random {
    uint64_t state;
} bits_random;
bits_random bits_random_of(uint64_t seed, uint64_t index);
uint64_t bits_next(bits_random *random);
int64_t bits_between(bits_random *random, int64_t low, int64_t high); /* both included */
bool bits_one_in(bits_random *random, int64_t n);

/* A tensor and its memory, which is filled with 0xff where nothing else is put. */
typedef struct bits_view {
    hy3d_tensor tensor;
    unsigned char *memory; /* from malloc */
    unsigned char *begin;  /* 64-byte aligned, plus the offset asked for */
    size_t bytes;
} bits_view;

typedef enum bits_layout {
    BITS_PLAIN, /* NCDHW */
    BITS_LAST,  /* NDHWC */
    BITS_REVERSED,
    BITS_GAPS,
    BITS_PERMUTED,
    BITS_EXPANDED, /* inputs only: H and T have stride 0 */
    BITS_LAYOUTS
} bits_layout;

bits_view bits_view_make(hy3d_dtype dtype, const int64_t size[HY3D_TENSOR_DIMS],
                         bits_layout layout, int64_t offset_elems);
void bits_view_free(bits_view *view);
/* How far a dimension's index steps in `values` of bits_view_put: 0 where the layout repeats it. */
bool bits_repeats(bits_layout layout, int dim);
/* Elements in index order from plain integers, encoded here and not by the library. */
void bits_view_put(const bits_view *view, const int32_t *values);
/* The same from integers over 2^24, rounded to the dtype's nearest. */
void bits_view_put_reals(const bits_view *view, const int32_t *values);
/* Elements of y that are not `wanted`, rounded once to its dtype; *other_zeros counts equal zeros
 * of another sign. */
int64_t bits_view_differing(const bits_view *view, const int32_t *wanted, int64_t *other_zeros);
/* Elements whose nearest integer is not `wanted`. */
int64_t bits_view_far(const bits_view *view, const int32_t *wanted);
/* Bytes between y's elements that were written to; wipes the elements. */
int64_t bits_view_strays(const bits_view *view);
/* All elements in index order, so that layouts can be compared; the caller frees them. */
unsigned char *bits_view_elements(const bits_view *view);
int64_t bits_elems(const int64_t size[HY3D_TENSOR_DIMS]);

/* One convolution. Integers are kept in plain order beside the tensors. */
typedef struct bits_config {
    uint64_t seed, index;
    hy3d_conv3d_desc desc;
    bool has_bias, has_scale, has_frames, has_residual, in_place, is_prepared;
    hy3d_activation activation;
    hy3d_conv3d_format forced; /* HY3D_FORMAT_NONE: the strategy is the library's choice */
    bits_layout x_layout, weight_layout, y_layout, residual_layout;
    int64_t out[3];
    int64_t x_size[HY3D_TENSOR_DIMS], weight_size[HY3D_TENSOR_DIMS], y_size[HY3D_TENSOR_DIMS];
} bits_config;

/* exact: integers and no SiLU; small. Else what bit-stability asks for: larger, any activation. */
bits_config bits_config_make(uint64_t seed, uint64_t index, bool exact);
void bits_config_text(const bits_config *config, char *text, size_t size);

/* A configuration's values and tensors. */
typedef struct bits_problem {
    const bits_config *config;
    bool is_exact;
    int32_t *x, *weight, *bias, *residual; /* plain order; x before up-sampling */
    float scale[BITS_MOST_CHANNELS], shift[BITS_MOST_CHANNELS];
    bool zero_frame[BITS_MOST_FRAMES];
    bits_view x_view, weight_view, bias_view, residual_view, y_view;
    hy3d_conv3d_frame frames[BITS_MOST_FRAMES];
    hy3d_conv3d_fusion fusion;
} bits_problem;

/* Values; is_sparse leaves at most three weights of +-1 to an output channel. */
void bits_problem_fill(bits_problem *problem, const bits_config *config, bool is_exact,
                       bool is_sparse);
/* Tensors whose first elements lie `alignment` elements, or a multiple of it modulo 16, after a
 * 64-byte line. */
void bits_problem_place(bits_problem *problem, int64_t alignment);
void bits_problem_unplace(bits_problem *problem);
void bits_problem_free(bits_problem *problem);

/* Plans, allocates a workspace full of NaN, runs, releases. *plan_out (if not NULL) is a copy of
 * the plan as it was, for counting; limits and threads are the description's. */
struct hy3d_conv3d_plan;
hy3d_status bits_problem_run(hy3d_context *context, const bits_problem *problem,
                             struct hy3d_conv3d_plan *plan_out);
/* reference_conv3d. */
hy3d_status bits_problem_reference(const bits_problem *problem);
/* As hy3d_conv3d_plan_create_prepared; a forced format whatever the cost model says. */
hy3d_status bits_plan(hy3d_context *context, const bits_problem *problem,
                      const hy3d_conv3d_weights *prepared, hy3d_conv3d_plan **plan_out);

/* The exact sums, in y's plain order; the caller frees them. Shares no line with the library. */
int32_t *bits_oracle(const bits_problem *problem);

/* What workers count together, in memory that forks share. */
typedef enum bits_count {
    COUNT_DIRECT, COUNT_THIN, COUNT_SGEMM, COUNT_DGEMM, COUNT_W4, COUNT_W24, COUNT_W5, COUNT_W25,
    COUNT_UP, COUNT_UP2, COUNT_UP4, COUNT_W34, COUNT_W35, COUNT_UP3,
    COUNT_REFERENCE, COUNT_PREPARED, COUNT_CHOSEN_WINOGRAD, COUNT_FRAMES, COUNT_SCALED,
    COUNT_RESIDUAL, COUNT_IN_PLACE, COUNT_UPSAMPLED, COUNT_REPLICATED, COUNT_CROPPED,
    COUNT_EMPTY,
    COUNT_F32, COUNT_F64, COUNT_F16, COUNT_BF16,
    COUNT_ROW_TAIL, COUNT_LANE_TAIL, COUNT_CUT_ROWS, COUNT_CUT_COLUMNS, COUNT_CUT_INPUT,
    COUNT_CUT_OUTPUT, COUNT_BY_ROW, COUNT_PER_TAP, COUNT_STRAIGHT, COUNT_THIN_CUT,
    COUNT_PANEL_IN_X, COUNT_PANEL_CUT, COUNT_TIGHT, COUNT_TWO_SLOTS, COUNT_THREE_SLOTS, COUNT_EIGHT_SLOTS,
    COUNT_CONFIGURATIONS, COUNT_RUNS, COUNT_VALUES, COUNT_DIFFERING, COUNT_OTHER_ZEROS,
    COUNT_NO_BLAS, COUNT_ACROSS_LEVELS,
    COUNTS
} bits_count;

typedef struct bits_shared {
    _Atomic int64_t count[COUNTS];
    _Atomic int64_t next, failures;
    char failed[BITS_MOST_FAILURES][BITS_TEXT + 160];
} bits_shared;

/* Notes a failure; what happened to which configuration. */
void bits_fail(bits_shared *shared, const char *level, const char *what, const bits_config *config);
void bits_add(bits_shared *shared, bits_count which, int64_t n);
void bits_count_plan(bits_shared *shared, const bits_config *config,
                     const struct hy3d_conv3d_plan *plan);

/* One configuration of each check, at the level of a context. */
void bits_exact(hy3d_context *context, uint64_t seed, uint64_t index, bits_shared *shared);
typedef struct bits_stable_scope {
    hy3d_context *context, *lower; /* lower: NULL, or the level whose bits must be the same */
} bits_stable_scope;
void bits_stable(const bits_stable_scope *scope, uint64_t seed, uint64_t index,
                 bits_shared *shared);
/* Blend, moments and the rasteriser: every level at once. */
void bits_others(hy3d_context *const *levels, int level_count, uint64_t seed, uint64_t index,
                 bits_shared *shared);

#endif
