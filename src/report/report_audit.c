/* report_audit: is it new? Each generated network's nearest training network, by weights and by
 * errors. */
#include "report/page.h"

#include <stdlib.h>

enum { shown_first = 10 };

typedef struct place {
    float wcs;
    uint32_t index;
} place;

static int by_wcs_falling(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->wcs != y->wcs) return x->wcs < y->wcs ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static void audit_row(wf__page *page, const wf_report_desc *desc, const wf_points *points,
                      size_t i) {
    wf__page_add(page, "<tr><td class=\"num\">%zu</td><td class=\"num\">", i);
    if (points->accuracy != NULL)
        wf__page_add(page, "%.*f", desc->score == WF_SCORE_AUC ? 4 : 2,
                     (desc->score == WF_SCORE_AUC ? 1.0 : 100.0) * points->accuracy[i]);
    else wf__page_add(page, "&ndash;");
    wf__page_add(
        page,
        "</td><td class=\"num\">%u</td><td class=\"num\">%.4f</td><td class=\"num\">%.1f</td>",
        points->nearest_wcs[i], points->wcs[i], points->wcs_percentile[i]);
    if (points->iou != NULL && points->nearest_iou != NULL && points->iou_percentile != NULL)
        wf__page_add(
            page, "<td class=\"num\">%u</td><td class=\"num\">%.4f</td><td class=\"num\">%.1f</td>",
            points->nearest_iou[i], points->iou[i], points->iou_percentile[i]);
    else wf__page_add(page, "<td>&ndash;</td><td>&ndash;</td><td>&ndash;</td>");
    wf__page_add(page, "</tr>\n");
}

static void audit_table(wf__page *page, const wf_report_desc *desc, const wf_points *points,
                        const place *order, size_t from, size_t to) {
    wf__page_add(page,
                 "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">network</th><th "
                 "scope=\"col\">%s</th>"
                 "<th scope=\"col\">nearest by weights</th><th scope=\"col\">WCS</th><th "
                 "scope=\"col\">percentile</th>"
                 "<th scope=\"col\">nearest by errors</th><th scope=\"col\">IoU</th><th "
                 "scope=\"col\">percentile</th>"
                 "</tr></thead><tbody>\n",
                 desc->score == WF_SCORE_AUC ? "ROC AUC" : "accuracy %");
    for (size_t k = from; k < to; k++) audit_row(page, desc, points, order[k].index);
    wf__page_add(page, "</tbody></table></div>\n");
}

static void audit_summary(wf__page *page, const wf_report_entry *subject, const place *order) {
    const wf_points *points = subject->points;
    size_t close = 0, above_half = 0;
    for (size_t i = 0; i < points->n; i++) {
        close += points->wcs_percentile[i] >= 99;
        above_half += points->wcs_percentile[i] >= 50;
    }
    wf__page_add(page, "<p>Of %zu networks of <b>", points->n);
    wf__page_escaped(page, subject->row->name);
    wf__page_add(page,
                 "</b>, %zu lie nearer to a trained network than the median trained network does, "
                 "and %zu nearer "
                 "than 99&thinsp;%% of them. The closest has WCS %.4f. The ten closest:</p>",
                 above_half, close, order[0].wcs);
}

void wf__report_audit(wf__page *page, const wf_report_desc *desc) {
    const wf_report_entry *subject = wf__report_subject(desc);
    const wf_points *points = subject == NULL ? NULL : subject->points;
    if (points == NULL || points->n == 0 || points->wcs == NULL || points->nearest_wcs == NULL ||
        points->wcs_percentile == NULL)
        return;
    place *order = malloc(points->n * sizeof *order);
    if (order == NULL) {
        page->failed = true;
        return;
    }
    for (size_t i = 0; i < points->n; i++) order[i] = (place){points->wcs[i], (uint32_t)i};
    qsort(order, points->n, sizeof *order, by_wcs_falling);
    size_t first = points->n < shown_first ? points->n : shown_first;
    wf__page_add(page, "<section id=\"novelty\"><h2>Is it new?</h2>");
    audit_summary(page, subject, order);
    audit_table(page, desc, points, order, 0, first);
    if (first < points->n) {
        wf__page_add(page, "<details><summary>The other %zu</summary>", points->n - first);
        audit_table(page, desc, points, order, first, points->n);
        wf__page_add(page, "</details>");
    }
    wf__page_add(page, "<p class=\"note\">Percentile: place among the trained networks&#39; own "
                       "nearest neighbours, 0 far "
                       "to 100 near.</p></section>\n");
    free(order);
}
