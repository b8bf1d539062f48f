/* What replay.c and replay_steps.c share: the books of one section as it is walked. */
#ifndef HY3D_TESTS_REPLAY_WALK_H
#define HY3D_TESTS_REPLAY_WALK_H

#include "replay.h"

typedef enum replay_place {
    REPLAY_UNMADE = 0,
    REPLAY_ON_DEVICE = 1,
    REPLAY_ON_HOST = 2, /* stored and dropped */
    REPLAY_FREED = 3,
} replay_place;

typedef struct replay_slice {
    replay_place place;
    bool is_stored;
} replay_slice;

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
    replay_slice *slices;
    replay_frames *frames;
    bool *reduced; /* by node, in this section */
    int64_t given; /* frames given away */
    int32_t at;    /* the step, within the section */
    /* Of the whole program. */
    bool *kept, *known; /* by node: its kept bytes are counted; statistics are there */
    int64_t device, host, slices_bytes;
    bool has_prefix;
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
/* Of the host's copy of so many bytes. */
int64_t replay_host_bytes(const hy3d_schedule_request *request, int64_t bytes);

#endif
