/* A whole generator with one setting: uniform noise about the mean of its collection, coordinate by
 * coordinate. It uses the public headers alone. */
#ifndef TOY_GENERATOR_H
#define TOY_GENERATOR_H

#include "weft/weft.h"

#include <math.h>
#include <stdlib.h>

typedef struct toy {
    double spread; /* the setting */
    const wf_zoo *zoo;
} toy;

/* clang-format off */
static const wf_setting toy_rows[] = {
    WF_SETTING_ROW(toy, "model", "toy.", REAL, spread, "spread", "1", FROM(0, 100), TRAINING,
                   CONFIG, "noise in standard deviations of each coordinate")
    {0}};
/* clang-format on */

static const wf_setting *toy_settings(void) { return toy_rows; }

static wf_status toy_open(wf_ctx *ctx, const wf_generator_kind *kind,
                          const wf_generator_open_desc *desc, void **self) {
    (void)ctx, (void)kind;
    toy *own = malloc(sizeof *own);
    if (own == NULL) return WF_ERR_MEMORY;
    *own = *(const toy *)desc->options;
    own->zoo = desc->zoo;
    *self = own;
    return WF_OK;
}

static const wf_graph *toy_graph(const void *self) {
    return wf_zoo_graph(((const toy *)self)->zoo);
}

static wf_status toy_sample(wf_ctx *ctx, void *self, const wf_generator_request *request) {
    const toy *own = self;
    size_t p = request->graph->n_params, count = wf_zoo_count(own->zoo);
    float *all;
    wf_status status = wf_zoo_load(ctx, own->zoo, 0, count, &all);
    if (status != WF_OK) return status;
    for (size_t i = 0; i < p; i++) {
        double sum = 0, squares = 0, n = (double)count;
        for (size_t k = 0; k < count; k++) sum += all[k * p + i];
        for (size_t k = 0; k < count; k++) squares += pow(all[k * p + i] - sum / n, 2);
        for (size_t k = 0; k < request->n; k++) { /* network k has a stream for each coordinate */
            wf_rng rng = wf_rng_at(request->sample->seed, (uint32_t)k, WF_RNG_TEST, (uint32_t)i);
            double noise = sqrt(12) * ((double)wf_rng_uniform(&rng) - 0.5); /* of unit variance */
            request->weights[k * p + i] =
                (float)(sum / n + own->spread * sqrt(squares / n) * noise);
        }
    }
    free(all);
    return WF_OK;
}

static const wf_generator_kind toy_generator = {.name = "toy",
                                                .about = "noise about the collection's mean",
                                                .traits = WF_GENERATOR_KEEPS_COLLECTION,
                                                .settings = toy_settings,
                                                .options_size = sizeof(toy),
                                                .parameter = "spread",
                                                .open = toy_open,
                                                .sample = toy_sample,
                                                .free = free,
                                                .graph = toy_graph};

#endif
