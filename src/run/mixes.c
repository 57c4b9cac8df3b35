/* mixes: see mixes.h. */
#include "run/mixes.h"

json_t *wf__run_mix_to_json(const wf_mix *mix, const wf_dataset *const *data) {
    json_t *curves = json_array(), *names = json_array();
    for (int s = 0; s < mix->n_data; s++) json_array_append_new(names, json_string(data[s]->name));
    for (int c = 0; c < mix->curves; c++) {
        json_t *points = json_array();
        for (int k = 0; k < mix->points; k++) {
            json_t *mean = json_array(), *std = json_array();
            size_t place = ((size_t)c * (size_t)mix->points + (size_t)k) * (size_t)mix->n_data;
            for (int s = 0; s < mix->n_data; s++) {
                json_array_append_new(mean, wf__run_json_number(mix->mean[place + (size_t)s]));
                json_array_append_new(std, wf__run_json_number(mix->std[place + (size_t)s]));
            }
            json_array_append_new(points, json_pack("{s:f, s:o, s:o}", "alpha", mix->alpha[k],
                                                    "mean", mean, "std", std));
        }
        json_array_append_new(curves,
                              json_pack("{s:s, s:o}", "name", mix->name[c], "points", points));
    }
    return json_pack("{s:o, s:o}", "data", names, "curves", curves);
}
