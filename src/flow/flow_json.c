/* flow_json: all that a flow says of itself. */
#include "base/settings_json.h"
#include "flow/checkpoint.h"

static json_t *source_json(const wf_flow *flow, int index) {
    wf_flow_source source = wf_flow_source_at(flow, index);
    json_t *cond = source.cond == NULL ? json_null() : json_array();
    for (int k = 0; source.cond != NULL && k < wf_flow_cond_size(flow); k++)
        json_array_append_new(cond, wf__json_real((double)source.cond[k]));
    return json_pack("{s:s, s:s, s:I, s:o, s:s, s:s, s:s, s:s, s:s}", "task", source.task, "arch",
                     source.graph->text, "count", (json_int_t)source.count, "cond", cond, "tests",
                     source.tests, "data", source.data, "path", source.path, "scale", source.scale,
                     "classes", source.classes);
}

wf_status wf_flow_json(wf_ctx *ctx, const wf_flow *flow, char **out) {
    json_t *sources = json_array();
    bool good = sources != NULL;
    for (int i = 0; good && i < wf_flow_sources(flow); i++)
        good = json_array_append_new(sources, source_json(flow, i)) == 0;
    const wf_setting *rows = flow->field->kind->settings();
    return wf__json_answer(
        ctx,
        json_pack("{s:s, s:I, s:I, s:i, s:o, s:o, s:o}", "generator", wf_flow_generator(flow),
                  "params", (json_int_t)wf_flow_params(flow), "updates",
                  (json_int_t)wf_flow_updates(flow), "cond_size", wf_flow_cond_size(flow), "model",
                  wf__settings_object(rows, wf_flow_options(flow)), "train",
                  wf__settings_object(wf_fit_settings(), wf_flow_trained_with(flow)), "sources",
                  good ? sources : NULL),
        out);
}
