/* report_curves: the loss over updates, a plot for each phase of the fit, and weight histograms by
 * parameter group. */
#include "base/c_locale.h"
#include "base/digest.h"
#include "base/io.h"
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { log_limit = 256 << 20, drawn_points = 600, bins = 48, phase_name = 32 };

typedef struct curve {
    double *x, *y, *smooth;
    size_t n;
} curve;

static void curve_free(curve *c) {
    free(c->x);
    free(c->y);
    free(c->smooth);
}

static size_t count_lines(const char *text) {
    size_t lines = 1;
    for (; *text != '\0'; text++) lines += *text == '\n';
    return lines;
}

/* The number after "key": in a line of the log. Lines are flat objects that weft wrote, and are
 * read without a JSON reader: jansson drops digits when memory is short, and does not say so. */
static bool read_member(const char *line, size_t length, const char *key, double *out) {
    char quoted[32];
    int size = snprintf(quoted, sizeof quoted, "\"%s\"", key);
    if (length < 2 || line[0] != '{' || line[length - 1] != '}') return false;
    const char *at = memmem(line, length, quoted, (size_t)size), *end = line + length;
    if (at == NULL) return false;
    at += size;
    at += strspn(at, " ");
    if (*at++ != ':') return false;
    at += strspn(at, " ");
    if (*at != '-' && (*at < '0' || *at > '9')) return false;
    char *behind;
    *out = wf_c_strtod(at, &behind);
    return behind < end && isfinite(*out);
}

/* The lines with this key, over their updates. Other lines are passed over: a log holds several
 * kinds, and its last line may be cut. */
static wf_status read_curve(wf_ctx *ctx, const char *text, const char *key, curve *out) {
    size_t lines = count_lines(text);
    double **arrays[] = {&out->x, &out->y, &out->smooth};
    for (int i = 0; i < 3; i++)
        WF_TRY(wf_alloc(ctx, lines, sizeof(double), "loss curve", arrays[i]));
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (read_member(line, length, "update", &out->x[out->n]) &&
            read_member(line, length, key, &out->y[out->n]))
            out->n++;
        line += length + (line[length] == '\n');
    }
    return WF_OK;
}

/* Means over runs of neighbours, so that a long log stays a light drawing; then a centred running
 * mean of those. */
static void thin_and_smooth(curve *c) {
    size_t run = (c->n + drawn_points - 1) / drawn_points, n = 0;
    for (size_t i = 0; i < c->n; i += run, n++) {
        size_t end = i + run < c->n ? i + run : c->n;
        double sum = 0;
        for (size_t k = i; k < end; k++) sum += c->y[k];
        c->x[n] = c->x[end - 1];
        c->y[n] = sum / (double)(end - i);
    }
    c->n = n;
    size_t reach = n / 40 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t from = i > reach ? i - reach : 0, to = i + reach < n ? i + reach : n - 1;
        double sum = 0;
        for (size_t k = from; k <= to; k++) sum += c->y[k];
        c->smooth[i] = sum / (double)(to - from + 1);
    }
}

/* The axis ends at the 98th percentile of the losses after the first updates, which would otherwise
 * set the scale. */
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double upper_bound_of(const curve *c, double *scratch) {
    memcpy(scratch, c->y, c->n * sizeof *scratch);
    qsort(scratch, c->n, sizeof *scratch, by_value);
    return scratch[(size_t)(0.98 * (double)(c->n - 1))];
}

static void clip(double *values, size_t n, double high) {
    for (size_t i = 0; i < n; i++) values[i] = fmin(values[i], high);
}

/* What a log holds: the loss of updates, and of validations on held-out and on fitted networks. */
typedef struct curves {
    curve training, held_out, fitted;
} curves;

/* Both validation curves, and the gap between their ends. */
static void draw_validation(wf__page *page, const wf__plot *plot, const curves *c) {
    const curve *held_out = &c->held_out, *fitted = &c->fitted;
    size_t last = held_out->n - 1;
    double x = wf__plot_x(plot, held_out->x[last]);
    double high = wf__plot_y(plot, held_out->y[last]), low = wf__plot_y(plot, fitted->y[last]);
    wf__plot_path(page, plot, "curve-fitted", fitted->x, fitted->y, fitted->n);
    wf__plot_path(page, plot, "curve-held-out", held_out->x, held_out->y, held_out->n);
    wf__page_add(page,
                 "<line class=\"gap\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\">"
                 "<title>gap</title></line>",
                 x, high, x, low);
}

static void explain_validation(wf__page *page, const curves *c) {
    size_t last = c->held_out.n - 1, lowest = 0;
    for (size_t i = 1; i <= last; i++)
        if (c->held_out.y[i] < c->held_out.y[lowest]) lowest = i;
    double gap = c->held_out.y[last] - c->fitted.y[last];
    wf__page_add(
        page,
        " Blue: on held-out networks, lowest at update %.0f (%.4f), at the end %.4f; green: "
        "on networks of the collection, with the same noise and times, at the end %.4f. "
        "%s",
        c->held_out.x[lowest], c->held_out.y[lowest], c->held_out.y[last], c->fitted.y[last],
        gap > 0 ? "" : "There is no gap between them: nothing is learned by heart.");
    if (gap > 0)
        wf__page_add(page, "The gap of %.4f (%.1f %%) is what it has learned by heart.", gap,
                     100 * gap / c->fitted.y[last]);
}

/* The plot in one of its two shapes; the style sheet shows the one that fits the screen. */
static void draw_plot(wf__page *page, const char *shape, const wf__plot *plot, const curves *all,
                      bool validated) {
    const curve *c = &all->training;
    wf__page_add(page, "<figure class=\"%s\">", shape);
    wf__plot_begin(page, plot, "updates", "loss", "Loss over updates");
    wf__plot_path(page, plot, "curve-raw", c->x, c->y, c->n);
    wf__plot_path(page, plot, "curve", c->x, c->smooth, c->n);
    if (validated) draw_validation(page, plot, all);
    wf__plot_end(page);
    wf__page_add(page, "</figure>");
}

/* heading: NULL for a flow on the page of its own run. */
static void draw_curves(wf__page *page, const char *heading, curves *all, double *scratch) {
    curve *c = &all->training;
    bool validated = all->held_out.n > 0 && all->fitted.n == all->held_out.n;
    wf__plot plot = {980, 280, 60, 14, 12, 40, c->x[0], c->x[c->n - 1], 0, 1};
    wf__plot_range(c->y, c->n, &plot.y_low, &plot.y_high);
    double bound = upper_bound_of(c, scratch);
    if (bound > plot.y_low) plot.y_high = bound + 0.05 * (bound - plot.y_low);
    if (plot.x_high <= plot.x_low) plot.x_high = plot.x_low + 1;
    for (size_t i = 0; validated && i < all->fitted.n; i++)
        plot.y_low = fmin(plot.y_low, fmin(all->fitted.y[i], all->held_out.y[i]));
    clip(c->y, c->n, plot.y_high);
    clip(c->smooth, c->n, plot.y_high);
    curves drawn = *all; /* the text below gives values that the axis cuts */
    for (size_t i = 0; validated && i < all->held_out.n; i++) {
        drawn.held_out.smooth[i] = fmin(all->held_out.y[i], plot.y_high);
        drawn.fitted.smooth[i] = fmin(all->fitted.y[i], plot.y_high);
    }
    drawn.held_out.y = drawn.held_out.smooth;
    drawn.fitted.y = drawn.fitted.smooth;
    if (heading != NULL) {
        wf__page_add(page, "<h3>");
        wf__page_escaped(page, heading);
        wf__page_add(page, "</h3>");
    }
    draw_plot(page, "wide", &plot, &drawn, validated);
    plot.width = 400;
    draw_plot(page, "narrow", &plot, &drawn, validated);
    wf__page_add(page, "<p class=\"note\">Pale: as logged, dark: running mean.");
    if (heading == NULL)
        wf__page_add(page,
                     " The loss does not go to zero: from the middle of its path a network cannot "
                     "tell which of many it comes from.");
    if (validated) explain_validation(page, all);
    wf__page_add(page, "</p>\n");
}

/* The digest is of the bytes that are drawn: a file could change between a look at it and this. */
static wf_status read_log(wf_ctx *ctx, const wf_report_log *log, char **text) {
    size_t size;
    char digest[33];
    WF_TRY(wf_read_file(ctx, log->path, log_limit, text, &size));
    wf_status status = log->digest != NULL ? wf_digest_of(ctx, *text, size, digest) : WF_OK;
    if (status == WF_OK && log->digest != NULL && strcmp(digest, log->digest) != 0)
        status = wf_fail(ctx, WF_ERR_INPUT,
                         "%s: is not what training left: damaged, or exchanged. Remove %s, and the "
                         "page has no curve of the loss",
                         log->path, log->path);
    if (status != WF_OK) free(*text);
    return status;
}

/* The phase that a line names, as those of pdiff do; "": none. */
static void read_phase(const char *line, char out[phase_name]) {
    static const char key[] = "\"phase\":\"";
    const char *at = memmem(line, strcspn(line, "\n"), key, sizeof key - 1);
    if (at != NULL) at += sizeof key - 1;
    int length = at != NULL ? (int)strcspn(at, "\"\n") : 0;
    snprintf(out, phase_name, "%.*s", length, at != NULL ? at : "");
}

/* Ends the text behind the lines of its first phase, whose name goes to `phase`. Returns the rest,
 * which is "" behind the last phase. */
static char *cut_phase(char *text, char phase[phase_name]) {
    char next[phase_name];
    read_phase(text, phase);
    for (char *end = strchr(text, '\n'); end != NULL && end[1] != '\0';
         end = strchr(end + 1, '\n')) {
        read_phase(end + 1, next);
        if (strcmp(next, phase) == 0) continue;
        *end = '\0';
        return end + 1;
    }
    return text + strlen(text);
}

static wf_status draw_phase(wf_ctx *ctx, wf__page *page, const char *heading, const char *lines) {
    curves c = {0};
    wf_status status = read_curve(ctx, lines, "loss", &c.training);
    if (status == WF_OK) status = read_curve(ctx, lines, "validation", &c.held_out);
    if (status == WF_OK) status = read_curve(ctx, lines, "fitted", &c.fitted);
    if (status == WF_OK && c.training.n >= 2) {
        thin_and_smooth(&c.training);
        double *scratch;
        status = wf_alloc(ctx, c.training.n, sizeof *scratch, "loss curve", &scratch);
        if (status == WF_OK) {
            draw_curves(page, heading, &c, scratch);
            free(scratch);
        }
    }
    curve_free(&c.training);
    curve_free(&c.held_out);
    curve_free(&c.fitted);
    return status;
}

static wf_status draw_log(wf_ctx *ctx, wf__page *page, const wf_report_log *log) {
    char *text, *rest, phase[phase_name], heading[160];
    wf_status status = WF_OK;
    if (!wf_file_exists(log->path)) return WF_OK;
    WF_TRY(read_log(ctx, log, &text));
    for (char *lines = text; *lines != '\0' && status == WF_OK; lines = rest) {
        rest = cut_phase(lines, phase);
        const char *name = log->name != NULL ? log->name : "";
        snprintf(heading, sizeof heading, "%s%s%s", name, *name && *phase ? ", " : "", phase);
        status = draw_phase(ctx, page, *heading != '\0' ? heading : NULL, lines);
    }
    free(text);
    return status;
}

wf_status wf__report_loss(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc) {
    wf_status status = WF_OK;
    size_t before = page->size;
    wf__page_add(page, "<section id=\"training\"><h2>Training</h2>");
    size_t head = page->size;
    for (int i = 0; i < desc->n_logs && status == WF_OK; i++)
        status = draw_log(ctx, page, &desc->logs[i]);
    if (page->size > head) wf__page_add(page, "</section>\n");
    else page->size = before; /* no log has two losses: no section */
    return status;
}

/* Densities of one block over all networks, in `bins` equal steps from low to high. */
static void histogram(const float *weights, size_t n, size_t n_params, const wf_block *block,
                      double low, double high, double density[bins]) {
    memset(density, 0, bins * sizeof *density);
    double total = (double)(n * block->count), scale = bins / (high - low);
    for (size_t i = 0; i < n; i++) {
        const float *w = weights + i * n_params + block->offset;
        for (size_t k = 0; k < block->count; k++) {
            double place = (w[k] - low) * scale;
            if (place >= 0 && place < bins) density[(int)place] += scale / total;
        }
    }
}

/* Mean plus and minus four deviations of the trained values: a stray value does not flatten the
 * rest. */
static void histogram_range(const wf_report_desc *desc, const wf_block *block, double *low,
                            double *high) {
    double sum = 0, squares = 0, count = 0;
    for (size_t i = 0; i < desc->n_trained; i++) {
        const float *w = desc->trained + i * desc->graph->n_params + block->offset;
        for (size_t k = 0; k < block->count; k++) {
            sum += w[k];
            squares += (double)w[k] * w[k];
            count++;
        }
    }
    double mean = sum / count, std = sqrt(fmax(0, squares / count - mean * mean));
    if (!(std > 0)) std = 1;
    *low = mean - 4 * std;
    *high = mean + 4 * std;
}

/* The outline of a histogram as a closed or open path of steps. */
static void draw_steps(wf__page *page, const wf__plot *plot, const char *class_name,
                       const double density[bins]) {
    double step = (plot->x_high - plot->x_low) / bins;
    wf__page_add(page, "<path class=\"%s\" d=\"M%.1f %.1f", class_name,
                 wf__plot_x(plot, plot->x_low), wf__plot_y(plot, 0));
    for (int i = 0; i < bins; i++)
        wf__page_add(page, "V%.1fH%.1f", wf__plot_y(plot, density[i]),
                     wf__plot_x(plot, plot->x_low + (i + 1) * step));
    wf__page_add(page, "V%.1f\"/>", wf__plot_y(plot, 0));
}

static void histogram_figure(wf__page *page, const wf_report_desc *desc, const wf_block *block) {
    wf__plot plot = {310, 170, 10, 10, 8, 24, 0, 1, 0, 1};
    double trained[bins], generated[bins], most = 0;
    histogram_range(desc, block, &plot.x_low, &plot.x_high);
    histogram(desc->trained, desc->n_trained, desc->graph->n_params, block, plot.x_low, plot.x_high,
              trained);
    histogram(desc->generated, desc->n_generated, desc->graph->n_params, block, plot.x_low,
              plot.x_high, generated);
    for (int i = 0; i < bins; i++) most = fmax(most, fmax(trained[i], generated[i]));
    plot.y_high = most > 0 ? 1.05 * most : 1;
    wf__page_add(page, "<figure><figcaption><code>");
    wf__page_escaped(page, block->name);
    wf__page_add(page, "</code> <small>%zu a network</small></figcaption>", block->count);
    wf__plot_begin(page, &plot, NULL, NULL, block->name);
    draw_steps(page, &plot, "hist-trained", trained);
    draw_steps(page, &plot, "hist-generated", generated);
    wf__plot_end(page);
    wf__page_add(page, "</figure>");
}

void wf__report_histograms(wf__page *page, const wf_report_desc *desc) {
    if (desc->graph == NULL || desc->trained == NULL || desc->generated == NULL ||
        desc->n_trained == 0 || desc->n_generated == 0)
        return;
    wf__page_add(
        page,
        "<section id=\"weights\"><h2>Weights by parameter group</h2><p class=\"legend\"><span><svg "
        "class=\"key\" "
        "viewBox=\"0 0 12 12\"><path class=\"hist-trained\" d=\"M1 1h10v10h-10z\"/></svg>trained"
        "</span> <span><svg class=\"key\" viewBox=\"0 0 12 12\"><path class=\"hist-generated\" "
        "d=\"M1 6h10\"/></svg>");
    wf__page_escaped(page, desc->generated_name != NULL ? desc->generated_name : "generated");
    wf__page_add(page, "</span></p><div class=\"grid3\">");
    for (int i = 0; i < desc->graph->n_blocks; i++)
        histogram_figure(page, desc, &desc->graph->blocks[i]);
    wf__page_add(page, "</div></section>\n");
}
