/* phase_fit: generators that are fitted in phases, one network after another: an autoencoder, then
 * perhaps a model of its latents. What they share: loading, checkpoints, log, optimiser,
 * validation, interruption, resume. Each phase is a network of nn/layers.h with a loss.
 *
 *     wf_phase_fit fit = {.phases = {{.name = "vae", ...}, {.name = "ddpm", ...}}, .n_phases = 2};
 *     wf_phase_fit_load(&fit, ctx, kind, desc);    networks are in fit.set
 *     wf_phase_fit_open(&fit, model);              a checkpoint of the same settings is continued
 *     wf_phase_fit_run(&fit, 0); ... wf_phase_fit_run(&fit, 1);
 *
 * P1  An update is addressed by its number, counted over all phases: a fit that goes on from a
 *     checkpoint makes the updates of the uninterrupted one, bit for bit.
 * P2  A broken update leaves no trace: weights are changed last, and running statistics, which the
 *     forward pass changes, are put back.
 * P3  A checkpoint holds finite numbers. */
#pragma once

#include "flow/training_set.h"
#include "flow/tensor_file.h"
#include "nn/layers.h"
#include "nn/optim.h"
#include "weft/generator.h"

WF_BEGIN_C

enum { WF_PHASE_INPUTS = 3, WF_MAX_FIT_PHASES = 2 };

/* A batch of a phase. */
typedef struct wf_phase_batch {
    const uint32_t *networks; /* [n] held-out ones stand after those that are fitted */
    int n;
    uint64_t seed; /* noise: streams of (seed, place in the batch, purpose, update) */
    uint32_t update;
} wf_phase_batch;

typedef struct wf_phase_shape {
    int rows, cols;
} wf_phase_shape;

/* The loss is a weighted sum of at most two terms, each (1, 1). */
typedef struct wf_phase_loss {
    wf_tensor *term[2];
    double weight[2];
} wf_phase_loss;

/* How a GPU draws what `fill` does (generators/cuda/phase_draws.cu). */
typedef enum wf_phase_law {
    WF_PHASE_NOISY,    /* rows with noise, rows, noise of latents: pdiff's autoencoder */
    WF_PHASE_DIFFUSED, /* noisy rows, steps, noise: its diffusion */
    WF_PHASE_VIEWS     /* two views of each row with factors of noise: sane */
} wf_phase_law;
typedef struct wf_phase_draw {
    wf_phase_law law;
    const float *rows; /* (networks, width) what is drawn from; borrowed */
    uint32_t width;
    float noise;             /* NOISY: on rows; VIEWS: of factors */
    uint32_t padded, latent; /* NOISY: numbers of a row with zeros behind it, and of a latent */
    float latent_noise;
    uint32_t steps;        /* DIFFUSED */
    const double *kept;    /* [steps] share of the signal's variance; borrowed */
    const wf_graph *graph; /* VIEWS: second ones are relabelled as one of `copies` of a network */
    uint64_t view_seed;
    uint32_t copies, relabellings, units;
    uint32_t *from; /* (relabellings, units) the unit that comes to each place; free() it */
} wf_phase_draw;

/* model: the generator's own struct, the same for all of its phases. */
typedef struct wf_phase {
    const char *name;  /* "vae": of its tensors in files and of its lines in the log */
    const char *doing; /* "training the autoencoder" */
    /* Shapes of the inputs of so many networks; how many inputs. */
    int (*shapes)(const void *model, int networks, wf_phase_shape out[WF_PHASE_INPUTS]);
    /* Rows without padding. Called once for each batch. */
    void (*fill)(const void *model, const wf_phase_batch *batch, float *const in[WF_PHASE_INPUTS]);
    wf_phase_loss (*loss)(wf_net *net, const void *model, int networks,
                          wf_tensor *const in[WF_PHASE_INPUTS]);
    wf_status (*draw)(wf_ctx *ctx, const void *model, wf_phase_draw *out);
    size_t updates;
    double lr;
    uint64_t seed;  /* of its initial weights */
    bool decay_all; /* weight decay of all parameters; else of matrices */
    /* made by wf_phase_declare */
    wf_params list, buffers;
    /* (list.total) and (buffers.total) floats; ema NULL without, and after the phase: then it is
     * what `weights` holds. */
    float *weights, *ema, *statistics;
} wf_phase;

/* The lists of parameters and buffers, from a walk of the network without memory for it. */
wf_status wf_phase_declare(wf_ctx *ctx, wf_phase *phase, const void *model);
void wf_phase_free(wf_phase *phase);
/* Starts a tape with the network's weights, on the CPU. grad: the tape keeps what backward
 * needs, and batch norms use the batch; else it is the network that samples. */
void wf_phase_start(wf_ctx *ctx, wf_phase *phase, bool grad, wf_tape *tape, wf_net *net);
/* An input of float values, or while declaring a shape. */
wf_tensor *wf_phase_input(wf_net *net, int rows, int cols, const float *values);

/* Evaluations of the network that samples, on the CPU or on a GPU. A walk records them. */
typedef wf_tensor *wf_phase_walk(wf_net *net, const void *model, int networks,
                                 wf_tensor *const in[WF_PHASE_INPUTS]);
typedef struct wf_phase_eval {
    wf_ctx *ctx;
    wf_phase *phase;
    const void *model;
    int most; /* networks at once; on a GPU there are always so many */
    wf_tape tape;
    struct wf_eval_cuda *gpu; /* NULL: on the CPU */
} wf_phase_eval;
/* fast: on a GPU with products of bf16 numbers. */
wf_status wf_phase_eval_open(wf_ctx *ctx, wf_phase *phase, const void *model, size_t most,
                             bool on_gpu, bool fast, wf_phase_eval *out);
/* shape: of the inputs of one network. out: the walk's result for `networks` of them, without
 * padding. */
wf_status wf_phase_eval_run(wf_phase_eval *eval, wf_phase_walk *walk, size_t networks,
                            const wf_phase_shape *shape, int inputs, const float *const *in,
                            float *out);
void wf_phase_eval_close(wf_phase_eval *eval);

/* Tensors besides those of the phases, which sampling needs. Borrowed. */
typedef struct wf_phase_extra {
    const char *name;
    size_t rows, cols; /* cols 0: a vector */
    const float *data;
} wf_phase_extra;

/* Where a fit stands. */
typedef struct wf_phase_state {
    int at;      /* the phase that it is in */
    size_t made; /* updates of that phase */
    double seconds, phase_seconds, window_loss;
    size_t window_count;
    bool waits; /* the validation of this moment was broken off and comes first */
} wf_phase_state;

typedef struct wf_phase_fit {
    wf_phase phases[WF_MAX_FIT_PHASES];
    int n_phases;
    wf_phase_extra extra[4];
    int n_extra;
    /* made by wf_phase_fit_load */
    wf_ctx *ctx;
    const wf_generator_kind *kind;
    const char *path;
    wf_fit_desc desc;
    wf_training_set set; /* one; its weights are as the collections have them */
    wf_meta config;
    bool on_gpu, fast;   /* where updates are made; fast: bf16 products */
    const char *kernels; /* "avx2", "cuda bf16" */
    /* the rest is the loop's */
    const void *model;
    wf_phase_state state;
    bool saved, gave_up; /* trainer.h */
    int resumed;         /* the phase whose optimiser's state is in the file; -1: none */
    int log;
    struct wf_phase_loop *loop;
} wf_phase_fit;

/* Checks that desc->train sets nothing that such a fit would not read, and loads the networks. */
wf_status wf_phase_fit_load(wf_phase_fit *fit, wf_ctx *ctx, const wf_generator_kind *kind,
                            const wf_generator_fit_desc *desc);
/* Normalises the networks, and adds "norm.mean" and "norm.std" to the extra tensors. A block's mean
 * and deviation are measured in each network and averaged over networks; squares: variances are
 * averaged in place of deviations. by_layer: the blocks of a layer are measured together. A
 * deviation of 0 becomes 1. */
wf_status wf_phase_fit_normalise(wf_phase_fit *fit, bool by_layer, bool squares, wf_norm *out);
/* What `walk` makes of the first networks with the weights of the first phase: `numbers` of each
 * into *out, which the caller frees. A network has zeros behind its parameters up to `padded`. */
wf_status wf_phase_fit_encode(wf_phase_fit *fit, wf_phase_walk *walk, size_t count, size_t padded,
                              size_t numbers, float **out);
/* Initial weights, or those of the checkpoint at the path. All phases are declared. */
wf_status wf_phase_fit_open(wf_phase_fit *fit, const void *model);
/* Phase `index` to its end; nothing where it is done. WF_ERR_INTERRUPTED: the sentence
 * says which checkpoint stands. */
wf_status wf_phase_fit_run(wf_phase_fit *fit, int index);
/* Has the last phase, of this fit or of an earlier one into the file, all of its updates? */
bool wf_phase_fit_done(const wf_phase_fit *fit);
/* Writes the file once more: further `extra` tensors were made after the last phase. */
wf_status wf_phase_fit_save(wf_phase_fit *fit);
void wf_phase_fit_free(wf_phase_fit *fit);

/* A file of such a fit, to sample from: its settings, architecture and networks. `phases` are
 * declared in between by `declare`, when options and graph are known. */
typedef struct wf_phase_file {
    wf_st_file *file;
    const char *path;
    wf_graph *graph;
} wf_phase_file;
wf_status wf_phase_file_open(wf_ctx *ctx, const char *path, const wf_generator_kind *kind,
                             void *options, wf_phase_file *out);
/* The weights of declared phases. WF_ERR_INPUT: the fit broke off before the last phase. */
wf_status wf_phase_file_read(wf_ctx *ctx, const wf_phase_file *file, wf_phase *phases, int n);
/* The tensors "norm.mean" and "norm.std". */
wf_status wf_phase_file_norm(wf_ctx *ctx, const wf_phase_file *file, wf_norm *out);
void wf_phase_file_close(wf_phase_file *file);

WF_END_C
