/* The training loop on the GPU against the CPU's: draws, twenty updates, equal bits, resuming,
 * divergence. */
#include "wf_test.h"
#include "base/cuda/device.h"
#include "named_cases.h"
#include "flow/trainer.h"
#include "flow_fixture.h"

static wf_ctx *device_ctx(wf_device device) {
    wf_ctx_desc desc = {.threads = 2, .device = device};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

/* A field whose widths fill no tile. */
static wf_field_desc odd_field(wf_layout layout, int cond_size) {
    wf_field_desc field = plain_field(cond_size);
    field.layout = layout;
    field.node = 20, field.edge = 34, field.time = 10, field.blocks = 2;
    return field;
}

static wf_fit_desc short_fit(void) {
    wf_fit_desc fit = quick_fit();
    fit.updates = 20;
    fit.batch = 7;
    fit.log_every = 1;
    fit.lr = 1e-3;
    fit.eps = 1e-4; /* else an update has the sign of gradients that are rounding alone */
    fit.precision = WF_PRECISION_FP32;
    return fit;
}

/* Collections, their conditions and a way to run on either device. */
typedef struct bench {
    wf_ctx *cpu, *gpu;
    wf_zoo *zoos[3];
    wf_source sources[3];
    float cond[3][2];
    int n;
} bench;

static const char *const dense[] = {"3-4-2", "2-33-3-2", "3-4-2"};
static const char *const convs[] = {"1x6x6 conv5 pool conv4k1 gap linear2"};

static void bench_open(bench *b, const char *const *archs, int n) {
    *b = (bench){.cpu = device_ctx(WF_DEVICE_CPU), .gpu = device_ctx(WF_DEVICE_CUDA), .n = n};
    for (int i = 0; i < n; i++) {
        const char *activation = archs == dense ? "tanh" : "relu";
        b->zoos[i] = make_zoo_with(b->cpu, archs[i], activation, 11 + (size_t)i, (uint32_t)i);
        b->cond[i][0] = (float)i, b->cond[i][1] = 1 - (float)i;
        b->sources[i] = (wf_source){
            .zoo = b->zoos[i], .cond = n > 1 ? b->cond[i] : NULL, .draw_weight = i == 1 ? 2 : 1};
    }
}

static void bench_close(bench *b) {
    for (int i = 0; i < b->n; i++) wf_zoo_free(b->zoos[i]);
    wf_ctx_free(b->cpu);
    wf_ctx_free(b->gpu);
}

/* Where noise is matched: on the GPU, or by host threads ahead of it. */
static void match_on_host(bool host) {
    if (host) setenv("WEFT_MATCH_ON_HOST", "1", 1);
    else unsetenv("WEFT_MATCH_ON_HOST");
}

static wf_status bench_fit(bench *b, bool gpu, const wf_field_desc *field, const wf_fit_desc *fit,
                           const char *name, wf_flow **out) {
    return wf_flow_fit(gpu ? b->gpu : b->cpu, b->sources, b->n, field, fit, in_folder(name), out);
}

static void remove_run(const char *name) {
    char log[300];
    snprintf(log, sizeof log, "%s.log.jsonl", in_folder(name));
    remove(in_folder(name));
    remove(log);
}

/* --- draws ------------------------------------------------------------------------------------ */

static wf_fit_cuda *open_engine(bench *b, const wf_field_desc *field, const wf_fit_desc *fit,
                                wf_trainer *tr) {
    *tr = (wf_trainer){.desc = *fit};
    tr->path_form = (wf_path){fit->precondition, fit->source_std, fit->path_noise};
    assert_ok(b->gpu,
              wf_field_create(b->gpu, wf_field_find("gmn"), field, NULL, WF_F32, &tr->field));
    assert_ok(b->gpu, wf_training_set_load(b->gpu, b->sources, b->n, tr->field, fit, &tr->set));
    assert_ok(b->gpu, wf_training_set_rotate(b->gpu, fit, &tr->set));
    size_t params = tr->field->params;
    float **arrays[] = {&tr->arrays.weights, &tr->arrays.first, &tr->arrays.second,
                        &tr->arrays.ema};
    for (int i = 0; i < 4; i++)
        assert_ok(b->gpu, wf_alloc(b->gpu, params, sizeof(float), "test", arrays[i]));
    wf_fit_cuda_desc desc = {
        .field = tr->field,
        .set = &tr->set,
        .fit = &tr->desc,
        .path = tr->path_form,
        .optim = {.lr = 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .ema = 0.9},
        .arrays = &tr->arrays};
    wf_fit_cuda *engine;
    assert_ok(b->gpu, wf__fit_cuda_create(b->gpu, &desc, &engine));
    return engine;
}

static void close_engine(wf_fit_cuda *engine, wf_trainer *tr) {
    wf__fit_cuda_free(engine);
    float *arrays[] = {tr->arrays.weights, tr->arrays.first, tr->arrays.second, tr->arrays.ema};
    for (int i = 0; i < 4; i++) free(arrays[i]);
    wf_field_free(tr->field);
    wf_training_set_free(&tr->set);
}

static void compare_draws(const char *const *archs, int sources, wf_fit_desc fit) {
    bench b;
    bench_open(&b, archs, sources);
    wf_field_desc field = plain_field(sources > 1 ? 2 : 0); /* draws do not depend on it */
    field.max_coef = archs == convs ? 9 : 1;
    wf_trainer tr;
    wf_fit_cuda *engine = open_engine(&b, &field, &fit, &tr);
    wf_draw draw;
    assert_ok(b.cpu, wf_draw_create(b.cpu, &tr.set, &fit, &draw));
    for (uint32_t update = 0; update < 5; update++) {
        assert_ok(b.cpu, wf_draw_batch(b.cpu, &draw, update));
        wf_flow_interpolate(b.cpu, &tr.path_form, fit.seed, update, &draw.flow);
        size_t n = draw.shape.n_params;
        float *x = calloc(n, 4), *target = calloc(n, 4), *t = calloc(fit.batch, 4);
        wf_update_record record;
        assert_ok(b.gpu, wf__fit_cuda_enqueue(b.gpu, engine));
        assert_ok(b.gpu, wf__fit_cuda_record(b.gpu, engine, update, &record));
        assert_int_equal(record.update, update);
        assert_ok(b.gpu, wf__fit_cuda_batch(b.gpu, engine, x, target, t));
        for (size_t i = 0; i < fit.batch; i++)
            if (t[i] != draw.flow.t[i])
                fail_msg("update %u: t[%zu] = %.9g, expected %.9g", update, i, t[i],
                         draw.flow.t[i]);
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) {
            float expected = draw.flow.w1[i] - draw.flow.w0[i];
            if (x[i] == draw.flow.x[i] && target[i] == expected) continue;
            if (wrong++ < 5)
                print_message("update %u, %zu of %zu: x %.9g, expected %.9g; target %.9g, "
                              "expected %.9g\n",
                              update, i, n, x[i], draw.flow.x[i], target[i], expected);
        }
        if (wrong > 0) fail_msg("%zu of %zu numbers differ", wrong, n);
        free(x), free(target), free(t);
    }
    wf_draw_free(&draw);
    close_engine(engine, &tr);
    bench_close(&b);
}

static void test_draws(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    wf_fit_desc fit = short_fit();
    fit.coupling = WF_COUPLING_INDEPENDENT;
    compare_draws(dense, 1, fit);
    fit.precondition = false;
    fit.time_law = WF_TIME_LOGIT_NORMAL;
    fit.source_std = 1.5;
    compare_draws(dense, 1, fit);
    fit.time_law = WF_TIME_LATE;
    compare_draws(dense, 1, fit);
    fit = short_fit();
    fit.coupling = WF_COUPLING_INDEPENDENT;
    fit.path_noise = 0.25;
    fit.noise_table = 5;
    compare_draws(dense, 3, fit);
    fit.principal = true;
    compare_draws(dense, 3, fit);
    fit.principal = false;
    fit.relabel = true;
    compare_draws(dense, 3, fit);
    fit.signs = true;
    compare_draws(dense, 3, fit);
    fit.relabel = false;
    compare_draws(dense, 3, fit);
    fit.epochs = true;
    compare_draws(dense, 1, fit);
}

static void matched_draws_have_the_same_bits(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int host = 0; host < 2; host++) {
        match_on_host(host);
        compare_draws(dense, 1, short_fit());
        compare_draws(dense, 3, short_fit());
        wf_fit_desc fit = short_fit();
        fit.principal = true;
        compare_draws(dense, 1, fit);
        compare_draws(convs, 1, fit);
    }
    match_on_host(false);
}

/* --- updates ---------------------------------------------------------------------------------- */

/* Largest relative differences of the kept weights and of both moments of two flow files. */
static double difference(const wf_flow *a, const wf_flow *b) {
    double worst = relative_difference(a->params, b->params, a->field->params);
    static const char *const names[] = {"optim.first", "optim.second"};
    for (int i = 0; i < 2; i++) {
        const wf_st_tensor *x = wf_st_find(a->file, names[i]), *y = wf_st_find(b->file, names[i]);
        double d = relative_difference(x->data, y->data, x->count);
        if (d > worst) worst = d;
    }
    return worst;
}

static bool same_bits(const wf_flow *a, const wf_flow *b) {
    size_t bytes = a->field->params * sizeof(float);
    if (memcmp(a->params, b->params, bytes) != 0) return false;
    static const char *const names[] = {"optim.first", "optim.second"};
    for (int i = 0; i < 2; i++)
        if (memcmp(wf_st_find(a->file, names[i])->data, wf_st_find(b->file, names[i])->data,
                   bytes) != 0)
            return false;
    return true;
}

/* Losses and norms of all lines of the log: relative difference of the worst. */
static double log_difference(const char *a, const char *b) {
    char name[300], line[2][300];
    FILE *file[2];
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s.log.jsonl", in_folder(k ? b : a));
        file[k] = fopen(name, "r");
        assert_non_null(file[k]);
    }
    double worst = 0;
    int lines = 0;
    while (fgets(line[0], sizeof line[0], file[0]) != NULL) {
        assert_non_null(fgets(line[1], sizeof line[1], file[1]));
        double value[2][4];
        for (int k = 0; k < 2; k++)
            assert_int_equal(sscanf(line[k],
                                    "{\"update\":%lf,\"loss\":%lf,\"grad_norm\":%lf,\"lr\":%lf",
                                    &value[k][0], &value[k][1], &value[k][2], &value[k][3]),
                             4);
        for (int i = 0; i < 4; i++) {
            double d = fabs(value[0][i] - value[1][i]) / (fabs(value[1][i]) + 1e-30);
            if (d > worst && d > 1e-3)
                print_message("update %.0f: loss %.9g and %.9g, norm %.9g and %.9g\n", value[0][0],
                              value[0][1], value[1][1], value[0][2], value[1][2]);
            if (d > worst) worst = d;
        }
        lines++;
    }
    assert_null(fgets(line[1], sizeof line[1], file[1]));
    assert_int_equal(lines, 20);
    fclose(file[0]), fclose(file[1]);
    return worst;
}

/* The tensors that differ most, for a failure's reader. */
static void show_tensors(const wf_flow *a, const wf_flow *b) {
    static const char *const names[] = {"optim.first", "optim.second"};
    for (int k = 0; k < 2; k++) {
        const float *x = wf_st_find(a->file, names[k])->data;
        const float *y = wf_st_find(b->file, names[k])->data;
        double all = 0;
        for (size_t i = 0; i < a->field->params; i++) all += (double)y[i] * y[i];
        for (int t = 0; t < a->field->n_tensors; t++) {
            const wf_field_tensor *info = &a->field->tensors[t];
            double off = 0;
            for (size_t i = 0; i < (size_t)info->rows * (size_t)info->cols; i++) {
                double d = (double)x[info->offset + i] - y[info->offset + i];
                off += d * d;
            }
            if (sqrt(off) > 1e-5 * sqrt(all))
                print_message("    %s of %s (%d, %d): off by %.3g of all\n", names[k], info->name,
                              info->rows, info->cols, sqrt(off / all));
        }
    }
}

static void twenty_updates(const char *what, const char *const *archs, int sources,
                           wf_field_desc field, wf_fit_desc fit) {
    bench b;
    bench_open(&b, archs, sources);
    remove_run("cpu"), remove_run("gpu");
    wf_flow *cpu, *gpu;
    assert_ok(b.cpu, bench_fit(&b, false, &field, &fit, "cpu", &cpu));
    assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "gpu", &gpu));
    double d = difference(gpu, cpu), lines = log_difference("gpu", "cpu");
    print_message("%s: weights and moments %.2g, log %.2g\n", what, d, lines);
    if (!(d <= 1e-4 && lines <= 1e-4)) {
        show_tensors(gpu, cpu);
        for (fit.updates = 1; fit.updates <= 3; fit.updates++) { /* where it begins */
            remove_run("cpu"), remove_run("gpu");
            wf_flow_free(cpu), wf_flow_free(gpu);
            assert_ok(b.cpu, bench_fit(&b, false, &field, &fit, "cpu", &cpu));
            assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "gpu", &gpu));
            print_message("  after update %zu: %.3g\n", fit.updates, difference(gpu, cpu));
            show_tensors(gpu, cpu);
        }
        fail_msg("%s: weights or moments differ by %.3g, the log by %.3g", what, d, lines);
    }
    wf_flow_free(cpu), wf_flow_free(gpu);
    bench_close(&b);
}

static void twenty_updates_agree(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int layout = 0; layout < 2; layout++) {
        wf_field_desc field = odd_field((wf_layout)layout, 0);
        wf_fit_desc fit = short_fit();
        fit.optimizer = WF_OPT_ADAMW;
        fit.coupling = WF_COUPLING_INDEPENDENT;
        twenty_updates("adamw", dense, 1, field, fit);
        fit.weight_decay = 0.1;
        fit.ema = 0;
        fit.clip = 0;
        fit.warmup = 5;
        fit.precondition = false;
        twenty_updates("adamw, decay, warm-up, neither EMA nor clip", dense, 1, field, fit);
        twenty_updates("muon, matched", dense, 1, field, short_fit());
        field.dropout = 0.3;
        twenty_updates("muon, matched, dropout", dense, 1, field, short_fit());
        fit = short_fit();
        fit.kept = WF_KEPT_BEST;
        fit.weight_decay = 0.1;
        fit.cond_drop = 0.3;
        fit.path_noise = 0.1;
        twenty_updates("muon, best, three sources", dense, 3, odd_field((wf_layout)layout, 2), fit);
        fit.principal = true;
        fit.loss_by = WF_LOSS_BY_LAYERS;
        twenty_updates("the same along principal axes, by layers", dense, 3,
                       odd_field((wf_layout)layout, 2), fit);
        field.max_coef = 9;
        fit = short_fit();
        fit.principal = true;
        fit.loss_by = WF_LOSS_BY_LAYERS;
        twenty_updates("kernels, matched, along principal axes, by layers", convs, 1, field, fit);
    }
}

static void reruns_and_resumed_runs_have_the_same_bits(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    for (int fast = 0; fast < 2; fast++) {
        bench b;
        bench_open(&b, dense, 3);
        wf_field_desc field = odd_field(WF_LAYOUT_LEAN, 2);
        field.dropout = 0.3;
        wf_fit_desc fit = short_fit();
        fit.precision = fast ? WF_PRECISION_BF16 : WF_PRECISION_FP32;
        wf_flow *whole, *again, *pieces, *streamed;
        const char *names[] = {"whole", "again", "pieces", "streamed"};
        for (int i = 0; i < 4; i++) remove_run(names[i]);
        assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "whole", &whole));
        assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "again", &again));
        assert_true(same_bits(whole, again));
        fit.schedule_updates = 20;
        for (fit.updates = 3; fit.updates < 20; fit.updates += 5)
            assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "pieces", NULL));
        fit.updates = 20;
        fit.save_seconds = 0; /* checkpoints beside every update */
        assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "pieces", &pieces));
        assert_true(same_bits(whole, pieces));
        assert_true(log_difference("pieces", "whole") == 0);
        setenv("WEFT_STREAM_COLLECTION", "1", 1);
        match_on_host(true);
        assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "streamed", &streamed));
        unsetenv("WEFT_STREAM_COLLECTION");
        match_on_host(false);
        assert_true(same_bits(whole, streamed));
        wf_flow_free(whole), wf_flow_free(again), wf_flow_free(pieces), wf_flow_free(streamed);
        bench_close(&b);
    }
}

/* Eleven updates on one device, the rest on the other: as all of them on the CPU. */
static void a_run_may_change_device(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, dense, 1);
    wf_field_desc field = odd_field(WF_LAYOUT_LEAN, 0);
    wf_flow *whole;
    wf_fit_desc fit = short_fit();
    fit.schedule_updates = 20;
    remove_run("whole");
    assert_ok(b.cpu, bench_fit(&b, false, &field, &fit, "whole", &whole));
    for (int first_on_gpu = 0; first_on_gpu < 2; first_on_gpu++) {
        wf_flow *mixed;
        remove_run("mixed");
        fit.updates = 11;
        assert_ok(b.cpu, bench_fit(&b, first_on_gpu, &field, &fit, "mixed", NULL));
        fit.updates = 20;
        assert_ok(b.gpu, bench_fit(&b, !first_on_gpu, &field, &fit, "mixed", &mixed));
        assert_true(difference(mixed, whole) < 1e-4);
        wf_flow_free(mixed);
    }
    wf_flow_free(whole);
    bench_close(&b);
}

static void divergence_is_found(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, dense, 1);
    wf_field_desc field = odd_field(WF_LAYOUT_LEAN, 0);
    wf_fit_desc fit = short_fit();
    fit.optimizer = WF_OPT_ADAMW;
    fit.lr = 1e3, fit.clip = 0, fit.cosine = false;
    fit.updates = 2000;
    fit.weight_decay = 1e3; /* weights grow by 1e6 an update */
    remove_run("far");
    wf_status status = bench_fit(&b, true, &field, &fit, "far", NULL);
    print_message("diverging run: %s\n", wf_last_error(b.gpu));
    assert_int_equal(status, WF_ERR_DIVERGED);
    assert_non_null(strstr(wf_last_error(b.gpu), "diverged at update"));
    bench_close(&b);
}

/* What a callback sees once, and asks the run to stop. */
static void interrupt_at(void *user, const wf_progress *progress) {
    if (progress->done > 0) wf_interrupt(*(wf_ctx **)user);
}

static void an_interrupted_run_goes_on(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, dense, 1);
    wf_field_desc field = odd_field(WF_LAYOUT_LEAN, 0);
    wf_fit_desc fit = short_fit();
    fit.updates = fit.schedule_updates = 3000;
    fit.log_every = 3000;
    remove_run("stop"), remove_run("whole");
    wf_ctx *ctx = NULL;
    wf_ctx_desc desc = {
        .threads = 2, .device = WF_DEVICE_CUDA, .progress = interrupt_at, .user = &ctx};
    assert_int_equal(wf_ctx_create(&desc, &ctx), WF_OK);
    wf_status status = wf_flow_fit(ctx, b.sources, b.n, &field, &fit, in_folder("stop"), NULL);
    print_message("interrupted run: %s\n", wf_last_error(ctx));
    assert_int_equal(status, WF_ERR_INTERRUPTED);
    wf_flow *stopped, *whole;
    assert_ok(b.gpu, wf_flow_open(b.gpu, in_folder("stop"), &stopped));
    size_t made = wf_flow_updates(stopped);
    assert_true(made > 0 && made < 3000);
    fit.updates = made;
    assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "whole", &whole));
    assert_true(same_bits(stopped, whole));
    wf_flow_free(stopped), wf_flow_free(whole);
    wf_ctx_free(ctx);
    bench_close(&b);
}

/* bf16: the same run to about the rounding of its products. */
static void bf16_stays_near(void **state) {
    (void)state;
    if (!wf_cuda_available()) skip("no GPU");
    bench b;
    bench_open(&b, dense, 1);
    wf_field_desc field = odd_field(WF_LAYOUT_LEAN, 0);
    field.node = 32, field.edge = 64, field.time = 32;
    wf_fit_desc fit = short_fit();
    wf_flow *exact, *fast;
    remove_run("exact"), remove_run("fast");
    assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "exact", &exact));
    fit.precision = WF_PRECISION_AUTO;
    assert_ok(b.gpu, bench_fit(&b, true, &field, &fit, "fast", &fast));
    double d = log_difference("fast", "exact");
    print_message("bf16 beside fp32: log %.2g\n", d);
    assert_false(same_bits(exact, fast));
    assert_true(d < 0.1);
    wf_flow_free(exact), wf_flow_free(fast);
    bench_close(&b);
}

static void bf16_is_refused_on_the_cpu(void **state) {
    (void)state;
    bench b;
    bench_open(&b, dense, 1);
    wf_field_desc field = odd_field(WF_LAYOUT_LEAN, 0);
    wf_fit_desc fit = short_fit();
    fit.precision = WF_PRECISION_BF16;
    remove_run("refused");
    assert_fails(b.cpu, bench_fit(&b, false, &field, &fit, "refused", NULL), WF_ERR_USAGE,
                 "precision is bf16");
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),
        cmocka_unit_test(matched_draws_have_the_same_bits),
        cmocka_unit_test(twenty_updates_agree),
        cmocka_unit_test(reruns_and_resumed_runs_have_the_same_bits),
        cmocka_unit_test(a_run_may_change_device),
        cmocka_unit_test(divergence_is_found),
        cmocka_unit_test(an_interrupted_run_goes_on),
        cmocka_unit_test(bf16_stays_near),
        cmocka_unit_test(bf16_is_refused_on_the_cpu),
    };
    return run_chosen(tests, make_folder, drop_folder);
}
