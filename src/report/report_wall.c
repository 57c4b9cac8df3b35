/* report_wall: for data in the plane, what networks decide: one small picture each, trained ones
 * beside generated ones. A pixel has the colour of the class the network picks there, paler where
 * it is less sure. */
#include "base/status.h"
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { side = 76, task_side = 236 };

static const uint8_t class_colour[][3] = {{214, 84, 92},  {52, 120, 184}, {232, 164, 52},
                                          {62, 148, 108}, {132, 98, 172}, {120, 120, 120}};
enum { n_colours = sizeof class_colour / sizeof class_colour[0] };

typedef struct view {
    double x_low, y_low, range; /* a square window over the data */
} view;

static view fit_view(const wf_dataset *data) {
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (size_t i = 0; i < data->n_train; i++)
        for (int k = 0; k < 2; k++) {
            low[k] = fmin(low[k], data->x_train[2 * i + (size_t)k]);
            high[k] = fmax(high[k], data->x_train[2 * i + (size_t)k]);
        }
    double range = fmax(high[0] - low[0], high[1] - low[1]);
    if (!(range > 0)) range = 1;
    range *= 1.08;
    return (view){0.5 * (low[0] + high[0] - range), 0.5 * (low[1] + high[1] - range), range};
}

/* Places of the pixels as inputs (side*side, 2); row 0 is the top. */
static void pixel_inputs(const view *v, float *x) {
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++) {
            *x++ = (float)(v->x_low + v->range * (column + 0.5) / side);
            *x++ = (float)(v->y_low + v->range * (side - row - 0.5) / side);
        }
}

static void paint(const float *logits, int classes, uint8_t pixel[3]) {
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (logits[c] > logits[best]) best = c;
    double sum = 0;
    for (int c = 0; c < classes; c++) sum += exp((double)logits[c] - logits[best]);
    double chance = 1.0 / classes, sure = (1 / sum - chance) / (1 - chance);
    double strength = 0.22 + 0.78 * fmin(1, fmax(0, sure));
    for (int k = 0; k < 3; k++)
        pixel[k] = (uint8_t)(255 + strength * (class_colour[best % n_colours][k] - 255) + 0.5);
}

typedef struct wall_scratch {
    float *x, *logits;
    uint8_t *rgb;
} wall_scratch;

static wf_status draw_network(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc,
                              const float *w, const char *title, wall_scratch *scratch) {
    size_t pixels = (size_t)side * side;
    int classes = desc->graph->outputs;
    WF_TRY(wf_graph_forward(ctx, desc->graph, w, scratch->x, pixels, scratch->logits));
    for (size_t i = 0; i < pixels; i++)
        paint(scratch->logits + i * (size_t)classes, classes, scratch->rgb + 3 * i);
    wf__page_picture(page, scratch->rgb, side, side, title);
    return WF_OK;
}

static wf_status draw_side(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc,
                           const float *weights, size_t n, const char *kind,
                           wall_scratch *scratch) {
    size_t shown = n < (size_t)desc->wall ? n : (size_t)desc->wall;
    wf__page_add(page, "<figure><figcaption>%zu ", shown);
    wf__page_escaped(page, kind);
    wf__page_add(page, " networks</figcaption><div class=\"wall\">");
    for (size_t i = 0; i < shown; i++) {
        char title[96];
        snprintf(title, sizeof title, "%.60s network %zu", kind, i);
        WF_TRY(draw_network(ctx, page, desc, weights + i * desc->graph->n_params, title, scratch));
    }
    wf__page_add(page, "</div></figure>");
    return WF_OK;
}

static void draw_task(wf__page *page, const wf_dataset *data, const view *v) {
    enum { most = 900 };
    wf__page_add(page,
                 "<figure class=\"task\"><figcaption>The task</figcaption><svg viewBox=\"0 0 %d "
                 "%d\" role=\"img\" "
                 "aria-label=\"The training examples\">",
                 task_side, task_side);
    size_t stride = (data->n_train + most - 1) / most;
    for (size_t i = 0; i < data->n_train; i += stride) {
        const uint8_t *colour = class_colour[data->y_train[i] % n_colours];
        wf__page_add(page, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"1.7\" fill=\"#%02x%02x%02x\"/>",
                     task_side * (data->x_train[2 * i] - v->x_low) / v->range,
                     task_side * (1 - (data->x_train[2 * i + 1] - v->y_low) / v->range), colour[0],
                     colour[1], colour[2]);
    }
    wf__page_add(page, "</svg></figure>");
}

static wf_status draw_wall(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc,
                           wall_scratch *scratch) {
    view v = fit_view(desc->data);
    pixel_inputs(&v, scratch->x);
    wf__page_add(page, "<section id=\"decisions\"><h2>What they decide</h2><div class=\"walls\">");
    draw_task(page, desc->data, &v);
    WF_TRY(draw_side(ctx, page, desc, desc->trained, desc->n_trained, "trained", scratch));
    WF_TRY(draw_side(ctx, page, desc, desc->generated, desc->n_generated, "generated", scratch));
    wf__page_add(page, "</div><p class=\"note\">Each square is one network&#39;s decision over the "
                       "plane, paler where it "
                       "is less sure. The first of each kind, not the best.</p></section>\n");
    return WF_OK;
}

wf_status wf__report_wall(wf_ctx *ctx, wf__page *page, const wf_report_desc *desc) {
    const wf_dataset *data = desc->data;
    if (data == NULL || desc->graph == NULL || data->inputs != 2 || desc->graph->inputs != 2 ||
        desc->wall <= 0 || desc->trained == NULL || desc->generated == NULL || data->n_train == 0)
        return WF_OK;
    size_t pixels = (size_t)side * side;
    wall_scratch scratch = {0};
    wf_status status = wf_alloc(ctx, pixels, 2 * sizeof(float), "decision regions", &scratch.x);
    if (status == WF_OK)
        status = wf_alloc(ctx, pixels * (size_t)desc->graph->outputs, sizeof(float),
                          "decision regions", &scratch.logits);
    if (status == WF_OK) status = wf_alloc(ctx, pixels, 3, "decision regions", &scratch.rgb);
    if (status == WF_OK) status = draw_wall(ctx, page, desc, &scratch);
    free(scratch.x);
    free(scratch.logits);
    free(scratch.rgb);
    return status;
}
