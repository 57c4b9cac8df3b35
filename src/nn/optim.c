#include "nn/optim.h"

#include "base/comm.h"
#include "base/isa.h"
#include "base/pool.h"
#include "nn/optim_kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { chunk_reals = 8192 };

/* A chunk of AdamW's, or one matrix of Muon's (rows > 0). Muon's come first: they are the larger
 * pieces of work. */
typedef struct piece {
    size_t offset, count;
    int rows, cols;
    bool decay;
    int owner; /* the rank that moves a matrix */
} piece;

struct wf_optim {
    wf_optim_desc desc;
    wf_optim_kernels kernels;
    size_t params, size; /* size: of a real */
    void *first, *second, *ema;
    piece *pieces;
    size_t n_pieces;
    void *scratch; /* (threads, scratch_each) */
    size_t scratch_each;
    int threads;
    double *partial; /* [chunks] sums of squares */
    size_t n_partial;
    int rank, ranks;
    void *shared;  /* matrices on their way between ranks; NULL with one rank */
    size_t *start; /* [ranks + 1] of each rank's bytes in it */
};

/* What the chunks of one pass need. */
typedef struct pass {
    const wf_optim *optim;
    const void *grad;
    void *params;
    wf_adamw_args adamw;
    wf_muon_args muon;
    double weight_decay, adamw_rate, muon_rate;
} pass;

size_t wf_muon_scratch(int rows, int cols) {
    int tall = rows >= cols ? rows : cols, thin = rows >= cols ? cols : rows;
    size_t n = ((size_t)tall + WF_MUON_PAD_LONG - 1) / WF_MUON_PAD_LONG * WF_MUON_PAD_LONG;
    size_t r = ((size_t)thin + WF_MUON_PAD_SHORT - 1) / WF_MUON_PAD_SHORT * WF_MUON_PAD_SHORT;
    return 2 * n * r + 2 * r * r;
}

static bool is_muon(const wf_optim *optim, const wf_optim_tensor *tensor) {
    return optim->desc.muon && tensor->matrix;
}

static size_t tensor_count(const wf_optim_tensor *tensor) {
    return (size_t)tensor->rows * (size_t)tensor->cols;
}

/* Appends AdamW's chunks of a range of parameters; with pieces NULL only counts them. */
static size_t cut_range(piece *pieces, size_t at, size_t offset, size_t count, bool decay) {
    for (size_t done = 0; done < count; done += chunk_reals, at++) {
        size_t part = count - done < chunk_reals ? count - done : chunk_reals;
        if (pieces != NULL) pieces[at] = (piece){offset + done, part, 0, 0, decay, 0};
    }
    return at;
}

/* Matrices one by one, then ranges of AdamW tensors with equal decay, cut into chunks. Depends on
 * the tensors alone. */
static size_t cut_pieces(const wf_optim *optim, const wf_optim_tensor *tensors, int n,
                         piece *pieces) {
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (!is_muon(optim, &tensors[i])) continue;
        if (pieces != NULL)
            pieces[at] = (piece){tensors[i].offset, tensor_count(&tensors[i]), tensors[i].rows,
                                 tensors[i].cols,   tensors[i].decay,          0};
        at++;
    }
    size_t run = 0, length = 0;
    bool decay = false;
    for (int i = 0; i < n; i++) {
        bool adamw = !is_muon(optim, &tensors[i]);
        if (length > 0 && (!adamw || tensors[i].decay != decay)) {
            at = cut_range(pieces, at, run, length, decay);
            length = 0;
        }
        if (!adamw) continue;
        if (length == 0) run = tensors[i].offset, decay = tensors[i].decay;
        length += tensor_count(&tensors[i]);
    }
    return cut_range(pieces, at, run, length, decay);
}

static void check_layout(const wf_optim_tensor *tensors, int n, size_t params) {
    size_t next = 0;
    for (int i = 0; i < n; i++) {
        assert(tensors[i].offset == next && tensors[i].rows > 0 && tensors[i].cols > 0);
        next += tensor_count(&tensors[i]);
    }
    assert(next == params);
    (void)next, (void)params;
}

/* Each matrix to the rank that has least to do so far. Depends on the tensors and the number of
 * ranks alone. */
static wf_status share_matrices(wf_ctx *ctx, wf_optim *optim) {
    optim->rank = wf_ctx_rank(ctx);
    optim->ranks = wf_ctx_ranks(ctx);
    if (optim->ranks == 1) return WF_OK;
    double *work;
    size_t ranks = (size_t)optim->ranks, total = 0;
    WF_TRY(wf_alloc(ctx, ranks + 1, sizeof *optim->start, "optimiser", &optim->start));
    WF_TRY(wf_alloc(ctx, ranks, sizeof *work, "optimiser", &work));
    for (size_t i = 0; i < optim->n_pieces && optim->pieces[i].rows > 0; i++) {
        piece *one = &optim->pieces[i];
        for (int r = 1; r < optim->ranks; r++)
            if (work[r] < work[one->owner]) one->owner = r;
        work[one->owner] += (double)one->count * fmin(one->rows, one->cols);
        optim->start[one->owner + 1] += one->count * optim->size;
        total += one->count;
    }
    free(work);
    for (size_t r = 0; r < ranks; r++) optim->start[r + 1] += optim->start[r];
    return wf_alloc(ctx, total, optim->size, "optimiser", &optim->shared);
}

/* Between an array of parameters and the matrices of all ranks one after another, in the order of
 * owners. */
static void copy_matrices(const wf_optim *optim, char *array, bool out) {
    char *at = optim->shared;
    for (int r = 0; r < optim->ranks; r++)
        for (size_t i = 0; i < optim->n_pieces && optim->pieces[i].rows > 0; i++) {
            const piece *one = &optim->pieces[i];
            if (one->owner != r) continue;
            size_t bytes = one->count * optim->size;
            char *place = array + one->offset * optim->size;
            if (out) memcpy(place, at, bytes);
            else if (r == optim->rank) memcpy(at, place, bytes);
            at += bytes;
        }
}

static wf_status gather_matrices(wf_ctx *ctx, const wf_optim *optim, void *array) {
    if (optim->shared == NULL || array == NULL || wf_ctx_ranks(ctx) == 1) return WF_OK;
    copy_matrices(optim, array, false);
    WF_TRY(wf_gather_bytes(ctx, optim->shared, optim->start));
    copy_matrices(optim, array, true);
    return WF_OK;
}

wf_status wf_optim_collect(wf_ctx *ctx, wf_optim *optim) {
    WF_TRY(gather_matrices(ctx, optim, optim->first));
    return gather_matrices(ctx, optim, optim->ema);
}

wf_status wf_optim_create(wf_ctx *ctx, const wf_optim_desc *desc, const wf_optim_tensor *tensors,
                          int n_tensors, size_t params, wf_optim **out) {
    *out = NULL;
    check_layout(tensors, n_tensors, params);
    wf_optim *optim;
    WF_TRY(wf_alloc(ctx, 1, sizeof *optim, "optimiser", &optim));
    optim->desc = *desc;
    bool twice = desc->dtype == WF_F64;
    optim->kernels = twice ? wf_optim_kernels_base_f64 : WF_PICK_F32(wf_optim_kernels);
    optim->size = twice ? sizeof(double) : sizeof(float);
    optim->params = params;
    optim->threads = wf_ctx_threads(ctx);
    for (int i = 0; i < n_tensors; i++) {
        if (!is_muon(optim, &tensors[i])) continue;
        size_t need = wf_muon_scratch(tensors[i].rows, tensors[i].cols);
        if (need > optim->scratch_each) optim->scratch_each = need;
    }
    optim->scratch_each = (optim->scratch_each + 15) / 16 * 16; /* every thread's part is aligned */
    optim->n_partial = (params + chunk_reals - 1) / chunk_reals;
    optim->n_pieces = cut_pieces(optim, tensors, n_tensors, NULL);
    const char *what = "optimiser state";
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, params, optim->size, what, &optim->first), fail);
    WF_TRY_GOTO(wf_alloc(ctx, params, optim->size, what, &optim->second), fail);
    if (desc->ema > 0) WF_TRY_GOTO(wf_alloc(ctx, params, optim->size, what, &optim->ema), fail);
    WF_TRY_GOTO(wf_alloc(ctx, optim->n_pieces, sizeof(piece), what, &optim->pieces), fail);
    WF_TRY_GOTO(wf_alloc(ctx, optim->scratch_each * (size_t)optim->threads, optim->size, what,
                         &optim->scratch),
                fail);
    WF_TRY_GOTO(wf_alloc(ctx, optim->n_partial, sizeof(double), what, &optim->partial), fail);
    cut_pieces(optim, tensors, n_tensors, optim->pieces);
    WF_TRY_GOTO(share_matrices(ctx, optim), fail);
    *out = optim;
    return WF_OK;
fail:
    wf_optim_free(optim);
    return status;
}

void wf_optim_free(wf_optim *optim) {
    if (optim == NULL) return;
    free(optim->first);
    free(optim->second);
    free(optim->ema);
    free(optim->pieces);
    free(optim->scratch);
    free(optim->partial);
    free(optim->shared);
    free(optim->start);
    free(optim);
}

void *wf_optim_first(wf_optim *optim) { return optim->first; }
void *wf_optim_second(wf_optim *optim) { return optim->second; }
void *wf_optim_ema(wf_optim *optim) { return optim->ema; }

static void norm_chunk(void *arg, size_t chunk, int worker) {
    const pass *p = arg;
    (void)worker;
    const wf_optim *optim = p->optim;
    size_t start = chunk * chunk_reals, left = optim->params - start;
    optim->partial[chunk] = optim->kernels.sum_squares((const char *)p->grad + start * optim->size,
                                                       left < chunk_reals ? left : chunk_reals);
}

double wf_optim_norm(wf_ctx *ctx, const wf_optim *optim, const void *grad) {
    pass p = {.optim = optim, .grad = grad};
    wf_parallel(ctx, optim->n_partial, norm_chunk, &p);
    double sum = 0;
    for (size_t i = 0; i < optim->n_partial; i++) sum += optim->partial[i];
    return sqrt(sum);
}

static void *real_at(const wf_optim *optim, void *array, size_t index) {
    return (char *)array + index * optim->size;
}

static void update_piece(void *arg, size_t chunk, int worker) {
    const pass *p = arg;
    const wf_optim *optim = p->optim;
    const piece *work = &optim->pieces[chunk];
    if (work->rows > 0 && work->owner != optim->rank) return;
    void *params = real_at(optim, p->params, work->offset);
    const void *grad = (const char *)p->grad + work->offset * optim->size;
    void *first = real_at(optim, optim->first, work->offset);
    void *second = real_at(optim, optim->second, work->offset);
    void *ema = optim->ema == NULL ? NULL : real_at(optim, optim->ema, work->offset);
    double decay = work->decay ? p->weight_decay : 0;
    if (work->rows == 0) {
        wf_adamw_args args = p->adamw;
        args.keep = 1 - p->adamw_rate * decay;
        optim->kernels.adamw(params, grad, first, second, ema, work->count, &args);
        return;
    }
    wf_muon_args args = p->muon;
    args.rate = p->muon_rate * sqrt(fmax(1, (double)work->rows / work->cols));
    args.keep = 1 - p->muon_rate * decay;
    optim->kernels.muon(params, grad, first, ema, work->rows, work->cols, &args,
                        real_at(optim, optim->scratch, (size_t)worker * optim->scratch_each));
}

wf_status wf_optim_apply(wf_ctx *ctx, wf_optim *optim, size_t update, double factor, double norm,
                         const void *grad, void *params) {
    assert(wf_ctx_threads(ctx) <= optim->threads);
    const wf_optim_desc *desc = &optim->desc;
    /* As torch.nn.utils.clip_grad_norm_ has it. */
    double scale = desc->clip > 0 ? fmin(1, desc->clip / (norm + 1e-6)) : 1;
    double ema = wf_ema_decay(desc->ema, update), n = (double)update + 1;
    double rate = desc->lr * factor;
    pass p = {.optim = optim,
              .grad = grad,
              .params = params,
              .adamw = {desc->beta1, desc->beta2, desc->eps, rate, 1, 1 - pow(desc->beta1, n),
                        1 - pow(desc->beta2, n), scale, ema},
              .muon = {desc->muon_momentum, 0, 1, scale, ema},
              .weight_decay = desc->weight_decay,
              .adamw_rate = rate,
              .muon_rate = desc->muon_lr * factor};
    wf_parallel(ctx, optim->n_pieces, update_piece, &p);
    return gather_matrices(ctx, optim, params);
}
