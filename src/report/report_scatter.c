/* report_scatter: every network as a point: score against error-IoU and against WCS, once over the
 * whole range and once close to the trained networks, where the generated ones should lie. */
#include "report/page.h"

#include <stdlib.h>
#include <string.h>

enum { most_points = 300 }; /* drawn of one kind: a cloud of 1,000 says no more and weighs more */

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Rows of one control that differ by its parameter: the same colour, another mark each. */
static wf__mark perturbation_mark(const wf_report_desc *desc, int index) {
    static const wf__mark marks[] = {WF_MARK_SQUARE, WF_MARK_TRIANGLE_DOWN, WF_MARK_DIAMOND,
                                     WF_MARK_PLUS};
    int before = 0;
    for (int i = 0; i < index; i++)
        before += starts_with(desc->entries[i].row->name, "perturbation");
    return marks[before % (int)(sizeof marks / sizeof marks[0])];
}

/* On a page about several runs each has a colour, and from the eighth on another mark too. */
static wf__style method_style(const wf_report_desc *desc, int index) {
    static const char *const classes[] = {"k-run0", "k-run1", "k-run2", "k-run3",
                                          "k-run4", "k-run5", "k-run6"};
    static const wf__mark marks[] = {WF_MARK_DOT, WF_MARK_DIAMOND, WF_MARK_TRIANGLE};
    int before = 0;
    for (int i = 0; i < index; i++) before += desc->entries[i].role == WF_REPORT_GENERATED;
    return (wf__style){classes[before % 7], marks[before / 7 % 3], 2.8};
}

wf__style wf__style_of(const wf_report_desc *desc, int index) {
    const wf_report_entry *entry = &desc->entries[index];
    const char *name = entry->row->name;
    switch (entry->role) {
    case WF_REPORT_REFERENCE: return (wf__style){"k-reference", WF_MARK_DOT, 2.4};
    case WF_REPORT_HELD_OUT: return (wf__style){"k-held", WF_MARK_RING, 3.0};
    case WF_REPORT_GENERATED:
        if (desc->sweep != NULL) return method_style(desc, index);
        if (entry == wf__report_subject(desc)) return (wf__style){"k-subject", WF_MARK_DOT, 3.2};
        return (wf__style){"k-direct", WF_MARK_DIAMOND, 2.8};
    case WF_REPORT_CONTROL: break;
    }
    if (starts_with(name, "random")) return (wf__style){"k-random", WF_MARK_CROSS, 2.6};
    if (starts_with(name, "perturbation"))
        return (wf__style){"k-perturbation", perturbation_mark(desc, index), 2.3};
    if (starts_with(name, "average-matched"))
        return (wf__style){"k-matched", WF_MARK_TRIANGLE_DOWN, 2.6};
    if (starts_with(name, "average")) return (wf__style){"k-average", WF_MARK_TRIANGLE, 2.6};
    return (wf__style){"k-other", WF_MARK_SQUARE, 2.4};
}

/* Which coordinate a plot has on its x axis. */
static const float *x_values(const wf_points *points, bool wcs) {
    return wcs ? points->wcs : points->iou;
}

static bool drawable(const wf_report_entry *entry, bool wcs) {
    return entry->points != NULL && entry->points->accuracy != NULL &&
           x_values(entry->points, wcs) != NULL && entry->points->n > 0;
}

/* Range of one coordinate over all entries, or without the controls. */
static bool range_of(const wf_report_desc *desc, bool wcs, bool score, bool close, double *low,
                     double *high) {
    size_t count = 0;
    for (int i = 0; i < desc->n_entries; i++)
        if (drawable(&desc->entries[i], wcs)) count += desc->entries[i].points->n;
    double *values = malloc((count + 1) * sizeof *values);
    if (values == NULL) return false;
    count = 0;
    for (int i = 0; i < desc->n_entries; i++) {
        const wf_report_entry *entry = &desc->entries[i];
        if (!drawable(entry, wcs) || (close && entry->role == WF_REPORT_CONTROL)) continue;
        const float *from = score ? entry->points->accuracy : x_values(entry->points, wcs);
        double factor = score && desc->score == WF_SCORE_ACCURACY ? 100 : 1;
        for (size_t k = 0; k < entry->points->n; k++) values[count++] = factor * from[k];
    }
    wf__plot_range(values, count, low, high);
    free(values);
    return true;
}

static void draw_entry(wf__page *page, const wf_report_desc *desc, const wf__plot *plot, int index,
                       bool wcs) {
    const wf_report_entry *entry = &desc->entries[index];
    if (!drawable(entry, wcs)) return;
    const wf_points *points = entry->points;
    wf__style style = wf__style_of(desc, index);
    double factor = desc->score == WF_SCORE_ACCURACY ? 100 : 1;
    size_t stride = (points->n + most_points - 1) / most_points;
    wf__page_add(page, "<g class=\"%s\">", style.class_name);
    for (size_t k = 0; k < points->n; k += stride) {
        double x = x_values(points, wcs)[k], y = factor * points->accuracy[k];
        if (!(x >= plot->x_low && x <= plot->x_high && y >= plot->y_low && y <= plot->y_high))
            continue;
        wf__plot_mark(page, style.mark, wf__plot_x(plot, x), wf__plot_y(plot, y), style.size);
    }
    wf__page_add(page, "</g>");
}

/* Controls below, then the trained networks, then held-out ones, the generated ones on top. */
static void draw_all(wf__page *page, const wf_report_desc *desc, const wf__plot *plot, bool wcs) {
    static const wf_report_role order[] = {WF_REPORT_CONTROL, WF_REPORT_REFERENCE,
                                           WF_REPORT_HELD_OUT, WF_REPORT_GENERATED};
    for (int layer = 0; layer < 4; layer++)
        for (int i = 0; i < desc->n_entries; i++)
            if (desc->entries[i].role == order[layer]) draw_entry(page, desc, plot, i, wcs);
}

static void panel(wf__page *page, const wf_report_desc *desc, bool wcs, bool close) {
    wf__plot plot = {480, 330, 52, 12, 12, 40, 0, 1, 0, 1};
    if (!range_of(desc, wcs, false, close, &plot.x_low, &plot.x_high) ||
        !range_of(desc, wcs, true, close, &plot.y_low, &plot.y_high)) {
        page->failed = true;
        return;
    }
    const char *score = desc->score == WF_SCORE_AUC ? "ROC AUC" : "accuracy, %";
    wf__page_add(page, "<figure>");
    wf__plot_begin(page, &plot, wcs ? "WCS to the nearest trained network" : "largest error-IoU",
                   score, wcs ? "Score against WCS" : "Score against error-IoU");
    draw_all(page, desc, &plot, wcs);
    wf__plot_end(page);
    wf__page_add(page, "</figure>");
}

static void legend(wf__page *page, const wf_report_desc *desc) {
    wf__page_add(page, "<p class=\"legend\">");
    for (int i = 0; i < desc->n_entries; i++) {
        if (desc->entries[i].points == NULL) continue;
        wf__style style = wf__style_of(desc, i);
        wf__page_add(page, "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><g class=\"%s\">",
                     style.class_name);
        wf__plot_mark(page, style.mark, 6, 6, 3.6);
        wf__page_add(page, "</g></svg>");
        wf__page_escaped(page, desc->entries[i].row->name);
        wf__page_add(page, "</span> ");
    }
    wf__page_add(page, "</p>");
}

void wf__report_scatter(wf__page *page, const wf_report_desc *desc) {
    bool any = false;
    for (int i = 0; i < desc->n_entries; i++) any = any || drawable(&desc->entries[i], true);
    if (!any) return;
    wf__page_add(page, "<section id=\"points\"><h2>Every network as a point</h2>");
    legend(page, desc);
    wf__page_add(page, "<h3>Close to the trained networks</h3><div class=\"pair\">");
    panel(page, desc, false, true);
    panel(page, desc, true, true);
    wf__page_add(page, "</div>\n<h3>With all controls</h3><div class=\"pair\">");
    panel(page, desc, false, false);
    panel(page, desc, true, false);
    wf__page_add(page, "</div></section>\n");
}
