/* registry: the kinds of generators, and the checks that hold for all of them. */
#include "base/safetensors.h"
#include "base/status.h"
#include "flow/training_set.h"
#include "generators/generators.h"
#include "zoo/zoo_file.h"
#include "weft/comm.h"
#include "weft/text.h"

#include <stdlib.h>
#include <string.h>

struct wf_generator {
    const wf_generator_kind *kind;
    void *self;
};

/* --- the list --------------------------------------------------------------------------------- */

enum { most_registered = 256 };
static const wf_generator_kind *registered[most_registered];
static int n_registered;

/* Rivals of the flows. */
static const wf_generator_kind *const phased[] = {&wf__sane_kde_kind, &wf__sane_gauss_kind,
                                                  &wf__pdiff_kind};
enum { n_phased = sizeof phased / sizeof *phased };

/* Controls, then flows, then other rivals, then what programs registered. */
const wf_generator_kind *wf_generator_at(int index) {
    const wf_generator_kind *const own[] = {wf__control_kinds, wf__flow_kinds()};
    if (index < 0) return NULL;
    for (int list = 0; list < 2; list++)
        for (const wf_generator_kind *kind = own[list]; kind->name != NULL; kind++)
            if (index-- == 0) return kind;
    if (index < n_phased) return phased[index];
    index -= n_phased;
    return index < n_registered ? registered[index] : NULL;
}

int wf_generator_count(void) {
    int n = 0;
    while (wf_generator_at(n) != NULL) n++;
    return n;
}

const wf_generator_kind *wf_generator_find(const char *name) {
    const wf_generator_kind *kind;
    for (int i = 0; (kind = wf_generator_at(i)) != NULL; i++)
        if (strcmp(kind->name, name) == 0) return kind;
    return NULL;
}

/* Letters, digits and '-' inside, and no part after a '-' that reads as a number. */
static bool good_name(const char *name) {
    size_t length = strlen(name);
    if (length == 0 || length > 40 ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") < length)
        return false;
    for (const char *at = name; (at = strchr(at, '-')) != NULL; at++)
        if (at[1] == '\0' || at[1] == '-' || (at[1] >= '0' && at[1] <= '9')) return false;
    return name[0] != '-';
}

wf_status wf_generator_register(wf_ctx *ctx, const wf_generator_kind *kind) {
    if (kind->name == NULL || !good_name(kind->name))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "\"%.60s\" cannot name a generator: take lower-case letters, digits and "
                       "'-', and no number after a '-'",
                       kind->name == NULL ? "" : kind->name);
    if (kind->about == NULL || kind->open == NULL || kind->sample == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "the generator %s lacks about, open or sample",
                       kind->name);
    if (wf_generator_find(kind->name) != NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "there is a generator %s already", kind->name);
    if (n_registered == most_registered)
        return wf_fail(ctx, WF_ERR_USAGE, "more than %d generators", most_registered);
    registered[n_registered++] = kind;
    return WF_OK;
}

/* Options with the kind's defaults; NULL without settings. */
static wf_status default_options(wf_ctx *ctx, const wf_generator_kind *kind, void **out) {
    *out = NULL;
    if (kind->settings == NULL) return WF_OK;
    WF_TRY(wf_alloc(ctx, 1, kind->options_size, "options", out));
    wf_settings_default(kind->settings(), *out);
    return WF_OK;
}

/* "random, perturbation-SIGMA, average ..." */
static void list_names(char *out, size_t size) {
    wf_text text = wf_text_start(out, size);
    const wf_generator_kind *kind;
    for (int i = 0; (kind = wf_generator_at(i)) != NULL; i++) {
        wf_text_add(&text, "%s%s", i > 0 ? ", " : "", kind->name);
        if (kind->parameter != NULL) wf_text_add(&text, "-%s", kind->parameter);
    }
}

wf_status wf_generator_named(wf_ctx *ctx, const char *name, const wf_generator_kind **kind,
                             void **options) {
    const char *dash = strrchr(name, '-');
    char base[64], names[600];
    *options = NULL;
    *kind = wf_generator_find(name);
    if (*kind != NULL) return default_options(ctx, *kind, options);
    snprintf(base, sizeof base, "%.*s", dash == NULL ? 0 : (int)(dash - name), name);
    *kind = wf_generator_find(base);
    if (*kind != NULL && (*kind)->parameter != NULL) {
        WF_TRY(default_options(ctx, *kind, options));
        wf_status status =
            wf_settings_set(ctx, (*kind)->settings(), (*kind)->parameter, dash + 1, *options);
        if (status == WF_OK) return WF_OK;
        free(*options);
        *options = NULL;
        return status;
    }
    list_names(names, sizeof names);
    return wf_fail(ctx, WF_ERR_USAGE, "there is no generator \"%.60s\"; there are %s", name, names);
}

/* --- use -------------------------------------------------------------------------------------- */

/* Kinds that cannot use a GPU run on the CPU and warn. Flows warn themselves, because it depends on
 * their field. Controls have almost nothing to compute. */
static wf_status say_device(wf_ctx *ctx, const wf_generator_kind *kind, const char *part) {
    bool cuda;
    if (kind->fit == NULL || kind->flow != NULL) return WF_OK;
    WF_TRY(wf_use_cuda(ctx, &cuda));
    bool on_gpu = (kind->traits & WF_GENERATOR_ON_GPU) != 0;
    if (!cuda) return WF_OK;
    if (!on_gpu)
        wf_warn(ctx, "%s has no program for the GPU: %s runs on the CPU", kind->name, part);
    wf_note_device(ctx, part, on_gpu);
    return WF_OK;
}

/* A generator of few networks can do little but repeat them. */
static void warn_of_few(wf_ctx *ctx, const wf_generator_kind *kind,
                        const wf_generator_fit_desc *desc) {
    enum { few = 30 };
    size_t networks = 0;
    if (desc->sources[0].fresh != NULL) return;
    for (int i = 0; i < desc->n_sources; i++) networks += wf_zoo_count(desc->sources[i].zoo);
    if (networks < few)
        wf_warn(ctx,
                "%zu network%s to fit %s to: with fewer than %d it can do little but repeat them; "
                "some hundreds are better",
                networks, networks == 1 ? "" : "s", kind->name, few);
}

static wf_status check_sources(wf_ctx *ctx, const wf_generator_kind *kind,
                               const wf_generator_fit_desc *desc) {
    if (desc->n_sources < 1)
        return wf_fail(ctx, WF_ERR_USAGE, "no collection to fit; give at least one");
    if ((kind->traits & WF_GENERATOR_ANY_ARCHITECTURE) == 0)
        WF_TRY(wf__one_architecture(ctx, kind->name, desc->sources, desc->n_sources));
    if ((kind->traits & WF_GENERATOR_CONDITIONS) == 0 && desc->cond_size > 0)
        return wf_fail(ctx, WF_ERR_USAGE, "%s takes no conditions", kind->name);
    for (int i = 0; i < desc->n_sources; i++) {
        const wf_zoo *zoos[] = {desc->sources[i].zoo, desc->sources[i].held_out};
        for (int k = 0; k < 2; k++)
            if (zoos[k] != NULL) WF_TRY(wf_zoo_verify(ctx, zoos[k]));
    }
    warn_of_few(ctx, kind, desc);
    bool aligned = (kind->traits & WF_GENERATOR_WANTS_ALIGNED) != 0;
    if (desc->sources[0].fresh != NULL && (kind->flow == NULL || aligned))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s is not fitted to fresh networks: %s; set zoo.fresh = no", kind->name,
                       aligned ? "it wants them aligned" : "it is no flow");
    if (aligned && desc->train != NULL && (desc->train->relabel || desc->train->signs))
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "train.%s is yes, but %s wants aligned networks, and %s copies are not; leave "
            "it out",
            desc->train->relabel ? "relabel" : "signs", kind->name,
            desc->train->relabel ? "relabelled" : "flipped");
    for (int i = 0; aligned && i < desc->n_sources; i++)
        if (wf_zoo_meta(desc->sources[i].zoo, "weft.aligned") == NULL)
            return wf_fail(
                ctx, WF_ERR_INPUT,
                "%s: its networks are not aligned, which %s expects; weft align makes an "
                "aligned collection",
                wf_zoo_path(desc->sources[i].zoo), kind->name);
    return WF_OK;
}

wf_status wf_generator_fit(wf_ctx *ctx, const wf_generator_kind *kind,
                           const wf_generator_fit_desc *desc) {
    if (kind->fit == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "%s has nothing to fit; sample from it", kind->name);
    wf_generator_fit_desc own = *desc;
    wf_fit_desc train = wf_fit_desc_default();
    void *options = NULL;
    if (own.train == NULL) own.train = &train;
    if (kind->flow == NULL && wf_ctx_ranks(ctx) > 1)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "%s: its step needs the whole batch (batch norm, contrastive loss); fit it "
                       "with one process, the other stages take several",
                       kind->name);
    WF_TRY(check_sources(ctx, kind, desc));
    WF_TRY(say_device(ctx, kind, "fitting"));
    wf_lock *lock; /* of the file, and of what a kind keeps beside it: a log */
    WF_TRY(wf_lock_file(ctx, desc->path, &lock));
    wf_status status = own.options == NULL ? default_options(ctx, kind, &options) : WF_OK;
    if (own.options == NULL) own.options = options;
    if (status == WF_OK) status = kind->fit(ctx, kind, &own);
    free(options);
    wf_lock_free(lock);
    return status;
}

/* The kind that a file names; a flow of version 0.1 names none. */
static wf_status kind_of_file(wf_ctx *ctx, const char *path, const wf_generator_kind **out) {
    wf_st_file *file;
    WF_TRY(wf_st_open(ctx, path, &file));
    const char *name = wf_st_meta(file, "weft.generator"), *is = wf_st_meta(file, "weft.kind");
    if (name == NULL && is != NULL && strcmp(is, "flow") == 0) name = WF_GENERATOR_DEFAULT;
    bool collection =
        wf_st_meta(file, "weft.graph") != NULL || wf_st_meta(file, "weft.arch") != NULL;
    wf_status status = WF_OK;
    *out = name == NULL || collection ? NULL : wf_generator_find(name);
    if (collection)
        status =
            wf_fail(ctx, WF_ERR_INPUT,
                    "%s: a collection of networks, not a generator; fit one to it: weft fit %s "
                    "-o flow.safetensors",
                    path, path);
    else if (name == NULL)
        status =
            wf_fail(ctx, WF_ERR_INPUT, "%s: not a file of a generator; weft fit makes one", path);
    else if (*out == NULL)
        status =
            wf_fail(ctx, WF_ERR_INPUT,
                    "%s: made by the generator \"%.40s\", which is not known here", path, name);
    wf_st_close(file);
    return status;
}

wf_status wf_generator_open(wf_ctx *ctx, const wf_generator_open_desc *desc, wf_generator **out) {
    *out = NULL;
    wf_generator_open_desc own = *desc;
    if (own.kind == NULL && own.path == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "say which generator: its kind, or its file");
    if (own.kind == NULL) WF_TRY(kind_of_file(ctx, own.path, &own.kind));
    if (own.kind->fit != NULL && own.path == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "%s is fitted: say which file it was fitted into",
                       own.kind->name);
    if ((own.kind->traits & WF_GENERATOR_KEEPS_COLLECTION) != 0 && own.zoo == NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "%s needs its collection", own.kind->name);
    wf_generator *generator;
    void *options = NULL;
    if (own.options == NULL) WF_TRY(default_options(ctx, own.kind, &options));
    if (own.options == NULL) own.options = options;
    wf_status status = wf_alloc(ctx, 1, sizeof *generator, "generator", &generator);
    if (status == WF_OK) {
        generator->kind = own.kind;
        status = own.kind->open(ctx, own.kind, &own, &generator->self);
        if (status == WF_OK) *out = generator;
        else free(generator);
    }
    free(options);
    return status;
}

/* A running variance that is drawn below zero becomes zero: a network would compute its root. */
static void raise_variances(const wf_graph *graph, float *weights, size_t n) {
    for (int b = 0; weights != NULL && b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->kind != WF_BLOCK_VARIANCE) continue;
        for (size_t k = 0; k < n; k++) {
            float *variance = weights + k * graph->n_params + block->offset;
            for (size_t i = 0; i < block->count; i++)
                if (variance[i] < 0) variance[i] = 0;
        }
    }
}

wf_status wf_generator_sample(wf_ctx *ctx, wf_generator *generator,
                              const wf_generator_request *request) {
    const wf_generator_kind *kind = generator->kind;
    wf_generator_request own = *request;
    wf_sample_desc defaults = wf_sample_desc_default();
    wf_sample_stats stats = {0};
    if (own.sample == NULL) own.sample = &defaults;
    if (own.stats == NULL) own.stats = &stats;
    const wf_graph *fitted = wf_generator_graph(generator);
    if ((kind->traits & WF_GENERATOR_ANY_ARCHITECTURE) == 0 && fitted != NULL &&
        !wf_graph_equal(fitted, own.graph))
        return wf_fail(ctx, WF_ERR_UNSUPPORTED, "%s makes networks of %s alone, not of %s",
                       kind->name, fitted->text, own.graph->text);
    if ((kind->traits & WF_GENERATOR_CONDITIONS) == 0 && own.cond != NULL)
        return wf_fail(ctx, WF_ERR_USAGE, "%s takes no conditions", kind->name);
    bool refined = own.direct != NULL || own.sample->refine_cycles > 0;
    if ((kind->traits & WF_GENERATOR_REFINES) == 0 && refined)
        return wf_fail(ctx, WF_ERR_USAGE, "%s has no refinement; leave refine_cycles at 0",
                       kind->name);
    WF_TRY(say_device(ctx, kind, "sampling"));
    WF_TRY(kind->sample(ctx, generator->self, &own));
    raise_variances(own.graph, own.weights, own.n);
    raise_variances(own.graph, own.direct, own.n);
    return WF_OK;
}

void wf_generator_free(wf_generator *generator) {
    if (generator == NULL) return;
    if (generator->kind->free != NULL) generator->kind->free(generator->self);
    free(generator);
}

const wf_generator_kind *wf_generator_kind_of(const wf_generator *generator) {
    return generator->kind;
}

const wf_graph *wf_generator_graph(const wf_generator *generator) {
    return generator->kind->graph == NULL ? NULL : generator->kind->graph(generator->self);
}

wf_status wf_generator_params(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                              const wf_graph *graph, int cond_size, size_t *out) {
    void *own = NULL;
    *out = 0;
    if (kind->params == NULL) return WF_OK;
    if (options == NULL) WF_TRY(default_options(ctx, kind, &own));
    wf_status status =
        kind->params(ctx, kind, options != NULL ? options : own, graph, cond_size, out);
    free(own);
    return status;
}

wf_status wf_generator_tensors(wf_ctx *ctx, const wf_generator_kind *kind, const void *options,
                               const wf_graph *graph, int cond_size, wf_generator_visit *visit,
                               void *user) {
    void *own = NULL;
    if (kind->tensors == NULL) return WF_OK;
    if (options == NULL) WF_TRY(default_options(ctx, kind, &own));
    wf_status status =
        kind->tensors(ctx, kind, options != NULL ? options : own, graph, cond_size, visit, user);
    free(own);
    return status;
}

wf_flow *wf_generator_flow(wf_generator *generator) {
    return generator->kind->flow == NULL ? NULL : generator->kind->flow(generator->self);
}
