/* report_domains_run: the page of a run along conditions, from eval.json and points.json. */
#include "run/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the page --------------------------------------------------------------------------------- */

typedef struct plane {
    json_t *eval, *points;
    wf_report_cloud clouds[2 + WF_RUN_MOST_CONDS];
    float *scores[2][2 + WF_RUN_MOST_CONDS];
    double cond[WF_RUN_MOST_CONDS], jws[2][WF_RUN_MOST_CONDS];
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
    float *out = wf__run_json_malloc((n + 1) * sizeof *out);
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
        if (at == 2 + WF_RUN_MOST_CONDS || json_array_size(json_array_get(scores, 1)) != n)
            continue;
        p->scores[0][at] = read_scores(json_array_get(scores, 0), n);
        p->scores[1][at] = read_scores(json_array_get(scores, 1), n);
        p->domains.n_clouds++;
        if (p->scores[0][at] == NULL || p->scores[1][at] == NULL) return false;
        p->clouds[at] =
            (wf_report_cloud){.name = wf__run_text_of(cloud, "name"),
                              .trained = json_is_true(json_object_get(cloud, "trained")),
                              .cond = wf__run_number_of(cloud, "cond"),
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
        if (strcmp(wf__run_text_of(row, "name"), "reference") == 0 && references++ < 2) {
            *(references == 1 ? &p->domains.x_name : &p->domains.y_name) =
                wf__run_text_of(row, "on");
            *(references == 1 ? &p->domains.x_cond : &p->domains.y_cond) =
                wf__run_number_of(row, "cond");
        }
        if (strcmp(wf__run_text_of(row, "name"), generator) != 0) continue;
        int at = 0, on = strcmp(wf__run_text_of(row, "on"), p->domains.x_name) == 0 ? 0 : 1;
        while (at < p->domains.n_jws && p->cond[at] != wf__run_number_of(row, "cond")) at++;
        if (at == WF_RUN_MOST_CONDS) continue;
        if (at == p->domains.n_jws) {
            p->domains.n_jws++;
            p->cond[at] = wf__run_number_of(row, "cond");
            p->jws[0][at] = p->jws[1][at] = NAN;
        }
        p->jws[on][at] = wf__run_number_of(row, "jws");
    }
}

/* The curves as they were written; false when memory lacks. */
static bool read_mix(plane *p) {
    const json_t *curves = json_object_get(json_object_get(p->eval, "mix"), "curves"), *curve;
    size_t n = json_array_size(curves), c, k;
    size_t points = json_array_size(json_object_get(json_array_get(curves, 0), "points"));
    if (n == 0 || points == 0) return true;
    p->mix.name = wf__run_json_malloc(n * sizeof *p->mix.name);
    p->mix.alpha = wf__run_json_malloc(points * sizeof(double));
    p->mix.mean = wf__run_json_malloc(2 * n * points * sizeof(double));
    p->mix.std = wf__run_json_malloc(2 * n * points * sizeof(double));
    if (p->mix.name == NULL || p->mix.alpha == NULL || p->mix.mean == NULL || p->mix.std == NULL)
        return false;
    p->mix.curves = (int)n;
    p->mix.points = (int)points;
    p->mix.n_data = 2;
    json_array_foreach(curves, c, curve) {
        snprintf(p->mix.name[c], sizeof p->mix.name[c], "%s", wf__run_text_of(curve, "name"));
        for (k = 0; k < points; k++) {
            const json_t *point = json_array_get(json_object_get(curve, "points"), k);
            p->mix.alpha[k] = wf__run_number_of(point, "alpha");
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

static wf_status read_plane(wf_run_job *r, plane *p) {
    WF_TRY(wf__run_json_read(r->app, r->paths.eval, &p->eval));
    WF_TRY(wf__run_json_read(r->app, r->paths.points, &p->points));
    p->domains.x_name = p->domains.y_name = "";
    if (!read_clouds(p) || !read_mix(p))
        return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    read_rows(p, r->recipe.generator);
    p->domains.clouds = p->clouds;
    p->domains.jws_cond = p->cond;
    p->domains.jws_x = p->jws[0];
    p->domains.jws_y = p->jws[1];
    return WF_OK;
}

static wf_status write_page(wf_run_job *r, const plane *p, const char *path,
                            const char *recipe_text) {
    const wf_run_recipe *recipe = &r->recipe;
    char title[128], summary[400], field[160], guidance[160];
    const char *name = recipe->title != NULL ? recipe->title : wf__run_text_of(p->eval, "recipe");
    snprintf(title, sizeof title, "weft: %.100s", name);
    snprintf(
        summary, sizeof summary,
        "One flow was fitted to networks of %.100s and of %.100s, told apart by a condition, and "
        "asked for networks at conditions between them that it never saw.",
        p->domains.x_name, p->domains.y_name);
    wf__run_options_text(recipe->kind, recipe->model, field, sizeof field);
    snprintf(guidance, sizeof guidance, "%g at conditions trained on, %g at others",
             recipe->sample.guidance, recipe->guidance_between);
    const wf_report_fact facts[] = {{"generator", field}, {"guidance", guidance}};
    wf_report_desc desc = wf_report_desc_default();
    desc.title = title;
    desc.summary = summary;
    desc.score = recipe->eval.score;
    desc.domains = &p->domains;
    wf_report_log log = {.path = r->paths.log, .digest = wf__run_log_digest(r)};
    desc.logs = &log;
    desc.n_logs = 1;
    desc.recipe = recipe_text;
    desc.facts = facts;
    desc.n_facts = 2;
    return wf_report_write(r->app->ctx, &desc, path);
}

wf_status wf__run_domains_report(wf_run_job *r, const char *path) {
    plane *p = calloc(1, sizeof *p);
    char *text = wf_recipe_text(r->recipe.source);
    bool lacking = p == NULL || text == NULL;
    wf_status status = lacking ? wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory") : WF_OK;
    if (status == WF_OK) status = read_plane(r, p);
    if (status == WF_OK) status = write_page(r, p, path, text);
    if (p != NULL) plane_free(p);
    free(text);
    return status;
}
