#include "generators/phase_loop.h"

#include "base/isa.h"
#include "base/random.h"
#include "flow/checkpoint.h"
#include "flow/fit_common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        "seed",      "max_seconds", "save_seconds", "log_every",     "precision"};
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
    WF_TRY(wf_use_cuda(ctx, &fit->on_gpu));
    WF_TRY(wf_choose_precision(ctx, own->precision, fit->on_gpu, true, &fit->fast));
    fit->kernels = !fit->on_gpu ? wf_isa_name(wf_isa()) : fit->fast ? "cuda bf16" : "cuda fp32";
    if (!own->cosine && !own->one_cycle) own->schedule_updates = 0;
    else if (own->schedule_updates == 0) own->schedule_updates = own->updates;
    wf_fit_desc raw = *own; /* each generator has a normalisation of its own */
    raw.normalise = false;
    const wf_field no_field = {0};
    WF_TRY(wf_training_set_load(ctx, desc->sources, desc->n_sources, &no_field, &raw, &fit->set));
    WF_TRY(wf_training_set_keep(ctx, &fit->set));
    WF_TRY(wf_config_put(ctx, &fit->config, kind->settings(), desc->options));
    WF_TRY(wf_config_put(ctx, &fit->config, wf_fit_settings(), own));
    return wf_checkpoint_sources(ctx, &fit->set, &fit->config);
}

/* In one network, over a block or over all blocks of its layer. */
static void measure_group(const wf_graph *graph, const float *w, int block, bool by_layer,
                          double *mean, double *variance) {
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

wf_status wf_phase_fit_normalise(wf_phase_fit *fit, bool by_layer, bool squares, wf_norm *out) {
    const wf_family *family = &fit->set.families[0];
    const wf_graph *graph = family->graph;
    size_t count = family->count, each = graph->n_params;
    WF_TRY(wf_norm_create(fit->ctx, graph->n_blocks, out));
    for (int b = 0; b < graph->n_blocks; b++) {
        double means = 0, spreads = 0;
        for (size_t k = 0; k < count; k++) {
            double mean, variance;
            measure_group(graph, family->weights + k * each, b, by_layer, &mean, &variance);
            means += mean;
            spreads += squares ? variance : sqrt(variance);
        }
        double spread = squares ? sqrt(spreads / (double)count) : spreads / (double)count;
        out->mean[b] = (float)(means / (double)count);
        out->std[b] = spread > 0 ? (float)spread : 1;
    }
    for (size_t k = 0; k < count + family->held_out; k++)
        wf_norm_apply(out, graph, family->weights + k * each, family->weights + k * each);
    size_t n = (size_t)out->n;
    fit->extra[fit->n_extra++] = (wf_phase_extra){"norm.mean", n, 0, out->mean};
    fit->extra[fit->n_extra++] = (wf_phase_extra){"norm.std", n, 0, out->std};
    return WF_OK;
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static const char *part_name(char out[WF_TENSOR_NAME], const wf_phase *phase, const char *part) {
    snprintf(out, WF_TENSOR_NAME, "%s.%s", phase->name, part);
    return out;
}

/* Weights of the phases up to the one that it is in; of that one the optimiser's state too. */
static void list_phases(const wf_phase_fit *fit, wf_tensor_list *list) {
    char name[WF_TENSOR_NAME];
    for (int i = 0; i <= fit->state.at; i++) {
        const wf_phase *s = &fit->phases[i];
        const wf_field_tensor *tensors = s->list.tensors;
        wf_tensor_list_params(list, part_name(name, s, "weights"), tensors, s->list.count,
                              s->weights);
        if (s->ema != NULL)
            wf_tensor_list_params(list, part_name(name, s, "ema"), tensors, s->list.count, s->ema);
        wf_tensor_list_params(list, part_name(name, s, "buffers"), s->buffers.tensors,
                              s->buffers.count, s->statistics);
    }
    const wf_phase *last = &fit->phases[fit->state.at];
    wf_optim *optim = fit->loop->optim;
    wf_tensor_list_add(list, part_name(name, last, "optim.first"), last->list.total, 0,
                       wf_optim_first(optim));
    wf_tensor_list_add(list, part_name(name, last, "optim.second"), last->list.total, 0,
                       wf_optim_second(optim));
    for (int i = 0; i < fit->n_extra; i++)
        wf_tensor_list_add(list, fit->extra[i].name, fit->extra[i].rows, fit->extra[i].cols,
                           fit->extra[i].data);
}

static wf_status put_state(const wf_phase_fit *fit, wf_ctx *ctx, const wf_phase_state *state,
                           wf_meta *meta) {
    WF_TRY(wf_meta_add(ctx, meta, "weft.kind", "generator"));
    WF_TRY(wf_meta_add(ctx, meta, "weft.generator", "%s", fit->kind->name));
    WF_TRY(wf_meta_add(ctx, meta, "weft.version", "%s", WF_VERSION));
    WF_TRY(wf_meta_add(ctx, meta, "isa", "%s", fit->kernels));
    WF_TRY(wf_meta_add(ctx, meta, "phase", "%d", state->at));
    WF_TRY(wf_meta_add(ctx, meta, "step", "%zu", state->made));
    WF_TRY(wf_meta_add(ctx, meta, "seconds", "%.17g", state->seconds));
    WF_TRY(wf_meta_add(ctx, meta, "phase.seconds", "%.17g", state->phase_seconds));
    WF_TRY(wf_meta_add(ctx, meta, "window.loss", "%.17g", state->window_loss));
    WF_TRY(wf_meta_add(ctx, meta, "window.updates", "%zu", state->window_count));
    if (state->waits) WF_TRY(wf_meta_add(ctx, meta, "validation.waits", "yes"));
    return wf_meta_add_graph(ctx, meta, 0, fit->set.families[0].graph);
}

wf_status wf__phase_diverged(const wf_phase_fit *fit, wf_ctx *ctx, size_t update, const char *what,
                             double value) {
    const wf_phase *phase = fit->loop->phase;
    return wf_fail(
        ctx, WF_ERR_DIVERGED,
        "%s: %s diverged at update %zu: the %s is %g; %s. Lower its rate (%g), set clip, "
        "or lengthen warmup, and start anew at another path",
        fit->path, phase->doing, update, what, value,
        fit->saved ? "the last checkpoint is kept" : "no checkpoint had been written yet",
        phase->lr);
}

/* Invariant P3. */
static wf_status check_arrays(const wf_phase_fit *fit, wf_ctx *ctx, size_t update) {
    const wf_phase *s = fit->loop->phase;
    size_t n = s->list.total;
    const wf_phase_loop *loop = fit->loop;
    if (wf_all_finite(s->weights, n) && wf_all_finite(s->ema, n) &&
        wf_all_finite(s->statistics, s->buffers.total) &&
        wf_all_finite(wf_optim_first(loop->optim), n) &&
        wf_all_finite(wf_optim_second(loop->optim), n))
        return WF_OK;
    return wf__phase_diverged(fit, ctx, update, "largest weight or moment", INFINITY);
}

wf_status wf__phase_store(const wf_phase_fit *fit, wf_ctx *ctx, const wf_phase_state *state) {
    WF_TRY(check_arrays(fit, ctx, state->made));
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
    WF_TRY_GOTO(put_state(fit, ctx, state, &run), done);
    status = wf_tensor_list_write(ctx, fit->path, &list, &fit->config, &run);
done:
    wf_meta_free(&run);
    wf_tensor_list_free(&list);
    return status;
}

wf_status wf_phase_fit_save(wf_phase_fit *fit) {
    WF_TRY(wf__phase_store(fit, fit->ctx, &fit->state));
    fit->saved = true;
    return WF_OK;
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
    wf_phase_state *state = &fit->state;
    double at, made, window;
    WF_TRY(wf_file_number(ctx, fit->path, file, "phase", 0, fit->n_phases - 1, &at));
    WF_TRY(wf_file_number(ctx, fit->path, file, "step", 0, 4294967295.0, &made));
    WF_TRY(wf_file_number(ctx, fit->path, file, "seconds", 0, 1e12, &state->seconds));
    WF_TRY(wf_file_number(ctx, fit->path, file, "phase.seconds", 0, 1e12, &state->phase_seconds));
    WF_TRY(wf_file_number(ctx, fit->path, file, "window.loss", 0, 1e300, &state->window_loss));
    WF_TRY(wf_file_number(ctx, fit->path, file, "window.updates", 0, 4294967295.0, &window));
    state->at = (int)at, state->made = (size_t)made, state->window_count = (size_t)window;
    return WF_OK;
}

/* Everything but the optimiser's state, which waits for its phase. */
static wf_status resume(wf_phase_fit *fit) {
    wf_ctx *ctx = fit->ctx;
    wf_st_file *file;
    wf_status status;
    WF_TRY(wf_st_open(ctx, fit->path, &file));
    WF_TRY_GOTO(wf_st_verify(ctx, file, NULL), done);
    WF_TRY_GOTO(wf_file_check_generator(ctx, fit->path, file, fit->kind->name, "(none)"), done);
    WF_TRY_GOTO(wf_config_compare(ctx, fit->path, file, &fit->config), done);
    WF_TRY_GOTO(read_state(fit, file), done);
    for (int i = 0; i <= fit->state.at; i++) {
        WF_TRY_GOTO(
            read_weights(ctx, fit->path, file, &fit->phases[i], "weights", fit->phases[i].weights),
            done);
        WF_TRY_GOTO(read_statistics(ctx, fit->path, file, &fit->phases[i]), done);
    }
    const char *isa = wf_st_meta(file, "isa");
    if (isa != NULL && strcmp(isa, fit->kernels) != 0)
        wf_warn(ctx, "%s: begun with %s kernels and continued with %s: not bit for bit", fit->path,
                isa, fit->kernels);
    fit->saved = true;
    fit->resumed = fit->state.at;
done:
    wf_st_close(file);
    return status;
}

wf_status wf__phase_read_optimiser(wf_phase_fit *fit) {
    wf_phase_loop *loop = fit->loop;
    wf_phase *s = loop->phase;
    char name[WF_TENSOR_NAME];
    wf_st_file *file;
    wf_status status;
    size_t n = s->list.total;
    WF_TRY(wf_st_open(fit->ctx, fit->path, &file));
    fit->state.waits = wf_st_meta(file, "validation.waits") != NULL;
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

wf_status wf_phase_fit_open(wf_phase_fit *fit, const void *model) {
    fit->model = model;
    for (int i = 0; i < fit->n_phases; i++) {
        wf_phase *s = &fit->phases[i];
        WF_TRY(alloc_phase(fit->ctx, s));
        WF_TRY(wf_fit_not_stopped(fit->ctx, fit->path));
        wf_params_init(s->list.tensors, s->list.count, WF_F32, s->seed, s->weights);
        wf_params_init(s->buffers.tensors, s->buffers.count, WF_F32, s->seed, s->statistics);
    }
    WF_TRY(wf_fit_not_stopped(fit->ctx, fit->path));
    return wf_file_exists(fit->path) ? resume(fit) : WF_OK;
}

/* --- the phases one after another ------------------------------------------------------------- */

/* After a phase its weights are those that sample, and the next one begins. */
static void end_phase(wf_phase_fit *fit) {
    wf_phase *s = fit->loop->phase;
    if (s->ema != NULL) memcpy(s->weights, s->ema, s->list.total * sizeof(float));
    free(s->ema);
    s->ema = NULL;
    fit->state = (wf_phase_state){.at = fit->state.at + 1, .seconds = fit->state.seconds};
}

wf_status wf_phase_fit_run(wf_phase_fit *fit, int index) {
    if (fit->state.at > index) return WF_OK;
    wf__phase_loop_free(fit->loop);
    fit->loop = NULL;
    WF_TRY(wf__phase_loop_create(fit, index));
    bool done = fit->state.made >= fit->loop->phase->updates && !fit->state.waits;
    if (!done && fit->log < 0 && fit->desc.log_every > 0)
        WF_TRY(wf_fit_log_open(fit->ctx, fit->path, fit->loop->first + fit->state.made, &fit->log));
    if (!done) WF_TRY(wf__phase_loop_run(fit));
    if (index < fit->n_phases - 1) end_phase(fit);
    return WF_OK;
}

bool wf_phase_fit_done(const wf_phase_fit *fit) {
    int last = fit->n_phases - 1;
    return fit->state.at == last && fit->state.made >= fit->phases[last].updates;
}

void wf_phase_fit_free(wf_phase_fit *fit) {
    if (fit->log >= 0 && fit->ctx != NULL) close(fit->log);
    wf__phase_loop_free(fit->loop);
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
    WF_TRY(wf_file_check_generator(ctx, path, out->file, kind->name, "(none)"));
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
