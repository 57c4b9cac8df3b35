/* gmn_part: the velocity of some graphs of a batch, recorded on a tape of its own.
 *
 * A batch is cut into at most 16 parts of contiguous graphs, by the batch alone and never by the
 * number of threads. Graphs do not see one another, so a part runs the whole network by itself, and
 * its gradients of the parameters are a partial sum that the field adds in part order: the same
 * bits for any thread count. */
#pragma once

#include "models/gmn_layout.h"
#include "tensor/tape.h"

/* What all parts read. */
typedef struct gmn_inputs {
    const gmn_layout *layout;
    const wf_backend *backend;
    wf_dtype dtype;
    const void *params;
    const size_t *panel_offset; /* of each tensor, in reals; panels, then panels_t after them */
    const void *panels;
    /* Frozen frequencies: value (de/2), layer (de/2), position (de/2, 3), kernels
     * (de/2, coefficients) of each size. */
    const void *fourier;
    const wf_batch *batch;
    const void *w, *t, *cond;
    const uint8_t *drop;
    wf_dropout_key dropout; /* of the batch's first network; update NULL: no dropout */
    bool keep;
    void *v;
    const wf_ctx *watched; /* of the tapes */
} gmn_inputs;

typedef struct gmn_part {
    int first_graph, last_graph; /* last: one past it */
    wf_tape tape;
    wf_part view;
    void *grad; /* (params): this part's partial gradient; NULL without keep */
    wf_tensor *w, *v, *fold_rows;
} gmn_part;

/* Forward over the part's graphs; the tape's `failed` says when memory ran out. */
void wf__gmn_part_forward(gmn_part *part, const gmn_inputs *inputs);
/* Backward; dw NULL: not wanted. part->grad is overwritten. */
void wf__gmn_part_backward(gmn_part *part, const gmn_inputs *inputs, const void *dv, void *dw);

/* Reals of the frozen frequencies. */
size_t wf__gmn_fourier_size(const wf_field_desc *desc);
