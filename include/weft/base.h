/* weft/base.h: status codes, the context, progress and version.
 *
 * Every call that can fail returns a wf_status and leaves a sentence in its context:
 *
 *     wf_ctx *ctx;
 *     if (wf_ctx_create(NULL, &ctx)) return 4;
 *     wf_zoo *zoo;
 *     if (wf_zoo_open(ctx, "zoo.safetensors", &zoo)) puts(wf_last_error(ctx));
 *
 * The library never prints and never exits. A context belongs to one calling thread; it owns the
 * worker threads of the calls made with it, and its GPU's streams and memory. Several contexts may
 * work at the same time, on one GPU or on several. */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WF_API __attribute__((visibility("default")))
#else
#define WF_API
#endif

/* C linkage for programs in C++. */
#ifdef __cplusplus
#define WF_BEGIN_C extern "C" {
#define WF_END_C }
#else
#define WF_BEGIN_C
#define WF_END_C
#endif

WF_BEGIN_C

#define WF_VERSION "0.1.0"

typedef enum wf_status {
#define X(name, value, exit_code, sentence) WF_##name = value,
#include "weft/errors.def"
#undef X
} wf_status;

typedef struct wf_ctx wf_ctx;

/* One report of a long call. Called on the thread that made the call, at most a few times a second. */
typedef struct wf_progress {
    const char *stage;  /* "training networks" */
    const char *unit;   /* "networks" */
    const char *detail; /* "loss 0.412", or "" */
    double done, total; /* in units; total 0 when it is not known */
    double seconds;     /* since the stage began */
    bool last;          /* the stage has ended */
} wf_progress;

/* AUTO takes the GPU when this build and this machine have one. */
typedef enum wf_device { WF_DEVICE_CPU, WF_DEVICE_CUDA, WF_DEVICE_AUTO } wf_device;

typedef struct wf_ctx_desc {
    int threads;         /* 0: as many as there are cores */
    wf_device device;    /* where the heavy work runs */
    int gpu;             /* which one, counted from 0 */
    bool wait_for_locks; /* an output that another process makes: wait, else WF_ERR_LOCKED */
    void (*progress)(void *user, const wf_progress *); /* NULL: silent */
    void (*warn)(void *user, const char *sentence);    /* NULL: dropped */
    void *user;
} wf_ctx_desc;

/* desc NULL means the defaults. The context is freed by wf_ctx_free(), which accepts NULL. */
WF_API wf_status wf_ctx_create(const wf_ctx_desc *desc, wf_ctx **out);
WF_API void wf_ctx_free(wf_ctx *ctx);
WF_API int wf_ctx_threads(const wf_ctx *ctx);
/* Whether heavy work is to run on the GPU; fails when one was asked for and there is none. */
WF_API wf_status wf_use_cuda(wf_ctx *ctx, bool *out);
/* Where the parts of an evaluation have run so far: "matching cuda, errors cpu"; "" when there was nothing to choose. Valid
 * until the next call. */
WF_API const char *wf_ctx_devices(wf_ctx *ctx);

/* The sentence of the last failure: what, where, how to mend it. Valid until the next call. */
WF_API const char *wf_last_error(const wf_ctx *ctx);
WF_API const char *wf_status_name(wf_status status);
WF_API int wf_status_exit_code(wf_status status);

/* Ask running calls to finish their step, save and return WF_ERR_INTERRUPTED. Async-signal-safe. */
WF_API void wf_interrupt(wf_ctx *ctx);
WF_API bool wf_interrupted(const wf_ctx *ctx);

/* What this build has, one "name: value" a line. */
WF_API const char *wf_build_info(void);

WF_END_C

#endif
