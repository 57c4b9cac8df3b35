/* report_domains: a flow between two domains: networks in the plane of their scores on both,
 * baselines as curves through it, and how similar the generated networks are to either collection,
 * over the condition. */
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_points = 300 };

/* Colours run from the first domain's to the second's; a collection is grey. */
static void colour(wf__page *page, const wf_report_domains *d, double cond) {
    double span = d->y_cond - d->x_cond, share = span != 0 ? (cond - d->x_cond) / span : 0;
    wf__page_add(page, "color-mix(in srgb,var(--subject) %.0f%%,var(--held))",
                 100 * fmin(1, fmax(0, share)));
}

static const char *score_name(const wf_report_desc *desc) {
    return desc->score == WF_SCORE_AUC ? "ROC AUC" : "accuracy";
}

static bool is_end(const wf_report_domains *d, const wf_report_cloud *cloud) {
    return cloud->cond == d->x_cond || cloud->cond == d->y_cond;
}

static void spread_of(const float *values, size_t n, double *mean, double *std) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += (double)values[i] / (double)n;
    for (size_t i = 0; i < n; i++) squares += (values[i] - sum) * (values[i] - sum) / (double)n;
    *mean = n > 0 ? sum : NAN;
    *std = n > 0 ? sqrt(squares) : NAN;
}

/* --- ranges ----------------------------------------------------------------------------------- */

typedef enum panel_kind {
    PANEL_ENDS,    /* collections and what is generated at their conditions */
    PANEL_BETWEEN, /* what is generated between, and all baselines */
    PANEL_CLOSE    /* the same near the generated networks */
} panel_kind;

static bool shows(const wf_report_domains *d, const wf_report_cloud *cloud, panel_kind kind) {
    return cloud->trained || (kind == PANEL_ENDS) == is_end(d, cloud);
}

typedef struct range {
    double low, high;
} range;

static void widen(range *r, double value) {
    if (!isfinite(value)) return;
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

static const double *mix_at(const wf_mix *mix, int curve, int point) {
    return mix->mean + ((size_t)curve * (size_t)mix->points + (size_t)point) * (size_t)mix->n_data;
}

static void panel_range(const wf_report_domains *d, panel_kind kind, wf__plot *plot) {
    range x = {INFINITY, -INFINITY}, y = {INFINITY, -INFINITY};
    for (int i = 0; i < d->n_clouds; i++) {
        const wf_report_cloud *cloud = &d->clouds[i];
        if (!shows(d, cloud, kind) || (cloud->trained && kind != PANEL_ENDS)) continue;
        for (size_t k = 0; k < cloud->n; k++) widen(&x, cloud->x[k]), widen(&y, cloud->y[k]);
    }
    for (int c = 0; d->mix != NULL && kind != PANEL_ENDS && c < d->mix->curves; c++) {
        bool near = kind == PANEL_BETWEEN || strcmp(d->mix->name[c], "ensemble") == 0;
        for (int k = 0; near && k < d->mix->points; k++)
            widen(&x, mix_at(d->mix, c, k)[0]), widen(&y, mix_at(d->mix, c, k)[1]);
    }
    const double xs[] = {x.low, x.high}, ys[] = {y.low, y.high};
    wf__plot_range(xs, 2, &plot->x_low, &plot->x_high);
    wf__plot_range(ys, 2, &plot->y_low, &plot->y_high);
}

/* --- drawing ---------------------------------------------------------------------------------- */

static bool inside(const wf__plot *plot, double x, double y) {
    return x >= plot->x_low && x <= plot->x_high && y >= plot->y_low && y <= plot->y_high;
}

static void draw_cloud(wf__page *page, const wf_report_domains *d, const wf__plot *plot,
                       const wf_report_cloud *cloud) {
    size_t stride = (cloud->n + most_points - 1) / most_points;
    if (cloud->n == 0) return;
    if (cloud->trained) wf__page_add(page, "<g class=\"k-reference\" fill-opacity=\".35\">");
    else {
        wf__page_add(page, "<g fill-opacity=\".8\" style=\"fill:");
        colour(page, d, cloud->cond);
        wf__page_add(page, "\">");
    }
    for (size_t k = 0; k < cloud->n; k += stride)
        if (inside(plot, cloud->x[k], cloud->y[k]))
            wf__plot_mark(page, WF_MARK_DOT, wf__plot_x(plot, cloud->x[k]),
                          wf__plot_y(plot, cloud->y[k]), cloud->trained ? 1.8 : 3);
    wf__page_add(page, "</g>");
}

/* Baselines by name: ensembles solid, averaged weights dashed, each with its colour. */
static const char *curve_colour(const wf_mix *mix, int curve) {
    static const char *const averages[] = {"--average", "--matched", "--perturbation", "--random",
                                           "--other"};
    if (strcmp(mix->name[curve], "ensemble") == 0) return "--direct";
    return averages[curve < 4 ? curve : 4];
}

static void draw_curve(wf__page *page, const wf__plot *plot, const wf_mix *mix, int curve) {
    bool pen = false, ensemble = strcmp(mix->name[curve], "ensemble") == 0;
    wf__page_add(page, "<path class=\"line%s\" style=\"stroke:var(%s)\" d=\"",
                 ensemble ? "" : " dashed", curve_colour(mix, curve));
    for (int k = 0; k < mix->points; k++) {
        const double *at = mix_at(mix, curve, k);
        if (!inside(plot, at[0], at[1])) {
            pen = false;
            continue;
        }
        wf__page_add(page, "%s%.1f %.1f", pen ? "L" : "M", wf__plot_x(plot, at[0]),
                     wf__plot_y(plot, at[1]));
        pen = true;
    }
    wf__page_add(page, "\"/><g style=\"fill:var(%s)\">", curve_colour(mix, curve));
    for (int k = 0; k < mix->points; k++) {
        const double *at = mix_at(mix, curve, k);
        if (inside(plot, at[0], at[1]))
            wf__plot_mark(page, WF_MARK_SQUARE, wf__plot_x(plot, at[0]), wf__plot_y(plot, at[1]),
                          1.8);
    }
    wf__page_add(page, "</g>");
}

static void panel(wf__page *page, const wf_report_desc *desc, panel_kind kind,
                  const char *caption) {
    const wf_report_domains *d = desc->domains;
    wf__plot plot = {480, 400, 58, 12, 12, 40, 0, 1, 0, 1};
    char x_label[160], y_label[160];
    panel_range(d, kind, &plot);
    snprintf(x_label, sizeof x_label, "%s on %.100s", score_name(desc), d->x_name);
    snprintf(y_label, sizeof y_label, "%s on %.100s", score_name(desc), d->y_name);
    wf__page_add(page, "<figure><figcaption>%s</figcaption>", caption);
    wf__plot_begin(page, &plot, x_label, y_label, caption);
    for (int i = 0; i < d->n_clouds; i++)
        if (d->clouds[i].trained) draw_cloud(page, d, &plot, &d->clouds[i]);
    for (int c = 0; d->mix != NULL && kind != PANEL_ENDS && c < d->mix->curves; c++)
        draw_curve(page, &plot, d->mix, c);
    for (int i = 0; i < d->n_clouds; i++)
        if (!d->clouds[i].trained && shows(d, &d->clouds[i], kind))
            draw_cloud(page, d, &plot, &d->clouds[i]);
    wf__plot_end(page);
    wf__page_add(page, "</figure>");
}

static void legend(wf__page *page, const wf_report_domains *d) {
    wf__page_add(page, "<p class=\"legend\">");
    for (int i = 0; i < d->n_clouds; i++) {
        const wf_report_cloud *cloud = &d->clouds[i];
        wf__page_add(page,
                     "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><circle cx=\"6\" cy=\"6\" "
                     "r=\"4\" style=\"fill:");
        if (cloud->trained) wf__page_add(page, "var(--reference)");
        else colour(page, d, cloud->cond);
        wf__page_add(page, "\"/></svg>");
        wf__page_escaped(page, cloud->name);
        wf__page_add(page, "</span> ");
    }
    for (int c = 0; d->mix != NULL && c < d->mix->curves; c++) {
        wf__page_add(page,
                     "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"line\" "
                     "style=\"stroke:var(%s)\" d=\"M0 6h12\"/></svg>",
                     curve_colour(d->mix, c));
        wf__page_escaped(page, d->mix->name[c]);
        wf__page_add(page, "</span> ");
    }
    wf__page_add(page, "</p>");
}

static void plane(wf__page *page, const wf_report_desc *desc, const wf_report_domains *d) {
    wf__page_add(page, "<section id=\"plane\"><h2>The plane of both domains</h2>");
    legend(page, d);
    wf__page_add(page, "<div class=\"pair\">");
    panel(page, desc, PANEL_ENDS, "At the conditions trained on");
    panel(page, desc, PANEL_BETWEEN, "Between them, with all baselines");
    panel(page, desc, PANEL_CLOSE, "Between them, close to the generated networks");
    wf__page_add(page,
                 "</div><p class=\"note\">Every point is a network: grey ones were trained, on "
                 "one domain each. Baselines are means over pairs of trained networks, one of "
                 "each domain, from all of the first to all of the second: averaged weights, as "
                 "they are or after so many sweeps of weight matching, and ensembles, which "
                 "need both networks at every prediction.</p></section>\n");
}

/* --- JWS over the condition ------------------------------------------------------------------- */

static void jws_curve(wf__page *page, const wf__plot *plot, const wf_report_domains *d,
                      const double *jws, double cond) {
    wf__page_add(page, "<g style=\"stroke:");
    colour(page, d, cond);
    wf__page_add(page, "\">");
    wf__plot_path(page, plot, "line", d->jws_cond, jws, (size_t)d->n_jws);
    wf__page_add(page, "</g><g style=\"fill:");
    colour(page, d, cond);
    wf__page_add(page, "\">");
    for (int i = 0; i < d->n_jws; i++)
        if (isfinite(jws[i]))
            wf__plot_mark(page, WF_MARK_DOT, wf__plot_x(plot, d->jws_cond[i]),
                          wf__plot_y(plot, jws[i]), 3);
    wf__page_add(page, "</g>");
}

static void jws_figure(wf__page *page, const wf_report_domains *d) {
    if (d->n_jws < 2) return;
    wf__plot plot = {980, 300, 60, 14, 12, 40, 0, 1, 0, 1};
    double low_x, high_x, low_y, high_y;
    wf__plot_range(d->jws_cond, (size_t)d->n_jws, &plot.x_low, &plot.x_high);
    wf__plot_range(d->jws_x, (size_t)d->n_jws, &low_x, &high_x);
    wf__plot_range(d->jws_y, (size_t)d->n_jws, &low_y, &high_y);
    plot.y_low = fmin(low_x, low_y);
    plot.y_high = fmax(high_x, high_y);
    wf__page_add(
        page,
        "<section id=\"similarity\"><h2>Similarity to each collection</h2><p class=\"legend\">");
    const char *names[] = {d->x_name, d->y_name};
    const double conds[] = {d->x_cond, d->y_cond};
    for (int i = 0; i < 2; i++) {
        wf__page_add(page,
                     "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"line\" d=\"M0 "
                     "6h12\" style=\"stroke:");
        colour(page, d, conds[i]);
        wf__page_add(page, "\"/></svg>against ");
        wf__page_escaped(page, names[i]);
        wf__page_add(page, "</span> ");
    }
    wf__page_add(page, "</p><figure>");
    wf__plot_begin(page, &plot, "condition c", "JWS",
                   "JWS against both collections over the condition");
    jws_curve(page, &plot, d, d->jws_x, d->x_cond);
    jws_curve(page, &plot, d, d->jws_y, d->y_cond);
    wf__plot_end(page);
    wf__page_add(page,
                 "</figure><p class=\"note\">Joint similarity (JWS) of the networks generated "
                 "under c with the networks trained on either domain: score on that domain, "
                 "error-IoU and WCS together. 1 is the collection&#39;s own distribution.</p>"
                 "</section>\n");
}

/* --- tables ----------------------------------------------------------------------------------- */

static double jws_at(const wf_report_domains *d, const double *jws, double cond) {
    for (int i = 0; i < d->n_jws; i++)
        if (fabs(d->jws_cond[i] - cond) < 1e-9) return jws[i];
    return NAN;
}

static void cloud_row(wf__page *page, const wf_report_domains *d, const wf_report_cloud *cloud) {
    double mean, std;
    wf__page_add(page, "<tr class=\"%s\"><th scope=\"row\">",
                 cloud->trained ? "reference" : "generated");
    wf__page_escaped(page, cloud->name);
    wf__page_add(page, "</th><td>%zu</td>", cloud->n);
    spread_of(cloud->x, cloud->n, &mean, &std);
    wf__page_spread(page, mean, std, 4);
    spread_of(cloud->y, cloud->n, &mean, &std);
    wf__page_spread(page, mean, std, 4);
    for (int k = 0; k < 2; k++) {
        wf__page_add(page, "<td>");
        wf__page_number(
            page, cloud->trained ? NAN : jws_at(d, k == 0 ? d->jws_x : d->jws_y, cloud->cond), 3);
        wf__page_add(page, "</td>");
    }
    wf__page_add(page, "</tr>\n");
}

/* A baseline where the mean of both scores is best. */
static void mix_row(wf__page *page, const wf_mix *mix, int curve) {
    int best = 0;
    for (int k = 1; k < mix->points; k++) {
        const double *here = mix_at(mix, curve, k), *there = mix_at(mix, curve, best);
        if (here[0] + here[1] > there[0] + there[1]) best = k;
    }
    const double *std = mix->std + (mix_at(mix, curve, best) - mix->mean);
    wf__page_add(page, "<tr class=\"control\"><th scope=\"row\">");
    wf__page_escaped(page, mix->name[curve]);
    wf__page_add(page, ", alpha = %g</th><td>&ndash;</td>", mix->alpha[best]);
    wf__page_spread(page, mix_at(mix, curve, best)[0], std[0], 4);
    wf__page_spread(page, mix_at(mix, curve, best)[1], std[1], 4);
    wf__page_add(page, "<td>&ndash;</td><td>&ndash;</td></tr>\n");
}

static void table(wf__page *page, const wf_report_desc *desc, const wf_report_domains *d) {
    wf__page_add(
        page,
        "<section id=\"conditions\"><h2>The table of conditions</h2><div class=\"scroll\"><table "
        "class=\"main\"><thead><tr>"
        "<th scope=\"col\">networks</th><th scope=\"col\">n</th>");
    const char *names[] = {d->x_name, d->y_name};
    for (int k = 0; k < 4; k++) {
        wf__page_add(page, "<th scope=\"col\">%s ", k < 2 ? score_name(desc) : "JWS");
        wf__page_escaped(page, names[k % 2]);
        wf__page_add(page, "</th>");
    }
    wf__page_add(page, "</tr></thead><tbody>\n");
    for (int i = 0; i < d->n_clouds; i++) cloud_row(page, d, &d->clouds[i]);
    for (int c = 0; d->mix != NULL && c < d->mix->curves; c++) mix_row(page, d->mix, c);
    wf__page_add(page,
                 "</tbody></table></div><p class=\"note\">Baselines stand at the alpha where the "
                 "mean of both scores is best.");
    wf__page_add(page, "</p></section>\n");
}

void wf__report_domains(wf__page *page, const wf_report_desc *desc) {
    if (desc->domains == NULL) return;
    plane(page, desc, desc->domains);
    jws_figure(page, desc->domains);
    table(page, desc, desc->domains);
}
