/* page: what the parts of the report share: a growing text, escaping, plots, pictures.
 * A page that has run out of memory ignores what is added later; wf__page_failed says so. */
#pragma once

#include "weft/report.h"

typedef struct wf__page {
    char *text;
    size_t size, capacity;
    bool failed;
} wf__page;

void wf__page_add(wf__page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
void wf__page_bytes(wf__page *page, const char *bytes, size_t count);
void wf__page_escaped(wf__page *page, const char *text); /* for HTML text and attribute values */
void wf__page_base64(wf__page *page, const uint8_t *bytes, size_t count);
void wf__page_free(wf__page *page);

/* An RGB picture (height, width, 3) as an <img> with a data URI. */
void wf__page_picture(wf__page *page, const uint8_t *rgb, int width, int height, const char *title);
/* The PNG file itself; free(*out). False when out of memory. */
bool wf__png_encode(const uint8_t *rgb, int width, int height, uint8_t **out, size_t *size);

/* A plot: a frame with axes that maps values to places. Shapes are drawn between begin and end. */
typedef struct wf__plot {
    double width, height;            /* of the whole drawing */
    double left, right, top, bottom; /* margins */
    double x_low, x_high, y_low, y_high;
} wf__plot;

typedef enum wf__mark {
    WF_MARK_DOT,
    WF_MARK_SQUARE,
    WF_MARK_TRIANGLE,
    WF_MARK_DIAMOND,
    WF_MARK_TRIANGLE_DOWN,
    WF_MARK_CROSS,
    WF_MARK_PLUS,
    WF_MARK_RING
} wf__mark;

/* Widens to round numbers and keeps single values visible. */
void wf__plot_range(const double *values, size_t n, double *low, double *high);
void wf__plot_begin(wf__page *page, const wf__plot *plot, const char *x_label, const char *y_label,
                    const char *description);
void wf__plot_end(wf__page *page);
/* Ticks alone, for drawings with columns instead of an x axis. */
void wf__plot_y_axis(wf__page *page, const wf__plot *plot);
double wf__plot_x(const wf__plot *plot, double value);
double wf__plot_y(const wf__plot *plot, double value);
/* A mark at a place in the drawing, `size` its radius. */
void wf__plot_mark(wf__page *page, wf__mark mark, double x, double y, double size);
void wf__plot_path(wf__page *page, const wf__plot *plot, const char *class_name, const double *x,
                   const double *y, size_t n);

/* How a line of the table looks in plots. */
typedef struct wf__style {
    const char *class_name;
    wf__mark mark;
    double size;
} wf__style;
wf__style wf__style_of(const wf_report_desc *desc, int entry);

/* The parts of the page, in its order; each leaves itself out when it has nothing to show. */
void wf__report_glance(wf__page *page, const wf_report_desc *desc);
void wf__report_sweep(wf__page *page, const wf_report_desc *desc);
void wf__report_table(wf__page *page, const wf_report_desc *desc);
void wf__report_rows(wf__page *page, const wf_report_desc *desc);
void wf__report_tasks(wf__page *page, const wf_report_desc *desc);
void wf__report_domains(wf__page *page, const wf_report_desc *desc);
void wf__report_scatter(wf__page *page, const wf_report_desc *desc);
wf_status wf__report_wall(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc);
wf_status wf__report_loss(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc);
void wf__report_histograms(wf__page *page, const wf_report_desc *desc);
void wf__report_audit(wf__page *page, const wf_report_desc *desc);

/* A number with so many decimals, or a dash where it is not defined; with its deviation as a table
 * cell. */
void wf__page_number(wf__page *page, double value, int decimals);
void wf__page_spread(wf__page *page, double mean, double std, int decimals);

/* The first entry of a role; NULL when there is none. */
const wf_report_entry *wf__report_role(const wf_report_desc *desc, wf_report_role role);
/* The entry the page is about: `generated_name`, else the last generated one. */
const wf_report_entry *wf__report_subject(const wf_report_desc *desc);

/* The whole page; free it with wf__page_free, also after a failure. */
wf_status wf__report_page(wf_ctx *ctx, const wf_report_desc *desc, wf__page *page);
