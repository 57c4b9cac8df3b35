#include "flow/flow_config.h"

#include "base/c_locale.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the list ----------------------------------------------------------------------------------- */

wf_status wf_meta_add(wf_ctx *ctx, wf_meta *meta, const char *key, const char *format, ...) {
    if (meta->n == meta->capacity) {
        size_t capacity = meta->capacity == 0 ? 64 : 2 * meta->capacity;
        char *(*pairs)[2] = realloc(meta->pairs, capacity * sizeof *pairs);
        if (pairs == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "flow: out of memory");
        meta->pairs = pairs;
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
    meta->n++;
    return WF_OK;
}

void wf_meta_free(wf_meta *meta) {
    for (size_t i = 0; i < meta->n; i++) {
        free(meta->pairs[i][0]);
        free(meta->pairs[i][1]);
    }
    free(meta->pairs);
    *meta = (wf_meta){0};
}

/* --- the table of settings ---------------------------------------------------------------------- */

typedef enum kind { KIND_DOUBLE, KIND_SIZE, KIND_U64, KIND_INT, KIND_BOOL, KIND_NAME } kind;

typedef struct setting {
    const char *key;
    kind kind;
    bool in_fit; /* else in the field's description */
    size_t offset;
    const char *const *names; /* KIND_NAME: of an enum's values 0, 1 ..., NULL-terminated */
} setting;

static const char *const layouts[] = {"lean", "lstar", NULL};
static const char *const messages[] = {"sum", "mean", "attention", NULL};
static const char *const encoders[] = {"sine", "fourier", "scalar", NULL};
static const char *const activations[] = {"default", "silu", "gelu", NULL};
static const char *const conditions[] = {"none", "linear", "mlp", NULL};
static const char *const optimizers[] = {"adamw", "muon", NULL};
static const char *const time_laws[] = {"uniform", "logit-normal", "late", NULL};
static const char *const kept[] = {"ema", "final", "best", NULL};
static const char *const normalise_by[] = {"architecture", "collection", NULL};
static const char *const loss_by[] = {"parameters", "layers", NULL};
static const char *const couplings[] = {"independent", "matched", NULL};

#define FIELD(member, kind, names)                                                                 \
    { "field." #member, kind, false, offsetof(wf_field_desc, member), names }
#define FIT(member, kind, names)                                                                   \
    { "fit." #member, kind, true, offsetof(wf_fit_desc, member), names }
static const setting settings[] = {
    FIELD(layout, KIND_NAME, layouts),
    FIELD(node, KIND_INT, NULL),
    FIELD(edge, KIND_INT, NULL),
    FIELD(time, KIND_INT, NULL),
    FIELD(blocks, KIND_INT, NULL),
    FIELD(messages, KIND_NAME, messages),
    FIELD(encoder, KIND_NAME, encoders),
    FIELD(activation, KIND_NAME, activations),
    FIELD(cond, KIND_NAME, conditions),
    FIELD(cond_size, KIND_INT, NULL),
    FIELD(fold_rows, KIND_INT, NULL),
    FIELD(max_coef, KIND_INT, NULL),
    FIELD(seed, KIND_U64, NULL),
    FIT(precondition, KIND_BOOL, NULL),
    FIT(principal, KIND_BOOL, NULL),
    FIT(normalise, KIND_BOOL, NULL),
    FIT(normalise_by, KIND_NAME, normalise_by),
    FIT(coupling, KIND_NAME, couplings),
    FIT(match_sweeps, KIND_INT, NULL),
    FIT(source_std, KIND_DOUBLE, NULL),
    FIT(path_noise, KIND_DOUBLE, NULL),
    FIT(noise_table, KIND_SIZE, NULL),
    FIT(time_law, KIND_NAME, time_laws),
    FIT(loss_by, KIND_NAME, loss_by),
    FIT(cond_drop, KIND_DOUBLE, NULL),
    FIT(optimizer, KIND_NAME, optimizers),
    FIT(lr, KIND_DOUBLE, NULL),
    FIT(weight_decay, KIND_DOUBLE, NULL),
    FIT(beta1, KIND_DOUBLE, NULL),
    FIT(beta2, KIND_DOUBLE, NULL),
    FIT(eps, KIND_DOUBLE, NULL),
    FIT(muon_lr, KIND_DOUBLE, NULL),
    FIT(muon_momentum, KIND_DOUBLE, NULL),
    FIT(clip, KIND_DOUBLE, NULL),
    FIT(ema, KIND_DOUBLE, NULL),
    FIT(kept, KIND_NAME, kept),
    FIT(warmup, KIND_SIZE, NULL),
    FIT(cosine, KIND_BOOL, NULL),
    FIT(schedule_updates, KIND_SIZE, NULL),
    FIT(min_lr, KIND_DOUBLE, NULL),
    FIT(updates, KIND_SIZE, NULL),
    FIT(batch, KIND_SIZE, NULL),
    FIT(limit, KIND_SIZE, NULL),
    FIT(seed, KIND_U64, NULL),
    FIT(save_seconds, KIND_DOUBLE, NULL),
    FIT(log_every, KIND_SIZE, NULL),
};
#undef FIELD
#undef FIT
enum { n_settings = sizeof settings / sizeof *settings };

static wf_status put(wf_ctx *ctx, wf_meta *meta, const setting *s, const void *at) {
    switch (s->kind) {
    case KIND_DOUBLE: return wf_meta_add(ctx, meta, s->key, "%.17g", *(const double *)at);
    case KIND_SIZE: return wf_meta_add(ctx, meta, s->key, "%zu", *(const size_t *)at);
    case KIND_U64:
        return wf_meta_add(ctx, meta, s->key, "%llu", (unsigned long long)*(const uint64_t *)at);
    case KIND_INT: return wf_meta_add(ctx, meta, s->key, "%d", *(const int *)at);
    case KIND_BOOL: return wf_meta_add(ctx, meta, s->key, *(const bool *)at ? "yes" : "no");
    case KIND_NAME: return wf_meta_add(ctx, meta, s->key, "%s", s->names[*(const int *)at]);
    }
    return WF_OK;
}

wf_status wf_config_put(wf_ctx *ctx, wf_meta *meta, const wf_field_desc *field,
                        const wf_fit_desc *fit) {
    for (size_t i = 0; i < n_settings; i++) {
        const char *base = settings[i].in_fit ? (const char *)fit : (const char *)field;
        WF_TRY(put(ctx, meta, &settings[i], base + settings[i].offset));
    }
    return WF_OK;
}

static bool parse_name(const char *text, const char *const *names, int *out) {
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool parse(const char *text, const setting *s, void *at) {
    char *end = NULL;
    errno = 0;
    bool digit = text[0] >= '0' && text[0] <= '9';
    switch (s->kind) {
    case KIND_DOUBLE: *(double *)at = wf_c_strtod(text, &end); break;
    case KIND_SIZE:
        if (!digit) return false;
        *(size_t *)at = (size_t)strtoull(text, &end, 10);
        break;
    case KIND_U64:
        if (!digit) return false;
        *(uint64_t *)at = strtoull(text, &end, 10);
        break;
    case KIND_INT: {
        long value = strtol(text, &end, 10);
        if (value < -1000000000L || value > 1000000000L) return false;
        *(int *)at = (int)value;
        break;
    }
    case KIND_BOOL: {
        static const char *const names[] = {"no", "yes", NULL};
        int value;
        if (!parse_name(text, names, &value)) return false;
        *(bool *)at = value;
        return true;
    }
    case KIND_NAME: return parse_name(text, s->names, at);
    }
    return end != text && *end == '\0' && errno == 0;
}

wf_status wf_config_get(wf_ctx *ctx, const char *path, const wf_st_file *file, wf_field_desc *field,
                        wf_fit_desc *fit) {
    for (size_t i = 0; i < n_settings; i++) {
        char *base = settings[i].in_fit ? (char *)fit : (char *)field;
        const char *value = wf_st_meta(file, settings[i].key);
        if (value == NULL)
            return wf_fail(ctx, WF_ERR_INPUT,
                           "%s: not a flow of this version of weft: its metadata lacks \"%s\"",
                           path, settings[i].key);
        if (!parse(value, &settings[i], base + settings[i].offset))
            return wf_fail(ctx, WF_ERR_INPUT, "%s: metadata \"%s\" has the value \"%.40s\"", path,
                           settings[i].key, value);
    }
    return WF_OK;
}

static bool may_change(const char *key) {
    static const char *const names[] = {"fit.updates", "fit.save_seconds", "fit.log_every",
                                        "fit.limit"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0) return true;
    const char *dot =
        strrchr(key, '.'); /* notes about a source; its hash tells whether it is the same */
    return dot != NULL &&
           (strcmp(dot, ".path") == 0 || strcmp(dot, ".tests") == 0 || strcmp(dot, ".data") == 0);
}

wf_status wf_config_compare(wf_ctx *ctx, const char *path, const wf_st_file *file,
                            const wf_meta *meta) {
    for (size_t i = 0; i < meta->n; i++) {
        const char *key = meta->pairs[i][0], *ours = meta->pairs[i][1];
        const char *theirs = wf_st_meta(file, key);
        if (may_change(key) || (theirs != NULL && strcmp(theirs, ours) == 0)) continue;
        return wf_fail(ctx, WF_ERR_USAGE,
                       "%s: a checkpoint of another configuration stands there: its %s is %.60s, "
                       "this run's is %.60s; use the same settings, another path, or remove it",
                       path, key, theirs == NULL ? "not given" : theirs, ours);
    }
    return WF_OK;
}

/* --- ranges ------------------------------------------------------------------------------------- */

/* One number and what it may be; NaN is never allowed. */
typedef struct range {
    const char *name;
    double value, low, high;
    bool open_low, open_high; /* the bound itself is not allowed */
} range;

static wf_status check_ranges(wf_ctx *ctx, const range *ranges, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const range *r = &ranges[i];
        bool low = r->open_low ? r->value > r->low : r->value >= r->low;
        bool high = r->open_high ? r->value < r->high : r->value <= r->high;
        if (low && high) continue;
        return wf_fail(ctx, WF_ERR_USAGE, "%s is %g; allowed is %s %g and %s %g", r->name, r->value,
                       r->open_low ? "above" : "at least", r->low,
                       r->open_high ? "below" : "at most", r->high);
    }
    return WF_OK;
}

wf_status wf_fit_check(wf_ctx *ctx, const wf_fit_desc *fit) {
    const range ranges[] = {
        {"match_sweeps", fit->match_sweeps, 1, 1000, false, false},
        {"source_std", fit->source_std, 0, 1e3, true, false},
        {"path_noise", fit->path_noise, 0, 1e3, false, false},
        {"noise_table", (double)fit->noise_table, 0, 4294967295.0, false, false},
        {"cond_drop", fit->cond_drop, 0, 1, false, false},
        {"lr", fit->lr, 0, 1e3, true, false},
        {"weight_decay", fit->weight_decay, 0, 1e3, false, false},
        {"beta1", fit->beta1, 0, 1, false, true},
        {"beta2", fit->beta2, 0, 1, false, true},
        {"eps", fit->eps, 0, 1, true, false},
        {"muon_lr", fit->muon_lr, 0, 1e3, true, false},
        {"muon_momentum", fit->muon_momentum, 0, 1, false, true},
        {"clip", fit->clip, 0, HUGE_VAL, false, false},
        {"ema", fit->ema, 0, 1, false, true},
        {"min_lr", fit->min_lr, 0, fit->lr, false, false},
        {"updates", (double)fit->updates, 1, 4294967295.0, false, false},
        {"batch", (double)fit->batch, 1, 1 << 20, false, false},
        {"save_seconds", fit->save_seconds, 0, HUGE_VAL, false, false},
        {"max_seconds", fit->max_seconds, 0, HUGE_VAL, false, false},
    };
    WF_TRY(check_ranges(ctx, ranges, sizeof ranges / sizeof *ranges));
    if (fit->precondition && !fit->normalise)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "precondition needs normalise: it is exact for weights of unit variance");
    if (fit->principal && !fit->precondition)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "principal needs precondition, which uses the variances of the axes");
    return WF_OK;
}

wf_status wf_sample_check(wf_ctx *ctx, const wf_sample_desc *desc) {
    const range ranges[] = {
        {"steps", desc->steps, 1, 1e8, false, false},
        {"rtol", desc->rtol, 0, 1, false, false},
        {"atol", desc->atol, 0, 1e6, true, false},
        {"min_step", desc->min_step, 0, 1, true, false},
        {"max_step", desc->max_step, desc->min_step, HUGE_VAL, false, false},
        {"max_evaluations", (double)desc->max_evaluations, 1, HUGE_VAL, false, false},
        {"refine_cycles", desc->refine_cycles, 0, 1e6, false, false},
        {"refine_steps", desc->refine_steps, 0, 1e6, false, false},
        {"guidance", desc->guidance, -1e3, 1e3, false, false},
    };
    WF_TRY(check_ranges(ctx, ranges, sizeof ranges / sizeof *ranges));
    const range refine = {"refine_t", desc->refine_t, 0, 1, true, true};
    return desc->refine_cycles > 0 ? check_ranges(ctx, &refine, 1) : WF_OK;
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
