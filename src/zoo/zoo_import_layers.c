/* zoo_import_layers: see the header. */
#include "zoo/zoo_import_layers.h"
#include "zoo/zoo_import_items.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { max_steps = 100000 }; /* of the search for an order; real networks need one a layer */

typedef struct resolver {
    wf_import_items file;
    wf_import_item *weights[WF_IMPORT_MAX_LAYERS]; /* in order, once found */
    wf_import_item *biases[WF_IMPORT_MAX_LAYERS];
    int n_weights;
} resolver;

/* Does a word of the name say that this is a bias? ("0.bias", "b1", "biases.2"; not
 * "1.running_mean") */
static bool sounds_like_bias(const char *name) {
    static const char *const words[] = {"b", "bias", "biases"};
    while (*name != 0) {
        size_t length = 0;
        while (isalpha((unsigned char)name[length])) length++;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strlen(words[i]) == length && strncasecmp(name, words[i], length) == 0) return true;
        name += length > 0 ? length : 1;
    }
    return false;
}

/* --- what the file holds ---------------------------------------------------------------------- */

static wf_status check_items(resolver *r, size_t *networks) {
    if (r->file.n == 0) return wf_fail(r->file.ctx, WF_ERR_INPUT, "%s: no tensors", r->file.label);
    for (size_t i = 1; i < r->file.n; i++)
        if (strcmp(r->file.list[i - 1].name, r->file.list[i].name) == 0)
            return wf_fail(r->file.ctx, WF_ERR_INPUT,
                           "%s: two tensors are named '%.80s' without 'module.' and '_orig_mod.'; "
                           "keep one",
                           r->file.label, r->file.list[i].name);
    *networks = r->file.lead ? SIZE_MAX : 1;
    bool strange = false;
    for (size_t i = 0; i < r->file.n; i++) {
        wf_import_item *it = &r->file.list[i];
        it->used = wf__import_is_float(it->tensor->dtype) && (it->rank == 1 || it->rank == 2) &&
                   it->tensor->count > 0; /* for the list: what is fine */
        if (!it->used) strange = true;
        else if (r->file.lead && *networks == SIZE_MAX) *networks = it->tensor->shape[0];
        else if (r->file.lead && *networks != it->tensor->shape[0])
            return wf__import_refuse(&r->file, "stacked tensors disagree on the number of networks",
                                     WF_IMPORT_ALL,
                                     "the first dimension of each must be that number");
    }
    if (strange)
        return wf__import_refuse(
            &r->file, "not the weights and biases of a fully connected network", WF_IMPORT_UNUSED,
            "describe a network with convolutions or normalisation layers with --arch "
            "(docs/import.md); whole numbers and empty tensors belong to no layer");
    for (size_t i = 0; i < r->file.n; i++) r->file.list[i].used = false;
    return WF_OK;
}

/* --- order of the weights --------------------------------------------------------------------- */

typedef struct search {
    wf_import_item *matrices[WF_IMPORT_MAX_LAYERS];
    int n;
    bool before[WF_IMPORT_MAX_LAYERS][WF_IMPORT_MAX_LAYERS]; /* by the numbers in their names */
    bool placed[WF_IMPORT_MAX_LAYERS];
    int order[WF_IMPORT_MAX_LAYERS], found_order[WF_IMPORT_MAX_LAYERS];
    int found, steps;
} search;

static bool can_follow(const search *s, int depth, int next) {
    if (s->placed[next]) return false;
    if (depth > 0 && s->matrices[next]->shape[1] != s->matrices[s->order[depth - 1]]->shape[0])
        return false;
    for (int i = 0; i < s->n; i++)
        if (!s->placed[i] && s->before[i][next]) return false;
    return true;
}

/* Counts orders, up to two; depth is at most WF_IMPORT_MAX_LAYERS. */
static void find_orders(search *s, int depth) {
    if (depth == s->n) {
        if (s->found++ == 0) memcpy(s->found_order, s->order, sizeof s->order);
        return;
    }
    for (int i = 0; i < s->n && s->found < 2 && s->steps < max_steps; i++) {
        s->steps++;
        if (!can_follow(s, depth, i)) continue;
        s->placed[i] = true;
        s->order[depth] = i;
        find_orders(s, depth + 1);
        s->placed[i] = false;
    }
}

static wf_status order_by_name_and_shape(resolver *r) {
    search s = {0};
    for (size_t i = 0; i < r->file.n; i++) {
        if (r->file.list[i].rank != 2) continue;
        if (s.n == WF_IMPORT_MAX_LAYERS)
            return wf_fail(r->file.ctx, WF_ERR_INPUT, "%s: more than %d matrices", r->file.label,
                           WF_IMPORT_MAX_LAYERS);
        s.matrices[s.n++] = &r->file.list[i];
    }
    if (s.n == 0)
        return wf__import_refuse(&r->file, "no weight matrices [out,in]", WF_IMPORT_ALL,
                                 "save model.state_dict()");
    for (int i = 0; i < s.n; i++)
        for (int k = i + 1; k < s.n; k++) /* sorted, so only i can stand before k */
            wf_natural_order(s.matrices[i]->name, s.matrices[k]->name, &s.before[i][k]);
    find_orders(&s, 0);
    if (s.found == 0 && s.steps < max_steps)
        return wf__import_refuse(
            &r->file, "the matrices do not chain in the order of their names",
            WF_IMPORT_UNUSED_MATRICES,
            "each layer's inputs must be the outputs before it; name the layers in order "
            "with --layers a,b,c");
    if (s.found != 1)
        return wf__import_refuse(&r->file, "the order of the layers is ambiguous",
                                 WF_IMPORT_UNUSED_MATRICES,
                                 "name them in order with --layers a,b,c");
    r->n_weights = s.n;
    for (int i = 0; i < s.n; i++) r->weights[i] = s.matrices[s.found_order[i]];
    return WF_OK;
}

/* One name of --layers: the tensor itself or NAME.weight. */
static wf_status add_named_layer(resolver *r, char *name) {
    wf__import_strip(name);
    char weight[512];
    if ((size_t)snprintf(weight, sizeof weight, "%s%sweight", name, *name ? "." : "") >=
        sizeof weight)
        return wf_fail(r->file.ctx, WF_ERR_USAGE, "layers: the name \"%.40s...\" is too long",
                       name);
    wf_import_item *found = wf__import_find(&r->file, weight);
    if (found == NULL) found = wf__import_find(&r->file, name);
    if (found == NULL || found->rank != 2) {
        char tensors[512];
        return wf_fail(r->file.ctx, WF_ERR_INPUT,
                       "%s: layer \"%.80s\" has no weight matrix among %s", r->file.label, name,
                       wf__import_list(&r->file, WF_IMPORT_ALL, tensors));
    }
    for (int i = 0; i < r->n_weights; i++)
        if (r->weights[i] == found)
            return wf_fail(r->file.ctx, WF_ERR_USAGE, "layers: \"%.80s\" is named twice", name);
    if (r->n_weights == WF_IMPORT_MAX_LAYERS)
        return wf_fail(r->file.ctx, WF_ERR_USAGE, "layers: more than %d", WF_IMPORT_MAX_LAYERS);
    r->weights[r->n_weights++] = found;
    return WF_OK;
}

static wf_status order_as_named(resolver *r, const char *layers) {
    size_t length = strlen(layers);
    char *copy = wf_arena_alloc(&r->file.arena, length + 1);
    if (copy == NULL)
        return wf_fail(r->file.ctx, WF_ERR_MEMORY, "%s: out of memory for names", r->file.label);
    memcpy(copy, layers, length + 1);
    for (char *rest = copy, *name; (name = wf_next_name(&rest)) != NULL;)
        WF_TRY(add_named_layer(r, name));
    for (int i = 1; i < r->n_weights; i++) {
        const wf_import_item *from = r->weights[i - 1], *to = r->weights[i];
        if (to->shape[1] != from->shape[0])
            return wf_fail(r->file.ctx, WF_ERR_INPUT,
                           "%s: '%.80s' has %zu inputs, but '%.80s' before it has %zu outputs; "
                           "give --layers in another order",
                           r->file.label, to->name, to->shape[1], from->name, from->shape[0]);
    }
    return WF_OK;
}

/* --- biases ----------------------------------------------------------------------------------- */

static wf_status biases_by_name(resolver *r) {
    for (int l = 0; l < r->n_weights; l++) {
        size_t length = 0;
        if (!wf__import_has_tail(r->weights[l]->name, ".weight", &length)) continue;
        for (size_t i = 0; i < r->file.n; i++) {
            size_t bias_length = 0;
            wf_import_item *it = &r->file.list[i];
            if (it->rank != 1 || !wf__import_has_tail(it->name, ".bias", &bias_length) ||
                bias_length != length || memcmp(it->name, r->weights[l]->name, length) != 0)
                continue;
            if (it->shape[0] != r->weights[l]->shape[0])
                return wf_fail(r->file.ctx, WF_ERR_INPUT,
                               "%s: '%.80s' has %zu entries where '%.80s' has %zu outputs",
                               r->file.label, it->name, it->shape[0], r->weights[l]->name,
                               r->weights[l]->shape[0]);
            r->biases[l] = it;
            it->used = true;
        }
    }
    return WF_OK;
}

/* Numbered biases b1, b2 ..., one for each layer that has none yet: in their order, if all
 * lengths fit. */
static bool biases_by_number(resolver *r, wf_import_item **vectors, int n) {
    int open[WF_IMPORT_MAX_LAYERS], n_open = 0;
    for (int l = 0; l < r->n_weights; l++)
        if (r->biases[l] == NULL) open[n_open++] = l;
    if (n != n_open) return false;
    for (int i = 0; i < n; i++) {
        bool by_number = true;
        if (i > 0) wf_natural_order(vectors[i - 1]->name, vectors[i]->name, &by_number);
        if (!by_number || vectors[i]->shape[0] != r->weights[open[i]]->shape[0]) return false;
    }
    for (int i = 0; i < n; i++) {
        r->biases[open[i]] = vectors[i];
        vectors[i]->used = true;
    }
    return true;
}

/* Otherwise a length must belong to one layer and one vector alone. A vector that fits no layer
 * is left over. */
static wf_status biases_by_shape(resolver *r, wf_import_item **vectors, int n) {
    for (int i = 0; i < n; i++) {
        int owner = -1, owners = 0, rivals = 0;
        for (int l = 0; l < r->n_weights; l++)
            if (r->biases[l] == NULL && r->weights[l]->shape[0] == vectors[i]->shape[0])
                owner = l, owners++;
        for (int k = 0; k < n; k++)
            rivals += k != i && vectors[k]->shape[0] == vectors[i]->shape[0];
        if (owners == 0) continue;
        if (owners + rivals != 1)
            return wf__import_refuse(
                &r->file, "it cannot be told which layers these biases belong to",
                WF_IMPORT_UNUSED_VECTORS, "name them like the weights (NAME.weight, NAME.bias)");
        r->biases[owner] = vectors[i];
        vectors[i]->used = true;
    }
    return WF_OK;
}

static wf_status find_biases(resolver *r) {
    WF_TRY(biases_by_name(r));
    wf_import_item *vectors[WF_IMPORT_MAX_LAYERS];
    int n = 0;
    for (size_t i = 0; i < r->file.n; i++) {
        size_t ignored;
        wf_import_item *it = &r->file.list[i];
        if (it->rank != 1 || it->used || !sounds_like_bias(it->name) ||
            wf__import_has_tail(it->name, ".weight", &ignored))
            continue;
        if (n == WF_IMPORT_MAX_LAYERS) break; /* the rest is left over, and said so */
        vectors[n++] = it;
    }
    if (n == 0 || biases_by_number(r, vectors, n)) return WF_OK;
    return biases_by_shape(r, vectors, n);
}

/* A gain and a shift of a normalisation layer (1.weight [16], 1.bias [16]) must not pass for
 * biases: the vector NAME.weight stays unused, and so the list names it. */
static wf_status check_rest(resolver *r) {
    for (size_t i = 0; i < r->file.n; i++)
        if (!r->file.list[i].used)
            return wf__import_refuse(
                &r->file, "tensors are left over that belong to no layer", WF_IMPORT_UNUSED,
                "describe a network with other than fully connected layers with --arch "
                "(docs/import.md)");
    return WF_OK;
}

/* --- the chain -------------------------------------------------------------------------------- */

/* A width beyond int is one that no description takes. */
static int width_of(size_t n) { return n > INT_MAX ? INT_MAX : (int)n; }

/* NAME of NAME.weight, and of NAME.bias where there is one; false where the tensors are called
 * otherwise, or by what a description does not take. */
static bool layer_name(const wf_import_item *weight, const wf_import_item *bias,
                       char out[WF_MAX_NAME + 1]) {
    size_t length, other;
    if (!wf__import_has_tail(weight->name, ".weight", &length) || length > WF_MAX_NAME ||
        wf__import_begins(weight->name, "weft."))
        return false;
    if (bias != NULL && (!wf__import_has_tail(bias->name, ".bias", &other) || other != length ||
                         strncmp(bias->name, weight->name, length) != 0))
        return false;
    for (size_t i = 0; i < length; i++)
        if (!isprint((unsigned char)weight->name[i])) return false;
    memcpy(out, weight->name, length);
    out[length] = 0;
    return true;
}

static void write_chain(const resolver *r, wf_import_chain *out) {
    out->n = r->n_weights;
    out->inputs = width_of(r->weights[0]->shape[1]);
    out->named = true;
    for (int l = 0; l < out->n; l++) {
        const wf_import_item *bias = r->biases[l];
        out->layers[l] = (wf_import_layer){.weight = r->weights[l]->tensor,
                                           .bias = bias ? bias->tensor : NULL,
                                           .units = width_of(r->weights[l]->shape[0])};
        out->named = out->named && layer_name(r->weights[l], bias, out->layers[l].name);
    }
}

static wf_status resolve(resolver *r, const wf_st_tensor *const *tensors, size_t n,
                         const char *layers, bool stackable, wf_import_chain *out) {
    WF_TRY(wf__import_gather(&r->file, tensors, n, stackable));
    WF_TRY(check_items(r, &out->networks));
    WF_TRY(layers != NULL ? order_as_named(r, layers) : order_by_name_and_shape(r));
    for (int l = 0; l < r->n_weights; l++) r->weights[l]->used = true;
    WF_TRY(find_biases(r));
    WF_TRY(check_rest(r));
    write_chain(r, out);
    return WF_OK;
}

wf_status wf_import_resolve(wf_ctx *ctx, const char *label, const wf_st_tensor *const *tensors,
                            size_t n, const char *layers, bool stackable, wf_import_chain *out) {
    *out = (wf_import_chain){0};
    resolver r = {.file = {.ctx = ctx, .label = label}};
    wf_status status = resolve(&r, tensors, n, layers, stackable, out);
    wf__import_items_free(&r.file);
    return status;
}
