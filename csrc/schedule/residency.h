/* What is on the device and what on the host while a program runs, and how long it takes. */
#ifndef HY3D_SCHEDULE_RESIDENCY_H
#define HY3D_SCHEDULE_RESIDENCY_H

#include "schedule/builder.h"

typedef struct hy3d__cost {
    int64_t device_bytes, host_bytes, both_bytes; /* peaks; both: of their sum */
    int64_t stored_bytes, loaded_bytes, sent_bytes;
    int64_t macs, steps;
    double seconds;
    bool exceeds; /* a rank's own budget */
} hy3d__cost;

/* Whether the step makes its slice: the first KEYS of a node makes its keys. */
bool hy3d__makes(const hy3d_step *step);
/* What is on the device throughout. */
int64_t hy3d__kept_throughout(const hy3d_schedule_request *request, const hy3d__arrays *arrays);
/* Walks a program, its prefix's output (`prefix_bytes`) included, and what of the input is on the
 * host throughout (`source_bytes`). HY3D_ERR_OVERFLOW. */
hy3d_status hy3d__measure(hy3d_context *context, const hy3d_schedule_request *request,
                          int32_t on_host, const hy3d__arrays *arrays, int64_t prefix_bytes,
                          int64_t source_bytes, hy3d__cost *cost_out);
/* Asks for the workspace of those steps of the last section at which most is on the device. */
void hy3d__ask_at_peaks(hy3d__builder *builder);
/* The least device memory that the one section of `arrays` can be run in. */
int64_t hy3d__least_resident(const hy3d_schedule_request *request, const hy3d__arrays *arrays);
/* Of the one section of a program: which steps read each slice, and when each step begins. It
 * serves every limit. */
typedef struct hy3d__uses {
    void *memory;
    const double *starts;   /* seconds, one more than steps */
    const int32_t *first;   /* of each slice: where its own begin among `steps` */
    const int32_t *steps;   /* that read it, in order */
    const int32_t *made_at; /* of each slice: the step that completes it */
} hy3d__uses;

hy3d_status hy3d__uses_create(hy3d_context *context, const hy3d_schedule_request *request,
                              const hy3d__arrays *arrays, hy3d__uses *uses_out);
void hy3d__uses_destroy(hy3d_context *context, hy3d__uses *uses);
/* The program with slices leaving for the host and coming back so that the device holds `limit`
 * bytes at most (at least hy3d__least_resident): what goes is what is read furthest in the future.
 * early: what the next step reads begins to come back before this one. `spilled_out` is empty. */
hy3d_status hy3d__spill(hy3d_context *context, const hy3d_schedule_request *request,
                        const hy3d__arrays *arrays, const hy3d__uses *uses, int64_t limit,
                        bool early, hy3d__arrays *spilled_out);

#endif
