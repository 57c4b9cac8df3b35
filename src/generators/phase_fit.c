#include "generators/phase_fit.h"

#include "base/c_locale.h"
#include "base/isa.h"
#include "base/random.h"
#include "flow/checkpoint.h"
#include "flow/fit_common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Noise of validation lies at addresses that no update has. */
static const uint64_t validation_stream = 0x76616C6964617465u;

/* What the loop of one phase holds. */
typedef struct wf_phase_loop {
    wf_phase *phase;
    wf_tape tape;
    wf_net net;
    wf_optim *optim;
    wf_schedule schedule;
    float *grad, *statistics; /* (list.total); (buffers.total) before the update */
    float *in[WF_PHASE_INPUTS];
    uint32_t *networks; /* [most] */
    size_t first;       /* updates of the phases before */
    size_t every;       /* updates between validations; 0: none */
    int judged;         /* networks of a validation's batches */
    double held_out, fitted;
    bool waits; /* the validation of this step was broken off and is made first */
} wf_phase_loop;

/* --- a phase ---------------------------------------------------------------------------------- */

wf_tensor *wf_phase_input(wf_net *net, int rows, int cols, const float *values) {
    wf_tape *tape = net->tape;
    if (net->declares) return wf_tape_view(tape, NULL, NULL, rows, cols);
    wf_tensor *x = wf_tape_blank(tape, rows, cols);
    for (int r = 0; x != NULL && r < rows; r++)
        for (int c = 0; c < cols; c++) {
            size_t to = (size_t)r * (size_t)x->ld + (size_t)c;
            float value = values[(size_t)r * (size_t)cols + (size_t)c];
            if (tape->size == sizeof(double)) ((double *)x->data)[to] = value;
            else ((float *)x->data)[to] = value;
        }
    return wf_tape_filled(tape, x);
}

static int make_inputs(wf_net *net, const wf_phase *phase, const void *model, int n,
                       float *const values[WF_PHASE_INPUTS], wf_tensor *out[WF_PHASE_INPUTS]) {
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int count = phase->shapes(model, n, shape);
    for (int i = 0; i < count; i++)
        out[i] =
            wf_phase_input(net, shape[i].rows, shape[i].cols, values == NULL ? NULL : values[i]);
    return count;
}

wf_status wf_phase_declare(wf_ctx *ctx, wf_phase *phase, const void *model) {
    wf_tape tape = {0};
    wf_net net;
    wf_tensor *in[WF_PHASE_INPUTS] = {0};
    wf_net_declare(&net, &tape, &phase->list);
    net.buffers = &phase->buffers;
    make_inputs(&net, phase, model, 2, NULL, in);
    phase->loss(&net, model, 2, in);
    bool failed = tape.failed || phase->list.failed || phase->buffers.failed;
    wf_tape_free(&tape);
    for (int i = 0; phase->decay_all && i < phase->list.count; i++)
        phase->list.tensors[i].decay = true;
    if (!failed) return WF_OK;
    return wf_fail(ctx, WF_ERR_MEMORY, "%s: no memory for the list of its parameters", phase->name);
}

void wf_phase_free(wf_phase *phase) {
    wf_params_free(&phase->list);
    wf_params_free(&phase->buffers);
    free(phase->weights);
    free(phase->ema);
    free(phase->statistics);
    phase->weights = phase->ema = phase->statistics = NULL;
}

static wf_status alloc_phase(wf_ctx *ctx, wf_phase *phase) {
    WF_TRY(
        wf_alloc(ctx, phase->list.total, sizeof(float), "a generator's weights", &phase->weights));
    return wf_alloc(ctx, phase->buffers.total, sizeof(float), "running statistics",
                    &phase->statistics);
}

void wf_phase_start(wf_ctx *ctx, wf_phase *phase, bool grad, wf_tape *tape, wf_net *net) {
    static const uint32_t no_update;
    const wf_dropout_key key = {.update = &no_update}; /* no phase has dropout */
    wf_tape_start(tape, wf_backend_cpu(WF_F32), WF_F32, grad);
    tape->ctx = ctx;
    tape->watched = ctx;
    const float *weights = !grad && phase->ema != NULL ? phase->ema : phase->weights;
    wf_net_start(net, tape, &phase->list, weights, grad ? &key : NULL);
    net->buffers = &phase->buffers;
    net->statistics = phase->statistics;
}

/* --- loading ---------------------------------------------------------------------------------- */

/* The settings of [train] that phases read; the others shape flows. */
static bool is_read(const char *key) {
    static const char *const keys[] = {
        "updates",   "batch",       "limit",        "set_aside",     "validations",
        "optimizer", "lr",          "muon_lr",      "muon_momentum", "weight_decay",
        "beta1",     "beta2",       "eps",          "clip",          "ema",
        "warmup",    "schedule",    "one_cycle",    "min_lr",        "schedule_updates",
        "seed",      "max_seconds", "save_seconds", "log_every"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}

static wf_status check_train(wf_ctx *ctx, const wf_generator_kind *kind, const wf_fit_desc *desc) {
    wf_fit_desc defaults = wf_fit_desc_default();
    WF_TRY(wf_fit_check(ctx, desc));
    char buffer[WF_SETTING_BUFFER];
    for (const wf_setting *row = wf_fit_settings(); row->key != NULL; row++)
        if (!is_read(row->key) && !wf_setting_equal(row, desc, &defaults))
            return wf_fail(ctx, WF_ERR_USAGE,
                           "train.%s is %s, but %s is no flow and does not read it; leave it out",
                           row->key, wf_setting_text(row, desc, buffer), kind->name);
    return WF_OK;
}

wf_status wf_phase_fit_load(wf_phase_fit *fit, wf_ctx *ctx, const wf_generator_kind *kind,
                            const wf_generator_fit_desc *desc) {
    fit->ctx = ctx, fit->kind = kind, fit->path = desc->path, fit->log = fit->resumed = -1;
    fit->desc = *desc->train;
    WF_TRY(check_train(ctx, kind, &fit->desc));
    wf_fit_desc *own = &fit->desc;
    if (!own->cosine && !own->one_cycle) own->schedule_updates = 0;
    else if (own->schedule_updates == 0) own->schedule_updates = own->updates;
    wf_fit_desc raw = *own; /* each generator has a normalisation of its own */
    raw.normalise = false;
    const wf_field no_field = {0};
    WF_TRY(wf_training_set_load(ctx, desc->sources, desc->n_sources, &no_field, &raw, &fit->set));
    WF_TRY(wf_config_put(ctx, &fit->config, kind->settings(), desc->options));
    WF_TRY(wf_config_put(ctx, &fit->config, wf_fit_settings(), own));
    return wf_checkpoint_sources(ctx, &fit->set, &fit->config);
}

/* Sum and sum of squares of a block's group: the block, or all blocks of its layer. */
static void add_group(const wf_graph *graph, const float *w, int block, bool by_layer, double *mean,
                      double *variance) {
    double sum = 0, squares = 0, n = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *other = &graph->blocks[b];
        if (by_layer ? other->layer != graph->blocks[block].layer : b != block) continue;
        for (size_t i = 0; i < other->count; i++) {
            double x = w[other->offset + i];
            sum += x, squares += x * x, n++;
        }
    }
    *mean = sum / n;
    *variance = fmax(0, squares / n - *mean * *mean);
}

wf_status wf_phase_norm(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t count,
                        bool by_layer, bool squares, wf_norm *out) {
    WF_TRY(wf_norm_create(ctx, graph->n_blocks, out));
    for (int b = 0; b < graph->n_blocks; b++) {
        double means = 0, spreads = 0;
        for (size_t k = 0; k < count; k++) {
            double mean, variance;
            add_group(graph, weights + k * graph->n_params, b, by_layer, &mean, &variance);
            means += mean;
            spreads += squares ? variance : sqrt(variance);
        }
        double spread = squares ? sqrt(spreads / (double)count) : spreads / (double)count;
        out->mean[b] = (float)(means / (double)count);
        out->std[b] = spread > 0 ? (float)spread : 1;
    }
    return WF_OK;
}

void wf_phase_fit_norm(wf_phase_fit *fit, const wf_norm *norm) {
    size_t n = (size_t)norm->n;
    fit->extra[fit->n_extra++] = (wf_phase_extra){"norm.mean", n, 0, norm->mean};
    fit->extra[fit->n_extra++] = (wf_phase_extra){"norm.std", n, 0, norm->std};
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static const char *part_name(char out[WF_TENSOR_NAME], const wf_phase *phase, const char *part) {
    snprintf(out, WF_TENSOR_NAME, "%s.%s", phase->name, part);
    return out;
}

/* Weights of the phases up to the one that it is in; of that one the optimiser's state too. */
static void list_phases(const wf_phase_fit *fit, wf_tensor_list *list) {
    char name[WF_TENSOR_NAME];
    for (int i = 0; i <= fit->at; i++) {
        const wf_phase *s = &fit->phases[i];
        const wf_field_tensor *tensors = s->list.tensors;
        wf_tensor_list_params(list, part_name(name, s, "weights"), tensors, s->list.count,
                              s->weights);
        if (s->ema != NULL)
            wf_tensor_list_params(list, part_name(name, s, "ema"), tensors, s->list.count, s->ema);
        wf_tensor_list_params(list, part_name(name, s, "buffers"), s->buffers.tensors,
                              s->buffers.count, s->statistics);
    }
    const wf_phase *last = &fit->phases[fit->at];
    wf_optim *optim = fit->loop->optim;
    wf_tensor_list_add(list, part_name(name, last, "optim.first"), last->list.total, 0,
                       wf_optim_first(optim));
    wf_tensor_list_add(list, part_name(name, last, "optim.second"), last->list.total, 0,
                       wf_optim_second(optim));
    for (int i = 0; i < fit->n_extra; i++)
        wf_tensor_list_add(list, fit->extra[i].name, fit->extra[i].rows, fit->extra[i].cols,
                           fit->extra[i].data);
}

static wf_status put_state(const wf_phase_fit *fit, wf_meta *meta) {
    wf_ctx *ctx = fit->ctx;
    WF_TRY(wf_meta_add(ctx, meta, "weft.kind", "generator"));
    WF_TRY(wf_meta_add(ctx, meta, "weft.generator", "%s", fit->kind->name));
    WF_TRY(wf_meta_add(ctx, meta, "weft.version", "%s", WF_VERSION));
    WF_TRY(wf_meta_add(ctx, meta, "isa", "%s", wf_isa_name(wf_isa())));
    WF_TRY(wf_meta_add(ctx, meta, "phase", "%d", fit->at));
    WF_TRY(wf_meta_add(ctx, meta, "step", "%zu", fit->step));
    WF_TRY(wf_meta_add(ctx, meta, "seconds", "%.17g", fit->seconds));
    WF_TRY(wf_meta_add(ctx, meta, "phase.seconds", "%.17g", fit->phase_seconds));
    WF_TRY(wf_meta_add(ctx, meta, "window.loss", "%.17g", fit->window_loss));
    WF_TRY(wf_meta_add(ctx, meta, "window.updates", "%zu", fit->window_count));
    if (fit->loop->waits) WF_TRY(wf_meta_add(ctx, meta, "validation.waits", "yes"));
    return wf_meta_add_graph(ctx, meta, 0, fit->set.families[0].graph);
}

static wf_status diverged(const wf_phase_fit *fit, const char *what, double value) {
    const wf_phase *phase = &fit->phases[fit->at];
    return wf_fail(
        fit->ctx, WF_ERR_DIVERGED,
        "%s: %s diverged at update %zu: the %s is %g; %s. Lower its rate (%g), set clip, "
        "or lengthen warmup, and start anew at another path",
        fit->path, phase->doing, fit->step + 1, what, value,
        fit->saved ? "the last checkpoint is kept" : "no checkpoint had been written yet",
        phase->lr);
}

/* Invariant P3. */
static wf_status check_arrays(const wf_phase_fit *fit) {
    const wf_phase *s = &fit->phases[fit->at];
    size_t n = s->list.total;
    const wf_phase_loop *loop = fit->loop;
    if (wf_all_finite(s->weights, n) && wf_all_finite(s->ema, n) &&
        wf_all_finite(s->statistics, s->buffers.total) &&
        wf_all_finite(wf_optim_first(loop->optim), n) &&
        wf_all_finite(wf_optim_second(loop->optim), n))
        return WF_OK;
    return diverged(fit, "largest weight or moment", INFINITY);
}

wf_status wf_phase_fit_save(wf_phase_fit *fit) {
    wf_ctx *ctx = fit->ctx;
    WF_TRY(check_arrays(fit));
    if (fit->log >= 0 && fsync(fit->log) != 0)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s.log.jsonl", fit->path);
    size_t room = 2 + (size_t)fit->n_extra;
    for (int i = 0; i < fit->n_phases; i++)
        room += 2 * (size_t)fit->phases[i].list.count + (size_t)fit->phases[i].buffers.count;
    wf_tensor_list list;
    wf_meta run = {0};
    wf_status status;
    WF_TRY_GOTO(wf_tensor_list_create(ctx, room, &list), done);
    list_phases(fit, &list);
    WF_TRY_GOTO(put_state(fit, &run), done);
    WF_TRY_GOTO(wf_tensor_list_write(ctx, fit->path, &list, &fit->config, &run), done);
    fit->saved = true;
done:
    wf_meta_free(&run);
    wf_tensor_list_free(&list);
    return status;
}

static wf_status read_weights(wf_ctx *ctx, const char *path, const wf_st_file *file,
                              const wf_phase *s, const char *part, float *out) {
    char name[WF_TENSOR_NAME];
    return wf_file_params(ctx, path, file, part_name(name, s, part), s->list.tensors, s->list.count,
                          out);
}

static wf_status read_statistics(wf_ctx *ctx, const char *path, const wf_st_file *file,
                                 const wf_phase *s) {
    char name[WF_TENSOR_NAME];
    return wf_file_params(ctx, path, file, part_name(name, s, "buffers"), s->buffers.tensors,
                          s->buffers.count, s->statistics);
}

static wf_status read_state(wf_phase_fit *fit, const wf_st_file *file) {
    wf_ctx *ctx = fit->ctx;
    double at, step, window;
    WF_TRY(wf_file_number(ctx, fit->path, file, "phase", 0, fit->n_phases - 1, &at));
    WF_TRY(wf_file_number(ctx, fit->path, file, "step", 0, 4294967295.0, &step));
    WF_TRY(wf_file_number(ctx, fit->path, file, "seconds", 0, 1e12, &fit->seconds));
    WF_TRY(wf_file_number(ctx, fit->path, file, "phase.seconds", 0, 1e12, &fit->phase_seconds));
    WF_TRY(wf_file_number(ctx, fit->path, file, "window.loss", 0, 1e300, &fit->window_loss));
    WF_TRY(wf_file_number(ctx, fit->path, file, "window.updates", 0, 4294967295.0, &window));
    fit->at = (int)at, fit->step = (size_t)step, fit->window_count = (size_t)window;
    return WF_OK;
}

static wf_status check_generator(wf_ctx *ctx, const char *path, const wf_st_file *file,
                                 const wf_generator_kind *kind) {
    const char *name = wf_st_meta(file, "weft.generator");
    if (name != NULL && strcmp(name, kind->name) == 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE,
                   "%s: made by the generator %.40s, this run's is %s; use another path, or "
                   "remove it",
                   path, name == NULL ? "(none)" : name, kind->name);
}

/* Everything but the optimiser's state, which waits for its phase. */
static wf_status resume(wf_phase_fit *fit) {
    wf_ctx *ctx = fit->ctx;
    wf_st_file *file;
    wf_status status;
    WF_TRY(wf_st_open(ctx, fit->path, &file));
    WF_TRY_GOTO(wf_st_verify(ctx, file, NULL), done);
    WF_TRY_GOTO(check_generator(ctx, fit->path, file, fit->kind), done);
    WF_TRY_GOTO(wf_config_compare(ctx, fit->path, file, &fit->config), done);
    WF_TRY_GOTO(read_state(fit, file), done);
    for (int i = 0; i <= fit->at; i++) {
        WF_TRY_GOTO(
            read_weights(ctx, fit->path, file, &fit->phases[i], "weights", fit->phases[i].weights),
            done);
        WF_TRY_GOTO(read_statistics(ctx, fit->path, file, &fit->phases[i]), done);
    }
    const char *isa = wf_st_meta(file, "isa");
    if (isa != NULL && strcmp(isa, wf_isa_name(wf_isa())) != 0)
        wf_warn(ctx, "%s: begun with %s kernels and continued with %s: not bit for bit", fit->path,
                isa, wf_isa_name(wf_isa()));
    fit->saved = true;
    fit->resumed = fit->at;
done:
    wf_st_close(file);
    return status;
}

wf_status wf_phase_fit_open(wf_phase_fit *fit, const void *model) {
    fit->model = model;
    for (int i = 0; i < fit->n_phases; i++) {
        wf_phase *s = &fit->phases[i];
        WF_TRY(alloc_phase(fit->ctx, s));
        wf_params_init(s->list.tensors, s->list.count, WF_F32, s->seed, s->weights);
        wf_params_init(s->buffers.tensors, s->buffers.count, WF_F32, s->seed, s->statistics);
    }
    return wf_file_exists(fit->path) ? resume(fit) : WF_OK;
}

/* --- the loop of a phase ---------------------------------------------------------------------- */

static size_t updates_before(const wf_phase_fit *fit, int index) {
    size_t sum = 0;
    for (int i = 0; i < index; i++) sum += fit->phases[i].updates;
    return sum;
}

/* All validations together take about a percent of the forward passes, but each has 16 networks. */
static void plan_validation(const wf_phase_fit *fit, wf_phase_loop *loop) {
    const wf_family *family = &fit->set.families[0];
    size_t updates = loop->phase->updates, times = fit->desc.validations;
    if (family->held_out == 0 || times == 0) return;
    loop->every = updates > times ? updates / times : 1;
    double fitting = 0.01 * 3 * (double)updates * (double)fit->desc.batch / (2 * (double)times);
    double most = fmin(fmin(512, (double)family->held_out), (double)family->count);
    loop->judged = (int)fmin(most, fmax(16, fitting));
}

static wf_status read_optimiser(wf_phase_fit *fit, wf_phase_loop *loop) {
    wf_phase *s = loop->phase;
    char name[WF_TENSOR_NAME];
    wf_st_file *file;
    wf_status status;
    size_t n = s->list.total;
    WF_TRY(wf_st_open(fit->ctx, fit->path, &file));
    loop->waits = wf_st_meta(file, "validation.waits") != NULL;
    WF_TRY_GOTO(wf_file_tensor(fit->ctx, fit->path, file, part_name(name, s, "optim.first"), n,
                               wf_optim_first(loop->optim)),
                done);
    WF_TRY_GOTO(wf_file_tensor(fit->ctx, fit->path, file, part_name(name, s, "optim.second"), n,
                               wf_optim_second(loop->optim)),
                done);
    if (s->ema != NULL) status = read_weights(fit->ctx, fit->path, file, s, "ema", s->ema);
done:
    wf_st_close(file);
    return status;
}

static void loop_free(wf_phase_loop *loop) {
    if (loop == NULL) return;
    wf_tape_free(&loop->tape);
    wf_optim_free(loop->optim);
    for (int i = 0; i < WF_PHASE_INPUTS; i++) free(loop->in[i]);
    free(loop->grad);
    free(loop->statistics);
    free(loop->networks);
    free(loop);
}

/* The EMA lives in the phase, so that files and samplers find it there. */
static wf_status loop_create(wf_phase_fit *fit, int index) {
    wf_ctx *ctx = fit->ctx;
    wf_phase *s = &fit->phases[index];
    wf_phase_loop *loop;
    WF_TRY(wf_alloc(ctx, 1, sizeof *loop, "a phase", &loop));
    fit->loop = loop;
    loop->phase = s, loop->held_out = loop->fitted = NAN;
    loop->first = updates_before(fit, index);
    plan_validation(fit, loop);
    size_t params = s->list.total, batch = fit->desc.batch;
    int most = loop->judged > (int)batch ? loop->judged : (int)batch;
    wf_optim_desc optim = wf_fit_optim_desc(&fit->desc, s->lr);
    WF_TRY(wf_fit_optim_create(ctx, &optim, s->list.tensors, s->list.count, params, &loop->optim));
    bool last = index == fit->n_phases - 1;
    loop->schedule =
        wf_fit_schedule(&fit->desc, s->lr, last ? fit->desc.schedule_updates : s->updates);
    WF_TRY(wf_alloc(ctx, params, sizeof(float), "gradient", &loop->grad));
    WF_TRY(wf_alloc(ctx, s->buffers.total, sizeof(float), "statistics", &loop->statistics));
    WF_TRY(wf_alloc(ctx, (size_t)most, sizeof(uint32_t), "batch", &loop->networks));
    wf_phase_shape shape[WF_PHASE_INPUTS];
    int inputs = s->shapes(fit->model, most, shape);
    for (int i = 0; i < inputs; i++)
        WF_TRY(wf_alloc(ctx, (size_t)shape[i].rows * (size_t)shape[i].cols, sizeof(float), "batch",
                        &loop->in[i]));
    if (fit->desc.ema > 0) {
        WF_TRY(wf_alloc(ctx, params, sizeof(float), "averaged weights", &s->ema));
        memcpy(s->ema, s->weights, params * sizeof(float));
    }
    if (fit->resumed == index) WF_TRY(read_optimiser(fit, loop));
    if (s->ema != NULL) memcpy(wf_optim_ema(loop->optim), s->ema, params * sizeof(float));
    return WF_OK;
}

static double weighted(const wf_phase_loss *loss) {
    double sum = 0;
    for (int i = 0; i < 2; i++)
        if (loss->term[i] != NULL) sum += loss->weight[i] * (double)*(float *)loss->term[i]->data;
    return sum;
}

/* Loss of a batch; with grad also its gradient, and statistics move. */
static wf_status evaluate(wf_phase_fit *fit, const wf_phase_batch *batch, bool grad, double *out) {
    wf_phase_loop *loop = fit->loop;
    wf_tensor *in[WF_PHASE_INPUTS] = {0};
    loop->phase->fill(fit->model, batch, loop->in);
    wf_phase_start(fit->ctx, loop->phase, grad, &loop->tape, &loop->net);
    make_inputs(&loop->net, loop->phase, fit->model, batch->n, loop->in, in);
    wf_phase_loss loss = {0};
    if (!loop->tape.failed) loss = loop->phase->loss(&loop->net, fit->model, batch->n, in);
    for (int i = 0; grad && i < 2 && !loop->tape.failed; i++)
        if (loss.term[i] != NULL) {
            float *weight = wf_tape_grad(&loop->tape, loss.term[i]);
            if (weight != NULL) *weight = (float)loss.weight[i];
        }
    bool done = !loop->tape.failed && (!grad || wf_net_backward(&loop->net, loop->grad));
    if (wf_interrupted(fit->ctx)) return WF_ERR_INTERRUPTED;
    if (!done)
        return wf_fail(fit->ctx, WF_ERR_MEMORY,
                       "%s: no memory for the activations of the batch; use smaller batches or a "
                       "smaller network",
                       loop->phase->name);
    *out = weighted(&loss);
    return WF_OK;
}

static double phase_seconds(const wf_phase_fit *fit, double started) {
    return fit->phase_seconds + wf_seconds() - started;
}

static wf_status write_line(wf_phase_fit *fit, const char *text) {
    char line[320];
    const wf_phase_loop *loop = fit->loop;
    if (fit->log < 0) return WF_OK;
    int length = snprintf(line, sizeof line, "{\"update\":%zu,\"phase\":\"%s\",%s}\n",
                          loop->first + fit->step, loop->phase->name, text);
    return wf_fit_log_append(fit->ctx, fit->path, fit->log, line, (size_t)length);
}

static wf_status log_update(wf_phase_fit *fit, double norm, double factor, double seconds) {
    char text[200];
    locale_t before = wf_c_locale_enter();
    snprintf(text, sizeof text, "\"loss\":%.9g,\"grad_norm\":%.6g,\"lr\":%.9g,\"seconds\":%.3f",
             fit->window_loss / (double)fit->window_count, norm, fit->loop->phase->lr * factor,
             seconds);
    wf_c_locale_leave(before);
    fit->window_loss = 0;
    fit->window_count = 0;
    return write_line(fit, text);
}

static wf_status update(wf_phase_fit *fit, double started, double *loss) {
    wf_phase_loop *loop = fit->loop;
    wf_phase *s = loop->phase;
    const wf_fit_desc *desc = &fit->desc;
    size_t number = loop->first + fit->step, bytes = s->buffers.total * sizeof(float);
    uint32_t count = (uint32_t)fit->set.families[0].count, places = (uint32_t)desc->batch;
    for (uint32_t b = 0; b < places; b++)
        loop->networks[b] = wf_epoch_network(desc->seed, count, places, (uint32_t)number, b);
    wf_phase_batch batch = {loop->networks, (int)places, desc->seed, (uint32_t)number};
    memcpy(loop->statistics, s->statistics, bytes);
    wf_status status = evaluate(fit, &batch, true, loss);
    if (status != WF_OK) memcpy(s->statistics, loop->statistics, bytes); /* invariant P2 */
    WF_TRY(status);
    if (!isfinite(*loss)) return diverged(fit, "loss", *loss);
    double norm = wf_optim_norm(fit->ctx, loop->optim, loop->grad);
    if (!isfinite(norm)) return diverged(fit, "gradient's norm", norm);
    double factor = wf_schedule_factor(&loop->schedule, fit->step);
    wf_optim_step(fit->ctx, loop->optim, fit->step, factor, norm, loop->grad, s->weights);
    fit->step++;
    fit->window_loss += *loss;
    fit->window_count++;
    if (desc->log_every > 0 && (fit->step == s->updates || fit->step % desc->log_every == 0))
        return log_update(fit, norm, factor, fit->seconds + wf_seconds() - started);
    return WF_OK;
}

/* Losses on held-out and on fitted networks, both with the weights that would sample. */
static wf_status validate(wf_phase_fit *fit) {
    wf_phase_loop *loop = fit->loop;
    const wf_family *family = &fit->set.families[0];
    double *losses[] = {&loop->held_out, &loop->fitted};
    loop->waits = true;
    if (loop->phase->ema != NULL)
        memcpy(loop->phase->ema, wf_optim_ema(loop->optim),
               loop->phase->list.total * sizeof(float));
    for (int which = 0; which < 2; which++) {
        size_t first = which == 0 ? family->count : 0;
        for (int i = 0; i < loop->judged; i++) loop->networks[i] = (uint32_t)(first + (size_t)i);
        wf_phase_batch batch = {loop->networks, loop->judged, fit->desc.seed ^ validation_stream,
                                0};
        WF_TRY(evaluate(fit, &batch, false, losses[which]));
    }
    loop->waits = false;
    char text[96];
    locale_t before = wf_c_locale_enter();
    snprintf(text, sizeof text, "\"validation\":%.9g,\"fitted\":%.9g", loop->held_out,
             loop->fitted);
    wf_c_locale_leave(before);
    return write_line(fit, text);
}

static wf_status save(wf_phase_fit *fit, double *started) {
    wf_phase *s = fit->loop->phase;
    double now = wf_seconds();
    fit->seconds += now - *started;
    fit->phase_seconds += now - *started;
    *started = now;
    if (s->ema != NULL)
        memcpy(s->ema, wf_optim_ema(fit->loop->optim), s->list.total * sizeof(float));
    return wf_phase_fit_save(fit);
}

static void show(const wf_phase_fit *fit, wf_meter *meter, double smooth, bool end) {
    char text[80];
    int length = snprintf(text, sizeof text, "loss %.4f", smooth);
    if (!isnan(fit->loop->held_out))
        snprintf(text + length, sizeof text - (size_t)length, ", held-out %.4f",
                 fit->loop->held_out);
    if (end) wf_meter_end(meter, (double)fit->step, "%s", text);
    else wf_meter_update(meter, (double)fit->step, "%s", text);
}

/* Is this phase's share of max_seconds over? It makes one update at least. */
static bool is_late(const wf_phase_fit *fit, double started) {
    double most = fit->desc.max_seconds / fit->n_phases;
    return most > 0 && fit->step > 0 && phase_seconds(fit, started) >= most;
}

static wf_status make_updates(wf_phase_fit *fit, double *started) {
    const wf_phase_loop *loop = fit->loop;
    size_t updates = loop->phase->updates;
    wf_meter meter = wf_meter_start(fit->ctx, loop->phase->doing, "updates", (double)updates);
    double loss = NAN, smooth = NAN, last_save = *started;
    if (loop->waits) WF_TRY(validate(fit));
    while (fit->step < updates && !is_late(fit, *started)) {
        if (wf_interrupted(fit->ctx)) return WF_ERR_INTERRUPTED;
        WF_TRY(update(fit, *started, &loss));
        smooth = isnan(smooth) ? loss : 0.98 * smooth + 0.02 * loss;
        if (loop->every > 0 && (fit->step % loop->every == 0 || fit->step == updates))
            WF_TRY(validate(fit));
        show(fit, &meter, smooth, false);
        if (wf_seconds() - last_save < fit->desc.save_seconds) continue;
        WF_TRY(save(fit, started));
        last_save = wf_seconds();
    }
    show(fit, &meter, smooth, true);
    return WF_OK;
}

static wf_status train(wf_phase_fit *fit) {
    const wf_phase *s = fit->loop->phase;
    double started = wf_seconds();
    wf_status status = make_updates(fit, &started);
    if (status != WF_OK && status != WF_ERR_INTERRUPTED) return status;
    if (status == WF_OK && fit->step < s->updates)
        wf_warn(fit->ctx, "%s: max_seconds is over: %s ends at update %zu of %zu", fit->path,
                s->doing, fit->step, s->updates);
    WF_TRY(save(fit, &started));
    if (status == WF_OK) return WF_OK;
    return wf_fail(fit->ctx, WF_ERR_INTERRUPTED,
                   "%s: interrupted in %s after update %zu; the checkpoint is saved", fit->path,
                   s->doing, fit->step);
}

/* Behind a phase its weights are those that sample, and the next one begins. */
static void end_phase(wf_phase_fit *fit) {
    wf_phase *s = fit->loop->phase;
    if (s->ema != NULL) memcpy(s->weights, s->ema, s->list.total * sizeof(float));
    free(s->ema);
    s->ema = NULL;
    fit->at++;
    fit->step = fit->window_count = 0;
    fit->window_loss = fit->phase_seconds = 0;
}

wf_status wf_phase_fit_run(wf_phase_fit *fit, int index) {
    if (fit->at > index) return WF_OK;
    loop_free(fit->loop);
    fit->loop = NULL;
    WF_TRY(loop_create(fit, index));
    bool done = fit->step >= fit->loop->phase->updates && !fit->loop->waits;
    if (!done && fit->log < 0 && fit->desc.log_every > 0)
        WF_TRY(wf_fit_log_open(fit->ctx, fit->path, fit->loop->first + fit->step, &fit->log));
    if (!done) WF_TRY(train(fit));
    if (index < fit->n_phases - 1) end_phase(fit);
    return WF_OK;
}

bool wf_phase_fit_done(const wf_phase_fit *fit) {
    int last = fit->n_phases - 1;
    return fit->at == last && fit->step >= fit->phases[last].updates;
}

void wf_phase_fit_free(wf_phase_fit *fit) {
    if (fit->log >= 0 && fit->ctx != NULL) close(fit->log);
    loop_free(fit->loop);
    for (int i = 0; i < fit->n_phases; i++) wf_phase_free(&fit->phases[i]);
    wf_training_set_free(&fit->set);
    wf_meta_free(&fit->config);
}

/* --- a file to sample from -------------------------------------------------------------------- */

wf_status wf_phase_file_open(wf_ctx *ctx, const char *path, const wf_generator_kind *kind,
                             void *options, wf_phase_file *out) {
    *out = (wf_phase_file){.path = path};
    WF_TRY(wf_st_open(ctx, path, &out->file));
    WF_TRY(wf_st_verify(ctx, out->file, NULL));
    WF_TRY(check_generator(ctx, path, out->file, kind));
    WF_TRY(wf_config_get(ctx, path, out->file, kind->settings(), options));
    return wf_file_graph(ctx, path, out->file, 0, &out->graph);
}

wf_status wf_phase_file_read(wf_ctx *ctx, const wf_phase_file *file, wf_phase *phases, int n) {
    double at;
    WF_TRY(wf_file_number(ctx, file->path, file->file, "phase", 0, n - 1, &at));
    if ((int)at < n - 1)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: its fit broke off in the phase %s; the same command goes on with it",
                       file->path, phases[(int)at].name);
    for (int i = 0; i < n; i++) {
        wf_phase *s = &phases[i];
        char name[WF_TENSOR_NAME];
        /* A file may lie about widths: what it stores is compared before memory is taken. */
        for (int k = 0; k < s->list.count; k++) {
            const wf_field_tensor *t = &s->list.tensors[k];
            snprintf(name, sizeof name, "%s.weights.%s", s->name, t->name);
            WF_TRY(wf_file_check_tensor(ctx, file->path, file->file, name,
                                        (size_t)t->rows * (size_t)t->cols));
        }
        WF_TRY(alloc_phase(ctx, s));
        snprintf(name, sizeof name, "%s.ema.%s", s->name, s->list.tensors[0].name);
        bool ema = wf_st_find(file->file, name) != NULL;
        WF_TRY(read_weights(ctx, file->path, file->file, s, ema ? "ema" : "weights", s->weights));
        WF_TRY(read_statistics(ctx, file->path, file->file, s));
    }
    return WF_OK;
}

wf_status wf_phase_file_norm(wf_ctx *ctx, const wf_phase_file *file, wf_norm *out) {
    size_t n = (size_t)file->graph->n_blocks;
    WF_TRY(wf_norm_create(ctx, (int)n, out));
    WF_TRY(wf_file_tensor(ctx, file->path, file->file, "norm.mean", n, out->mean));
    WF_TRY(wf_file_tensor(ctx, file->path, file->file, "norm.std", n, out->std));
    return wf_file_positive(ctx, file->path, "norm.std", "deviation", out->std, n);
}

void wf_phase_file_close(wf_phase_file *file) {
    wf_st_close(file->file);
    wf_graph_free(file->graph);
    *file = (wf_phase_file){0};
}
