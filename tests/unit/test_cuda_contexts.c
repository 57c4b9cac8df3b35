/* Contexts on threads of their own, each with its GPU's streams and memory: fields that record and
 * replay at the same time give the bits they give alone. With a second GPU the threads use both. */
#include <pthread.h>

#include "base/cuda/device.h"
#include "named_cases.h"
#include "field_case.h"

enum { n_threads = 2, rounds = 2 };

/* What one thread computes: a field in its own context, recorded with and without keep in turn. */
typedef struct worker {
    pthread_t thread;
    field_case c;
    float *v[2]; /* without and with keep */
    wf_status status;
} worker;

/* A context whose GPU is number `gpu`, or the first where there is no such one. */
static wf_ctx *gpu_ctx(int gpu) {
    for (;; gpu = 0) {
        wf_ctx_desc desc = {.threads = 1, .device = WF_DEVICE_CUDA, .gpu = gpu};
        wf_cuda_device *device;
        wf_ctx *ctx;
        if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
        if (wf_ctx_cuda(ctx, &device) == WF_OK || gpu == 0) return ctx;
        wf_ctx_free(ctx);
    }
}

static void worker_open(worker *w, int index, int gpu) {
    static const char *const archs[n_threads][3] = {{"2-9-3", "3-17-5-2"}, {"3-4-2", "2-33-3-2"}};
    wf_field_desc desc = wf_field_desc_default();
    desc.layout = index == 0 ? WF_LAYOUT_LEAN : WF_LAYOUT_LSTAR;
    desc.node = 20, desc.edge = 64, desc.time = 10, desc.blocks = 1;
    *w = (worker){.c = case_open(desc, WF_F32, archs[index])};
    wf_ctx_free(w->c.ctx);
    w->c.ctx = gpu_ctx(gpu);
    w->c.fast = true;
    for (int keep = 0; keep < 2; keep++) w->v[keep] = calloc(w->c.batch.n_params, sizeof(float));
}

/* The context goes first: what the field keeps on the GPU outlives it. */
static void worker_close(worker *w) {
    for (int keep = 0; keep < 2; keep++) free(w->v[keep]);
    wf_ctx_free(w->c.ctx);
    w->c.ctx = NULL;
    case_close(&w->c);
}

static void *work(void *arg) {
    worker *w = arg;
    field_case *c = &w->c;
    for (int round = 0; round < rounds && w->status == WF_OK; round++) {
        for (int keep = 0; keep < 2 && w->status == WF_OK; keep++) {
            wf_field_input input = {
                .batch = &c->batch, .w = c->w, .t = c->t, .keep = keep, .fast = true};
            w->status = wf_field_forward(c->ctx, c->field, c->params, &input, w->v[keep]);
        }
        if (w->status == WF_OK)
            w->status = wf_field_backward(c->ctx, c->field, c->dv, c->grad, c->dw);
    }
    return NULL;
}

static void test_at_once(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    worker alone[n_threads], both[n_threads];
    for (int k = 0; k < n_threads; k++) {
        worker_open(&alone[k], k, 0);
        work(&alone[k]);
        assert_ok(alone[k].c.ctx, alone[k].status);
        worker_open(&both[k], k, k);
    }
    for (int k = 0; k < n_threads; k++)
        assert_int_equal(pthread_create(&both[k].thread, NULL, work, &both[k]), 0);
    for (int k = 0; k < n_threads; k++) pthread_join(both[k].thread, NULL);
    for (int k = 0; k < n_threads; k++) {
        const field_case *x = &alone[k].c, *y = &both[k].c;
        assert_ok(y->ctx, both[k].status);
        assert_true(case_norm(y, y->grad, y->field->params) > 0);
        for (int keep = 0; keep < 2; keep++)
            assert_memory_equal(alone[k].v[keep], both[k].v[keep], x->batch.n_params * 4);
        assert_memory_equal(x->grad, y->grad, x->field->params * 4);
        assert_memory_equal(x->dw, y->dw, x->batch.n_params * 4);
        worker_close(&alone[k]);
        worker_close(&both[k]);
    }
}

/* One field, two contexts in turn: its programs are remade for the device of the context that
 * calls. */
static void test_in_turn(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    worker w;
    worker_open(&w, 0, 0);
    work(&w);
    assert_ok(w.c.ctx, w.status);
    float *first = w.v[1], *grad = malloc(w.c.field->params * sizeof *grad);
    memcpy(grad, w.c.grad, w.c.field->params * sizeof *grad);
    w.v[1] = calloc(w.c.batch.n_params, sizeof(float));
    wf_ctx_free(w.c.ctx);
    w.c.ctx = gpu_ctx(1);
    work(&w);
    assert_ok(w.c.ctx, w.status);
    assert_memory_equal(w.v[1], first, w.c.batch.n_params * 4);
    assert_memory_equal(w.c.grad, grad, w.c.field->params * 4);
    free(first), free(grad);
    worker_close(&w);
}

/* A GPU that the machine does not have. */
static void test_no_such_gpu(void **state) {
    (void)state;
    wf_ctx_desc desc = {.threads = 1, .device = WF_DEVICE_CUDA, .gpu = 1000};
    wf_ctx *ctx;
    wf_cuda_device *device;
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    assert_fails(ctx, wf_ctx_cuda(ctx, &device), WF_ERR_UNSUPPORTED,
                 wf_cuda_available() ? "no GPU 1000" : "device cuda");
    assert_null(device);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_in_turn),
        cmocka_unit_test(test_no_such_gpu),
    };
    return run_chosen(tests, NULL, NULL);
}
