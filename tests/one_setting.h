/* A recipe asked for one setting at a time, through a table of one row. */
#ifndef ONE_SETTING_H
#define ONE_SETTING_H

#include "weft/recipe.h"

static inline wf_status ask_one(wf_ctx *ctx, wf_recipe *recipe, wf_setting row, void *value) {
    wf_setting rows[2] = {row, {0}};
    rows[0].text = "";
    return wf_recipe_settings(ctx, recipe, rows, value);
}

static inline wf_status ask_real(wf_ctx *ctx, wf_recipe *recipe, const char *section,
                                 const char *key, double low, double high, double *value) {
    wf_setting row = {.section = section, .key = key, .type = WF_SETTING_REAL};
    row.low = low, row.high = high;
    return ask_one(ctx, recipe, row, value);
}

static inline wf_status ask_int(wf_ctx *ctx, wf_recipe *recipe, const char *section,
                                const char *key, double low, double high, int *value) {
    wf_setting row = {.section = section, .key = key, .type = WF_SETTING_INT};
    row.low = low, row.high = high;
    return ask_one(ctx, recipe, row, value);
}

static inline wf_status ask_bool(wf_ctx *ctx, wf_recipe *recipe, const char *section,
                                 const char *key, bool *value) {
    wf_setting row = {.section = section, .key = key, .type = WF_SETTING_BOOL};
    return ask_one(ctx, recipe, row, value);
}

static inline wf_status ask_choice(wf_ctx *ctx, wf_recipe *recipe, const char *section,
                                   const char *key, const char *const *names, int *value) {
    wf_setting row = {.section = section, .key = key, .type = WF_SETTING_CHOICE, .names = names};
    return ask_one(ctx, recipe, row, value);
}

#endif
