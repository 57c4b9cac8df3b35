#include "cli/compare_methods.h"

#include "run/stages.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- reading ---------------------------------------------------------------------------------- */

/* Trainable parameters from the settings of the run; 0 where they cannot be told. */
static size_t count_params(wf_run_app *app, const wf_generator_kind *kind, const json_t *eval,
                           const json_t *settings) {
    const char *arch = json_string_value(json_object_get(eval, "arch"));
    wf_graph *graph = NULL;
    size_t params = 0;
    void *options = kind->settings != NULL ? calloc(1, kind->options_size) : NULL;
    if (arch == NULL || options == NULL ||
        wf_graph_parse(app->ctx, arch, "relu", 0, &graph) != WF_OK)
        goto done;
    wf_settings_default(kind->settings(), options);
    for (const wf_setting *row = kind->settings(); row->key != NULL; row++) {
        char key[96];
        snprintf(key, sizeof key, "model.%s", row->key);
        const char *text = json_string_value(json_object_get(settings, key));
        if (text != NULL && text[0] != '\0') wf_setting_parse(row, text, options);
    }
    if (wf_generator_params(app->ctx, kind, options, graph, 0, &params) != WF_OK) params = 0;
done:
    wf_graph_free(graph);
    free(options);
    return params;
}

enum { log_limit = 256 << 20 };

/* Where the log lies, and the number of the last update in it. */
static wf_status read_log(wf_run_app *app, const char *folder, const json_t *stages,
                          cli_method *out) {
    static const char key[] = "{\"update\":";
    const char *name;
    json_t *training = json_object_get(stages, wf__run_stage_name(WF_STAGE_TRAINING)), *digest;
    json_object_foreach(json_object_get(training, "outputs"), name, digest) {
        if (!wf__run_ends_with(name, ".log.jsonl")) continue;
        WF_TRY(wf__run_path(app, folder, name, out->log));
        out->log_digest = json_string_value(digest);
    }
    if (out->log[0] == '\0' || !wf_file_exists(out->log)) return WF_OK;
    char *text;
    size_t size;
    WF_TRY(wf_read_file(app->ctx, out->log, log_limit, &text, &size));
    for (const char *at = text; (at = strstr(at, key)) != NULL; at++)
        out->updates = strtoul(at + sizeof key - 1, NULL, 10);
    wf_free(text);
    return WF_OK;
}

static wf_status read_points(wf_run_app *app, const char *folder, cli_method *out) {
    char path[WF_RUN_PATH];
    WF_TRY(wf__run_path(app, folder, "points.json", path));
    if (!wf_file_exists(path)) return WF_OK;
    WF_TRY(wf__run_json_read(app, path, &out->points));
    const json_t *list = json_object_get(out->points, "points"), *cloud;
    size_t i, n = json_array_size(list);
    out->clouds = calloc(n + 1, sizeof *out->clouds);
    out->names = calloc(n + 1, sizeof *out->names);
    if (out->clouds == NULL || out->names == NULL)
        return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    json_array_foreach(list, i, cloud) {
        const char *name = json_string_value(json_object_get(cloud, "name"));
        if (name == NULL || !wf__run_points_from_json(cloud, &out->clouds[out->n_clouds]))
            return wf__run_fail(app, WF_ERR_INPUT, "%s: its points are damaged", path);
        snprintf(out->names[out->n_clouds++], sizeof *out->names, "%s", name);
    }
    return WF_OK;
}

wf_status cli_method_read(wf_run_app *app, const char *folder, const json_t *eval,
                          const json_t *stages, const json_t *settings, bool points,
                          cli_method *out) {
    const char *name = json_string_value(json_object_get(eval, "generator"));
    *out = (cli_method){.n_clouds = 0};
    wf__run_row_of_scores("", NULL, 0, &out->row);
    snprintf(out->generator, sizeof out->generator, "%s",
             name != NULL ? name : WF_GENERATOR_DEFAULT);
    const wf_generator_kind *kind = wf_generator_find(out->generator);
    if (kind != NULL) out->params = count_params(app, kind, eval, settings);
    char count[32] = "";
    wf__run_count(out->params, count);
    wf_text label = wf_text_start(out->label, sizeof out->label);
    wf_text_add(&label, "%s", out->generator);
    if (out->params > 0) wf_text_add(&label, ", %s parameters", count);
    WF_TRY(read_log(app, folder, stages, out));
    return points ? read_points(app, folder, out) : WF_OK;
}

void cli_method_free(cli_method *method) {
    for (int i = 0; i < method->n_clouds; i++) wf_points_free(&method->clouds[i]);
    json_decref(method->points);
    free(method->clouds);
    free(method->names);
    *method = (cli_method){.n_clouds = 0};
}

const wf_points *cli_method_points(const cli_method *method, const char *row) {
    for (int i = 0; i < method->n_clouds; i++)
        if (strcmp(method->names[i], row) == 0) return &method->clouds[i];
    return NULL;
}

/* --- results ---------------------------------------------------------------------------------- */

double cli_stage_seconds(const json_t *stages, wf_stage stage) {
    return json_number_value(
        json_object_get(json_object_get(stages, wf__run_stage_name(stage)), "seconds"));
}

/* "0.291", or "-" where there is none. */
static const char *score(double value, char out[16]) {
    snprintf(out, 16, isfinite(value) ? "%.3f" : "-", value);
    return out;
}

void cli_print_methods_head(void) {
    cli_print("%-24s %-12s %12s %10s %10s %10s %7s %12s %12s\n", "run", "generator", "parameters",
              "updates", "training", "sampling", "JWS", "unscaled", "no sqrt 3");
}

void cli_print_method(const char *run, const cli_method *m, const json_t *stages) {
    char count[32] = "-", updates[32] = "-", fit[32], draw[32], jws[16], raw[16], no_root[16];
    if (m->params > 0) wf__run_count(m->params, count);
    if (m->updates > 0) wf__run_count(m->updates, updates);
    wf__run_duration(cli_stage_seconds(stages, WF_STAGE_TRAINING), fit);
    wf__run_duration(cli_stage_seconds(stages, WF_STAGE_SAMPLING), draw);
    cli_print("%-24s %-12s %12s %10s %10s %10s %7s %12s %12s\n", run, m->generator, count, updates,
              fit, draw, score(m->row.jws, jws), score(m->row.jws_raw, raw),
              score(m->row.jws_no_sqrt3, no_root));
}

void cli_method_text(const cli_method *m, const json_t *stages, char *out, size_t size) {
    char updates[32], fit[32], draw[32], jws[16], raw[16], no_root[16];
    wf__run_count(m->updates, updates);
    wf__run_duration(cli_stage_seconds(stages, WF_STAGE_TRAINING), fit);
    wf__run_duration(cli_stage_seconds(stages, WF_STAGE_SAMPLING), draw);
    wf_text text = wf_text_start(out, size);
    wf_text_add(&text, "%s; ", m->label);
    if (m->updates > 0) wf_text_add(&text, "%s updates, ", updates);
    wf_text_add(&text,
                "training %s, sampling %s; JWS %s, without scales %s, without the root of 3 %s",
                fit, draw, score(m->row.jws, jws), score(m->row.jws_raw, raw),
                score(m->row.jws_no_sqrt3, no_root));
}

json_t *cli_method_to_json(const cli_method *m, const json_t *stages) {
    json_t *params = m->params > 0 ? json_integer((json_int_t)m->params) : json_null();
    json_t *updates = m->updates > 0 ? json_integer((json_int_t)m->updates) : json_null();
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "generator", m->generator, "parameters", params,
        "updates", updates, "training_seconds",
        wf__run_json_number(cli_stage_seconds(stages, WF_STAGE_TRAINING)), "sampling_seconds",
        wf__run_json_number(cli_stage_seconds(stages, WF_STAGE_SAMPLING)), "jws",
        wf__run_json_number(m->row.jws), "jws_raw", wf__run_json_number(m->row.jws_raw),
        "jws_no_sqrt3", wf__run_json_number(m->row.jws_no_sqrt3));
}
