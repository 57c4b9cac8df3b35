/* status: how the library reports failure. See errors.def for the codes.
 *
 *     if (n == 0) return wf_fail(ctx, WF_ERR_INPUT, "%s: no rows; the file is empty", path);
 *     WF_TRY(wf_read(ctx, ...));            forwards a failure
 *     WF_TRY_GOTO(wf_read(ctx, ...), done); sets the local `status` and jumps */
#pragma once

#include "weft/base.h"

WF_BEGIN_C

/* Records a printf-style sentence in ctx (which may be NULL) and returns `status`. */
wf_status wf_fail(wf_ctx *ctx, wf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with ": <strerror(errno)>" after it; ENOMEM becomes WF_ERR_MEMORY, ENOSPC and EDQUOT
 * WF_ERR_DISK. */
wf_status wf_fail_errno(wf_ctx *ctx, wf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A sentence the caller should see though the call goes on. */
void wf_warn(wf_ctx *ctx, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Hands a line, newline included, that was added to the log PATH + ENDING to the context's
 * callback. */
void wf_log(wf_ctx *ctx, const char *path, const char *ending, const char *line);

bool wf_ctx_waits(const wf_ctx *ctx); /* wf_ctx_desc.wait_for_locks */

/* wf_use_cuda for work that would take one CPU core this long: left to choose, small work stays on
 * the CPU. */
wf_status wf_use_cuda_for(wf_ctx *ctx, double core_seconds, bool *out);
/* Notes for wf_ctx_devices where a part of the work ("matching") runs. */
void wf_note_device(wf_ctx *ctx, const char *part, bool cuda);

#define WF_TRY(call)                                                                               \
    do {                                                                                           \
        wf_status wf_try_status_ = (call);                                                         \
        if (wf_try_status_ != WF_OK) return wf_try_status_;                                        \
    } while (0)

#define WF_TRY_GOTO(call, label)                                                                   \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != WF_OK) goto label;                                                           \
    } while (0)

/* Zeroed memory, 64-byte aligned; count * size is checked. On failure the sentence names `what`.
 * Free with free(). */
wf_status wf_alloc(wf_ctx *ctx, size_t count, size_t size, const char *what, void *out_pointer);
/* The same, not zeroed: for memory that many threads fill, because the first thread to touch a page
 * pays for it. */
wf_status wf_alloc_raw(wf_ctx *ctx, size_t count, size_t size, const char *what, void *out_pointer);

/* Report progress from a long loop; cheap to call, forwards a few times a second. */
typedef struct wf_meter {
    wf_ctx *ctx;
    const char *stage, *unit;
    double total, start, last_report;
} wf_meter;
wf_meter wf_meter_start(wf_ctx *ctx, const char *stage, const char *unit, double total);
void wf_meter_update(wf_meter *meter, double done, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void wf_meter_end(wf_meter *meter, double done, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
double wf_seconds(void); /* monotonic clock */

/* A stop waits for a file that is being written, but not for long: once it is overdue, the file is
 * given up with WF_ERR_INTERRUPTED and the old one stands. It may be put off for wf_stop_seconds,
 * and where a file saves work, for an eighth of the seconds that the work took; 0: no work. */
extern double wf_stop_seconds;
void wf_stop_saves(wf_ctx *ctx, double work);
bool wf_stop_is_overdue(const wf_ctx *ctx);

/* The clock that training goes by: wf_seconds, or one that a test has set. */
double wf_ctx_seconds(const wf_ctx *ctx);
void wf_ctx_set_clock(wf_ctx *ctx, double (*clock)(void *user), void *user);

WF_END_C
