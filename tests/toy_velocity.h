/* A velocity network small enough to differentiate by hand, for tests of what stands around it.
 *
 * With r the row of an edge's layer and kind, m the mean of its block's entries, c the condition's first number (0 when
 * dropped, and then p[r][5] is added):
 *     v = p[r][0] w + p[r][1] t w + p[r][2] tanh(w) + p[r][3] m + p[r][4] c + bias[r]
 * It treats the entries of a block alike, so it is equivariant. */
#ifndef TOY_VELOCITY_H
#define TOY_VELOCITY_H

#include "base/random.h"
#include "flow/velocity.h"

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
} toy_orders;

typedef struct toy {
    toy_orders *orders;
    wf_field_tensor tensors[2];
    int cond_size;
    /* kept for backward */
    wf_batch batch;
    const float *w, *t, *cond;
    const uint8_t *drop;
    float *copy_w;
} toy;

static void toy_init(const void *self, uint64_t seed, float *params) {
    (void)self;
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

static wf_status toy_forward(wf_ctx *ctx, void *self, const float *params, const wf_batch *batch,
                             const float *w, const float *t, const float *cond, const uint8_t *drop,
                             bool keep, float *v) {
    toy *x = self;
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
                               : p[4] * cond[(size_t)block->graph * (size_t)x->cond_size];
        for (size_t i = block->param0; i < block->param0 + n; i++)
            v[i] = p[0] * w[i] + p[1] * time * w[i] + p[2] * tanhf(w[i]) + p[3] * mean + c +
                   params[toy_rows * toy_cols + row];
    }
    if (x->orders->calls == x->orders->nan_at) v[0] = NAN;
    if (keep) {
        x->batch = *batch;
        memcpy(x->copy_w, w, batch->n_params * sizeof *w);
        x->t = t;
        x->cond = cond;
        x->drop = drop;
    }
    return WF_OK;
}

static wf_status toy_backward(wf_ctx *ctx, void *self, const float *dv, float *grad) {
    (void)ctx;
    toy *x = self;
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
                g[4] += dv[i] * x->cond[(size_t)block->graph * (size_t)x->cond_size];
            if (x->cond != NULL && dropped) g[5] += dv[i];
            grad[toy_rows * toy_cols + row] += dv[i];
        }
    }
    return WF_OK;
}

static void toy_free(void *self) {
    toy *x = self;
    free(x->copy_w);
    free(x);
}

/* A wf_velocity_maker; arg is a toy_orders. */
static inline wf_status toy_make(wf_ctx *ctx, void *arg, const wf_field_desc *desc, size_t params,
                                 wf_velocity *out) {
    assert_true(params == 0 || params == toy_params);
    toy *x;
    WF_TRY(wf_alloc(ctx, 1, sizeof *x, "toy", &x));
    x->orders = arg;
    x->cond_size = desc->cond_size;
    x->copy_w = malloc(toy_most * sizeof *x->copy_w);
    if (x->copy_w == NULL) {
        free(x);
        return wf_fail(ctx, WF_ERR_MEMORY, "toy: out of memory");
    }
    x->tensors[0] = (wf_field_tensor){"table", 0, toy_rows, toy_cols, true, true};
    x->tensors[1] = (wf_field_tensor){"bias", toy_rows * toy_cols, toy_rows, 1, false, false};
    *out = (wf_velocity){.self = x,
                         .params = toy_params,
                         .tensors = x->tensors,
                         .n_tensors = 2,
                         .equivariant = true,
                         .init = toy_init,
                         .forward = toy_forward,
                         .backward = toy_backward,
                         .free = toy_free};
    return WF_OK;
}

#endif
