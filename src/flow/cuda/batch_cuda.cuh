/* batch_cuda: draws a training batch and takes its loss on the GPU.
 *
 * The numbers are those of draw.c and objective.c, from the same Philox addresses. Like the CPU's,
 * these files are compiled without contraction of multiply and add, so draws, noise, times and
 * interpolations have the same bits. Only the loss is added up in another order.
 *
 * slice    2048 parameters of a network, the work of one CTA
 * place    index of a network in the batch, ordered by family; drawn[] is its index before that
 * here     place - first: index among the networks of this rank, of arrays over them */
#pragma once

#include "flow/cuda/draw_parts.cuh"

extern "C" {
#include "flow/training_set.h"
}

namespace wf_batch_gpu {

enum { slice = 2048, threads = 256 };

struct family {
    const float *weights; /* device memory, or host memory the device reads */
    uint32_t params;
    const relabel *blocks;
    int n_blocks;
    wf_axes axes; /* variances in device memory */
    const wf_loss_weight *loss_weights;
};

struct source {
    int family;
    uint32_t first, count;
};

/* Everything lies in device memory unless said otherwise. Arrays over parameters are ragged by
 * place. */
struct batch {
    const uint32_t *update;
    int networks, round_length, cond_size; /* networks: of the batch, over all ranks */
    int first, own;                        /* places first .. first+own-1 are this rank's */
    uint64_t seed;
    float source_std, path_noise;
    wf_path path; /* both in double */
    double cond_drop;
    uint32_t noise_table;
    bool epochs, relabel, signs;
    uint32_t most_units; /* of copies: of any architecture */
    int time_law;
    const family *families;
    const source *sources;       /* (round_length) of each place of a round */
    const float *conds;          /* (round_length, cond_size) */
    const uint32_t *drawn;       /* (own) */
    const uint32_t *param_start; /* (own + 1) */
    /* host memory: (ring, networks, units); NULL: the coupling is independent */
    const uint32_t *relabelling;
    uint32_t ring, units;
    float *t, *cond;
    uint8_t *drop;
    float *w0, *w1,
        *matched; /* raw noise, networks and matched noise, where the GPU matches; else NULL */
    float *x, *wt, *target;
    wf_path_scales *scale;               /* (own) and */
    wf_axes *axes;                       /* (own) and */
    const wf_loss_weight **loss_weights; /* (own) as in objective.h */
    const float *f;
    float *df;
    double *terms; /* (networks, slices): their sum is the loss */
    int slices;    /* of the largest network */
};

/* t, cond, drop and scale of the update, then wt, target = w1 - w0 and x. Where b.w0 is not NULL it
 * writes w0 and w1 in place of the latter ... */
void draw(const batch &b, cudaStream_t stream);
/* ... and after matching, this makes wt, target and x from w1 and `matched`. */
void interpolate(const batch &b, cudaStream_t stream);
/* df and the terms of the loss, from f. */
void compare(const batch &b, cudaStream_t stream);

/* out (rows, n) = std * deviates of streams (seed, first + row, purpose, step). */
void normals(uint64_t seed, uint32_t first, uint32_t purpose, uint32_t step, float std, float *out,
             size_t rows, size_t n, cudaStream_t stream);

} // namespace wf_batch_gpu
