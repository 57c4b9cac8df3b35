/* zoo_score: scores the networks of a collection and writes it with the scores. */
#include "base/io.h"
#include "weft/eval.h"

#include <stdlib.h>
#include <string.h>

static bool is_replaced(const char *key) {
    static const char *const keys[] = {
        "weft.format", "weft.graph",       "weft.arch",  "weft.activation", "weft.digest",
        "weft.data",   "weft.preparation", "weft.scale", "weft.data.note",  "weft.classes"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

static wf_status describe(wf_ctx *ctx, const wf_zoo *from, const wf_dataset *data,
                          const wf_data_desc *desc, wf_zoo *to) {
    char buffer[WF_SETTING_BUFFER];
    for (size_t i = 0; i < wf_zoo_meta_count(from); i++) {
        const char *key, *value;
        wf_zoo_meta_at(from, i, &key, &value);
        if (!is_replaced(key)) WF_TRY(wf_zoo_set_meta(ctx, to, key, value));
    }
    WF_TRY(wf_zoo_set_meta(
        ctx, to, "weft.scale",
        wf_setting_text(wf_settings_find(wf_data_settings(), "scale"), desc, buffer)));
    if (desc->classes != NULL && desc->classes[0] != 0)
        WF_TRY(wf_zoo_set_meta(ctx, to, "weft.classes", desc->classes));
    WF_TRY(wf_zoo_set_meta(ctx, to, "weft.preparation", data->preparation));
    WF_TRY(wf_zoo_set_meta(ctx, to, "weft.data", data->fingerprint));
    if (data->note[0] != 0) WF_TRY(wf_zoo_set_meta(ctx, to, "weft.data.note", data->note));
    return WF_OK;
}

wf_status wf_zoo_score(wf_ctx *ctx, const wf_zoo *zoo, const wf_dataset *data,
                       const wf_data_desc *desc, const char *path) {
    size_t count = wf_zoo_count(zoo), bytes = (data->n_test + 7) / 8;
    float *weights = NULL, *scores = NULL;
    uint8_t *errors = NULL;
    wf_zoo *copy = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_zoo_load(ctx, zoo, 0, count, &weights), done);
    WF_TRY_GOTO(wf_alloc(ctx, count, sizeof *scores, "scores", &scores), done);
    WF_TRY_GOTO(wf_alloc(ctx, count, bytes, "errors", &errors), done);
    WF_TRY_GOTO(wf_score_networks(ctx, wf_zoo_graph(zoo), weights, count, data, WF_SCORE_ACCURACY,
                                  scores, errors),
                done);
    WF_TRY_GOTO(
        wf_zoo_from_memory(ctx, wf_zoo_path(zoo), wf_zoo_graph(zoo), weights, count, false, &copy),
        done);
    WF_TRY_GOTO(describe(ctx, zoo, data, desc, copy), done);
    WF_TRY_GOTO(wf_zoo_set_scores(ctx, copy, data->name, scores, errors, bytes), done);
    status = wf_zoo_save(ctx, copy, path);
done:
    wf_zoo_free(copy);
    free(errors);
    free(scores);
    free(weights);
    return status;
}
