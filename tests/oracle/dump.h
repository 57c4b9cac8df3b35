/* What the programs that dump models for PyTorch share. */
#ifndef ORACLE_DUMP_H
#define ORACLE_DUMP_H

#include "base/status.h"
#include "nn/optim.h"
#include "nn/params.h"
#include "weft/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_tensors = 1024 };

static inline void die(wf_ctx *ctx, const char *what) {
    fprintf(stderr, "dump: %s: %s\n", what, wf_last_error(ctx));
    exit(1);
}

static inline char *read_reals(FILE *file, size_t count, size_t size) {
    char *out = calloc(count + 1, size);
    if (out == NULL || fread(out, size, count, file) != count) {
        fprintf(stderr, "dump: the input is too short\n");
        exit(1);
    }
    return out;
}

/* The optimiser a trainer would make, with constants that the tests in Python have too. */
static inline wf_optim *make_adamw(wf_ctx *ctx, const wf_field_tensor *tensors, int n,
                                   size_t params, wf_dtype dtype, double eps) {
    wf_optim_desc desc = {
        .lr = 3e-3, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = eps, .dtype = dtype};
    static wf_optim_tensor to[most_tensors];
    if (n > most_tensors) die(ctx, "too many tensors");
    for (int i = 0; i < n; i++) {
        const wf_field_tensor *from = &tensors[i];
        to[i] = (wf_optim_tensor){from->offset, from->rows, from->cols, from->matrix, from->decay};
    }
    wf_optim *optim;
    if (wf_optim_create(ctx, &desc, to, n, params, &optim) != WF_OK) die(ctx, "optimiser");
    return optim;
}

/* KEY=VALUE ... over the defaults. */
static inline void set_options(wf_ctx *ctx, const wf_setting *rows, char **settings, int n,
                               void *options) {
    wf_settings_default(rows, options);
    for (int i = 0; i < n; i++) {
        char *value = strchr(settings[i], '=');
        if (value == NULL) die(ctx, settings[i]);
        *value = '\0';
        if (wf_settings_set(ctx, rows, settings[i], value + 1, options) != WF_OK)
            die(ctx, settings[i]);
    }
}

static inline void print_tensors(const wf_field_tensor *tensors, int n) {
    for (int i = 0; i < n; i++)
        printf("%s %d %d %d\n", tensors[i].name, tensors[i].rows, tensors[i].cols,
               tensors[i].decay);
}

#endif
