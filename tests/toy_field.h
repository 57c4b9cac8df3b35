/* A field small enough to differentiate by hand, for tests of what stands around it.
 *
 * With r the row of an edge's layer and kind, m the mean of its block's entries, c the condition's
 * first number (0 when dropped, and then p[r][5] is added):
 *     v = p[r][0] w + p[r][1] t w + p[r][2] tanh(w) + p[r][3] m + p[r][4] c + bias[r]
 * It treats the entries of a block alike, so it is equivariant. */
#ifndef TOY_FIELD_H
#define TOY_FIELD_H

#include "base/random.h"
#include "models/field.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    toy_rows = 8,
    toy_cols = 6,
    toy_params = toy_rows * toy_cols + toy_rows,
    toy_most = 1 << 18
};

/* What a test asks of it, and what it saw. */
typedef struct toy_orders {
    int calls;             /* forwards so far */
    int interrupt_at;      /* forward that interrupts the context; 0: none */
    int nan_at;            /* forward that yields NaN; 0: none */
    int conditional, null; /* networks evaluated with their condition, with the null */
    wf_ctx *stop_at_init;  /* the context that drawing the first weights interrupts; NULL: none */
} toy_orders;

static toy_orders *toy_orders_now; /* of the fields made next */

typedef struct toy {
    wf_field base;
    toy_orders *orders;
    wf_field_tensor tensors[2];
    /* kept for backward */
    wf_batch batch;
    const float *w, *t, *cond;
    const uint8_t *drop;
    float *copy_w;
} toy;

static void toy_init(const wf_field *field, uint64_t seed, void *out) {
    float *params = out;
    wf_ctx *stop = ((const toy *)field)->orders->stop_at_init;
    if (stop != NULL) wf_interrupt(stop);
    wf_rng rng = wf_rng_at(seed, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, params, toy_params);
    for (int i = 0; i < toy_params; i++) params[i] *= 0.3f;
}

static int toy_row(const wf_batch *batch, const wf_batch_block *block) {
    const wf_edge_role *role = &batch->edge_roles[block->role];
    return (2 * role->layer + (role->type == WF_BLOCK_BIAS)) % toy_rows;
}

static float toy_mean(const wf_batch_block *block, const float *w) {
    size_t n = (size_t)block->n_src * block->n_dst * block->coef;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += w[block->param0 + i];
    return (float)(sum / (double)n);
}

static wf_status toy_forward(wf_ctx *ctx, wf_field *field, const void *params_,
                             const wf_field_input *input, void *v_) {
    toy *x = (toy *)field;
    const float *params = params_, *w = input->w, *t = input->t, *cond = input->cond;
    const wf_batch *batch = input->batch;
    const uint8_t *drop = input->drop;
    float *v = v_;
    if (++x->orders->calls == x->orders->interrupt_at) wf_interrupt(ctx);
    for (int g = 0; g < batch->n_graphs; g++)
        *(drop != NULL && drop[g] ? &x->orders->null : &x->orders->conditional) += 1;
    for (size_t b = 0; b < batch->n_blocks; b++) {
        const wf_batch_block *block = &batch->blocks[b];
        int row = toy_row(batch, block);
        const float *p = params + row * toy_cols;
        size_t n = (size_t)block->n_src * block->n_dst * block->coef;
        float mean = toy_mean(block, w), time = t[block->graph];
        bool dropped = drop != NULL && drop[block->graph];
        float c = cond == NULL ? 0
                  : dropped    ? p[5]
                               : p[4] * cond[(size_t)block->graph * (size_t)x->base.cond_size];
        for (size_t i = block->param0; i < block->param0 + n; i++)
            v[i] = p[0] * w[i] + p[1] * time * w[i] + p[2] * tanhf(w[i]) + p[3] * mean + c +
                   params[toy_rows * toy_cols + row];
    }
    if (x->orders->calls == x->orders->nan_at) v[0] = NAN;
    if (input->keep) {
        x->batch = *batch;
        memcpy(x->copy_w, w, batch->n_params * sizeof *w);
        x->t = t;
        x->cond = cond;
        x->drop = drop;
    }
    return WF_OK;
}

static wf_status toy_backward(wf_ctx *ctx, wf_field *field, const void *dv_, void *grad_,
                              void *dw) {
    (void)ctx, (void)dw;
    toy *x = (toy *)field;
    const float *dv = dv_;
    float *grad = grad_;
    memset(grad, 0, toy_params * sizeof *grad);
    for (size_t b = 0; b < x->batch.n_blocks; b++) {
        const wf_batch_block *block = &x->batch.blocks[b];
        int row = toy_row(&x->batch, block);
        float *g = grad + row * toy_cols;
        size_t n = (size_t)block->n_src * block->n_dst * block->coef;
        float mean = toy_mean(block, x->copy_w), time = x->t[block->graph];
        bool dropped = x->drop != NULL && x->drop[block->graph];
        for (size_t i = block->param0; i < block->param0 + n; i++) {
            float w = x->copy_w[i];
            g[0] += dv[i] * w;
            g[1] += dv[i] * time * w;
            g[2] += dv[i] * tanhf(w);
            g[3] += dv[i] * mean;
            if (x->cond != NULL && !dropped)
                g[4] += dv[i] * x->cond[(size_t)block->graph * (size_t)x->base.cond_size];
            if (x->cond != NULL && dropped) g[5] += dv[i];
            grad[toy_rows * toy_cols + row] += dv[i];
        }
    }
    return WF_OK;
}

static void toy_free(wf_field *field) {
    toy *x = (toy *)field;
    free(x->copy_w);
    free(x);
}

static wf_status toy_create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                            const wf_graph *graph, wf_dtype dtype, size_t params, wf_field **out) {
    const wf_field_desc *desc = options;
    (void)graph;
    assert_true(params == 0 || params == toy_params);
    toy *x;
    WF_TRY(wf_alloc(ctx, 1, sizeof *x, "toy", &x));
    x->orders = toy_orders_now;
    x->copy_w = malloc(toy_most * sizeof *x->copy_w);
    if (x->copy_w == NULL) {
        free(x);
        return wf_fail(ctx, WF_ERR_MEMORY, "toy: out of memory");
    }
    x->tensors[0] = (wf_field_tensor){
        .name = "table", .rows = toy_rows, .cols = toy_cols, .matrix = true, .decay = true};
    x->tensors[1] = (wf_field_tensor){
        .name = "bias", .offset = toy_rows * toy_cols, .rows = toy_rows, .cols = 1};
    x->base = (wf_field){.kind = kind,
                         .dtype = dtype,
                         .params = toy_params,
                         .tensors = x->tensors,
                         .n_tensors = 2,
                         .cond_size = desc->cond == WF_COND_NONE ? 0 : desc->cond_size,
                         .folds = desc->fold_rows > 0,
                         .seed = desc->seed};
    *out = &x->base;
    return WF_OK;
}

/* Fields made from now on follow these orders, which must outlive them. */
static inline const wf_field_kind *toy_kind(toy_orders *orders) {
    static const wf_field_kind kind = {.name = "toy",
                                       .about = "a field to test with",
                                       .traits = WF_GENERATOR_ANY_ARCHITECTURE |
                                                 WF_GENERATOR_CONDITIONS | WF_GENERATOR_EQUIVARIANT,
                                       .settings = wf_field_settings,
                                       .options_size = sizeof(wf_field_desc),
                                       .create = toy_create,
                                       .free = toy_free,
                                       .init = toy_init,
                                       .forward = toy_forward,
                                       .backward = toy_backward};
    toy_orders_now = orders;
    return &kind;
}

#endif
