/* svg_plot: frames, axes with round ticks, marks and paths as inline SVG. Colours are CSS classes,
 * so that the page's light and dark palettes apply. */
#include "report/page.h"

#include <math.h>
#include <stdio.h>

double wf__plot_x(const wf__plot *plot, double value) {
    double inner = plot->width - plot->left - plot->right;
    return plot->left + inner * (value - plot->x_low) / (plot->x_high - plot->x_low);
}

double wf__plot_y(const wf__plot *plot, double value) {
    double inner = plot->height - plot->top - plot->bottom;
    return plot->top + inner * (1 - (value - plot->y_low) / (plot->y_high - plot->y_low));
}

/* 1, 2 or 5 times a power of ten: about `wanted` of them over the range. */
static double tick_step(double range, int wanted) {
    double raw = range / wanted, power = pow(10, floor(log10(raw)));
    double lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

void wf__plot_range(const double *values, size_t n, double *low, double *high) {
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        if (values[i] < least) least = values[i];
        if (values[i] > most) most = values[i];
    }
    if (!(least <= most)) least = 0, most = 1;
    double pad = most > least ? 0.04 * (most - least) : fabs(most) > 0 ? 0.05 * fabs(most) : 0.5;
    *low = least - pad;
    *high = most + pad;
}

static int tick_decimals(double step) {
    int decimals = (int)ceil(-log10(step) - 1e-9);
    return decimals < 0 ? 0 : decimals;
}

static void draw_x_ticks(wf__page *page, const wf__plot *plot) {
    double step = tick_step(plot->x_high - plot->x_low, plot->width < 260 ? 3 : 6);
    double base = plot->height - plot->bottom;
    long last = (long)floor(plot->x_high / step + 1e-9);
    for (long k = (long)ceil(plot->x_low / step - 1e-9); k <= last; k++) {
        double x = wf__plot_x(plot, (double)k * step);
        wf__page_add(page, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, plot->top, base);
        wf__page_add(
            page, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.*f</text>",
            x, base + 16, tick_decimals(step), (double)k * step + 0.0);
    }
}

void wf__plot_y_axis(wf__page *page, const wf__plot *plot) {
    double step = tick_step(plot->y_high - plot->y_low, plot->height < 200 ? 3 : 5);
    long last = (long)floor(plot->y_high / step + 1e-9);
    for (long k = (long)ceil(plot->y_low / step - 1e-9); k <= last; k++) {
        double y = wf__plot_y(plot, (double)k * step);
        wf__page_add(page, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", plot->left, y,
                     plot->width - plot->right);
        wf__page_add(page,
                     "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>",
                     plot->left - 6, y + 4, tick_decimals(step), (double)k * step + 0.0);
    }
}

void wf__plot_begin(wf__page *page, const wf__plot *plot, const char *x_label, const char *y_label,
                    const char *description) {
    double middle_x = 0.5 * (plot->left + plot->width - plot->right);
    double middle_y = 0.5 * (plot->top + plot->height - plot->bottom);
    wf__page_add(page, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", plot->width,
                 plot->height);
    wf__page_escaped(page, description);
    wf__page_add(page, "\">");
    draw_x_ticks(page, plot);
    if (y_label != NULL) wf__plot_y_axis(page, plot);
    wf__page_add(page, "<path class=\"frame\" d=\"M%.1f %.1fV%.1fH%.1f\"/>", plot->left, plot->top,
                 plot->height - plot->bottom, plot->width - plot->right);
    if (x_label != NULL) {
        wf__page_add(page, "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
                     middle_x, plot->height - 6);
        wf__page_escaped(page, x_label);
        wf__page_add(page, "</text>");
    }
    if (y_label != NULL) {
        wf__page_add(page,
                     "<text class=\"axis\" transform=\"translate(13 %.1f) rotate(-90)\" "
                     "text-anchor=\"middle\">",
                     middle_y);
        wf__page_escaped(page, y_label);
        wf__page_add(page, "</text>");
    }
}

void wf__plot_end(wf__page *page) { wf__page_add(page, "</svg>"); }

void wf__plot_mark(wf__page *page, wf__mark mark, double x, double y, double size) {
    double r = size;
    switch (mark) {
    case WF_MARK_DOT:
    case WF_MARK_RING:
        wf__page_add(page, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>", x, y, r);
        break;
    case WF_MARK_SQUARE:
        wf__page_add(page, "<path d=\"M%.1f %.1fh%.1fv%.1fh%.1fz\"/>", x - r, y - r, 2 * r, 2 * r,
                     -2 * r);
        break;
    case WF_MARK_TRIANGLE:
        wf__page_add(page, "<path d=\"M%.1f %.1fl%.1f %.1fh%.1fz\"/>", x, y - 1.15 * r, 1.1 * r,
                     2 * r, -2.2 * r);
        break;
    case WF_MARK_TRIANGLE_DOWN:
        wf__page_add(page, "<path d=\"M%.1f %.1fl%.1f %.1fh%.1fz\"/>", x, y + 1.15 * r, 1.1 * r,
                     -2 * r, -2.2 * r);
        break;
    case WF_MARK_DIAMOND:
        wf__page_add(page, "<path d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\"/>", x,
                     y - 1.3 * r, 1.3 * r, 1.3 * r, -1.3 * r, 1.3 * r, -1.3 * r, -1.3 * r);
        break;
    case WF_MARK_PLUS:
        wf__page_add(page, "<path class=\"stroke\" d=\"M%.1f %.1fh%.1fm%.1f %.1fv%.1f\"/>", x - r,
                     y, 2 * r, -r, -r, 2 * r);
        break;
    case WF_MARK_CROSS:
        wf__page_add(page, "<path class=\"stroke\" d=\"M%.1f %.1fl%.1f %.1fm0 %.1fl%.1f %.1f\"/>",
                     x - r, y - r, 2 * r, 2 * r, -2 * r, -2 * r, 2 * r);
        break;
    }
}

void wf__plot_path(wf__page *page, const wf__plot *plot, const char *class_name, const double *x,
                   const double *y, size_t n) {
    wf__page_add(page, "<path class=\"%s\" d=\"", class_name);
    for (size_t i = 0; i < n; i++)
        wf__page_add(page, "%s%.1f %.1f", i == 0 ? "M" : "L", wf__plot_x(plot, x[i]),
                     wf__plot_y(plot, y[i]));
    wf__page_add(page, "\"/>");
}
