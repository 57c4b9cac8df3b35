/* zoo_select: parts of collections, and collections joined (weft/zoo.h), in a new file or as one
 * collection of many files.
 *
 * Columns (seeds, rates, scores, error masks) are gathered network by network where every pick has
 * them. Metadata is kept where all picks say the same; names of networks are joined. */
#include "base/digest.h"
#include "base/json_text.h"
#include "base/safetensors.h"
#include "weft/file.h"
#include "zoo/zoo_file.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

enum { max_tests = 8, max_meta = 32 };
static const char sources_key[] = "weft.sources";

typedef struct selection {
    wf_ctx *ctx;
    const wf_zoo_pick *picks;
    int n;
    size_t count;
    wf_zoo_extra extra;
    void *owned[4 + 2 * max_tests]; /* columns */
    int n_owned;
    char *sources; /* JSON */
    /* The next network to hand out: place `at` of pick `pick`. */
    int pick;
    size_t at;
} selection;

static size_t pick_size(const wf_zoo_pick *pick) {
    return pick->index == NULL ? wf_zoo_count(pick->zoo) : pick->n;
}

static size_t pick_index(const wf_zoo_pick *pick, size_t place) {
    return pick->index == NULL ? place : pick->index[place];
}

/* --- names ------------------------------------------------------------------------------------ */

void wf_zoo_names_free(char **names, size_t count) {
    for (size_t i = 0; names != NULL && i < count; i++) free(names[i]);
    free(names);
}

/* *out: the list of names, one for each network; NULL where there is none. */
static wf_status read_sources(wf_ctx *ctx, const wf_zoo *zoo, json_t **out) {
    const char *text = wf_zoo_meta(zoo, sources_key);
    *out = NULL;
    if (text == NULL) return WF_OK;
    wf_status status = wf_json_read(ctx, wf_zoo_path(zoo), text, WF_ERR_INPUT, out);
    if (status == WF_ERR_MEMORY) return status;
    bool fits = json_is_array(*out) && json_array_size(*out) == wf_zoo_count(zoo);
    for (size_t i = 0; fits && i < json_array_size(*out); i++)
        fits = json_is_string(json_array_get(*out, i));
    if (fits) return WF_OK;
    json_decref(*out);
    *out = NULL;
    return WF_OK;
}

wf_status wf_zoo_names(wf_ctx *ctx, const wf_zoo *zoo, char ***out) {
    *out = NULL;
    json_t *list;
    WF_TRY(read_sources(ctx, zoo, &list));
    if (list == NULL) return WF_OK;
    size_t count = wf_zoo_count(zoo);
    wf_status status = wf_alloc(ctx, count, sizeof **out, "names", out);
    for (size_t i = 0; i < count && status == WF_OK; i++) {
        (*out)[i] = strdup(json_string_value(json_array_get(list, i)));
        if ((*out)[i] == NULL) status = wf_fail(ctx, WF_ERR_MEMORY, "names: out of memory");
    }
    json_decref(list);
    if (status == WF_OK) return WF_OK;
    wf_zoo_names_free(*out, count);
    *out = NULL;
    return status;
}

/* Names of all picked networks; none where a pick has none. */
static wf_status join_names(selection *s) {
    json_t *all = json_array(), *list;
    bool whole = all != NULL, named = true;
    wf_status status = WF_OK;
    for (int p = 0; p < s->n && whole && named; p++) {
        WF_TRY_GOTO(read_sources(s->ctx, s->picks[p].zoo, &list), done);
        named = list != NULL;
        for (size_t k = 0; whole && named && k < pick_size(&s->picks[p]); k++)
            whole = json_array_append(all, json_array_get(list, pick_index(&s->picks[p], k))) == 0;
        json_decref(list);
    }
    if (whole && named) s->sources = wf_json_text(all, JSON_COMPACT);
    if (!whole || (named && s->sources == NULL))
        status = wf_fail(s->ctx, WF_ERR_MEMORY, "%s: out of memory", sources_key);
done:
    json_decref(all);
    return status;
}

/* --- metadata --------------------------------------------------------------------------------- */

/* What all picks say under this key; NULL where they differ. */
static const char *common_value(const selection *s, const char *key) {
    const char *value = wf_zoo_meta(s->picks[0].zoo, key);
    for (int p = 1; p < s->n && value != NULL; p++) {
        const char *other = wf_zoo_meta(s->picks[p].zoo, key);
        if (other == NULL || strcmp(other, value) != 0) value = NULL;
    }
    return value;
}

static wf_status add_meta(selection *s, const char *key, const char *value) {
    if (value == NULL) return WF_OK;
    if (s->extra.n_meta == max_meta)
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: more than %d keys of metadata",
                       wf_zoo_path(s->picks[0].zoo), max_meta);
    s->extra.meta[s->extra.n_meta][0] = key;
    s->extra.meta[s->extra.n_meta++][1] = value;
    return WF_OK;
}

static bool is_written_anew(const char *key) {
    static const char *const keys[] = {"weft.format",     "weft.graph",  "weft.arch",
                                       "weft.activation", "weft.digest", sources_key};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

static wf_status join_meta(selection *s) {
    const wf_zoo *first = s->picks[0].zoo;
    WF_TRY(join_names(s));
    /* One stacked file has one name for all its networks. */
    WF_TRY(
        add_meta(s, sources_key, s->sources != NULL ? s->sources : common_value(s, sources_key)));
    for (size_t i = 0; i < wf_zoo_meta_count(first); i++) {
        const char *key, *value;
        wf_zoo_meta_at(first, i, &key, &value);
        if (!is_written_anew(key)) WF_TRY(add_meta(s, key, common_value(s, key)));
    }
    for (int p = 1; p < s->n; p++) {
        const char *a = wf_zoo_meta(first, "weft.data");
        const char *b = wf_zoo_meta(s->picks[p].zoo, "weft.data");
        if (a == NULL || b == NULL || strcmp(a, b) == 0) continue;
        wf_warn(s->ctx,
                "%s and %s were scored on different data; scores and preparation on which "
                "they differ are left out",
                wf_zoo_path(first), wf_zoo_path(s->picks[p].zoo));
        break;
    }
    return WF_OK;
}

/* --- columns ---------------------------------------------------------------------------------- */

/* Where a pick keeps a column; NULL where it has none. */
typedef const void *column_of(const wf_zoo *zoo, const char *test, size_t *bytes);

static const void *seeds_of(const wf_zoo *zoo, const char *test, size_t *bytes) {
    (void)test;
    *bytes = sizeof(int64_t);
    return wf_zoo_seeds(zoo);
}

static const void *rates_of(const wf_zoo *zoo, const char *test, size_t *bytes) {
    (void)test;
    *bytes = sizeof(float);
    return wf_zoo_rates(zoo);
}

static const void *epochs_of(const wf_zoo *zoo, const char *test, size_t *bytes) {
    (void)test;
    *bytes = sizeof(int32_t);
    return wf_zoo_epochs(zoo);
}

static const void *scores_of(const wf_zoo *zoo, const char *test, size_t *bytes) {
    *bytes = sizeof(float);
    return wf_zoo_scores(zoo, test);
}

static const void *errors_of(const wf_zoo *zoo, const char *test, size_t *bytes) {
    return wf_zoo_errors(zoo, test, bytes);
}

/* The column of all picked networks; *out NULL where a pick has none, or one of another width. */
static wf_status gather(selection *s, column_of *of, const char *test, size_t *bytes,
                        const void **out) {
    size_t width;
    *out = NULL;
    for (int p = 0; p < s->n; p++) {
        if (of(s->picks[p].zoo, test, &width) == NULL) return WF_OK;
        if (p == 0) *bytes = width;
        else if (width != *bytes) return WF_OK;
    }
    uint8_t *column, *at;
    WF_TRY(wf_alloc(s->ctx, s->count, *bytes, "columns", &column));
    s->owned[s->n_owned++] = at = column;
    for (int p = 0; p < s->n; p++) {
        const uint8_t *from = of(s->picks[p].zoo, test, &width);
        for (size_t k = 0; k < pick_size(&s->picks[p]); k++, at += *bytes)
            memcpy(at, from + pick_index(&s->picks[p], k) * *bytes, *bytes);
    }
    *out = column;
    return WF_OK;
}

static wf_status join_columns(selection *s) {
    size_t bytes;
    const void *column;
    wf_zoo_extra *extra = &s->extra;
    WF_TRY(gather(s, seeds_of, NULL, &bytes, &column));
    extra->seeds = column;
    WF_TRY(gather(s, rates_of, NULL, &bytes, &column));
    extra->lr = column;
    WF_TRY(gather(s, epochs_of, NULL, &bytes, &column));
    extra->epochs = column;
    const char *test;
    for (int t = 0; t < max_tests && (test = wf_zoo_test(s->picks[0].zoo, t)) != NULL; t++) {
        int place = extra->n_tests;
        WF_TRY(gather(s, scores_of, test, &bytes, &column));
        extra->scores[place] = column;
        WF_TRY(gather(s, errors_of, test, &extra->error_bytes[place], &column));
        extra->errors[place] = column;
        if (extra->scores[place] == NULL && extra->errors[place] == NULL) continue;
        extra->test_names[place] = test;
        extra->n_tests++;
    }
    return WF_OK;
}

/* --- the call --------------------------------------------------------------------------------- */

static wf_status check_picks(selection *s) {
    const wf_graph *graph = wf_zoo_graph(s->picks[0].zoo);
    for (int p = 0; p < s->n; p++) {
        const wf_zoo_pick *pick = &s->picks[p];
        if (!wf_graph_equal(wf_zoo_graph(pick->zoo), graph))
            return wf_fail(s->ctx, WF_ERR_SHAPE,
                           "%s has networks of %s (%s), %s of %s (%s): a collection has one "
                           "architecture",
                           wf_zoo_path(s->picks[0].zoo), graph->text,
                           wf_activation_name(graph->activation), wf_zoo_path(pick->zoo),
                           wf_zoo_graph(pick->zoo)->text,
                           wf_activation_name(wf_zoo_graph(pick->zoo)->activation));
        for (size_t k = 0; k < pick_size(pick); k++)
            if (pick_index(pick, k) >= wf_zoo_count(pick->zoo))
                return wf_fail(
                    s->ctx, WF_ERR_USAGE, "%s: network %zu was asked for, the last one is %zu",
                    wf_zoo_path(pick->zoo), pick_index(pick, k), wf_zoo_count(pick->zoo) - 1);
        s->count += pick_size(pick);
    }
    return WF_OK;
}

/* wf_zoo_write_from asks for each network once, in order. */
static void next_network(void *selection_, size_t index, float *w) {
    (void)index;
    selection *s = selection_;
    while (s->at == pick_size(&s->picks[s->pick])) s->pick++, s->at = 0;
    wf_zoo_get(s->picks[s->pick].zoo, pick_index(&s->picks[s->pick], s->at++), w);
}

wf_status wf_zoo_select(wf_ctx *ctx, const wf_zoo_pick *picks, int n, const char *path) {
    selection s = {.ctx = ctx, .picks = picks, .n = n};
    wf_status status = check_picks(&s);
    for (int p = 0; p < n && status == WF_OK; p++) status = wf_zoo_verify(ctx, picks[p].zoo);
    if (status == WF_OK) status = join_columns(&s);
    if (status == WF_OK) status = join_meta(&s);
    if (status == WF_OK)
        status = wf_zoo_write_from(ctx, path, wf_zoo_graph(picks[0].zoo), next_network, &s, s.count,
                                   &s.extra);
    for (int i = 0; i < s.n_owned; i++) free(s.owned[i]);
    free(s.sources);
    return status;
}

/* --- one collection of many files ------------------------------------------------------------- */

bool wf__zoo_is_pattern(const char *path) {
    return strpbrk(path, "*?[") != NULL && !wf_file_exists(path);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reference clouds lie beside collections and match the same pattern. */
static bool is_cloud(const char *path) {
    static const char ending[] = ".cloud.safetensors";
    size_t length = strlen(path), end = strlen(ending);
    return length >= end && strcmp(path + length - end, ending) == 0;
}

/* The digest of all parts' digests; "" where a part has none. */
static wf_status join_digests(wf_ctx *ctx, const wf_zoo *zoo, char out[WF_DIGEST_DIGITS + 1]) {
    wf_digest digest;
    bool known = true;
    out[0] = '\0';
    WF_TRY(wf_digest_start(ctx, &digest));
    for (size_t p = 0; p < zoo->n_parts; p++) {
        const char *text = wf_zoo_meta(zoo->parts[p], "weft.digest");
        known = known && text != NULL;
        if (known) wf_digest_add(&digest, text, strlen(text));
    }
    wf_digest_end(&digest, out);
    out[known ? WF_DIGEST_DIGITS : 0] = '\0';
    return WF_OK;
}

/* Columns and metadata of the joined parts become the collection's own. */
static wf_status take_joined(selection *s, wf_zoo *zoo) {
    const wf_zoo_extra *extra = &s->extra;
    char digest[WF_DIGEST_DIGITS + 1];
    zoo->count = s->count;
    zoo->seeds = (int64_t *)(uintptr_t)extra->seeds;
    zoo->rates = (float *)(uintptr_t)extra->lr;
    zoo->epochs = (int32_t *)(uintptr_t)extra->epochs;
    s->n_owned = 0;
    for (int t = 0; t < extra->n_tests; t++) {
        wf_zoo_test_set *test = &zoo->tests[zoo->n_tests++];
        *test = (wf_zoo_test_set){.name = strdup(extra->test_names[t]),
                                  .scores = (float *)(uintptr_t)extra->scores[t],
                                  .errors = extra->errors[t],
                                  .own_errors = (uint8_t *)(uintptr_t)extra->errors[t],
                                  .error_bytes = extra->error_bytes[t]};
    }
    for (int t = 0; t < zoo->n_tests; t++)
        if (zoo->tests[t].name == NULL)
            return wf_fail(s->ctx, WF_ERR_MEMORY, "%s: out of memory", zoo->path);
    for (int i = 0; i < extra->n_meta; i++)
        WF_TRY(wf__zoo_put_meta(s->ctx, zoo, extra->meta[i][0], extra->meta[i][1]));
    WF_TRY(join_digests(s->ctx, zoo, digest));
    if (digest[0] != '\0') WF_TRY(wf__zoo_put_meta(s->ctx, zoo, "weft.digest", digest));
    for (size_t p = 0; p < zoo->n_parts; p++) wf__zoo_free_columns(zoo->parts[p]);
    return wf_graph_clone(s->ctx, wf_zoo_graph(zoo->parts[0]), &zoo->graph);
}

static wf_status join_parts(wf_ctx *ctx, wf_zoo *zoo) {
    wf_zoo_pick *picks;
    WF_TRY(wf_alloc(ctx, zoo->n_parts, sizeof *picks, zoo->path, &picks));
    for (size_t p = 0; p < zoo->n_parts; p++) picks[p].zoo = zoo->parts[p];
    selection s = {.ctx = ctx, .picks = picks, .n = (int)zoo->n_parts};
    wf_status status = check_picks(&s);
    if (status == WF_OK) status = join_columns(&s);
    if (status == WF_OK) status = join_meta(&s);
    if (status == WF_OK) status = take_joined(&s, zoo);
    for (int i = 0; i < s.n_owned; i++) free(s.owned[i]);
    free(s.sources);
    free(picks);
    return status;
}

/* Adds the files that match, sorted. */
static wf_status take_matches(wf_ctx *ctx, const char *path, const glob_t *found, char **files,
                              size_t *count) {
    for (size_t i = 0; i < found->gl_pathc; i++) {
        if (is_cloud(found->gl_pathv[i])) continue;
        files[*count] = strdup(found->gl_pathv[i]);
        if (files[*count] == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
        ++*count;
    }
    qsort(files, *count, sizeof *files, by_name);
    return WF_OK;
}

wf_status wf_zoo_files(wf_ctx *ctx, const char *path, char ***out, size_t *count) {
    *out = NULL;
    *count = 0;
    glob_t found = {0};
    errno = 0;
    bool pattern = wf__zoo_is_pattern(path);
    int flags = GLOB_ERR | GLOB_NOSORT | (pattern ? 0 : GLOB_NOESCAPE);
    int failed = pattern ? glob(path, flags, NULL, &found) : 0;
    wf_status status = WF_OK;
    if (failed == GLOB_NOSPACE) status = wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    else if (failed == GLOB_ABORTED)
        status = wf_fail_errno(ctx, WF_ERR_INPUT, "%s: a folder cannot be read", path);
    if (status == WF_OK) status = wf_alloc(ctx, found.gl_pathc + 1, sizeof **out, path, out);
    if (status == WF_OK && pattern) status = take_matches(ctx, path, &found, *out, count);
    else if (status == WF_OK && ((*out)[(*count)++] = strdup(path)) == NULL)
        status = wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
    if (failed == 0 && pattern) globfree(&found);
    if (status == WF_OK && *count == 0)
        status = wf_fail(ctx, WF_ERR_INPUT, "%s: no file matches this pattern", path);
    if (status == WF_OK) return WF_OK;
    wf_zoo_names_free(*out, *count);
    *out = NULL;
    *count = 0;
    return status;
}

/* Seeds count the networks of a collection. Files of one recipe that continue each other leave no
 * gap between them and share none. */
static void warn_of_gap(wf_ctx *ctx, const wf_zoo *before, const wf_zoo *behind) {
    if (before->seeds == NULL || behind->seeds == NULL) return;
    int64_t last = before->seeds[before->count - 1], next = behind->seeds[0];
    if (next > last + 1)
        wf_warn(ctx,
                "%s ends with network %lld of its recipe and %s begins with network %lld: is a "
                "file between them missing?",
                before->path, (long long)last, behind->path, (long long)next);
    else if (next <= last && behind->seeds[behind->count - 1] >= before->seeds[0])
        wf_warn(ctx,
                "%s has networks %lld to %lld of its recipe and %s networks %lld to %lld: some are "
                "there twice",
                before->path, (long long)before->seeds[0], (long long)last, behind->path,
                (long long)next, (long long)behind->seeds[behind->count - 1]);
}

static bool same_value(const wf_zoo *a, const wf_zoo *b, const char *key) {
    const char *x = wf_zoo_meta(a, key), *y = wf_zoo_meta(b, key);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

static wf_status open_parts(wf_ctx *ctx, char **paths, size_t n, wf_zoo *zoo) {
    size_t first = 0;
    WF_TRY(wf_alloc(ctx, n, sizeof(wf_zoo *), zoo->path, &zoo->parts));
    WF_TRY(wf_alloc(ctx, n, sizeof *zoo->firsts, zoo->path, &zoo->firsts));
    for (size_t i = 0; i < n; i++) {
        WF_TRY(wf_zoo_open(ctx, paths[i], &zoo->parts[i]));
        zoo->n_parts++;
        zoo->firsts[i] = first;
        first += wf_zoo_count(zoo->parts[i]);
        if (i > 0 && same_value(zoo->parts[i - 1], zoo->parts[i], "weft.recipe"))
            warn_of_gap(ctx, zoo->parts[i - 1], zoo->parts[i]);
    }
    return WF_OK;
}

wf_status wf__zoo_open_files(wf_ctx *ctx, wf_zoo *zoo) {
    char **paths;
    size_t n;
    WF_TRY(wf_zoo_files(ctx, zoo->path, &paths, &n));
    wf_status status = open_parts(ctx, paths, n, zoo);
    wf_zoo_names_free(paths, n);
    return status == WF_OK ? join_parts(ctx, zoo) : status;
}
