#include "flow/fit_common.h"

#include "base/comm.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wf_status log_name(wf_ctx *ctx, const char *path, char **out) {
    if (asprintf(out, "%s.log.jsonl", path) >= 0) return WF_OK;
    *out = NULL;
    return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
}

/* In place. */
static size_t keep_lines(char *text, size_t size, size_t done) {
    static const char opening[] = "{\"update\":";
    size_t kept = 0;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (end == NULL) break;
        size_t length = (size_t)(end - (text + at)) + 1;
        if (strncmp(text + at, opening, sizeof opening - 1) == 0 &&
            strtoull(text + at + sizeof opening - 1, NULL, 10) <= done) {
            memmove(text + kept, text + at, length);
            kept += length;
        }
        at += length;
    }
    return kept;
}

wf_status wf_fit_log_open(wf_ctx *ctx, const char *path, size_t done, int *log) {
    char *name, *text = NULL;
    size_t size = 0;
    WF_TRY(log_name(ctx, path, &name));
    wf_status status = WF_OK;
    if (done > 0 && wf_file_exists(name)) {
        WF_TRY_GOTO(wf_read_file(ctx, name, (size_t)1 << 32, &text, &size), done);
        size = keep_lines(text, size, done);
    }
    WF_TRY_GOTO(wf_write_file(ctx, name, text == NULL ? "" : text, size), done);
    if (!wf_writes_files(ctx)) goto done; /* rank 0 has the log */
    *log = open(name, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (*log < 0) status = wf_fail_errno(ctx, WF_ERR_DISK, "%s", name);
done:
    free(text);
    free(name);
    return status;
}

wf_status wf_fit_log_append(wf_ctx *ctx, const char *path, int log, const char *line,
                            size_t length) {
    errno = ENOSPC; /* what a short write means */
    if (write(log, line, length) != (ssize_t)length)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s.log.jsonl", path);
    wf_log(ctx, path, ".log.jsonl", line);
    return WF_OK;
}

wf_optim_desc wf_fit_optim_desc(const wf_fit_desc *desc, double lr) {
    return (wf_optim_desc){.lr = lr,
                           .weight_decay = desc->weight_decay,
                           .beta1 = desc->beta1,
                           .beta2 = desc->beta2,
                           .eps = desc->eps,
                           .muon = desc->optimizer == WF_OPT_MUON,
                           .muon_lr = desc->muon_lr,
                           .muon_momentum = desc->muon_momentum,
                           .clip = desc->clip,
                           .ema = desc->ema};
}

wf_status wf_fit_optim_create(wf_ctx *ctx, const wf_optim_desc *desc,
                              const wf_field_tensor *tensors, int n, size_t params,
                              wf_optim **out) {
    wf_optim_tensor *own;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, (size_t)n, sizeof *own, "optimiser", &own));
    for (int i = 0; i < n; i++) {
        const wf_field_tensor *t = &tensors[i];
        own[i] = (wf_optim_tensor){t->offset, t->rows, t->cols, t->matrix, t->decay};
    }
    wf_status status = wf_optim_create(ctx, desc, own, n, params, out);
    free(own);
    return status;
}

wf_schedule wf_fit_schedule(const wf_fit_desc *desc, double lr, size_t horizon) {
    return (wf_schedule){.warmup = desc->warmup,
                         .cosine = desc->cosine,
                         .one_cycle = desc->one_cycle,
                         .horizon = horizon,
                         .min_ratio = desc->min_lr / lr};
}

wf_status wf_fit_not_stopped(wf_ctx *ctx, const char *path) {
    if (wf_ctx_ranks(ctx) > 1 || !wf_interrupted(ctx)) return WF_OK;
    return wf_fail(ctx, WF_ERR_INTERRUPTED, "%s: interrupted before an update was made", path);
}

const char *wf_fit_standing(bool saved, bool gave_up) {
    if (!gave_up) return "the checkpoint is saved";
    return saved ? "the last checkpoint stands: to write one takes longer than the updates since"
                 : "no checkpoint yet: to write one takes longer than these updates";
}

bool wf_all_finite(const float *x, size_t n) {
    float sum = 0; /* 0 * x is NaN exactly when x is not finite */
    for (size_t i = 0; x != NULL && i < n; i++) sum += 0 * x[i];
    return sum == 0;
}
