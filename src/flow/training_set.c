#include "flow/training_set.h"
#include "flow/fresh.h"
#include "flow/layer_costs.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- loading ---------------------------------------------------------------------------------- */

/* A hash that tells collections apart; not a safeguard against intent. */
static const uint64_t no_words = 0xCBF29CE484222325u;

static uint64_t hash_words(uint64_t hash, const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &values[i], sizeof word);
        hash = (hash ^ word) * 0x100000001B3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ b[i]) * 0x100000001B3u;
    return hash;
}

/* Networks of the collection itself that are kept for validation. */
static size_t set_aside(const wf_source *source, const wf_fit_desc *fit) {
    return source->held_out != NULL ? 0 : fit->set_aside;
}

static size_t used_networks(const wf_source *source, const wf_fit_desc *fit) {
    size_t count = wf_zoo_count(source->zoo) - set_aside(source, fit);
    if (source->fresh != NULL && fit->fresh_pool > 0) count = fit->fresh_pool;
    else if (fit->limit > 0 && fit->limit < count) count = fit->limit;
    return source->fresh != NULL ? wf_fresh_pool_size(count) : count;
}

wf_status wf_family_graph(wf_ctx *ctx, const wf_field *field, const wf_graph *graph,
                          wf_graph **out) {
    return wf_graph_fold(ctx, graph, field->folds ? WF_GRAPH_FOLD_INPUT : 0, out);
}

wf_status wf__one_architecture(wf_ctx *ctx, const char *name, const wf_source *sources, int n) {
    const wf_graph *first = wf_zoo_graph(sources[0].zoo);
    for (int i = 1; i < n; i++)
        if (!wf_graph_equal(first, wf_zoo_graph(sources[i].zoo)))
            return wf_fail(ctx, WF_ERR_SHAPE,
                           "%s has networks of %s, %s of %s; %s takes one architecture",
                           wf_zoo_path(sources[0].zoo), first->text, wf_zoo_path(sources[i].zoo),
                           wf_zoo_graph(sources[i].zoo)->text, name);
    return WF_OK;
}

enum { largest_weight = 1000 };

static wf_status check_held_out(wf_ctx *ctx, const wf_source *source, const wf_fit_desc *fit) {
    const char *path = wf_zoo_path(source->zoo);
    size_t count = wf_zoo_count(source->zoo), aside = set_aside(source, fit);
    if (aside >= count)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: set_aside = %zu leaves none of its %zu networks to train on", path,
                       aside, count);
    if (source->held_out == NULL) return WF_OK;
    const wf_graph *graph = wf_zoo_graph(source->zoo), *other = wf_zoo_graph(source->held_out);
    if (wf_graph_equal(graph, other)) return WF_OK;
    return wf_fail(ctx, WF_ERR_SHAPE, "%s has networks of %s, its held-out networks %s are of %s",
                   path, graph->text, wf_zoo_path(source->held_out), other->text);
}

/* Flipped signs leave a network's outputs alone where its activation is odd. */
static wf_status check_signs(wf_ctx *ctx, const wf_zoo *zoo) {
    const wf_graph *graph = wf_zoo_graph(zoo);
    if (wf_graph_is_chain(graph) && graph->activation == WF_ACT_TANH) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE,
                   "%s: train.signs takes chains of linear layers with tanh; these are networks of "
                   "%s with %s. Leave it out",
                   wf_zoo_path(zoo), graph->text, wf_graph_activation(graph));
}

static wf_status check_sources(wf_ctx *ctx, const wf_source *sources, int n, int cond_size,
                               const wf_fit_desc *fit) {
    size_t limit = fit->limit;
    if (n < 1) return wf_fail(ctx, WF_ERR_USAGE, "no collection to train on; give at least one");
    for (int i = 0; i < n; i++) {
        if ((sources[i].fresh != NULL) != (sources[0].fresh != NULL))
            return wf_fail(ctx, WF_ERR_USAGE,
                           "fresh networks of some collections and stored ones of others; all or "
                           "none must be fresh");
        const char *path = wf_zoo_path(sources[i].zoo);
        size_t count = wf_zoo_count(sources[i].zoo);
        if (count == 0)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: the collection has no networks", path);
        if (count > UINT32_MAX)
            return wf_fail(ctx, WF_ERR_UNSUPPORTED, "%s: more than %u networks; set a limit", path,
                           UINT32_MAX);
        if (limit > count)
            wf_warn(ctx, "%s: %zu networks asked for, the collection has %zu", path, limit, count);
        WF_TRY(check_held_out(ctx, &sources[i], fit));
        if (fit->signs) WF_TRY(check_signs(ctx, sources[i].zoo));
        if ((sources[i].cond != NULL) != (cond_size > 0))
            return wf_fail(ctx, WF_ERR_USAGE,
                           cond_size > 0 ? "%s: no condition, but the field expects %d numbers"
                                         : "%s: a condition, but the field has none (%d numbers)",
                           path, cond_size);
        if (sources[i].draw_weight < 0 || sources[i].draw_weight > largest_weight)
            return wf_fail(ctx, WF_ERR_USAGE, "%s: a sampling weight of %d; it goes from 1 to %d",
                           path, sources[i].draw_weight, largest_weight);
    }
    return WF_OK;
}

/* "moons,spirals"; the caller frees it. NULL when out of memory. */
static char *test_names(const wf_zoo *zoo) {
    size_t size = 1;
    for (int t = 0; wf_zoo_test(zoo, t) != NULL; t++) size += strlen(wf_zoo_test(zoo, t)) + 1;
    char *text = malloc(size);
    if (text == NULL) return NULL;
    wf_text list = wf_text_start(text, size);
    for (int t = 0; wf_zoo_test(zoo, t) != NULL; t++)
        wf_text_add(&list, "%s%s", t > 0 ? "," : "", wf_zoo_test(zoo, t));
    return text;
}

static wf_status name_source(wf_ctx *ctx, const wf_source *from, wf_training_source *source) {
    const char *data = wf_zoo_meta(from->zoo, "weft.data");
    const char *classes = wf_zoo_meta(from->zoo, "weft.classes");
    wf_data_desc desc;
    char buffer[WF_SETTING_BUFFER];
    if (wf_zoo_scale(from->zoo, &desc.scale))
        snprintf(source->scale, sizeof source->scale, "%s",
                 wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), &desc, buffer));
    source->path = strdup(wf_zoo_path(from->zoo));
    source->task = strdup(from->task != NULL ? from->task : "");
    source->tests = test_names(from->zoo);
    source->data = strdup(data != NULL ? data : "");
    source->classes = strdup(classes != NULL ? classes : "");
    if (source->path != NULL && source->task != NULL && source->tests != NULL &&
        source->data != NULL && source->classes != NULL)
        return WF_OK;
    return wf_fail(ctx, WF_ERR_MEMORY, "sources: out of memory");
}

/* Gives every source its family and its range there. */
static wf_status assign_sources(wf_ctx *ctx, const wf_source *sources, int n, const wf_field *field,
                                const wf_fit_desc *fit, wf_training_set *out) {
    bool apart = fit->normalise && fit->normalise_by == WF_NORMALISE_BY_COLLECTION;
    for (int i = 0; i < n; i++) {
        const wf_graph *graph = wf_zoo_graph(sources[i].zoo);
        int family = apart ? out->n_families : 0;
        while (family < out->n_families && !wf_graph_equal(out->families[family].graph, graph))
            family++;
        if (family == WF_MAX_FAMILIES)
            return wf_fail(ctx, WF_ERR_USAGE,
                           "more than %d architectures, or collections normalised by themselves",
                           WF_MAX_FAMILIES);
        if (family == out->n_families) {
            WF_TRY(wf_family_graph(ctx, field, graph, &out->families[family].graph));
            out->n_families++;
        }
        wf_training_source *source = &out->sources[i];
        source->family = family;
        source->draw_weight = sources[i].draw_weight > 0 ? sources[i].draw_weight : 1;
        source->first = out->families[family].count;
        source->count = used_networks(&sources[i], fit);
        out->families[family].count += source->count;
        WF_TRY(name_source(ctx, &sources[i], source));
    }
    for (int i = 0; i < n; i++) { /* after all networks that are fitted */
        wf_training_source *source = &out->sources[i];
        wf_family *family = &out->families[source->family];
        source->held_out_first = family->count + family->held_out;
        source->held_out_count = sources[i].held_out != NULL ? wf_zoo_count(sources[i].held_out)
                                                             : set_aside(&sources[i], fit);
        bool own = sources[i].held_out == NULL; /* set aside: the last ones of the collection */
        source->zoo = sources[i].zoo;
        source->held_out = own ? source->zoo : sources[i].held_out;
        source->held_out_from = own ? wf_zoo_count(source->zoo) - source->held_out_count : 0;
        family->held_out += source->held_out_count;
    }
    return WF_OK;
}

/* Networks of a collection that are looked at: all must be finite. */
typedef struct looking {
    wf_ctx *ctx;
    const wf_zoo *zoo;
    uint64_t hash;
    size_t from;
    float *to; /* (count, n_params) a copy of networks from `from` on; NULL: none */
} looking;

static wf_status look_at(void *looking_, const float *weights, size_t first, size_t count) {
    looking *l = looking_;
    size_t n = wf_zoo_graph(l->zoo)->n_params;
    for (size_t i = 0; i < count * n; i++)
        if (!isfinite(weights[i]))
            return wf_fail(l->ctx, WF_ERR_INPUT,
                           "%s: network %zu has values that are not finite; leave such "
                           "networks out: weft zoo filter %s --finite -o GOOD.safetensors",
                           wf_zoo_path(l->zoo), first + i / n, wf_zoo_path(l->zoo));
    l->hash = hash_words(l->hash, weights, count * n);
    if (l->to != NULL) memcpy(l->to + (first - l->from) * n, weights, count * n * sizeof *weights);
    return WF_OK;
}

/* Networks from .. from + count - 1 of a collection, to weights (count, n_params), which may be
 * NULL. *hash: of them. */
static wf_status load_networks(wf_ctx *ctx, const wf_zoo *zoo, size_t from, size_t count,
                               float *weights, uint64_t *hash) {
    looking l = {ctx, zoo, no_words, from, weights};
    WF_TRY(wf__zoo_each(ctx, zoo, from, count, "reading networks", look_at, &l));
    *hash = l.hash;
    return WF_OK;
}

/* Fresh networks are told apart by what they are made from. */
static wf_status hash_fresh(wf_ctx *ctx, const wf_fresh *fresh, uint64_t *out) {
    wf_zoo_desc desc = fresh->zoo;
    desc.count = 1;
    desc.first = WF_FRESH_FIRST;
    desc.shard = 0; /* and what else does not change a network */
    desc.fp32 = false;
    desc.test_name = NULL;
    char *settings = wf_settings_json(wf_zoo_settings(), &desc);
    if (settings == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "sources: out of memory");
    const wf_dataset *data = fresh->data;
    uint64_t hash = hash_bytes(no_words, settings, strlen(settings));
    hash = hash_bytes(hash, data->y_train, data->n_train * sizeof *data->y_train);
    *out = hash_words(hash, data->x_train, data->n_train * (size_t)data->inputs);
    free(settings);
    return WF_OK;
}

static wf_status load_source(wf_ctx *ctx, const wf_fresh *fresh, wf_training_source *source,
                             wf_family *family) {
    size_t n = family->graph->n_params;
    bool keeps = family->weights != NULL;
    float *fitted = keeps ? family->weights + source->first * n : NULL;
    float *held_out = keeps ? family->weights + source->held_out_first * n : NULL;
    uint64_t not_told;
    if (fresh != NULL) WF_TRY(hash_fresh(ctx, fresh, &source->hash));
    else WF_TRY(load_networks(ctx, source->zoo, 0, source->count, fitted, &source->hash));
    return load_networks(ctx, source->held_out, source->held_out_from, source->held_out_count,
                         held_out, &not_told);
}

static void normalise(const wf_family *family, float *weights, size_t count) {
    size_t n = family->graph->n_params;
    for (size_t k = 0; family->norm.n > 0 && k < count; k++)
        wf_norm_apply(&family->norm, family->graph, weights + k * n, weights + k * n);
}

static wf_status fit_streamed(wf_ctx *ctx, const wf_training_set *set, int family) {
    wf_zoo_span *spans;
    int n = 0;
    WF_TRY(wf_alloc(ctx, (size_t)set->n_sources, sizeof *spans, "normalisation", &spans));
    for (int i = 0; i < set->n_sources; i++)
        if (set->sources[i].family == family)
            spans[n++] = (wf_zoo_span){set->sources[i].zoo, 0, set->sources[i].count};
    wf_family *of = &set->families[family];
    wf_status status = wf__zoo_norm(ctx, of->graph, spans, n, &of->norm);
    free(spans);
    return status;
}

/* The mean of what changes its sign in half of the copies is zero. */
static void centre_at_zero(const wf_graph *graph, wf_norm *norm) {
    for (int b = 0; b < norm->n; b++) {
        const wf_block *block = &graph->blocks[b];
        bool flips = graph->groups[block->dst].orbit >= 0 || graph->groups[block->src].orbit >= 0;
        if (!flips) continue;
        norm->std[b] = (float)hypot((double)norm->std[b], (double)norm->mean[b]);
        norm->mean[b] = 0;
    }
}

wf_status wf_training_set_normalise(wf_ctx *ctx, const wf_fit_desc *fit, wf_training_set *set) {
    for (int s = 0; fit->normalise && s < set->n_families; s++) {
        wf_family *family = &set->families[s];
        bool given = family->norm.n > 0;
        if (!given && set->streams) WF_TRY(fit_streamed(ctx, set, s));
        else if (!given)
            WF_TRY(wf_norm_fit(ctx, family->graph, family->weights, family->count, &family->norm));
        if (!given && fit->signs) centre_at_zero(family->graph, &family->norm);
        if (!set->streams) normalise(family, family->weights, family->count + family->held_out);
    }
    return WF_OK;
}

/* --- networks that stay in their files -------------------------------------------------------- */

void wf_source_network(const wf_training_set *set, const wf_training_source *source, bool held_out,
                       size_t index, float *w) {
    const wf_family *family = &set->families[source->family];
    size_t n = family->graph->n_params;
    if (family->weights != NULL) {
        size_t first = held_out ? source->held_out_first : source->first;
        memcpy(w, family->weights + (first + index) * n, n * sizeof *w);
        return;
    }
    if (held_out) wf_zoo_get(source->held_out, source->held_out_from + index, w);
    else wf_zoo_get(source->zoo, index, w);
    normalise(family, w, 1);
}

typedef struct normalising {
    const wf_family *family;
    size_t first; /* of the source, in the family */
    wf_zoo_visit *visit;
    void *user;
} normalising;

static wf_status hand_on(void *normalising_, const float *weights, size_t first, size_t count) {
    const normalising *h = normalising_;
    /* The piece is wf__zoo_each's own buffer, read anew for the next one. */
    normalise(h->family, (float *)(uintptr_t)weights, count);
    return h->visit(h->user, weights, h->first + first, count);
}

wf_status wf_family_each(wf_ctx *ctx, const wf_training_set *set, int family, wf_zoo_visit *visit,
                         void *user) {
    const wf_family *f = &set->families[family];
    if (f->weights != NULL) return visit(user, f->weights, 0, f->count);
    for (int i = 0; i < set->n_sources; i++) {
        const wf_training_source *source = &set->sources[i];
        if (source->family != family) continue;
        normalising h = {.family = f, .first = source->first, .visit = visit, .user = user};
        WF_TRY(wf__zoo_each(ctx, source->zoo, 0, source->count, "networks to the device", hand_on,
                            &h));
    }
    return WF_OK;
}

wf_status wf_training_set_keep(wf_ctx *ctx, wf_training_set *set) {
    if (!set->streams) return WF_OK;
    for (int s = 0; s < set->n_families; s++) {
        wf_family *family = &set->families[s];
        WF_TRY(wf_alloc(ctx, (family->count + family->held_out) * family->graph->n_params,
                        sizeof(float), "networks to train on", &family->weights));
    }
    for (int i = 0; i < set->n_sources; i++) {
        wf_family *family = &set->families[set->sources[i].family];
        WF_TRY(load_source(ctx, NULL, &set->sources[i], family));
    }
    set->streams = false;
    for (int s = 0; s < set->n_families; s++) {
        const wf_family *family = &set->families[s];
        normalise(family, family->weights, family->count + family->held_out);
    }
    return WF_OK;
}

wf_status wf_family_transform(wf_ctx *ctx, const wf_family *family, float *weights, size_t count) {
    normalise(family, weights, count);
    return wf_principal_apply(ctx, &family->principal, family->graph, weights, count, NULL);
}

/* What each block's layer contributes to the loss, of *sum that all layers together do. */
static wf_status layer_shares(wf_ctx *ctx, wf_loss_by by, const wf_zoo *zoo, const wf_graph *graph,
                              double *share, double *sum) {
    double largest = 0;
    *sum = 0;
    for (int b = 0; b < graph->n_blocks; b++) share[b] = 1;
    if (by == WF_LOSS_BY_ERRORS) WF_TRY(wf_layer_costs(ctx, zoo, graph, share));
    for (int b = 0; b < graph->n_blocks; b++) largest = fmax(largest, share[b]);
    for (int b = 0; b < graph->n_blocks; b++) {
        share[b] = fmax(share[b], 1e-3 * largest); /* every layer is learned */
        if (b == 0 || graph->blocks[b].layer != graph->blocks[b - 1].layer) *sum += share[b];
    }
    return WF_OK;
}

/* Loss weights: 1 for every parameter, or such that layers contribute their shares. */
static wf_status weigh_loss(wf_ctx *ctx, wf_loss_by by, const wf_zoo *zoo, wf_family *family) {
    const wf_graph *graph = family->graph;
    double *share, sum;
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_blocks, sizeof *family->loss_weights, "training",
                    &family->loss_weights));
    WF_TRY(wf_alloc(ctx, (size_t)graph->n_blocks, sizeof *share, "training", &share));
    wf_status status = layer_shares(ctx, by, zoo, graph, share, &sum);
    for (int b = 0; status == WF_OK && b < graph->n_blocks; b++) {
        size_t layer = 0;
        for (int other = 0; other < graph->n_blocks; other++)
            if (graph->blocks[other].layer == graph->blocks[b].layer)
                layer += graph->blocks[other].count;
        double weight = (double)graph->n_params * share[b] / (sum * (double)layer);
        family->loss_weights[b] =
            (wf_loss_weight){(uint32_t)(graph->blocks[b].offset + graph->blocks[b].count),
                             by == WF_LOSS_BY_PARAMETERS ? 1 : (float)weight};
    }
    free(share);
    return status;
}

/* The first collection of a family. */
static const wf_zoo *family_zoo(const wf_training_set *set, const wf_source *sources, int family) {
    int i = 0;
    while (set->sources[i].family != family) i++;
    return sources[i].zoo;
}

wf_status wf_training_set_rotate(wf_ctx *ctx, const wf_fit_desc *fit, wf_training_set *set) {
    if (!fit->principal) return WF_OK;
    double all = 0;
    for (int s = 0; s < set->n_families; s++) {
        const wf_family *family = &set->families[s];
        all += wf_principal_work(family->graph, family->count, family->principal.width == 0) +
               wf_principal_work(family->graph, family->held_out, false);
    }
    wf_principal_task task = {.meter = wf_meter_start(ctx, "principal axes", "GFLOP", all)};
    for (int s = 0; s < set->n_families; s++) {
        wf_family *family = &set->families[s];
        if (family->principal.width == 0)
            WF_TRY(wf_principal_fit(ctx, family->graph, family->weights, family->count, &task,
                                    &family->principal));
        WF_TRY(wf_principal_apply(ctx, &family->principal, family->graph, family->weights,
                                  family->count + family->held_out, &task));
    }
    wf_meter_end(&task.meter, task.done, "%s", "");
    return WF_OK;
}

/* A source of weight s appears in the first s passes over the sources, so that its places lie
 * apart. */
static wf_status lay_out_round(wf_ctx *ctx, wf_training_set *out) {
    int most = 1, all = 0;
    for (int i = 0; i < out->n_sources; i++) {
        all += out->sources[i].draw_weight;
        if (out->sources[i].draw_weight > most) most = out->sources[i].draw_weight;
    }
    if (most == 1) return WF_OK;
    WF_TRY(wf_alloc(ctx, (size_t)all, sizeof *out->round, "round", &out->round));
    for (int pass = 0; pass < most; pass++)
        for (int i = 0; i < out->n_sources; i++)
            if (out->sources[i].draw_weight > pass) out->round[out->round_length++] = (uint32_t)i;
    return WF_OK;
}

/* Whether the networks of all families together may lie in memory. */
static bool all_kept(const wf_training_set *set) {
    size_t numbers = 0;
    for (int s = 0; s < set->n_families; s++)
        numbers +=
            (set->families[s].count + set->families[s].held_out) * set->families[s].graph->n_params;
    return wf__zoo_keeps(numbers, 1);
}

static wf_status load_all(wf_ctx *ctx, const wf_source *sources, const wf_field *field,
                          const wf_fit_desc *fit, wf_training_set *out) {
    WF_TRY(assign_sources(ctx, sources, out->n_sources, field, fit, out));
    WF_TRY(lay_out_round(ctx, out));
    out->streams = !out->fresh && !fit->principal && !all_kept(out);
    for (int s = 0; s < out->n_families; s++) {
        wf_family *family = &out->families[s];
        if (!out->streams)
            WF_TRY(wf_alloc(ctx, (family->count + family->held_out) * family->graph->n_params,
                            sizeof(float), "networks to train on", &family->weights));
        WF_TRY(weigh_loss(ctx, fit->loss_by, family_zoo(out, sources, s), family));
    }
    for (int i = 0; i < out->n_sources; i++) {
        wf_training_source *source = &out->sources[i];
        WF_TRY(load_source(ctx, sources[i].fresh, source, &out->families[source->family]));
        if (out->cond == NULL) continue;
        float *cond = out->cond + (size_t)i * (size_t)out->cond_size;
        memcpy(cond, sources[i].cond, (size_t)out->cond_size * sizeof *cond);
        source->hash = hash_words(source->hash, cond, (size_t)out->cond_size);
    }
    return out->fresh ? WF_OK : wf_training_set_normalise(ctx, fit, out);
}

wf_status wf_training_set_load(wf_ctx *ctx, const wf_source *sources, int n_sources,
                               const wf_field *field, const wf_fit_desc *fit,
                               wf_training_set *out) {
    int cond_size = field->cond_size;
    *out = (wf_training_set){.n_sources = n_sources, .cond_size = cond_size};
    WF_TRY(check_sources(ctx, sources, n_sources, cond_size, fit));
    out->fresh = sources[0].fresh != NULL;
    size_t n = (size_t)n_sources;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *out->families, "families", &out->families), fail);
    WF_TRY_GOTO(wf_alloc(ctx, n, sizeof *out->sources, "sources", &out->sources), fail);
    if (cond_size > 0)
        WF_TRY_GOTO(wf_alloc(ctx, n * (size_t)cond_size, sizeof(float), "conditions", &out->cond),
                    fail);
    WF_TRY_GOTO(load_all(ctx, sources, field, fit, out), fail);
    return WF_OK;
fail:
    wf_training_set_free(out);
    return status;
}

void wf_training_set_free(wf_training_set *set) {
    for (int s = 0; set->families != NULL && s < set->n_families; s++) {
        wf_graph_free(set->families[s].graph);
        wf_norm_free(&set->families[s].norm);
        wf_principal_free(&set->families[s].principal);
        free(set->families[s].loss_weights);
        free(set->families[s].weights);
    }
    for (int i = 0; set->sources != NULL && i < set->n_sources; i++) {
        wf_training_source *source = &set->sources[i];
        free(source->path);
        free(source->task);
        free(source->tests);
        free(source->data);
        free(source->classes);
    }
    free(set->families);
    free(set->sources);
    free(set->cond);
    free(set->round);
    *set = (wf_training_set){0};
}

/* --- which normalisation ---------------------------------------------------------------------- */

static bool same_blocks(const wf_graph *a, const wf_graph *b) {
    if (a->n_blocks != b->n_blocks) return false;
    for (int i = 0; i < a->n_blocks; i++)
        if (a->blocks[i].kind != b->blocks[i].kind || a->blocks[i].coef != b->blocks[i].coef)
            return false;
    return true;
}

double wf_training_set_distance(const wf_training_set *set, int source, const float *cond) {
    if (cond == NULL || set->cond == NULL) return 0;
    double sum = 0;
    for (int k = 0; k < set->cond_size; k++) {
        double d = (double)cond[k] -
                   (double)set->cond[(size_t)source * (size_t)set->cond_size + (size_t)k];
        sum += d * d;
    }
    return sum;
}

const wf_family *wf_training_set_match(const wf_training_set *set, const wf_graph *graph,
                                       const float *cond) {
    const wf_family *best = NULL;
    int best_rank = 0;
    double best_distance = 0;
    for (int i = 0; i < set->n_sources; i++) {
        const wf_family *family = &set->families[set->sources[i].family];
        if (!same_blocks(family->graph, graph)) continue;
        bool ends =
            family->graph->inputs == graph->inputs && family->graph->outputs == graph->outputs;
        int rank = wf_graph_equal(family->graph, graph) ? 3 : ends ? 2 : 1;
        double distance = wf_training_set_distance(set, i, cond);
        if (rank < best_rank || (rank == best_rank && distance >= best_distance)) continue;
        best = family;
        best_rank = rank;
        best_distance = distance;
    }
    return best;
}

/* Units that feed the layer of a block; a bias belongs to the layer's weights. What a norm layer
 * has does not depend on them. */
static int fan_in(const wf_graph *graph, int block) {
    if (graph->blocks[block].kind > WF_BLOCK_BIAS) return 1;
    for (int b = 0; b < graph->n_blocks; b++)
        if (graph->blocks[b].layer == graph->blocks[block].layer &&
            graph->blocks[b].kind == WF_BLOCK_WEIGHT)
            return graph->groups[graph->blocks[b].src].n;
    return 1;
}

wf_status wf_family_norm(wf_ctx *ctx, const wf_family *family, const wf_graph *graph,
                         wf_norm *out) {
    WF_TRY(wf_norm_create(ctx, family->norm.n, out));
    for (int b = 0; b < out->n; b++) {
        int seen = fan_in(family->graph, b), wanted = fan_in(graph, b);
        float scale = seen == wanted ? 1 : (float)sqrt((double)seen / (double)wanted);
        out->mean[b] = family->norm.mean[b] * scale;
        out->std[b] = family->norm.std[b] * scale;
    }
    return WF_OK;
}
