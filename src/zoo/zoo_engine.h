/* zoo_engine: what the driver (zoo_train.c) and the kernels share: cpu/zoo_kernels.c for chains of
 * linear layers, cpu/net_kernels.c for every other network.
 *
 * One network is trained from its first update to its last by one thread, so nothing about it
 * depends on its neighbours, the batch of networks, the shard or the number of threads. */
#pragma once

#include "base/status.h"
#include "weft/zoo.h"

enum { WF_ZOO_LAYERS = 64 }; /* of a chain, at most */

/* Layer l of a chain computes z = W h + b, W (out, in) at weight_offset of the flat vector. */
typedef struct wf_zoo_layer {
    int in, out;
    bool bias;
    size_t weight_offset, bias_offset;
} wf_zoo_layer;

typedef struct wf_zoo_chain {
    int n_layers;
    wf_zoo_layer layers[WF_ZOO_LAYERS]; /* first to last */
    wf_activation activation;
    size_t n_params;
} wf_zoo_chain;

/* Labelled examples; x (n, inputs) in the type of the kernel. */
typedef struct wf_zoo_examples {
    const void *x;
    const int32_t *y;
    size_t n;
} wf_zoo_examples;

/* The same for every network of a collection. Only the optimiser's numbers of `desc` are used. */
typedef struct wf_zoo_plan {
    const wf_graph *graph;
    const wf_zoo_chain *chain; /* NULL: any other network, or images that are changed on the way */
    const wf_zoo_desc *desc;
    int image[3]; /* channels, height, width of the examples; zeros: no images */
    wf_zoo_examples train, test;
} wf_zoo_plan;

/* One network's own settings. */
typedef struct wf_zoo_task {
    uint32_t index; /* address of its random numbers */
    double lr;
    int epochs;
} wf_zoo_task;

typedef enum wf_zoo_state { WF_ZOO_WAITING, WF_ZOO_TRAINED, WF_ZOO_DIVERGED } wf_zoo_state;

/* How far the training of one network has come. The weights belong to it but lie elsewhere. Moments
 * are flat, in graph order, in the type of the kernel; without updates they are not looked at. */
typedef struct wf_zoo_progress {
    uint64_t updates; /* made so far */
    void *first, *second;
} wf_zoo_progress;

/* Whether a kernel is to pause. It asks after every update (between: nothing is lost by a pause),
 * and before every WF_ZOO_EXAMPLES examples, where what has been computed of the update is lost. */
typedef struct wf_zoo_watch {
    bool (*pause)(void *user, bool between);
    void *user;
} wf_zoo_watch;

/* Kernels of one instruction set and type. w is flat, in graph order, in the type of the kernel;
 * scratch has scratch_bytes, starts at a multiple of 64, and needs no preparation. */
typedef struct wf_zoo_kernels {
    size_t real_size;
    size_t (*scratch_bytes)(const wf_zoo_plan *plan);
    /* Trains w in place from where `progress` says. WF_ZOO_WAITING after a pause: w and progress
     * say where to go on, with the same bits; WF_ZOO_DIVERGED when a weight is no longer finite. */
    wf_zoo_state (*train)(const wf_zoo_plan *plan, const wf_zoo_task *task, void *w,
                          wf_zoo_progress *progress, const wf_zoo_watch *watch, void *scratch);
    /* Bit r of errors (ceil(n/8) bytes, all written) is set where test example r is wrong; *wrong:
     * how many are. False after a pause: not all were judged. */
    bool (*judge)(const wf_zoo_plan *plan, const void *w, uint8_t *errors, size_t *wrong,
                  const wf_zoo_watch *watch, void *scratch);
} wf_zoo_kernels;

extern const wf_zoo_kernels wf_zoo_kernels_base_f32, wf_zoo_kernels_base_f64;
extern const wf_zoo_kernels wf_net_kernels_base_f32, wf_net_kernels_base_f64;
#if defined(__x86_64__)
extern const wf_zoo_kernels wf_zoo_kernels_avx2_f32, wf_zoo_kernels_avx512_f32;
extern const wf_zoo_kernels wf_net_kernels_avx2_f32, wf_net_kernels_avx512_f32;
#endif

/* The layers of a chain of linear layers with one activation; false: it is none, or too long. */
bool wf_zoo_chain_build(const wf_graph *graph, wf_zoo_chain *out);

/* Learning rate and epochs of network `index`. */
wf_zoo_task wf_zoo_task_of(const wf_zoo_desc *desc, uint32_t index);

/* Refuses settings and data that cannot be trained on, and fills the plan, which borrows all it is
 * given. x is data's own, in float. */
wf_status wf_zoo_plan_build(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                            const wf_zoo_desc *desc, wf_zoo_chain *chain, wf_zoo_plan *out);

/* A piece of work: networks index[0 .. count-1]. Arrays are the caller's. */
typedef struct wf_zoo_piece {
    const wf_graph *graph;
    size_t count;
    const uint32_t *index;
    void *weights;      /* (count, n_params) in the type of the kernels: initial, then trained */
    bool fresh;         /* start from wf_zoo_init instead (float only) */
    uint8_t *state;     /* [count] wf_zoo_state; set last of all that belongs to a network */
    float *scores;      /* [count] accuracy; NULL: do not judge */
    uint8_t *errors;    /* (count, error_bytes) */
    size_t error_bytes; /* ceil(test.n / 8) */
    wf_meter *meter;    /* may be NULL */
    size_t done_before; /* networks the meter has already counted */
    bool *declined;     /* set where the GPU cannot train these, which is said once; may be NULL */
    void *user;         /* of the functions below, each of which may be NULL */
    /* Called by the thread that runs the piece: everything before place `end` is done, nothing
     * after it is touched by another thread. On the CPU networks end in no order, so only the end
     * of the piece is told. */
    void (*finished)(void *user, size_t end);
    /* Called often by the thread that runs the piece, while others train: networks whose state is
     * set may be saved. False: stop, as after an interruption. */
    bool (*tick)(void *user);
    /* Network i is not finished, but this far. Called by the thread that trains it every
     * wf_zoo_save_seconds, and when the piece stops. False: stop. */
    bool (*keep)(void *user, size_t i, const void *w, const wf_zoo_progress *progress);
    /* Fills w and progress with what was kept of network i; *found false when there is nothing.
     * False: stop. */
    bool (*resume)(void *user, size_t i, void *w, wf_zoo_progress *progress, bool *found);
} wf_zoo_piece;

/* Seconds of work that a killed process may lose; tests shorten it. */
extern double wf_zoo_save_seconds;

/* Trains every network whose state is WF_ZOO_WAITING, one per thread at a time. WF_ERR_INTERRUPTED
 * after an interruption, or when a function of the piece said stop: networks that are not finished
 * are still waiting. */
wf_status wf_zoo_piece_run(wf_ctx *ctx, const wf_zoo_plan *plan, const wf_zoo_kernels *kernels,
                           const wf_zoo_piece *piece);

/* Kernels for this machine and these networks. */
const wf_zoo_kernels *wf_zoo_kernels_pick(const wf_zoo_plan *plan);

/* wf_zoo_train_from in double; for tests. */
wf_status wf_zoo_train_from_f64(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                                const wf_zoo_desc *desc, double *weights);

/* Examples a call of the kernels works on at once; a larger batch is summed piece by piece. */
enum { WF_ZOO_EXAMPLES = 64 };
