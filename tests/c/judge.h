/* Judges what the schedule makes of a graph and a request: programs are replayed, budgets tried to
 * the byte, failures followed to their end. The C suite, the long check and the fuzzer share it. */
#ifndef HY3D_TESTS_JUDGE_H
#define HY3D_TESTS_JUDGE_H

#include "graphs.h"
#include "replay.h"

typedef struct judge_report {
    char text[640]; /* "": nothing to object to */
    /* What was done, for the closing lines; by order of the programs. */
    int64_t programs[5], steps, refused, unsupported, falls, bounds,
        asked;
    int64_t shared; /* those of `programs` that were of several ranks, counted once for all ranks */
} judge_report;

/* Compiles the case without budgets and under several, among them the smallest and one byte less.
 * The case's budgets are changed. false: report->text says what is wrong. Sums are added to. */
bool judge_case(hy3d_context *context, graphs_case *made, graphs_numbers numbers,
                judge_report *report);
/* One compile with the case as it is; no sweep of budgets. */
bool judge_request(hy3d_context *context, graphs_case *made, graphs_numbers numbers,
                   judge_report *report);

#endif
