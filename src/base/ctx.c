/* ctx: the context: last error, progress, interruption, the worker threads, the GPU, and the place
 * among the processes that share its work. */
#include "base/comm.h"
#include "base/cuda/device.h"
#include "base/mute.h"
#include "base/pool.h"
#include "base/status.h"
#include "weft/settings.h"
#include "weft/text.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { max_threads = 256, spins_before_sleep = 4000, report_interval_ms = 200, most_parts = 8 };

/* What a worker thread is told when it starts. */
typedef struct worker_start {
    wf_ctx *ctx;
    int index;
} worker_start;

/* The pool. `round` is odd while a round is open. The caller opens it, draws chunks itself, and
 * closes it when none is left; workers that wake in time enter (`inside`), draw and leave. So a
 * round waits for the workers that took part, never for one that the system has not scheduled yet.
 * A worker raises `inside` and then looks at `round`; the caller closes `round` and then looks at
 * `inside`: in the one order of all these operations, either the worker sees the round closed and
 * touches nothing, or the caller sees the worker and waits. Workers spin a little before they sleep
 * because a training step is hundreds of rounds a few microseconds apart. */
struct wf_ctx {
    char error[1024];
    atomic_bool interrupted;
    _Atomic double interrupted_at; /* wf_seconds() */
    double work_at_stake;          /* wf_stop_saves */
    wf_ctx_desc desc;
    void *progress_user, *warn_user, *log_user;
    bool muted;                  /* callbacks but for interruption rest */
    double (*clock)(void *user); /* NULL: the machine's */
    void *clock_user;
    int threads;

    pthread_t worker[max_threads];
    worker_start starts[max_threads];
    int started; /* workers running; the caller is one more */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint round;
    atomic_bool quit;
    atomic_int inside;
    atomic_size_t next;
    atomic_int sleepers;
    atomic_bool running; /* catches a chunk that starts a round of its own */
    wf_chunk_fn *fn;
    void *arg;
    size_t chunks;
    bool stoppable;   /* no chunk is begun once the context is interrupted */
    bool stop_rounds; /* so are rounds that do not ask for it */

    wf_cuda_device *cuda; /* NULL: not yet asked for */
    bool alone;           /* wf_work_alone */

    char part[most_parts][16]; /* parts of the work that had a choice of device */
    bool on_cpu[most_parts], on_cuda[most_parts];
    char devices[32 * most_parts];
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void draw_chunks(wf_ctx *ctx, int worker) {
    for (;;) {
        size_t chunk = atomic_fetch_add_explicit(&ctx->next, 1, memory_order_relaxed);
        if (chunk >= ctx->chunks || (ctx->stoppable && wf_interrupted(ctx))) return;
        ctx->fn(ctx->arg, chunk, worker);
    }
}

static bool is_new_round(wf_ctx *ctx, unsigned seen) {
    unsigned round = atomic_load(&ctx->round);
    return round != seen && (round & 1) != 0;
}

static void *worker_main(void *start_) {
    worker_start start = *(const worker_start *)start_;
    wf_ctx *ctx = start.ctx;
    unsigned seen = 0;
    for (;;) {
        for (int spins = 0; spins < spins_before_sleep && !is_new_round(ctx, seen); spins++)
            cpu_relax();
        if (!is_new_round(ctx, seen)) {
            pthread_mutex_lock(&ctx->lock);
            atomic_fetch_add(&ctx->sleepers, 1);
            while (!is_new_round(ctx, seen)) pthread_cond_wait(&ctx->wake, &ctx->lock);
            atomic_fetch_sub(&ctx->sleepers, 1);
            pthread_mutex_unlock(&ctx->lock);
        }
        atomic_fetch_add(&ctx->inside, 1);
        unsigned round = atomic_load(&ctx->round);
        if (round & 1) {
            seen = round;
            draw_chunks(ctx, start.index);
        }
        atomic_fetch_sub(&ctx->inside, 1);
        /* Checked last: the round just seen may be the one that ends the threads; it has no
         * chunks. */
        if (atomic_load(&ctx->quit)) return NULL;
    }
}

static void open_round(wf_ctx *ctx) {
    atomic_fetch_add(&ctx->round, 1);
    if (atomic_load(&ctx->sleepers) > 0) {
        pthread_mutex_lock(&ctx->lock);
        pthread_cond_broadcast(&ctx->wake);
        pthread_mutex_unlock(&ctx->lock);
    }
}

static void run_round(wf_ctx *ctx, size_t chunks, wf_chunk_fn *fn, void *arg, bool stoppable) {
    if (ctx == NULL || ctx->started == 0 || chunks < 2) {
        for (size_t chunk = 0; chunk < chunks && !(stoppable && wf_interrupted(ctx)); chunk++)
            fn(arg, chunk, 0);
        return;
    }
    bool nested = atomic_exchange_explicit(&ctx->running, true, memory_order_relaxed);
    assert(!nested);
    (void)nested;
    ctx->fn = fn;
    ctx->arg = arg;
    ctx->chunks = chunks;
    ctx->stoppable = stoppable;
    atomic_store_explicit(&ctx->next, 0, memory_order_relaxed);
    open_round(ctx);
    draw_chunks(ctx, 0);
    atomic_fetch_add(&ctx->round, 1);
    int spins = 0;
    while (atomic_load(&ctx->inside) > 0) {
        if (++spins < spins_before_sleep) cpu_relax();
        else sched_yield();
    }
    atomic_store_explicit(&ctx->running, false, memory_order_relaxed);
}

void wf_parallel(wf_ctx *ctx, size_t chunks, wf_chunk_fn *fn, void *arg) {
    run_round(ctx, chunks, fn, arg, ctx != NULL && ctx->stop_rounds);
}

bool wf_stop_rounds(wf_ctx *ctx, bool stop) {
    if (ctx == NULL) return false;
    bool before = ctx->stop_rounds;
    ctx->stop_rounds = stop;
    return before;
}

bool wf_parallel_stoppable(wf_ctx *ctx, size_t chunks, wf_chunk_fn *fn, void *arg) {
    run_round(ctx, chunks, fn, arg, true);
    return !wf_interrupted(ctx);
}

static void stop_workers(wf_ctx *ctx) {
    if (ctx->started == 0) return;
    atomic_store(&ctx->quit, true);
    ctx->chunks = 0; /* a round that was stopped has left some */
    open_round(ctx);
    for (int i = 0; i < ctx->started; i++) pthread_join(ctx->worker[i], NULL);
    ctx->started = 0;
    atomic_store(&ctx->quit, false);
    atomic_fetch_add(&ctx->round, 1); /* close the round that woke them */
}

/* The cores this process may use, which a container or taskset can make fewer than the machine
 * has. */
static int usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

/* As many as the system gives. Signals are left to the caller's threads. */
static void start_workers(wf_ctx *ctx) {
    sigset_t all, before;
    ctx->threads = ctx->desc.threads > 0 ? ctx->desc.threads : usable_cores();
    if (ctx->threads > max_threads) ctx->threads = max_threads;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < ctx->threads; i++) {
        ctx->starts[i] = (worker_start){ctx, i};
        if (pthread_create(&ctx->worker[ctx->started], NULL, worker_main, &ctx->starts[i]) != 0)
            break;
        ctx->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ctx->threads = ctx->started + 1;
}

wf_status wf_ctx_create(const wf_ctx_desc *desc, wf_ctx **out) {
    *out = NULL;
    wf_ctx *ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL) return WF_ERR_MEMORY;
    if (desc != NULL) ctx->desc = *desc;
    ctx->progress_user = ctx->warn_user = ctx->log_user = ctx->desc.user;
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_cond_init(&ctx->wake, NULL);
    start_workers(ctx);
    if (ctx->desc.comm != NULL) atomic_store(&ctx->desc.comm->ctx, ctx);
    *out = ctx;
    return WF_OK;
}

void wf_ctx_free(wf_ctx *ctx) {
    if (ctx == NULL) return;
    if (ctx->desc.comm != NULL) atomic_store(&ctx->desc.comm->ctx, NULL);
    stop_workers(ctx);
    wf_cuda_release(ctx->cuda);
    pthread_cond_destroy(&ctx->wake);
    pthread_mutex_destroy(&ctx->lock);
    free(ctx);
}

int wf_ctx_threads(const wf_ctx *ctx) { return ctx == NULL ? 1 : ctx->threads; }

bool wf_ctx_waits(const wf_ctx *ctx) { return ctx != NULL && ctx->desc.wait_for_locks; }

wf_comm *wf__ctx_comm(const wf_ctx *ctx) {
    return ctx == NULL || ctx->alone ? NULL : ctx->desc.comm;
}

bool wf_work_alone(wf_ctx *ctx, bool alone) {
    if (ctx == NULL) return true;
    bool before = ctx->alone;
    ctx->alone = alone;
    return before;
}

bool wf_writes_files(const wf_ctx *ctx) {
    return ctx == NULL || ctx->alone || wf_comm_rank(ctx->desc.comm) == 0;
}

int wf_ctx_rank(const wf_ctx *ctx) { return wf_comm_rank(wf__ctx_comm(ctx)); }
int wf_ctx_ranks(const wf_ctx *ctx) { return wf_comm_size(wf__ctx_comm(ctx)); }

const char *wf_last_error(const wf_ctx *ctx) { return ctx == NULL ? "" : ctx->error; }

void wf_interrupt(wf_ctx *ctx) {
    if (ctx == NULL || wf_interrupted(ctx)) return;
    atomic_store(&ctx->interrupted_at, wf_seconds());
    atomic_store(&ctx->interrupted, true);
}

void wf_interrupt_clear(wf_ctx *ctx) {
    if (ctx != NULL) atomic_store(&ctx->interrupted, false);
}

void wf_ctx_on_progress(wf_ctx *ctx, void (*progress)(void *user, const wf_progress *),
                        void *user) {
    ctx->desc.progress = progress;
    ctx->progress_user = user;
}

void wf_ctx_on_warning(wf_ctx *ctx, void (*warn)(void *user, const char *sentence), void *user) {
    ctx->desc.warn = warn;
    ctx->warn_user = user;
}

void wf_ctx_on_log(wf_ctx *ctx, void (*log)(void *user, const char *path, const char *line),
                   void *user) {
    ctx->desc.log = log;
    ctx->log_user = user;
}

void wf__ctx_mute(wf_ctx *ctx, bool mute) {
    if (ctx != NULL) ctx->muted = mute;
}

void wf_log(wf_ctx *ctx, const char *path, const char *ending, const char *line) {
    if (ctx == NULL || ctx->muted || ctx->desc.log == NULL) return;
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, ending);
    ctx->desc.log(ctx->log_user, name, line);
}

/* --- settings of a context ------------------------------------------------------------------ */

static const char *const wf_device_names[] = {"cpu", "cuda", "auto", NULL};
static const wf_setting ctx_rows[] = {
#define ROW(...) WF_SETTING_ROW(wf_ctx_desc, "context", "context.", __VA_ARGS__, NONE, NONE, "")
    ROW(INT, threads, "threads", "0", FROM(0, max_threads))
        ROW(CHOICE(wf_device), device, "device", "cpu", ANY)
            ROW(INT, gpu, "gpu", "0", FROM(0, 1023)) ROW(BOOL, wait_for_locks, "wait", "no", ANY)
#undef ROW
                {0}};

wf_status wf_ctx_configure(wf_ctx *ctx, const char *json) {
    wf_ctx_desc desc = ctx->desc;
    WF_TRY(wf_settings_from_json(ctx, ctx_rows, json, &desc, NULL));
    if (ctx->cuda != NULL && (desc.device != ctx->desc.device || desc.gpu != ctx->desc.gpu))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "the context already works on a GPU; make another one for another device");
    if (desc.threads != ctx->desc.threads) {
        stop_workers(ctx);
        ctx->desc.threads = desc.threads;
        start_workers(ctx);
    }
    ctx->desc = desc;
    return WF_OK;
}

bool wf_interrupted(const wf_ctx *ctx) { return ctx != NULL && atomic_load(&ctx->interrupted); }

double wf_stop_seconds = 1;

void wf_stop_saves(wf_ctx *ctx, double work) {
    if (ctx != NULL) ctx->work_at_stake = work;
}

bool wf_stop_is_overdue(const wf_ctx *ctx) {
    return wf_interrupted(ctx) && wf_seconds() - atomic_load(&ctx->interrupted_at) >
                                      fmax(wf_stop_seconds, ctx->work_at_stake / 8);
}

const char *wf_status_name(wf_status status) {
    switch (status) {
#define X(name, value, exit_code, sentence)                                                        \
    case WF_##name:                                                                                \
        return sentence;
#include "weft/errors.def"
#undef X
    }
    return "unknown status";
}

int wf_status_exit_code(wf_status status) {
    switch (status) {
#define X(name, value, exit_code, sentence)                                                        \
    case WF_##name:                                                                                \
        return exit_code;
#include "weft/errors.def"
#undef X
    }
    return 1;
}

/* Names in a sentence may come from a hostile file. They are shown as wf_text_shown has them, and
 * newlines and tabs as escapes too: a sentence is one line, fit to be printed and put into JSON.
 * An argument may be the old sentence, so the new one is made beside it. */
static void make_sentence(char *out, size_t size, const char *format, va_list args) {
    char raw[1024];
    vsnprintf(raw, sizeof raw, format, args);
    wf_text text = wf_text_start(out, size);
    const char *at = raw;
    for (size_t left = strlen(raw); left > 0 && !text.cut;) {
        char one[8];
        size_t step = wf_text_shown(at, left, one);
        if (one[0] == '\n' || one[0] == '\t') wf_text_add(&text, "\\u%04x", (unsigned)one[0]);
        else wf_text_add(&text, "%s", one);
        at += step, left -= step;
    }
}

wf_status wf_fail(wf_ctx *ctx, wf_status status, const char *format, ...) {
    if (ctx == NULL) return status;
    va_list args;
    va_start(args, format);
    make_sentence(ctx->error, sizeof ctx->error, format, args);
    va_end(args);
    return status;
}

wf_status wf_fail_errno(wf_ctx *ctx, wf_status status, const char *format, ...) {
    int code = errno;
    if (code == ENOMEM) status = WF_ERR_MEMORY;
    if (code == ENOSPC || code == EDQUOT) status = WF_ERR_DISK;
    if (ctx == NULL) return status;
    char sentence[768];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return wf_fail(ctx, status, "%s: %s", sentence, strerror(code));
}

wf_status wf_use_cuda(wf_ctx *ctx, bool *out) {
    wf_device device = ctx == NULL ? WF_DEVICE_CPU : ctx->desc.device;
    *out = device != WF_DEVICE_CPU && wf_cuda_available();
    if (device == WF_DEVICE_CUDA && !*out)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: %s; use --device cpu or auto",
                       wf_cuda_description());
    return WF_OK;
}

wf_status wf_ctx_cuda(wf_ctx *ctx, wf_cuda_device **out) {
    *out = NULL;
    if (ctx == NULL) return WF_ERR_UNSUPPORTED;
    if (ctx->cuda == NULL) WF_TRY(wf_cuda_open(ctx, ctx->desc.gpu, &ctx->cuda));
    wf_cuda_use(ctx->cuda);
    *out = ctx->cuda;
    return WF_OK;
}

/* The GPU's context and kernels take 0.2 s, once, measured beside an H200; elsewhere it may be
 * more. */
static const double cuda_start_seconds = 0.25;

wf_status wf_use_cuda_for(wf_ctx *ctx, double core_seconds, bool *out) {
    bool worth = core_seconds > cuda_start_seconds * wf_ctx_threads(ctx);
    *out = false;
    if (ctx == NULL || (ctx->desc.device == WF_DEVICE_AUTO && !worth)) return WF_OK;
    return wf_use_cuda(ctx, out);
}

void wf_note_device(wf_ctx *ctx, const char *part, bool cuda) {
    if (ctx == NULL) return;
    int i = 0;
    while (i < most_parts && ctx->part[i][0] != '\0' && strcmp(ctx->part[i], part) != 0) i++;
    if (i == most_parts) return;
    snprintf(ctx->part[i], sizeof ctx->part[i], "%s", part);
    ctx->on_cpu[i] |= !cuda;
    ctx->on_cuda[i] |= cuda;
}

/* The first part by name after `before`; -1: there is none. */
static int next_part(const wf_ctx *ctx, const char *before) {
    int next = -1;
    for (int i = 0; i < most_parts && ctx->part[i][0] != '\0'; i++)
        if (strcmp(ctx->part[i], before) > 0 &&
            (next < 0 || strcmp(ctx->part[i], ctx->part[next]) < 0))
            next = i;
    return next;
}

/* Sorted by name, because the order in which parts begin may depend on what an earlier run has
 * left. */
const char *wf_ctx_devices(wf_ctx *ctx) {
    wf_text text = wf_text_start(ctx->devices, sizeof ctx->devices);
    const char *before = "";
    for (int i; (i = next_part(ctx, before)) >= 0; before = ctx->part[i])
        wf_text_add(&text, "%s%s %s", before[0] != '\0' ? ", " : "", ctx->part[i],
                    !ctx->on_cuda[i]  ? "cpu"
                    : !ctx->on_cpu[i] ? "cuda"
                                      : "cpu and cuda");
    return ctx->devices;
}

void wf_warn(wf_ctx *ctx, const char *format, ...) {
    if (ctx == NULL || ctx->muted || ctx->desc.warn == NULL) return;
    char sentence[1024];
    va_list args;
    va_start(args, format);
    make_sentence(sentence, sizeof sentence, format, args);
    va_end(args);
    ctx->desc.warn(ctx->warn_user, sentence);
}

wf_status wf_alloc_raw(wf_ctx *ctx, size_t count, size_t size, const char *what,
                       void *out_pointer) {
    void *memory = NULL;
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - 64)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: %zu items of %zu bytes do not fit in memory", what,
                       count, size);
    bytes = (bytes + 63) / 64 * 64;
    if (bytes == 0) bytes = 64;
    memory = aligned_alloc(64, bytes);
    if (memory == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory (%zu bytes)", what, bytes);
    memcpy(out_pointer, &memory, sizeof memory);
    return WF_OK;
}

wf_status wf_alloc(wf_ctx *ctx, size_t count, size_t size, const char *what, void *out_pointer) {
    void *memory;
    WF_TRY(wf_alloc_raw(ctx, count, size, what, out_pointer));
    memcpy(&memory, out_pointer, sizeof memory);
    memset(memory, 0, count * size);
    return WF_OK;
}

double wf_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double wf_ctx_seconds(const wf_ctx *ctx) {
    return ctx != NULL && ctx->clock != NULL ? ctx->clock(ctx->clock_user) : wf_seconds();
}

void wf_ctx_set_clock(wf_ctx *ctx, double (*clock)(void *user), void *user) {
    ctx->clock = clock;
    ctx->clock_user = user;
}

wf_meter wf_meter_start(wf_ctx *ctx, const char *stage, const char *unit, double total) {
    double now = wf_seconds();
    return (wf_meter){ctx, stage, unit, total, now, now};
}

static void report(wf_meter *meter, double done, bool last, const char *format, va_list args) {
    const wf_ctx *ctx = meter->ctx;
    if (ctx == NULL || ctx->muted || ctx->desc.progress == NULL) return;
    double now = wf_seconds();
    if (!last && now - meter->last_report < 1e-3 * report_interval_ms) return;
    meter->last_report = now;
    char detail[256] = "";
    if (format != NULL) vsnprintf(detail, sizeof detail, format, args);
    wf_progress progress = {meter->stage, meter->unit,        detail, done,
                            meter->total, now - meter->start, last};
    ctx->desc.progress(ctx->progress_user, &progress);
}

void wf_meter_update(wf_meter *meter, double done, const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(meter, done, false, format, args);
    va_end(args);
}

void wf_meter_end(wf_meter *meter, double done, const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(meter, done, true, format, args);
    va_end(args);
}
