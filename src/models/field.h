/* field: what a flow needs of a velocity network: forward and backward over a ragged batch.
 *
 * Parameters live in one flat array of the caller's (so optimiser, EMA and checkpoints are plain
 * passes over flat arrays); the field knows the layout. All arrays are float for WF_F32 and double
 * for WF_F64 (gradient checks). */
#ifndef WF_MODELS_FIELD_H
#define WF_MODELS_FIELD_H

#include "graph/batch.h"
#include "tensor/tensor.h" /* wf_dtype */
#include "weft/field.h"

/* One parameter tensor of the field. */
typedef struct wf_field_tensor {
    char name[64];  /* "blocks.3.edge.0.weight" */
    size_t offset;  /* in the flat array */
    int rows, cols; /* a bias or vector: rows = its length, cols = 1 */
    bool matrix;    /* a matrix of the blocks as split by operand: Muon's; else AdamW's */
    bool decay;     /* weight decay applies (matrices; not biases, tables, vectors) */
} wf_field_tensor;

typedef struct wf_field wf_field;

/* No parameters are made here; wf_field_init writes the initial ones. Free with wf_field_free. */
wf_status wf_field_create(wf_ctx *ctx, const wf_field_desc *desc, wf_dtype dtype, wf_field **out);
void wf_field_free(wf_field *field);
size_t wf_field_params(const wf_field *field);
/* The tensors in flat order. A textbook affine layer that is split by operand is one tensor per operand
 * ("blocks.0.msg.0.weight_e"), each contiguous; docs/method.md maps them to the textbook names. */
const wf_field_tensor *wf_field_tensors(const wf_field *field, int *count);
void wf_field_init(const wf_field *field, uint64_t seed, void *params);

/* v (P) = velocity of each network of the batch at w (P), t (n_graphs), cond (n_graphs, K; NULL without conditions).
 * drop[b] nonzero replaces condition b by the learned null; NULL: none. keep: record what wf_field_backward needs.
 * Nothing is allocated once a batch of this shape has been seen. */
wf_status wf_field_forward(wf_ctx *ctx, wf_field *field, const void *params, const wf_batch *batch,
                           const void *w, const void *t, const void *cond, const uint8_t *drop,
                           bool keep, void *v);
/* On a GPU: products of operands rounded to bf16 and fused kernels, about 1e-2 by norm from the float ones; at the start
 * a field is in float. */
void wf_field_set_fast(wf_field *field, bool fast);
/* After a forward with keep, whose arrays must still hold what they held: grad (params) = d(sum dv*v)/d(params),
 * overwritten. dw (P, may be NULL): gradient by w. */
wf_status wf_field_backward(wf_ctx *ctx, wf_field *field, const void *dv, void *grad, void *dw);
/* The field as a program on the GPU (models/cuda/gmn_cuda.h), for loops that stay there: keep, fast and borrowed as
 * there. WF_F32 fields only. */
struct gmn_cuda;
struct gmn_cuda_buffers;
wf_status wf_field_program(wf_ctx *ctx, const wf_field *field, const wf_batch *batch, bool keep,
                           bool fast, const struct gmn_cuda_buffers *borrowed,
                           struct gmn_cuda **out);
/* Floating-point operations of the matrix products of the last step (forward with keep, and backward). */
double wf_field_flops(const wf_field *field);

#endif
