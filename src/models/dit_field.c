/* dit_field: a diffusion transformer over tokens, pieces of the flat vector of a network's
 * parameters with zeros after the last.
 *
 *   x = in token + position;  z = SiLU(time(t))
 *   for each block
 *     x += gate * attention(LN(x) (1 + scale) + shift)
 *     x += gate' * mlp(LN(x) (1 + scale') + shift')
 *   v = out (LN(x) (1 + scale) + shift)
 * Shifts, scales and gates are affine maps of z, which has the width of the time embedding.
 * Positions are learned. The mlp has tanh-GELU and four times the width. The maps of z and `out`
 * start as zeros, so that blocks start as the identity and the field at zero. */
#include "models/field_kinds.h"
#include "models/net_field.h"

typedef struct dit_options {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "models/dit.def"
} dit_options;

static const wf_setting rows[] = {
#define SETTING(...) WF_SETTING_ROW(dit_options, "model", "field.", __VA_ARGS__)
#include "models/dit.def"
    {0}};
static const wf_setting *settings(void) { return rows; }

static void walk(wf_net *net, const void *options, const wf_net_inputs *in) {
    static const wf_layer_options zero = {.init = WF_INIT_ZERO}, plain = {.init = WF_INIT_XAVIER};
    static const wf_layer_options matrix = {.init = WF_INIT_XAVIER, .matrix = true};
    static const wf_layer_options narrow = {.init = WF_INIT_NORMAL, .std = 0.02};
    const dit_options *o = options;
    wf_tape *tape = net->tape;
    int width = o->width, tokens = (in->params - 1) / o->token + 1;
    const uint32_t *network = wf_net_sequences(net, in->networks, tokens);
    const uint32_t *place = wf_net_places(net, in->networks, tokens);
    wf_tensor *z = wf_layer_time(net, "time", in->t, o->time, narrow);
    z = wf_activation_op(tape, z, WF_TAPE_ACT_SILU);
    wf_tensor *x = wf_to_tokens(tape, in->w, tokens, o->token, NULL);
    x = wf_layer_linear(net, "in", x, width, plain);
    wf_tensor *positions = wf_layer_table(net, "positions", tokens, width, 0.02);
    x = wf_add_table(tape, x, positions, 0, place);
    for (int k = 0; k < o->blocks; k++) {
        wf_net_scope(net, "blocks.%d.", k);
        wf_tensor *modulation = wf_layer_linear(net, "modulation", z, 6 * width, zero);
        wf_tensor *y = wf_norm_op(tape, x, modulation, 0, network);
        y = wf_layer_attention(net, "attention", y, o->heads, tokens, matrix, matrix);
        x = wf_gated_residual(tape, x, y, modulation, 2 * width, network);
        y = wf_norm_op(tape, x, modulation, 3 * width, network);
        y = wf_layer_mlp(net, "mlp", y, 4 * width, width, WF_TAPE_ACT_GELU, matrix);
        x = wf_gated_residual(tape, x, y, modulation, 5 * width, network);
    }
    wf_net_scope(net, NULL);
    wf_tensor *modulation = wf_layer_linear(net, "modulation", z, 2 * width, zero);
    x = wf_norm_op(tape, x, modulation, 0, network);
    x = wf_layer_linear(net, "out", x, o->token, zero);
    wf_from_tokens(tape, x, tokens, in->params, NULL, in->v);
}

static wf_status create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                        const wf_graph *graph, wf_dtype dtype, size_t params, wf_field **out) {
    const dit_options *o = options;
    *out = NULL;
    WF_TRY(wf_settings_check(ctx, rows, o));
    WF_TRY(wf_layer_check_time(ctx, o->time));
    WF_TRY(wf_layer_check_heads(ctx, o->width, o->heads));
    return wf__net_field_create(ctx, kind, o, graph, dtype, params, o->seed, false, walk, out);
}

const wf_field_kind wf__field_dit = {
    .name = "dit",
    .about = "flow whose field is a transformer over pieces of the flat parameters; one "
             "architecture",
    .settings = settings,
    .options_size = sizeof(dit_options),
    .create = create,
    WF_NET_FIELD_FUNCTIONS};
