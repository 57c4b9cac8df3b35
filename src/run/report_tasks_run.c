/* report_tasks_run: the page about a run with a manifest, from eval.json. */
#include "run/job.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { max_facts = 4 };

/* A row of the same collection and width by name, else by the other name; NULL when there is
 * neither. */
static const json_t *find_row(const json_t *rows, const json_t *like, const char *name,
                              const char *other) {
    const json_t *found = NULL, *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        if (strcmp(wf__run_text_of(row, "collection"), wf__run_text_of(like, "collection")) != 0 ||
            wf__run_number_of(row, "width") != wf__run_number_of(like, "width"))
            continue;
        if (strcmp(wf__run_text_of(row, "name"), name) == 0) return row;
        if (strcmp(wf__run_text_of(row, "name"), other) == 0) found = row;
    }
    return found;
}

/* The numbers that the manifest quotes for the row's collection and width. */
static const json_t *find_paper(const json_t *list, const json_t *like) {
    const json_t *found;
    size_t i;
    json_array_foreach(list, i, found) {
        if (strcmp(wf__run_text_of(found, "collection"), wf__run_text_of(like, "collection")) ==
                0 &&
            wf__run_number_of(found, "width") == wf__run_number_of(like, "width"))
            return found;
    }
    return NULL;
}

/* One task for every collection and width that was sampled: the last generated row beside the
 * trained one. */
wf_status wf__run_board_read(wf_run_job *r, wf_run_board *out) {
    WF_TRY(wf__run_json_read(r->app, r->paths.eval, &out->eval));
    const char *generator = r->recipe.generator;
    char refined[64];
    snprintf(refined, sizeof refined, "%s-refined", generator);
    const json_t *rows = json_object_get(out->eval, "rows"), *row;
    out->tasks = wf__run_json_malloc((json_array_size(rows) + 1) * sizeof *out->tasks);
    if (out->tasks == NULL) return wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory");
    size_t i;
    json_array_foreach(rows, i, row) {
        if (row != find_row(rows, row, refined, generator)) continue;
        const json_t *trained = find_row(rows, row, "reference", "scratch");
        const json_t *paper = find_paper(json_object_get(out->eval, "paper"), row);
        const json_t *notes = json_object_get(out->eval, "data_notes");
        out->tasks[out->n++] =
            (wf_report_task){.name = wf__run_text_of(row, "collection"),
                             .arch = wf__run_text_of(row, "arch"),
                             .width = wf__run_number_of(row, "width"),
                             .trained = wf__run_number_of(trained, "accuracy_mean"),
                             .trained_std = wf__run_number_of(trained, "accuracy_std"),
                             .generated = wf__run_number_of(row, "accuracy_mean"),
                             .generated_std = wf__run_number_of(row, "accuracy_std"),
                             .jws = wf__run_number_of(row, "jws"),
                             .note = wf__run_text_of(notes, wf__run_text_of(row, "collection"))};
        if (paper == NULL) continue;
        out->tasks[out->n - 1].paper_trained = wf__run_number_of(paper, "trained");
        out->tasks[out->n - 1].paper_generated = wf__run_number_of(paper, "generated");
    }
    return WF_OK;
}

void wf__run_board_free(wf_run_board *b) {
    json_decref(b->eval);
    free(b->tasks);
}

/* --- the page --------------------------------------------------------------------------------- */

static int count_collections(const wf_run_board *b) {
    int count = 0;
    for (int i = 0; i < b->n; i++) {
        int first = 0;
        while (strcmp(b->tasks[first].name, b->tasks[i].name) != 0) first++;
        count += first == i;
    }
    return count;
}

static wf_status write_page(wf_run_job *r, const wf_run_board *b, const char *path,
                            char *recipe_text) {
    const wf_run_recipe *recipe = &r->recipe;
    char title[128], summary[400], model[200], field[260], training[160], took[32], updates[32];
    wf_report_fact facts[max_facts];
    int n_facts = 0;
    const char *name = recipe->title != NULL ? recipe->title : wf__run_text_of(b->eval, "recipe");
    snprintf(title, sizeof title, "weft: %.100s", name);
    snprintf(summary, sizeof summary,
             "One generator was fitted to %d collections of trained networks, and new networks "
             "were drawn "
             "from it for every task and width. Are they as good as trained ones?",
             count_collections(b));
    const int *numbers = wf__run_recipe_cond_size(recipe);
    wf_text about = wf_text_start(field, sizeof field);
    wf__run_options_text(recipe->kind, recipe->model, model, sizeof model);
    wf_text_add(&about, "%s", model);
    if (numbers != NULL)
        wf_text_add(&about, ", %d number%s in a condition", *numbers, WF_RUN_S(*numbers));
    wf__run_count(recipe->fit.updates, updates);
    snprintf(training, sizeof training, "%s updates of %zu, %s", updates, recipe->fit.batch,
             recipe->fit.optimizer == WF_OPT_MUON ? "Muon" : "AdamW");
    facts[n_facts++] = (wf_report_fact){"generator", field};
    facts[n_facts++] = (wf_report_fact){"training", training};
    double seconds = wf__run_stages_total(&r->stages);
    if (seconds > 0) {
        wf__run_duration(seconds, took);
        facts[n_facts++] = (wf_report_fact){"time", took};
    }
    wf_report_desc desc = wf_report_desc_default();
    desc.title = title;
    desc.summary = summary;
    desc.score = recipe->eval.score;
    desc.tasks = b->tasks;
    desc.n_tasks = b->n;
    wf_report_log log = {.path = r->paths.log, .digest = wf__run_log_digest(r)};
    desc.logs = &log;
    desc.n_logs = 1;
    desc.recipe = recipe_text;
    desc.facts = facts;
    desc.n_facts = n_facts;
    return wf_report_write(r->app->ctx, &desc, path);
}

wf_status wf__run_tasks_report(wf_run_job *r, const char *path) {
    wf_run_board b = {0};
    char *text = wf_recipe_text(r->recipe.source);
    wf_status status = text == NULL ? wf__run_fail(r->app, WF_ERR_MEMORY, "out of memory") : WF_OK;
    if (status == WF_OK) status = wf__run_board_read(r, &b);
    if (status == WF_OK) status = write_page(r, &b, path, text);
    free(text);
    wf__run_board_free(&b);
    return status;
}
