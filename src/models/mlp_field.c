/* mlp_field: a residual MLP over the flat vector of a network's parameters.
 *
 *   h = in w;  h += block_k(h) for each block;  v = out h
 *   block_k(h) = l2 SiLU(l1 (LN(h) (1 + scale) + shift)),  [shift, scale] = modulation_k(time(t))
 * Layer norm has no affine part; blocks have no gates. `out`, l2 and the modulations start as
 * zeros, so that the field starts at zero. */
#include "models/field_kinds.h"
#include "models/net_field.h"

typedef struct mlp_options {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "models/mlp.def"
} mlp_options;

static const wf_setting rows[] = {
#define SETTING(...) WF_SETTING_ROW(mlp_options, "model", "field.", __VA_ARGS__)
#include "models/mlp.def"
    {0}};
static const wf_setting *settings(void) { return rows; }

static void walk(wf_net *net, const void *options, const wf_net_inputs *in) {
    static const wf_layer_options plain = {.init = WF_INIT_TORCH}, zero = {.init = WF_INIT_ZERO};
    static const wf_layer_options matrix = {.init = WF_INIT_TORCH, .matrix = true};
    static const wf_layer_options last = {.init = WF_INIT_ZERO, .matrix = true};
    const mlp_options *o = options;
    wf_tape *tape = net->tape;
    const uint32_t *each = wf_net_sequences(net, in->networks, 1);
    wf_tensor *time = wf_layer_time(net, "time", in->t, o->time, plain);
    wf_tensor *h = wf_layer_linear(net, "in", in->w, o->width, plain);
    for (int k = 0; k < o->blocks; k++) {
        wf_net_scope(net, "blocks.%d.", k);
        wf_tensor *modulation = wf_layer_linear(net, "modulation", time, 2 * o->width, zero);
        wf_tensor *x = wf_norm_op(tape, h, modulation, 0, each);
        x = wf_activation_op(tape, wf_layer_linear(net, "0", x, o->width, matrix),
                             WF_TAPE_ACT_SILU);
        x = wf_layer_linear(net, "2", x, o->width, last);
        h = wf_residual(tape, h, x, NULL, 0, NULL);
    }
    wf_net_scope(net, NULL);
    h = wf_layer_linear(net, "out", h, in->params, zero);
    wf_from_tokens(tape, h, 1, in->params, NULL, in->v);
}

static wf_status create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                        const wf_graph *graph, wf_dtype dtype, size_t params, wf_field **out) {
    const mlp_options *o = options;
    *out = NULL;
    WF_TRY(wf_settings_check(ctx, rows, o));
    WF_TRY(wf_layer_check_time(ctx, o->time));
    return wf__net_field_create(ctx, kind, o, graph, dtype, params, o->seed, false, walk, out);
}

const wf_field_kind wf__field_mlp = {
    .name = "mlp",
    .about = "flow whose field is a residual MLP over the flat parameters; one architecture",
    .settings = settings,
    .options_size = sizeof(mlp_options),
    .create = create,
    WF_NET_FIELD_FUNCTIONS};
