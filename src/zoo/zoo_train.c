/* zoo_train: checks of what is asked for, and a piece of work spread over the threads of a context.
 * A network is one chunk of the pool: one thread carries it from its first update to its last,
 * pausing now and then to have it saved. */
#include "zoo/cuda/zoo_cuda.h"
#include "zoo/zoo_engine.h"

#include "base/isa.h"
#include "base/pool.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const wf_zoo_kernels *wf_zoo_kernels_pick(const wf_zoo_plan *plan) {
    return plan->chain != NULL ? WF_PICK_F32(&wf_zoo_kernels) : WF_PICK_F32(&wf_net_kernels);
}

/* --- checks ----------------------------------------------------------------------------------- */

static wf_status check_desc(wf_ctx *ctx, const wf_zoo_desc *desc) {
    WF_TRY(wf_settings_check(ctx, wf_zoo_settings(), desc));
    if (desc->count > (size_t)UINT32_MAX + 1 - desc->first)
        return wf_fail(ctx, WF_ERR_USAGE, "zoo: indices %zu + %zu go beyond 2^32", desc->first,
                       desc->count);
    if (desc->optimizer == WF_ZOO_SGD && desc->nesterov && desc->momentum == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "zoo.nesterov is yes, but zoo.momentum is 0");
    return WF_OK;
}

static wf_status check_labels(wf_ctx *ctx, const wf_dataset *data, const char *part,
                              const int32_t *labels, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (labels[i] < 0 || labels[i] >= data->classes)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: label %d of %s example %zu is outside 0 to %d",
                           data->name, (int)labels[i], part, i, data->classes - 1);
    return WF_OK;
}

static wf_status check_data(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data) {
    WF_TRY(wf_dataset_fits(ctx, data, graph));
    if (data->n_train == 0 || data->n_train > UINT32_MAX)
        return wf_fail(ctx, WF_ERR_INPUT, "data set %s has %zu training examples", data->name,
                       data->n_train);
    WF_TRY(check_labels(ctx, data, "training", data->y_train, data->n_train));
    return check_labels(ctx, data, "test", data->y_test, data->n_test);
}

/* Bytes that a thread may take for the values of one network, 8 GB: a description of a few bytes
 * may stand for images of any size. Counted in double, where nothing overflows. */
static const double most_bytes = 8e9;

static wf_status check_memory(wf_ctx *ctx, const wf_graph *graph, const wf_zoo_desc *desc,
                              size_t n_train) {
    const double tile = 16, real_size = sizeof(float), kept = 6; /* arrays of a layer, at most */
    double examples = tile, bytes = 0;
    for (int l = 0; l < graph->n_layers; l++)
        if (graph->layers[l].norm == WF_NORM_BATCH)
            examples = fmin(desc->batch, (double)n_train) + tile;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_group *group = &graph->groups[l + 1];
        bytes += kept * ((double)group->n + 1) * group->sum_height * group->sum_width * examples *
                 real_size;
        if (bytes > most_bytes)
            return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                           "training %.200s: layer %d (%d units of %dx%d) takes more than %.0f GB "
                           "for %.0f examples",
                           graph->text, l + 1, group->n, group->sum_height, group->sum_width,
                           most_bytes / 1e9, examples);
    }
    return WF_OK;
}

/* Statistics of a batch need two values of each unit. */
static wf_status check_batches(wf_ctx *ctx, const wf_graph *graph, const wf_zoo_desc *desc,
                               size_t n_train) {
    size_t batch = (size_t)desc->batch, last = n_train % batch == 0 ? batch : n_train % batch;
    for (int l = 0; l < graph->n_layers; l++) {
        const wf_group *group = &graph->groups[l + 1];
        if (graph->layers[l].norm != WF_NORM_BATCH || group->sum_height * group->sum_width > 1 ||
            (batch > 1 && last > 1))
            continue;
        return wf_fail(ctx, WF_ERR_USAGE,
                       "zoo.batch is %zu, which leaves a batch of one of %zu examples, and the "
                       "batch norm of layer %d needs two; change it",
                       batch, n_train, l + 1);
    }
    return WF_OK;
}

/* The size of images that are changed on the way: the network's, else the data's. */
static wf_status find_image(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                            const wf_zoo_desc *desc, int image[3]) {
    const wf_group *input = &graph->groups[0];
    image[0] = input->image ? input->n : data->channels;
    image[1] = input->image ? input->height : data->height;
    image[2] = input->image ? input->width : data->width;
    if (!desc->flip && desc->crop == 0) return WF_OK;
    if (image[1] == 0)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "zoo.flip and zoo.crop change images, but data set %s has none", data->name);
    if (desc->crop >= image[1] || desc->crop >= image[2])
        return wf_fail(ctx, WF_ERR_USAGE,
                       "zoo.crop is %d; expected less than the sides of the images, %dx%d",
                       desc->crop, image[1], image[2]);
    return WF_OK;
}

wf_status wf_zoo_plan_build(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                            const wf_zoo_desc *desc, wf_zoo_chain *chain, wf_zoo_plan *out) {
    WF_TRY(check_desc(ctx, desc));
    WF_TRY(check_data(ctx, graph, data));
    *out = (wf_zoo_plan){.graph = graph,
                         .desc = desc,
                         .train = {data->x_train, data->y_train, data->n_train},
                         .test = {data->x_test, data->y_test, data->n_test}};
    WF_TRY(find_image(ctx, graph, data, desc, out->image));
    bool changed = desc->flip || desc->crop > 0;
    if (!changed && wf_zoo_chain_build(graph, chain)) {
        out->chain = chain;
        return WF_OK;
    }
    WF_TRY(check_batches(ctx, graph, desc, data->n_train));
    return check_memory(ctx, graph, desc, data->n_train);
}

/* --- a piece of work -------------------------------------------------------------------------- */

double wf_zoo_save_seconds = 5;
static const double least_kept =
    1; /* seconds of training that are worth a file when a piece stops */

/* A thread that trains networks. */
typedef struct trainee {
    struct piece_run *run;
    int worker;
    double kept; /* when its network was begun or last kept */
} trainee;

typedef struct piece_run {
    wf_ctx *ctx;
    const wf_zoo_plan *plan;
    const wf_zoo_kernels *kernels;
    const wf_zoo_piece *piece;
    char *scratch, *moments; /* one part for each worker */
    size_t scratch_bytes, row_bytes;
    trainee *trainees; /* [workers] */
    atomic_size_t done;
    atomic_bool stop;
} piece_run;

/* Asked for before every update, so the clock that costs least: exact to a few milliseconds. */
static double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool stopped(const piece_run *run) {
    return atomic_load_explicit(&run->stop, memory_order_relaxed) || wf_interrupted(run->ctx);
}

/* Worker 0 is the thread that made the call, the only one that may report. */
static void tick(piece_run *run, int worker) {
    const wf_zoo_piece *piece = run->piece;
    if (worker == 0 && piece->tick != NULL && !piece->tick(piece->user)) run->stop = true;
}

static bool pause_now(void *trainee_, bool between) {
    const trainee *t = trainee_;
    if (stopped(t->run)) return true;
    if (!between) return false;
    tick(t->run, t->worker);
    return t->run->piece->keep != NULL && clock_seconds() - t->kept >= wf_zoo_save_seconds;
}

static void keep_network(trainee *t, size_t i, const void *w, const wf_zoo_progress *progress) {
    const wf_zoo_piece *piece = t->run->piece;
    double least = fmin(least_kept, wf_zoo_save_seconds);
    if (piece->keep == NULL || progress->updates == 0 || clock_seconds() - t->kept < least) return;
    if (!piece->keep(piece->user, i, w, progress)) t->run->stop = true;
    t->kept = clock_seconds();
}

/* Trains and judges network i. WF_ZOO_WAITING: the piece was stopped. */
static wf_zoo_state train_to_end(trainee *t, size_t i, void *w, wf_zoo_progress *progress) {
    piece_run *run = t->run;
    const wf_zoo_piece *piece = run->piece;
    const wf_zoo_watch watch = {pause_now, t};
    void *scratch = run->scratch + (size_t)t->worker * run->scratch_bytes;
    wf_zoo_task task = wf_zoo_task_of(run->plan->desc, piece->index[i]);
    wf_zoo_state state = WF_ZOO_WAITING;
    while (state == WF_ZOO_WAITING && !stopped(run)) {
        state = run->kernels->train(run->plan, &task, w, progress, &watch, scratch);
        if (state == WF_ZOO_WAITING) keep_network(t, i, w, progress);
    }
    size_t wrong;
    if (state != WF_ZOO_TRAINED || piece->scores == NULL) return state;
    if (!run->kernels->judge(run->plan, w, piece->errors + i * piece->error_bytes, &wrong, &watch,
                             scratch)) {
        keep_network(t, i, w, progress);
        return WF_ZOO_WAITING;
    }
    piece->scores[i] = (float)(1 - (double)wrong / (double)run->plan->test.n);
    return state;
}

static void train_network(void *run_, size_t i, int worker) {
    piece_run *run = run_;
    const wf_zoo_piece *piece = run->piece;
    if (piece->state[i] != WF_ZOO_WAITING || stopped(run)) return;
    void *w = (char *)piece->weights + i * run->row_bytes;
    char *moments = run->moments + 2 * (size_t)worker * run->row_bytes;
    wf_zoo_progress progress = {0, moments, moments + run->row_bytes};
    bool found = false;
    if (piece->resume != NULL && !piece->resume(piece->user, i, w, &progress, &found)) {
        run->stop = true;
        return;
    }
    if (piece->fresh && !found)
        wf_zoo_init(piece->graph, run->plan->desc->seed, piece->index[i], w);
    trainee *t = &run->trainees[worker];
    *t = (trainee){run, worker, clock_seconds()};
    wf_zoo_state state = train_to_end(t, i, w, &progress);
    if (state == WF_ZOO_WAITING) return;
    /* Stored last: a thread that sees the state sees the network too. */
    __atomic_store_n(&piece->state[i], (uint8_t)state, __ATOMIC_RELEASE);
    size_t done = atomic_fetch_add(&run->done, 1) + 1;
    if (worker == 0 && piece->meter != NULL)
        wf_meter_update(piece->meter, (double)(piece->done_before + done), NULL);
    tick(run, worker);
}

static wf_status run_on_cpu(wf_ctx *ctx, const wf_zoo_plan *plan, const wf_zoo_kernels *kernels,
                            const wf_zoo_piece *piece) {
    size_t workers = (size_t)wf_ctx_threads(ctx);
    piece_run run = {.ctx = ctx, .plan = plan, .kernels = kernels, .piece = piece};
    run.scratch_bytes = kernels->scratch_bytes(plan);
    run.row_bytes = plan->graph->n_params * kernels->real_size;
    wf_status status = wf_alloc(ctx, workers, run.scratch_bytes, "training", &run.scratch);
    if (status == WF_OK)
        status = wf_alloc_raw(ctx, 2 * workers, run.row_bytes, "training", &run.moments);
    if (status == WF_OK)
        status = wf_alloc(ctx, workers, sizeof *run.trainees, "training", &run.trainees);
    if (status == WF_OK) wf_parallel(ctx, piece->count, train_network, &run);
    free(run.trainees);
    free(run.moments);
    free(run.scratch);
    return status;
}

wf_status wf_zoo_piece_run(wf_ctx *ctx, const wf_zoo_plan *plan, const wf_zoo_kernels *kernels,
                           const wf_zoo_piece *piece) {
    bool cuda;
    WF_TRY(wf_use_cuda(ctx, &cuda));
    bool declined = piece->declined != NULL && *piece->declined;
    if (cuda && !declined && kernels->real_size == sizeof(float)) {
        wf_status status = wf_zoo_cuda_run(ctx, plan, piece);
        if (status != WF_ERR_UNSUPPORTED) return status;
        wf_warn(ctx, "%s; these networks are trained on the CPU", wf_last_error(ctx));
        if (piece->declined != NULL) *piece->declined = true;
    }
    WF_TRY(run_on_cpu(ctx, plan, kernels, piece));
    for (size_t i = 0; i < piece->count; i++)
        if (piece->state[i] == WF_ZOO_WAITING)
            return wf_fail(ctx, WF_ERR_INTERRUPTED, "training of networks was interrupted");
    if (piece->finished != NULL) piece->finished(piece->user, piece->count);
    return WF_OK;
}

/* --- from given weights, in memory ------------------------------------------------------------ */

static wf_status train_in_place(wf_ctx *ctx, const wf_graph *graph, const wf_zoo_plan *plan,
                                const wf_zoo_kernels *kernels, void *weights) {
    size_t count = plan->desc->count, diverged = 0;
    uint32_t *index = NULL;
    uint8_t *state = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, count, sizeof *index, "network indices", &index), done);
    WF_TRY_GOTO(wf_alloc(ctx, count, sizeof *state, "network states", &state), done);
    for (size_t i = 0; i < count; i++) index[i] = (uint32_t)(plan->desc->first + i);
    wf_meter meter = wf_meter_start(ctx, "training networks", "networks", (double)count);
    wf_zoo_piece piece = {.graph = graph,
                          .count = count,
                          .index = index,
                          .weights = weights,
                          .state = state,
                          .meter = &meter};
    status = wf_zoo_piece_run(ctx, plan, kernels, &piece);
    for (size_t i = 0; i < count; i++) diverged += state[i] == WF_ZOO_DIVERGED;
    wf_meter_end(&meter, (double)count, NULL);
    if (status == WF_OK && diverged > 0)
        status = wf_fail(ctx, WF_ERR_DIVERGED,
                         "%zu of %zu networks diverged: their weights are not finite; lower the "
                         "learning rate",
                         diverged, count);
done:
    free(state);
    free(index);
    return status;
}

wf_status wf_zoo_train_from(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                            const wf_zoo_desc *desc, float *weights) {
    wf_zoo_chain chain;
    wf_zoo_plan plan;
    WF_TRY(wf_zoo_plan_build(ctx, graph, data, desc, &chain, &plan));
    return train_in_place(ctx, graph, &plan, wf_zoo_kernels_pick(&plan), weights);
}

wf_status wf_zoo_train_from_f64(wf_ctx *ctx, const wf_graph *graph, const wf_dataset *data,
                                const wf_zoo_desc *desc, double *weights) {
    wf_zoo_chain chain;
    wf_zoo_plan plan;
    WF_TRY(wf_zoo_plan_build(ctx, graph, data, desc, &chain, &plan));
    size_t n = data->n_train * (size_t)data->inputs;
    double *x;
    WF_TRY(wf_alloc(ctx, n, sizeof *x, "training inputs", &x));
    for (size_t i = 0; i < n; i++) x[i] = data->x_train[i];
    plan.train.x = x;
    const wf_zoo_kernels *kernels =
        plan.chain != NULL ? &wf_zoo_kernels_base_f64 : &wf_net_kernels_base_f64;
    wf_status status = train_in_place(ctx, graph, &plan, kernels, weights);
    free(x);
    return status;
}
