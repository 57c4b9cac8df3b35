/* report_sweep: score, error-IoU, WCS and JWS of several runs over one number (the paper's scaling
 * figure): a line with its band of one standard deviation for every series, dashes for published
 * ones and for the trained networks. */
#include "report/page.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

typedef struct measure {
    const char *name;
    size_t mean, std; /* offsets in wf_eval_row */
    bool score;       /* shown in per cent, unless it is an AUC */
} measure;

static const measure measures[] = {
    {"accuracy, %", offsetof(wf_eval_row, accuracy_mean), offsetof(wf_eval_row, accuracy_std),
     true},
    {"largest error-IoU", offsetof(wf_eval_row, iou_mean), offsetof(wf_eval_row, iou_std), false},
    {"WCS", offsetof(wf_eval_row, wcs_mean), offsetof(wf_eval_row, wcs_std), false},
    {"JWS", offsetof(wf_eval_row, jws), offsetof(wf_eval_row, jws_std), false},
};
enum { n_measures = sizeof measures / sizeof measures[0] };

static double value_at(const wf_eval_row *row, size_t offset) {
    return *(const double *)(const void *)((const char *)row + offset);
}

static double factor_of(const wf_report_desc *desc, const measure *m) {
    return m->score && desc->score != WF_SCORE_AUC ? 100 : 1;
}

/* --- the axis below: logarithmic where the values span a decade ------------------------------- */

typedef struct span {
    double low, high;
    bool log;
} span;

static span span_of(const wf_report_sweep *sweep) {
    span s = {INFINITY, -INFINITY, false};
    for (int i = 0; i < sweep->n_series; i++)
        for (int k = 0; k < sweep->series[i].n; k++) {
            s.low = fmin(s.low, sweep->series[i].x[k]);
            s.high = fmax(s.high, sweep->series[i].x[k]);
        }
    s.log = s.low > 0 && s.high >= 10 * s.low;
    return s;
}

static double place_of(const span *s, double x) { return s->log ? log10(x) : x; }

static void add_tick(wf__page *page, const wf__plot *plot, double at, double value) {
    double x = wf__plot_x(plot, at), base = plot->height - plot->bottom;
    if (at < plot->x_low || at > plot->x_high) return;
    wf__page_add(page, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, plot->top, base);
    wf__page_add(page,
                 "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>", x,
                 base + 16, value);
}

/* Powers of ten, below three decades also twice and five times them. */
static void log_ticks(wf__page *page, const wf__plot *plot) {
    static const double lead[] = {1, 2, 5};
    int count = plot->x_high - plot->x_low < 3 ? 3 : 1;
    for (int power = (int)floor(plot->x_low); power <= (int)ceil(plot->x_high); power++)
        for (int i = 0; i < count; i++)
            add_tick(page, plot, power + log10(lead[i]), lead[i] * pow(10, power));
}

static void begin_panel(wf__page *page, const wf__plot *plot, const span *s, const char *over,
                        const char *name) {
    wf__page_add(page, "<figure><figcaption>%s</figcaption>", name);
    if (!s->log) {
        wf__plot_begin(page, plot, over, name, name);
        return;
    }
    wf__page_add(page, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">",
                 plot->width, plot->height, name);
    log_ticks(page, plot);
    wf__plot_y_axis(page, plot);
    wf__page_add(page, "<path class=\"frame\" d=\"M%.1f %.1fV%.1fH%.1f\"/>", plot->left, plot->top,
                 plot->height - plot->bottom, plot->width - plot->right);
    wf__page_add(page, "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
                 0.5 * (plot->left + plot->width - plot->right), plot->height - 6);
    wf__page_escaped(page, over);
    wf__page_add(page, "</text>");
}

/* --- lines ------------------------------------------------------------------------------------ */

static const char *colour_of(const wf_report_sweep *sweep, int series) {
    static const char *const own[] = {"--subject", "--direct",  "--perturbation", "--random",
                                      "--average", "--matched", "--other"};
    static const char *const published[] = {"--held",         "--average", "--matched", "--random",
                                            "--perturbation", "--direct",  "--other"};
    int before = 0; /* of its kind */
    for (int i = 0; i < series; i++)
        before += sweep->series[i].published == sweep->series[series].published;
    return sweep->series[series].published ? published[before % 7] : own[before % 7];
}

/* The band between mean - std and mean + std; out and back. */
static void draw_band(wf__page *page, const wf__plot *plot, const span *s,
                      const wf_report_series *series, const measure *m, double factor,
                      const char *colour) {
    bool any = false;
    wf__page_add(page, "<path style=\"fill:var(%s);fill-opacity:.13;stroke:none\" d=\"", colour);
    for (int k = 0; k < 2 * series->n; k++) {
        int i = k < series->n ? k : 2 * series->n - 1 - k;
        double mean = value_at(&series->rows[i], m->mean), std = value_at(&series->rows[i], m->std);
        if (!isfinite(mean) || !isfinite(std)) continue;
        double edge = factor * (k < series->n ? mean + std : mean - std);
        double y = fmin(plot->y_high, fmax(plot->y_low, edge));
        wf__page_add(page, "%s%.1f %.1f", any ? "L" : "M",
                     wf__plot_x(plot, place_of(s, series->x[i])), wf__plot_y(plot, y));
        any = true;
    }
    wf__page_add(page, "\"/>");
}

static void draw_line(wf__page *page, const wf__plot *plot, const span *s,
                      const wf_report_series *series, const measure *m, double factor,
                      const char *colour) {
    bool pen = false;
    wf__page_add(page, "<path class=\"line%s\" style=\"stroke:var(%s)\" d=\"",
                 series->published ? " dashed" : "", colour);
    for (int i = 0; i < series->n; i++) {
        double mean = factor * value_at(&series->rows[i], m->mean);
        if (!isfinite(mean)) continue;
        wf__page_add(page, "%s%.1f %.1f", pen ? "L" : "M",
                     wf__plot_x(plot, place_of(s, series->x[i])), wf__plot_y(plot, mean));
        pen = true;
    }
    wf__page_add(page, "\"/><g style=\"fill:var(%s)\">", colour);
    for (int i = 0; i < series->n; i++) {
        double mean = factor * value_at(&series->rows[i], m->mean);
        if (isfinite(mean))
            wf__plot_mark(page, series->published ? WF_MARK_SQUARE : WF_MARK_DOT,
                          wf__plot_x(plot, place_of(s, series->x[i])), wf__plot_y(plot, mean), 2.6);
    }
    wf__page_add(page, "</g>");
}

/* What trained networks reach: the collection's own mean; JWS 1, and that of held-out networks. */
static void draw_level(wf__page *page, const wf__plot *plot, double value, const char *colour) {
    if (!isfinite(value) || value < plot->y_low || value > plot->y_high) return;
    wf__page_add(page,
                 "<path class=\"line dashed\" style=\"stroke:var(%s)\" d=\"M%.1f %.1fH%.1f\"/>",
                 colour, plot->left, wf__plot_y(plot, value), plot->width - plot->right);
}

static double level_of(const wf_report_desc *desc, wf_report_role role, const measure *m) {
    const wf_report_entry *entry = wf__report_role(desc, role);
    return entry != NULL ? factor_of(desc, m) * value_at(entry->row, m->mean) : NAN;
}

static void value_range(const wf_report_desc *desc, const measure *m, wf__plot *plot) {
    double low = INFINITY, high = -INFINITY, factor = factor_of(desc, m);
    for (int i = 0; i < desc->sweep->n_series; i++)
        for (int k = 0; k < desc->sweep->series[i].n; k++) {
            double mean = factor * value_at(&desc->sweep->series[i].rows[k], m->mean);
            if (isfinite(mean)) low = fmin(low, mean), high = fmax(high, mean);
        }
    double levels[] = {level_of(desc, WF_REPORT_REFERENCE, m),
                       level_of(desc, WF_REPORT_HELD_OUT, m)};
    for (int i = 0; i < 2; i++)
        if (isfinite(levels[i])) low = fmin(low, levels[i]), high = fmax(high, levels[i]);
    const double ends[] = {low, high};
    wf__plot_range(ends, 2, &plot->y_low, &plot->y_high);
}

static void panel(wf__page *page, const wf_report_desc *desc, const span *s, const measure *m) {
    const wf_report_sweep *sweep = desc->sweep;
    wf__plot plot = {480, 300, 54, 14, 12, 40, 0, 1, 0, 1};
    const double ends[] = {place_of(s, s->low), place_of(s, s->high)};
    const char *name = m->score && desc->score == WF_SCORE_AUC ? "ROC AUC" : m->name;
    wf__plot_range(ends, 2, &plot.x_low, &plot.x_high);
    value_range(desc, m, &plot);
    begin_panel(page, &plot, s, sweep->over, name);
    draw_level(page, &plot, level_of(desc, WF_REPORT_REFERENCE, m), "--reference");
    draw_level(page, &plot, level_of(desc, WF_REPORT_HELD_OUT, m), "--ink");
    for (int i = 0; i < sweep->n_series; i++)
        if (!sweep->series[i].published)
            draw_band(page, &plot, s, &sweep->series[i], m, factor_of(desc, m),
                      colour_of(sweep, i));
    for (int i = 0; i < sweep->n_series; i++)
        draw_line(page, &plot, s, &sweep->series[i], m, factor_of(desc, m), colour_of(sweep, i));
    wf__plot_end(page);
    wf__page_add(page, "</figure>");
}

static void legend_entry(wf__page *page, const char *colour, bool dashed, const char *name) {
    wf__page_add(page,
                 "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"line%s\" "
                 "style=\"stroke:var(%s)\" d=\"M0 6h12\"/></svg>",
                 dashed ? " dashed" : "", colour);
    wf__page_escaped(page, name);
    wf__page_add(page, "</span> ");
}

void wf__report_sweep(wf__page *page, const wf_report_desc *desc) {
    const wf_report_sweep *sweep = desc->sweep;
    int points = 0;
    for (int i = 0; sweep != NULL && i < sweep->n_series; i++) points += sweep->series[i].n;
    if (points == 0) return;
    span s = span_of(sweep);
    wf__page_add(page, "<section id=\"sweep\"><h2>Over ");
    wf__page_escaped(page, sweep->over);
    wf__page_add(page, "</h2><p class=\"legend\">");
    for (int i = 0; i < sweep->n_series; i++)
        legend_entry(page, colour_of(sweep, i), sweep->series[i].published, sweep->series[i].name);
    if (wf__report_role(desc, WF_REPORT_REFERENCE) != NULL)
        legend_entry(page, "--reference", true, "the collection");
    if (wf__report_role(desc, WF_REPORT_HELD_OUT) != NULL)
        legend_entry(page, "--ink", true, "held-out networks");
    wf__page_add(page, "</p><div class=\"pair\">");
    for (int i = 0; i < n_measures; i++) panel(page, desc, &s, &measures[i]);
    wf__page_add(
        page, "</div><p class=\"note\">Bands: one standard deviation over the networks of a run, "
              "for JWS over subsets of the reference. Copies have IoU and WCS near 1.</p>"
              "</section>\n");
}
