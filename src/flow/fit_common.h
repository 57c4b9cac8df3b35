/* fit_common: what every fit has, whatever it fits: a log, an optimiser and a schedule from
 * wf_fit_desc, and a check that numbers are finite. */
#pragma once

#include "nn/optim.h"
#include "nn/params.h"
#include "weft/flow.h"

/* The log of a fit into `path`: JSON lines in PATH.log.jsonl that begin with {"update":N.
 * Opened, it keeps the lines up to update `done` and drops the rest, also what is no whole line;
 * done = 0 starts it anew. *log is a file descriptor. */
wf_status wf_fit_log_open(wf_ctx *ctx, const char *path, size_t done, int *log);
wf_status wf_fit_log_append(wf_ctx *ctx, const char *path, int log, const char *line,
                            size_t length);

/* From the settings of desc, with this rate of AdamW. */
wf_optim_desc wf_fit_optim_desc(const wf_fit_desc *desc, double lr);
wf_status wf_fit_optim_create(wf_ctx *ctx, const wf_optim_desc *desc,
                              const wf_field_tensor *tensors, int n, size_t params, wf_optim **out);
wf_schedule wf_fit_schedule(const wf_fit_desc *desc, double lr, size_t horizon);

/* WF_ERR_INTERRUPTED when a stop was asked for while a fit is set up, which takes seconds for
 * hundreds of millions of weights and has nothing to save. With several ranks always WF_OK: they
 * agree at the first update. */
wf_status wf_fit_not_stopped(wf_ctx *ctx, const char *path);

/* For the sentence of an interruption: which checkpoint stands (trainer.h). */
const char *wf_fit_standing(bool saved, bool gave_up);

bool wf_all_finite(const float *x, size_t n); /* NULL: yes */
