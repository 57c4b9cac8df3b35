/* tensor: matrices with padded rows, and the record of one operation.
 *
 * Letters used everywhere: B networks (graphs), N nodes, E edges, P parameters of the networks, D
 * width. A tensor is (rows, cols) with rows `ld` apart, ld a multiple of 16 reals, so kernels work
 * in whole vectors. Invariants
 *   T1  columns cols..ld-1 of data are zero (of grad: too)
 *   T2  the flat vectors w, v (P) and parameters of the field are the caller's: ld = cols, no
 *       padding
 *   T3  a tensor made by a residual operation shares its gradient with the stream it continues */
#pragma once

#include "base/arena.h"
#include "base/isa.h"
#include "tensor/ragged.h"

typedef enum wf_dtype { WF_F32, WF_F64 } wf_dtype;

enum { WF_PAD = 16 };
static inline int wf_pad(int cols) { return (cols + WF_PAD - 1) / WF_PAD * WF_PAD; }

typedef struct wf_tensor {
    int rows, cols, ld;
    void *data;
    void *grad;    /* NULL: no gradient wanted, or not yet allocated */
    bool wants;    /* a gradient is wanted */
    bool grad_set; /* grad holds something */
    bool grad_own; /* grad is the tape's, and may be used again when its operation is done */
    struct wf_tensor *shares; /* T3: whose grad this is */
    /* Weights (out, in) as the kernels read them: y = x W' reads panels_t, dx = dy W reads
     * panels. */
    const void *panels, *panels_t;
} wf_tensor;

typedef enum wf_tape_act {
    WF_TAPE_ACT_SILU,
    WF_TAPE_ACT_GELU, /* tanh form */
    WF_TAPE_ACT_SINE,
    WF_TAPE_ACT_GELU_ERF,
    WF_TAPE_ACT_RELU,
    WF_TAPE_ACT_LEAKY_RELU, /* slope 0.01 below zero */
    WF_TAPE_ACT_ELU,        /* e^x - 1 below zero */
    WF_TAPE_ACT_SOFTPLUS,   /* ln(1 + e^x) */
    WF_TAPE_ACT_COUNT
} wf_tape_act;
typedef enum wf_value_code {
    WF_CODE_SINE,    /* sin(A x + b) */
    WF_CODE_FOURIER, /* [sin(2 pi A x), cos(2 pi A x)], A frozen */
    WF_CODE_LINEAR   /* A x + b */
} wf_value_code;
typedef enum wf_sum { WF_SUM_PLAIN, WF_SUM_MEAN, WF_SUM_ATTENTION } wf_sum;

/* How the edges of a part are cut for kernels (models/edge_bundles.h). */
typedef enum wf_cut { WF_CUT_SHORT, WF_CUT_GROUP, WF_CUT_LONG_4, WF_CUT_LONG_3, WF_CUTS } wf_cut;

/* The graphs one tape works on, contiguous ones of a batch; indices are local to them. */
typedef struct wf_part {
    int n_graphs, n_nodes, n_edges, n_fold_rows;
    size_t n_params;
    const uint32_t *node_graph, *node_role; /* [n_nodes] */
    const uint32_t *edge_dst, *edge_src, *edge_graph,
        *edge_role;                          /* [n_edges], blocks dense, dst-major */
    const uint32_t *node_start, *edge_start; /* [n_graphs + 1] */
    const uint32_t *fold_node;               /* [n_fold_rows] */
    const wf_batch_block *blocks;            /* as in the batch: subtract the next three */
    const wf_batch_fold *folds;
    int n_blocks, n_folds;
    size_t first_node, first_edge, first_param;
    const void *degree; /* [n_nodes] of the tape's type */
    /* models/edge_bundles.h: the edges in bundles, for backends with processors > 0. */
    const struct wf_bundle_table *bundles[WF_CUTS];
} wf_part;

/* The address of dropout's random numbers (weft/rng.h): row r, column c of dropout number `site` is
 * kept or not by word c % 4 of block (site << 24) + c / 4 of the stream (seed, row + r,
 * WF_RNG_DROPOUT, *update). */
typedef struct wf_dropout_key {
    uint64_t seed;
    const uint32_t *update; /* in the backend's memory: a recorded program draws anew each time */
    uint32_t row;           /* number of the first row */
} wf_dropout_key;

/* Rows are positions of sequences, one after another; columns are channels. Padding is zeros on
 * both sides. */
typedef struct wf_conv1d_desc {
    int length; /* positions of an input sequence */
    int kernel, stride, padding;
    int output_padding; /* transposed only: further positions at the end */
} wf_conv1d_desc;

/* An entry of a token map that stands for no value: the token holds zero there. */
#define WF_NO_VALUE UINT32_MAX

typedef enum wf_op_kind {
#define X(name, tolerance) WF_OP_##name,
#include "tensor/ops.def"
#include "tensor/fused.def"
#undef X
    WF_OP_COUNT
} wf_op_kind;

/* Sizes of kernels, besides single values, that the edges of one network may have. */
enum { WF_KERNELS = 4 };
enum { WF_OP_INPUTS = 14, WF_OP_OUTPUTS = 4 };

/* One recorded operation: everything a kernel needs. The constructors of tape.h say which input is
 * which. */
typedef struct wf_op {
    wf_op_kind kind;
    const struct wf_backend *backend;
    wf_tensor *in[WF_OP_INPUTS];
    wf_tensor *out[WF_OP_OUTPUTS];
    int mode;            /* a wf_tape_act, wf_value_code ... */
    int act;             /* activation inside a fused operation */
    int column;          /* first column of the modulation (B, .) that belongs to this operation */
    const uint32_t *map; /* row -> row of another tensor */
    const uint32_t *start; /* first row of each graph */
    const uint8_t *flags;
    const void *scale; /* per row, of the tape's type */
    const wf_part *part;
    int tokens, heads; /* rows of a sequence; heads of attention */
    double value;      /* eps, probability, temperature, frequency */
    wf_dropout_key key;
    wf_conv1d_desc conv;
    wf_ctx *ctx; /* whose threads the operation may use; NULL: the calling one alone */
    void *saved; /* what backward needs beyond inputs and outputs */
    struct wf_op *previous;
} wf_op;

/* A backend: one forward and one backward per operation. Kernels take scratch from `arena` and
 * return false when it is out of memory. backward adds to the gradients of those inputs that want
 * one; they are never uninitialised. */
typedef struct wf_backend {
    const char *name;
    /* Operations of fused.def may be NULL. */
    bool (*forward[WF_OP_COUNT])(const wf_op *op, wf_arena *arena);
    bool (*backward[WF_OP_COUNT])(const wf_op *op, wf_arena *arena);
    /* Whether an operation of fused.def with these inputs has a kernel; NULL: none has. */
    bool (*fuses)(const wf_op *op);
    /* W (rows, cols) to panels [wf_panel_size(rows, cols)] and panels_t [wf_panel_size(cols,
     * rows)] */
    void (*pack)(const struct wf_backend *self, const void *weight, int rows, int cols,
                 void *panels, void *panels_t);
    /* Multiply-adds on registers alone; returns how many floating-point operations were done. NULL:
     * not measured. */
    double (*fma_rounds)(size_t rounds);
    /* A backend with memory of its own; all NULL: host memory. */
    const wf_arena_source *memory;
    void (*zero)(const struct wf_backend *self, void *data, size_t bytes);
    void (*upload)(const struct wf_backend *self, void *to, const void *from, size_t bytes);
    struct wf_cuda_device *device; /* the GPU; NULL: the CPU */
    int processors; /* multiprocessors for which part->bundles are cut; 0: none are built */
    /* Backward uses the memory of gradients again. A backend that still reads some of them for a
     * while has the tape leave the last `spare_late` alone, and all of at most `spare_rows`
     * rows. */
    int spare_late, spare_rows;
} wf_backend;
static inline size_t wf_panel_size(int k, int n) { return (size_t)k * (size_t)wf_pad(n); }

/* The CPU backend of this machine (see base/isa.h), and the float one of an instruction set that it
 * has. */
const wf_backend *wf_backend_cpu(wf_dtype dtype);
const wf_backend *wf_backend_cpu_at(wf_isa_id isa);
const char *wf_op_name(wf_op_kind kind);
double wf_op_tolerance(wf_op_kind kind);
