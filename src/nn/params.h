/* params: the list of a model's parameter tensors: names, places in the flat array, and how they
 * start.
 *
 * Parameters live in one flat array, so that optimiser, EMA and checkpoints are plain passes over
 * it; the list knows the layout. */
#pragma once

#include "base/status.h"
#include "tensor/tensor.h" /* wf_dtype */
#include "weft/rng.h"

WF_BEGIN_C

typedef enum wf_start {
    WF_START_ZERO,
    WF_START_ONE,
    WF_START_UNIFORM, /* in [-spread, spread) */
    WF_START_NORMAL   /* of mean 0 and std spread */
} wf_start;

/* One parameter tensor. */
typedef struct wf_field_tensor {
    char name[64];  /* "blocks.3.edge.0.weight" */
    size_t offset;  /* in the flat array */
    int rows, cols; /* a bias or vector: rows = its length, cols = 1 */
    bool matrix;    /* Muon's where it is used; else AdamW's */
    bool decay;     /* weight decay applies (matrices; not biases, tables, vectors) */
    bool early;     /* a forward reads it before tensors that stand before it in the list */
    wf_start start;
    double spread;
} wf_field_tensor;

/* Zero-initialised it is empty and valid. Out of memory is sticky. */
typedef struct wf_params {
    wf_field_tensor *tensors;
    int count, capacity;
    size_t total; /* parameters */
    bool failed;
} wf_params;

/* Appends a tensor after the others and returns its index; only offset and the list's total are
 * computed. */
int wf_params_add(wf_params *list, const wf_field_tensor *tensor);
void wf_params_free(wf_params *list);

/* Initial values of all tensors; tensor i draws from the stream (seed, i, WF_RNG_FIELD_INIT, 0). */
void wf_params_init(const wf_field_tensor *tensors, int count, wf_dtype dtype, uint64_t seed,
                    void *params);
/* Stages in which a backward completes gradients, so that ranks may add up one stage while the next
 * is computed: about equal shares of the list from its end, early tensors in the last stage. By the
 * list alone, so equal on all ranks. stage (count); returns how many stages there are, `most` at
 * most. */
int wf_params_stages(const wf_field_tensor *tensors, int count, int most, int *stage);
/* The tensor that holds number `place` of the flat array; -1: none. */
int wf_params_find(const wf_field_tensor *tensors, int count, size_t place);
/* Deviates 0, 1 ... of a stream's address times std. */
void wf_fill_normals(wf_dtype dtype, void *out, size_t count, const wf_rng *rng, double std);

WF_END_C
