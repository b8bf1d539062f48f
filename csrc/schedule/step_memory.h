/* What a step takes on the host that the C convolution computes: the core says it itself. */
#ifndef HY3D_SCHEDULE_STEP_MEMORY_H
#define HY3D_SCHEDULE_STEP_MEMORY_H

#include <stdbool.h>

#include "hy3d/schedule.h"

/* Whether nobody need be asked about the step. */
bool hy3d__knows_step(const hy3d_schedule_request *request, const hy3d_step *step, int32_t on_host);
/* What it takes; sizes beyond 60 bits count as 2^60. Errors: as hy3d_conv3d_memory. */
hy3d_status hy3d__step_memory(hy3d_context *context, const hy3d_schedule_request *request,
                              const hy3d_step *step, const hy3d_size *source,
                              hy3d_step_memory *taken_out);

#endif
