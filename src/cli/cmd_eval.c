/* eval, align: networks against a collection; a collection against one of its own. */
#include "cli/commands.h"
#include "cli/networks.h"
#include "cli/tables.h"
#include "run/data_source.h"
#include "run/eval_rows.h"
#include "weft/import.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wf_eval_desc read_eval_options(wf_run_app *app) {
    wf_eval_desc desc = wf_eval_desc_default();
    cli_settings(app, wf_eval_settings(), &desc);
    desc.cache = !cli_flag(app, "no-cache");
    return desc;
}

typedef struct judging {
    wf_run_app *app;
    wf_run_recipe recipe; /* what the options say; it comes from no file */
    wf_zoo *zoo, *nets;
    wf_dataset *data;
    wf_reference *reference;
    wf_run_eval_rows rows;
    wf_run_judged *judged;
    int n;
    char **names; /* of the networks; NULL: none */
} judging;

/* What belongs to all rows. */
static void add_notes(const judging *j, json_t *json) {
    double scales[3];
    wf_reference_scales(j->reference, scales);
    json_object_set_new(json, "scales",
                        json_pack("[o,o,o]", wf__run_json_number(scales[0]),
                                  wf__run_json_number(scales[1]), wf__run_json_number(scales[2])));
    json_object_set_new(json, "notes", json_string(wf_reference_notes(j->reference)));
    json_object_set_new(json, "devices", json_string(wf_ctx_devices(j->app->ctx)));
    json_object_set_new(json, "data_note", json_string(j->data != NULL ? j->data->note : ""));
}

/* --- networks one by one ---------------------------------------------------------------------- */

/* What there is of a network; fields that are not known are NaN or -1. */
typedef struct network_scores {
    const char *name; /* NULL: none */
    double score, iou, wcs;
    json_int_t nearest_iou, nearest_wcs;
} network_scores;

static network_scores scores_of(const judging *j, const wf_points *p, size_t k) {
    network_scores s = {.score = NAN, .iou = NAN, .wcs = NAN, .nearest_iou = -1, .nearest_wcs = -1};
    if (j->names != NULL) s.name = j->names[k];
    if (p->accuracy != NULL) s.score = (double)p->accuracy[k];
    if (p->iou != NULL) s.iou = (double)p->iou[k];
    if (p->iou != NULL && p->nearest_iou != NULL) s.nearest_iou = p->nearest_iou[k];
    if (p->wcs != NULL) s.wcs = (double)p->wcs[k];
    if (p->wcs != NULL && p->nearest_wcs != NULL) s.nearest_wcs = p->nearest_wcs[k];
    return s;
}

static void set_number(json_t *json, const char *key, double value) {
    if (!isnan(value)) json_object_set_new(json, key, json_real(value));
}

static json_t *networks_to_json(const judging *j, const wf_points *points) {
    json_t *list = json_array();
    for (size_t k = 0; k < points->n; k++) {
        network_scores s = scores_of(j, points, k);
        json_t *one = json_pack("{s:I}", "index", (json_int_t)k);
        if (s.name != NULL) json_object_set_new(one, "name", json_string(s.name));
        set_number(one, "score", s.score);
        set_number(one, "iou", s.iou);
        set_number(one, "wcs", s.wcs);
        if (s.nearest_iou >= 0)
            json_object_set_new(one, "nearest_iou", json_integer(s.nearest_iou));
        if (s.nearest_wcs >= 0)
            json_object_set_new(one, "nearest_wcs", json_integer(s.nearest_wcs));
        json_array_append_new(list, one);
    }
    return list;
}

static void put_number(wf_long_text *csv, double value) {
    wf_long_text_put(csv, ",", 1);
    if (!isnan(value)) wf_long_text_add(csv, "%.7g", value);
}

/* Names in quotes, quotes in them doubled. */
static void put_networks(wf_long_text *csv, const judging *j, const wf_points *points) {
    wf_long_text_add(csv, "index,name,score,error_iou,wcs,nearest_iou,nearest_wcs\n");
    for (size_t k = 0; k < points->n; k++) {
        network_scores s = scores_of(j, points, k);
        wf_long_text_add(csv, "%zu,", k);
        if (s.name != NULL) wf_long_text_put(csv, "\"", 1);
        for (const char *at = s.name; at != NULL && *at != '\0'; at++) {
            if (*at == '"') wf_long_text_put(csv, "\"", 1);
            wf_long_text_put(csv, at, 1);
        }
        if (s.name != NULL) wf_long_text_put(csv, "\"", 1);
        put_number(csv, s.score);
        put_number(csv, s.iou);
        put_number(csv, s.wcs);
        put_number(csv, s.nearest_iou < 0 ? NAN : (double)s.nearest_iou);
        put_number(csv, s.nearest_wcs < 0 ? NAN : (double)s.nearest_wcs);
        wf_long_text_put(csv, "\n", 1);
    }
}

/* The row of the networks themselves; NULL: --rows leaves it out. */
static const wf_run_judged *judged_networks(const judging *j) {
    for (int i = 0; i < j->n; i++)
        if (j->judged[i].of->kind == WF_RUN_ROW_GENERATED) return &j->judged[i];
    return NULL;
}

static wf_status write_csv(const judging *j) {
    const char *path = cli_text(j->app, "csv");
    const wf_run_judged *networks = judged_networks(j);
    if (path == NULL) return WF_OK;
    if (networks == NULL)
        return wf__run_fail(j->app, WF_ERR_USAGE,
                            "--csv lists the networks, but --rows leaves them out");
    wf_long_text csv = {0};
    put_networks(&csv, j, &networks->points);
    char *text = wf_long_text_end(&csv);
    wf_status status = text != NULL ? wf_write_file(j->app->ctx, path, text, csv.length)
                                    : wf__run_fail(j->app, WF_ERR_MEMORY, "out of memory");
    free(text);
    return status;
}

static json_t *judged_to_json(const judging *j, const wf_run_judged *judged) {
    json_t *json = wf__run_row_to_json(&judged->row);
    if (judged->has_points)
        json_object_set_new(json, "novelty", wf__run_novelty_to_json(&judged->points));
    if (judged == judged_networks(j) && (judged->has_points || judged->has_scores))
        json_object_set_new(json, "networks", networks_to_json(j, &judged->points));
    return json;
}

/* One row is an object, several are a list in one. */
static wf_status print_json(const judging *j) {
    json_t *json = j->rows.listed ? json_object() : judged_to_json(j, &j->judged[0]);
    if (j->rows.listed) {
        json_t *rows = json_array();
        for (int i = 0; i < j->n; i++)
            json_array_append_new(rows, judged_to_json(j, &j->judged[i]));
        json_object_set_new(json, "rows", rows);
    }
    if (j->reference != NULL) add_notes(j, json);
    return cli_print_json(j->app, json);
}

static wf_status print_table(const judging *j) {
    wf_eval_row *rows = calloc((size_t)j->n, sizeof *rows);
    bool *copies = calloc((size_t)j->n, sizeof *copies);
    wf_status status = WF_OK;
    if (rows == NULL || copies == NULL)
        status = wf__run_fail(j->app, WF_ERR_MEMORY, "out of memory");
    for (int i = 0; status == WF_OK && i < j->n; i++) {
        rows[i] = j->judged[i].row;
        copies[i] = j->judged[i].copies;
    }
    if (status == WF_OK) cli_print_rows(rows, j->n, j->recipe.eval.score == WF_SCORE_AUC, copies);
    free(rows);
    free(copies);
    if (status != WF_OK || j->reference == NULL) return status;
    const char *notes = wf_reference_notes(j->reference);
    if (notes[0] != '\0') cli_print("note: %s\n", notes);
    if (strcmp(cli_text(j->app, "device"), "cpu") != 0)
        cli_print("note: where it ran: %s\n", wf_ctx_devices(j->app->ctx));
    if (j->data != NULL && j->data->note[0] != '\0') cli_print("data: %s\n", j->data->note);
    return WF_OK;
}

/* --rows; without it the networks alone, as one row. */
static wf_status read_rows(judging *j) {
    wf_run_recipe *recipe = &j->recipe;
    recipe->generator = cli_text(j->app, "name");
    recipe->rows = cli_text(j->app, "rows");
    recipe->sample = wf_sample_desc_default();
    cli_settings(j->app, wf_sample_settings(), &recipe->sample);
    recipe->sample_count = wf_zoo_count(j->nets);
    recipe->eval = read_eval_options(j->app);
    if (recipe->rows != NULL) return wf__run_eval_rows_read(j->app, recipe, "", false, &j->rows);
    j->rows.list = calloc(1, sizeof *j->rows.list);
    if (j->rows.list == NULL) return wf__run_fail(j->app, WF_ERR_MEMORY, "out of memory");
    j->rows.n = 1;
    j->rows.list[0].kind = WF_RUN_ROW_GENERATED;
    snprintf(j->rows.list[0].name, sizeof j->rows.list[0].name, "%s", recipe->generator);
    return WF_OK;
}

static wf_status judge(judging *j) {
    wf_run_app *app = j->app;
    const char *zoo = cli_text(app, "zoo"), *nets = cli_text(app, "nets");
    if (zoo != NULL) WF_TRY(wf_zoo_open(app->ctx, zoo, &j->zoo));
    WF_TRY(
        wf_zoo_open_networks(app->ctx, nets, zoo != NULL ? wf_zoo_graph(j->zoo) : NULL, &j->nets));
    if (zoo != NULL && !wf_graph_equal(wf_zoo_graph(j->zoo), wf_zoo_graph(j->nets)))
        return wf__run_fail(
            app, WF_ERR_SHAPE,
            "%s has networks of %s, %s of %s: they cannot be compared; without --zoo the "
            "scores on --data are shown",
            zoo, wf_zoo_graph(j->zoo)->text, nets, wf_zoo_graph(j->nets)->text);
    WF_TRY(read_rows(j));
    if (cli_given(app, "data"))
        WF_TRY(cli_open_data(app, j->zoo != NULL ? j->zoo : j->nets, &j->data));
    if (zoo != NULL)
        WF_TRY(wf_reference_open(app->ctx, j->zoo, j->data, &j->recipe.eval, &j->reference));
    wf_run_judging what = {.app = app,
                           .recipe = &j->recipe,
                           .reference = j->reference,
                           .data = j->data,
                           .nets = j->nets,
                           .zoo = j->zoo,
                           .graph = wf_zoo_graph(j->nets),
                           .whole = true};
    WF_TRY(wf__run_judge_rows(&what, &j->rows, &j->judged, &j->n));
    WF_TRY(wf_zoo_names(app->ctx, j->nets, &j->names));
    WF_TRY(write_csv(j));
    return app->json ? print_json(j) : print_table(j);
}

wf_status cli_eval(wf_run_app *app) {
    bool alone = cli_text(app, "zoo") == NULL;
    if (cli_text(app, "nets") == NULL || (alone && cli_text(app, "data") == NULL))
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "weft eval needs --nets FILE and --zoo FILE, or --nets FILE and --data DATA "
            "for the scores alone");
    if (cli_text(app, "csv") != NULL) WF_TRY(cli_new_file(app, cli_text(app, "csv")));
    judging j = {.app = app};
    wf_status status = judge(&j);
    wf__run_judged_free(j.judged, j.n);
    wf__run_eval_rows_free(&j.rows);
    wf_reference_free(j.reference);
    wf_dataset_free(j.data);
    if (j.nets != NULL) wf_zoo_names_free(j.names, wf_zoo_count(j.nets));
    wf_zoo_free(j.nets);
    wf_zoo_free(j.zoo);
    return status;
}

/* --- align ------------------------------------------------------------------------------------ */

/* Mean cosine of all networks to network `to`, without matching. */
static wf_status mean_cosine(wf_run_app *app, const char *path, size_t to, double *out) {
    wf_zoo *zoo;
    float *weights = NULL;
    WF_TRY(wf_zoo_open(app->ctx, path, &zoo));
    size_t each = wf_zoo_graph(zoo)->n_params, total = wf_zoo_count(zoo);
    wf_status status = wf_zoo_load(app->ctx, zoo, 0, total, &weights);
    double sum = 0;
    for (size_t i = 0; status == WF_OK && i < total; i++) {
        const float *a = weights + to * each, *b = weights + i * each;
        double ab = 0, aa = 0, bb = 0;
        for (size_t k = 0; k < each; k++) {
            ab += (double)a[k] * b[k];
            aa += (double)a[k] * a[k];
            bb += (double)b[k] * b[k];
        }
        if (i != to && aa > 0 && bb > 0) sum += ab / sqrt(aa * bb);
    }
    *out = total > 1 ? sum / (double)(total - 1) : 1;
    free(weights);
    wf_zoo_free(zoo);
    return status;
}

static wf_status align_collection(wf_run_app *app, const wf_zoo *zoo) {
    const char *out = cli_text(app, "out");
    size_t to = (size_t)cli_int(app, "reference");
    if (to >= wf_zoo_count(zoo))
        return wf__run_fail(
            app, WF_ERR_USAGE,
            "--reference is %zu, but the collection has %zu network%s, counted from 0", to,
            wf_zoo_count(zoo), WF_RUN_S(wf_zoo_count(zoo)));
    wf_match_desc desc = wf_match_desc_default();
    cli_settings(app, wf_match_settings(), &desc);
    double before, after;
    WF_TRY(mean_cosine(app, app->argument[0], to, &before));
    WF_TRY(wf_align_zoo(app->ctx, zoo, to, &desc, out));
    WF_TRY(mean_cosine(app, out, to, &after));
    if (app->json)
        return cli_print_json(app,
                              json_pack("{s:s, s:I, s:I, s:f, s:f}", "path", out, "count",
                                        (json_int_t)wf_zoo_count(zoo), "reference", (json_int_t)to,
                                        "cosine_before", before, "cosine_after", after));
    cli_print(
        "%s: %zu network%s aligned to network %zu; mean cosine to it %.3f before, %.3f after\n",
        out, wf_zoo_count(zoo), WF_RUN_S(wf_zoo_count(zoo)), to, before, after);
    return WF_OK;
}

wf_status cli_align(wf_run_app *app) {
    if (cli_text(app, "out") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "say where the aligned collection goes: -o FILE");
    WF_TRY(cli_new_file(app, cli_text(app, "out")));
    wf_zoo *zoo;
    WF_TRY(wf_zoo_open(app->ctx, app->argument[0], &zoo));
    wf_status status = align_collection(app, zoo);
    wf_zoo_free(zoo);
    return status;
}
