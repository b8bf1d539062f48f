/* Schedules a VAE's decode (or encode): compiles its graph (graph.h) into a program, a list of
 * steps that is carried out one by one. Which way is taken, what lies in memory when, what leaves
 * for the host and comes back, and what follows a failure is all decided here; who carries the
 * program out turns each step into one operation on tensors.
 *
 * What a program guarantees, and tests/c/replay.c checks independently:
 *   - a step reads only what is complete and on the device;
 *   - each frame of the output is given away once and in order (in tiles: of each tile);
 *   - device and host memory never exceed the peaks that the program states;
 *   - the shapes of its computing steps depend on the input's size and the strategy, never on a
 *     budget, so neither do the bits of the result.
 *
 * A slice is a run of frames of one value as one tensor, never changed once it is made (but for
 * that of keys and values, which KEYS fills). A section begins with no slices and ends with none;
 * slices are numbered within the section.
 *
 * Memory. On the device are: `kept_bytes` of the request; what a node keeps, from its first step in
 * the program on; what the first step of a shape leaves, from that step on, of all shapes together
 * at most `most_shape_bytes`; each slice from the step that makes it, or its LOAD, until it is
 * freed or its DROP; during a step its workspace. A result that is written over a slice
 * (HY3D_STEP_OVERWRITE) has that slice's memory: the two count once. On the host are:
 * `result_bytes`; of a rank but rank 0, where the request has `source_bytes`, its rows of the
 * input; the prefix's output from its first EMIT on; each slice's copy from its STORE
 * until the slice is freed. What a step frees, it frees when it is over. Slices of keys never
 * leave. A slice is stored once at most: it may be dropped again after a LOAD.
 *
 * Several ranks (`ranks` > 1). Rows are shared, nothing else: with U the greatest common divisor of
 * the rows of all values and of what each convolution makes before its shuffle, and W(r) the sum of
 * the program's weights of the ranks before r, rank r holds of R rows those from U * W(r) /
 * W(ranks) * (R / U) up to U * W(r + 1) / W(ranks) * (R / U) (divisions rounded down, from the
 * left). A slice has those of its value and, where this rank's rows of a convolution read others of
 * that value, whichever frames, all between the first and the last of them, too; where an attention
 * of span FRAME reads the value, and of keys, all rows. What computes a slice makes this rank's
 * rows of it (ENTER all rows of the slice: each rank has the whole input, or rank 0 has sent it
 * these, `input_rows` of the program, before; a TRIM all, too), and its macs are of these (of
 * ATTEND of span FRAME two projections of all rows). A CONV reads the rows
 * between the first and the last that its taps touch, is padded at the picture's border only, and
 * what of these rows, up-sampled, lies before or behind the taps is cropped, fewer than `up`; the
 * other steps read this rank's rows, ATTEND of span FRAME all, a TRIM those of its slice. MOMENTS,
 * GATHER, KEYS and EMIT are of this rank's rows, as is REDUCE, which sums over all ranks. SEND
 * begins to send this rank's rows to another rank, RECV fills rows of another in; a slice that
 * lacks none is complete. Both stand right behind the step that makes the slice (in keys: that
 * fills them), first the SENDs, then the RECVs, each by rising peers; of what a step makes and
 * frees there are none. What is sent is sent from a copy (one for peers in a row that get the same
 * rows), and what comes is filled in from one: so much as the largest such exchange takes is on the
 * device throughout. EMIT: rank 0 gets the rows of all others and puts the frames together; its
 * workspace is both, the others' a copy of their rows. All ranks make the same frames in the same
 * order, so of each pair of ranks one's SENDs to the other are in order the other's RECVs from it,
 * of the same node, frames and rows: no rank waits for ever, even if it begins an exchange only
 * once all that it sent in the one before was received. A rank whose share is empty has REDUCE and
 * EMIT steps alone, without slices: all ranks meet in these. Offered are LAYERS, CHUNKS and PREFIX
 * of graphs without OPAQUE and HY3D_NORM_FRAME, of whose rows a rank has a part, where no CONV pads
 * as many rows as its kernel spans; for its MAPs a row is made of the rows at its place. A
 * candidate is compiled for every rank: it fits where it does on each, its peaks and its seconds
 * are those of the rank with the most of each, its sent_bytes, macs, steps and copies of all
 * together; so ranks whose requests differ in `rank` alone take the same. Seconds: what is sent is
 * not hidden, each rank's bytes over link_bytes_per_second come on top; neither they nor sent_bytes
 * count what EMITs send, nor rows of the input. */
#ifndef HY3D_SCHEDULE_H
#define HY3D_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "hy3d/context.h"
#include "hy3d/export.h"
#include "hy3d/graph.h"
#include "hy3d/status.h"
#include "hy3d/tiles.h"

typedef enum hy3d_step_op {
    HY3D_STEP_ENTER = 0,   /* frames of the section's input, onto the device */
    HY3D_STEP_CONV = 1,    /* frames of a convolution */
    HY3D_STEP_PASS = 2,    /* frames that pass by a convolution, residual added */
    HY3D_STEP_KEYS = 3,    /* keys and values of some frames, into the slice that holds them all */
    HY3D_STEP_ATTEND = 4,  /* attention of some frames (span FRAME: with their own keys) */
    HY3D_STEP_MAP = 5,     /* a function of single frames */
    HY3D_STEP_ADD = 6,     /* a sum */
    HY3D_STEP_TRIM = 7,    /* the last frames of a slice, copied, so that the rest can be freed: by
                              this step, or by the next one, which is written over the slice */
    HY3D_STEP_OPAQUE = 8,  /* a VAE's own code on all frames; of the strategy WHOLE the one step
                              there is, of node OUTPUT and without slices */
    HY3D_STEP_MOMENTS = 9, /* mean and variance of a slice, where its maker did not give them */
    HY3D_STEP_REDUCE = 10, /* a GroupNorm's statistics from its source's slices (of all ranks) */
    HY3D_STEP_EMIT = 11,   /* a slice of the output is given away */
    HY3D_STEP_STORE = 12,  /* begins to copy a slice to the host */
    HY3D_STEP_DROP = 13,   /* gives a slice's device memory back, once its copy is complete */
    HY3D_STEP_LOAD = 14,   /* begins to copy a slice back */
    HY3D_STEP_SEND = 15,   /* rows of a slice to another rank */
    HY3D_STEP_RECV = 16,   /* rows of a slice from another rank */
} hy3d_step_op;
#define HY3D_STEP_OPS 17

/* Flags of a step. */
#define HY3D_STEP_GATHER 1    /* mean and variance of the result are wanted */
#define HY3D_STEP_OVERWRITE 2 /* `other` (ADD: the source) is not read again: write over it */

/* refs[first_ref ..] are numbers of slices: `sources` of the node's source in order of time, then
 * `others` of its residual or second summand, then `frees` that are not read after the step. A
 * slice freed by a step may be the one it made (frames that are made and dropped). */
typedef struct hy3d_step {
    int32_t op, node;
    int32_t slice; /* made by the step; of STORE DROP LOAD EMIT MOMENTS SEND the one concerned, of
                      KEYS the one filled (made by the node's first KEYS); -1: none */
    int32_t flags;
    int64_t own[2];       /* CONV: frames of the convolution's output before the shuffle */
    int64_t frames[2];    /* of the value that is made or concerned, first and one past the last */
    int64_t reads[2];     /* frames of the source that are read; equal where none are */
    int64_t rows[2];      /* rows of the value that is made or concerned; SEND, RECV: those sent */
    int64_t read_rows[2]; /* rows of the source that are read; equal where none are. On one device
                               all that it has */
    int64_t row_padding[2]; /* CONV: of these rows, up-sampled, before and after; less than 0: so
                               many of them are cropped (conv3d.h). On one device the node's own */
    int32_t drop;           /* CONV: frames cut off the front of what the convolution gives */
    int32_t peer;           /* SEND, RECV: the other rank; else -1 */
    int32_t first_ref, sources, others, frees;
    int64_t macs;            /* multiply-accumulates: of a CONV; of the projections of KEYS (two),
                                ATTEND (two, of span FRAME four); of ATTEND also 2 * width for each
                                pair of a position and one that it sees */
    int64_t workspace_bytes; /* beside what is read and made */
} hy3d_step;

/* bytes: on the device. is_keys: keys and values of an attention instead of frames of its value. */
typedef struct hy3d_slice {
    int32_t node, is_keys;
    int64_t frames[2], rows[2];
    int64_t bytes;
    int64_t host_at; /* where its copy begins in the program's memory on the host (copies_bytes), a
                        multiple of HY3D_SCHEDULE_COPY_ALIGNMENT; -1: none is made */
} hy3d_slice;
#define HY3D_SCHEDULE_COPY_ALIGNMENT 256

typedef enum hy3d_section_kind {
    HY3D_SECTION_ALL = 0,        /* the whole graph on the whole picture */
    HY3D_SECTION_PREFIX = 1,     /* up to the cut; its output is kept beside (prefix_bytes) */
    HY3D_SECTION_STATISTICS = 2, /* behind the cut on a part: estimates its norms' statistics */
    HY3D_SECTION_TILE = 3,       /* behind the cut, a tile of the picture, norms as estimated */
} hy3d_section_kind;

/* steps[first_step .. first_step + steps) on the rows and columns of the section's input; tiles of
 * one size share their steps. pass: 0, or the number of the correction that a tile's run is for
 * (1 ..), whose frames nobody wants. */
typedef struct hy3d_section {
    int32_t kind, pass, tile;
    int32_t first_step, steps, first_slice, slices;
    int64_t size[3];             /* of the section's input, (T, H, W) */
    int64_t rows[2], columns[2]; /* of the cut's value that a tile reads */
} hy3d_section;

typedef enum hy3d_strategy {
    HY3D_STRATEGY_WHOLE = 0,    /* the VAE's own code, at once */
    HY3D_STRATEGY_STREAMED = 1, /* exact: by layers, by chunks, or a prefix by layers then chunks */
    HY3D_STRATEGY_TILED = 2,    /* tiles of the picture, blended; exact only where a halo can be */
    HY3D_STRATEGY_HOST = 3,     /* either of the two before, on the host; where the device is that
                                   (is_host), the one of them that is not allowed itself */
} hy3d_strategy;

typedef enum hy3d_order {
    HY3D_ORDER_WHOLE = 0,
    HY3D_ORDER_LAYERS = 1, /* each node over all frames, slice by slice */
    HY3D_ORDER_CHUNKS = 2, /* some frames of the input at a time through all nodes */
    HY3D_ORDER_PREFIX = 3, /* up to the cut by layers, behind it by chunks */
    HY3D_ORDER_TILES = 4,  /* a prefix by layers, then each tile by chunks */
} hy3d_order;

/* One way to carry the decode out, and what it takes. */
typedef struct hy3d_candidate {
    int32_t strategy, order, on_host;
    int32_t chunk;           /* CHUNKS, PREFIX, TILES: frames of the (section's) input at a time */
    int64_t slice_bytes;     /* LAYERS: of a step's result or padded input; CHUNKS: 0, no limit */
    int32_t level, halo_row; /* TILES: level of tiles; which of the request's halos */
    int64_t tiles, tile[2];  /* TILES: how many, and rows and columns of the output that the largest
                                decodes */
    int32_t is_exact;
    int64_t resident_bytes; /* the device holds so many bytes at most; -1: nothing leaves */
    int32_t is_early;       /* what the next step reads comes back before the one before it */
    int32_t repacks;        /* packed weights are made by each step, and dropped again */
    /* Results of compiling it. status: HY3D_OK, or why there is none. */
    int32_t status;
    int32_t fits;
    /* At the peak, results that stay in memory included. Where the device is the host, device_bytes
     * is the peak of both together and host_bytes 0; of a candidate on_host beside a device,
     * host_bytes is that and device_bytes 0. */
    int64_t device_bytes, host_bytes;
    int32_t lacks_room;   /* it fits, but not as a caching allocator lays it out in device_room */
    int32_t is_bound;     /* it takes so much at least, which does not fit: it was given up before
                             all of it was compiled; macs, steps and seconds are 0 */
    int64_t margin_bytes; /* planned on top: of device_bytes, beside a device of host_bytes where it
                             is on_host; of WHOLE 0 where own_bytes is not known */
    int64_t stored_bytes, loaded_bytes; /* device to host, host to device, all steps */
    int64_t sent_bytes;                 /* to other ranks, by SENDs */
    int64_t macs, steps;
    double seconds;
} hy3d_candidate;

#define HY3D_SCHEDULE_MAX_RANKS 64
#define HY3D_SCHEDULE_MAX_CHUNKS 3
/* What computes: the device, or the host. */
typedef struct hy3d_machine {
    int64_t slice_bytes[2]; /* of LAYERS, tried in this order; 0: none. The first is given */
    int32_t chunks[HY3D_SCHEDULE_MAX_CHUNKS]; /* of CHUNKS and PREFIX, likewise: frames of the input
                                                 at a time, or units (`unit`). TILES take the last
                                                 that is given, and of slice_bytes, too */
    double macs_per_second, bytes_per_second, seconds_per_step; /* > 0 */
    double own_seconds_share; /* WHOLE: seconds of the VAE's own code for one of these; > 0 */
} hy3d_machine;

/* Sizes of tiles in rows of the output. */
typedef struct hy3d_tile_sizes {
    int64_t halo, overlap, smallest; /* halo -1: as far as a cut is felt, which is exact where no
                                        GroupNorm (of all frames or of one) is behind the cut */
} hy3d_tile_sizes;
#define HY3D_SCHEDULE_MAX_HALOS 4
/* A candidate of more steps is not offered (its status is HY3D_ERR_OVERFLOW). */
#define HY3D_SCHEDULE_MAX_STEPS (1 << 20)
#define HY3D_OWN_BYTES_ASKED (-2)

/* What a step takes beside what it reads and makes; zeroed before the question. */
#define HY3D_SCHEDULE_MAX_SHAPES (1 << 16)
typedef struct hy3d_step_memory {
    int64_t workspace_bytes; /* while it runs */
    int64_t kept_bytes;      /* what the node's first step makes that stays until the end (converted
                                or packed weights), the same whichever of its steps that is; of a
                                call it counts for nothing: hy3d_layer has it */
    int64_t shape_bytes;     /* what a program's first step of `shape` leaves until the end (code
                                generated for it), the same for all steps of the shape */
    int32_t shape;           /* where shape_bytes > 0: 0 .. HY3D_SCHEDULE_MAX_SHAPES - 1, the same
                                for all steps, of whichever nodes, that leave this only once */
    int32_t is_in_place;     /* of a call: a residual that is laid out as its results are
                                becomes the result; else the result lies beside it for a while */
} hy3d_step_memory;

/* `step` is complete but for workspace_bytes; source: the size of its source in its section. Asked
 * once in a schedule for steps of nodes that are `alike`, of sources of one size, that differ in
 * their place only: in which frames they make and read, but not in how many, nor in whether the
 * source's first and last are among them (ATTEND: the value's, too); of several ranks for each of
 * them, since their rows differ. */
typedef hy3d_status (*hy3d_workspace_function)(void *user, const hy3d_step *step,
                                               const hy3d_size *source, int32_t on_host,
                                               hy3d_step_memory *taken_out);

/* What of a node one call computes. */
typedef enum hy3d_part {
    HY3D_PART_LAYER = 0,   /* CONV: all of it but its residual; MAP and OPAQUE: all of it */
    HY3D_PART_QUERIES = 1, /* ATTENTION: norm and queries, keys and values where one product makes
                              them all; keys and values that are made apart take the same */
    HY3D_PART_OUT = 2,     /* ATTENTION: the projection behind it */
} hy3d_part;

/* One call of what computes at a place, a convolution or a function of frames, as it is made for a
 * step. Frames of a CONV are counted from where its own video begins (skip_first, reread). */
typedef struct hy3d_call {
    int32_t node, part, on_host;
    int32_t is_made;        /* its source is laid out as results of convolutions are */
    hy3d_size source;       /* frames: of the whole video; rows: those that are read */
    int64_t row_padding[2]; /* CONV: as the step's */
    int64_t reads[2];       /* frames of the source that are there */
    int64_t makes[2];       /* before a shuffle */
} hy3d_call;

/* What a call takes beside its source and its result: a padded input, what is inside a convolution,
 * a shuffled copy. Asked once for what differs in its place only, as `workspace` is. The calls of
 * one step leave one shape at most. */
typedef hy3d_status (*hy3d_inside_function)(void *user, const hy3d_call *call,
                                            hy3d_step_memory *taken_out);

/* How a node is computed at a place: what it does not say itself. */
typedef struct hy3d_layer {
    int32_t is_native; /* CONV, ATTENTION: the C convolution computes it, or its projections, fused
                            (conv3d.h) and HY3D_FAST; else `inside` is asked */
    int32_t pad_mode[2];  /* CONV: hy3d_pad_mode of rows and columns */
    int32_t is_fused;     /* ATTENTION: queries, keys and values are one product */
    int32_t is_composed;  /* ATTENTION: its scores are a tensor, their softmax another */
    int32_t is_rescaled;  /* ATTENTION: the sum is divided, in a tensor that is there */
    int64_t kept_bytes;   /* from its first step on: parameters that are converted or packed */
    int64_t packed_bytes; /* of these, what each step can pack again from what stays */
} hy3d_layer;

/* Where steps are computed: what they take there follows from this, and from what `inside` says of
 * calls that are not the core's own. */
typedef struct hy3d_place {
    const hy3d_layer *layers; /* one a node; NULL: `workspace` is asked of every step */
    int32_t dtype;            /* hy3d_dtype of all values; of F64 no layer is_native */
    int32_t threads; /* as hy3d_conv3d_desc.num_threads; 0: an attention that is not composed
                                 takes nothing inside, and no layer is_native */
    int32_t fewest_shuffled; /* a shuffle to fewer channels is a copy, laid out in another way */
    int64_t block_elements;  /* floats that norms and means are made of at a time */
    int64_t score_bytes;     /* an attention makes scores of so many queries at a time */
} hy3d_place;

typedef struct hy3d_schedule_request {
    hy3d_graph graph;
    const int32_t *alike;     /* of each node the first one of which `workspace`, or `inside` for
                              sources that are laid out alike, says the same; NULL: itself */
    int64_t size[3];          /* of the input, (T, H, W) */
    int64_t element_bytes;    /* of every value on the device */
    int64_t input_bytes;      /* of an element of the input on the device; 0: read where it lies */
    int64_t source_bytes;     /* of several ranks, of an element of the input on the host of each
                                 but rank 0, throughout: of the rows that its slices of it have,
                                 which rank 0 has sent it; 0: each rank has all of the input, and
                                 it counts for nothing */
    int64_t result_bytes;     /* on the host throughout: the result, where it stays in memory */
    int64_t kept_bytes;       /* on the device throughout */
    int64_t most_shape_bytes; /* what shapes leave is at most so much; 0: no limit */
    int64_t device_budget, host_budget; /* 0: no limit */
    int64_t device_room;  /* that an allocator like PyTorch's can get of the device in all; 0: not
                                known. On one device, which is not the host, candidates that find
                                room in it as such an allocator lays them out go before others of
                                their kind that would fit */
    int64_t margin_bytes; /* a candidate fits where its device_bytes (on_host: host_bytes) and */
    int32_t margin_permille; /* a margin do: margin_bytes or so many thousandths, the larger one */
    int32_t is_unified;      /* device and host share their memory: what leaves gains nothing, and
                                both peaks together come out of device_budget */
    int32_t is_host;         /* the device is the host: device_budget is of all memory */
    int32_t may_spill;       /* slices may leave for the host */
    int32_t may_repack;      /* on the device, beside the host, packed weights (packed_bytes; of a
                                place without layers all that nodes keep) need not stay: where not
                                all fits with them each step makes its node's, unless they are less
                                than a thirty-second of the budget */
    int32_t compiles_all;    /* every candidate, though an earlier one fits: for printing. Of each
                                halo's tiles the largest and the first that fits, or the smallest;
                                those that fit also with packed weights kept, if they do */
    uint32_t strategies;     /* 1 << hy3d_strategy, of those allowed */
    hy3d_machine device, host;
    int32_t unit[3];        /* frames, rows and columns of the input that are one position of the
                               latent: `chunks` count in such frames, and of more than the input
                               has, all; each size is tried once. All 0: they count in frames, as
                               they are */
    int64_t busy_positions; /* so many of these positions keep the device busy: as many frames as
                               have them are tried there before `chunks`, of several ranks as have
                               them in the rows of two. 0, or no `unit`: not known */
    double copy_bytes_per_second;                   /* > 0 */
    hy3d_tile_sizes halos[HY3D_SCHEDULE_MAX_HALOS]; /* tried in this order; smallest 0: no more */
    int32_t only_level; /* of tiles: 0: any; else this one less 1, of the first halo */
    int32_t statistic_passes;
    int64_t own_bytes;      /* WHOLE: at the peak on the device (is_host: of all memory, result
                                included); -1: not known, then it is offered by itself only, and
                                fits; HY3D_OWN_BYTES_ASKED: `workspace` says it of the one step of
                                WHOLE (OPAQUE, of node OUTPUT), once, and is only asked where that
                                decides; HY3D_ERR_UNSUPPORTED of it: WHOLE is not offered. Less than
                                any code takes that makes each frame once counts as that: a frame
                                that a convolution reads and one that it makes; all that a GroupNorm
                                reads; all of the output; of 4 frames or more, for each convolution
                                over time half of what it reads, or as many frames as its kernel is
                                long, less one, which all such keep at once beside a frame that one
                                of them reads and one that it makes */
    int32_t rank, ranks;    /* rows are shared by `ranks` devices, at most HY3D_SCHEDULE_MAX_RANKS;
                               0, 1: one device */
    const int32_t *weights; /* of several ranks, of each, >= 1, all together below 2^31: rows are
                               shared in this ratio, as nearly as they can be; NULL: equally, or,
                               where device_budgets are all > 0 and differ by a sixteenth of the
                               least, in their ratio in eighths of it: the first that fits without
                               copies to the host, else that fits */
    const int64_t *device_budgets; /* of several ranks, of each; 0: no limit; NULL: device_budget */
    double link_bytes_per_second;  /* between two ranks, > 0 where there are several */
    hy3d_place places[2]; /* the device (is_host: the host), and the host beside a device */
    hy3d_workspace_function workspace; /* NULL: no step takes anything */
    hy3d_inside_function inside;       /* NULL where no place has layers */
    void *user;                        /* of both */
} hy3d_schedule_request;

typedef enum hy3d_reason {
    HY3D_REASON_OUT_OF_MEMORY = 0,      /* of the device */
    HY3D_REASON_OUT_OF_HOST_MEMORY = 1, /* of the host */
    HY3D_REASON_NO_KERNEL = 2,          /* a layer that no tier can compute */
    HY3D_REASON_NOT_FINITE = 3,
    HY3D_REASON_REFUSED = 4, /* a tier was refused: the next one takes the step */
    HY3D_REASON_CANCELLED = 5,
} hy3d_reason;

typedef enum hy3d_action {
    HY3D_ACTION_STEP_AGAIN = 0,  /* release what is only kept to be faster, the same step again */
    HY3D_ACTION_BEGIN_AGAIN = 1, /* another program, from its first step: hy3d_schedule_program */
    HY3D_ACTION_WIDER = 2,       /* from the first step in a wider type, compiled for that */
    HY3D_ACTION_STOP = 3,        /* nothing is left, or it was cancelled */
} hy3d_action;

/* A program: plain arrays that belong to the schedule. */
typedef struct hy3d_program {
    hy3d_candidate candidate;
    hy3d_cut cut;
    const hy3d_section *sections;
    const hy3d_step *steps;
    const int64_t *kept; /* of each step, bytes that it makes and that stay until the end, for its
                            node and its shape; of steps that several tiles share, in the first */
    const hy3d_slice *slices;
    const int32_t *refs;
    int32_t section_count, step_count, slice_count, ref_count;
    int64_t prefix_bytes; /* of the prefix's output, on the host while tiles are made */
    int64_t copies_bytes; /* on the host throughout: memory in which all that leaves has a place */
    int32_t weights[HY3D_SCHEDULE_MAX_RANKS];    /* of each rank: rows are shared in this ratio; 0
                                                 behind the last */
    int64_t shares[HY3D_SCHEDULE_MAX_RANKS + 1]; /* so rank r has the output's rows from shares[r]
                                                    up to shares[r + 1] */
    int64_t input_rows[HY3D_SCHEDULE_MAX_RANKS][2]; /* of the input that each rank's slices have */
    hy3d_tiles_desc tiles; /* TILES: of the cut's value, one frame; hy3d_tiles_at places them */
} hy3d_program;

typedef struct hy3d_schedule hy3d_schedule;

/* Weights as the C convolution would keep them. */
typedef struct hy3d_prepared {
    uint32_t format; /* hy3d_conv3d_format; HY3D_FORMAT_NONE: there is nothing to keep */
    int64_t bytes;
} hy3d_prepared;

HY3D_BEGIN_DECLS

/* Compiles the candidates that are allowed and takes one of those that fit: on the device before on
 * the host, there the whole picture before tiles, and of these the fastest; of tiles the largest of
 * the first halo that has some. So a larger budget gives a faster program, or one of a better kind.
 * A graph without HY3D_NORM_GROUP and OPAQUE goes in CHUNKS; where none fits, by LAYERS, if that
 * takes less: a kind of its own, between CHUNKS and tiles.
 * Tiles that are too large are given up as soon as a part of their program does not fit (is_bound).
 * On HY3D_OK, and on HY3D_ERR_BUDGET_TOO_SMALL where nothing fits, *schedule_out holds the
 * candidates, and the caller destroys it. Other errors: as hy3d_graph_check;
 * HY3D_ERR_INVALID_ARGUMENT, a field out of its range; HY3D_ERR_UNSUPPORTED, no strategy that
 * is allowed can run this graph;
 * HY3D_ERR_OUT_OF_MEMORY; and whatever the workspace function returned. */
HY3D_API hy3d_status hy3d_schedule_compile(hy3d_context *context,
                                           const hy3d_schedule_request *request,
                                           hy3d_schedule **schedule_out);
HY3D_API void hy3d_schedule_destroy(hy3d_context *context, hy3d_schedule *schedule);

/* The candidates in the order in which they are offered; those that were not compiled because an
 * earlier one of their kind fitted are not among them. */
HY3D_API int32_t hy3d_schedule_candidates(const hy3d_schedule *schedule,
                                          const hy3d_candidate **candidates_out);
/* The least device_budget (with host_budget as it is, and of several ranks for each of them) that
 * some candidate would fit. */
HY3D_API int64_t hy3d_schedule_smallest_budget(const hy3d_schedule *schedule);
/* The program to carry out, until the next call with this schedule. NULL where nothing fits. */
HY3D_API const hy3d_program *hy3d_schedule_program(const hy3d_schedule *schedule);
/* Of each node the layout in which its first CONV in the program can use prepared weights (the
 * graph's count of them); none where it has no CONV or its layer is not native at that place.
 * HY3D_ERR_INVALID_ARGUMENT: nothing fits. */
HY3D_API hy3d_status hy3d_schedule_prepared(const hy3d_context *context,
                                            const hy3d_schedule *schedule,
                                            hy3d_prepared *prepared_out);
/* The frame of the input where a chunk of the program that is carried out begins from which on the
 * input gives the output's frames from `wanted` on with the same bits; 0: its beginning, as of
 * every program where a norm or an attention sees the whole video, and where there is none. What
 * goes on from chunk to chunk, the last frames of every layer's input, need not be kept for that:
 * all that a wanted frame depends on is computed again. It follows from the layers, and so is an
 * upper bound, by a frame or so. Chunks begin where they would have begun, so each convolution gets
 * the same frames in the same shapes. */
HY3D_API int64_t hy3d_schedule_start(const hy3d_schedule *schedule, int64_t wanted);
/* How often a step is tried in all that runs out of memory; that of WHOLE, the whole decode, once:
 * what comes next takes less. */
#define HY3D_STEP_ATTEMPTS 3
/* What comes after a step failed for this reason. `attempts`: how often it was tried (>= 1; of a
 * failure that no other attempt may cure, HY3D_STEP_ATTEMPTS). `can_widen`: a wider type is left.
 * After HY3D_ACTION_BEGIN_AGAIN hy3d_schedule_program gives what is begun. It
 * ends: each time a candidate fewer is left, or the same takes less. Where no kernel can compute a
 * layer in tiles of one size, it will hardly be another size that helps: of that halo, two further
 * levels are tried there, the next that fits and the smallest. HY3D_ERR_INVALID_ARGUMENT: no
 * program runs, or attempts < 1. */
HY3D_API hy3d_status hy3d_schedule_fallback(hy3d_context *context, hy3d_schedule *schedule,
                                            int32_t attempts, hy3d_reason reason, bool can_widen,
                                            hy3d_action *action_out);

/* "conv", "layers", "streamed": for printing. Never NULL. */
HY3D_API const char *hy3d_step_op_name(int32_t op);
HY3D_API const char *hy3d_order_name(int32_t order);
HY3D_API const char *hy3d_strategy_name(int32_t strategy);

HY3D_END_DECLS

#endif
