/* report_domains_run: the table and the page of a run along conditions, from eval.json and
 * points.json. */
#include "cli/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double number_of(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text_of(const json_t *json, const char *key) {
    const char *text = json_string_value(json_object_get(json, key));
    return text != NULL ? text : "";
}

/* --- the table -------------------------------------------------------------------------------- */

static void print_cell(const json_t *row, bool auc) {
    double factor = auc ? 1 : 100;
    int decimals = auc ? 4 : 2;
    if (!isfinite(number_of(row, "accuracy_mean"))) cli_print("  %16s", "-");
    else
        cli_print("  %7.*f \u00b1 %6.*f", decimals, factor * number_of(row, "accuracy_mean"),
                  decimals, factor * number_of(row, "accuracy_std"));
    if (isfinite(number_of(row, "jws"))) cli_print(" %6.3f", number_of(row, "jws"));
    else cli_print(" %6s", "-");
}

static const json_t *find_row(const json_t *rows, const char *name, double cond, const char *on) {
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(text_of(row, "name"), name) == 0 && number_of(row, "cond") == cond &&
            strcmp(text_of(row, "on"), on) == 0)
            return row;
    }
    return NULL;
}

/* A name at a condition: a cell for every collection. */
static void print_line(const json_t *rows, const json_t *like, bool auc) {
    size_t i;
    const json_t *row;
    double cond = number_of(like, "cond");
    cli_print("%-12s %8g", text_of(like, "name"), cond);
    json_array_foreach(rows, i, row) {
        if (strcmp(text_of(row, "name"), "reference") == 0)
            print_cell(find_row(rows, text_of(like, "name"), cond, text_of(row, "on")), auc);
    }
    cli_print("\n");
}

/* Whether an earlier row has the name, and the condition where cond is one. */
static bool seen_before(const json_t *rows, size_t at, const char *name, double cond) {
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (i >= at) break;
        if (strcmp(text_of(row, "name"), name) == 0 &&
            (isnan(cond) || number_of(row, "cond") == cond))
            return true;
    }
    return false;
}

/* All lines of one name, a line for each condition. */
static void print_lines(const json_t *rows, const char *name, bool auc) {
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(text_of(row, "name"), name) == 0 &&
            !seen_before(rows, i, name, number_of(row, "cond")))
            print_line(rows, row, auc);
    }
}

static void print_rows(const json_t *eval, bool auc) {
    const json_t *rows = json_object_get(eval, "rows"), *row;
    size_t i;
    cli_print("%-12s %8s", "networks", "cond");
    json_array_foreach(rows, i, row) {
        if (strcmp(text_of(row, "name"), "reference") == 0)
            cli_print("  %16.16s %6s", text_of(row, "on"), "JWS");
    }
    cli_print("\n");
    json_array_foreach(rows, i, row) {
        if (!seen_before(rows, i, text_of(row, "name"), NAN))
            print_lines(rows, text_of(row, "name"), auc);
    }
}

wf_status cli_domains_print(cli_job *r) {
    json_t *eval;
    CLI_TRY(cli_json_read(r->app, r->paths.eval, &eval));
    if (r->app->json) return cli_print_eval_json(r->app, eval);
    print_rows(eval, r->recipe.eval.score == WF_SCORE_AUC);
    const char *label;
    json_t *note;
    json_object_foreach(json_object_get(eval, "data_notes"), label, note)
        cli_print("data of %s: %s\n", label, json_string_value(note));
    json_decref(eval);
    return WF_OK;
}

/* --- the page --------------------------------------------------------------------------------- */

typedef struct plane {
    json_t *eval, *points;
    wf_report_cloud clouds[2 + CLI_MOST_CONDS];
    float *scores[2][2 + CLI_MOST_CONDS];
    double cond[CLI_MOST_CONDS], jws[2][CLI_MOST_CONDS];
    wf_mix mix;
    wf_report_domains domains;
} plane;

static void plane_free(plane *p) {
    for (int i = 0; i < p->domains.n_clouds; i++) {
        free(p->scores[0][i]);
        free(p->scores[1][i]);
    }
    free(p->mix.name);
    free(p->mix.alpha);
    free(p->mix.mean);
    free(p->mix.std);
    json_decref(p->eval);
    json_decref(p->points);
    free(p);
}

static float *read_scores(const json_t *list, size_t n) {
    float *out = cli_json_malloc((n + 1) * sizeof *out);
    for (size_t i = 0; out != NULL && i < n; i++) {
        const json_t *value = json_array_get(list, i);
        out[i] = json_is_number(value) ? (float)json_number_value(value) : NAN;
    }
    return out;
}

/* False when memory lacks. */
static bool read_clouds(plane *p) {
    size_t i;
    const json_t *cloud;
    json_array_foreach(json_object_get(p->points, "clouds"), i, cloud) {
        int at = p->domains.n_clouds;
        const json_t *scores = json_object_get(cloud, "scores");
        size_t n = json_array_size(json_array_get(scores, 0));
        if (at == 2 + CLI_MOST_CONDS || json_array_size(json_array_get(scores, 1)) != n) continue;
        p->scores[0][at] = read_scores(json_array_get(scores, 0), n);
        p->scores[1][at] = read_scores(json_array_get(scores, 1), n);
        p->domains.n_clouds++;
        if (p->scores[0][at] == NULL || p->scores[1][at] == NULL) return false;
        p->clouds[at] =
            (wf_report_cloud){.name = text_of(cloud, "name"),
                              .trained = json_is_true(json_object_get(cloud, "trained")),
                              .cond = number_of(cloud, "cond"),
                              .x = p->scores[0][at],
                              .y = p->scores[1][at],
                              .n = n};
    }
    return true;
}

static void read_rows(plane *p, const char *generator) {
    size_t i;
    const json_t *row;
    int references = 0;
    json_array_foreach(json_object_get(p->eval, "rows"), i, row) {
        if (strcmp(text_of(row, "name"), "reference") == 0 && references++ < 2) {
            *(references == 1 ? &p->domains.x_name : &p->domains.y_name) = text_of(row, "on");
            *(references == 1 ? &p->domains.x_cond : &p->domains.y_cond) = number_of(row, "cond");
        }
        if (strcmp(text_of(row, "name"), generator) != 0) continue;
        int at = 0, on = strcmp(text_of(row, "on"), p->domains.x_name) == 0 ? 0 : 1;
        while (at < p->domains.n_jws && p->cond[at] != number_of(row, "cond")) at++;
        if (at == CLI_MOST_CONDS) continue;
        if (at == p->domains.n_jws) {
            p->domains.n_jws++;
            p->cond[at] = number_of(row, "cond");
            p->jws[0][at] = p->jws[1][at] = NAN;
        }
        p->jws[on][at] = number_of(row, "jws");
    }
}

/* The curves as they were written; false when memory lacks. */
static bool read_mix(plane *p) {
    const json_t *curves = json_object_get(json_object_get(p->eval, "mix"), "curves"), *curve;
    size_t n = json_array_size(curves), c, k;
    size_t points = json_array_size(json_object_get(json_array_get(curves, 0), "points"));
    if (n == 0 || points == 0) return true;
    p->mix.name = cli_json_malloc(n * sizeof *p->mix.name);
    p->mix.alpha = cli_json_malloc(points * sizeof(double));
    p->mix.mean = cli_json_malloc(2 * n * points * sizeof(double));
    p->mix.std = cli_json_malloc(2 * n * points * sizeof(double));
    if (p->mix.name == NULL || p->mix.alpha == NULL || p->mix.mean == NULL || p->mix.std == NULL)
        return false;
    p->mix.curves = (int)n;
    p->mix.points = (int)points;
    p->mix.n_data = 2;
    json_array_foreach(curves, c, curve) {
        snprintf(p->mix.name[c], sizeof p->mix.name[c], "%s", text_of(curve, "name"));
        for (k = 0; k < points; k++) {
            const json_t *point = json_array_get(json_object_get(curve, "points"), k);
            p->mix.alpha[k] = number_of(point, "alpha");
            for (size_t s = 0; s < 2; s++) {
                size_t place = (c * points + k) * 2 + s;
                p->mix.mean[place] =
                    json_number_value(json_array_get(json_object_get(point, "mean"), s));
                p->mix.std[place] =
                    json_number_value(json_array_get(json_object_get(point, "std"), s));
            }
        }
    }
    p->domains.mix = &p->mix;
    return true;
}

static wf_status read_plane(cli_job *r, plane *p) {
    CLI_TRY(cli_json_read(r->app, r->paths.eval, &p->eval));
    CLI_TRY(cli_json_read(r->app, r->paths.points, &p->points));
    p->domains.x_name = p->domains.y_name = "";
    if (!read_clouds(p) || !read_mix(p)) return cli_fail(r->app, WF_ERR_MEMORY, "out of memory");
    read_rows(p, r->recipe.generator);
    p->domains.clouds = p->clouds;
    p->domains.jws_cond = p->cond;
    p->domains.jws_x = p->jws[0];
    p->domains.jws_y = p->jws[1];
    return WF_OK;
}

static wf_status write_page(cli_job *r, const plane *p, const char *path, const char *recipe_text) {
    const cli_recipe *recipe = &r->recipe;
    char title[128], summary[400], field[160], guidance[160];
    const char *name = recipe->title != NULL ? recipe->title : text_of(p->eval, "recipe");
    snprintf(title, sizeof title, "weft: %.100s", name);
    snprintf(
        summary, sizeof summary,
        "One flow was fitted to networks of %.100s and of %.100s, told apart by a condition, and "
        "asked for networks at conditions between them that it never saw.",
        p->domains.x_name, p->domains.y_name);
    cli_options_text(recipe->kind, recipe->model, field, sizeof field);
    snprintf(guidance, sizeof guidance, "%g at conditions trained on, %g at others",
             recipe->sample.guidance, recipe->guidance_between);
    const wf_report_fact facts[] = {{"generator", field}, {"guidance", guidance}};
    wf_report_desc desc = wf_report_desc_default();
    desc.title = title;
    desc.summary = summary;
    desc.score = recipe->eval.score;
    desc.domains = &p->domains;
    desc.log_path = r->paths.log;
    desc.recipe = recipe_text;
    desc.facts = facts;
    desc.n_facts = 2;
    return wf_report_write(r->app->ctx, &desc, path);
}

wf_status cli_domains_report(cli_job *r, const char *path) {
    plane *p = calloc(1, sizeof *p);
    char *text = wf_recipe_text(r->recipe.source);
    wf_status status = p == NULL ? cli_fail(r->app, WF_ERR_MEMORY, "out of memory") : WF_OK;
    if (status == WF_OK) status = read_plane(r, p);
    if (status == WF_OK) status = write_page(r, p, path, text);
    if (p != NULL) plane_free(p);
    free(text);
    return status;
}
