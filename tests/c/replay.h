/* Replays a decode program (hy3d/schedule.h) and objects to whatever breaks its promises.
 *
 * Written from the headers graph.h and schedule.h alone, and it shares no code with the compiler:
 * sizes and frames are found by walking explicit lists of frames. It reads what the program says,
 * keeps its own books of what is on the device, on the host, made, gathered and given away, and
 * compares them with the candidate's figures. Programs of several ranks run side by side. */
#ifndef HY3D_TESTS_REPLAY_H
#define HY3D_TESTS_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hy3d/schedule.h"

/* What printf takes; another one on Windows. */
#ifndef TEST_PRINTF
#define TEST_PRINTF printf
#endif

/* The most ranks that are replayed. */
#define REPLAY_MOST_RANKS 8

/* Frames of a source, half open; equal where none. */
typedef struct replay_range {
    int64_t first, stop;
} replay_range;

/* What one frame of a convolution's own output reads. `wide`: padding counted as the frame that it
 * would repeat. */
typedef struct replay_reads {
    replay_range real, wide;
} replay_reads;

/* A value in a section, and how its frames come about. */
typedef struct replay_value {
    hy3d_size size;
    /* CONV: frames that pass by; the convolution's own frames, rows and columns, before the
     * shuffle; for each frame after the shuffle, before `drop`, the own frame it comes from. */
    int64_t passes, own_frames, own_rows, own_columns, made_frames;
    replay_reads *reads; /* own_frames of them */
    int64_t *made;       /* made_frames of them */
    /* MAP: the first frame that each frame of the source makes, and one past the last's last. */
    int64_t *begins;
} replay_value;

/* The values of nodes first .. last for an input (node `first`'s value) of this size. */
typedef struct replay_values {
    replay_value *of; /* by node; those outside are empty */
    int32_t count;
} replay_values;

/* Needs a graph that hy3d_graph_check accepts and sizes that fit in memory. */
replay_values replay_values_make(const hy3d_graph *graph, int32_t first, int32_t last,
                                 hy3d_size input);
void replay_values_free(replay_values *values);

/* Rows by which a picture can be shared: the greatest number that divides those of all values and
 * of what each convolution makes before its shuffle. */
int64_t replay_unit(const replay_values *values);

/* Multiply-accumulates of a step: one for each weight or each product of attention. */
int64_t replay_macs(const hy3d_graph *graph, const replay_values *values, const hy3d_step *step);

typedef struct replay_verdict {
    char text[320]; /* "": nothing to object to */
    /* Peaks of what computes, of the host beside it, and of both at once: that is what a candidate
     * states where they are one memory (is_host, a candidate on the host). */
    int64_t device_bytes, host_bytes, both_bytes, copies_bytes;
    int64_t stored_bytes, loaded_bytes, sent_bytes;
    int64_t macs, steps;
    uint64_t shapes; /* of the computing steps: op, node, own, frames, reads, rows, drop, rows that
                        are read and their padding */
} replay_verdict;

/* Whether a candidate's peaks, with the margin, are within the budgets. */
bool replay_is_within(const hy3d_schedule_request *request, const hy3d_candidate *candidate);
/* Whether there is nothing to object to. */
bool replay_program(const hy3d_schedule_request *request, const hy3d_program *program,
                    replay_verdict *verdict);
/* The same of the programs of request->ranks ranks, by rank, at once; `rank` of the request is not
 * looked at. Of the verdict, sums are of all ranks and peaks those of the rank with the most. */
bool replay_ranks(const hy3d_schedule_request *request, const hy3d_program *const *programs,
                  replay_verdict *verdict);
/* Why several ranks can't share a node's rows; NULL: they can. */
const char *replay_unshared(const hy3d_node *node);
/* What the VAE's own code takes at least: a frame of a convolution's source and one of its value,
 * or the output. */
int64_t replay_least_own_bytes(const hy3d_schedule_request *request);
/* Whether both candidates are the same in every field. */
bool replay_is_same(const hy3d_candidate *a, const hy3d_candidate *b);
/* Zeroed memory; without, the test ends. */
void *replay_room(int64_t count, size_t bytes);

#endif
