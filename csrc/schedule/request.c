/* Whether a request's fields are in their ranges. */
#include <math.h>
#include <stddef.h>

#include "hy3d/conv3d.h"
#include "schedule/compile.h"

static bool right_rate(double rate)
{
    return rate > 0 && isfinite(rate);
}

static bool right_machine(const hy3d_machine *m)
{
    for (int i = 0; i < HY3D_SCHEDULE_MAX_CHUNKS; i++) {
        if (m->chunks[i] < (i == 0)) {
            return false;
        }
    }
    return right_rate(m->macs_per_second) && right_rate(m->bytes_per_second) &&
           right_rate(m->seconds_per_step) && right_rate(m->own_seconds_share) &&
           m->slice_bytes[0] > 0 && m->slice_bytes[1] >= 0;
}

static bool right_halos(const hy3d_tile_sizes halos[HY3D_SCHEDULE_MAX_HALOS])
{
    const int64_t most = INT64_C(1) << 40;
    for (int i = 0; i < HY3D_SCHEDULE_MAX_HALOS; i++) {
        const hy3d_tile_sizes *sizes = &halos[i];
        if (sizes->halo < -1 || sizes->halo > most || sizes->overlap < 0 || sizes->overlap > most ||
            sizes->smallest < 0 || sizes->smallest > most) {
            return false;
        }
    }
    return true;
}

/* None is given, or all are. */
static bool right_unit(const int32_t unit[3])
{
    const bool is_given = unit[0] > 0;
    return unit[0] >= 0 && (unit[1] > 0) == is_given && (unit[2] > 0) == is_given && unit[1] >= 0 &&
           unit[2] >= 0;
}

static bool right_alike(const hy3d_schedule_request *r)
{
    for (int32_t i = 0; r->alike != NULL && i < r->graph.count; i++) {
        if (r->alike[i] < 0 || r->alike[i] > i || r->alike[r->alike[i]] != r->alike[i]) {
            return false;
        }
    }
    return true;
}

static bool right_mode(int32_t mode)
{
    return mode == HY3D_PAD_ZEROS || mode == HY3D_PAD_REPLICATE;
}

static bool right_place(const hy3d_schedule_request *r, const hy3d_place *p)
{
    if (p->layers == NULL) {
        return true;
    }
    for (int32_t i = 0; i < r->graph.count; i++) {
        const hy3d_layer *l = &p->layers[i];
        const int32_t op = r->graph.nodes[i].op;
        const bool is_convolved = op == HY3D_OP_CONV || op == HY3D_OP_ATTENTION;
        if (l->packed_bytes < 0 || l->kept_bytes < l->packed_bytes ||
            l->kept_bytes > HY3D__MOST_BYTES ||
            (l->is_native && (!is_convolved || p->threads < 1 || p->dtype == HY3D_F64)) ||
            !right_mode(l->pad_mode[0]) || !right_mode(l->pad_mode[1])) {
            return false;
        }
    }
    return r->inside != NULL && p->dtype >= HY3D_F32 && p->dtype <= HY3D_BF16 &&
           (int64_t)hy3d_dtype_bytes((hy3d_dtype)p->dtype) == r->element_bytes && p->threads >= 0 &&
           p->fewest_shuffled >= 0 && p->block_elements >= 1 &&
           p->block_elements <= HY3D__MOST_BYTES && p->score_bytes >= 1;
}

/* Of ranks that are not too many: what is said of each. */
static bool right_shares(const hy3d_schedule_request *r)
{
    int64_t all = 0;
    for (int32_t rank = 0; rank < r->ranks; rank++) {
        const int32_t weight = r->weights == NULL ? 1 : r->weights[rank];
        if (weight < 1 || (r->device_budgets != NULL && r->device_budgets[rank] < 0)) {
            return false;
        }
        all += weight;
    }
    return all <= INT32_MAX;
}

bool hy3d__right_request(const hy3d_schedule_request *r)
{
    const int64_t counts[] = {r->result_bytes,   r->kept_bytes,  r->margin_bytes,
                              r->device_budget,  r->host_budget, r->most_shape_bytes,
                              r->busy_positions, r->device_room};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i] < 0 || (i < 3 && counts[i] > HY3D__MOST_BYTES)) {
            return false;
        }
    }
    const bool one_rank = r->ranks <= 1 && r->rank == 0;
    const bool right_ranks =
        one_rank || (r->rank >= 0 && r->rank < r->ranks && r->ranks <= HY3D_SCHEDULE_MAX_RANKS &&
                     right_rate(r->link_bytes_per_second) && right_shares(r));
    return r->element_bytes >= 1 && r->element_bytes <= 16 && r->input_bytes >= 0 &&
           r->input_bytes <= 16 && r->source_bytes >= 0 && r->source_bytes <= 16 &&
           r->own_bytes >= HY3D_OWN_BYTES_ASKED && r->own_bytes <= HY3D__MOST_BYTES &&
           (r->own_bytes != HY3D_OWN_BYTES_ASKED || r->workspace != NULL) &&
           r->margin_permille >= 0 && r->margin_permille <= 1000 && r->ranks >= 0 && right_ranks &&
           r->statistic_passes >= 0 && r->statistic_passes <= 64 && r->only_level >= 0 &&
           r->strategies != 0 && r->strategies < 16 && right_rate(r->copy_bytes_per_second) &&
           right_unit(r->unit) && right_halos(r->halos) && right_alike(r) &&
           right_place(r, &r->places[0]) && right_place(r, &r->places[1]) &&
           (r->is_host || right_machine(&r->device)) &&
           (!(r->is_host || (r->strategies & 1u << HY3D_STRATEGY_HOST)) || right_machine(&r->host));
}
