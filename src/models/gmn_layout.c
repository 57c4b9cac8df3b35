/* gmn_layout: the list of parameters. Counts are pinned by tests/unit/test_field.c. */
#include "models/gmn_layout.h"

#include "nn/layers.h"
#include "weft/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { tensors_outside = 64, tensors_per_block = 40 };

#define SETTINGS_OF wf_field
#define SETTINGS_SECTION "model"
#define SETTINGS_META "field."
#define SETTINGS_DEF "weft/field.def"
#include "base/settings_table.h"

gmn_columns wf__gmn_columns(const wf_field_desc *desc) {
    int parts = desc->layout == WF_LAYOUT_LEAN ? 3 : 2;
    gmn_columns columns = {.edge = parts * desc->node};
    columns.global = columns.edge + parts * desc->edge;
    columns.width = columns.global + parts * desc->edge;
    return columns;
}

int wf__gmn_kernels(const wf_field_desc *desc, int out[WF_KERNELS]) {
    const int sizes[WF_KERNELS] = {desc->max_coef > 1 ? desc->max_coef : 0, desc->kernel_2,
                                   desc->kernel_3, desc->kernel_4};
    int n = 0;
    while (n < WF_KERNELS && sizes[n] > 0) {
        out[n] = sizes[n];
        n++;
    }
    return n;
}

/* Sizes follow one another without a gap, and none stands twice. */
static wf_status check_kernels(wf_ctx *ctx, const wf_field_desc *desc) {
    int kernels[WF_KERNELS], n = wf__gmn_kernels(desc, kernels);
    const int rest[WF_KERNELS] = {0, desc->kernel_2, desc->kernel_3, desc->kernel_4};
    for (int k = 0; k < WF_KERNELS; k++) {
        bool twice = k < n && kernels[k] == 1;
        for (int j = 0; j < k && k < n; j++) twice = twice || kernels[j] == kernels[k];
        if (twice || (k >= n && rest[k] != 0))
            return wf_fail(ctx, WF_ERR_INPUT,
                           "field: the sizes of kernels %d, %d, %d, %d are not a list of different "
                           "ones",
                           desc->max_coef, desc->kernel_2, desc->kernel_3, desc->kernel_4);
    }
    return WF_OK;
}

static wf_status check(wf_ctx *ctx, const wf_field_desc *desc) {
    WF_TRY(wf_settings_check(ctx, wf_field_rows, desc));
    WF_TRY(wf_layer_check_time(ctx, desc->time));
    if (desc->encoder == WF_ENCODER_FOURIER && desc->edge % 2 != 0)
        return wf_fail(ctx, WF_ERR_USAGE, "model.edge is %d; Fourier features need an even one",
                       desc->edge);
    WF_TRY(check_kernels(ctx, desc));
    if ((desc->cond == WF_COND_NONE) != (desc->cond_size == 0))
        return wf_fail(ctx, WF_ERR_USAGE, "model.cond_size is %d, but model.cond is %s",
                       desc->cond_size, wf_cond_kind_names[desc->cond]);
    return WF_OK;
}

typedef struct builder {
    gmn_layout *layout;
    char prefix[32]; /* "blocks.3." */
} builder;

static int add(builder *b, const char *name, int rows, int cols, wf_start start, double spread) {
    gmn_layout *layout = b->layout;
    int index = layout->count++;
    wf_field_tensor *tensor = &layout->tensors[index];
    wf_text full = wf_text_start(tensor->name, sizeof tensor->name);
    wf_text_add(&full, "%s%s", b->prefix, name);
    tensor->offset = layout->params;
    tensor->rows = rows;
    tensor->cols = cols;
    layout->params += (size_t)rows * (size_t)cols;
    tensor->start = start;
    tensor->spread = spread;
    return index;
}

/* An affine layer from operands of these widths; suffixes name them, NULL when there is one. zero:
 * weights and bias start as zeros, else uniform like PyTorch's. matrix: Muon's, of the blocks. */
typedef struct affine_desc {
    const char *name;
    int out;
    int in[4];
    const char *suffix[4];
    bool zero, matrix, no_bias;
} affine_desc;

static gmn_affine add_affine(builder *b, affine_desc desc) {
    gmn_affine affine = {{-1, -1, -1, -1}, -1};
    int fan_in = desc.in[0] + desc.in[1] + desc.in[2] + desc.in[3];
    double bound = 1 / sqrt((double)fan_in);
    wf_start start = desc.zero ? WF_START_ZERO : WF_START_UNIFORM;
    char name[48];
    for (int k = 0; k < 4 && desc.in[k] > 0; k++) {
        const char *suffix = desc.suffix[k];
        snprintf(name, sizeof name, "%s.weight%s%s", desc.name, suffix ? "_" : "",
                 suffix ? suffix : "");
        affine.weight[k] = add(b, name, desc.out, desc.in[k], start, bound);
        b->layout->tensors[affine.weight[k]].matrix = desc.matrix;
        b->layout->tensors[affine.weight[k]].decay = true;
    }
    if (desc.no_bias) return affine;
    snprintf(name, sizeof name, "%s.bias", desc.name);
    affine.bias = add(b, name, desc.out, 1, start, bound);
    return affine;
}

/* sin(a x + b): slopes are standard normal, so that codes vary over the scale of normalised
 * weights; phases uniform. */
static gmn_affine add_sine(builder *b, const char *name, int out, int in, bool linear) {
    gmn_affine affine = {{-1, -1, -1, -1}, -1};
    char full[48];
    snprintf(full, sizeof full, "%s.weight", name);
    affine.weight[0] = add(b, full, out, in, WF_START_NORMAL, 1 / sqrt((double)in));
    snprintf(full, sizeof full, "%s.bias", name);
    affine.bias = add(b, full, out, 1, WF_START_UNIFORM, linear ? 1 : 3.141592653589793);
    return affine;
}

/* Tensors of the first size have the name that they had when there was one alone. */
static const char *kernel_name(const char *name, const gmn_layout *l, int k, const char *tail,
                               char out[48]) {
    if (k == 0) snprintf(out, 48, "%s%s", name, tail);
    else snprintf(out, 48, "%s_%d%s", name, l->kernels[k], tail);
    return out;
}

static gmn_affine add_plain(builder *b, const char *name, int out, int in) {
    return add_affine(b, (affine_desc){name, out, .in = {in}});
}

static void add_conditions(builder *b, const wf_field_desc *d) {
    gmn_layout *l = b->layout;
    l->cond_null = -1;
    if (d->cond == WF_COND_NONE) return;
    l->cond[0] = add_plain(b, "cond.0", d->time, d->cond_size);
    if (d->cond == WF_COND_MLP) {
        l->cond[1] = add_plain(b, "cond.2", d->time, d->time);
        l->fuse = add_affine(
            b, (affine_desc){"fuse", d->time, {d->time, d->time}, .suffix = {"time", "cond"}});
    }
    l->cond_null = add(b, "cond.null", d->time, 1, WF_START_NORMAL, 0.02);
}

/* Tables start about as large as a sine. */
static void add_encoders(builder *b, const wf_field_desc *d) {
    gmn_layout *l = b->layout;
    int dn = d->node, de = d->edge;
    l->node_layer = add_sine(b, "node_encoder.layer", dn, 1, false);
    l->node_order = add_sine(b, "node_encoder.order", dn, 1, false);
    l->node_type = add(b, "node_encoder.type", GMN_NODE_TYPES, dn, WF_START_NORMAL, 0.5);
    l->node_projection = add_affine(
        b, (affine_desc){
               "node_encoder.projection", dn, {dn, dn, dn}, .suffix = {"layer", "order", "type"}});
    if (d->encoder != WF_ENCODER_FOURIER) {
        bool linear = d->encoder == WF_ENCODER_SCALAR;
        l->edge_value = add_sine(b, "edge_encoder.value", de, 1, linear);
        for (int k = 0; k < l->n_kernels; k++) {
            char name[48];
            l->edge_kernel[k] = add_sine(b, kernel_name("edge_encoder.kernel", l, k, "", name), de,
                                         l->kernels[k], linear);
        }
        l->edge_layer = add_sine(b, "edge_encoder.layer", de, 1, false);
        l->edge_position = add_sine(b, "edge_encoder.position", de, GMN_POSITION, false);
    }
    l->edge_type = add(b, "edge_encoder.type", GMN_EDGE_TYPES, de, WF_START_NORMAL, 0.5);
    l->edge_projection =
        add_affine(b, (affine_desc){"edge_encoder.projection",
                                    de,
                                    {de, de, de, de},
                                    .suffix = {"value", "layer", "type", "position"}});
    l->global_start = add(b, "global_start", de, 1, WF_START_NORMAL, 1);
    if (d->fold_rows > 0) l->fold_encoder = add_plain(b, "fold_encoder", dn, d->fold_rows);
}

static gmn_affine add_matrix(builder *b, const char *name, int out, int in, bool zero) {
    return add_affine(b, (affine_desc){name, out, {in}, .zero = zero, .matrix = true});
}

static void add_lean_block(builder *b, const wf_field_desc *d, gmn_block_layout *k) {
    int dn = d->node, de = d->edge, dg = d->edge;
    k->edge[0] = add_affine(
        b, (affine_desc){"edge.0", 4 * de, {de, dn, dn, dg}, {"e", "d", "s", "u"}, .matrix = true});
    k->edge[1] = add_matrix(b, "edge.2", de, 2 * de, true);
    affine_desc message = {.out = dn, .in = {2 * de}, .matrix = true, .no_bias = true};
    message.name = "msg.forward";
    k->forward = add_affine(b, message).weight[0];
    message.name = "msg.backward";
    k->backward = add_affine(b, message).weight[0];
    k->node[0] = add_affine(
        b, (affine_desc){"node.0", 2 * dn, {dn, dn, dn, dg}, {"h", "f", "b", "u"}, .matrix = true});
    k->node[1] = add_matrix(b, "node.2", dn, 2 * dn, true);
    k->global[0] = add_affine(
        b, (affine_desc){"global.0", 2 * dg, {dn, de, dg}, {"h", "e", "u"}, .matrix = true});
    k->global[1] = add_matrix(b, "global.2", dg, 2 * dg, true);
}

static void add_lstar_block(builder *b, const wf_field_desc *d, gmn_block_layout *k) {
    int dn = d->node, de = d->edge, dg = d->edge;
    k->msg[0] = add_affine(
        b, (affine_desc){"msg.0", 2 * dn, {de, dn, dn, dg}, {"e", "i", "j", "u"}, .matrix = true});
    k->msg[1] = add_matrix(b, "msg.2", 2 * dn, 2 * dn, false);
    k->msg[2] = add_matrix(b, "msg.4", dn, 2 * dn, false);
    k->edge[0] = add_affine(
        b, (affine_desc){"edge.0", 2 * de, {de, dn, dn, dg}, {"e", "i", "j", "u"}, .matrix = true});
    k->edge[1] = add_matrix(b, "edge.2", 2 * de, 2 * de, false);
    k->edge[2] = add_matrix(b, "edge.4", de, 2 * de, true);
    k->node[0] = add_affine(
        b, (affine_desc){"node.0", 2 * dn, {dn, dn, dg}, {"h", "m", "u"}, .matrix = true});
    k->node[1] = add_matrix(b, "node.2", 2 * dn, 2 * dn, false);
    k->node[2] = add_matrix(b, "node.4", dn, 2 * dn, true);
    k->global[0] = add_affine(
        b, (affine_desc){"global.0", 2 * dg, {dn, de, dg}, {"h", "e", "u"}, .matrix = true});
    k->global[1] = add_matrix(b, "global.2", 2 * dg, 2 * dg, false);
    k->global[2] = add_matrix(b, "global.4", dg, 2 * dg, true);
}

static void add_block(builder *b, const wf_field_desc *d, int index) {
    gmn_block_layout *block = &b->layout->blocks[index];
    snprintf(b->prefix, sizeof b->prefix, "blocks.%d.", index);
    block->adaln =
        add_affine(b, (affine_desc){"adaln", wf__gmn_columns(d).width, {d->time}, .zero = true});
    b->layout->tensors[block->adaln.weight[0]].early = true;
    b->layout->tensors[block->adaln.bias].early = true;
    if (d->layout == WF_LAYOUT_LEAN) add_lean_block(b, d, block);
    else add_lstar_block(b, d, block);
    if (d->messages == WF_MESSAGES_ATTENTION) block->logit = add_plain(b, "logit", 1, d->node);
    b->prefix[0] = '\0';
}

static void add_readout(builder *b, const char *first, const char *second, int de, int coef,
                        gmn_affine out[2]) {
    out[0] = add_plain(b, first, de, de);
    out[1] = add_affine(b, (affine_desc){second, coef, {de}, .zero = true});
}

wf_status wf__gmn_layout_create(wf_ctx *ctx, const wf_field_desc *desc, gmn_layout *out) {
    *out = (gmn_layout){.desc = *desc};
    out->n_kernels = wf__gmn_kernels(desc, out->kernels);
    WF_TRY(check(ctx, desc));
    size_t most = tensors_outside + (size_t)desc->blocks * tensors_per_block;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, most, sizeof *out->tensors, "the field's tensors", &out->tensors),
                bad);
    WF_TRY_GOTO(wf_alloc(ctx, (size_t)desc->blocks, sizeof *out->blocks, "the field's blocks",
                         &out->blocks),
                bad);
    builder b = {.layout = out};
    int time = desc->time;
    out->time[0] = add_plain(&b, "time.0", time, time);
    out->time[1] = add_plain(&b, "time.2", time, time);
    add_conditions(&b, desc);
    add_encoders(&b, desc);
    for (int k = 0; k < desc->blocks; k++) add_block(&b, desc, k);
    add_readout(&b, "readout.0", "readout.2", desc->edge, 1, out->readout);
    for (int k = 0; k < out->n_kernels; k++) {
        char first[48], second[48];
        add_readout(&b, kernel_name("kernel_readout", out, k, ".0", first),
                    kernel_name("kernel_readout", out, k, ".2", second), desc->edge,
                    out->kernels[k], out->kernel_readout[k]);
    }
    if (desc->fold_rows > 0)
        out->fold_decoder = add_affine(
            &b, (affine_desc){"fold_decoder", desc->fold_rows, {desc->node}, .zero = true});
    return WF_OK;
bad:
    wf__gmn_layout_free(out);
    return status;
}

void wf__gmn_layout_free(gmn_layout *layout) {
    free(layout->tensors);
    free(layout->blocks);
    *layout = (gmn_layout){.count = 0};
}

wf_status wf_field_count(wf_ctx *ctx, const wf_field_desc *desc, size_t *out) {
    gmn_layout layout;
    WF_TRY(wf__gmn_layout_create(ctx, desc, &layout));
    *out = layout.params;
    wf__gmn_layout_free(&layout);
    return WF_OK;
}
