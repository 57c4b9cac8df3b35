/* absent: for the *_absent.c files, which stand in for the CUDA code in a build without. No device
 * ever opens there, and wf_use_cuda has already told the user. So their functions are only linked,
 * and use none of their parameters. */
#pragma once

#include "base/status.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

static inline wf_status wf_cuda_absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

/* A function of a context and of other parameters that only says so. */
#define ABSENT(name, ...)                                                                          \
    wf_status name(wf_ctx *ctx, __VA_ARGS__) { return wf_cuda_absent(ctx); }
