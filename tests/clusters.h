/* A small data set for tests that train networks. */
#ifndef CLUSTERS_H
#define CLUSTERS_H

#include "base/random.h"
#include "weft/data.h"

#include <stdlib.h>
#include <string.h>

/* Gaussian clusters, one a class, that overlap. */
static inline wf_dataset *data_of(int inputs, int classes, size_t n_train, size_t n_test) {
    wf_dataset *data = calloc(1, sizeof *data);
    strcpy(data->name, "clusters");
    data->inputs = inputs;
    data->classes = classes;
    data->n_train = n_train;
    data->n_test = n_test;
    size_t n = n_train + n_test, width = (size_t)inputs;
    float *x = malloc(n * width * sizeof *x);
    int32_t *y = malloc(n * sizeof *y);
    wf_rng noise = wf_rng_at(7, 0, WF_RNG_TEST, 0), centre = wf_rng_at(7, 0, WF_RNG_TEST, 1);
    float *centres = malloc((size_t)classes * width * sizeof *centres);
    wf_rng_normals(&centre, centres, (size_t)classes * width);
    wf_rng_normals(&noise, x, n * width);
    for (size_t i = 0; i < n; i++) {
        y[i] = (int32_t)(i % (size_t)classes);
        for (size_t j = 0; j < width; j++) x[i * width + j] += centres[(size_t)y[i] * width + j];
    }
    free(centres);
    data->x_train = x;
    data->y_train = y;
    data->x_test = x + n_train * width;
    data->y_test = y + n_train;
    return data;
}

static inline void data_free(wf_dataset *data) {
    free(data->x_train);
    free(data->y_train);
    free(data);
}

#endif
