/* Long check of the decode's schedule: check_schedule COMMAND [--count N] [--first N] [--jobs N]
 *
 *   random   random graphs, sizes, budgets and orders, each judged (tests/c/judge.h)
 *   one N    one of them, and what it looks like
 *   time     milliseconds to compile HunyuanVideo's and Wan's decodes of 129 frames of 720 x 1280
 *
 * A case is known by its number alone. */
#define _GNU_SOURCE /* fork, clock_gettime */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "judge.h"

typedef unsigned long long ull;
typedef long long ll;

typedef struct long_check {
    uint64_t first, count;
    int jobs;
} long_check;

static hy3d_context *context_of(void)
{
    const hy3d_context_options wanted = {.cpu_level = "ref", .max_threads = 1};
    hy3d_context *context = NULL;
    if (hy3d_context_create(&wanted, &context) != HY3D_OK) {
        fputs("no context\n", stderr);
        exit(3);
    }
    return context;
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool judge_number(hy3d_context *context, uint64_t number, judge_report *report)
{
    graphs_case made;
    graphs_seed seed;
    const graphs_numbers numbers = graphs_of_number(&seed, number, &made);
    if (judge_case(context, &made, numbers, report)) {
        return true;
    }
    printf("case %llu: %s\n    again: build/c/check_schedule one %llu\n", (ull)number, report->text,
           (ull)number);
    fflush(stdout);
    return false;
}

/* Every `jobs`-th case from `first` on; at most so many failures are told. */
static int run_share(const long_check *options, uint64_t first)
{
    hy3d_context *const context = context_of();
    judge_report sums = {0};
    int failed = 0;
    for (uint64_t i = first; i < options->first + options->count && failed < 20;
         i += (uint64_t)options->jobs) {
        sums.text[0] = '\0';
        failed += !judge_number(context, i, &sums);
    }
    printf("%lld whole, %lld by layers, %lld by chunks, %lld with a prefix, %lld in tiles, of "
           "these %lld of several ranks; %lld steps, %lld budgets refused, %lld requests "
           "unsupported, %lld failures followed, %lld bounds, %lld of own bytes asked for\n",
           (ll)sums.programs[0], (ll)sums.programs[1], (ll)sums.programs[2], (ll)sums.programs[3],
           (ll)sums.programs[4], (ll)sums.shared, (ll)sums.steps, (ll)sums.refused,
           (ll)sums.unsupported, (ll)sums.falls, (ll)sums.bounds, (ll)sums.asked);
    hy3d_context_destroy(context);
    return failed;
}

static int run_random(const long_check *options)
{
    int failed = 0;
    const double start = seconds_of(CLOCK_MONOTONIC);
    fflush(stdout);
    for (int i = 0; i < options->jobs; i++) {
        if (fork() == 0) {
            exit(run_share(options, options->first + (uint64_t)i) != 0);
        }
    }
    for (int i = 0; i < options->jobs; i++) {
        int status = 0;
        wait(&status);
        failed += status != 0;
    }
    printf("%llu cases from number %llu: %s, %.0f s\n", (ull)options->count, (ull)options->first,
           failed == 0 ? "0 failures" : "FAILED", seconds_of(CLOCK_MONOTONIC) - start);
    return failed != 0;
}

static void print_triple(const char *name, const int32_t of[3])
{
    if (of[0] != 1 || of[1] != 1 || of[2] != 1) {
        printf(" %s %d %d %d", name, of[0], of[1], of[2]);
    }
}

static void print_case(const graphs_case *made)
{
    static const char *const ops[] = {"input", "conv",   "attention", "map",
                                      "add",   "opaque", "output"};
    const hy3d_schedule_request *const r = &made->request;
    printf("size %lld %lld %lld, strategies %u, spill %d, unified %d, host %d, "
           "elements of %lld, inputs of %lld %lld, kept %lld, result %lld, slices of %lld %lld, "
           "chunks %d %d %d, own %lld, salt %llu, ranks %d\n",
           (ll)r->size[0], (ll)r->size[1], (ll)r->size[2], r->strategies, r->may_spill,
           r->is_unified, r->is_host, (ll)r->element_bytes, (ll)r->input_bytes,
           (ll)r->source_bytes, (ll)r->kept_bytes, (ll)r->result_bytes,
           (ll)r->device.slice_bytes[0], (ll)r->device.slice_bytes[1], r->device.chunks[0],
           r->device.chunks[1], r->device.chunks[2], (ll)r->own_bytes, (ull)made->salt, r->ranks);
    for (int32_t i = 0; i < r->graph.count; i++) {
        const hy3d_node *const n = &made->nodes[i];
        printf("%3d %-9s source %d other %d channels %lld norm %d", i, ops[n->op], n->source,
               n->other, (ll)n->channels, n->norm);
        if (n->op == HY3D_OP_CONV) {
            print_triple("kernel", n->kernel);
            print_triple("stride", n->stride);
            print_triple("dilation", n->dilation);
            print_triple("up", n->up);
            print_triple("before", n->before);
            print_triple("after", n->after);
            print_triple("shuffle", n->shuffle);
            printf(" groups %d keep %d skip %d reread %d first %d drop %d", n->groups,
                   n->keep_first, n->skip_first, n->reread, n->shuffle_first, n->drop);
        } else if (n->op == HY3D_OP_ATTENTION) {
            printf(" span %d heads %d width %lld", n->span, n->heads, (ll)n->width);
        } else if (n->op == HY3D_OP_MAP || n->op == HY3D_OP_OPAQUE) {
            printf(" frames %d %d/%d space %d/%d %d/%d", n->frames_first, n->frames_rest,
                   n->frames_per, n->space_up[0], n->space_down[0], n->space_up[1],
                   n->space_down[1]);
        }
        putchar('\n');
    }
}

static int run_one(uint64_t number)
{
    hy3d_context *const context = context_of();
    judge_report report = {0};
    graphs_case made;
    graphs_seed seed;
    graphs_of_number(&seed, number, &made);
    print_case(&made);
    const bool is_good = judge_number(context, number, &report);
    puts(is_good ? "nothing to object to" : "FAILED");
    hy3d_context_destroy(context);
    return !is_good;
}

/* Least milliseconds of the processor of five compiles, which one thread makes. The last program is replayed. */
static void time_budget(hy3d_context *context, graphs_known which, int64_t budget)
{
    graphs_case made;
    replay_verdict verdict = {.text = "does not fit"};
    double best = 1e9;
    graphs_make_known(which, 128, &made);
    graphs_request(&made, 33, 90, 160);
    made.request.device_budget = budget;
    for (int i = 0; i < 5; i++) {
        hy3d_schedule *schedule = NULL;
        const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
        hy3d_schedule_compile(context, &made.request, &schedule);
        const double took = seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
        const hy3d_program *const program =
            schedule == NULL ? NULL : hy3d_schedule_program(schedule);
        best = took < best ? took : best;
        if (i == 4 && program != NULL && replay_program(&made.request, program, &verdict)) {
            snprintf(verdict.text, sizeof verdict.text, "by %s, %d steps, %.1f s predicted",
                     hy3d_order_name(program->candidate.order), program->step_count,
                     program->candidate.seconds);
        }
        hy3d_schedule_destroy(context, schedule);
    }
    printf("%-12s %2lld GiB: %6.2f ms, %s\n", graphs_known_name(which), (ll)(budget >> 30),
           best * 1e3, verdict.text);
}

/* Of one size under budgets from 1 to 60 GiB, each a quarter larger than the one before. */
static void time_budgets(hy3d_context *context, graphs_known which, const int32_t size[3])
{
    double logarithms = 0, slowest = 0;
    int compiled = 0;
    for (double gigabytes = 1; gigabytes < 64; gigabytes *= 1.25) {
        graphs_case made;
        hy3d_schedule *schedule = NULL;
        graphs_make_known(which, 128, &made);
        graphs_request(&made, size[0], size[1], size[2]);
        made.request.device_budget = (int64_t)(gigabytes * (1 << 30));
        const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
        hy3d_schedule_compile(context, &made.request, &schedule);
        const double took = seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
        const hy3d_program *const program =
            schedule == NULL ? NULL : hy3d_schedule_program(schedule);
        if (program != NULL) {
            logarithms += log(program->candidate.seconds);
            slowest = took > slowest ? took : slowest;
            compiled++;
        }
        hy3d_schedule_destroy(context, schedule);
    }
    printf("%-12s %d x %d x %d: %d budgets, %.3f s predicted (geometric mean), compiled in %.1f ms "
           "at most\n",
           graphs_known_name(which), size[0], size[1], size[2], compiled,
           compiled > 0 ? exp(logarithms / compiled) : 0, slowest * 1e3);
}

static int run_time(void)
{
    static const int32_t sizes[][3] = {{33, 90, 160}, {33, 68, 120}, {33, 68, 68},
                                       {21, 90, 160}, {17, 60, 104}, {9, 80, 76}};
    hy3d_context *const context = context_of();
    for (int which = GRAPHS_HUNYUAN; which <= GRAPHS_WAN; which++) {
        for (int64_t gigabytes = 2; gigabytes < 64; gigabytes += 4) {
            time_budget(context, (graphs_known)which, gigabytes << 30);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            time_budgets(context, (graphs_known)which, sizes[i]);
        }
    }
    hy3d_context_destroy(context);
    return 0;
}

int main(int argc, char **argv)
{
    long_check options = {.count = 1000000, .jobs = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    for (int i = 2; i + 1 < argc; i += 2) {
        const uint64_t value = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--count") == 0) {
            options.count = value;
        } else if (strcmp(argv[i], "--first") == 0) {
            options.first = value;
        } else if (strcmp(argv[i], "--jobs") == 0) {
            options.jobs = (int)value;
        }
    }
    if (argc > 1 && strcmp(argv[1], "random") == 0 && options.jobs > 0) {
        return run_random(&options);
    }
    if (argc > 2 && strcmp(argv[1], "one") == 0) {
        return run_one(strtoull(argv[2], NULL, 10));
    }
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        return run_time();
    }
    fprintf(stderr, "%s random [--count N] [--first N] [--jobs N] | one NUMBER | time\n", argv[0]);
    return 2;
}
