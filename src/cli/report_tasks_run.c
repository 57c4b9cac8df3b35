/* report_tasks_run: the page about a run with a manifest, and its table on a terminal, both from
 * eval.json. */
#include "cli/run.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { max_facts = 4 };

typedef struct board {
    json_t *eval;
    wf_report_task *tasks;
    int n;
} board;

static double number_of(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text_of(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}

/* A row of the same collection and width by name, else by the other name; NULL when there is
 * neither. */
static const json_t *find_row(const json_t *rows, const json_t *like, const char *name,
                              const char *other) {
    const json_t *found = NULL, *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        if (strcmp(text_of(row, "collection"), text_of(like, "collection")) != 0 ||
            number_of(row, "width") != number_of(like, "width"))
            continue;
        if (strcmp(text_of(row, "name"), name) == 0) return row;
        if (strcmp(text_of(row, "name"), other) == 0) found = row;
    }
    return found;
}

/* The numbers that the manifest quotes for the row's collection and width. */
static const json_t *find_paper(const json_t *list, const json_t *like) {
    const json_t *found;
    size_t i;
    json_array_foreach(list, i, found) {
        if (strcmp(text_of(found, "collection"), text_of(like, "collection")) == 0 &&
            number_of(found, "width") == number_of(like, "width"))
            return found;
    }
    return NULL;
}

/* One task for every collection and width that was sampled: the last generated row beside the
 * trained one. */
static wf_status read_board(cli_job *r, board *out) {
    CLI_TRY(cli_json_read(r->app, r->paths.eval, &out->eval));
    const char *generator = r->recipe.generator;
    char refined[64];
    snprintf(refined, sizeof refined, "%s-refined", generator);
    const json_t *rows = json_object_get(out->eval, "rows"), *row;
    out->tasks = cli_json_malloc((json_array_size(rows) + 1) * sizeof *out->tasks);
    if (out->tasks == NULL) return cli_fail(r->app, WF_ERR_MEMORY, "out of memory");
    size_t i;
    json_array_foreach(rows, i, row) {
        if (row != find_row(rows, row, refined, generator)) continue;
        const json_t *trained = find_row(rows, row, "reference", "scratch");
        const json_t *paper = find_paper(json_object_get(out->eval, "paper"), row);
        const json_t *notes = json_object_get(out->eval, "data_notes");
        out->tasks[out->n++] = (wf_report_task){.name = text_of(row, "collection"),
                                                .arch = text_of(row, "arch"),
                                                .width = number_of(row, "width"),
                                                .trained = number_of(trained, "accuracy_mean"),
                                                .trained_std = number_of(trained, "accuracy_std"),
                                                .generated = number_of(row, "accuracy_mean"),
                                                .generated_std = number_of(row, "accuracy_std"),
                                                .jws = number_of(row, "jws"),
                                                .note = text_of(notes, text_of(row, "collection"))};
        if (paper == NULL) continue;
        out->tasks[out->n - 1].paper_trained = number_of(paper, "trained");
        out->tasks[out->n - 1].paper_generated = number_of(paper, "generated");
    }
    return WF_OK;
}

static void board_free(board *b) {
    json_decref(b->eval);
    free(b->tasks);
}

/* --- on a terminal ---------------------------------------------------------------------------- */

static void print_score(double mean, double std, bool auc) {
    double factor = auc ? 1 : 100;
    int decimals = auc ? 4 : 2;
    char text[48] = "-";
    if (isfinite(mean))
        snprintf(text, sizeof text, "%.*f \u00b1 %.*f", decimals, factor * mean, decimals,
                 factor * std);
    /* The sign is two bytes and one column. */
    cli_print("%*s%s", 18 - (int)strlen(text) + (isfinite(mean) ? 1 : 0), "", text);
}

static void print_board(const board *b, bool auc) {
    double factor = auc ? 1 : 100;
    int decimals = auc ? 4 : 2;
    bool paper = json_array_size(json_object_get(b->eval, "paper")) > 0;
    cli_print("%-20s %6s %-18s %17s %17s %8s %7s%s\n", "collection", "width", "networks",
              auc ? "trained, AUC" : "trained, %", auc ? "generated, AUC" : "generated, %", "gap",
              "JWS", paper ? "  paper's gap" : "");
    for (int i = 0; i < b->n; i++) {
        const wf_report_task *task = &b->tasks[i];
        double gap = task->generated - task->trained;
        cli_print("%-20s %6g %-18s", task->name, task->width, task->arch);
        print_score(task->trained, task->trained_std, auc);
        print_score(task->generated, task->generated_std, auc);
        if (isfinite(gap)) cli_print(" %+8.*f", decimals, factor * gap);
        else cli_print(" %8s", "-");
        if (isfinite(task->jws)) cli_print(" %7.3f", task->jws);
        else cli_print(" %7s", "-");
        if (task->paper_generated > 0)
            cli_print(" %+12.*f", decimals, factor * (task->paper_generated - task->paper_trained));
        cli_print("\n");
    }
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(b->eval, "gaps"), i, row) {
        if (isfinite(number_of(row, "gap")))
            cli_print("mean gap at width %g over %g collections: %+.*f\n", number_of(row, "width"),
                      number_of(row, "collections"), decimals, factor * number_of(row, "gap"));
    }
    const char *label;
    json_t *note;
    json_object_foreach(json_object_get(b->eval, "data_notes"), label, note)
        cli_print("data of %s: %s\n", label, json_string_value(note));
}

wf_status cli_tasks_print(cli_job *r) {
    board b = {0};
    wf_status status = read_board(r, &b);
    if (status == WF_OK && r->app->json) status = cli_print_eval_json(r->app, json_incref(b.eval));
    else if (status == WF_OK) print_board(&b, r->recipe.eval.score == WF_SCORE_AUC);
    board_free(&b);
    return status;
}

/* --- the page --------------------------------------------------------------------------------- */

static int count_collections(const board *b) {
    int count = 0;
    for (int i = 0; i < b->n; i++) {
        int first = 0;
        while (strcmp(b->tasks[first].name, b->tasks[i].name) != 0) first++;
        count += first == i;
    }
    return count;
}

static wf_status write_page(cli_job *r, const board *b, const char *path, char *recipe_text) {
    const cli_recipe *recipe = &r->recipe;
    char title[128], summary[400], model[200], field[260], training[160], took[32], updates[32];
    wf_report_fact facts[max_facts];
    int n_facts = 0;
    const char *name = recipe->title != NULL ? recipe->title : text_of(b->eval, "recipe");
    snprintf(title, sizeof title, "weft: %.100s", name);
    snprintf(summary, sizeof summary,
             "One generator was fitted to %d collections of trained networks, and new networks "
             "were drawn "
             "from it for every task and width. Are they as good as trained ones?",
             count_collections(b));
    const int *numbers = cli_recipe_cond_size(recipe);
    wf_text about = wf_text_start(field, sizeof field);
    cli_options_text(recipe->kind, recipe->model, model, sizeof model);
    wf_text_add(&about, "%s", model);
    if (numbers != NULL)
        wf_text_add(&about, ", %d number%s in a condition", *numbers, CLI_S(*numbers));
    cli_count(recipe->fit.updates, updates);
    snprintf(training, sizeof training, "%s updates of %zu, %s", updates, recipe->fit.batch,
             recipe->fit.optimizer == WF_OPT_MUON ? "Muon" : "AdamW");
    facts[n_facts++] = (wf_report_fact){"generator", field};
    facts[n_facts++] = (wf_report_fact){"training", training};
    double seconds = cli_stages_total(&r->stages);
    if (seconds > 0) {
        cli_duration(seconds, took);
        facts[n_facts++] = (wf_report_fact){"time", took};
    }
    wf_report_desc desc = wf_report_desc_default();
    desc.title = title;
    desc.summary = summary;
    desc.score = recipe->eval.score;
    desc.tasks = b->tasks;
    desc.n_tasks = b->n;
    desc.log_path = r->paths.log;
    desc.recipe = recipe_text;
    desc.facts = facts;
    desc.n_facts = n_facts;
    return wf_report_write(r->app->ctx, &desc, path);
}

wf_status cli_tasks_report(cli_job *r, const char *path) {
    board b = {0};
    char *text = wf_recipe_text(r->recipe.source);
    wf_status status = read_board(r, &b);
    if (status == WF_OK) status = write_page(r, &b, path, text);
    free(text);
    board_free(&b);
    return status;
}
