/* Runs the programs of several ranks side by side. A RECV waits for its SEND, a REDUCE and an EMIT
 * for all ranks, and who begins an exchange until all that it sent in the one before, whose copies
 * have the memory that this one needs, was received. Each rank goes on as far as it can. Which of
 * them goes first changes nothing: one that waits for ever here does so in every order. */
#include "replay_walk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long long ll;

/* What one rank sends another, in order; the first `taken` are received. */
typedef struct channel {
    struct message {
        int32_t node;
        int64_t frames[2], rows[2];
    } *messages;
    int32_t count, taken;
} channel;

/* Frames that some rank made as its step number so and so of those that make any, or gave away. */
typedef struct made {
    int32_t op, node;
    int64_t frames[2];
} made;

struct replay_group {
    const hy3d_schedule_request *request;
    int32_t ranks;
    replay_walk walks[REPLAY_MOST_RANKS];
    replay_verdict verdicts[REPLAY_MOST_RANKS];
    channel channels[REPLAY_MOST_RANKS][REPLAY_MOST_RANKS]; /* from, to */
    /* REDUCEs and EMITs in order: what they are of, and which ranks have come to each; how many each
     * rank has behind it. */
    made *met;
    int32_t *arrived, meetings[REPLAY_MOST_RANKS];
    made *made; /* by the rank that made most so far */
    int32_t most_made, makes[REPLAY_MOST_RANKS];
    unsigned char *given; /* a byte a frame and row of the output */
};

static channel *channel_of(replay_walk *from, replay_walk *to)
{
    return &from->group->channels[from->rank][to->rank];
}

static const hy3d_step *step_of(const replay_walk *walk, int32_t at)
{
    return &walk->program->steps[walk->section->first_step + at];
}

/* The other rank; NULL where there is none. */
static replay_walk *peer_of(replay_walk *walk, const hy3d_step *step)
{
    if (step->peer < 0 || step->peer >= walk->group->ranks || step->peer == walk->rank) {
        replay_object(walk, "peer %d of %d", step->peer, walk->group->ranks);
        return NULL;
    }
    return &walk->group->walks[step->peer];
}

static bool is_exchange(const hy3d_step *step)
{
    return step->op == HY3D_STEP_SEND || step->op == HY3D_STEP_RECV;
}

/* Right behind the step that fills the slice: first SENDs, then RECVs, each by rising peers. */
static bool is_in_place(replay_walk *walk, const hy3d_step *step)
{
    const hy3d_step *const before = walk->at > 0 ? step_of(walk, walk->at - 1) : NULL;
    bool is = before != NULL && before->slice == step->slice;
    if (is && is_exchange(before)) {
        is = before->op < step->op || (before->op == step->op && before->peer < step->peer);
    } else {
        is = is && (replay_makes(before) || before->op == HY3D_STEP_KEYS);
    }
    return is || replay_object(walk, "it is not in its place behind what made slice %d",
                               step->slice);
}

/* A slice on the device, and some frames and rows of it. */
static bool concerns(replay_walk *walk, const hy3d_step *step)
{
    if (step->slice < 0 || step->slice >= walk->section->slices ||
        walk->slices[step->slice].place != REPLAY_ON_DEVICE) {
        return replay_object(walk, "slice %d is not on the device", step->slice);
    }
    const hy3d_slice *const slice = replay_slice_at(walk, step->slice);
    return (slice->node == step->node && step->sources + step->others == 0 && step->flags == 0 &&
            step->frames[0] < step->frames[1] && step->rows[0] < step->rows[1] &&
            is_in_place(walk, step)) ||
           replay_object(walk, "slice %d of node %d: frames %lld to %lld, rows %lld to %lld",
                         step->slice, slice->node, (ll)step->frames[0], (ll)step->frames[1],
                         (ll)step->rows[0], (ll)step->rows[1]);
}

bool replay_send(replay_walk *walk, const hy3d_step *step)
{
    replay_walk *const peer = peer_of(walk, step);
    const int64_t *const own = walk->rows[step->node].own;
    if (peer == NULL || !concerns(walk, step) ||
        !replay_rows_are_there(walk, step->slice, step->frames, step->rows)) {
        return false;
    }
    if (step->rows[0] < own[0] || step->rows[1] > own[1]) {
        return replay_object(walk, "rows %lld to %lld, and it makes %lld to %lld",
                             (ll)step->rows[0], (ll)step->rows[1], (ll)own[0], (ll)own[1]);
    }
    channel *const to = channel_of(walk, peer);
    to->messages[to->count++] = (struct message){
        step->node, {step->frames[0], step->frames[1]}, {step->rows[0], step->rows[1]}};
    return true;
}

bool replay_receive(replay_walk *walk, const hy3d_step *step)
{
    replay_walk *const peer = peer_of(walk, step);
    if (peer == NULL || !concerns(walk, step)) {
        return false;
    }
    channel *const from = channel_of(peer, walk);
    const struct message *const sent = &from->messages[from->taken++];
    if (sent->node != step->node || memcmp(sent->frames, step->frames, sizeof sent->frames) != 0 ||
        memcmp(sent->rows, step->rows, sizeof sent->rows) != 0) {
        return replay_object(walk, "frames %lld to %lld, rows %lld to %lld; rank %d sent of node "
                             "%d frames %lld to %lld, rows %lld to %lld", (ll)step->frames[0],
                             (ll)step->frames[1], (ll)step->rows[0], (ll)step->rows[1],
                             step->peer, sent->node, (ll)sent->frames[0], (ll)sent->frames[1],
                             (ll)sent->rows[0], (ll)sent->rows[1]);
    }
    return replay_rows_fill(walk, step->slice, step->frames, step->rows);
}

bool replay_give(replay_walk *walk, const hy3d_step *step)
{
    if (walk->group == NULL) {
        return true;
    }
    const int64_t rows = walk->values.of[walk->last].size.rows;
    for (int64_t frame = step->frames[0]; frame < step->frames[1]; frame++) {
        for (int64_t row = step->rows[0]; row < step->rows[1]; row++) {
            if (walk->group->given[frame * rows + row]++ != 0) {
                return replay_object(walk, "row %lld of frame %lld is given away a second time",
                                     (ll)row, (ll)frame);
            }
        }
    }
    return true;
}

static bool is_meeting(const hy3d_step *step)
{
    return step->op == HY3D_STEP_REDUCE || step->op == HY3D_STEP_EMIT;
}

static bool is_of(const made *what, const hy3d_step *step)
{
    return what->op == step->op && what->node == step->node &&
           what->frames[0] == step->frames[0] && what->frames[1] == step->frames[1];
}

/* All ranks come to the same REDUCEs and EMITs in the same order. Waits for the others. */
static bool meets(replay_walk *walk, const hy3d_step *step, bool *waits)
{
    replay_group *const group = walk->group;
    const int32_t at = group->meetings[walk->rank];
    int32_t *const arrived = &group->arrived[at];
    if (*arrived == 0) {
        group->met[at] = (made){step->op, step->node, {step->frames[0], step->frames[1]}};
    }
    if (!is_of(&group->met[at], step)) {
        return replay_object(walk, "another rank %s for frames %lld to %lld of node %d here",
                             group->met[at].op == HY3D_STEP_REDUCE ? "reduces" : "emits",
                             (ll)group->met[at].frames[0], (ll)group->met[at].frames[1],
                             group->met[at].node);
    }
    *arrived |= (int32_t)1 << walk->rank;
    *waits = *arrived != ((int32_t)1 << group->ranks) - 1;
    group->meetings[walk->rank] += !*waits;
    return true;
}

/* Whether something that the rank sent is not received. */
static bool is_on_its_way(const replay_walk *walk)
{
    bool is = false;
    for (int32_t peer = 0; peer < walk->group->ranks; peer++) {
        const channel *const to = &walk->group->channels[walk->rank][peer];
        is = is || to->taken < to->count;
    }
    return is;
}

/* Whether there is a slice of this number, of a node that there is: others are objected to later. */
static bool is_slice(const replay_walk *walk, int32_t number)
{
    return number >= 0 && number < walk->section->slices &&
           replay_slice_at(walk, number)->node >= walk->entry &&
           replay_slice_at(walk, number)->node <= walk->last;
}

/* Bytes of the copies of the largest exchange: a SEND of the rows that the one before it sends needs
 * none of its own. */
static int64_t largest_exchange(const replay_walk *walk)
{
    int64_t largest = 0, bytes = 0;
    for (int32_t at = 0; at < walk->section->steps; at++) {
        const hy3d_step *const step = step_of(walk, at);
        const hy3d_step *const before = at > 0 ? step_of(walk, at - 1) : step;
        if (!is_exchange(step) || !is_slice(walk, step->slice)) {
            bytes = 0;
            continue;
        }
        const bool is_copied = step->op == HY3D_STEP_SEND && before->op == HY3D_STEP_SEND &&
                               at > 0 && before->slice == step->slice &&
                               before->frames[0] == step->frames[0] &&
                               before->frames[1] == step->frames[1] &&
                               before->rows[0] == step->rows[0] &&
                               before->rows[1] == step->rows[1];
        for (int64_t row = step->rows[0]; row < step->rows[1] && !is_copied; row++) {
            bytes += replay_bytes(walk, replay_slice_at(walk, step->slice),
                                  step->frames[1] - step->frames[0], 1);
        }
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* Whether the step makes what the other ranks make at this place. */
static bool makes_the_same(replay_walk *walk, const hy3d_step *step)
{
    replay_group *const group = walk->group;
    const bool makes = (replay_makes(step) && step->op != HY3D_STEP_TRIM) ||
                       step->op == HY3D_STEP_KEYS;
    if (!makes) {
        return true;
    }
    made *const at = &group->made[group->makes[walk->rank]++];
    if (group->makes[walk->rank] > group->most_made) {
        *at = (made){step->op, step->node, {step->frames[0], step->frames[1]}};
        group->most_made++;
    }
    return is_of(at, step) ||
           replay_object(walk, "another rank makes frames %lld to %lld of node %d here",
                         (ll)at->frames[0], (ll)at->frames[1], at->node);
}

static bool has_share(const replay_walk *walk)
{
    return walk->rows[walk->last].own[0] < walk->rows[walk->last].own[1];
}

/* Whether the step must wait before it is begun. */
static bool may_begin(replay_walk *walk, const hy3d_step *step, bool *waits)
{
    if (!has_share(walk) && !is_meeting(step)) {
        return replay_object(walk, "of a rank whose share is empty");
    }
    if (step->op == HY3D_STEP_RECV && step->peer >= 0 && step->peer < walk->group->ranks) {
        const channel *const from = channel_of(&walk->group->walks[step->peer], walk);
        *waits = from->taken == from->count;
    }
    const bool goes_on = walk->at > 0 && is_exchange(step_of(walk, walk->at - 1));
    if (is_exchange(step) && !goes_on) {
        *waits = *waits || is_on_its_way(walk);
    }
    return !is_meeting(step) || meets(walk, step, waits);
}

/* Goes on as far as it can. false: nothing moved. */
static bool advance(replay_walk *walk)
{
    bool has_moved = false, waits = false;
    while (walk->at < walk->section->steps && walk->verdict->text[0] == '\0') {
        const hy3d_step *const step = step_of(walk, walk->at);
        if (!may_begin(walk, step, &waits) || waits || !makes_the_same(walk, step) ||
            !replay_act(walk, step) || !replay_give_back(walk, step)) {
            return has_moved;
        }
        has_moved = true;
        walk->at++;
    }
    return has_moved;
}

/* The first that a rank objects to is all ranks'. */
static bool is_good(const replay_group *group, replay_verdict *verdict)
{
    for (int32_t rank = 0; rank < group->ranks && verdict->text[0] == '\0'; rank++) {
        memcpy(verdict->text, group->verdicts[rank].text, sizeof verdict->text);
    }
    return verdict->text[0] == '\0';
}

static bool run(replay_group *group, replay_verdict *verdict)
{
    bool has_moved = true;
    while (has_moved && is_good(group, verdict)) {
        has_moved = false;
        for (int32_t rank = 0; rank < group->ranks; rank++) {
            has_moved = advance(&group->walks[rank]) || has_moved;
        }
    }
    for (int32_t rank = 0; rank < group->ranks && is_good(group, verdict); rank++) {
        replay_walk *const walk = &group->walks[rank];
        if (walk->at < walk->section->steps) {
            replay_object(walk, "waits for ever");
        }
    }
    return is_good(group, verdict);
}

/* Each rank is done, nothing is on its way, and all frames and rows were given away. */
static bool ends_well(replay_group *group, replay_verdict *verdict)
{
    const hy3d_size *const output = &group->walks[0].values.of[group->walks[0].last].size;
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        replay_end(&group->walks[rank]);
        if (is_on_its_way(&group->walks[rank])) {
            replay_object(&group->walks[rank], "what it sent is never received");
        }
    }
    for (int64_t i = 0; i < output->frames * output->rows && is_good(group, verdict); i++) {
        if (group->given[i] == 0) {
            replay_object(&group->walks[0], "row %lld of frame %lld is never given away",
                          (ll)(i % output->rows), (ll)(i / output->rows));
        }
    }
    return is_good(group, verdict);
}

static void add_up(hy3d_candidate *sum, const hy3d_candidate *one)
{
    sum->device_bytes =
        one->device_bytes > sum->device_bytes ? one->device_bytes : sum->device_bytes;
    sum->host_bytes = one->host_bytes > sum->host_bytes ? one->host_bytes : sum->host_bytes;
    sum->stored_bytes += one->stored_bytes;
    sum->loaded_bytes += one->loaded_bytes;
    sum->sent_bytes += one->sent_bytes;
    sum->macs += one->macs;
    sum->steps += one->steps;
    sum->fits = sum->fits && one->fits;
}

bool replay_is_same(const hy3d_candidate *a, const hy3d_candidate *b)
{
    return a->strategy == b->strategy && a->order == b->order && a->on_host == b->on_host &&
           a->chunk == b->chunk && a->slice_bytes == b->slice_bytes && a->level == b->level &&
           a->halo_row == b->halo_row && a->tiles == b->tiles && a->tile[0] == b->tile[0] &&
           a->tile[1] == b->tile[1] && a->is_exact == b->is_exact &&
           a->resident_bytes == b->resident_bytes && a->is_early == b->is_early &&
           a->status == b->status && a->fits == b->fits && a->device_bytes == b->device_bytes &&
           a->host_bytes == b->host_bytes && a->stored_bytes == b->stored_bytes &&
           a->loaded_bytes == b->loaded_bytes && a->sent_bytes == b->sent_bytes &&
           a->macs == b->macs && a->steps == b->steps && !(a->seconds < b->seconds) &&
           !(a->seconds > b->seconds);
}

/* Whether the rank's program says which rows of the input each rank's slices have. */
static void says_input_rows(replay_walk *walk)
{
    for (int32_t rank = 0; rank < walk->group->ranks; rank++) {
        const replay_walk *const other = &walk->group->walks[rank];
        const int64_t *const held = other->rows[other->entry].held;
        const int64_t *const said = walk->program->input_rows[rank];
        if (said[0] != held[0] || said[1] != held[1]) {
            replay_object(walk, "of the input rank %d needs rows %lld to %lld, not %lld to %lld",
                          rank, (ll)held[0], (ll)held[1], (ll)said[0], (ll)said[1]);
        }
    }
}

/* No rank is done before all that it sends went over its link. */
static void has_time(replay_walk *walk)
{
    const double seconds =
        (double)walk->verdict->sent_bytes / walk->request->link_bytes_per_second;
    if (walk->program->candidate.seconds < seconds * (1 - 1e-9)) {
        replay_object(walk, "%g s, and what it sends takes %g s", walk->program->candidate.seconds,
                      seconds);
    }
}

/* What all ranks together take is what each rank's candidate says. */
static bool agrees(replay_group *group, replay_verdict *verdict)
{
    hy3d_candidate sum = replay_stated(&group->walks[0]);
    for (int32_t rank = 1; rank < group->ranks; rank++) {
        const hy3d_candidate one = replay_stated(&group->walks[rank]);
        add_up(&sum, &one);
    }
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        if (!replay_is_same(&group->walks[rank].program->candidate,
                            &group->walks[0].program->candidate)) {
            replay_object(&group->walks[rank], "its candidate is not rank 0's");
        }
        has_time(&group->walks[rank]);
        says_input_rows(&group->walks[rank]);
    }
    verdict->device_bytes = sum.device_bytes;
    verdict->host_bytes = sum.host_bytes;
    verdict->stored_bytes = sum.stored_bytes;
    verdict->loaded_bytes = sum.loaded_bytes;
    verdict->sent_bytes = sum.sent_bytes;
    verdict->macs = sum.macs;
    verdict->steps = sum.steps;
    replay_agrees(&group->walks[0], &sum);
    return is_good(group, verdict);
}

/* How often the rank sends to another. */
static int32_t sends_to(const replay_walk *walk, int32_t peer)
{
    int32_t count = 0;
    for (int32_t i = 0; i < walk->section->steps; i++) {
        count += step_of(walk, i)->op == HY3D_STEP_SEND && step_of(walk, i)->peer == peer;
    }
    return count;
}

static void open_group(replay_group *group)
{
    int32_t most = 0;
    for (int32_t from = 0; from < group->ranks; from++) {
        const replay_walk *const walk = &group->walks[from];
        most = walk->section->steps > most ? walk->section->steps : most;
        for (int32_t to = 0; to < group->ranks; to++) {
            group->channels[from][to].messages =
                replay_room(sends_to(walk, to), sizeof(struct message));
        }
    }
    const hy3d_size *const output = &group->walks[0].values.of[group->walks[0].last].size;
    group->met = replay_room(most, sizeof *group->met);
    group->arrived = replay_room(most, sizeof *group->arrived);
    group->made = replay_room(most, sizeof *group->made);
    group->given = replay_room(output->frames * output->rows, 1);
}

static void close_group(replay_group *group)
{
    for (int32_t from = 0; from < group->ranks; from++) {
        for (int32_t to = 0; to < group->ranks; to++) {
            free(group->channels[from][to].messages);
        }
    }
    free(group->met);
    free(group->arrived);
    free(group->made);
    free(group->given);
}

const char *replay_unshared(const hy3d_node *node)
{
    const int64_t last_tap = (int64_t)node->dilation[1] * (node->kernel[1] - 1);
    const bool sees_padding = node->op == HY3D_OP_CONV &&
                              (node->before[1] > last_tap || node->after[1] > last_tap);
    return node->op == HY3D_OP_OPAQUE        ? "is unknown code"
           : node->norm == HY3D_NORM_FRAME ? "has a norm of frames"
           : sees_padding                  ? "may see padding alone"
                                           : NULL;
}

static bool is_offered(replay_walk *walk)
{
    const int32_t order = walk->program->candidate.order;
    for (int32_t node = 0; node < walk->request->graph.count; node++) {
        const char *const why = replay_unshared(replay_node_at(walk, node));
        if (why != NULL) {
            return replay_object(walk, "node %d %s", node, why);
        }
    }
    return (order >= HY3D_ORDER_LAYERS && order <= HY3D_ORDER_PREFIX) ||
           replay_object(walk, "order %d of several ranks", order);
}

/* The weights that were asked for; of none, equal ones, or those of what the devices may hold, in
 * eighths of the least. */
static bool has_right_weights(replay_walk *walk)
{
    const hy3d_schedule_request *const request = walk->request;
    const int32_t *const weights = walk->program->weights;
    bool is_equal = true, is_asked = request->weights != NULL;
    bool is_by_room = request->device_budgets != NULL;
    double least = INFINITY;
    for (int32_t rank = 0; is_by_room && rank < request->ranks; rank++) {
        least = fmin(least, (double)request->device_budgets[rank]);
    }
    for (int32_t rank = 0; rank < request->ranks; rank++) {
        const double parts = is_by_room ? 8 * (double)request->device_budgets[rank] / least : 0;
        is_asked = is_asked && weights[rank] == request->weights[rank];
        is_equal = is_equal && weights[rank] == 1;
        is_by_room = is_by_room && least > 0 &&
                     fabs(fmin(parts, 1 << 24) - weights[rank]) <= 0.5 + 1e-6;
    }
    return (request->weights != NULL ? is_asked : is_equal || is_by_room) ||
           replay_object(walk, "rows are shared in another ratio");
}

/* Bytes of the input's rows that rank 0 has sent the rank. */
static int64_t given_input(const replay_walk *walk)
{
    const hy3d_size *const size = &walk->values.of[walk->entry].size;
    const int64_t *const held = walk->rows[walk->entry].held;
    return walk->rank == 0 ? 0
                           : walk->request->source_bytes * size->channels * size->frames *
                                 (held[1] - held[0]) * size->columns;
}

/* Begins all ranks, up to the first that can't be; how many were. */
static int32_t begin(replay_group *group, const hy3d_program *const *programs)
{
    bool is_sound = true;
    int32_t begun = 0;
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        replay_walk *const walk = &group->walks[rank];
        *walk = replay_walk_of(group->request, programs[rank], &group->verdicts[rank]);
        walk->group = group;
        walk->rank = rank;
        is_sound = is_sound && is_offered(walk) && has_right_weights(walk) &&
                   replay_is_laid_out(walk) && replay_begin(walk, 0);
        begun += is_sound;
        if (is_sound) { /* throughout */
            walk->device += largest_exchange(walk);
            walk->host += given_input(walk);
            walk->verdict->device_bytes = walk->device;
            walk->verdict->host_bytes = walk->host;
            walk->verdict->both_bytes = walk->device + walk->host;
        }
    }
    return begun;
}

bool replay_ranks(const hy3d_schedule_request *request, const hy3d_program *const *programs,
                  replay_verdict *verdict)
{
    replay_group group = {.request = request, .ranks = request->ranks};
    *verdict = (replay_verdict){.shapes = 0xcbf29ce484222325U};
    if (request->ranks < 1 || request->ranks > REPLAY_MOST_RANKS) {
        snprintf(verdict->text, sizeof verdict->text, "%d ranks", request->ranks);
        return false;
    }
    const int32_t begun = begin(&group, programs);
    if (begun == group.ranks) {
        open_group(&group);
        if (run(&group, verdict) && ends_well(&group, verdict)) {
            agrees(&group, verdict);
        }
        close_group(&group);
    }
    for (int32_t rank = 0; rank < group.ranks; rank++) {
        verdict->shapes = verdict->shapes * 31 + group.verdicts[rank].shapes;
        if (rank < begun) {
            replay_close(&group.walks[rank]);
        }
        replay_walk_free(&group.walks[rank]);
    }
    return is_good(&group, verdict);
}
