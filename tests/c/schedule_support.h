/* What the schedule's test files share. */
#ifndef HY3D_TESTS_SCHEDULE_SUPPORT_H
#define HY3D_TESTS_SCHEDULE_SUPPORT_H

#include "judge.h"
#include "support.h"

/* The test cases of the other files. */
TCase *hy3d_schedule_replay_cases(void);
TCase *hy3d_schedule_refusal_cases(void);
TCase *hy3d_schedule_cut_cases(void);
TCase *hy3d_schedule_team_cases(void);

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

#endif
