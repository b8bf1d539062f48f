/* What the files that compile a schedule share. */
#ifndef HY3D_SCHEDULE_COMPILE_H
#define HY3D_SCHEDULE_COMPILE_H

#include "hy3d/tiles.h"
#include "schedule/residency.h"

/* Of a request: sums of a few of them stay within 63 bits. */
#define HY3D__MOST_BYTES (INT64_C(1) << 59)

/* How much of a program in tiles is compiled. Each part takes at most what the one behind it does,
 * and ALL at least what any of them does. */
typedef enum hy3d__tiles_part {
    HY3D__TILES_ALL = 0,
    HY3D__TILES_SLICES = 1,  /* what comes before tiles, and a largest one: without workspace */
    HY3D__TILES_PEAKS = 2,   /* with that of the largest tile's steps where most is on the device */
    HY3D__TILES_LARGEST = 3, /* with all workspace */
} hy3d__tiles_part;

struct hy3d_schedule {
    hy3d_schedule_request request; /* its graph is `nodes`; host_budget as it is by now */
    int64_t budgets[HY3D_SCHEDULE_MAX_RANKS]; /* of each rank, on its device, as they are by now */
    hy3d_node *nodes;
    int32_t *alike;        /* NULL: none are */
    hy3d_layer *layers[2]; /* of the places; NULL: none are known */
    hy3d_size *sizes;      /* of all values, on the whole picture */
    hy3d_cut cut;
    hy3d__shards shards;
    int32_t weights[HY3D_SCHEDULE_MAX_RANKS]; /* as the program's */
    bool has_group_norms, has_opaque, can_tile;
    bool can_share;     /* ranks can share rows */
    bool own_is_untold; /* nobody can tell what the VAE's own code takes */
    hy3d_candidate *candidates;
    int32_t count, room, chosen; /* chosen: -1 where nothing fits */
    hy3d_candidate *failed;      /* those that a fallback gave up */
    int32_t failed_count, failed_room;
    int64_t smallest;    /* see hy3d_schedule_smallest_budget */
    hy3d__arrays arrays; /* of the program that was taken */
    hy3d_program program;
    hy3d__builder builders[2]; /* for the device, for the host */
    bool built[2];
    hy3d__tiles_part tiles_part;
};

bool hy3d__right_request(const hy3d_schedule_request *request);

/* Tiles of `level` under one of the request's halos. HY3D_ERR_INVALID_ARGUMENT: no such level. */
hy3d_status hy3d__tiles_of(const hy3d_schedule *schedule, int32_t halo_row, int32_t level,
                           hy3d_tiles_plan *plan_out);
/* The levels that are worth looking at, from large tiles to small, of all halos: entries of `row`
 * and `level`. `levels_out` is allocated. */
typedef struct hy3d__level {
    int32_t row, level;
} hy3d__level;
hy3d_status hy3d__worthwhile_levels(hy3d_context *context, const hy3d_schedule *schedule,
                                    hy3d__level **levels_out, int32_t *count_out);
/* The sections of a decode in tiles, as far as the schedule's tiles_part says. */
void hy3d__order_tiles(hy3d_schedule *schedule, hy3d__builder *builder,
                       const hy3d_candidate *candidate);
/* Bytes of the prefix's output on the host. */
int64_t hy3d__prefix_bytes(const hy3d_schedule *schedule);

/* --- one candidate ---------------------------------------------------------------------------- */

static inline bool hy3d__allows(const hy3d_schedule *s, hy3d_strategy strategy)
{
    return (s->request.strategies >> strategy & 1u) != 0;
}

/* Whether what this strategy does on the device is looked at on the host as well: not where the
 * device is the host. */
static inline bool hy3d__moves(const hy3d_schedule *s, hy3d_strategy strategy)
{
    return hy3d__allows(s, HY3D_STRATEGY_HOST) &&
           !(s->request.is_host && hy3d__allows(s, strategy));
}

/* Whether packed weights need not stay there. */
static inline bool hy3d__may_repack(const hy3d_schedule *s, int32_t on_host)
{
    return s->request.may_repack && !s->request.is_host && !on_host;
}

static inline const hy3d_machine *hy3d__machine_of(const hy3d_schedule *s, int32_t on_host)
{
    return on_host || s->request.is_host ? &s->request.host : &s->request.device;
}

/* The frames of the input that a tile's chunk has there. */
int32_t hy3d__tile_chunk(const hy3d_schedule *schedule, int32_t on_host);

/* Errors that end the compilation; the others only rule a candidate out. */
static inline bool hy3d__is_fatal(hy3d_status status)
{
    return status != HY3D_OK && status != HY3D_ERR_OVERFLOW &&
           status != HY3D_ERR_BUDGET_TOO_SMALL && status != HY3D_ERR_SHAPE_MISMATCH;
}

/* Whether both are the same way, however much of it is resident. */
bool hy3d__same_candidate(const hy3d_candidate *a, const hy3d_candidate *b);
/* Whether a fallback gave it up. */
bool hy3d__has_failed(const hy3d_schedule *schedule, const hy3d_candidate *candidate);
/* The least device_budget that the candidate would fit, with the host's as it is; INT64_MAX where
 * that does not do. */
int64_t hy3d__needed_budget(const hy3d_schedule_request *request, const hy3d_candidate *candidate);
/* What is planned on top of what the candidate takes. */
int64_t hy3d__margin_of(const hy3d_schedule_request *request, const hy3d_candidate *candidate);
bool hy3d__fits_budget(const hy3d_schedule *schedule, const hy3d_candidate *candidate,
                       int64_t budget);
/* The VAE's own code, of which `own` bytes are known; -1: nothing is. */
hy3d_status hy3d__whole_cost(const hy3d_schedule *schedule, int64_t own, hy3d_candidate *candidate);
/* What code that makes whole frames, each once, takes at least. */
int64_t hy3d__least_own_bytes(const hy3d_schedule *schedule);
/* Asks for the bytes of the VAE's own code, once in a schedule. HY3D_ERR_UNSUPPORTED: nobody can
 * tell. */
hy3d_status hy3d__ask_own_bytes(hy3d_schedule *schedule);
/* Compiles for all ranks: the candidate with its results. */
hy3d_status hy3d__compile_one(hy3d_context *context, hy3d_schedule *schedule,
                              hy3d_candidate *candidate);
hy3d_status hy3d__append(hy3d_context *context, hy3d_candidate **list, int32_t *count,
                         int32_t *room, const hy3d_candidate *candidate);
/* The smallest budget, now that the candidate is known, too. */
void hy3d__note_smallest(hy3d_schedule *schedule, const hy3d_candidate *candidate);
/* Asks what the VAE's own code takes that was given up for the least that it can. */
hy3d_status hy3d__look_at_whole(hy3d_schedule *schedule, hy3d_candidate *candidate);
/* Compiles one that has not failed and adds it to the candidates. Only a fatal error is one. */
hy3d_status hy3d__look_at(hy3d_context *context, hy3d_schedule *schedule,
                          hy3d_candidate *candidate);

/* --- levels of tiles -------------------------------------------------------------------------- */

/* Adds the tiles that are worth telling of: the largest that fit, and what was given up. */
hy3d_status hy3d__search_tiles(hy3d_context *context, hy3d_schedule *schedule, int32_t on_host);
/* Where nothing fits, the smallest budget: those that could take less than is known are compiled,
 * the least first. */
hy3d_status hy3d__find_smallest(hy3d_context *context, hy3d_schedule *schedule);

#endif
