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
 * work at the same time, on one GPU or on several.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
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

#define WF_VERSION "0.2.0"
/* The binary interface: what functions take and return, layouts of public structs, values of
 * constants. A program that was compiled against another number must not call the library. It
 * rises when something that existed changes, a struct that grows too; new functions do not change
 * it. */
#define WF_ABI 2

typedef enum wf_status {
#define X(name, value, exit_code, sentence) WF_##name = value,
#include "weft/errors.def"
#undef X
} wf_status;

typedef struct wf_ctx wf_ctx;

/* One report of a long call. Made on the thread that made the call, at most a few times a second.
 * Later versions add members at the end alone. */
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

struct wf_comm;
typedef struct wf_ctx_desc {
    int threads;          /* 0: as many as there are cores */
    wf_device device;     /* where the heavy work runs */
    int gpu;              /* which one, counted from 0 */
    bool wait_for_locks;  /* an output that another process makes: wait, else WF_ERR_LOCKED */
    struct wf_comm *comm; /* processes that share the work (weft/comm.h); NULL: this one alone */
    void (*progress)(void *user, const wf_progress *); /* NULL: silent */
    void (*warn)(void *user, const char *sentence);    /* NULL: dropped */
    void *user;
    /* Each line that a call adds to a log (docs/formats.md, log.jsonl): a JSON object and a
     * newline. NULL: none. */
    void (*log)(void *user, const char *path, const char *line);
} wf_ctx_desc;

/* --- the library that was loaded ---------------------------------------------------------------
 * All of these may be called by any thread at any time; texts are constants, never NULL. */

/* WF_ABI of the library; compare it with WF_ABI of the headers before any other call. */
WF_API int wf_abi_version(void);
WF_API const char *wf_version(void); /* WF_VERSION of the library */
/* What this build has, one "name: value" a line. */
WF_API const char *wf_build_info(void);
/* Frees memory that a call handed over ("wf_free() it"). NULL is fine. free() does the same in
 * programs that share the library's C runtime. */
WF_API void wf_free(void *memory);

/* --- the context -------------------------------------------------------------------------------
 * A context may be used by one thread at a time, whichever. Functions that take a context accept
 * NULL unless they say otherwise: then there is one thread, the CPU, no progress, no sentence. */

/* desc is copied; NULL means the defaults, which are all zero. *out is the caller's: wf_ctx_free(),
 * which accepts NULL; no call with that context may be running then.
 * Returns WF_OK or WF_ERR_MEMORY, where *out is NULL. */
WF_API wf_status wf_ctx_create(const wf_ctx_desc *desc, wf_ctx **out);
WF_API void wf_ctx_free(wf_ctx *ctx);
/* Change a context by a JSON object, for callers that do not know the struct: {"threads": 2,
 * "device": "cpu" | "cuda" | "auto", "gpu": 0, "wait": false}; keys that are absent stay as they
 * are. ctx must not be NULL. Returns WF_OK, WF_ERR_USAGE for other keys or values and for another
 * device or GPU after the first work on a GPU, WF_ERR_MEMORY; the context is then as it was. */
WF_API wf_status wf_ctx_configure(wf_ctx *ctx, const char *json);
/* Callbacks, from now on; NULL: none. They run on the thread that makes the call, never on workers.
 * What they are given is valid until they return. They may call wf_interrupt(); nothing else of the
 * library with the same context. ctx must not be NULL. */
WF_API void wf_ctx_on_progress(wf_ctx *ctx, void (*progress)(void *user, const wf_progress *),
                               void *user);
WF_API void wf_ctx_on_warning(wf_ctx *ctx, void (*warn)(void *user, const char *sentence),
                              void *user);
WF_API void wf_ctx_on_log(wf_ctx *ctx, void (*log)(void *user, const char *path, const char *line),
                          void *user);
WF_API int wf_ctx_threads(const wf_ctx *ctx); /* the caller's own counted */
/* Whether heavy work is to run on the GPU. Returns WF_OK, or WF_ERR_UNSUPPORTED: one was asked for
 * and there is none. */
WF_API wf_status wf_use_cuda(wf_ctx *ctx, bool *out);
/* Where the parts of an evaluation have run so far: "matching cuda, errors cpu"; "" when there was
 * nothing to choose. Belongs to the context, valid until its next call; ctx must not be NULL. */
WF_API const char *wf_ctx_devices(wf_ctx *ctx);

/* The sentence of the last failure: what, where, how to mend it; "" without one or with ctx NULL.
 * Belongs to the context, valid until its next call. */
WF_API const char *wf_last_error(const wf_ctx *ctx);
WF_API const char *wf_status_name(wf_status status); /* a constant: "out of memory" */
WF_API int wf_status_exit_code(wf_status status);    /* of the program weft */

/* Ask running calls to finish their step, save and return WF_ERR_INTERRUPTED. May be called by any
 * thread and in signal handlers. Calls that begin later return it too, until it is cleared. */
WF_API void wf_interrupt(wf_ctx *ctx);
WF_API bool wf_interrupted(const wf_ctx *ctx);
/* Use the context again. Only when no call with it is running. */
WF_API void wf_interrupt_clear(wf_ctx *ctx);

WF_END_C

#endif
