/* The list of strategies. A new one is a file with its row and what its row calls, a line here and
 * in plan.h, and, where it keeps something in the plan, a member of the plan's union. */
#include "conv3d/plan.h"

/* The first that chooses a description computes it; panel computes anything. Those with layouts of
 * their own stand first: hy3d_conv3d_choose_format asks them alone. */
const hy3d__conv_strategy *const hy3d__conv_strategies[] = {
    &hy3d__conv_winograd_strategy,
    &hy3d__conv_thin_strategy,
    &hy3d__conv_direct_strategy,
    &hy3d__conv_panel_strategy,
    NULL,
};
