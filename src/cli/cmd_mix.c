/* mix: baselines between two collections. */
#include "cli/commands.h"
#include "run/data_source.h"
#include "run/files.h"
#include "run/mixes.h"

#include <stdlib.h>
#include <string.h>

enum { most_sets = 8 };

typedef struct mix_inputs {
    wf_zoo *zoo[2];
    wf_dataset *data[most_sets];
    int n_data;
} mix_inputs;

static void print_mix(const wf_mix *mix, const wf_dataset *const *data) {
    cli_print("%-14s alpha", "");
    for (int s = 0; s < mix->n_data; s++) cli_print("  %-16.16s", data[s]->name);
    cli_print("\n");
    for (int c = 0; c < mix->curves; c++)
        for (int k = 0; k < mix->points; k++) {
            size_t place = ((size_t)c * (size_t)mix->points + (size_t)k) * (size_t)mix->n_data;
            cli_print("%-14s %5.2f", k == 0 ? mix->name[c] : "", mix->alpha[k]);
            for (int s = 0; s < mix->n_data; s++)
                cli_print("  %.4f \u00b1 %.4f ", mix->mean[place + (size_t)s],
                          mix->std[place + (size_t)s]);
            cli_print("\n");
        }
}

/* Each part of "A,B,C" through `take`. */
static wf_status each_part(wf_run_app *app, const char *list, mix_inputs *in,
                           wf_status (*take)(wf_run_app *, const char *, mix_inputs *)) {
    char *text = strdup(list), *rest = text;
    if (text == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    wf_status status = WF_OK;
    for (char *part; status == WF_OK && (part = strsep(&rest, ",")) != NULL;)
        status = take(app, part, in);
    free(text);
    return status;
}

static wf_status take_zoo(wf_run_app *app, const char *path, mix_inputs *in) {
    int n = in->zoo[0] == NULL ? 0 : 1;
    if (in->zoo[1] != NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "--zoo names more than two collections");
    return wf_zoo_open(app->ctx, path, &in->zoo[n]);
}

static wf_status take_data(wf_run_app *app, const char *name, mix_inputs *in) {
    if (in->n_data == most_sets)
        return wf__run_fail(app, WF_ERR_USAGE, "--data names more than %d sets", most_sets);
    WF_TRY(wf__run_dataset_named(app, name, in->zoo[0], &in->data[in->n_data]));
    in->n_data++;
    return WF_OK;
}

static wf_status read_mix_options(wf_run_app *app, wf_mix_desc *desc) {
    float sweeps[8];
    *desc = wf_mix_desc_default();
    wf_eval_desc eval = {.score = desc->score};
    cli_settings(app, wf_eval_settings(), &eval);
    desc->score = eval.score;
    desc->pairs = (size_t)cli_int(app, "pairs");
    desc->steps = (int)cli_int(app, "steps");
    if (cli_given(app, "seed")) desc->seed = (uint64_t)cli_int(app, "seed");
    WF_TRY(wf__run_numbers(app, "--sweeps", cli_text(app, "sweeps"), sweeps, 8, &desc->n_sweeps));
    for (int i = 0; i < desc->n_sweeps && i < 8; i++) {
        desc->sweeps[i] = (int)sweeps[i];
        if (sweeps[i] < 0 || sweeps[i] > 1e6f || sweeps[i] != (float)desc->sweeps[i])
            return wf__run_fail(app, WF_ERR_USAGE,
                                "--sweeps is %s; write whole numbers from 0, as 0,1,5,50",
                                cli_text(app, "sweeps"));
    }
    return WF_OK;
}

static wf_status mix_two(wf_run_app *app, mix_inputs *in, wf_mix *mix) {
    wf_mix_desc desc;
    WF_TRY(read_mix_options(app, &desc));
    WF_TRY(each_part(app, cli_text(app, "zoo"), in, take_zoo));
    if (in->zoo[1] == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "--zoo names one collection; give two, as A,B");
    WF_TRY(each_part(app, cli_text(app, "data"), in, take_data));
    const wf_dataset *const *data = (const wf_dataset *const *)in->data;
    WF_TRY(wf_eval_mix(app->ctx, in->zoo[0], in->zoo[1], data, in->n_data, &desc, mix));
    if (app->json) return cli_print_json(app, wf__run_mix_to_json(mix, data));
    print_mix(mix, data);
    return WF_OK;
}

wf_status cli_mix(wf_run_app *app) {
    if (cli_text(app, "zoo") == NULL || cli_text(app, "data") == NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "weft mix needs --zoo A,B and --data SET[,SET...]");
    mix_inputs in = {0};
    wf_mix mix = {0};
    wf_status status = mix_two(app, &in, &mix);
    wf_mix_free(&mix);
    for (int i = 0; i < in.n_data; i++) wf_dataset_free(in.data[i]);
    wf_zoo_free(in.zoo[0]);
    wf_zoo_free(in.zoo[1]);
    return status;
}
