/* report_tasks: a flow of many tasks: for every width a picture with two bars a task, networks trained for it and generated
 * ones, with the spread of each; then the same as a table. */
#include "report/page.h"

#include <math.h>

enum { row_height = 30, label_width = 190, drawing_width = 900, right_margin = 70, top = 8 };

static double factor_of(const wf_report_desc *desc) {
    return desc->score == WF_SCORE_AUC ? 1 : 100;
}
static int decimals_of(const wf_report_desc *desc) { return desc->score == WF_SCORE_AUC ? 4 : 2; }

static double place_of(double share) {
    return label_width + (drawing_width - label_width - right_margin) * share;
}

/* One bar from 0 to `mean` and a line over mean - std .. mean + std. */
static void add_bar(wf__page *page, const char *class_name, double y, double mean, double std) {
    if (!isfinite(mean)) return;
    wf__page_add(page, "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"9\"/>",
                 class_name, label_width, y, place_of(mean) - label_width);
    if (isfinite(std) && std > 0)
        wf__page_add(page, "<path class=\"frame\" d=\"M%.1f %.1fH%.1f\"/>",
                     place_of(fmax(0, mean - std)), y + 4.5, place_of(fmin(1, mean + std)));
}

static void add_task(wf__page *page, const wf_report_desc *desc, const wf_report_task *task,
                     int row) {
    double y = top + (double)row * row_height, gap = task->generated - task->trained;
    wf__page_add(page, "<text class=\"axis\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                 label_width - 8, y + 15);
    wf__page_escaped(page, task->name);
    wf__page_add(page, "</text>");
    add_bar(page, "k-reference", y + 2, task->trained, task->trained_std);
    add_bar(page, "k-subject", y + 12, task->generated, task->generated_std);
    if (isfinite(gap))
        wf__page_add(page, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\">%+.*f</text>",
                     place_of(1) + 8, y + 15, decimals_of(desc), factor_of(desc) * gap);
}

static bool at_width(const wf_report_task *task, double width) { return task->width == width; }

static void add_picture(wf__page *page, const wf_report_desc *desc, double width) {
    int rows = 0, row = 0;
    for (int i = 0; i < desc->n_tasks; i++) rows += at_width(&desc->tasks[i], width);
    double bottom = top + (double)rows * row_height;
    wf__page_add(
        page,
        "<figure style=\"margin:0 0 16px\"><figcaption>Hidden widths times %g: %s and, at the "
        "right, generated minus "
        "trained</figcaption><svg viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"scores "
        "of trained and generated networks by task, hidden widths times %g\">",
        width, desc->score == WF_SCORE_AUC ? "ROC AUC" : "accuracy in percent", drawing_width,
        bottom + 22, width);
    for (int tick = 0; tick <= 5; tick++) {
        double x = place_of(tick / 5.0);
        wf__page_add(page,
                     "<path class=\"grid\" d=\"M%.1f %dV%.1f\"/><text class=\"tick\" x=\"%.1f\" "
                     "y=\"%.1f\" text-anchor=\"middle\">%g</text>",
                     x, top, bottom, x, bottom + 16, factor_of(desc) * tick / 5.0);
    }
    for (int i = 0; i < desc->n_tasks; i++)
        if (at_width(&desc->tasks[i], width)) add_task(page, desc, &desc->tasks[i], row++);
    wf__page_add(page, "</svg></figure>\n");
}

static void add_score(wf__page *page, const wf_report_desc *desc, double mean, double std) {
    int decimals = decimals_of(desc);
    wf__page_add(page, "<td class=\"num\">");
    if (isfinite(mean)) wf__page_add(page, "%.*f", decimals, factor_of(desc) * mean);
    else wf__page_add(page, "&ndash;");
    if (isfinite(mean) && isfinite(std))
        wf__page_add(page, " <small>&plusmn;&thinsp;%.*f</small>", decimals, factor_of(desc) * std);
    wf__page_add(page, "</td>");
}

static void add_row(wf__page *page, const wf_report_desc *desc, const wf_report_task *task) {
    double gap = task->generated - task->trained;
    wf__page_add(page, "<tr><th scope=\"row\">");
    wf__page_escaped(page, task->name);
    wf__page_add(page, "</th><td>%g</td><td>", task->width);
    wf__page_escaped(page, task->arch);
    wf__page_add(page, "</td>");
    add_score(page, desc, task->trained, task->trained_std);
    add_score(page, desc, task->generated, task->generated_std);
    if (isfinite(gap))
        wf__page_add(page, "<td>%+.*f</td>", decimals_of(desc), factor_of(desc) * gap);
    else wf__page_add(page, "<td>&ndash;</td>");
    if (isfinite(task->jws)) wf__page_add(page, "<td>%.3f</td></tr>\n", task->jws);
    else wf__page_add(page, "<td>&ndash;</td></tr>\n");
}

void wf__report_tasks(wf__page *page, const wf_report_desc *desc) {
    if (desc->n_tasks == 0) return;
    wf__page_add(
        page,
        "<section><h2>Every task</h2><p class=\"legend\"><span><svg class=\"key\" viewBox=\"0 "
        "0 12 12\"><path class=\"k-reference\" d=\"M1 1h10v10h-10z\"/></svg>trained</span> "
        "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"k-subject\" d=\"M1 "
        "1h10v10h-10z\"/></svg>generated</span></p>\n");
    for (int i = 0; i < desc->n_tasks; i++) {
        bool drawn = false;
        for (int k = 0; k < i; k++)
            drawn = drawn || at_width(&desc->tasks[k], desc->tasks[i].width);
        if (!drawn) add_picture(page, desc, desc->tasks[i].width);
    }
    wf__page_add(page, "<div class=\"scroll\"><table class=\"main\"><thead><tr><th "
                       "scope=\"col\">collection</th><th scope=\"col\">width</th><th "
                       "scope=\"col\">networks</th><th scope=\"col\">trained</th><th "
                       "scope=\"col\">generated</th><th scope=\"col\">gap</th><th "
                       "scope=\"col\">JWS</th></tr></thead><tbody>\n");
    for (int i = 0; i < desc->n_tasks; i++) add_row(page, desc, &desc->tasks[i]);
    wf__page_add(page, "</tbody></table></div></section>\n");
}
