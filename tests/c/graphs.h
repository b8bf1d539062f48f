/* Graphs and requests for the tests of the schedule: random ones, whose numbers come from a
 * function, and known ones, shaped like the decoders of real VAEs. */
#ifndef HY3D_TESTS_GRAPHS_H
#define HY3D_TESTS_GRAPHS_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/schedule.h"

/* Where numbers come from: low .. high, both included. */
typedef struct graphs_numbers {
    int64_t (*between)(void *state, int64_t low, int64_t high);
    void *state;
} graphs_numbers;

/* The numbers of a seed. */
typedef struct graphs_seed {
    uint64_t state;
} graphs_seed;
graphs_numbers graphs_numbers_of(graphs_seed *seed, uint64_t number);

#define GRAPHS_MOST_NODES 96

/* A request and what it points to. `salt` is what its workspace function depends on beside the
 * node, the operation and the number of frames (of several ranks: and of rows). */
typedef struct graphs_case {
    hy3d_node nodes[GRAPHS_MOST_NODES];
    hy3d_schedule_request request;
    uint64_t salt;
    int32_t weights[8]; /* of ranks, where the request has some */
    int64_t own_told; /* where own_bytes are asked for: the answer; -1: nobody can tell */
    int32_t own_asked; /* how often they were */
} graphs_case;

/* Not to be moved afterwards: the request points into it. No budgets are set. */
void graphs_random(graphs_numbers numbers, graphs_case *out);

/* Likewise for several ranks, by LAYERS, CHUNKS and PREFIX at least: of values whose rows can most
 * often be shared, evenly or not, at times by fewer than there are ranks. */
void graphs_random_shared(graphs_numbers numbers, graphs_case *out);
/* The case of a number in the long runs: in one of eight several ranks. Returns the numbers that
 * follow. */
graphs_numbers graphs_of_number(graphs_seed *seed, uint64_t number, graphs_case *out);

/* A request of all strategies with ordinary numbers for the graph in `out`. */
void graphs_request(graphs_case *out, int64_t frames, int64_t rows, int64_t columns);

typedef enum graphs_known {
    GRAPHS_HUNYUAN = 0,      /* HunyuanVideo's decoder: GroupNorm, causal, up with keep_first */
    GRAPHS_WAN = 1,          /* Wan's: norms of positions, skip_first and shuffle in time */
    GRAPHS_LTX = 2,          /* looks ahead, shuffles and drops */
    GRAPHS_IMAGE = 3,        /* kernels of one frame */
    GRAPHS_ENCODER = 4,      /* strides in time, reread */
    GRAPHS_OPAQUE = 5,       /* one node of unknown code */
    GRAPHS_KNOWN = 6,
} graphs_known;
/* `width`: channels of the last level; real ones have 128. */
void graphs_make_known(graphs_known which, int64_t width, graphs_case *out);
const char *graphs_known_name(graphs_known which);

#endif
