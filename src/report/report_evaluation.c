/* report_evaluation: sets of networks judged against a collection, as table and page in memory. */
#include "base/settings_json.h"
#include "eval/eval_json.h"
#include "eval/reference.h"
#include "report/page.h"
#include "weft/generator.h"

#include <stdlib.h>
#include <string.h>

enum { weights_shown = 400 };

/* What a row is made of; row 0 is the collection itself. */
typedef struct judged {
    int n; /* rows */
    wf_eval_row *rows;
    wf_points *points;
    wf_report_entry *entries;
} judged;

static void judged_free(judged *j) {
    for (int i = 0; j->points != NULL && i < j->n; i++) wf_points_free(&j->points[i]);
    free(j->rows);
    free(j->points);
    free(j->entries);
}

/* "perturbation-0.1" is of the kind perturbation. */
static bool is_control(const char *name) {
    const wf_generator_kind *kind;
    for (int i = 0; (kind = wf_generator_at(i)) != NULL; i++) {
        size_t length = strlen(kind->name);
        if (kind->fit == NULL && strncmp(name, kind->name, length) == 0 &&
            (name[length] == '\0' || name[length] == '-'))
            return true;
    }
    return false;
}

static wf_report_role role_of(int row, const char *name) {
    if (row == 0) return WF_REPORT_REFERENCE;
    if (strncmp(name, "held", 4) == 0) return WF_REPORT_HELD_OUT;
    return is_control(name) ? WF_REPORT_CONTROL : WF_REPORT_GENERATED;
}

static wf_status judge(wf_ctx *ctx, const wf_reference *reference, const char *const *names,
                       const float *const *weights, const size_t *n, judged *j) {
    size_t rows = (size_t)j->n;
    WF_TRY(wf_alloc(ctx, rows, sizeof *j->rows, "rows", &j->rows));
    WF_TRY(wf_alloc(ctx, rows, sizeof *j->points, "points", &j->points));
    WF_TRY(wf_alloc(ctx, rows, sizeof *j->entries, "entries", &j->entries));
    for (int i = 0; i < j->n; i++) {
        wf_eval_row *row = &j->rows[i];
        wf_points *points = &j->points[i];
        WF_TRY(i == 0 ? wf_eval_reference(ctx, reference, row, points)
                      : wf_eval_networks(ctx, reference, names[i - 1], weights[i - 1], n[i - 1],
                                         row, points));
        j->entries[i] = (wf_report_entry){.role = role_of(i, row->name),
                                          .row = row,
                                          .points = points,
                                          .copies = i > 0 && wf_report_is_copy(points)};
    }
    return WF_OK;
}

static wf_status rows_text(wf_ctx *ctx, const judged *j, char **out) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (int i = 0; good && i < j->n; i++) {
        json_t *row = wf__eval_row_json(&j->rows[i], &j->points[i]);
        json_object_set_new(row, "copies", json_boolean(j->entries[i].copies));
        good = json_array_append_new(list, row) == 0;
    }
    if (!good) {
        json_decref(list);
        list = NULL;
    }
    return wf__json_answer(ctx, list, out);
}

static size_t at_most(size_t n) { return n < weights_shown ? n : weights_shown; }

static wf_status page_text(wf_ctx *ctx, const char *title, const wf_reference *reference,
                           const float *const *weights, const size_t *n, const judged *j,
                           char **out) {
    wf_report_desc desc = wf_report_desc_default();
    desc.title = title != NULL ? title : "evaluation";
    desc.score = reference->desc.score;
    desc.entries = j->entries;
    desc.n_entries = j->n;
    desc.notes = reference->notes;
    desc.graph = wf_zoo_graph(reference->zoo);
    desc.n_trained = at_most(reference->n);
    float *trained;
    WF_TRY(wf_zoo_load(ctx, reference->zoo, 0, desc.n_trained, &trained));
    desc.trained = trained;
    desc.generated = weights[0];
    desc.n_generated = at_most(n[0]);
    desc.generated_name = j->rows[1].name;
    desc.data = reference->data;
    wf__page page = {0};
    wf_status status = wf__report_page(ctx, &desc, &page);
    free(trained);
    if (status == WF_OK) *out = page.text;
    else wf__page_free(&page);
    return status;
}

wf_status wf_report_evaluation(wf_ctx *ctx, const char *title, const wf_reference *reference,
                               const char *const *names, const float *const *weights,
                               const size_t *n, int count, char **rows, char **page) {
    if (rows != NULL) *rows = NULL;
    if (page != NULL) *page = NULL;
    if (count < 1) return wf_fail(ctx, WF_ERR_USAGE, "no networks to judge were given");
    judged j = {.n = count + 1};
    wf_status status = judge(ctx, reference, names, weights, n, &j);
    if (status == WF_OK && rows != NULL) status = rows_text(ctx, &j, rows);
    if (status == WF_OK && page != NULL)
        status = page_text(ctx, title, reference, weights, n, &j, page);
    if (status != WF_OK && rows != NULL) {
        wf_free(*rows);
        *rows = NULL;
    }
    judged_free(&j);
    return status;
}
