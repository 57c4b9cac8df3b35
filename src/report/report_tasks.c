/* report_tasks: a flow of many tasks: the mean gap of generated to trained networks at a glance,
 * bars for each task and width, and the table, with a paper's numbers where there are any. */
#include "report/page.h"

#include <math.h>
#include <string.h>

enum { most_widths = 16 };

static double factor_of(const wf_report_desc *desc) {
    return desc->score == WF_SCORE_AUC ? 1 : 100;
}
static int decimals_of(const wf_report_desc *desc) { return desc->score == WF_SCORE_AUC ? 4 : 2; }

static bool has_paper(const wf_report_desc *desc) {
    for (int i = 0; i < desc->n_tasks; i++)
        if (desc->tasks[i].paper_generated > 0) return true;
    return false;
}

static bool begins_task(const wf_report_desc *desc, int row) {
    return row == 0 || strcmp(desc->tasks[row].name, desc->tasks[row - 1].name) != 0;
}

/* The widths that occur, rising. */
static int list_widths(const wf_report_desc *desc, double widths[most_widths]) {
    int count = 0;
    for (int i = 0; i < desc->n_tasks; i++) {
        double width = desc->tasks[i].width;
        int place = 0;
        while (place < count && widths[place] < width) place++;
        if (count == most_widths || (place < count && widths[place] == width)) continue;
        memmove(widths + place + 1, widths + place, (size_t)(count - place) * sizeof *widths);
        widths[place] = width;
        count++;
    }
    return count;
}

/* Means over the tasks that have this width, with equal weight; the paper's mean is over the same
 * tasks. */
static wf_report_task mean_row(const wf_report_desc *desc, double width, int *tasks) {
    wf_report_task mean = {.name = "mean", .arch = "", .width = width};
    int with_paper = 0, with_jws = 0;
    *tasks = 0;
    for (int i = 0; i < desc->n_tasks; i++) {
        const wf_report_task *row = &desc->tasks[i];
        if (row->width != width || !isfinite(row->trained) || !isfinite(row->generated)) continue;
        (*tasks)++;
        mean.trained += row->trained;
        mean.generated += row->generated;
        if (isfinite(row->jws)) mean.jws += row->jws, with_jws++;
        if (row->paper_trained > 0 && row->paper_generated > 0) with_paper++;
        mean.paper_trained += row->paper_trained;
        mean.paper_generated += row->paper_generated;
    }
    double n = *tasks > 0 ? *tasks : NAN;
    mean.trained /= n;
    mean.generated /= n;
    mean.trained_std = mean.generated_std = NAN;
    mean.jws = with_jws > 0 ? mean.jws / with_jws : NAN;
    mean.paper_trained = with_paper == *tasks && with_paper > 0 ? mean.paper_trained / n : 0;
    mean.paper_generated = with_paper == *tasks && with_paper > 0 ? mean.paper_generated / n : 0;
    return mean;
}

static void glance(wf__page *page, const wf_report_desc *desc) {
    double widths[most_widths], factor = factor_of(desc);
    int count = list_widths(desc, widths), decimals = decimals_of(desc);
    wf__page_add(page, "<div class=\"tiles\" style=\"margin:18px 0 0\">");
    for (int i = 0; i < count; i++) {
        int tasks;
        wf_report_task mean = mean_row(desc, widths[i], &tasks);
        if (tasks == 0) continue;
        wf__page_add(page,
                     "<div class=\"tile\"><span>Generated minus trained, hidden widths times "
                     "%g</span><b>%+.*f</b><small>mean of %d task%s: %.*f against %.*f%s",
                     widths[i], decimals, factor * (mean.generated - mean.trained), tasks,
                     tasks == 1 ? "" : "s", decimals, factor * mean.generated, decimals,
                     factor * mean.trained, desc->score == WF_SCORE_AUC ? "" : "&thinsp;%");
        if (mean.paper_generated > 0)
            wf__page_add(page, "; the paper has %+.*f", decimals,
                         factor * (mean.paper_generated - mean.paper_trained));
        wf__page_add(page, "</small></div>");
    }
    wf__page_add(page, "</div>\n");
}

/* --- bars ------------------------------------------------------------------------------------- */

static void add_bar(wf__page *page, const wf__plot *plot, const char *class_name, double x,
                    double wide, double mean, double std) {
    if (!isfinite(mean)) return;
    double base = plot->height - plot->bottom, top = fmin(base, wf__plot_y(plot, mean));
    wf__page_add(page, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                 class_name, x, top, wide, base - top);
    if (!isfinite(std)) return;
    wf__page_add(page, "<path class=\"whisker\" d=\"M%.1f %.1fV%.1f\"/>", x + wide / 2,
                 fmin(base, wf__plot_y(plot, mean - std)),
                 fmax(plot->top, wf__plot_y(plot, mean + std)));
}

static void add_paper(wf__page *page, const wf__plot *plot, double x, double wide, double value) {
    double y = wf__plot_y(plot, value);
    if (value > 0 && y <= plot->height - plot->bottom)
        wf__page_add(page, "<path class=\"paper\" d=\"M%.1f %.1fh%.1f\"/>", x, y, wide);
}

/* From a round number below all of it to a little above the best. */
static void bar_range(const wf_report_desc *desc, int first, int count, wf__plot *plot) {
    double low = 1, high = 0;
    for (int i = first; i < first + count; i++) {
        const wf_report_task *row = &desc->tasks[i];
        const double values[] = {row->trained, row->generated, row->paper_trained,
                                 row->paper_generated};
        const double stds[] = {row->trained_std, row->generated_std, 0, 0};
        for (int k = 0; k < 4; k++) {
            if (!isfinite(values[k]) || (k > 1 && values[k] == 0)) continue;
            double std = isfinite(stds[k]) ? stds[k] : 0;
            low = fmin(low, values[k] - std);
            high = fmax(high, values[k] + std);
        }
    }
    if (low > high) low = 0, high = 1;
    plot->y_low = factor_of(desc) * fmax(0, floor(10 * low - 0.3) / 10);
    plot->y_high = factor_of(desc) * fmin(1.01, high + 0.015);
    if (plot->y_high <= plot->y_low) plot->y_high = plot->y_low + factor_of(desc) * 0.01;
}

static void task_figure(wf__page *page, const wf_report_desc *desc, int first, int count) {
    wf__plot plot = {310, 180, 40, 6, 8, 22, 0, 1, 0, 1};
    const wf_report_task *rows = desc->tasks + first, *native = rows;
    double factor = factor_of(desc);
    bar_range(desc, first, count, &plot);
    for (int i = 0; i < count; i++)
        if (rows[i].width == 1) native = &rows[i];
    wf__page_add(page, "<figure><figcaption><b>");
    wf__page_escaped(page, rows->name);
    wf__page_add(page, "</b> ");
    wf__page_escaped(page, native->arch);
    wf__page_add(
        page,
        "</figcaption><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"trained and "
        "generated networks of ",
        plot.width, plot.height);
    wf__page_escaped(page, rows->name);
    wf__page_add(page, "\">");
    wf__plot_y_axis(page, &plot);
    double room = (plot.width - plot.left - plot.right) / count, wide = fmin(30, 0.32 * room);
    for (int i = 0; i < count; i++) {
        double middle = plot.left + (i + 0.5) * room;
        add_bar(page, &plot, "k-reference", middle - wide - 1, wide, factor * rows[i].trained,
                factor * rows[i].trained_std);
        add_bar(page, &plot, "k-subject", middle + 1, wide, factor * rows[i].generated,
                factor * rows[i].generated_std);
        add_paper(page, &plot, middle - wide - 4, wide + 3, factor * rows[i].paper_trained);
        add_paper(page, &plot, middle + 1, wide + 3, factor * rows[i].paper_generated);
        wf__page_add(page,
                     "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" "
                     "text-anchor=\"middle\">&times;%g</text>",
                     middle, plot.height - plot.bottom + 16, rows[i].width);
    }
    wf__page_add(page, "</svg></figure>");
}

static void bars(wf__page *page, const wf_report_desc *desc) {
    wf__page_add(
        page,
        "<section id=\"tasks\"><h2>Every task and width</h2><p class=\"legend\"><span><svg "
        "class=\"key\" "
        "viewBox=\"0 0 12 12\"><path class=\"k-reference\" d=\"M1 1h10v10h-10z\"/></svg>trained"
        "</span> <span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"k-subject\" d=\"M1 "
        "1h10v10h-10z\"/></svg>generated</span>%s</p><div class=\"grid3\">\n",
        has_paper(desc) ? " <span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"paper\" "
                          "d=\"M0 6h12\"/></svg>the paper&#39;s</span>"
                        : "");
    for (int first = 0; first < desc->n_tasks;) {
        int count = 1;
        while (first + count < desc->n_tasks && !begins_task(desc, first + count)) count++;
        task_figure(page, desc, first, count);
        first += count;
    }
    wf__page_add(
        page,
        "</div><p class=\"note\">%s on the held-out examples of each task by factor of the "
        "hidden widths; whiskers are one standard deviation over the networks. Axes begin "
        "at the lowest number shown, not at zero. The flow was trained on networks of width "
        "&times;1 and has seen none of the others.</p></section>\n",
        desc->score == WF_SCORE_AUC ? "ROC AUC" : "Accuracy in percent");
}

/* --- the table -------------------------------------------------------------------------------- */

static void gap_cell(wf__page *page, const wf_report_desc *desc, double gap) {
    if (isfinite(gap))
        wf__page_add(page, "<td>%+.*f</td>", decimals_of(desc), factor_of(desc) * gap);
    else wf__page_add(page, "<td>&ndash;</td>");
}

static void table_row(wf__page *page, const wf_report_desc *desc, const wf_report_task *row,
                      bool first, bool paper) {
    double factor = factor_of(desc);
    int decimals = decimals_of(desc);
    wf__page_add(page, "<tr class=\"%s%s\"><th scope=\"row\">", first ? "first " : "",
                 row->arch[0] == '\0' ? "mean" : "task");
    if (first) wf__page_escaped(page, row->name);
    wf__page_add(page, "</th><td>%g</td><td>", row->width);
    wf__page_escaped(page, row->arch);
    wf__page_add(page, "</td>");
    wf__page_spread(page, factor * row->trained, factor * row->trained_std, decimals);
    wf__page_spread(page, factor * row->generated, factor * row->generated_std, decimals);
    gap_cell(page, desc, row->generated - row->trained);
    wf__page_add(page, "<td>");
    wf__page_number(page, row->jws, 3);
    wf__page_add(page, "</td>");
    if (paper) {
        bool known = row->paper_trained > 0 && row->paper_generated > 0;
        wf__page_spread(page, known ? factor * row->paper_trained : NAN, NAN, decimals);
        wf__page_spread(page, known ? factor * row->paper_generated : NAN, NAN, decimals);
        gap_cell(page, desc, known ? row->paper_generated - row->paper_trained : NAN);
    }
    wf__page_add(page, "</tr>\n");
}

static void notes(wf__page *page, const wf_report_desc *desc) {
    for (int i = 0; i < desc->n_tasks; i++) {
        const char *note = desc->tasks[i].note;
        if (!begins_task(desc, i) || note == NULL || note[0] == '\0') continue;
        wf__page_add(page, " <b>");
        wf__page_escaped(page, desc->tasks[i].name);
        wf__page_add(page, "</b>: ");
        wf__page_escaped(page, note);
        wf__page_add(page, ".");
    }
}

static void table(wf__page *page, const wf_report_desc *desc) {
    bool paper = has_paper(desc);
    double widths[most_widths];
    wf__page_add(
        page,
        "<section id=\"task-table\"><h2>The table of tasks</h2><div class=\"scroll\"><table "
        "class=\"main\">"
        "<thead><tr><th scope=\"col\">collection</th><th scope=\"col\">width</th><th "
        "scope=\"col\">networks</th><th scope=\"col\">trained</th><th "
        "scope=\"col\">generated</th><th scope=\"col\">gap</th><th scope=\"col\">JWS</th>%s"
        "</tr></thead><tbody>\n",
        paper ? "<th scope=\"col\">paper: trained</th><th scope=\"col\">generated</th><th "
                "scope=\"col\">gap</th>"
              : "");
    for (int i = 0; i < desc->n_tasks; i++)
        table_row(page, desc, &desc->tasks[i], begins_task(desc, i), paper);
    int count = list_widths(desc, widths);
    for (int i = 0; i < count; i++) {
        int tasks;
        wf_report_task mean = mean_row(desc, widths[i], &tasks);
        if (tasks > 0) table_row(page, desc, &mean, i == 0, paper);
    }
    wf__page_add(page,
                 "</tbody></table></div><p class=\"note\">Gap: generated minus trained%s. Means "
                 "weigh every task alike.",
                 desc->score == WF_SCORE_AUC ? "" : ", in percentage points");
    notes(page, desc);
    wf__page_add(page, "</p></section>\n");
}

void wf__report_tasks(wf__page *page, const wf_report_desc *desc) {
    if (desc->n_tasks == 0) return;
    glance(page, desc);
    bars(page, desc);
    table(page, desc);
}
