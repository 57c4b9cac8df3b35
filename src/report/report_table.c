/* report_table: the figures at a glance and the table, with copies marked as what they are. */
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool wf_report_is_copy(const wf_points *points) {
    if (points == NULL || points->n == 0 || points->wcs_percentile == NULL) return false;
    size_t close = 0;
    for (size_t i = 0; i < points->n; i++) close += points->wcs_percentile[i] >= 99;
    return 2 * close > points->n;
}

const wf_report_entry *wf__report_role(const wf_report_desc *desc, wf_report_role role) {
    for (int i = 0; i < desc->n_entries; i++)
        if (desc->entries[i].role == role) return &desc->entries[i];
    return NULL;
}

static const wf_report_entry *entry_named(const wf_report_desc *desc, const char *name) {
    for (int i = 0; name != NULL && i < desc->n_entries; i++)
        if (strcmp(desc->entries[i].row->name, name) == 0) return &desc->entries[i];
    return NULL;
}

const wf_report_entry *wf__report_subject(const wf_report_desc *desc) {
    const wf_report_entry *found = entry_named(desc, desc->generated_name);
    for (int i = desc->n_entries - 1; found == NULL && i >= 0; i--)
        if (desc->entries[i].role == WF_REPORT_GENERATED) found = &desc->entries[i];
    return found;
}

void wf__page_number(wf__page *page, double value, int decimals) {
    if (isfinite(value)) wf__page_add(page, "%.*f", decimals, value);
    else wf__page_add(page, "&ndash;");
}

void wf__page_spread(wf__page *page, double mean, double std, int decimals) {
    wf__page_add(page, "<td class=\"num\">");
    wf__page_number(page, mean, decimals);
    if (isfinite(mean) && isfinite(std))
        wf__page_add(page, " <small>&plusmn;&thinsp;%.*f</small>", decimals, std);
    wf__page_add(page, "</td>");
}

static double score_factor(const wf_report_desc *desc) {
    return desc->score == WF_SCORE_AUC ? 1 : 100;
}
static int score_decimals(const wf_report_desc *desc) {
    return desc->score == WF_SCORE_AUC ? 4 : 2;
}

static void begin_tile(wf__page *page, const char *label) {
    wf__page_add(page, "<div class=\"tile\"><span>%s</span><b>", label);
}

static void tile_jws(wf__page *page, const wf_report_desc *desc, const wf_report_entry *subject) {
    if (!isfinite(subject->row->jws)) return;
    begin_tile(page, "Joint similarity (JWS)");
    wf__page_number(page, subject->row->jws, 3);
    wf__page_add(page, "</b><small>1 is the trained networks&#39; own distribution");
    const wf_report_entry *held = wf__report_role(desc, WF_REPORT_HELD_OUT);
    if (held != NULL) wf__page_add(page, "; held-out networks reach %.3f", held->row->jws);
    wf__page_add(page, "</small></div>");
}

static void tile_score(wf__page *page, const wf_report_desc *desc, const wf_report_entry *subject) {
    if (!isfinite(subject->row->accuracy_mean)) return;
    bool auc = desc->score == WF_SCORE_AUC;
    const char *unit = auc ? "" : "&thinsp;%";
    begin_tile(page, auc ? "Mean ROC AUC" : "Mean accuracy");
    wf__page_add(page, "%.*f%s", auc ? 4 : 1, score_factor(desc) * subject->row->accuracy_mean,
                 unit);
    const wf_report_entry *reference = wf__report_role(desc, WF_REPORT_REFERENCE);
    wf__page_add(page, "</b><small>");
    if (reference != NULL)
        wf__page_add(page, "trained networks: %.*f%s", auc ? 4 : 1,
                     score_factor(desc) * reference->row->accuracy_mean, unit);
    wf__page_add(page, "</small></div>");
}

static void tile_novelty(wf__page *page, const wf_report_desc *desc,
                         const wf_report_entry *subject) {
    if (!isfinite(subject->row->wcs_mean)) return;
    begin_tile(page, "Nearest trained network (WCS)");
    wf__page_number(page, subject->row->wcs_mean, 3);
    const wf_report_entry *reference = wf__report_role(desc, WF_REPORT_REFERENCE);
    wf__page_add(page, "</b><small>");
    if (reference != NULL)
        wf__page_add(page, "among trained networks %.3f; ", reference->row->wcs_mean);
    wf__page_add(page, "a copy has 1</small></div>");
}

static void tile_copies(wf__page *page, const wf_report_entry *subject) {
    const wf_points *points = subject->points;
    if (points == NULL || points->wcs_percentile == NULL) return;
    size_t close = 0;
    for (size_t i = 0; i < points->n; i++) close += points->wcs_percentile[i] >= 99;
    begin_tile(page, "Closer than 99&thinsp;% of trained ones");
    wf__page_add(
        page,
        "%zu<i>&thinsp;of&thinsp;%zu</i></b><small>by matched cosine; about %.0f expected by chance"
        "</small></div>",
        close, points->n, fmax(1, round(0.01 * (double)points->n)));
}

void wf__report_glance(wf__page *page, const wf_report_desc *desc) {
    const wf_report_entry *subject = wf__report_subject(desc);
    if (subject != NULL && desc->sweep == NULL) { /* of several runs none is the subject */
        wf__page_add(page, "<div class=\"tiles\">");
        tile_jws(page, desc, subject);
        tile_score(page, desc, subject);
        tile_novelty(page, desc, subject);
        tile_copies(page, subject);
        wf__page_add(page, "</div>\n");
    }
    if (desc->n_facts == 0) return;
    wf__page_add(page, "<dl class=\"facts\">");
    for (int i = 0; i < desc->n_facts; i++) {
        wf__page_add(page, "<div><dt>");
        wf__page_escaped(page, desc->facts[i].label);
        wf__page_add(page, "</dt><dd>");
        wf__page_escaped(page, desc->facts[i].value);
        wf__page_add(page, "</dd></div>");
    }
    wf__page_add(page, "</dl>\n");
}

static bool any_diversity(const wf_report_desc *desc) {
    for (int i = 0; i < desc->n_entries; i++)
        if (isfinite(desc->entries[i].row->diversity_wcs_mean)) return true;
    return false;
}

static bool is_copies(const wf_report_entry *entry) {
    return entry->copies || wf_report_is_copy(entry->points);
}

static bool any_copies(const wf_report_desc *desc) {
    for (int i = 0; i < desc->n_entries; i++)
        if (is_copies(&desc->entries[i])) return true;
    return false;
}

static const char *row_class(wf_report_role role) {
    static const char *const names[] = {"reference", "held", "generated", "control"};
    return names[role];
}

static void table_row(wf__page *page, const wf_report_desc *desc, int index, bool diversity) {
    const wf_report_entry *entry = &desc->entries[index];
    const wf_eval_row *row = entry->row;
    wf__style style = wf__style_of(desc, index);
    wf__page_add(page,
                 "<tr class=\"%s\"><th scope=\"row\"><svg class=\"key\" viewBox=\"0 0 12 12\">",
                 row_class(entry->role));
    wf__page_add(page, "<g class=\"%s\">", style.class_name);
    if (entry->points != NULL) wf__plot_mark(page, style.mark, 6, 6, 3.6);
    wf__page_add(page, "</g></svg>");
    wf__page_escaped(page, row->name);
    if (is_copies(entry))
        wf__page_add(page,
                     " <em class=\"copies\" title=\"most are nearer to a trained network than "
                     "99 %% of the trained networks are to each other\">copies</em>");
    wf__page_add(page, "</th><td class=\"num\">%zu</td>", row->n);
    double factor = score_factor(desc);
    wf__page_spread(page, factor * row->accuracy_mean, factor * row->accuracy_std,
                    score_decimals(desc));
    wf__page_spread(page, row->iou_mean, row->iou_std, 3);
    wf__page_spread(page, row->wcs_mean, row->wcs_std, 3);
    wf__page_add(page, "<td class=\"num jws\">");
    if (isfinite(row->jws))
        wf__page_add(page, "<span class=\"bar\"><i style=\"width:%.1f%%\"></i></span>",
                     100 * fmin(1, fmax(0, row->jws)));
    wf__page_number(page, row->jws, 3);
    if (isfinite(row->jws) && isfinite(row->jws_std))
        wf__page_add(page, " <small>&plusmn;&thinsp;%.3f</small>", row->jws_std);
    wf__page_add(page, "</td>");
    if (diversity) {
        wf__page_spread(page, row->diversity_iou_mean, row->diversity_iou_std, 3);
        wf__page_spread(page, row->diversity_wcs_mean, row->diversity_wcs_std, 3);
    }
    wf__page_add(page, "</tr>\n");
}

static void table_caption(wf__page *page, const wf_report_desc *desc) {
    wf__page_add(page,
                 "<p class=\"note\"><b>IoU</b>: largest overlap of a network&#39;s test "
                 "errors with those of one "
                 "trained network. <b>WCS</b>: cosine to the nearest trained network after "
                 "matching hidden units; "
                 "a copy has 1. <b>JWS</b>: how closely the joint distribution of score, IoU "
                 "and WCS follows that "
                 "of the trained networks, so that copies and bad networks both lose. "
                 "Reference rows leave each "
                 "network itself out; <b>within</b> is the nearest other network of the same row.");
    if (any_copies(desc))
        wf__page_add(page,
                     " <b>copies</b>: most lie nearer to a trained network than 99&thinsp;%% of "
                     "the trained ones do to each other.");
    if (desc->notes != NULL && desc->notes[0] != '\0') {
        wf__page_add(page, " ");
        wf__page_escaped(page, desc->notes);
    }
    wf__page_add(page, "</p>\n");
}

void wf__report_table(wf__page *page, const wf_report_desc *desc) {
    if (desc->n_entries == 0) return;
    bool diversity = any_diversity(desc);
    wf__page_add(page,
                 "<section id=\"table\"><h2>The table</h2><p class=\"hint\">Wider than the screen: "
                 "scroll it "
                 "sideways.</p><div class=\"scroll\"><table "
                 "class=\"main\"><thead><tr><th scope=\"col\">networks</th>"
                 "<th scope=\"col\">n</th><th scope=\"col\">%s</th><th scope=\"col\">error-IoU</th>"
                 "<th scope=\"col\">WCS</th><th scope=\"col\">JWS</th>%s</tr></thead><tbody>\n",
                 desc->score == WF_SCORE_AUC ? "ROC AUC" : "accuracy %",
                 diversity ? "<th scope=\"col\">IoU within</th><th scope=\"col\">WCS within</th>"
                           : "");
    for (int i = 0; i < desc->n_entries; i++) table_row(page, desc, i, diversity);
    wf__page_add(page, "</tbody></table></div>\n");
    table_caption(page, desc);
    wf__report_rows(page, desc);
    wf__page_add(page, "</section>\n");
}
