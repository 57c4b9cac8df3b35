/* field: a velocity network, whichever it is: what a flow asks of it, and the table that it fills.
 *
 * A kind of field (wf_field_kind) has a name, settings, and functions. A field is an object of a
 * kind: a struct of its own whose first member is a wf_field. Trainer, samplers, checkpoints and
 * the loops on a GPU call these tables alone.
 *
 * Parameters live in one flat array of the caller's, so that optimiser, EMA and checkpoints are
 * plain passes over flat arrays; the field knows the layout. Networks come and go in the flat order
 * of their graph; a field with another order permutes inside. All arrays are float for WF_F32 and
 * double for WF_F64 (gradient checks). docs/generators.md says how to add a field. */
#pragma once

#include "graph/batch.h"
#include "nn/params.h"
#include "tensor/tensor.h" /* wf_dtype */
#include "weft/field.h"

WF_BEGIN_C

typedef struct wf_field_kind wf_field_kind;
typedef struct wf_field_program wf_field_program;
typedef struct wf_field_program_desc wf_field_program_desc;

/* What a caller wants to know while a backward runs on the CPU. */
typedef struct wf_field_stages {
    int count;     /* 0: nothing */
    const int *of; /* the stage of each tensor (wf_params_stages) */
    /* The parts' gradients of this stage are complete, and `add` may add them while backward goes
     * on. Called by any thread, in the order of the stages; not for all of them when backward
     * fails. */
    void (*over)(void *user, int stage);
    void *user;
} wf_field_stages;

/* What every field has; a kind's own struct begins with it. */
typedef struct wf_field {
    const wf_field_kind *kind;
    wf_dtype dtype;
    size_t params;
    const wf_field_tensor *tensors; /* tile the flat array, in its order */
    int n_tensors;
    int cond_size;          /* numbers in a condition; 0: none */
    bool folds;             /* takes first layers on their nodes (WF_GRAPH_FOLD_INPUT) */
    uint64_t seed;          /* of the initial parameters */
    wf_field_stages stages; /* set by the caller, for kinds with tells_stages */
} wf_field;

/* Most parts that a field cuts a batch into. */
enum { WF_FIELD_PARTS = 16 };

/* One evaluation. Arrays over parameters are (P) of the batch, ragged by network. */
typedef struct wf_field_input {
    const wf_batch *batch;
    const void *w, *t; /* (P), (n_graphs) */
    const void *cond;  /* (n_graphs, cond_size); NULL without conditions */
    /* (n_graphs) nonzero: the learned null in place of the condition; or NULL */
    const uint8_t *drop;
    /* Only these parts of the batch, for fields that have parts; last_part 0: all of them. */
    int first_part, last_part;
    bool keep;     /* record what backward needs */
    bool fast;     /* on a GPU: products of operands rounded to bf16 */
    bool training; /* random parts such as dropout work, drawn from ... */
    uint64_t seed; /* ... streams of (seed, place in the batch, purpose, update) */
    uint32_t update;
} wf_field_input;

struct wf_field_kind {
    const char *name;  /* of the generator, as recipes and files have it */
    const char *about; /* one line for people */
    unsigned traits;   /* wf_generator_trait; REFINES and ON_GPU are added by the flow */
    const wf_setting *(*settings)(void); /* of the struct `options` */
    size_t options_size;
    /* Complete the options from what is fitted: condition size, longest folded row ... May be
     * NULL. */
    wf_status (*adapt)(wf_ctx *ctx, void *options, const wf_graph *const *graphs, int n_graphs,
                       int cond_size);
    /* graph: the only architecture it will meet; NULL: any. params: how many parameters it must
     * have, as a file says, or 0; compare before allocating that much, a file may lie about widths.
     * No parameters are made here. */
    wf_status (*create)(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                        const wf_graph *graph, wf_dtype dtype, size_t params, wf_field **out);
    void (*free)(wf_field *field);
    void (*init)(const wf_field *field, uint64_t seed, void *params);
    /* v (P) = velocity of each network. Nothing is allocated once a batch of this shape was
     * seen. */
    wf_status (*forward)(wf_ctx *ctx, wf_field *field, const void *params,
                         const wf_field_input *input, void *v);
    /* After a forward with keep, whose arrays must still hold what they held: grad (params) =
     * d(sum dv*v)/d(params), overwritten. dw (P, may be NULL): gradient by w. */
    wf_status (*backward)(wf_ctx *ctx, wf_field *field, const void *dv, void *grad, void *dw);
    /* Parts of a batch that several processes share out, by the batch alone: start[p] is the first
     * network of part p, start[n] their number; returns n. After a forward with some parts, grad is
     * not what backward says, and `add` adds these parts' gradients of parameters first ..
     * first+n-1 to `running`, in their order, or sets them when `fresh`. These are whole rows of
     * tensors. All parts added in order have the bits of a backward of the whole batch. False: out
     * of memory. */
    int (*parts)(wf_field *field, const wf_batch *batch, int start[WF_FIELD_PARTS + 1]);
    bool (*add)(wf_field *field, size_t first, size_t n, float *running, bool fresh);
    bool tells_stages; /* backward calls field->stages.over */
    /* Operations of the matrix products of the last forward with keep and its backward; may be
     * NULL. */
    double (*flops)(const wf_field *field);
    /* Roughly, bytes that a forward without keep holds for a network of `graph`; may be NULL. */
    size_t (*bytes)(const wf_field *field, const wf_graph *graph);
    /* Records the field on a GPU, see below; NULL: it runs on the CPU alone. The field must outlive
     * the program. WF_ERR_MEMORY: the activations do not fit on the GPU. */
    wf_status (*record)(wf_ctx *ctx, const wf_field *field, const wf_field_program_desc *desc,
                        wf_field_program **out);
};

/* The kinds there are, NULL after the last (models/field_kinds.c). */
extern const wf_field_kind *const wf__field_kinds[];
const wf_field_kind *wf_field_find(const char *name); /* NULL: none of that name */

/* The status of an evaluation: WF_ERR_INTERRUPTED in an interrupted context, where it may have left
 * out operations and its results must not be used. */
wf_status wf__field_result(wf_ctx *ctx, wf_status status);

static inline wf_status wf_field_create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                                        const wf_graph *graph, wf_dtype dtype, wf_field **out) {
    return kind->create(ctx, kind, options, graph, dtype, 0, out);
}
static inline void wf_field_free(wf_field *field) {
    if (field != NULL) field->kind->free(field);
}
static inline void wf_field_init(const wf_field *field, uint64_t seed, void *params) {
    field->kind->init(field, seed, params);
}
static inline wf_status wf_field_forward(wf_ctx *ctx, wf_field *field, const void *params,
                                         const wf_field_input *input, void *v) {
    return wf__field_result(ctx, field->kind->forward(ctx, field, params, input, v));
}
static inline wf_status wf_field_backward(wf_ctx *ctx, wf_field *field, const void *dv, void *grad,
                                          void *dw) {
    return wf__field_result(ctx, field->kind->backward(ctx, field, dv, grad, dw));
}
/* Equivariant under relabelling of hidden units; the matched coupling needs it. */
static inline bool wf_field_equivariant(const wf_field *field) {
    return (field->kind->traits & WF_GENERATOR_EQUIVARIANT) != 0;
}

/* --- on a GPU ------------------------------------------------------------------------------------
 * A program is a float field recorded for one batch, at fixed places in device memory, to be run
 * again and again by loops that stay on the device. A kind's own struct begins with a
 * wf_gpu::field_program (cuda/field_program.cuh). */

/* Device memory. params, grad (params of the field); w, v, dv, dw (P); t (B); cond (B, K); drop
 * (B). */
typedef struct wf_field_buffers {
    float *params, *w, *t, *cond;
    uint8_t *drop;
    float *v;
    float *dv, *grad, *dw;  /* with keep only, dw with want_dw only */
    const uint32_t *update; /* number of the update, for random parts; NULL: not training */
} wf_field_buffers;

/* batch is read while the program is made and not kept. lent: buffers that are not NULL are used
 * instead of own ones and must outlive the program; making it overwrites v, grad and dw, the rest
 * is only read. Own buffers start as zeros. */
struct wf_field_program_desc {
    const wf_batch *batch;
    bool keep, want_dw;
    bool fast;      /* bf16 products and fused kernels; else float throughout */
    uint64_t seed;  /* of random parts */
    uint32_t first; /* place of the first network in the whole batch, for random parts */
    /* The stage of each tensor (wf_params_stages), at most WF_TAPE_STAGES; 0 stages: one. Not
     * kept. */
    int n_stages;
    const int *stages;
    wf_field_buffers lent;
};

struct wf_field_program {
    wf_field_buffers buffers;
};

/* field->kind->record must not be NULL. */
static inline wf_status wf_field_program_create(wf_ctx *ctx, const wf_field *field,
                                                const wf_field_program_desc *desc,
                                                wf_field_program **out) {
    return field->kind->record(ctx, field, desc, out);
}
/* Enqueue v = velocity; then grad (and dw) from dv, with keep. On the context's stream, which may
 * be capturing a graph. */
wf_status wf_field_program_forward(wf_ctx *ctx, wf_field_program *program);
wf_status wf_field_program_backward(wf_ctx *ctx, wf_field_program *program);
/* Stage after stage this is backward; behind a stage its gradients are complete. */
wf_status wf_field_program_backward_stage(wf_ctx *ctx, wf_field_program *program, int stage);
size_t wf_field_program_bytes(const wf_field_program *program); /* of the device, held or shared */
void wf_field_program_free(wf_field_program *program); /* waits for the stream; NULL is fine */

WF_END_C
