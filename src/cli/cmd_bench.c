/* bench: how fast this machine trains networks, matches them and trains flows, beside its peak.
 *
 * On a GPU (--device cuda): the same collections and matching there, and the steps of both
 * experiments of the paper, B = 256. Networks are of 64-16-8-10 (1,266 parameters): karhunen's
 * where WEFT_DATA has it, else the built-in digits cut to the same size. The best of several
 * runs counts, because others may use the machine. */
#include "cli/commands.h"
#include "run/files.h"
#include "weft/bench.h"
#include "weft/data.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char bench_arch[] = "64-16-8-10";
enum {
    step_batch = 16,
    gpu_batch = 256,
    gpu_velocities = 100,
    first_networks = 256,
    most_networks = 32768,
    max_results = 16
};

typedef struct result {
    char name[32], unit[32], note[128];
    double value;
} result;

typedef struct bench {
    wf_run_app *app;
    wf_scratch *scratch;
    char place[32];
    wf_dataset *data;
    wf_graph *graph;
    wf_zoo *zoo;
    bool gpu;
    double seconds; /* for each measurement */
    double peak;    /* GFLOP/s of all threads */
    result results[max_results];
    int n;
} bench;

static void add_result(bench *b, const char *name, double value, const char *unit,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));
static void add_result(bench *b, const char *name, double value, const char *unit,
                       const char *format, ...) {
    result *r = &b->results[b->n++];
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->unit, sizeof r->unit, "%s", unit);
    r->value = value;
    va_list args;
    va_start(args, format);
    vsnprintf(r->note, sizeof r->note, format, args);
    va_end(args);
    if (b->app->json) return;
    cli_print("%-14s %12.6g %-16s %s\n", r->name, r->value, r->unit, r->note);
    fflush(stdout); /* the next one takes its time */
}

static wf_status open_data(bench *b) {
    wf_data_desc desc = wf_data_desc_default();
    desc.name = "karhunen";
    desc.path = "mfeat/mfeat-karhunen.arff.gz";
    if (getenv("WEFT_DATA") == NULL || wf_dataset_open(b->app->ctx, &desc, &b->data) != WF_OK) {
        desc = wf_data_desc_default();
        desc.name = "digits";
        desc.rows = 2000;
        WF_TRY(wf_dataset_open(b->app->ctx, &desc, &b->data));
    }
    return wf_graph_parse(b->app->ctx, bench_arch, "relu", 0, &b->graph);
}

static void measure_peak(bench *b) {
    int threads = wf_ctx_threads(b->app->ctx);
    double begin = wf_seconds();
    do b->peak = fmax(b->peak, wf_bench_fma_peak(b->app->ctx));
    while (wf_seconds() - begin < fmin(b->seconds, 2));
    add_result(b, "peak", b->peak / threads, "GFLOP/s a core",
               "multiply-adds in registers, %d threads together", threads);
}

/* --- collections ------------------------------------------------------------------------------ */

static wf_status train_networks(bench *b, size_t count, double *seconds) {
    char path[128];
    snprintf(path, sizeof path, "%s/zoo-%zu.safetensors", wf_scratch_path(b->scratch), count);
    wf_zoo_desc desc = wf_zoo_desc_default();
    desc.count = count;
    wf_zoo_free(b->zoo);
    b->zoo = NULL;
    double start = wf_seconds();
    WF_TRY(wf_zoo_train(b->app->ctx, b->graph, b->data, &desc, path, NULL));
    *seconds = wf_seconds() - start;
    return wf_zoo_open(b->app->ctx, path, &b->zoo);
}

/* "the GPU" or "4 threads" */
static const char *place_of(bench *b) {
    if (b->gpu) return "the GPU";
    snprintf(b->place, sizeof b->place, "%d threads", wf_ctx_threads(b->app->ctx));
    return b->place;
}

/* The first networks wait for the device to be ready, so that their rate alone does not say how
 * many fill the time. */
static wf_status measure_zoo(bench *b) {
    double seconds;
    size_t count = first_networks;
    WF_TRY(train_networks(b, count, &seconds));
    for (int round = 0; round < 3 && count < most_networks; round++) {
        if (round > 0 && seconds > b->seconds / 2) break;
        size_t fill = (size_t)(b->seconds * (double)count / seconds);
        count = fill <= count ? count + 1 : fill > most_networks ? most_networks : fill;
        WF_TRY(train_networks(b, count, &seconds));
    }
    add_result(b, "zoo", (double)count / seconds, "networks/s",
               "%zu networks on %s, 25 epochs, batch 128, %s", count, b->data->name, place_of(b));
    return WF_OK;
}

static wf_status need_zoo(bench *b) {
    double seconds;
    return b->zoo != NULL ? WF_OK : train_networks(b, first_networks, &seconds);
}

/* --- matching --------------------------------------------------------------------------------- */

static wf_status measure_wcs(bench *b) {
    WF_TRY(need_zoo(b));
    size_t n = wf_zoo_count(b->zoo) < 1000 ? wf_zoo_count(b->zoo) : 1000, queries = 8;
    float *weights = NULL;
    float best[1000];
    wf_match_desc desc = wf_match_desc_default();
    desc.sweeps = 5;
    WF_TRY(wf_zoo_load(b->app->ctx, b->zoo, 0, n, &weights));
    double rate = 0, begin = wf_seconds();
    wf_status status = WF_OK;
    while (status == WF_OK && wf_seconds() - begin < b->seconds) {
        double start = wf_seconds();
        status = wf_wcs_max(b->app->ctx, b->graph, weights, queries, weights, n, NULL, &desc, best,
                            NULL);
        double took = wf_seconds() - start;
        rate = fmax(rate, (double)(queries * n) / took);
        if (took < 0.2 && 2 * queries <= n) queries *= 2;
    }
    free(weights);
    if (status != WF_OK) return status;
    int cores = b->gpu ? 1 : wf_ctx_threads(b->app->ctx);
    add_result(b, "wcs", rate / cores, b->gpu ? "pairs/s" : "pairs/s a core",
               "five sweeps, trained networks, %s", place_of(b));
    return WF_OK;
}

/* --- training steps --------------------------------------------------------------------------- */

static wf_status measure_step(bench *b, wf_layout layout) {
    wf_field_desc field = wf_field_desc_default();
    field.layout = layout;
    wf_bench_field_result got;
    WF_TRY(wf_bench_field(b->app->ctx, &field, bench_arch, step_batch, 1, &got));
    int repeats = (int)fmin(1000, b->seconds / (got.step_best * step_batch)) + 2;
    WF_TRY(wf_bench_field(b->app->ctx, &field, bench_arch, step_batch, repeats, &got));
    add_result(b, layout == WF_LAYOUT_LEAN ? "lean" : "lstar", 1e3 * got.step_best, "ms a network",
               "64 x 8, batch %d, median %.3g ms, %.0f GFLOP/s, %.0f %% of peak", step_batch,
               1e3 * got.step_median, got.gigaflops, 100 * got.gigaflops / b->peak);
    return WF_OK;
}

/* One of the paper's experiments: karhunen at 64 x 8, or MNIST at 128 x 8 with its first layer
 * folded. */
static wf_status measure_gpu_step(bench *b, wf_layout layout, bool mnist, bool bf16) {
    wf_field_desc field = wf_field_desc_default();
    field.layout = layout;
    if (mnist) {
        field.node = field.edge = field.time = 128;
        field.fold_rows = 785;
    }
    wf_bench_gpu_result got;
    WF_TRY(wf_bench_field_gpu(b->app->ctx, &field, mnist ? "784-32-32-10" : bench_arch, gpu_batch,
                              gpu_velocities, bf16, &got));
    char name[32];
    snprintf(name, sizeof name, "%s %s", mnist ? "mnist" : "karhunen",
             layout == WF_LAYOUT_LEAN ? "lean" : "lstar");
    add_result(b, name, 1e3 * got.step, "ms a step",
               "%s, batch %d, forward %.3g ms, %.2f GiB, velocity of %d networks %.3g ms",
               bf16 ? "bf16" : "fp32", gpu_batch, 1e3 * got.forward, (double)got.bytes / 0x1p30,
               gpu_velocities, 1e3 * got.velocity);
    return WF_OK;
}

static wf_status measure_layout(bench *b, wf_layout layout) {
    if (!b->gpu) return measure_step(b, layout);
    for (int k = 0; k < 4; k++) WF_TRY(measure_gpu_step(b, layout, k % 2 == 1, k < 2));
    return WF_OK;
}

/* --- all of it -------------------------------------------------------------------------------- */

static wf_status print_results(bench *b) {
    if (!b->app->json) return WF_OK; /* printed as they came */
    json_t *list = json_array();
    for (int i = 0; i < b->n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:s, s:s}", "name", b->results[i].name, "value",
                                        wf__run_json_number(b->results[i].value), "unit",
                                        b->results[i].unit, "note", b->results[i].note));
    return cli_print_json(b->app, json_pack("{s:s, s:i, s:s, s:o}", "version", WF_VERSION,
                                            "threads", wf_ctx_threads(b->app->ctx), "build",
                                            wf_build_info(), "results", list));
}

static bool wanted(const bench *b, const char *name) {
    const char *only = cli_text(b->app, "only");
    return only == NULL || strcmp(only, name) == 0;
}

static wf_status measure_all(bench *b) {
    WF_TRY(wf_use_cuda(b->app->ctx, &b->gpu));
    if (!b->gpu) measure_peak(b);
    WF_TRY(open_data(b));
    if (wanted(b, "zoo")) WF_TRY(measure_zoo(b));
    if (wanted(b, "wcs")) WF_TRY(measure_wcs(b));
    if (wanted(b, "lstar")) WF_TRY(measure_layout(b, WF_LAYOUT_LSTAR));
    if (wanted(b, "lean")) WF_TRY(measure_layout(b, WF_LAYOUT_LEAN));
    return print_results(b);
}

wf_status cli_bench(wf_run_app *app) {
    bench *b = calloc(1, sizeof *b);
    if (b == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    *b = (bench){.app = app, .seconds = cli_real(app, "seconds")};
    wf_status status = wf_scratch_make(app->ctx, ".weft_bench", &b->scratch);
    if (status == WF_OK) {
        status = measure_all(b);
        wf_zoo_free(b->zoo);
        wf_scratch_free(b->scratch);
    }
    wf_graph_free(b->graph);
    wf_dataset_free(b->data);
    free(b);
    return status;
}
