/* weft/plan.h: how to fit a flow to a collection in a given time.
 *
 *     wf_plan plan;
 *     wf_plan_fit(ctx, zoo, 5, &plan);             five minutes on this machine
 *     wf_source source = {.zoo = zoo};
 *     wf_flow_fit(ctx, &source, 1, &plan.field, &plan.fit, "flow.safetensors", &flow);
 *     wf_flow_sample(ctx, flow, wf_zoo_graph(zoo), NULL, 100, &plan.sample, weights, NULL, NULL);
 *
 * The speed is measured: real updates of the planned flow run for a second or two, including
 * matching, optimiser and validation. On a busy machine the plan is smaller. Two calls may measure
 * different speeds and plan different flows; to get the same flow again, keep the plan. `weft fit`
 * writes it as a recipe. weft/weft.h says who owns what and what NULL means where a comment does
 * not. */
#ifndef WEFT_PLAN_H
#define WEFT_PLAN_H

#include "weft/flow.h"

WF_BEGIN_C

typedef struct wf_plan {
    wf_field_desc field; /* of the generator gmn */
    wf_fit_desc fit;
    wf_sample_desc sample;
    size_t networks;       /* that train; fit.set_aside more are kept for validation */
    size_t field_params;   /* trainable parameters of the field */
    double seconds;        /* estimate of the training */
    double update_seconds; /* measured */
    bool few_networks;     /* fewer than WF_PLAN_FEW */
    bool short_time;       /* even the smallest field gets fewer updates than it needs */
} wf_plan;

enum { WF_PLAN_FEW = 30 };
#define WF_PLAN_MINUTES 5.0          /* where a user says nothing */
#define WF_PLAN_SCRATCH ".weft_plan" /* how its temporary folder begins: wf_scratch_sweep */

/* Plan a fit of `zoo`, on the context's device.
 * zoo      borrowed; its first networks are trained on for a moment, in a temporary folder
 *          (TMPDIR, else /tmp), which is removed.
 * minutes  of training, above 0; 0: WF_PLAN_MINUTES.
 * out      filled; it owns nothing.
 * Warns through the context where there is too little time; the fit itself warns of few networks.
 * Progress and warnings of the measurement are not reported.
 * Returns WF_OK, WF_ERR_USAGE (minutes), WF_ERR_INPUT (values that are not finite, a damaged file),
 * WF_ERR_INTERRUPTED, WF_ERR_DISK, WF_ERR_MEMORY, or what else wf_flow_fit() returns. */
WF_API wf_status wf_plan_fit(wf_ctx *ctx, const wf_zoo *zoo, double minutes, wf_plan *out);
/* The same as JSON: {"generator": "gmn", "model", "train", "sample": settings, "networks",
 * "set_aside", "field_params", "seconds", "update_seconds", "few_networks", "short_time"}. "model"
 * and "train" are what wf_generator_fit_json() takes, "sample" what wf_generator_sample_json()
 * takes. wf_free(*out).
 * Returns what wf_plan_fit() returns; *out is then NULL. */
WF_API wf_status wf_plan_json(wf_ctx *ctx, const wf_zoo *zoo, double minutes, char **out);
/* The plan as a recipe that `weft train` and `weft run` take: what was chosen, with the reason
 * after each key. zoo: path of the collection, for [zoo]; data: lines of a [data] section, or
 * NULL. wf_free(*out). Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_plan_recipe(wf_ctx *ctx, const wf_plan *plan, const char *zoo, const char *data,
                                char **out);

WF_END_C

#endif
