/* backlog: how much work may wait in the queue of a device.
 *
 * The host notices an interruption between two pieces of work, and then waits for everything that
 * is enqueued. So the backlog is limited in seconds: first one piece, which is timed, then as many
 * as take WF_BACKLOG_SECONDS, at least one and at most four times as many as before. */
#pragma once

#include <stddef.h>

#define WF_BACKLOG_SECONDS 0.2

typedef struct wf_backlog { /* {0} to begin with */
    double each;            /* seconds of a piece, a running mean; 0: not known */
    size_t last;            /* the last answer */
} wf_backlog;

/* Pieces to take next, 1 to `most`. */
static inline size_t wf_backlog_next(wf_backlog *backlog, size_t most) {
    double fitting = backlog->each > 0 ? WF_BACKLOG_SECONDS / backlog->each : 1;
    double grown = backlog->last > 0 ? 4.0 * (double)backlog->last : 1;
    if (fitting > grown) fitting = grown;
    backlog->last = fitting < 1 || most < 1 ? 1 : fitting < (double)most ? (size_t)fitting : most;
    return backlog->last;
}

/* `count` pieces took so long. The mean rises at once and falls slowly, because a piece that was
 * ready before it was waited for seems fast. */
static inline void wf_backlog_took(wf_backlog *backlog, size_t count, double seconds) {
    double each = seconds / (double)(count > 0 ? count : 1);
    if (!(each > 1e-9)) each = 1e-9;
    backlog->each = each > backlog->each ? each : 0.7 * backlog->each + 0.3 * each;
}
