/* lean_attention: messages of a lean block, weighted by a softmax over all that enter a node; see
 * lean_attention.cu. */
#pragma once

#include "models/cuda/gmn_lean/lean_fused.cuh"

namespace wf_gpu::lean {

struct lean_attention {
    lean_fused f;
    const float *v[2]; /* vf, vb (M) */
    float2 *
        /* forward, beside f.partials: the largest logit and the sum of exponentials relative to
         * it */
        tops;
    /* backward, (N): largest logit, 1 / total, along, what `gradients` are divided by */
    const float4 *nodes;
    /* (N, 2, M) of both sums in fp16, by position: towards the node as dst, as src */
    const uint4 *gradients;
    float4 *edges;  /* (E): weights towards dst and src, gradients of both logits */
    float *partial; /* (blocks, 2, M): partial sums of dvf, dvb */
};

/* Whether the operation's messages are weighted. */
inline bool attends(const wf_op *op) {
    return op->mode == WF_SUM_ATTENTION && op->out[2] != NULL &&
           op->in[4]->rows > 2 * op->in[0]->cols;
}
/* Messages of table into f.partials and tops; the sums are node_softmax_sums'. */
bool attend(const wf_op *op, const lean_attention &a);
/* Weights of the edges and gradients of their logits, in scratch; adds to the gradients of vf and
 * vb. NULL: out of it. */
const float4 *attend_backward(const wf_op *op, wf_arena *arena);

} // namespace wf_gpu::lean
