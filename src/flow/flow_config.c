#include "flow/flow_config.h"

#include "base/c_locale.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the list --------------------------------------------------------------------------------- */

wf_status wf_meta_add(wf_ctx *ctx, wf_meta *meta, const char *key, const char *format, ...) {
    if (meta->n == meta->capacity) {
        size_t capacity = meta->capacity == 0 ? 64 : 2 * meta->capacity;
        char *(*pairs)[2] = realloc(meta->pairs, capacity * sizeof *pairs);
        if (pairs == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "flow: out of memory");
        meta->pairs = pairs;
        const wf_setting **rows = realloc(meta->rows, capacity * sizeof *rows);
        if (rows == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "flow: out of memory");
        meta->rows = rows;
        meta->capacity = capacity;
    }
    char *value = NULL;
    va_list args;
    va_start(args, format);
    locale_t before = wf_c_locale_enter();
    int length = vasprintf(&value, format, args);
    wf_c_locale_leave(before);
    va_end(args);
    char *name = strdup(key);
    if (length < 0 || name == NULL) {
        if (length >= 0) free(value);
        free(name);
        return wf_fail(ctx, WF_ERR_MEMORY, "flow: out of memory");
    }
    meta->pairs[meta->n][0] = name;
    meta->pairs[meta->n][1] = value;
    meta->rows[meta->n] = NULL;
    meta->n++;
    return WF_OK;
}

void wf_meta_free(wf_meta *meta) {
    for (size_t i = 0; i < meta->n; i++) {
        free(meta->pairs[i][0]);
        free(meta->pairs[i][1]);
    }
    free(meta->pairs);
    free(meta->rows);
    *meta = (wf_meta){0};
}

/* --- the tables ------------------------------------------------------------------------------- */

#define SETTINGS_OF wf_fit
#define SETTINGS_SECTION "train"
#define SETTINGS_META "fit."
#define SETTINGS_DEF "weft/fit.def"
#include "base/settings_table.h"

wf_fit_desc wf_fit_desc_paper(void) {
    wf_fit_desc desc = wf_fit_desc_default();
    desc.precondition = false;
    desc.coupling = WF_COUPLING_INDEPENDENT;
    desc.optimizer = WF_OPT_ADAMW;
    desc.lr = 1e-3;
    desc.cosine = false;
    desc.updates = 200000;
    desc.batch = 256;
    return desc;
}

#define SETTINGS_OF wf_sample
#define SETTINGS_SECTION "sample"
#define SETTINGS_META "sample."
#define SETTINGS_DEF "weft/sample.def"
#include "base/settings_table.h"

/* --- in files --------------------------------------------------------------------------------- */

wf_status wf_config_put(wf_ctx *ctx, wf_meta *meta, const wf_setting *rows, const void *desc) {
    char buffer[WF_SETTING_BUFFER];
    for (; rows->key != NULL; rows++)
        if (rows->in_file != WF_FILE_NONE) {
            WF_TRY(wf_meta_add(ctx, meta, rows->meta, "%s", wf_setting_text(rows, desc, buffer)));
            meta->rows[meta->n - 1] = rows;
        }
    return WF_OK;
}

static const wf_setting *find_meta(const wf_setting *rows, const char *key) {
    for (; rows->key != NULL; rows++)
        if (strcmp(rows->meta, key) == 0) return rows;
    return NULL;
}

/* An unknown setting may change what the others mean, so it is refused. */
static wf_status check_known(wf_ctx *ctx, const char *path, const wf_st_file *file,
                             const wf_setting *rows) {
    size_t prefix = strcspn(rows->meta, ".") + 1, n = wf_st_meta_count(file);
    for (size_t i = 0; i < n; i++) {
        const char *key, *value;
        wf_st_meta_at(file, i, &key, &value);
        if (strncmp(key, rows->meta, prefix) != 0 || find_meta(rows, key) != NULL) continue;
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: its metadata has \"%.60s\", which this version of weft does not know: "
                       "a newer one wrote it",
                       path, key);
    }
    return WF_OK;
}

wf_status wf_config_get(wf_ctx *ctx, const char *path, const wf_st_file *file,
                        const wf_setting *rows, void *desc) {
    WF_TRY(check_known(ctx, path, file, rows));
    for (; rows->key != NULL; rows++) {
        const char *text = rows->in_file == WF_FILE_NONE ? NULL : wf_st_meta(file, rows->meta);
        if (wf_setting_parse(rows, text == NULL ? wf_setting_absent(rows) : text, desc)) continue;
        char allowed[512];
        wf_setting_allowed(rows, allowed, sizeof allowed);
        return wf_fail(ctx, WF_ERR_INPUT, "%s: metadata \"%s\" is \"%.40s\"; allowed is %s", path,
                       rows->meta, text, allowed);
    }
    return WF_OK;
}

/* Notes about a source; its hash tells whether it is the same. */
static bool is_note(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot != NULL &&
           (strcmp(dot, ".path") == 0 || strcmp(dot, ".tests") == 0 || strcmp(dot, ".data") == 0 ||
            strcmp(dot, ".scale") == 0 || strcmp(dot, ".classes") == 0);
}

wf_status wf_config_compare(wf_ctx *ctx, const char *path, const wf_st_file *file,
                            const wf_meta *meta) {
    for (size_t i = 0; i < meta->n; i++) {
        const char *key = meta->pairs[i][0], *ours = meta->pairs[i][1];
        const char *theirs = wf_st_meta(file, key);
        const wf_setting *row = meta->rows[i];
        if (row == NULL ? is_note(key) : row->in_file == WF_FILE_NOTE) continue;
        if (row != NULL && theirs == NULL) theirs = wf_setting_absent(row);
        if (theirs != NULL &&
            (row == NULL ? strcmp(theirs, ours) == 0 : wf_setting_same(row, theirs, ours)))
            continue;
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: a checkpoint of another configuration stands there: its %s is %.60s, "
                       "this run's is %.60s; use the same settings, another path, or remove it",
                       path, key, theirs == NULL ? "not given" : theirs, ours);
    }
    return WF_OK;
}

/* --- checks ----------------------------------------------------------------------------------- */

wf_status wf_fit_check(wf_ctx *ctx, const wf_fit_desc *fit) {
    WF_TRY(wf_settings_check(ctx, wf_fit_rows, fit));
    if (fit->min_lr > fit->lr)
        return wf_fail(ctx, WF_ERR_USAGE, "train.min_lr is %g, above train.lr, which is %g",
                       fit->min_lr, fit->lr);
    if (fit->one_cycle && (fit->warmup > 0 || fit->min_lr > 0))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "train.one_cycle has its own warm-up and end; leave "
                       "train.%s at 0",
                       fit->warmup > 0 ? "warmup" : "min_lr");
    if (fit->precondition && !fit->normalise)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "precondition needs normalise: it is exact for weights of unit variance");
    if (fit->principal && fit->signs)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "train.signs and train.principal do not go together: the axes are those of "
                       "rows as they are; leave one of them out");
    if (fit->principal && !fit->precondition)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "principal needs precondition, which uses the variances of the axes");
    return WF_OK;
}

wf_status wf_sample_check(wf_ctx *ctx, const wf_sample_desc *desc) {
    WF_TRY(wf_settings_check(ctx, wf_sample_rows, desc));
    if (desc->max_step < desc->min_step)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "sample.max_step is %g, below sample.min_step, which is %g", desc->max_step,
                       desc->min_step);
    if (desc->refine_cycles > 0 && (desc->refine_t <= 0 || desc->refine_t >= 1))
        return wf_fail(ctx, WF_ERR_USAGE,
                       "sample.refine_t is %g; refinement needs a time above 0 and below 1",
                       desc->refine_t);
    return WF_OK;
}

wf_status wf_choose_precision(wf_ctx *ctx, wf_precision asked, bool on_gpu, bool may, bool *fast) {
    *fast = on_gpu && may && asked != WF_PRECISION_FP32;
    if (asked != WF_PRECISION_BF16 || *fast) return WF_OK;
    if (!on_gpu)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "precision is bf16, but this runs on the CPU, which computes in fp32; use "
                       "device cuda, or precision auto");
    return wf_fail(ctx, WF_ERR_USAGE,
                   "precision is bf16, but dopri5 chooses its steps by an error that bf16 would "
                   "hide; use precision auto or fp32, or a solver of fixed steps");
}
