/* match_gpu: what the kernels of the GPU matching share.
 *
 * Terms. The score of orbit o is a fixed part, from blocks whose other end never moves, and links
 * to other orbits (match_plan.h). Both are sums over k of a[k][r] * b[k][u], and element (k, unit)
 * of either is
 *     w[offset(k) + unit * step(k)]
 * so one list of (offset, step) per orbit says all of the fixed part, and queries and references
 * are packed alike.
 *
 *   fixed matrix    (depth, networks * n)     of one orbit: operand of the products, k-major
 *   link record     | link 0 (depth, n8) | link 1 | ... | rest |   of one network; kernels are flat
 *                   in the depth: rows (unit of the other orbit, entry). n8 = n rounded
 *                   up to 8, zeros between
 *   scores          one array per orbit, fixed[r][u] of pair (query, reference) at
 *                   base + query * query_step + reference * reference_step + r * row_step + u */
#pragma once

#include "base/cuda/device.cuh"

#include <stdint.h>

extern "C" {
#include "align/match.h"
}

enum {
    WF_GPU_ORBITS = 16,
    WF_GPU_LINKS = 2 * WF_GPU_ORBITS,
    WF_GPU_BLOCKS = 64,
    WF_GPU_WIDEST = 64
};

struct wf_gpu_orbit {
    int n, n8;
    int start; /* of its units in `from` */
    int first_link, n_links;
    int depth;      /* of the fixed part */
    int first_term; /* of its (offset, step) list */
};

struct wf_gpu_link {
    int orbit, other; /* the orbit it scores, and the one it depends on */
    int n, n8;        /* units of its orbit, and rounded up */
    int others;       /* units of the other */
    int coef;         /* numbers of an edge: entries of a kernel */
    int depth;        /* others * coef */
    int start;        /* in the link record */
    int offset; /* element (x coef + k, unit) is w[offset + unit*unit_step + x*other_step + k] */
    int unit_step, other_step;
    int counted; /* of a block's two links the one that enters the dot product */
};

/* The description of the networks and the settings; passed to kernels by value. */
struct wf_gpu_shape {
    int n_orbits, n_links, n_units, n_params;
    int widest;      /* largest n */
    int link_floats; /* of a link record */
    int rest, n_rest;
    int sweeps, restarts;
    int shared_bytes; /* that a block may have on this GPU */
    double tolerance;
    wf_gpu_orbit orbits[WF_GPU_ORBITS];
    wf_gpu_link links[WF_GPU_LINKS];
    const int2 *terms;    /* (sum of depths) offset and step of the fixed parts */
    const int *rest_at;   /* [n_rest] parameters of blocks without a movable end */
    const uint8_t *order; /* (restarts + 1, sweeps, n_orbits) */
    const uint8_t *begin; /* (restarts + 1, n_units) */
};

/* The tables of a shape, in one piece of device memory. */
struct wf_gpu_plan {
    wf_gpu_shape shape;
    void *tables;
};
wf_status wf_gpu_plan_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           wf_gpu_plan *out);
void wf_gpu_plan_close(wf_gpu_plan *plan);

struct wf_gpu_scores {
    const float *base;
    size_t query_step, reference_step, row_step;
};

/* One launch: pairs (q, r), q < queries, r < references; pairwise: (q, q) alone, and reference
 * counts as queries do. */
struct wf_gpu_match_args {
    wf_gpu_scores scores[WF_GPU_ORBITS];
    const float *query_links, *reference_links; /* link records */
    size_t query_link_step; /* floats from query to query; 0: all are the first */
    int queries, references;
    bool pairwise;
    /* results; any may be NULL */
    uint8_t *from; /* (queries, n_units), pairwise only */
    float *cosine; /* (queries, references) */
    /* for the cosine: sums of squares, and the reference to leave out (its number counted from
     * first_reference), -1: none */
    const double *query_squares, *reference_squares;
    const int64_t *skip;
    int64_t first_reference;
};

/* Loads the kernel, which must not happen while a stream is captured. */
wf_status wf_gpu_match_prepare(wf_ctx *ctx, wf_gpu_shape *shape);
/* Enqueue the matching; the shape is prepared. */
wf_status wf_gpu_match(wf_ctx *ctx, const wf_gpu_shape &shape, const wf_gpu_match_args &args,
                       cudaStream_t stream);
/* Enqueue the packing of `count` networks (count, n_params) into link records. */
wf_status wf_gpu_pack_links(wf_ctx *ctx, const wf_gpu_shape &shape, const float *networks,
                            size_t count, float *records, cudaStream_t stream);
/* Enqueue the sums of squares of `count` networks of `params` parameters, in double. */
wf_status wf_gpu_squares(wf_ctx *ctx, const float *networks, size_t count, size_t params,
                         double *squares, cudaStream_t stream);
/* Whether a network with this sum of squares can be matched in float; false also for NaN. */
inline bool wf_gpu_usable(double squares) { return squares < 1e30; }
