/* scores: task performance and error masks of networks on a test set (paper, appendix B.1).
 *
 * The test inputs are laid out once as tiles (inputs, 64 examples); a network runs over all
 * tiles on one thread, so its logits do not depend on its neighbours or on the thread count. The
 * prediction is the first largest logit; a prediction from logits that are not numbers is wrong. */
#include "base/comm.h"
#include "base/pool.h"
#include "eval/cuda/eval_cuda.h"
#include "graph/cuda/execute_cuda.h"
#include "graph/execute.h"
#include "weft/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { tile = WF_TILE, networks_in_a_round = 64 };

typedef struct score_call {
    const wf_ctx *ctx;
    const wf_graph *graph;
    const wf_dataset *data;
    wf_executor executor;
    const float *weights;
    wf_score score;
    float *scores;
    uint8_t *errors;
    float *logits; /* (n, n_test, outputs), or NULL */
    size_t tiles, first;
    float *inputs; /* (tiles, inputs, tile) */
    /* scratch_floats per worker: the executor's, then margins of all examples, then, for ROC AUC,
     * room to rank them */
    float *scratch;
    size_t scratch_floats;
} score_call;

/* An example in the order of scores. */
typedef struct ranked {
    float score;
    int32_t positive;
} ranked;
enum { ranked_floats = sizeof(ranked) / sizeof(float) };

static double roc_auc(const float *score, const int32_t *positive, size_t n, ranked *order);

static void lay_out_inputs(const wf_dataset *data, float *out) {
    for (size_t row = 0; row < data->n_test; row++) {
        const float *x = data->x_test + row * (size_t)data->inputs;
        float *place = out + row / tile * tile * (size_t)data->inputs + row % tile;
        for (int j = 0; j < data->inputs; j++) place[(size_t)j * tile] = x[j];
    }
}

/* Logits stand `step` apart. */
static bool is_wrong(const float *logits, int outputs, size_t step, int32_t label) {
    int best = 0;
    for (int i = 1; i < outputs; i++)
        if (logits[(size_t)i * step] > logits[(size_t)best * step]) best = i;
    return best != label || isnan(logits[(size_t)best * step]);
}

static void score_network(void *call_, size_t chunk, int worker) {
    const score_call *call = call_;
    const wf_dataset *data = call->data;
    size_t index = call->first + chunk, bytes = (data->n_test + 7) / 8, wrong = 0;
    const float *w = call->weights + index * call->graph->n_params;
    float *scratch = call->scratch + (size_t)worker * call->scratch_floats;
    float *margin = scratch + call->executor.floats;
    uint8_t *mask = call->errors == NULL ? NULL : call->errors + index * bytes;
    if (mask != NULL) memset(mask, 0, bytes);
    for (size_t t = 0; t < call->tiles && !wf_interrupted(call->ctx); t++) {
        const float *x = call->inputs + t * tile * (size_t)data->inputs;
        const float *logits = wf__execute(&call->executor, w, x, scratch);
        for (size_t k = 0; k < tile && t * tile + k < data->n_test; k++) {
            size_t row = t * tile + k;
            bool bad = is_wrong(logits + k, call->graph->outputs, tile, data->y_test[row]);
            wrong += bad;
            if (mask != NULL && bad) mask[row / 8] |= (uint8_t)(1u << row % 8);
            if (call->score == WF_SCORE_AUC) margin[row] = logits[tile + k] - logits[k];
            size_t outputs = (size_t)call->graph->outputs;
            for (size_t i = 0; call->logits != NULL && i < outputs; i++)
                call->logits[(index * data->n_test + row) * outputs + i] = logits[i * tile + k];
        }
    }
    if (call->scores == NULL) return;
    call->scores[index] = call->score == WF_SCORE_AUC
                              ? (float)roc_auc(margin, data->y_test, data->n_test,
                                               (ranked *)(margin + call->tiles * tile))
                              : (float)(1.0 - (double)wrong / (double)data->n_test);
}

static wf_status check_data(wf_ctx *ctx, const wf_dataset *data, wf_score score) {
    if (data->n_test == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "data set %s has no test examples; raise test_fraction",
                       data->name);
    if (score == WF_SCORE_AUC && data->classes != 2)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "ROC AUC needs two classes, data set %s has %d; use accuracy", data->name,
                       data->classes);
    return WF_OK;
}

static wf_status check_fit(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                           wf_score score) {
    WF_TRY(wf_dataset_fits(ctx, data, graph));
    return check_data(ctx, data, score);
}

static wf_status score_call_open(wf_ctx *ctx, score_call *call) {
    WF_TRY(wf__executor_open(ctx, call->graph, &call->executor));
    call->tiles = (call->data->n_test + tile - 1) / tile;
    size_t of_example = 1 + (call->score == WF_SCORE_AUC ? ranked_floats : 0);
    call->scratch_floats = call->executor.floats + of_example * call->tiles * tile;
    WF_TRY(wf_alloc(ctx, call->scratch_floats * (size_t)wf_ctx_threads(ctx), sizeof(float),
                    "forward pass", &call->scratch));
    WF_TRY(wf_alloc(ctx, call->tiles * tile * (size_t)call->data->inputs, sizeof(float),
                    "test inputs", &call->inputs));
    lay_out_inputs(call->data, call->inputs);
    return WF_OK;
}

/* Accuracy from the masks, which is what a GPU sends back. */
static wf_status score_on_gpu(wf_ctx *ctx, const score_call *call, size_t n) {
    size_t tests = call->data->n_test, bytes = (tests + 7) / 8;
    uint8_t *masks = call->errors, *own = NULL;
    if (masks == NULL) {
        WF_TRY(wf_alloc(ctx, n, bytes, "error masks", &own));
        masks = own;
    }
    wf_status status =
        wf_graph_is_chain(call->graph)
            ? wf_error_masks_cuda(ctx, call->graph, call->weights, n, call->data, masks)
            : wf__execute_cuda(ctx, call->graph, call->weights, n, call->data->x_test,
                               call->data->y_test, tests, masks, NULL);
    for (size_t i = 0; status == WF_OK && call->scores != NULL && i < n; i++) {
        size_t wrong = 0;
        for (size_t k = 0; k < bytes; k++)
            wrong += (size_t)__builtin_popcount(masks[i * bytes + k]);
        call->scores[i] = (float)(1.0 - (double)wrong / (double)tests);
    }
    free(own);
    return status;
}

static wf_status run_networks(wf_ctx *ctx, score_call call, size_t n) {
    WF_TRY(check_fit(ctx, call.graph, call.data, call.score));
    call.ctx = ctx;
    wf_status status = WF_OK;
    WF_TRY_GOTO(score_call_open(ctx, &call), done);
    wf_meter meter = wf_meter_start(ctx, "testing networks", "networks", (double)n);
    while (call.first < n) {
        size_t count = n - call.first < networks_in_a_round ? n - call.first : networks_in_a_round;
        if (!wf_parallel_stoppable(ctx, count, score_network, &call)) {
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while testing networks");
            goto done;
        }
        call.first += count;
        wf_meter_update(&meter, (double)call.first, NULL);
    }
    wf_meter_end(&meter, (double)n, NULL);
done:
    wf__executor_close(&call.executor);
    free(call.scratch);
    free(call.inputs);
    return status;
}

static wf_status score_here(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                            const wf_dataset *data, wf_score score, float *scores,
                            uint8_t *errors) {
    score_call call = {.graph = graph,
                       .data = data,
                       .weights = weights,
                       .score = score,
                       .scores = scores,
                       .errors = errors};
    WF_TRY(check_fit(ctx, graph, data, score));
    /* A core's rate in this loop, roughly: 40 GFLOP/s. ROC AUC ranks all examples, on the CPU. */
    double flops = 2.0 * (double)n * (double)graph->n_params * (double)data->n_test;
    bool cuda;
    WF_TRY(wf_use_cuda_for(ctx, flops / 40e9, &cuda));
    if (cuda && score == WF_SCORE_ACCURACY) {
        wf_status on_gpu = score_on_gpu(ctx, &call, n);
        if (on_gpu != WF_ERR_UNSUPPORTED) {
            wf_note_device(ctx, "testing", true);
            return on_gpu;
        }
        wf_warn(ctx, "%s; tested on the CPU", wf_last_error(ctx));
    }
    wf_note_device(ctx, "testing", false);
    return run_networks(ctx, call, n);
}

wf_status wf_score_networks(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                            const wf_dataset *data, wf_score score, float *scores,
                            uint8_t *errors) {
    size_t bytes = (data->n_test + 7) / 8;
    wf_range own = wf_share(ctx, n);
    wf_status status =
        score_here(ctx, graph, weights + own.first * graph->n_params, own.last - own.first, data,
                   score, scores == NULL ? NULL : scores + own.first,
                   errors == NULL ? NULL : errors + own.first * bytes);
    WF_TRY(wf_agree_rows(ctx, status, scores, sizeof *scores, n));
    return wf_gather_rows(ctx, errors, bytes, n);
}

wf_status wf_logits(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                    const wf_dataset *data, float *logits) {
    score_call call = {.graph = graph, .data = data, .weights = weights, .logits = logits};
    return run_networks(ctx, call, n);
}

wf_status wf_score_logits(wf_ctx *ctx, const float *logits, size_t n, const wf_dataset *data,
                          wf_score score, float *scores, uint8_t *errors) {
    size_t outputs = (size_t)data->classes, rows = data->n_test, bytes = (rows + 7) / 8;
    WF_TRY(check_data(ctx, data, score));
    float *margin;
    WF_TRY(wf_alloc(ctx, rows * (1 + ranked_floats), sizeof *margin, "scores", &margin));
    for (size_t i = 0; i < n; i++) {
        size_t wrong = 0;
        if (errors != NULL) memset(errors + i * bytes, 0, bytes);
        for (size_t r = 0; r < rows; r++) {
            const float *row = logits + (i * rows + r) * outputs;
            bool bad = is_wrong(row, data->classes, 1, data->y_test[r]);
            wrong += bad;
            if (errors != NULL && bad) errors[i * bytes + r / 8] |= (uint8_t)(1u << r % 8);
            if (score == WF_SCORE_AUC) margin[r] = row[1] - row[0];
        }
        if (scores != NULL)
            scores[i] = score == WF_SCORE_AUC
                            ? (float)roc_auc(margin, data->y_test, rows, (ranked *)(margin + rows))
                            : (float)(1.0 - (double)wrong / (double)rows);
    }
    free(margin);
    return WF_OK;
}

static int by_score(const void *a_, const void *b_) {
    const ranked *a = a_, *b = b_;
    return (a->score > b->score) - (a->score < b->score);
}

/* The share of (positive, negative) pairs in which the positive one scores higher, from rank
 * sums; equal scores share their mean rank. */
static double roc_auc(const float *score, const int32_t *positive, size_t n, ranked *order) {
    size_t positives = 0;
    bool ordered = true;
    for (size_t i = 0; i < n; i++) {
        order[i] = (ranked){score[i], positive[i] == 1};
        positives += order[i].positive == 1;
        ordered &= !isnan(score[i]);
    }
    size_t negatives = n - positives;
    if (positives == 0 || negatives == 0 || !ordered) return NAN;
    qsort(order, n, sizeof *order, by_score);
    double rank_sum = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i, tied = 0;
        for (; end < n && order[end].score == order[i].score; end++)
            tied += order[end].positive == 1;
        rank_sum += (double)tied * 0.5 * (double)(i + 1 + end);
        i = end;
    }
    double p = (double)positives;
    return (rank_sum - 0.5 * p * (p + 1)) / (p * (double)negatives);
}

double wf_roc_auc(const float *score, const int32_t *positive, size_t n) {
    ranked *order = malloc((n + 1) * sizeof *order);
    double auc = order != NULL ? roc_auc(score, positive, n, order) : NAN;
    free(order);
    return auc;
}
