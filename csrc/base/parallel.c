/* One pool a context, shared by all callers. A call is a job on its caller's stack; the caller
 * works on it too and always finishes it alone if nobody comes, so a missing thread only costs
 * time and no call can wait for another one. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "base/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/context.h"

typedef struct job {
    hy3d__grain_fn run;
    void *argument;
    const hy3d_cancel *cancel;
    int64_t grains;
    uint32_t width; /* threads that may take part */
    _Atomic int64_t next;
    _Atomic int status;     /* a hy3d_status */
    uint32_t joined;        /* threads that took part so far, each has its own slot; under lock */
    uint32_t helpers;       /* workers inside run_grains; under lock */
    pthread_cond_t is_left; /* helpers became 0 */
    struct job *next_job;
} job;

/* A thread inside run_grains. The list answers "is this call made from inside a grain?" without a
 * thread-local variable, which would be a mutable static. */
typedef struct runner {
    pthread_t thread;
    struct runner *next;
} runner;

struct hy3d__pool {
    pid_t pid; /* of the process that owns the threads */
    hy3d__pool *inherited; /* the parent's, dead in this process: only its memory is freed */
    pthread_mutex_t lock;
    pthread_cond_t has_work;
    job *jobs;
    runner *runners;
    bool stopping;
    uint32_t threads_started;
    pthread_mutex_t load_lock;
    pthread_mutex_t gate_lock;
    pthread_cond_t gate_has_room;
    uint32_t gate_inside;
    pthread_t threads[]; /* max_threads - 1 */
};

static void destroy_locks(hy3d__pool *pool, int made)
{
    switch (made) {
    case 5:
        pthread_cond_destroy(&pool->gate_has_room);
        /* fallthrough */
    case 4:
        pthread_mutex_destroy(&pool->gate_lock);
        /* fallthrough */
    case 3:
        pthread_mutex_destroy(&pool->load_lock);
        /* fallthrough */
    case 2:
        pthread_cond_destroy(&pool->has_work);
        /* fallthrough */
    case 1:
        pthread_mutex_destroy(&pool->lock);
        break;
    default:
        break;
    }
}

static bool create_locks(hy3d__pool *pool)
{
    int made = 0;
    if (pthread_mutex_init(&pool->lock, NULL) == 0 && ++made &&
        pthread_cond_init(&pool->has_work, NULL) == 0 && ++made &&
        pthread_mutex_init(&pool->load_lock, NULL) == 0 && ++made &&
        pthread_mutex_init(&pool->gate_lock, NULL) == 0 && ++made &&
        pthread_cond_init(&pool->gate_has_room, NULL) == 0) {
        return true;
    }
    destroy_locks(pool, made);
    return false;
}

static hy3d_status make_pool(hy3d_context *context, hy3d__pool **pool_out)
{
    size_t bytes;
    if (!hy3d__mul_size(context->max_threads - 1, sizeof(pthread_t), &bytes) ||
        !hy3d__add_size(bytes, sizeof(hy3d__pool), &bytes)) {
        return HY3D_ERR_OVERFLOW;
    }
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, bytes, &memory);
    if (status != HY3D_OK) {
        return status;
    }
    hy3d__pool *const pool = memory;
    *pool = (hy3d__pool){.pid = getpid()};
    if (!create_locks(pool)) {
        hy3d_free(context, pool);
        return HY3D_ERR_THREAD;
    }
    *pool_out = pool;
    return HY3D_OK;
}

hy3d_status hy3d__pool_create(hy3d_context *context)
{
    hy3d__pool *pool;
    const hy3d_status status = make_pool(context, &pool);
    if (status == HY3D_OK) {
        atomic_store(&context->pool, pool);
    }
    return status;
}

/* Of all the parent's threads only the one that called fork exists in the child, and the parent's
 * locks may be held for ever: a new pool takes the old one's place. Where two threads of the child
 * come here at once, one wins the exchange and the other throws its pool away; nobody waits. */
static hy3d_status current_pool(hy3d_context *context, hy3d__pool **pool_out)
{
    hy3d__pool *seen = atomic_load(&context->pool);
    if (seen->pid == getpid()) {
        *pool_out = seen;
        return HY3D_OK;
    }
    hy3d__pool *made;
    const hy3d_status status = make_pool(context, &made);
    if (status != HY3D_OK) {
        return status;
    }
    made->inherited = seen;
    if (atomic_compare_exchange_strong(&context->pool, &seen, made)) {
        *pool_out = made;
        return HY3D_OK;
    }
    destroy_locks(made, 5);
    hy3d_free(context, made);
    *pool_out = seen;
    return HY3D_OK;
}

void hy3d__pool_destroy(hy3d_context *context)
{
    hy3d__pool *pool = atomic_load(&context->pool);
    if (pool != NULL && pool->pid == getpid()) {
        pthread_mutex_lock(&pool->lock);
        pool->stopping = true;
        pthread_cond_broadcast(&pool->has_work);
        pthread_mutex_unlock(&pool->lock);
        for (uint32_t i = 0; i < pool->threads_started; i++) {
            pthread_join(pool->threads[i], NULL);
        }
        destroy_locks(pool, 5);
    }
    while (pool != NULL) {
        hy3d__pool *const inherited = pool->inherited;
        hy3d_free(context, pool);
        pool = inherited;
    }
    atomic_store(&context->pool, NULL);
}

static void fail_job(job *work, hy3d_status status)
{
    int expected = HY3D_OK;
    atomic_compare_exchange_strong(&work->status, &expected, (int)status);
}

static void run_grains(job *work, uint32_t slot)
{
    for (;;) {
        const int64_t grain = atomic_fetch_add(&work->next, 1);
        if (grain >= work->grains || atomic_load(&work->status) != HY3D_OK) {
            return;
        }
        if (hy3d_cancel_requested(work->cancel)) {
            fail_job(work, HY3D_ERR_CANCELLED);
            return;
        }
        const hy3d_status status = work->run(work->argument, grain, slot);
        if (status != HY3D_OK) {
            fail_job(work, status);
        }
    }
}

static void enter(hy3d__pool *pool, runner *self)
{
    self->thread = pthread_self();
    self->next = pool->runners;
    pool->runners = self;
}

static void leave(hy3d__pool *pool, runner *self)
{
    runner **link = &pool->runners;
    while (*link != self) {
        link = &(*link)->next;
    }
    *link = self->next;
}

static bool is_inside_grain(const hy3d__pool *pool)
{
    for (const runner *other = pool->runners; other != NULL; other = other->next) {
        if (pthread_equal(other->thread, pthread_self())) {
            return true;
        }
    }
    return false;
}

/* A job that still has a free slot and grains to start. */
static job *find_job(const hy3d__pool *pool)
{
    for (job *work = pool->jobs; work != NULL; work = work->next_job) {
        if (work->joined < work->width && atomic_load(&work->next) < work->grains &&
            atomic_load(&work->status) == HY3D_OK) {
            return work;
        }
    }
    return NULL;
}

static void *worker(void *argument)
{
    hy3d__pool *const pool = argument;
    runner self;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stopping) {
        job *const work = find_job(pool);
        if (work == NULL) {
            pthread_cond_wait(&pool->has_work, &pool->lock);
            continue;
        }
        const uint32_t slot = work->joined++;
        work->helpers++;
        enter(pool, &self);
        pthread_mutex_unlock(&pool->lock);
        run_grains(work, slot);
        pthread_mutex_lock(&pool->lock);
        leave(pool, &self);
        if (--work->helpers == 0) {
            pthread_cond_signal(&work->is_left);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Under the lock. Signals stay with the program's own threads: a handler of the host (Python's
 * Ctrl-C) must not run on a thread it does not know. */
static void start_workers(hy3d__pool *pool, uint32_t wanted)
{
    if (pool->threads_started >= wanted) {
        return;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->threads_started < wanted &&
           pthread_create(&pool->threads[pool->threads_started], NULL, worker, pool) == 0) {
        pool->threads_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void append_job(hy3d__pool *pool, job *work)
{
    job **link = &pool->jobs;
    while (*link != NULL) {
        link = &(*link)->next_job;
    }
    *link = work;
}

static void remove_job(hy3d__pool *pool, job *work)
{
    job **link = &pool->jobs;
    while (*link != work) {
        link = &(*link)->next_job;
    }
    *link = work->next_job;
}

/* Entered and left with the lock held. */
static void run_shared(hy3d__pool *pool, job *work)
{
    runner self;
    work->joined = 1;
    append_job(pool, work);
    enter(pool, &self);
    start_workers(pool, work->width - 1);
    for (uint32_t i = 1; i < work->width; i++) {
        pthread_cond_signal(&pool->has_work);
    }
    pthread_mutex_unlock(&pool->lock);
    run_grains(work, 0);
    pthread_mutex_lock(&pool->lock);
    leave(pool, &self);
    remove_job(pool, work); /* from here on nobody joins, so the wait below ends */
    while (work->helpers != 0) {
        pthread_cond_wait(&work->is_left, &pool->lock);
    }
}

static uint32_t job_width(const hy3d_context *context, int64_t grains, uint32_t slots)
{
    const uint32_t width = slots < context->max_threads ? slots : context->max_threads;
    return grains < (int64_t)width ? (uint32_t)grains : width;
}

hy3d_status hy3d__parallel_for(hy3d_context *context, int64_t grains, uint32_t slots,
                               const hy3d_cancel *cancel, hy3d__grain_fn run, void *argument)
{
    if (context == NULL || run == NULL || slots == 0 || grains < 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    if (grains == 0) {
        return HY3D_OK;
    }
    hy3d__pool *pool;
    const hy3d_status status = current_pool(context, &pool);
    if (status != HY3D_OK) {
        return status;
    }
    job work = {.run = run,
                .argument = argument,
                .cancel = cancel,
                .grains = grains,
                .width = job_width(context, grains, slots)};
    if (pthread_cond_init(&work.is_left, NULL) != 0) {
        return HY3D_ERR_THREAD;
    }
    pthread_mutex_lock(&pool->lock);
    if (is_inside_grain(pool)) {
        pthread_mutex_unlock(&pool->lock);
        run_grains(&work, 0);
    } else {
        run_shared(pool, &work);
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_cond_destroy(&work.is_left);
    return (hy3d_status)atomic_load(&work.status);
}

hy3d_status hy3d__load_lock(hy3d_context *context, hy3d__pool **pool_out)
{
    const hy3d_status status = current_pool(context, pool_out);
    if (status == HY3D_OK) {
        pthread_mutex_lock(&(*pool_out)->load_lock);
    }
    return status;
}

void hy3d__load_unlock(hy3d__pool *pool)
{
    pthread_mutex_unlock(&pool->load_lock);
}

hy3d__pool *hy3d__gate_enter(hy3d_context *context, uint32_t limit)
{
    hy3d__pool *pool;
    if (current_pool(context, &pool) != HY3D_OK) {
        return NULL;
    }
    pthread_mutex_lock(&pool->gate_lock);
    while (pool->gate_inside >= limit) {
        pthread_cond_wait(&pool->gate_has_room, &pool->gate_lock);
    }
    pool->gate_inside++;
    pthread_mutex_unlock(&pool->gate_lock);
    return pool;
}

void hy3d__gate_leave(hy3d__pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->gate_lock);
    pool->gate_inside--;
    pthread_cond_signal(&pool->gate_has_room);
    pthread_mutex_unlock(&pool->gate_lock);
}
