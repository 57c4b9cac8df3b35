/* zoo_import_layers: see the header. */
#include "zoo/zoo_import_layers.h"
#include "base/arena.h"
#include "weft/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { max_steps = 100000 }; /* of the search for an order; real networks need one a layer */

/* A tensor under its stripped name; the stacked dimension is not counted. */
typedef struct item {
    const wf_st_tensor *tensor;
    char *name;
    int rank;
    const size_t *shape;
    size_t place; /* in the file */
    bool used;
} item;

typedef struct resolver {
    wf_ctx *ctx;
    const char *label;
    item *items; /* in natural order */
    size_t n;
    int lead; /* 1 when networks are stacked */
    wf_arena arena;
    item *weights[WF_IMPORT_MAX_LAYERS]; /* in order, once found */
    item *biases[WF_IMPORT_MAX_LAYERS];
    int n_weights;
} resolver;

/* --- names ------------------------------------------------------------------------------------ */

static size_t digits(const char *text) { return strspn(text, "0123456789"); }

static int compare_numbers(const char *a, size_t a_length, const char *b, size_t b_length) {
    while (a_length > 1 && *a == '0') a++, a_length--;
    while (b_length > 1 && *b == '0') b++, b_length--;
    if (a_length != b_length) return a_length < b_length ? -1 : 1;
    return memcmp(a, b, a_length);
}

int wf_natural_order(const char *a, const char *b, bool *by_number) {
    bool ignored;
    if (by_number == NULL) by_number = &ignored;
    const char *a_start = a, *b_start = b;
    *by_number = false;
    while (*a != 0 && *b != 0) {
        size_t a_digits = digits(a), b_digits = digits(b);
        if (a_digits > 0 && b_digits > 0) {
            int order = compare_numbers(a, a_digits, b, b_digits);
            *by_number = order != 0;
            if (order != 0) return order;
            a += a_digits;
            b += b_digits;
        } else if (*a == *b) {
            a++;
            b++;
        } else {
            break;
        }
    }
    if (*a != *b) return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
    return strcmp(a_start, b_start); /* "01" and "1": equal numbers, but not the same name */
}

wf_status wf_copy_names(wf_ctx *ctx, const char *text, char **out) {
    size_t size = strlen(text) + 1;
    WF_TRY(wf_alloc(ctx, size, 1, "names", out));
    memcpy(*out, text, size);
    return WF_OK;
}

char *wf_next_name(char **rest) {
    char *name = strsep(rest, ",");
    if (name == NULL) return NULL;
    while (isspace((unsigned char)*name)) name++;
    char *end = name + strlen(name);
    while (end > name && isspace((unsigned char)end[-1])) *--end = 0;
    return name;
}

static int by_natural_name(const void *a, const void *b) {
    return wf_natural_order(((const item *)a)->name, ((const item *)b)->name, NULL);
}

static bool begins(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

/* Takes away what wrappers add: DataParallel's "module." in front, torch.compile's "_orig_mod."
 * wherever a module was compiled. */
static void strip(char *name) {
    static const char parallel[] = "module.", compiled[] = "_orig_mod.";
    const char *from = name;
    for (;;) {
        if (begins(from, parallel)) from += sizeof parallel - 1;
        else if (begins(from, compiled)) from += sizeof compiled - 1;
        else break;
    }
    for (bool start = false; *from != 0;) { /* start of a component? */
        if (start && begins(from, compiled)) {
            from += sizeof compiled - 1;
            continue;
        }
        start = *from == '.';
        *name++ = *from++;
    }
    *name = 0;
}

/* The length of NAME in NAME.weight or NAME; `tail` (".weight" or ".bias") counts only as a
 * whole component. */
static bool has_tail(const char *name, const char *tail, size_t *prefix) {
    size_t length = strlen(name), tail_length = strlen(tail);
    if (strcmp(name, tail + 1) == 0) {
        *prefix = 0;
        return true;
    }
    if (length <= tail_length || strcmp(name + length - tail_length, tail) != 0) return false;
    *prefix = length - tail_length;
    return true;
}

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

/* --- sentences -------------------------------------------------------------------------------- */

typedef enum which { all_items, unused_items, unused_matrices, unused_vectors } which;

static bool is_listed(const item *it, which kind) {
    if (kind == all_items) return true;
    if (it->used) return false;
    return kind == unused_items || it->rank == (kind == unused_matrices ? 2 : 1);
}

/* "fc1.weight F32 [16,64], ... and 3 more" */
static const char *list(const resolver *r, which kind, char out[512]) {
    size_t skipped = 0;
    wf_text all = wf_text_start(out, 480); /* the rest is for the count */
    for (size_t i = 0; i < r->n; i++) {
        const item *it = &r->items[i];
        if (!is_listed(it, kind)) continue;
        char one[192];
        wf_text text = wf_text_start(one, sizeof one);
        wf_text_add(&text, "%s%.60s %s [", all.length > 0 ? ", " : "", it->name,
                    wf_st_dtype_name(it->tensor->dtype));
        for (int d = 0; d < it->rank; d++) wf_text_add(&text, d ? ",%zu" : "%zu", it->shape[d]);
        wf_text_add(&text, "]");
        if (skipped > 0 || text.length >= all.size - all.length) skipped++;
        else wf_text_add(&all, "%s", one);
    }
    all.size = 512;
    if (skipped > 0) wf_text_add(&all, " and %zu more", skipped);
    return out;
}

/* What a name says of a layer that no description has; NULL: nothing. */
static const char *foreign_kind(const char *name) {
    static const char *const words[][2] = {
        {"attn", "an attention layer"},           {"attention", "an attention layer"},
        {"in_proj_weight", "an attention layer"}, {"q_proj", "an attention layer"},
        {"weight_hh_l", "a recurrent layer"},     {"embedding", "an embedding"},
        {"embeddings", "an embedding"},           {"wte.", "an embedding"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i][0]) != NULL) return words[i][1];
    return NULL;
}

static wf_status refuse(const resolver *r, const char *why, which kind, const char *mend) {
    char tensors[512];
    for (size_t i = 0; i < r->n; i++) {
        const char *foreign = foreign_kind(r->items[i].name);
        if (foreign != NULL)
            return wf_fail(r->ctx, WF_ERR_INPUT,
                           "%s: '%.80s' belongs to %s. Transformers, recurrent networks and "
                           "embeddings have no description; linear and convolution layers, norms, "
                           "poolings and residual connections have (docs/import.md)",
                           r->label, r->items[i].name, foreign);
    }
    return wf_fail(r->ctx, WF_ERR_INPUT, "%s: %s: %s; %s", r->label, why, list(r, kind, tensors),
                   mend);
}

/* --- what the file holds ---------------------------------------------------------------------- */

static bool is_float(wf_st_dtype dtype) {
    return dtype == WF_ST_F16 || dtype == WF_ST_BF16 || dtype == WF_ST_F32 || dtype == WF_ST_F64;
}

static wf_status gather_items(resolver *r, const wf_st_tensor *const *tensors, size_t n,
                              bool stackable) {
    WF_TRY(wf_alloc(r->ctx, n, sizeof *r->items, r->label, &r->items));
    for (size_t i = 0; i < n; i++)
        if (stackable && is_float(tensors[i]->dtype) && tensors[i]->rank == 3) r->lead = 1;
    for (size_t i = 0; i < n; i++) {
        item *it = &r->items[r->n++];
        size_t length = strlen(tensors[i]->name);
        it->tensor = tensors[i];
        it->place = i;
        it->name = wf_arena_alloc(&r->arena, length + 1);
        if (it->name == NULL)
            return wf_fail(r->ctx, WF_ERR_MEMORY, "%s: out of memory for names", r->label);
        memcpy(it->name, tensors[i]->name, length + 1);
        strip(it->name);
        it->rank = tensors[i]->rank - r->lead;
        it->shape = tensors[i]->shape + r->lead;
    }
    qsort(r->items, r->n, sizeof *r->items, by_natural_name);
    return WF_OK;
}

static wf_status check_items(resolver *r, size_t *networks) {
    if (r->n == 0) return wf_fail(r->ctx, WF_ERR_INPUT, "%s: no tensors", r->label);
    for (size_t i = 1; i < r->n; i++)
        if (strcmp(r->items[i - 1].name, r->items[i].name) == 0)
            return wf_fail(r->ctx, WF_ERR_INPUT,
                           "%s: two tensors are named '%.80s' without 'module.' and '_orig_mod.'; "
                           "keep one",
                           r->label, r->items[i].name);
    *networks = r->lead ? SIZE_MAX : 1;
    bool strange = false;
    for (size_t i = 0; i < r->n; i++) {
        item *it = &r->items[i];
        it->used = is_float(it->tensor->dtype) && (it->rank == 1 || it->rank == 2) &&
                   it->tensor->count > 0; /* for the list: what is fine */
        if (!it->used) strange = true;
        else if (r->lead && *networks == SIZE_MAX) *networks = it->tensor->shape[0];
        else if (r->lead && *networks != it->tensor->shape[0])
            return refuse(r, "stacked tensors disagree on the number of networks", all_items,
                          "the first dimension of each must be that number");
    }
    if (strange)
        return refuse(r, "not the weights and biases of a fully connected network", unused_items,
                      "describe a network with convolutions or normalisation layers with --arch "
                      "(docs/import.md); whole numbers and empty tensors belong to no layer");
    for (size_t i = 0; i < r->n; i++) r->items[i].used = false;
    return WF_OK;
}

/* --- order of the weights --------------------------------------------------------------------- */

typedef struct search {
    item *matrices[WF_IMPORT_MAX_LAYERS];
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
    for (size_t i = 0; i < r->n; i++) {
        if (r->items[i].rank != 2) continue;
        if (s.n == WF_IMPORT_MAX_LAYERS)
            return wf_fail(r->ctx, WF_ERR_INPUT, "%s: more than %d matrices", r->label,
                           WF_IMPORT_MAX_LAYERS);
        s.matrices[s.n++] = &r->items[i];
    }
    if (s.n == 0)
        return refuse(r, "no weight matrices [out,in]", all_items, "save model.state_dict()");
    for (int i = 0; i < s.n; i++)
        for (int k = i + 1; k < s.n; k++) /* sorted, so only i can stand before k */
            wf_natural_order(s.matrices[i]->name, s.matrices[k]->name, &s.before[i][k]);
    find_orders(&s, 0);
    if (s.found == 0 && s.steps < max_steps)
        return refuse(r, "the matrices do not chain in the order of their names", unused_matrices,
                      "each layer's inputs must be the outputs before it; name the layers in order "
                      "with --layers a,b,c");
    if (s.found != 1)
        return refuse(r, "the order of the layers is ambiguous", unused_matrices,
                      "name them in order with --layers a,b,c");
    r->n_weights = s.n;
    for (int i = 0; i < s.n; i++) r->weights[i] = s.matrices[s.found_order[i]];
    return WF_OK;
}

static item *find_item(const resolver *r, const char *name) {
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->items[i].name, name) == 0) return &r->items[i];
    return NULL;
}

/* One name of --layers: the tensor itself or NAME.weight. */
static wf_status add_named_layer(resolver *r, char *name) {
    strip(name);
    char weight[512];
    if ((size_t)snprintf(weight, sizeof weight, "%s%sweight", name, *name ? "." : "") >=
        sizeof weight)
        return wf_fail(r->ctx, WF_ERR_USAGE, "layers: the name \"%.40s...\" is too long", name);
    item *found = find_item(r, weight);
    if (found == NULL) found = find_item(r, name);
    if (found == NULL || found->rank != 2) {
        char tensors[512];
        return wf_fail(r->ctx, WF_ERR_INPUT, "%s: layer \"%.80s\" has no weight matrix among %s",
                       r->label, name, list(r, all_items, tensors));
    }
    for (int i = 0; i < r->n_weights; i++)
        if (r->weights[i] == found)
            return wf_fail(r->ctx, WF_ERR_USAGE, "layers: \"%.80s\" is named twice", name);
    if (r->n_weights == WF_IMPORT_MAX_LAYERS)
        return wf_fail(r->ctx, WF_ERR_USAGE, "layers: more than %d", WF_IMPORT_MAX_LAYERS);
    r->weights[r->n_weights++] = found;
    return WF_OK;
}

static wf_status order_as_named(resolver *r, const char *layers) {
    size_t length = strlen(layers);
    char *copy = wf_arena_alloc(&r->arena, length + 1);
    if (copy == NULL)
        return wf_fail(r->ctx, WF_ERR_MEMORY, "%s: out of memory for names", r->label);
    memcpy(copy, layers, length + 1);
    for (char *rest = copy, *name; (name = wf_next_name(&rest)) != NULL;)
        WF_TRY(add_named_layer(r, name));
    for (int i = 1; i < r->n_weights; i++) {
        const item *from = r->weights[i - 1], *to = r->weights[i];
        if (to->shape[1] != from->shape[0])
            return wf_fail(r->ctx, WF_ERR_INPUT,
                           "%s: '%.80s' has %zu inputs, but '%.80s' before it has %zu outputs; "
                           "give --layers in another order",
                           r->label, to->name, to->shape[1], from->name, from->shape[0]);
    }
    return WF_OK;
}

/* --- biases ----------------------------------------------------------------------------------- */

static wf_status biases_by_name(resolver *r) {
    for (int l = 0; l < r->n_weights; l++) {
        size_t length = 0;
        if (!has_tail(r->weights[l]->name, ".weight", &length)) continue;
        for (size_t i = 0; i < r->n; i++) {
            size_t bias_length = 0;
            item *it = &r->items[i];
            if (it->rank != 1 || !has_tail(it->name, ".bias", &bias_length) ||
                bias_length != length || memcmp(it->name, r->weights[l]->name, length) != 0)
                continue;
            if (it->shape[0] != r->weights[l]->shape[0])
                return wf_fail(r->ctx, WF_ERR_INPUT,
                               "%s: '%.80s' has %zu entries where '%.80s' has %zu outputs",
                               r->label, it->name, it->shape[0], r->weights[l]->name,
                               r->weights[l]->shape[0]);
            r->biases[l] = it;
            it->used = true;
        }
    }
    return WF_OK;
}

/* Numbered biases b1, b2 ..., one for each layer that has none yet: in their order, if all
 * lengths fit. */
static bool biases_by_number(resolver *r, item **vectors, int n) {
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
static wf_status biases_by_shape(resolver *r, item **vectors, int n) {
    for (int i = 0; i < n; i++) {
        int owner = -1, owners = 0, rivals = 0;
        for (int l = 0; l < r->n_weights; l++)
            if (r->biases[l] == NULL && r->weights[l]->shape[0] == vectors[i]->shape[0])
                owner = l, owners++;
        for (int k = 0; k < n; k++)
            rivals += k != i && vectors[k]->shape[0] == vectors[i]->shape[0];
        if (owners == 0) continue;
        if (owners + rivals != 1)
            return refuse(r, "it cannot be told which layers these biases belong to",
                          unused_vectors, "name them like the weights (NAME.weight, NAME.bias)");
        r->biases[owner] = vectors[i];
        vectors[i]->used = true;
    }
    return WF_OK;
}

static wf_status find_biases(resolver *r) {
    WF_TRY(biases_by_name(r));
    item *vectors[WF_IMPORT_MAX_LAYERS];
    int n = 0;
    for (size_t i = 0; i < r->n; i++) {
        size_t ignored;
        item *it = &r->items[i];
        if (it->rank != 1 || it->used || !sounds_like_bias(it->name) ||
            has_tail(it->name, ".weight", &ignored))
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
    for (size_t i = 0; i < r->n; i++)
        if (!r->items[i].used)
            return refuse(r, "tensors are left over that belong to no layer", unused_items,
                          "describe a network with other than fully connected layers with --arch "
                          "(docs/import.md)");
    return WF_OK;
}

/* --- the chain -------------------------------------------------------------------------------- */

/* A width beyond int is one that no description takes. */
static int width_of(size_t n) { return n > INT_MAX ? INT_MAX : (int)n; }

/* NAME of NAME.weight, and of NAME.bias where there is one; false where the tensors are called
 * otherwise, or by what a description does not take. */
static bool layer_name(const item *weight, const item *bias, char out[WF_MAX_NAME + 1]) {
    size_t length, other;
    if (!has_tail(weight->name, ".weight", &length) || length > WF_MAX_NAME ||
        begins(weight->name, "weft."))
        return false;
    if (bias != NULL && (!has_tail(bias->name, ".bias", &other) || other != length ||
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
        const item *bias = r->biases[l];
        out->layers[l] = (wf_import_layer){.weight = r->weights[l]->tensor,
                                           .bias = bias ? bias->tensor : NULL,
                                           .units = width_of(r->weights[l]->shape[0])};
        out->named = out->named && layer_name(r->weights[l], bias, out->layers[l].name);
    }
}

static wf_status resolve(resolver *r, const wf_st_tensor *const *tensors, size_t n,
                         const char *layers, bool stackable, wf_import_chain *out) {
    WF_TRY(gather_items(r, tensors, n, stackable));
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
    resolver r = {.ctx = ctx, .label = label};
    wf_status status = resolve(&r, tensors, n, layers, stackable, out);
    free(r.items);
    wf_arena_free(&r.arena);
    return status;
}

/* --- a described network ---------------------------------------------------------------------- */

static bool is_counter(const item *it) {
    static const char tail[] = "num_batches_tracked";
    size_t length = strlen(it->name);
    return length >= sizeof tail - 1 && strcmp(it->name + length - (sizeof tail - 1), tail) == 0;
}

/* Stacked, when a tensor of a known shape has one dimension more. */
static bool has_shape(const item *it, const wf_graph *graph, const wf_block *block, int lead) {
    size_t shape[4];
    int rank = wf_block_shape(graph, block, shape);
    if (it->tensor->rank != rank + lead || !is_float(it->tensor->dtype)) return false;
    for (int d = 0; d < rank; d++)
        if (it->tensor->shape[d + lead] != shape[d]) return false;
    return true;
}

static wf_status wrong_shape(const resolver *r, const item *it, const wf_graph *graph,
                             const wf_block *block) {
    size_t shape[4];
    int rank = wf_block_shape(graph, block, shape);
    char wanted[128], found[160];
    wf_text text = wf_text_start(wanted, sizeof wanted);
    for (int d = 0; d < rank; d++) wf_text_add(&text, d ? ",%zu" : "%zu", shape[d]);
    text = wf_text_start(found, sizeof found);
    for (int d = 0; d < it->tensor->rank; d++)
        wf_text_add(&text, d ? ",%zu" : "%zu", it->tensor->shape[d]);
    return wf_fail(r->ctx, WF_ERR_INPUT,
                   "%s: '%.80s' is %s [%s], layer %d of %.200s needs [%s] for %s; give another "
                   "--arch",
                   r->label, it->name, wf_st_dtype_name(it->tensor->dtype), found, block->layer + 1,
                   graph->text, wanted, block->name);
}

static item *item_at(const resolver *r, size_t place) {
    for (size_t i = 0; i < r->n; i++)
        if (r->items[i].place == place) return &r->items[i];
    return NULL;
}

/* The item of each block: by name, or all in the order of the file (*by_order). */
static wf_status assign_blocks(resolver *r, const wf_graph *graph, item **of_block,
                               bool *by_order) {
    int named = 0;
    for (int b = 0; b < graph->n_blocks; b++) {
        of_block[b] = find_item(r, graph->blocks[b].name);
        named += of_block[b] != NULL;
    }
    *by_order = named == 0;
    if (named > 0)
        for (int b = 0; b < graph->n_blocks; b++)
            if (of_block[b] == NULL)
                return wf_fail(r->ctx, WF_ERR_INPUT, "%s: no tensor '%.80s' for layer %d of %.200s",
                               r->label, graph->blocks[b].name, graph->blocks[b].layer + 1,
                               graph->text);
    size_t left = 0, next = 0;
    for (size_t i = 0; i < r->n; i++) left += !is_counter(&r->items[i]);
    if (named == 0 && left != (size_t)graph->n_blocks)
        return refuse(r, "the description has another number of tensors", all_items,
                      "give another --arch, or a JSON description with these names");
    for (int b = 0; named == 0 && b < graph->n_blocks; b++) {
        while (is_counter(item_at(r, next))) next++;
        of_block[b] = item_at(r, next++);
    }
    for (int b = 0; b < graph->n_blocks; b++) of_block[b]->used = true;
    for (size_t i = 0; i < r->n; i++)
        if (!r->items[i].used && !is_counter(&r->items[i]))
            return refuse(r, "tensors are left over that belong to no layer of the description",
                          unused_items, "give another --arch");
    return WF_OK;
}

static wf_status take_parts(resolver *r, const wf_graph *graph, bool stackable, item **of_block,
                            const wf_st_tensor **parts, size_t *networks, bool *by_order) {
    WF_TRY(assign_blocks(r, graph, of_block, by_order));
    int lead = stackable && !has_shape(of_block[0], graph, &graph->blocks[0], 0);
    for (int b = 0; b < graph->n_blocks; b++) {
        if (!has_shape(of_block[b], graph, &graph->blocks[b], lead))
            return wrong_shape(r, of_block[b], graph, &graph->blocks[b]);
        parts[b] = of_block[b]->tensor;
        size_t stacked = lead ? parts[b]->shape[0] : 1;
        if (b > 0 && stacked != *networks)
            return refuse(r, "stacked tensors disagree on the number of networks", all_items,
                          "the first dimension of each must be that number");
        *networks = stacked;
    }
    if (*networks == 0) return wf_fail(r->ctx, WF_ERR_INPUT, "%s: no networks", r->label);
    return WF_OK;
}

/* NAME of the block's tensor, where all tensors of that module are NAME.weight, NAME.bias ...;
 * NULL: they are called otherwise. */
static char *module_name(resolver *r, const item *it, const wf_block *block) {
    const char *tail = strrchr(block->name, '.');
    size_t length = 0;
    tail = tail == NULL ? block->name : tail;
    char dotted[32];
    snprintf(dotted, sizeof dotted, "%s%s", *tail == '.' ? "" : ".", tail);
    if (!has_tail(it->name, dotted, &length)) return NULL;
    char *name = wf_arena_alloc(&r->arena, length + 1);
    if (name == NULL) return NULL;
    memcpy(name, it->name, length);
    name[length] = 0;
    return name;
}

/* The description with the names that the file has, so that an export has them again. Where they
 * do not pair up as modules, it keeps its own. */
static wf_status take_names(resolver *r, item *const *of_block, wf_graph **graph) {
    const wf_graph *old = *graph;
    wf_layer *layers;
    WF_TRY(wf_alloc(r->ctx, (size_t)old->n_layers, sizeof *layers, r->label, &layers));
    memcpy(layers, old->layers, (size_t)old->n_layers * sizeof *layers);
    bool pair = true;
    for (int b = 0; b < old->n_blocks && pair; b++) {
        const wf_block *block = &old->blocks[b];
        wf_layer *layer = &layers[block->layer];
        char *name = module_name(r, of_block[b], block);
        bool first = block->kind == WF_BLOCK_WEIGHT || block->kind == WF_BLOCK_GAMMA;
        const char **place = block->kind <= WF_BLOCK_BIAS ? &layer->name : &layer->norm_name;
        pair = name != NULL && (first || strcmp(name, *place) == 0);
        *place = name;
    }
    wf_graph *renamed = NULL;
    wf_status status = WF_OK;
    if (pair) status = wf__graph_rebuild(r->ctx, old, layers, 0, &renamed);
    free(layers);
    if (status == WF_ERR_MEMORY) return status;
    if (renamed == NULL) return WF_OK; /* names that no description takes */
    wf_graph_free(*graph);
    *graph = renamed;
    return WF_OK;
}

wf_status wf_import_described(wf_ctx *ctx, const char *label, const wf_st_tensor *const *tensors,
                              size_t n, wf_graph **graph, bool stackable,
                              const wf_st_tensor **parts, size_t *networks) {
    resolver r = {.ctx = ctx, .label = label};
    item **of_block = NULL;
    bool by_order = false;
    wf_status status =
        wf_alloc(ctx, (size_t)(*graph)->n_blocks, sizeof *of_block, label, &of_block);
    if (status == WF_OK) status = gather_items(&r, tensors, n, false);
    if (status == WF_OK && r.n == 0) status = wf_fail(ctx, WF_ERR_INPUT, "%s: no tensors", label);
    if (status == WF_OK)
        status = take_parts(&r, *graph, stackable, of_block, parts, networks, &by_order);
    if (status == WF_OK && by_order) status = take_names(&r, of_block, graph);
    free(of_block);
    free(r.items);
    wf_arena_free(&r.arena);
    return status;
}
