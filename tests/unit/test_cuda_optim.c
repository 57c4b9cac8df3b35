/* AdamW, Muon, clipping and EMA on the GPU against the CPU's, from the same gradients. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "base/random.h"
#include "nn/cuda/optim_cuda.h"
#include "tensor/cuda/backend_cuda.h"

enum { n_tensors = 6, updates = 12 };

/* Tall, wide and square matrices, some beyond a tile and some beyond a chunk, and vectors between
 * them. */
static const int shapes[n_tensors][3] = {{20, 34, 1},  {5, 1, 0},   {130, 70, 1},
                                         {64, 200, 1}, {777, 1, 0}, {9, 1, 0}};

typedef struct optim_case {
    wf_ctx *ctx;
    wf_cuda_device *gpu; /* of ctx: copies wait for what the optimiser launched */
    wf_optim_tensor tensors[n_tensors];
    size_t params;
    float *grad[updates];
    float *start;
} optim_case;

static void case_open(optim_case *c) {
    *c = (optim_case){.ctx = test_ctx()};
    assert_ok(c->ctx, wf_ctx_cuda(c->ctx, &c->gpu));
    for (int k = 0; k < n_tensors; k++) {
        bool matrix = shapes[k][2];
        c->tensors[k] =
            (wf_optim_tensor){c->params, shapes[k][0], shapes[k][1], matrix, matrix || k == 4};
        c->params += (size_t)shapes[k][0] * (size_t)shapes[k][1];
    }
    c->start = calloc(c->params, sizeof(float));
    wf_rng rng = wf_rng_at(3, 0, WF_RNG_TEST, 1);
    wf_rng_normals(&rng, c->start, c->params);
    for (int u = 0; u < updates; u++) {
        c->grad[u] = calloc(c->params, sizeof(float));
        rng = wf_rng_at(3, 1 + (uint32_t)u, WF_RNG_TEST, 1);
        wf_rng_normals(&rng, c->grad[u], c->params);
        for (size_t i = 0; i < c->params; i++) c->grad[u][i] *= u == 3 ? 10 : 0.005f;
    }
}

static void case_close(optim_case *c) {
    for (int u = 0; u < updates; u++) free(c->grad[u]);
    free(c->start);
    wf_ctx_free(c->ctx);
}

/* By tensor, so that a failure says which. */
static double worst(const optim_case *c, const char *what, const float *a, const float *b,
                    double limit) {
    double most = 0;
    for (int k = 0; k < n_tensors; k++) {
        size_t n = (size_t)c->tensors[k].rows * (size_t)c->tensors[k].cols;
        double d = relative_difference(a + c->tensors[k].offset, b + c->tensors[k].offset, n);
        if (!(d <= limit)) print_message("%s of tensor %d: off by %.3g\n", what, k, d);
        if (!(d <= most)) most = d;
    }
    return most;
}

static void compare(wf_optim_desc desc, wf_schedule schedule, bool fast, double limit) {
    optim_case c;
    case_open(&c);
    size_t bytes = c.params * sizeof(float);
    wf_optim *cpu;
    wf_optim_cuda *gpu;
    float *params = calloc(c.params, sizeof(float)), *here = calloc(c.params, sizeof(float));
    assert_ok(c.ctx, wf_optim_create(c.ctx, &desc, c.tensors, n_tensors, c.params, &cpu));
    wf_optim_cuda_desc gpu_desc = {desc,     schedule, c.tensors, n_tensors,
                                   c.params, fast,     true,      NULL};
    assert_ok(c.ctx, wf__optim_cuda_create(c.ctx, &gpu_desc, &gpu));
    wf_optim_cuda_arrays arrays = wf__optim_cuda_arrays(gpu);
    const wf_backend *backend = wf_backend_cuda(c.gpu);
    memcpy(params, c.start, bytes);
    wf_cuda_upload(c.gpu, arrays.params, c.start, bytes);
    if (desc.ema > 0) {
        memcpy(wf_optim_ema(cpu), c.start, bytes);
        wf_cuda_upload(c.gpu, arrays.ema, c.start, bytes);
    }
    assert_ok(c.ctx, wf__optim_cuda_start(c.ctx, gpu, 0, 1e300));
    double terms[3] = {0.25, 0.5, 0.125},
           *terms_there = backend->memory->take(backend->memory->owner, 64);
    size_t ring;
    const volatile wf_update_record *records = wf__optim_cuda_records(gpu, &ring);
    for (size_t u = 0; u < updates; u++) {
        double norm = wf_optim_norm(c.ctx, cpu, c.grad[u]);
        double factor = wf_schedule_factor(&schedule, u);
        wf_optim_apply(c.ctx, cpu, u, factor, norm, c.grad[u], params);
        terms[0] = 0.25 - 0.01 * (double)u;
        wf_cuda_upload(c.gpu, terms_there, terms, sizeof terms);
        wf_cuda_upload(c.gpu, arrays.grad, c.grad[u], bytes);
        assert_ok(c.ctx, wf__optim_cuda_apply(c.ctx, gpu, terms_there, 3));
        assert_true(wf_cuda_download(c.gpu, here, arrays.params, bytes));
        assert_int_equal(records[u % ring].update, u);
        assert_int_equal(records[u % ring].made, 1);
        assert_close(records[u % ring].norm, norm, 1e-12 * norm);
        assert_close(records[u % ring].factor, factor, 1e-14);
        assert_close(records[u % ring].loss, 0.875 - 0.01 * (double)u, 1e-14);
        if (worst(&c, "parameters", here, params, limit) > limit)
            fail_msg("after update %zu", u + 1);
    }
    assert_true(wf_cuda_download(c.gpu, here, arrays.first, bytes));
    double first = worst(&c, "first", here, wf_optim_first(cpu), 1e-6);
    double second = 0, ema = 0;
    assert_true(wf_cuda_download(c.gpu, here, arrays.second, bytes));
    if (!desc.muon) second = worst(&c, "second", here, wf_optim_second(cpu), 1e-6);
    if (desc.ema > 0) {
        assert_true(wf_cuda_download(c.gpu, here, arrays.ema, bytes));
        ema = worst(&c, "ema", here, wf_optim_ema(cpu), limit);
    }
    print_message("muon %d, fast %d: first %.2g, second %.2g, ema %.2g\n", desc.muon, fast, first,
                  second, ema);
    assert_true(first <= 1e-6 && second <= 1e-6 && ema <= limit);
    /* A gradient that is not finite: nothing moves any more. */
    float *before = calloc(c.params, sizeof(float));
    assert_true(wf_cuda_download(c.gpu, before, arrays.params, bytes));
    c.grad[0][77] = NAN;
    for (int turn = 0; turn < 2; turn++) {
        wf_cuda_upload(c.gpu, arrays.grad, c.grad[turn], bytes);
        assert_ok(c.ctx, wf__optim_cuda_apply(c.ctx, gpu, terms_there, 3));
        /* before the next upload, which waits for nothing */
        assert_true(wf_cuda_download(c.gpu, here, arrays.params, bytes));
    }
    assert_memory_equal(here, before, bytes);
    assert_int_equal(records[updates].made, 0);
    assert_int_equal(records[updates].update, updates);
    free(before), free(params), free(here);
    backend->memory->give(backend->memory->owner, terms_there);
    wf_optim_free(cpu);
    wf__optim_cuda_free(gpu);
    case_close(&c);
}

static void test_updates(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_optim_desc desc = {.lr = 1e-2,
                          .beta1 = 0.9,
                          .beta2 = 0.99,
                          .eps = 1e-8,
                          .muon_lr = 0.02,
                          .muon_momentum = 0.95,
                          .clip = 1,
                          .ema = 0.9};
    wf_schedule schedule = {.warmup = 3, .cosine = true, .horizon = 10, .min_ratio = 0.1};
    compare(desc, schedule, false, 1e-6);
    desc.weight_decay = 0.1;
    desc.ema = 0;
    desc.clip = 0;
    compare(desc, schedule, false, 1e-6);
    desc.muon = true;
    desc.ema = 0.99;
    compare(desc, (wf_schedule){0}, false, 1e-5);
    compare(desc, schedule, true, 5e-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_updates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
