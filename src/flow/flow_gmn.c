/* flow_gmn: the flow whose velocity is the graph metanetwork of models/field.h. */
#include "flow/flow_fit.h"

static void gmn_init(const void *self, uint64_t seed, float *params) {
    wf_field_init(self, seed, params);
}

static wf_status gmn_forward(wf_ctx *ctx, void *self, const float *params, const wf_batch *batch,
                             const float *w, const float *t, const float *cond, const uint8_t *drop,
                             bool keep, float *v) {
    return wf_field_forward(ctx, self, params, batch, w, t, cond, drop, keep, v);
}

static wf_status gmn_backward(wf_ctx *ctx, void *self, const float *dv, float *grad) {
    return wf_field_backward(ctx, self, dv, grad, NULL);
}

static void gmn_free(void *self) { wf_field_free(self); }

static wf_status check_params(wf_ctx *ctx, const wf_field_desc *desc, size_t params) {
    size_t needed;
    WF_TRY(wf_field_count(ctx, desc, &needed));
    if (needed == params) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "the field it describes has %zu parameters, the file stores %zu", needed,
                   params);
}

wf_status wf_velocity_gmn(wf_ctx *ctx, void *arg, const wf_field_desc *desc, size_t params,
                          wf_velocity *out) {
    (void)arg;
    if (params > 0) WF_TRY(check_params(ctx, desc, params));
    wf_field *field;
    WF_TRY(wf_field_create(ctx, desc, WF_F32, &field));
    *out = (wf_velocity){.self = field,
                         .field = field,
                         .params = wf_field_params(field),
                         .equivariant = true,
                         .init = gmn_init,
                         .forward = gmn_forward,
                         .backward = gmn_backward,
                         .free = gmn_free};
    out->tensors = wf_field_tensors(field, &out->n_tensors);
    return WF_OK;
}

wf_status wf_flow_open(wf_ctx *ctx, const char *path, wf_flow **out) {
    return wf_flow_open_with(ctx, path, wf_velocity_gmn, NULL, out);
}

wf_status wf_flow_fit(wf_ctx *ctx, const wf_source *sources, int n_sources,
                      const wf_field_desc *field, const wf_fit_desc *desc, const char *path,
                      wf_flow **out) {
    wf_field_desc defaults = wf_field_desc_default();
    return wf_flow_fit_with(ctx, sources, n_sources, field == NULL ? &defaults : field, desc, path,
                            wf_velocity_gmn, NULL, out);
}
