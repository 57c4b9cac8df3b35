/* Generators that are fitted in phases, on the GPU: draws with the CPU's bits, fits and samples
 * beside the CPU's, the same bits again, and fits that were broken off. Small enough for the
 * emulated device. */
#include "base/cuda/device.h"
#include "generators/cuda/phase_cuda.h"
#include "generators/pdiff_net.h"
#include "generators/sane_net.h"
#include "named_cases.h"
#include "phase_cases.h"

static char warned[256];

static void keep_warning(void *user, const char *sentence) {
    (void)user;
    snprintf(warned, sizeof warned, "%s", sentence);
}

static const wf_ctx_desc on_cpu = {.threads = 2, .warn = keep_warning};
static const wf_ctx_desc on_gpu = {.threads = 2, .warn = keep_warning, .device = WF_DEVICE_CUDA};

static wf_ctx *open_ctx(const wf_ctx_desc *desc) {
    wf_ctx *ctx = NULL;
    assert_int_equal(wf_ctx_create(desc, &ctx), WF_OK);
    return ctx;
}

/* An update is 1,056 thread blocks of the optimiser alone, which takes the emulator a while. */
static small_case shortened(const small_case *from) {
    small_case out = *from;
    for (int i = 0; i < 6 && out.settings[i][0] != NULL; i++)
        if (strcmp(out.settings[i][0], "vae_updates") == 0) out.settings[i][1] = "3";
    if (out.first_updates > 0) out.first_updates = 3;
    out.updates = 4;
    return out;
}

/* --- draws ------------------------------------------------------------------------------------ */

enum { fitted = 7, batch = 4 };

/* A phase, with its model, whose inputs are drawn on both sides. */
static void check_draws(wf_phase *phase, const void *model, const char *name) {
    wf_ctx *ctx = open_ctx(&on_gpu);
    wf_fit_desc fit = wf_fit_desc_default();
    fit.batch = batch, fit.seed = 11;
    assert_ok(ctx, wf_phase_declare(ctx, phase, model));
    size_t params = phase->list.total, buffers = phase->buffers.total;
    phase->weights = calloc(params, sizeof(float));
    phase->statistics = calloc(buffers + 1, sizeof(float));
    wf_params_init(phase->list.tensors, phase->list.count, WF_F32, 1, phase->weights);
    wf_params_init(phase->buffers.tensors, phase->buffers.count, WF_F32, 1, phase->statistics);
    float *moments = calloc(2 * params, sizeof(float));
    wf_fit_arrays arrays = {
        .weights = phase->weights, .first = moments, .second = moments + params};
    wf_phase_cuda_desc desc = {.phase = phase,
                               .model = model,
                               .fit = &fit,
                               .optim = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                               .arrays = &arrays,
                               .first = 100,
                               .made = 1,
                               .count = fitted};
    wf_phase_cuda *cuda;
    assert_ok(ctx, wf__phase_cuda_create(ctx, &desc, &cuda));
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int inputs = phase->shapes(model, batch, shape);
    float *in[2][WF_PHASE_INPUTS] = {{0}};
    for (int i = 0; i < inputs; i++)
        for (int d = 0; d < 2; d++)
            in[d][i] = calloc((size_t)shape[i].rows * (size_t)shape[i].cols, sizeof(float));
    for (uint32_t update = 1; update < 4; update++) {
        uint32_t networks[batch], number = 100 + update;
        wf_update_record record;
        for (uint32_t b = 0; b < batch; b++)
            networks[b] = wf_epoch_network(fit.seed, fitted, batch, number, b);
        phase->fill(model, &(wf_phase_batch){networks, batch, fit.seed, number}, in[0]);
        assert_ok(ctx, wf__phase_cuda_enqueue(ctx, cuda));
        assert_ok(ctx, wf__updates_cuda_record(ctx, wf__phase_cuda_updates(cuda), update, &record));
        assert_true(record.made);
        assert_ok(ctx, wf__phase_cuda_inputs(ctx, cuda, in[1]));
        for (int i = 0; i < inputs; i++)
            if (memcmp(in[0][i], in[1][i],
                       (size_t)shape[i].rows * (size_t)shape[i].cols * sizeof(float)) != 0)
                fail_msg("%s: input %d of update %u differs", name, i, number);
    }
    for (int i = 0; i < inputs; i++) free(in[0][i]), free(in[1][i]);
    wf__phase_cuda_free(cuda);
    wf_phase_free(phase);
    free(moments);
    wf_ctx_free(ctx);
}

static float *some_numbers(size_t n) {
    float *out = calloc(n, sizeof *out);
    wf_rng rng = wf_rng_at(3, 0, WF_RNG_NOISE, 0);
    wf_rng_normals(&rng, out, n);
    return out;
}

static void test_draws(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    wf_ctx *ctx = open_ctx(&on_cpu);
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "3-5-4-2", "relu", 0, &graph));
    wf_net_place decoder;
    float *networks = some_numbers(fitted * graph->n_params), *latents = some_numbers(fitted * 6);
    double kept[25];
    for (int s = 0; s < 25; s++) kept[s] = 1.0 - 0.035 * (s + 1);
    wf_pdiff_model pdiff = {.options = {.latent = 6,
                                        .channels = 4,
                                        .time = 4,
                                        .input_noise = 0.01,
                                        .latent_noise = 0.1,
                                        .diffusion_steps = 25},
                            .params = (int)graph->n_params,
                            .padded = 64,
                            .decoder = &decoder,
                            .networks = networks,
                            .latents = latents,
                            .kept = kept};
    wf_phase phases[2], phase;
    wf_pdiff_phases(&pdiff.options, phases);
    check_draws(&phases[0], &pdiff, "vae");
    check_draws(&phases[1], &pdiff, "ddpm");
    wf_sane_model sane = {.options = {.width = 8,
                                      .blocks = 1,
                                      .heads = 2,
                                      .latent = 4,
                                      .contrast = 0.05,
                                      .temperature = 0.1,
                                      .view_noise = 0.1,
                                      .copies = 5,
                                      .relabellings = 20},
                          .graph = graph,
                          .decoder = &decoder,
                          .networks = networks};
    assert_ok(ctx, wf_sane_tokens_create(ctx, graph, 0, &sane.tokens));
    sane.perm = calloc(wf_graph_perm_size(graph) + 1, sizeof(uint32_t));
    sane.flat = calloc(graph->n_params, sizeof(float));
    wf_sane_phase(&sane.options, &phase);
    check_draws(&phase, &sane, "autoencoder");
    wf_sane_tokens_free(&sane.tokens);
    free(sane.perm);
    free(sane.flat);
    free(networks);
    free(latents);
    wf_graph_free(graph);
    wf_ctx_free(ctx);
}

/* --- fits ------------------------------------------------------------------------------------- */

/* The numbers behind `key` in a log. */
static size_t numbers_of(const char *path, const char *key, double *out, size_t most) {
    char *log = read_log(path);
    size_t n = 0;
    for (const char *at = log; (at = strstr(at, key)) != NULL && n < most;)
        out[n++] = strtod(at += strlen(key), NULL);
    free(log);
    return n;
}

static void assert_near_logs(const char *a, const char *b, double tolerance) {
    static const char *const keys[] = {"\"loss\":", "\"validation\":", "\"fitted\":", "\"lr\":"};
    for (int k = 0; k < 4; k++) {
        double x[64], y[64];
        size_t n = numbers_of(a, keys[k], x, 64);
        assert_true(n >= 2);
        assert_int_equal(numbers_of(b, keys[k], y, 64), n);
        for (size_t i = 0; i < n; i++)
            if (!(fabs(x[i] - y[i]) <= tolerance * fabs(x[i])))
                fail_msg("%s number %zu is %.9g on the CPU and %.9g on the GPU", keys[k], i, x[i],
                         y[i]);
    }
}

static wf_fit_desc gpu_fit(const small_case *small, wf_precision precision) {
    wf_fit_desc fit = small_fit(small);
    fit.precision = precision;
    fit.eps = 1e-4; /* else an update has the sign of gradients that are rounding alone */
    fit.lr = 1e-3;
    fit.ema = 0.9;
    return fit;
}

/* A fit on that device, into a file of its own. */
static const char *fit_on(const wf_ctx_desc *device, const small_case *small,
                          const wf_fit_desc *fit, const char *name) {
    static char path[4][256];
    static int next;
    char *own = path[next++ % 4];
    snprintf(own, sizeof path[0], "%s/%s-%s", folder, small->generator, name);
    wf_ctx *ctx = open_ctx(device);
    warned[0] = '\0';
    assert_ok(ctx, fit_small(ctx, small, fit, own));
    if (device->device == WF_DEVICE_CUDA) {
        assert_non_null(strstr(wf_ctx_devices(ctx), "fitting cuda"));
        assert_null(strstr(warned, "no program"));
    }
    wf_ctx_free(ctx);
    return own;
}

static void test_fits(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    enum { each = 3 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2, count = 3 };
    for (int i = 0; i < n_small; i++) {
        if (!my_case("%s", cases[i].generator)) continue;
        const small_case small = shortened(&cases[i]);
        wf_fit_desc fit = gpu_fit(&small, WF_PRECISION_FP32);
        const char *cpu = fit_on(&on_cpu, &small, &fit, "cpu");
        const char *gpu = fit_on(&on_gpu, &small, &fit, "gpu");
        const char *again = fit_on(&on_gpu, &small, &fit, "again");
        wf_ctx *ctx = open_ctx(&on_cpu);
        assert_near_logs(cpu, gpu, 1e-3);
        assert_same_tensors(ctx, gpu, again);
        /* One file, sampled on both sides, in batches that are not full. */
        wf_sample_desc sample = wf_sample_desc_default();
        sample.precision = WF_PRECISION_FP32;
        sample.batch = 2;
        float made[2][count * each];
        sample_small(&on_cpu, gpu, &sample, count, made[0]);
        sample_small(&on_gpu, gpu, &sample, count, made[1]);
        assert_close(relative_difference(made[1], made[0], count * each), 0, 1e-4);
        wf_ctx_free(ctx);
    }
}

static void test_bf16(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    for (int i = 0; i < n_small; i++) {
        if (!my_case("%s", cases[i].generator)) continue;
        const small_case small = shortened(&cases[i]);
        wf_fit_desc fit = gpu_fit(&small, WF_PRECISION_FP32);
        const char *cpu = fit_on(&on_cpu, &small, &fit, "float");
        fit.precision = WF_PRECISION_AUTO;
        const char *gpu = fit_on(&on_gpu, &small, &fit, "bf16");
        assert_near_logs(cpu, gpu, 0.05);
    }
}

/* Broken off in the first phase by an interruption and in the last by its number of updates. */
static void test_resume(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    for (int i = 0; i < n_small; i++) {
        if (!my_case("%s", cases[i].generator)) continue;
        const small_case small = shortened(&cases[i]);
        wf_fit_desc fit = gpu_fit(&small, WF_PRECISION_FP32), part = fit;
        const char *whole = fit_on(&on_gpu, &small, &fit, "whole");
        char parts[256];
        snprintf(parts, sizeof parts, "%s/%s-parts", folder, cases[i].generator);
        break_off(open_ctx(&on_gpu), &small, &fit, parts, 2);
        part.updates = fit.updates / 2;
        fit_on(&on_gpu, &small, &part, "parts");
        fit_on(&on_gpu, &small, &fit, "parts");
        wf_ctx *ctx = open_ctx(&on_cpu);
        assert_same_tensors(ctx, whole, parts);
        /* It may go on elsewhere, and says so. */
        fit.updates += 1;
        fit_on(&on_cpu, &small, &fit, "parts");
        assert_non_null(strstr(warned, "not bit for bit"));
        wf_ctx_free(ctx);
    }
}

/* --- a generator without a program for the GPU ------------------------------------------------ */

static wf_status still_fit(wf_ctx *ctx, const wf_generator_kind *kind,
                           const wf_generator_fit_desc *desc) {
    (void)ctx, (void)kind, (void)desc;
    return WF_OK;
}
static wf_status still_open(wf_ctx *ctx, const wf_generator_kind *kind,
                            const wf_generator_open_desc *desc, void **self) {
    (void)ctx, (void)kind, (void)desc;
    *self = NULL;
    return WF_OK;
}
static wf_status still_sample(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    (void)ctx, (void)self, (void)request;
    return WF_OK;
}

static void test_without(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU and no emulated one");
    static const wf_generator_kind kind = {.name = "still",
                                           .about = "computes nothing",
                                           .fit = still_fit,
                                           .open = still_open,
                                           .sample = still_sample};
    wf_ctx *ctx = open_ctx(&on_gpu);
    wf_zoo *zoo = make_zoo(ctx, "3-4-2", 40, 0);
    wf_source source = {.zoo = zoo};
    wf_generator *generator;
    const char *path = in_folder("still");
    assert_ok(ctx, wf_generator_register(ctx, &kind));
    assert_ok(ctx, wf_generator_fit(
                       ctx, &kind,
                       &(wf_generator_fit_desc){.sources = &source, .n_sources = 1, .path = path}));
    assert_string_equal(warned, "still has no program for the GPU: fitting runs on the CPU");
    assert_ok(ctx, wf_generator_open(ctx, &(wf_generator_open_desc){.kind = &kind, .path = path},
                                     &generator));
    assert_ok(ctx, wf_generator_sample(ctx, generator,
                                       &(wf_generator_request){.graph = wf_zoo_graph(zoo)}));
    assert_string_equal(warned, "still has no program for the GPU: sampling runs on the CPU");
    assert_string_equal(wf_ctx_devices(ctx), "fitting cpu, sampling cpu");
    wf_generator_free(generator);
    wf_zoo_free(zoo);
    wf_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),  cmocka_unit_test(test_fits),    cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_resume), cmocka_unit_test(test_without),
    };
    return run_chosen(tests, make_folder, drop_folder);
}
