/* What the files of the replayer share: the books of one section as it is walked. */
#ifndef HY3D_TESTS_REPLAY_WALK_H
#define HY3D_TESTS_REPLAY_WALK_H

#include "replay.h"

typedef enum replay_place {
    REPLAY_UNMADE = 0,
    REPLAY_ON_DEVICE = 1,
    REPLAY_ON_HOST = 2, /* stored and dropped */
    REPLAY_FREED = 3,
} replay_place;

/* Of several ranks: `filled`, a byte for each row that the slice has of each of its frames, and how
 * many it lacks. */
typedef struct replay_slice {
    replay_place place;
    bool is_stored;
    unsigned char *filled;
    int64_t lacks;
} replay_slice;

/* Of a node's value: rows that this rank makes, and those that its slices have. */
typedef struct replay_rows {
    int64_t own[2], held[2];
} replay_rows;

typedef struct replay_group replay_group;

/* By frame of a node's value. */
typedef struct replay_frames {
    unsigned char *made, *gathered, *filled;
} replay_frames;

typedef struct replay_walk {
    const hy3d_schedule_request *request;
    const hy3d_program *program;
    const hy3d_section *section;
    replay_verdict *verdict;
    int32_t entry, last; /* nodes of the section's input and of its output */
    replay_values values;
    replay_rows *rows; /* by node */
    replay_slice *slices;
    replay_frames *frames;
    bool *reduced; /* by node, in this section */
    int64_t given; /* frames given away */
    int32_t at;    /* the step, within the section */
    /* Of the whole program. */
    bool *kept, *known; /* by node: its kept bytes are counted; statistics are there */
    bool *shapes;       /* by number: what its first step leaves is counted */
    int64_t left;       /* by all of them, were there no limit */
    int64_t device, host, slices_bytes;
    bool has_prefix;
    /* Of several ranks; else NULL and 0. */
    replay_group *group;
    int32_t rank;
} replay_walk;

/* Notes what is wrong, once; false. */
bool replay_object(replay_walk *walk, const char *format, ...)
    __attribute__((format(TEST_PRINTF, 2, 3)));

static inline const hy3d_slice *replay_slice_at(const replay_walk *walk, int32_t number)
{
    return &walk->program->slices[walk->section->first_slice + number];
}

static inline const hy3d_node *replay_node_at(const replay_walk *walk, int32_t node)
{
    return &walk->request->graph.nodes[node];
}

/* Whether this step computes or copies by its own checks (everything but memory). */
bool replay_check_step(replay_walk *walk, const hy3d_step *step);
/* Whether the step makes a new slice. */
bool replay_makes(const hy3d_step *step);
/* The program's section `number` is begun; its steps are carried out, each in two parts: all that
 * it does, and what it gives back after; it ends; its books are closed, whatever was found. */
bool replay_begin(replay_walk *walk, int32_t number);
bool replay_act(replay_walk *walk, const hy3d_step *step);
bool replay_give_back(replay_walk *walk, const hy3d_step *step);
bool replay_end(replay_walk *walk);
void replay_close(replay_walk *walk);
replay_walk replay_walk_of(const hy3d_schedule_request *request, const hy3d_program *program,
                           replay_verdict *verdict);
void replay_walk_free(replay_walk *walk);
/* What a candidate would state of what was replayed, and whether that fits. */
hy3d_candidate replay_stated(const replay_walk *walk);
/* What the budget must hold beside so many bytes. */
int64_t replay_margin(const hy3d_schedule_request *request, int64_t bytes);
bool replay_agrees(replay_walk *walk, const hy3d_candidate *stated);
bool replay_is_laid_out(replay_walk *walk);

/* Bytes of a slice's node and kind with so many frames and rows. */
int64_t replay_bytes(const replay_walk *walk, const hy3d_slice *slice, int64_t frames,
                     int64_t rows);

/* Rows of several ranks (replay_rows.c). Without ranks all rows are own, held and filled. */
replay_rows *replay_rows_make(const hy3d_graph *graph, const replay_values *values,
                              const int32_t nodes[2], int32_t rank, int32_t ranks,
                              const int32_t *weights);
/* Rows of the source that the step's rows are made of. */
void replay_rows_read(const replay_walk *walk, const hy3d_step *step, int64_t rows[2]);
/* Whether the step says which rows it reads and how they are padded. */
bool replay_rows_are_stated(replay_walk *walk, const hy3d_step *step);
/* Bytes that an EMIT takes beside its slice. */
int64_t replay_rows_gathered(const replay_walk *walk, const hy3d_step *step);
/* A slice that begins to be: nothing is filled. */
void replay_rows_open(replay_walk *walk, int32_t number);
bool replay_rows_fill(replay_walk *walk, int32_t number, const int64_t frames[2],
                      const int64_t rows[2]);
/* Whether these frames and rows are all filled. */
bool replay_rows_are_there(replay_walk *walk, int32_t number, const int64_t frames[2],
                           const int64_t rows[2]);

/* Steps that several ranks take together (replay_ranks.c). */
bool replay_send(replay_walk *walk, const hy3d_step *step);
bool replay_receive(replay_walk *walk, const hy3d_step *step);
/* The output's frames and rows are given away by this rank. */
bool replay_give(replay_walk *walk, const hy3d_step *step);

#endif
