/* tables: see tables.h. */
#include "cli/tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_spread(double mean, double std, int decimals, int width) {
    char text[48] = "-";
    if (isfinite(mean) && isfinite(std))
        snprintf(text, sizeof text, "%.*f \u00b1 %.*f", decimals, mean, decimals, std);
    else if (isfinite(mean)) snprintf(text, sizeof text, "%.*f", decimals, mean);
    /* The sign is two bytes and one column. */
    int columns = (int)strlen(text) - (strstr(text, "\u00b1") != NULL);
    cli_print("%*s%s", width - columns, "", text);
}

void cli_print_rows(const wf_eval_row *rows, int count, bool auc, const bool *copies) {
    int width = 18;
    for (int i = 0; i < count; i++)
        if ((int)strlen(rows[i].name) > width) width = (int)strlen(rows[i].name);
    cli_print("%-*s %5s %16s %16s %16s %16s\n", width, "networks", "n",
              auc ? "ROC AUC" : "accuracy %", "error-IoU", "WCS", "JWS");
    double factor = auc ? 1 : 100;
    for (int i = 0; i < count; i++) {
        const wf_eval_row *row = &rows[i];
        cli_print("%-*s %5zu ", width, row->name, row->n);
        print_spread(factor * row->accuracy_mean, factor * row->accuracy_std, auc ? 4 : 2, 16);
        print_spread(row->iou_mean, row->iou_std, 3, 17);
        print_spread(row->wcs_mean, row->wcs_std, 3, 17);
        print_spread(row->jws, row->jws_std, 3, 17);
        cli_print("%s\n", copies != NULL && copies[i] ? "   copies" : "");
    }
}

/* An eval.json, with where this call's work ran; frees it. */
static wf_status print_eval_json(wf_run_app *app, json_t *eval) {
    json_object_set_new(eval, "devices", json_string(wf_ctx_devices(app->ctx)));
    return cli_print_json(app, eval);
}

static wf_status print_eval(wf_run_app *app, const char *path, bool auc) {
    json_t *eval;
    WF_TRY(wf__run_json_read(app, path, &eval));
    if (app->json) return print_eval_json(app, eval);
    wf_eval_row *rows;
    bool *copies;
    int n;
    wf_status status = wf__run_rows_of_eval(app, path, eval, &rows, &copies, &n);
    if (status == WF_OK) {
        cli_print_rows(rows, n, auc, copies);
        const char *notes = json_string_value(json_object_get(eval, "notes"));
        if (notes != NULL && notes[0] != '\0') cli_print("note: %s\n", notes);
        const char *about = json_string_value(json_object_get(eval, "data_note"));
        if (about != NULL && about[0] != '\0') cli_print("data: %s\n", about);
    }
    free(rows);
    free(copies);
    json_decref(eval);
    return status;
}

/* --- collections of a manifest ---------------------------------------------------------------- */

static void print_board(const wf_run_board *b, bool auc) {
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
        print_spread(factor * task->trained, factor * task->trained_std, decimals, 18);
        print_spread(factor * task->generated, factor * task->generated_std, decimals, 18);
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
        if (isfinite(wf__run_number_of(row, "gap")))
            cli_print("mean gap at width %g over %g collections: %+.*f\n",
                      wf__run_number_of(row, "width"), wf__run_number_of(row, "collections"),
                      decimals, factor * wf__run_number_of(row, "gap"));
    }
    const char *label;
    json_t *note;
    json_object_foreach(json_object_get(b->eval, "data_notes"), label, note)
        cli_print("data of %s: %s\n", label, json_string_value(note));
}

static wf_status print_tasks(wf_run_job *r) {
    wf_run_board b = {0};
    wf_status status = wf__run_board_read(r, &b);
    if (status == WF_OK && r->app->json) status = print_eval_json(r->app, json_incref(b.eval));
    else if (status == WF_OK) print_board(&b, r->recipe.eval.score == WF_SCORE_AUC);
    wf__run_board_free(&b);
    return status;
}

/* --- along conditions ------------------------------------------------------------------------- */

static void print_cell(const json_t *row, bool auc) {
    double factor = auc ? 1 : 100;
    int decimals = auc ? 4 : 2;
    if (!isfinite(wf__run_number_of(row, "accuracy_mean"))) cli_print("  %16s", "-");
    else
        cli_print("  %7.*f \u00b1 %6.*f", decimals,
                  factor * wf__run_number_of(row, "accuracy_mean"), decimals,
                  factor * wf__run_number_of(row, "accuracy_std"));
    if (isfinite(wf__run_number_of(row, "jws"))) cli_print(" %6.3f", wf__run_number_of(row, "jws"));
    else cli_print(" %6s", "-");
}

static const json_t *find_row(const json_t *rows, const char *name, double cond, const char *on) {
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(wf__run_text_of(row, "name"), name) == 0 &&
            wf__run_number_of(row, "cond") == cond && strcmp(wf__run_text_of(row, "on"), on) == 0)
            return row;
    }
    return NULL;
}

/* A name at a condition: a cell for every collection. */
static void print_line(const json_t *rows, const json_t *like, bool auc) {
    size_t i;
    const json_t *row;
    double cond = wf__run_number_of(like, "cond");
    cli_print("%-12s %8g", wf__run_text_of(like, "name"), cond);
    json_array_foreach(rows, i, row) {
        if (strcmp(wf__run_text_of(row, "name"), "reference") == 0)
            print_cell(
                find_row(rows, wf__run_text_of(like, "name"), cond, wf__run_text_of(row, "on")),
                auc);
    }
    cli_print("\n");
}

/* Whether an earlier row has the name, and the condition where cond is one. */
static bool seen_before(const json_t *rows, size_t at, const char *name, double cond) {
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (i >= at) break;
        if (strcmp(wf__run_text_of(row, "name"), name) == 0 &&
            (isnan(cond) || wf__run_number_of(row, "cond") == cond))
            return true;
    }
    return false;
}

/* All lines of one name, a line for each condition. */
static void print_lines(const json_t *rows, const char *name, bool auc) {
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(wf__run_text_of(row, "name"), name) == 0 &&
            !seen_before(rows, i, name, wf__run_number_of(row, "cond")))
            print_line(rows, row, auc);
    }
}

static void print_conditions(const json_t *eval, bool auc) {
    const json_t *rows = json_object_get(eval, "rows"), *row;
    size_t i;
    cli_print("%-12s %8s", "networks", "cond");
    json_array_foreach(rows, i, row) {
        if (strcmp(wf__run_text_of(row, "name"), "reference") == 0)
            cli_print("  %16.16s %6s", wf__run_text_of(row, "on"), "JWS");
    }
    cli_print("\n");
    json_array_foreach(rows, i, row) {
        if (!seen_before(rows, i, wf__run_text_of(row, "name"), NAN))
            print_lines(rows, wf__run_text_of(row, "name"), auc);
    }
}

static wf_status print_domains(wf_run_job *r) {
    json_t *eval;
    WF_TRY(wf__run_json_read(r->app, r->paths.eval, &eval));
    if (r->app->json) return print_eval_json(r->app, eval);
    print_conditions(eval, r->recipe.eval.score == WF_SCORE_AUC);
    const char *label;
    json_t *note;
    json_object_foreach(json_object_get(eval, "data_notes"), label, note)
        cli_print("data of %s: %s\n", label, json_string_value(note));
    json_decref(eval);
    return WF_OK;
}

wf_status cli_print_job(wf_run_job *r) {
    if (wf__run_job_along(r)) return print_domains(r);
    if (r->tasks != NULL) return print_tasks(r);
    return print_eval(r->app, r->paths.eval, r->recipe.eval.score == WF_SCORE_AUC);
}
