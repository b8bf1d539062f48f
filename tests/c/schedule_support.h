/* What the schedule's test files share. */
#ifndef HY3D_TESTS_SCHEDULE_SUPPORT_H
#define HY3D_TESTS_SCHEDULE_SUPPORT_H

#include "judge.h"
#include "support.h"

/* The test cases of the other files. */
TCase *hy3d_schedule_replay_cases(void);
TCase *hy3d_schedule_refusal_cases(void);
TCase *hy3d_schedule_cut_cases(void);
TCase *hy3d_schedule_transfer_cases(void);
TCase *hy3d_schedule_ranks_cases(void);
TCase *hy3d_schedule_shards_cases(void);
TCase *hy3d_schedule_team_cases(void);
TCase *hy3d_schedule_memory_cases(void);

/* A program whose arrays may be changed. */
typedef struct program_copy {
    hy3d_program program;
    hy3d_section *sections;
    hy3d_step *steps;
    hy3d_slice *slices;
    int32_t *refs;
} program_copy;
program_copy program_copy_of(const hy3d_program *program);
void program_copy_free(program_copy *copy);

/* Random damage. Returns whether it does harm: some fields are not read of some steps. */
bool damage_program(test_random *random, program_copy *copy);
/* Likewise, to this step. */
bool damage_step(test_random *random, program_copy *copy, int32_t at);
/* Leaves out a step, and counts one less. */
bool damage_leave_out(program_copy *copy, const hy3d_section *section, int32_t at);

/* The least that is enough, so that slices leave; 0 where there is none. */
int64_t tight_budget(hy3d_context *context, graphs_case *made);

#endif
