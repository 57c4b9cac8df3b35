/* dwf_field: the velocity network of DeepWeightFlow, an MLP over the flat vector of a network's
 * parameters and its time.
 *
 *   h = [w | time(t)];  time(t) = lin GELU(lin t), of t itself
 *   h = dropout GELU(LN(lin h)) of `width`, then of width / 2
 *   h = GELU(LN(lin h)) of `width`;  v = lin h
 * Layer norms have an affine part. The last layer starts as zeros, so that the field starts at
 * zero. Inside, all weights of a network come before all of its biases. */
#include "models/field_kinds.h"
#include "models/net_field.h"

typedef struct dwf_options {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "models/dwf.def"
} dwf_options;

static const wf_setting rows[] = {
#define SETTING(...) WF_SETTING_ROW(dwf_options, "model", "field.", __VA_ARGS__)
#include "models/dwf.def"
    {0}};
static const wf_setting *settings(void) { return rows; }

static void walk(wf_net *net, const void *options, const wf_net_inputs *in) {
    static const wf_layer_options plain = {.init = WF_INIT_TORCH}, zero = {.init = WF_INIT_ZERO};
    static const wf_layer_options matrix = {.init = WF_INIT_TORCH, .matrix = true};
    const dwf_options *o = options;
    const int widths[] = {o->width, o->width / 2, o->width};
    wf_tape *tape = net->tape;
    wf_tensor *time =
        wf_layer_mlp(net, "time", in->t, o->time, o->time, WF_TAPE_ACT_GELU_ERF, plain);
    wf_tensor *w = wf_to_tokens(tape, in->w, 1, in->params, in->weights_first);
    wf_tensor *h = wf_concat(tape, (wf_tensor *[]){w, time}, 2);
    for (int k = 0; k < 3; k++) {
        wf_net_scope(net, "layers.%d.", k);
        h = wf_layer_linear(net, "linear", h, widths[k], k == 0 ? plain : matrix);
        h = wf_layer_layer_norm(net, "norm", h, true, 1e-5);
        h = wf_activation_op(tape, h, WF_TAPE_ACT_GELU_ERF);
        if (k < 2) h = wf_layer_dropout(net, h, o->dropout);
    }
    wf_net_scope(net, NULL);
    h = wf_layer_linear(net, "out", h, in->params, zero);
    wf_from_tokens(tape, h, 1, in->params, in->weights_first, in->v);
}

static wf_status create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                        const wf_graph *graph, wf_dtype dtype, size_t params, wf_field **out) {
    const dwf_options *o = options;
    *out = NULL;
    WF_TRY(wf_settings_check(ctx, rows, o));
    return wf__net_field_create(ctx, kind, o, graph, dtype, params, o->seed, true, walk, out);
}

/* clang-format off */
#define SHARED                                                                                     \
    .settings = settings, .options_size = sizeof(dwf_options), .create = create,                   \
    WF_NET_FIELD_FUNCTIONS
/* clang-format on */

const wf_field_kind wf__field_dwf = {
    .name = "dwf",
    .about = "flow whose field is DeepWeightFlow's MLP over the flat parameters; one architecture",
    SHARED};
const wf_field_kind wf__field_dwf_aligned = {.name = "dwf-aligned",
                                             .about = "dwf, fitted to an aligned collection",
                                             .traits = WF_GENERATOR_WANTS_ALIGNED,
                                             SHARED};
