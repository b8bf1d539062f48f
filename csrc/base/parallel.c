/* One pool a context, shared by all callers. A call is a job on its caller's stack; the caller
 * works on it too and always finishes it alone if nobody comes, so a missing thread only costs
 * time and no call can wait for another one. */
#include "base/parallel.h"

#include <stdbool.h>

#include "base/checked.h"
#include "base/context_internal.h"
#include "base/os.h"

typedef struct job {
    hy3d__grain_fn run;
    void *argument;
    const hy3d_cancel *cancel;
    int64_t grains;
    uint32_t width;      /* threads that may take part */
    hy3d__manner manner; /* the caller's: bits must not depend on which thread ran a grain */
    _Atomic int64_t next;
    _Atomic int status;      /* a hy3d_status */
    uint32_t joined;         /* threads that took part so far, each has its own slot; under lock */
    uint32_t helpers;        /* workers inside run_grains; under lock */
    hy3d__condition is_left; /* helpers became 0 */
    struct job *next_job;
} job;

/* A thread inside run_grains. The list answers "is this call made from inside a grain?" without a
 * thread-local variable, which would be a mutable static. */
typedef struct runner {
    hy3d__thread_id thread;
    struct runner *next;
} runner;

struct hy3d__pool {
    int64_t process;       /* that owns the threads */
    hy3d__pool *inherited; /* the parent's, dead in this process: only its memory is freed */
    hy3d__mutex lock;
    hy3d__condition has_work;
    job *jobs;
    runner *runners;
    bool stopping;
    uint32_t threads_started;
    hy3d__mutex load_lock;
    hy3d__mutex gate_lock;
    hy3d__condition gate_has_room;
    uint32_t gate_inside;
    hy3d__thread threads[]; /* max_threads - 1 */
};

static void destroy_locks(hy3d__pool *pool, int made)
{
    switch (made) {
    case 5:
        hy3d__condition_destroy(&pool->gate_has_room);
        /* fallthrough */
    case 4:
        hy3d__mutex_destroy(&pool->gate_lock);
        /* fallthrough */
    case 3:
        hy3d__mutex_destroy(&pool->load_lock);
        /* fallthrough */
    case 2:
        hy3d__condition_destroy(&pool->has_work);
        /* fallthrough */
    case 1:
        hy3d__mutex_destroy(&pool->lock);
        break;
    default:
        break;
    }
}

static bool create_locks(hy3d__pool *pool)
{
    bool good = hy3d__mutex_create(&pool->lock);
    int made = good;
    good = good && hy3d__condition_create(&pool->has_work);
    made += good;
    good = good && hy3d__mutex_create(&pool->load_lock);
    made += good;
    good = good && hy3d__mutex_create(&pool->gate_lock);
    made += good;
    good = good && hy3d__condition_create(&pool->gate_has_room);
    if (!good) {
        destroy_locks(pool, made);
    }
    return good;
}

static hy3d_status make_pool(hy3d_context *context, hy3d__pool **pool_out)
{
    size_t bytes;
    if (!hy3d__mul_size(context->max_threads - 1, sizeof(hy3d__thread), &bytes) ||
        !hy3d__add_size(bytes, sizeof(hy3d__pool), &bytes)) {
        return HY3D_ERR_OVERFLOW;
    }
    void *memory = NULL;
    const hy3d_status status = hy3d_alloc(context, bytes, &memory);
    if (status != HY3D_OK) {
        return status;
    }
    hy3d__pool *const pool = memory;
    *pool = (hy3d__pool){.process = hy3d__process_id()};
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
    if (seen->process == hy3d__process_id()) {
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
    if (pool != NULL && pool->process == hy3d__process_id()) {
        hy3d__mutex_lock(&pool->lock);
        pool->stopping = true;
        hy3d__condition_broadcast(&pool->has_work);
        hy3d__mutex_unlock(&pool->lock);
        for (uint32_t i = 0; i < pool->threads_started; i++) {
            hy3d__thread_join(&pool->threads[i]);
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
    self->thread = hy3d__thread_self();
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
        if (hy3d__thread_is_self(other->thread)) {
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

static void worker(void *argument)
{
    hy3d__pool *const pool = argument;
    runner self;
    hy3d__mutex_lock(&pool->lock);
    while (!pool->stopping) {
        job *const work = find_job(pool);
        if (work == NULL) {
            hy3d__condition_wait(&pool->has_work, &pool->lock);
            continue;
        }
        const uint32_t slot = work->joined++;
        work->helpers++;
        enter(pool, &self);
        hy3d__mutex_unlock(&pool->lock);
        hy3d__manner_set(&work->manner);
        run_grains(work, slot);
        hy3d__mutex_lock(&pool->lock);
        leave(pool, &self);
        if (--work->helpers == 0) {
            hy3d__condition_signal(&work->is_left);
        }
    }
    hy3d__mutex_unlock(&pool->lock);
}

/* Under the lock. */
static void start_workers(hy3d__pool *pool, uint32_t wanted)
{
    while (pool->threads_started < wanted &&
           hy3d__thread_start(&pool->threads[pool->threads_started], worker, pool)) {
        pool->threads_started++;
    }
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
        hy3d__condition_signal(&pool->has_work);
    }
    hy3d__mutex_unlock(&pool->lock);
    run_grains(work, 0);
    hy3d__mutex_lock(&pool->lock);
    leave(pool, &self);
    remove_job(pool, work); /* from here on nobody joins, so the wait below ends */
    while (work->helpers != 0) {
        hy3d__condition_wait(&work->is_left, &pool->lock);
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
    hy3d__manner_get(&work.manner);
    if (!hy3d__condition_create(&work.is_left)) {
        return HY3D_ERR_THREAD;
    }
    hy3d__mutex_lock(&pool->lock);
    if (is_inside_grain(pool)) {
        hy3d__mutex_unlock(&pool->lock);
        run_grains(&work, 0);
    } else {
        run_shared(pool, &work);
        hy3d__mutex_unlock(&pool->lock);
    }
    hy3d__condition_destroy(&work.is_left);
    return (hy3d_status)atomic_load(&work.status);
}

hy3d_status hy3d__load_lock(hy3d_context *context, hy3d__pool **pool_out)
{
    const hy3d_status status = current_pool(context, pool_out);
    if (status == HY3D_OK) {
        hy3d__mutex_lock(&(*pool_out)->load_lock);
    }
    return status;
}

void hy3d__load_unlock(hy3d__pool *pool)
{
    hy3d__mutex_unlock(&pool->load_lock);
}

hy3d__pool *hy3d__gate_enter(hy3d_context *context, uint32_t limit)
{
    hy3d__pool *pool;
    if (current_pool(context, &pool) != HY3D_OK) {
        return NULL;
    }
    hy3d__mutex_lock(&pool->gate_lock);
    while (pool->gate_inside >= limit) {
        hy3d__condition_wait(&pool->gate_has_room, &pool->gate_lock);
    }
    pool->gate_inside++;
    hy3d__mutex_unlock(&pool->gate_lock);
    return pool;
}

void hy3d__gate_leave(hy3d__pool *pool)
{
    if (pool == NULL) {
        return;
    }
    hy3d__mutex_lock(&pool->gate_lock);
    pool->gate_inside--;
    hy3d__condition_signal(&pool->gate_has_room);
    hy3d__mutex_unlock(&pool->gate_lock);
}
