/* eval, align: networks against a collection; a collection against one of its own. */
#include "cli/commands.h"
#include "cli/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wf_eval_desc read_eval_options(cli_app *app) {
    wf_eval_desc desc = wf_eval_desc_default();
    cli_settings(app, wf_eval_settings(), &desc);
    desc.cache = !cli_flag(app, "no-cache");
    return desc;
}

static wf_status print_row(cli_app *app, const wf_reference *reference, const wf_dataset *data,
                           const wf_eval_row *row, const wf_points *points, wf_score score) {
    const char *about = data != NULL ? data->note : "";
    if (app->json) {
        double scales[3];
        wf_reference_scales(reference, scales);
        json_t *json = cli_row_to_json(row);
        json_object_set_new(json, "novelty", cli_novelty_to_json(points));
        json_object_set_new(json, "scales",
                            json_pack("[o,o,o]", cli_json_number(scales[0]),
                                      cli_json_number(scales[1]), cli_json_number(scales[2])));
        json_object_set_new(json, "notes", json_string(wf_reference_notes(reference)));
        json_object_set_new(json, "devices", json_string(wf_ctx_devices(app->ctx)));
        json_object_set_new(json, "data_note", json_string(about));
        return cli_print_json(app, json);
    }
    bool copies = wf_report_is_copy(points);
    cli_print_rows(row, 1, score == WF_SCORE_AUC, &copies);
    const char *notes = wf_reference_notes(reference);
    if (notes[0] != '\0') cli_print("note: %s\n", notes);
    if (strcmp(cli_text(app, "device"), "cpu") != 0)
        cli_print("note: where it ran: %s\n", wf_ctx_devices(app->ctx));
    if (about[0] != '\0') cli_print("data: %s\n", about);
    return WF_OK;
}

typedef struct comparison {
    wf_zoo *zoo, *nets;
    wf_dataset *data;
    wf_reference *reference;
    float *weights, *scores;
} comparison;

/* Networks of a shape no collection has: their scores alone. */
static wf_status score_alone(cli_app *app, comparison *c) {
    wf_eval_desc desc = read_eval_options(app);
    CLI_TRY(wf_zoo_open(app->ctx, cli_text(app, "nets"), &c->nets));
    CLI_TRY(cli_dataset_named(app, cli_text(app, "data"), &c->data));
    size_t n = wf_zoo_count(c->nets);
    CLI_TRY(wf_zoo_load(app->ctx, c->nets, 0, n, &c->weights));
    c->scores = calloc(n + 1, sizeof *c->scores);
    if (c->scores == NULL) return cli_fail(app, WF_ERR_MEMORY, "out of memory");
    CLI_TRY(wf_score_networks(app->ctx, wf_zoo_graph(c->nets), c->weights, n, c->data, desc.score,
                              c->scores, NULL));
    wf_eval_row row;
    cli_row_of_scores(cli_text(app, "name"), c->scores, n, &row);
    if (app->json) return cli_print_json(app, cli_row_to_json(&row));
    cli_print_rows(&row, 1, desc.score == WF_SCORE_AUC, NULL);
    return WF_OK;
}

static wf_status compare(cli_app *app, comparison *c) {
    wf_ctx *ctx = app->ctx;
    wf_eval_desc desc = read_eval_options(app);
    wf_eval_row row;
    wf_points points;
    CLI_TRY(wf_zoo_open(ctx, cli_text(app, "zoo"), &c->zoo));
    CLI_TRY(wf_zoo_open(ctx, cli_text(app, "nets"), &c->nets));
    if (!wf_graph_equal(wf_zoo_graph(c->zoo), wf_zoo_graph(c->nets)))
        return cli_fail(app, WF_ERR_SHAPE,
                        "%s has networks of %s, %s of %s: they cannot be compared",
                        cli_text(app, "zoo"), wf_zoo_graph(c->zoo)->text, cli_text(app, "nets"),
                        wf_zoo_graph(c->nets)->text);
    if (cli_given(app, "data")) CLI_TRY(cli_dataset_named(app, cli_text(app, "data"), &c->data));
    CLI_TRY(wf_zoo_load(ctx, c->nets, 0, wf_zoo_count(c->nets), &c->weights));
    CLI_TRY(wf_reference_open(ctx, c->zoo, c->data, &desc, &c->reference));
    CLI_TRY(wf_eval_networks(ctx, c->reference, cli_text(app, "name"), c->weights,
                             wf_zoo_count(c->nets), &row, &points));
    wf_status status = print_row(app, c->reference, c->data, &row, &points, desc.score);
    wf_points_free(&points);
    return status;
}

wf_status cli_eval(cli_app *app) {
    bool alone = cli_text(app, "zoo") == NULL;
    if (cli_text(app, "nets") == NULL || (alone && cli_text(app, "data") == NULL))
        return cli_fail(
            app, WF_ERR_USAGE,
            "weft eval needs --nets FILE and --zoo FILE, or --nets FILE and --data DATA "
            "for the scores alone");
    comparison c = {0};
    wf_status status = alone ? score_alone(app, &c) : compare(app, &c);
    free(c.weights);
    free(c.scores);
    wf_reference_free(c.reference);
    wf_dataset_free(c.data);
    wf_zoo_free(c.nets);
    wf_zoo_free(c.zoo);
    return status;
}

/* --- align -------------------------------------------------------------------------------------- */

/* Mean cosine of all networks to network `to`, as they stand. */
static wf_status mean_cosine(cli_app *app, const char *path, size_t to, double *out) {
    wf_zoo *zoo;
    float *weights = NULL;
    CLI_TRY(wf_zoo_open(app->ctx, path, &zoo));
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

static wf_status align_collection(cli_app *app, const wf_zoo *zoo) {
    const char *out = cli_text(app, "out");
    size_t to = (size_t)cli_int(app, "reference");
    if (to >= wf_zoo_count(zoo))
        return cli_fail(app, WF_ERR_USAGE,
                        "--reference is %zu, but the collection has %zu network%s, counted from 0",
                        to, wf_zoo_count(zoo), CLI_S(wf_zoo_count(zoo)));
    wf_match_desc desc = wf_match_desc_default();
    desc.sweeps = (int)cli_int(app, "sweeps");
    desc.restarts = (int)cli_int(app, "restarts");
    if (cli_given(app, "seed")) desc.seed = (uint64_t)cli_int(app, "seed");
    double before, after;
    CLI_TRY(mean_cosine(app, app->argument[0], to, &before));
    CLI_TRY(wf_align_zoo(app->ctx, zoo, to, &desc, out));
    CLI_TRY(mean_cosine(app, out, to, &after));
    if (app->json)
        return cli_print_json(app,
                              json_pack("{s:s, s:I, s:I, s:f, s:f}", "path", out, "count",
                                        (json_int_t)wf_zoo_count(zoo), "reference", (json_int_t)to,
                                        "cosine_before", before, "cosine_after", after));
    cli_print(
        "%s: %zu network%s aligned to network %zu; mean cosine to it %.3f before, %.3f after\n",
        out, wf_zoo_count(zoo), CLI_S(wf_zoo_count(zoo)), to, before, after);
    return WF_OK;
}

wf_status cli_align(cli_app *app) {
    if (cli_text(app, "out") == NULL)
        return cli_fail(app, WF_ERR_USAGE, "say where the aligned collection goes: -o FILE");
    CLI_TRY(cli_lock_file(app, cli_text(app, "out")));
    wf_zoo *zoo;
    CLI_TRY(wf_zoo_open(app->ctx, app->argument[0], &zoo));
    wf_status status = align_collection(app, zoo);
    wf_zoo_free(zoo);
    return status;
}
