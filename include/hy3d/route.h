/* Which back-end computes a convolution: decisions over plain records. Knows no library, no device,
 * no clock and no file; whoever asks says what is known.
 *
 * Back-ends are called tiers. Those that end in the vendor's library (MIOpen on AMD) can hang or
 * reset the driver, which no code in the process can stop: they are in an order only once something
 * else has proven the shape. */
#ifndef HY3D_ROUTE_H
#define HY3D_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/status.h"
#include "hy3d/tensor.h"

typedef enum hy3d_tier {
    HY3D_TIER_CURRENT = 0, /* PyTorch as it is set up */
    HY3D_TIER_VENDOR = 1,  /* the vendor's library of convolutions */
    HY3D_TIER_TRITON = 2,
    HY3D_TIER_IM2COL = 3, /* PyTorch's own, by columns of the whole input */
    HY3D_TIER_GEMM = 4,   /* matrix products within a bounded workspace */
    HY3D_TIER_CONV2D = 5, /* the vendor's 2D convolutions, one a kernel tap of time */
    HY3D_TIER_CPU = 6,    /* the C conv3d on the host */
} hy3d_tier;
#define HY3D_TIER_COUNT 7

/* What is on record of a tier at a shape. */
typedef enum hy3d_verdict {
    HY3D_VERDICT_NONE = 0, /* no record */
    HY3D_VERDICT_OK = 1,
    HY3D_VERDICT_SLOW_FIND = 2, /* sound, after a long search at the first call */
    HY3D_VERDICT_HANG = 3,
    HY3D_VERDICT_WRONG = 4,
    HY3D_VERDICT_ERROR = 5,
    HY3D_VERDICT_LOST = 6,  /* an error that took the device with it */
    HY3D_VERDICT_OTHER = 7, /* a record that says nothing here */
} hy3d_verdict;

/* What happened to a tier at a shape in this process. */
typedef enum hy3d_failure {
    HY3D_FAILURE_NONE = 0,
    HY3D_FAILURE_MAY_RECOVER = 1, /* worth another try where nothing else is left */
    HY3D_FAILURE_FOR_GOOD = 2,
} hy3d_failure;

typedef enum hy3d_policy {
    HY3D_POLICY_AUTO = 0,
    HY3D_POLICY_SAFE = 1,
    HY3D_POLICY_VENDOR_FIRST = 2,
    HY3D_POLICY_PIN = 3,
} hy3d_policy;

/* pinned: for HY3D_POLICY_PIN. current: what HY3D_TIER_CURRENT calls: HY3D_TIER_VENDOR,
 * HY3D_TIER_IM2COL, or HY3D_TIER_CURRENT for a kernel that is neither. is_rocm: the vendor is AMD.
 * is_vendor_on: its library is not switched off. column_bytes: of the im2col matrices. */
typedef struct hy3d_route_setting {
    hy3d_policy policy;
    hy3d_tier pinned, current;
    bool is_on_gpu, is_rocm, is_vendor_on;
    double column_bytes;
} hy3d_route_setting;

/* A tier as far as it is known for one call. is_refused: it can't take the call. fits: its bytes
 * are free now. seconds: measured, below 0 where nobody did. estimate_seconds: below 0 for none.
 * workspace_bytes: predicted. */
typedef struct hy3d_route_candidate {
    hy3d_tier tier;
    hy3d_verdict verdict;
    hy3d_failure failure;
    bool is_refused, fits;
    double seconds, estimate_seconds, workspace_bytes;
} hy3d_route_candidate;

/* Why a tier is not in an order. */
typedef enum hy3d_route_reason {
    HY3D_ROUTE_IN_ORDER = 0,
    HY3D_ROUTE_REFUSED = 1,   /* for the tier's own reason */
    HY3D_ROUTE_FAILED = 2,    /* in this process */
    HY3D_ROUTE_BANNED = 3,    /* by its record */
    HY3D_ROUTE_UNPROVEN = 4,  /* of the vendor's library, and nothing has tried the shape */
    HY3D_ROUTE_SLOW_FIND = 5, /* the vendor's library searches long */
    HY3D_ROUTE_TWIN = 6,      /* another tier of the order calls the same */
} hy3d_route_reason;

/* Numbers are places in the array of candidates, -1 where there is none.
 * order: the tiers to try, best first. reasons: one a candidate. twin: which one stands for those
 * with HY3D_ROUTE_TWIN. preferred: what would be first, had nothing failed in this process.
 * probe: a tier of the vendor's library that a child process may prove now, and that would then
 * come first. unmeasured: tiers worth measuring in passing, the best guess first. spare: tiers that
 * get another chance before a call is given up. is_cramped: something lacks memory now. */
typedef struct hy3d_route_choice {
    int32_t order[HY3D_TIER_COUNT], order_count;
    hy3d_route_reason reasons[HY3D_TIER_COUNT];
    int32_t twin, preferred, probe;
    int32_t unmeasured[HY3D_TIER_COUNT], unmeasured_count;
    int32_t spare[HY3D_TIER_COUNT], spare_count;
    bool is_cramped;
} hy3d_route_choice;

/* The size of a convolution. flops: two a multiply-add. moved_bytes: input, weight and output
 * together. column_bytes: of its im2col matrices, 0 where none is needed. taps: of the kernel;
 * time_taps: along time. group_channels: input channels a group. */
typedef struct hy3d_route_work {
    hy3d_dtype dtype;
    double flops, moved_bytes, out_bytes, column_bytes;
    int64_t taps, time_taps, group_channels;
} hy3d_route_work;

/* What measurements on one device say about estimates. Not thread-safe: the caller takes turns. */
typedef struct hy3d_rates hy3d_rates;

HY3D_BEGIN_DECLS

/* The order of tiers for one call. Candidates come in the order that decides between equals, each
 * tier once. Measured time first, else the estimate; what does not fit stands behind what does; the
 * host stands last wherever another can. HY3D_ERR_INVALID_ARGUMENT: a tier twice, an unknown value. */
HY3D_API hy3d_status hy3d_route_choose(const hy3d_route_setting *setting,
                                       const hy3d_route_candidate *candidates, int32_t count,
                                       hy3d_route_choice *choice_out);

/* Seconds that a tier would take on an imagined card of the middle of the market, by a roofline;
 * the order of tiers hangs on it until one is measured. Below 0 for an unknown tier or dtype. */
HY3D_API double hy3d_route_baseline_seconds(hy3d_tier tier, const hy3d_route_work *work);

HY3D_API hy3d_status hy3d_rates_create(hy3d_context *context, hy3d_rates **rates_out);
/* NULL is allowed. */
HY3D_API void hy3d_rates_destroy(hy3d_context *context, hy3d_rates *rates);
/* Adds one measurement, the same one once; times that are none teach nothing.
 * HY3D_ERR_OUT_OF_MEMORY: this one is left out. */
HY3D_API hy3d_status hy3d_rates_learn(hy3d_context *context, hy3d_rates *rates, hy3d_tier tier,
                                      const hy3d_route_work *work, double seconds);
/* Measured time as a multiple of the baseline's, the geometric mean of a tier and dtype; below 0
 * where nothing was measured. */
HY3D_API double hy3d_rates_factor(const hy3d_rates *rates, hy3d_tier tier, hy3d_dtype dtype);
/* The estimate: the baseline by the tier's own factor, else by the mean of the other tiers' on the
 * device. */
HY3D_API double hy3d_rates_seconds(const hy3d_rates *rates, hy3d_tier tier,
                                   const hy3d_route_work *work);

HY3D_END_DECLS

#endif
