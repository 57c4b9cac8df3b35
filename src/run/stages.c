/* stages: what is done, and whether it was done with today's settings.
 *
 *   collection -+- held-out ----------+
 *               +- training - sampling +- evaluation - report
 *
 * A stage's digest covers its own settings and the digests of the stages it stands on, so a
 * finished stage is skipped only when everything below it is unchanged too. Seconds add up over
 * the pieces of a broken stage. */
#include "run/stages.h"

#include "base/digest.h"
#include "weft/text.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[WF_STAGES] = {"collection", "held-out",   "training",
                                             "sampling",   "evaluation", "report"};

const char *wf__run_stage_name(wf_stage stage) { return names[stage]; }

bool wf__run_stage_depends(wf_stage stage, wf_stage on) {
    static const unsigned below[WF_STAGES] = {
        [WF_STAGE_COLLECTION] = 0,
        [WF_STAGE_HELD_OUT] = 1u << WF_STAGE_COLLECTION,
        [WF_STAGE_TRAINING] = 1u << WF_STAGE_COLLECTION,
        [WF_STAGE_SAMPLING] = 1u << WF_STAGE_COLLECTION | 1u << WF_STAGE_TRAINING,
        [WF_STAGE_EVALUATION] = (1u << WF_STAGE_EVALUATION) - 1,
        [WF_STAGE_REPORT] = (1u << WF_STAGE_REPORT) - 1,
    };
    return (below[stage] >> on & 1) != 0;
}

static wf_status set_digest(wf_run_app *app, wf_run_stages *stages, wf_stage stage) {
    char *text = json_dumps(stages->config[stage], JSON_COMPACT | JSON_SORT_KEYS);
    wf_status status = wf__run_json_complete(app, stages->path, stages->config[stage]);
    if (status != WF_OK || text == NULL) {
        free(text);
        return status != WF_OK ? status : wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    }
    size_t size = strlen(text) + WF_STAGES * 65 + 1;
    char *all = malloc(size);
    if (all == NULL) {
        free(text);
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    }
    wf_text joined = wf_text_start(all, size);
    wf_text_add(&joined, "%s", text);
    for (int below = 0; below < (int)stage; below++)
        if (wf__run_stage_depends(stage, (wf_stage)below))
            wf_text_add(&joined, "%s", stages->digest[below]);
    wf_sha256_hex(all, joined.length, stages->digest[stage]);
    free(text);
    free(all);
    return WF_OK;
}

/* Of the record without its own digest. What was read back is written as it was: numbers have ten
 * digits. */
static wf_status record_digest(wf_run_app *app, const char *path, json_t *record, char out[33]) {
    json_t *bare = json_copy(record);
    json_object_del(bare, "digest");
    char *text = bare == NULL
                     ? NULL
                     : json_dumps(bare, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(10));
    json_decref(bare);
    wf_status status = wf__run_json_complete(app, path, text == NULL ? NULL : record);
    if (status == WF_OK) status = wf_digest_of(app->ctx, text, strlen(text), out);
    free(text);
    return status;
}

static wf_status write_record(wf_run_app *app, wf_run_stages *stages) {
    char digest[33];
    json_object_del(stages->record, "digest"); /* it stands last */
    WF_TRY(record_digest(app, stages->path, stages->record, digest));
    if (json_object_set_new(stages->record, "digest", json_string(digest)) != 0)
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    return wf__run_json_write(app, stages->path, stages->record);
}

wf_status wf__run_stages_read(wf_run_app *app, const char *path, json_t **out, bool *known) {
    char digest[33];
    const char *recorded = NULL;
    wf_status status = wf__run_json_read(app, path, out);
    bool sound = status == WF_OK && json_is_object(*out);
    if (sound) recorded = json_string_value(json_object_get(*out, "digest"));
    *known = recorded != NULL;
    if (recorded != NULL) status = record_digest(app, path, *out, digest);
    sound = sound && status == WF_OK && (recorded == NULL || strcmp(digest, recorded) == 0);
    if (sound) return WF_OK;
    json_decref(*out);
    *out = NULL;
    if (status != WF_OK && status != WF_ERR_INPUT) return status;
    return wf__run_fail(app, WF_ERR_INPUT, "%s is damaged; remove it to run all stages again",
                        path);
}

wf_status wf__run_stages_open(wf_run_app *app, const char *folder, const wf_run_recipe *recipe,
                              const char *fingerprint, wf_run_stages *out) {
    *out = (wf_run_stages){0};
    WF_TRY(wf__run_path(app, folder, "stage.json", out->path));
    for (int stage = 0; stage < WF_STAGES; stage++) {
        out->config[stage] = wf__run_recipe_stage(recipe, (wf_stage)stage);
        if (stage == WF_STAGE_COLLECTION)
            json_object_set_new(out->config[stage], "data.fingerprint", json_string(fingerprint));
        WF_TRY(set_digest(app, out, (wf_stage)stage));
    }
    bool known;
    if (wf_file_exists(out->path)) return wf__run_stages_read(app, out->path, &out->record, &known);
    out->record = json_object();
    return wf__run_json_complete(app, out->path, out->record);
}

void wf__run_stages_free(wf_run_stages *stages) {
    json_decref(stages->record);
    for (int stage = 0; stage < WF_STAGES; stage++) json_decref(stages->config[stage]);
    *stages = (wf_run_stages){0};
}

static json_t *entry_of(const wf_run_stages *stages, wf_stage stage) {
    return json_object_get(stages->record, names[stage]);
}

/* Appends "key was A, now B" for keys that differ; false when none does. */
static bool describe_changes(json_t *then, json_t *now, char *what, size_t size) {
    const char *key;
    json_t *value;
    wf_text changes = wf_text_start(what, size);
    json_object_foreach(now, key, value) {
        const char *was = json_string_value(json_object_get(then, key));
        if (was != NULL && strcmp(was, json_string_value(value)) == 0) continue;
        wf_text_add(&changes, "%s%s was %s, now %s", changes.length > 0 ? "; " : "", key,
                    was == NULL || was[0] == '\0' ? "not set" : was,
                    json_string_value(value)[0] == '\0' ? "not set" : json_string_value(value));
    }
    json_object_foreach(then, key, value) {
        if (json_object_get(now, key) != NULL) continue;
        wf_text_add(&changes, "%s%s was %s, now not set", changes.length > 0 ? "; " : "", key,
                    json_string_value(value));
    }
    return changes.length > 0;
}

wf_stage wf__run_stages_changed(const wf_run_stages *stages, char *what, size_t size) {
    for (int stage = 0; stage < WF_STAGES; stage++) {
        json_t *then = json_object_get(entry_of(stages, (wf_stage)stage), "config");
        if (then != NULL && describe_changes(then, stages->config[stage], what, size))
            return (wf_stage)stage;
    }
    return WF_STAGES;
}

bool wf__run_stages_finished(const wf_run_stages *stages, wf_stage stage) {
    const json_t *entry = entry_of(stages, stage);
    const char *digest = json_string_value(json_object_get(entry, "digest"));
    return json_is_true(json_object_get(entry, "finished")) && digest != NULL &&
           strcmp(digest, stages->digest[stage]) == 0;
}

static double seconds_of(const wf_run_stages *stages, wf_stage stage) {
    return json_number_value(json_object_get(entry_of(stages, stage), "seconds"));
}

double wf__run_stages_total(const wf_run_stages *stages) {
    double sum = 0;
    for (int stage = 0; stage < WF_STAGES; stage++) sum += seconds_of(stages, (wf_stage)stage);
    return sum;
}

json_t *wf__run_stages_outputs(const wf_run_stages *stages, wf_stage stage) {
    return json_object_get(entry_of(stages, stage), "outputs");
}

static wf_status put(wf_run_app *app, wf_run_stages *stages, wf_stage stage, bool finished,
                     double seconds, json_t *outputs) {
    json_t *entry = json_pack("{s:b, s:s, s:f, s:O, s:O*}", "finished", finished, "digest",
                              stages->digest[stage], "seconds", seconds, "config",
                              stages->config[stage], "outputs", outputs);
    if (entry == NULL || json_object_set_new(stages->record, names[stage], entry) != 0)
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    return write_record(app, stages);
}

wf_status wf__run_stages_begin(wf_run_app *app, wf_run_stages *stages, wf_stage stage) {
    return put(app, stages, stage, false, seconds_of(stages, stage), NULL);
}

wf_status wf__run_stages_end(wf_run_app *app, wf_run_stages *stages, wf_stage stage, double seconds,
                             bool finished, json_t *outputs) {
    return put(app, stages, stage, finished, seconds + seconds_of(stages, stage), outputs);
}

wf_status wf__run_stages_renew(wf_run_app *app, wf_run_stages *stages, wf_stage stage,
                               json_t *outputs) {
    json_t *entry = entry_of(stages, stage);
    if (json_object_get(entry, "outputs") == NULL) return WF_OK;
    if (json_object_set(entry, "outputs", outputs) != 0)
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    return write_record(app, stages);
}

wf_status wf__run_stages_forget(wf_run_app *app, wf_run_stages *stages, wf_stage stage) {
    for (int other = 0; other < WF_STAGES; other++)
        if (other == (int)stage || wf__run_stage_depends((wf_stage)other, stage))
            json_object_del(stages->record, names[other]);
    return write_record(app, stages);
}

/* --- the recipe beside the results ------------------------------------------------------------ */

static const char recipe_entry[] = "recipe";

json_t *wf__run_stages_recipe(const wf_run_stages *stages) {
    return json_object_get(json_object_get(stages->record, recipe_entry), "outputs");
}

/* The entry of another recipe is removed first: a process that is killed in between leaves a recipe
 * without a digest, not with a wrong one. */
wf_status wf__run_stages_keep_recipe(wf_run_app *app, wf_run_stages *stages, const char *name,
                                     const char *path, const char *text) {
    char digest[33];
    size_t size = strlen(text);
    WF_TRY(wf_digest_of(app->ctx, text, size, digest));
    const char *kept = json_string_value(json_object_get(wf__run_stages_recipe(stages), name));
    if (kept != NULL && strcmp(kept, digest) == 0) return wf_write_file(app->ctx, path, text, size);
    if (json_object_del(stages->record, recipe_entry) == 0) WF_TRY(write_record(app, stages));
    WF_TRY(wf_write_file(app->ctx, path, text, size));
    json_t *entry = json_pack("{s:{s:s}}", "outputs", name, digest);
    if (json_object_set_new(stages->record, recipe_entry, entry) != 0)
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    return write_record(app, stages);
}
