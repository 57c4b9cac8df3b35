/* zoo_import_items: see the header. */
#include "zoo/zoo_import_items.h"

#include "weft/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

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
    return wf_natural_order(((const wf_import_item *)a)->name, ((const wf_import_item *)b)->name,
                            NULL);
}

bool wf__import_begins(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

/* Takes away what wrappers add: DataParallel's "module." in front, torch.compile's "_orig_mod."
 * wherever a module was compiled. */
void wf__import_strip(char *name) {
    static const char parallel[] = "module.", compiled[] = "_orig_mod.";
    const char *from = name;
    for (;;) {
        if (wf__import_begins(from, parallel)) from += sizeof parallel - 1;
        else if (wf__import_begins(from, compiled)) from += sizeof compiled - 1;
        else break;
    }
    for (bool start = false; *from != 0;) { /* start of a component? */
        if (start && wf__import_begins(from, compiled)) {
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
bool wf__import_has_tail(const char *name, const char *tail, size_t *prefix) {
    size_t length = strlen(name), tail_length = strlen(tail);
    if (strcmp(name, tail + 1) == 0) {
        *prefix = 0;
        return true;
    }
    if (length <= tail_length || strcmp(name + length - tail_length, tail) != 0) return false;
    *prefix = length - tail_length;
    return true;
}

/* --- sentences -------------------------------------------------------------------------------- */

static bool is_listed(const wf_import_item *it, wf_import_which kind) {
    if (kind == WF_IMPORT_ALL) return true;
    if (it->used) return false;
    return kind == WF_IMPORT_UNUSED || it->rank == (kind == WF_IMPORT_UNUSED_MATRICES ? 2 : 1);
}

/* "fc1.weight F32 [16,64], ... and 3 more" */
const char *wf__import_list(const wf_import_items *file, wf_import_which kind, char out[512]) {
    size_t skipped = 0;
    wf_text all = wf_text_start(out, 480); /* the rest is for the count */
    for (size_t i = 0; i < file->n; i++) {
        const wf_import_item *it = &file->list[i];
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

wf_status wf__import_refuse(const wf_import_items *file, const char *why, wf_import_which kind,
                            const char *mend) {
    char tensors[512];
    for (size_t i = 0; i < file->n; i++) {
        const char *foreign = foreign_kind(file->list[i].name);
        if (foreign != NULL)
            return wf_fail(file->ctx, WF_ERR_INPUT,
                           "%s: '%.80s' belongs to %s. Transformers, recurrent networks and "
                           "embeddings have no description; linear and convolution layers, norms, "
                           "poolings and residual connections have (docs/import.md)",
                           file->label, file->list[i].name, foreign);
    }
    return wf_fail(file->ctx, WF_ERR_INPUT, "%s: %s: %s; %s", file->label, why,
                   wf__import_list(file, kind, tensors), mend);
}

/* --- tensors ---------------------------------------------------------------------------------- */

bool wf__import_is_float(wf_st_dtype dtype) {
    return dtype == WF_ST_F16 || dtype == WF_ST_BF16 || dtype == WF_ST_F32 || dtype == WF_ST_F64;
}

wf_status wf__import_gather(wf_import_items *file, const wf_st_tensor *const *tensors, size_t n,
                            bool stackable) {
    WF_TRY(wf_alloc(file->ctx, n, sizeof *file->list, file->label, &file->list));
    for (size_t i = 0; i < n; i++)
        if (stackable && wf__import_is_float(tensors[i]->dtype) && tensors[i]->rank == 3)
            file->lead = 1;
    for (size_t i = 0; i < n; i++) {
        wf_import_item *it = &file->list[file->n++];
        size_t length = strlen(tensors[i]->name);
        it->tensor = tensors[i];
        it->place = i;
        it->name = wf_arena_alloc(&file->arena, length + 1);
        if (it->name == NULL)
            return wf_fail(file->ctx, WF_ERR_MEMORY, "%s: out of memory for names", file->label);
        memcpy(it->name, tensors[i]->name, length + 1);
        wf__import_strip(it->name);
        it->rank = tensors[i]->rank - file->lead;
        it->shape = tensors[i]->shape + file->lead;
    }
    qsort(file->list, file->n, sizeof *file->list, by_natural_name);
    return WF_OK;
}

wf_import_item *wf__import_find(const wf_import_items *file, const char *name) {
    for (size_t i = 0; i < file->n; i++)
        if (strcmp(file->list[i].name, name) == 0) return &file->list[i];
    return NULL;
}

void wf__import_items_free(wf_import_items *file) {
    free(file->list);
    wf_arena_free(&file->arena);
}
