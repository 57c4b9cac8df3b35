/* mixes: curves between two collections as JSON. */
#pragma once

#include "run/run_app.h"
#include "weft/eval.h"

/* {"data": [names], "curves": [{"name", "points": [{"alpha", "mean": [..], "std": [..]}]}]} */
json_t *wf__run_mix_to_json(const wf_mix *mix, const wf_dataset *const *data);
