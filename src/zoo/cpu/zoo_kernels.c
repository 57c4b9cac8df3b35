/* zoo_kernels: one chain of linear layers trained from its first update to its last, and judged.
 *
 * Per update, WF_ZOO_EXAMPLES examples e at a time (row pointers into the data, no copy):
 *   h0 = x      z_l = h_{l-1} W_l' + b_l      h_l = act(z_l)      last layer: logits
 *   d_L = (softmax(z_L) - target) / batch      target = (1 - s) one-hot + s / classes
 *   dW_l' (+)= h_{l-1}' d_l      db_l (+)= sum_e d_l      d_{l-1} = (d_l W_l) * act'(z_{l-1})
 * then Adam or SGD over all parameters at once.
 *
 * Layout: W_l transposed (in, stride), the bias as one more row, stride = out rounded up to whole
 * vectors; parameters, gradient and moments of all layers in one array each. d_l overwrites h_l.
 * I1  Padding lanes hold zero weights and zero gradients, and are never read as a unit.
 * I2  All sums run in a fixed order: the bits depend on the network's own data and on nothing else.
 */
#include "zoo/cpu/zoo_course.h"
#include "zoo/cpu/zoo_tiles.h"

#include <stdlib.h>

typedef struct layer_state {
    int in, out;
    bool bias;
    size_t stride;     /* of out */
    size_t stride_in;  /* of in */
    real *weight;      /* (in + 1, stride): transposed; the last row is the bias */
    real *gradient;    /* the same */
    real *plain;       /* (out, stride_in): not transposed; of layers after the first */
    real *output;      /* (examples, stride): activations, then their gradient */
    real *slope;       /* (examples, stride): act'; NULL for relu and identity */
    const real **rows; /* [examples]: input of each example */
} layer_state;

typedef struct network {
    const wf_zoo_plan *plan;
    int n_layers;
    layer_state layers[WF_ZOO_LAYERS];
    const real **output_rows; /* [examples] of the last layer */
    size_t n_reals;           /* parameters with their padding */
    real *weight, *gradient, *first_moment, *second_moment;
    real *zeros;             /* [widest stride] */
    real *columns;           /* (last stride, lanes) */
    uint32_t *words, *order; /* [4 * word_blocks], [n_train] */
} network;

/* --- memory ----------------------------------------------------------------------------------- */

static size_t padded(int n) { return ((size_t)n + tile_grain - 1) / tile_grain * tile_grain; }

static void carve_layer(carver *from, network *net, int l) {
    layer_state *layer = &net->layers[l];
    const wf_activation activation = net->plan->chain->activation;
    bool hidden = l + 1 < net->n_layers;
    layer->output = carve(from, WF_ZOO_EXAMPLES * layer->stride, sizeof(real));
    if (hidden && has_slope(activation))
        layer->slope = carve(from, WF_ZOO_EXAMPLES * layer->stride, sizeof(real));
    if (l > 0) layer->plain = carve(from, (size_t)layer->out * layer->stride_in, sizeof(real));
    layer->rows = carve(from, WF_ZOO_EXAMPLES, sizeof *layer->rows);
}

/* Gives every array of `net` its place after base; with base NULL only counts. Returns the
 * bytes. */
static size_t lay_out(const wf_zoo_plan *plan, void *base, network *net) {
    *net = (network){.plan = plan, .n_layers = plan->chain->n_layers};
    carver from = {base, 0};
    size_t widest = 0;
    for (int l = 0; l < net->n_layers; l++) {
        const wf_zoo_layer *shape = &plan->chain->layers[l];
        layer_state *layer = &net->layers[l];
        layer->in = shape->in;
        layer->out = shape->out;
        layer->bias = shape->bias;
        layer->stride = padded(shape->out);
        layer->stride_in = padded(shape->in);
        net->n_reals += ((size_t)shape->in + 1) * layer->stride;
        if (layer->stride > widest) widest = layer->stride;
        carve_layer(&from, net, l);
    }
    net->weight = carve(&from, net->n_reals, sizeof(real));
    net->gradient = carve(&from, net->n_reals, sizeof(real));
    net->first_moment = carve(&from, net->n_reals, sizeof(real));
    net->second_moment = carve(&from, net->n_reals, sizeof(real));
    net->zeros = carve(&from, widest, sizeof(real));
    net->columns = carve(&from, net->layers[net->n_layers - 1].stride * WF_LANES, sizeof(real));
    net->output_rows = carve(&from, WF_ZOO_EXAMPLES, sizeof *net->output_rows);
    net->words = carve(&from, 4 * word_blocks, sizeof *net->words);
    net->order = carve(&from, plan->train.n, sizeof *net->order);
    return from.used;
}

/* Row pointers of all layers but the first, which change with the examples. */
static void point_rows(network *net) {
    for (int l = 0; l < net->n_layers; l++) {
        const layer_state *layer = &net->layers[l];
        const real **rows = l + 1 < net->n_layers ? net->layers[l + 1].rows : net->output_rows;
        for (size_t e = 0; e < WF_ZOO_EXAMPLES; e++) rows[e] = layer->output + e * layer->stride;
    }
}

/* Flat parameters or moments, in graph order, into the arrays of all layers. */
static void import_flat(const network *net, const real *flat, real *to) {
    for (int l = 0; l < net->n_layers; l++) {
        const layer_state *layer = &net->layers[l];
        const wf_zoo_layer *shape = &net->plan->chain->layers[l];
        size_t in = (size_t)layer->in, stride = layer->stride;
        for (size_t u = 0; u < (size_t)layer->out; u++) {
            for (size_t i = 0; i < in; i++)
                to[i * stride + u] = flat[shape->weight_offset + u * in + i];
            if (layer->bias) to[in * stride + u] = flat[shape->bias_offset + u];
        }
        to += (in + 1) * stride;
    }
}

static void export_flat(const network *net, const real *from, real *flat) {
    for (int l = 0; l < net->n_layers; l++) {
        const layer_state *layer = &net->layers[l];
        const wf_zoo_layer *shape = &net->plan->chain->layers[l];
        size_t in = (size_t)layer->in, stride = layer->stride;
        for (size_t u = 0; u < (size_t)layer->out; u++) {
            for (size_t i = 0; i < in; i++)
                flat[shape->weight_offset + u * in + i] = from[i * stride + u];
            if (layer->bias) flat[shape->bias_offset + u] = from[in * stride + u];
        }
        from += (in + 1) * stride;
    }
}

static void network_start(network *net, const wf_zoo_plan *plan, const real *w, void *scratch) {
    lay_out(plan, scratch, net);
    clear(net->weight, net->n_reals);
    clear(net->gradient, net->n_reals);
    clear(net->first_moment, net->n_reals);
    clear(net->second_moment, net->n_reals);
    size_t at = 0;
    for (int l = 0; l < net->n_layers; l++) {
        layer_state *layer = &net->layers[l];
        layer->weight = net->weight + at;
        layer->gradient = net->gradient + at;
        at += ((size_t)layer->in + 1) * layer->stride;
        clear(net->zeros, layer->stride);
        if (layer->plain != NULL) clear(layer->plain, (size_t)layer->out * layer->stride_in);
    }
    import_flat(net, w, net->weight);
    point_rows(net);
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Logits of `rows` examples whose inputs layers[0].rows points at. */
static void forward(network *net, int rows) {
    const wf_activation activation = net->plan->chain->activation;
    for (int l = 0; l < net->n_layers; l++) {
        layer_state *layer = &net->layers[l];
        bool hidden = l + 1 < net->n_layers;
        rows_product product = {.a = layer->rows,
                                .rows = rows,
                                .depth = layer->in,
                                .b = layer->weight,
                                .stride = layer->stride,
                                .init = layer->weight + (size_t)layer->in * layer->stride,
                                .gate = layer->output,
                                .out = layer->output,
                                .finish = hidden && activation == WF_ACT_RELU ? finish_relu
                                                                              : finish_plain};
        rows_product_run(&product);
        if (layer->slope != NULL)
            activate(activation, layer->output, layer->slope, (size_t)rows * layer->stride);
    }
}

/* --- loss ------------------------------------------------------------------------------------- */

/* Logits z (lanes, stride) -> columns (classes, lanes), whole squares first. */
static void lanes_from_rows(const real *z, size_t stride, int classes, real *columns) {
    size_t c = 0;
    for (; c + WF_LANES <= stride; c += WF_LANES)
        transpose(z + c, stride, columns + c * WF_LANES, WF_LANES);
    for (; c < (size_t)classes; c++)
        for (size_t r = 0; r < WF_LANES; r++) columns[c * WF_LANES + r] = z[r * stride + c];
}

/* And back; padding of z that is not in a whole square keeps its zeros. */
static void rows_from_lanes(const real *columns, int classes, real *z, size_t stride) {
    size_t c = 0;
    for (; c + WF_LANES <= stride; c += WF_LANES)
        transpose(columns + c * WF_LANES, WF_LANES, z + c, stride);
    for (; c < (size_t)classes; c++)
        for (size_t r = 0; r < WF_LANES; r++) z[r * stride + c] = columns[c * WF_LANES + r];
}

/* exp(z - max) and its sum, for the examples in the lanes of columns (classes, lanes). */
static vreal exponentials(real *columns, int classes) {
    vreal largest = load(columns), total = {0};
    for (int c = 1; c < classes; c++) largest = larger(load(columns + c * WF_LANES), largest);
    for (int c = 0; c < classes; c++)
        store(columns + c * WF_LANES, load(columns + c * WF_LANES) - largest);
    const size_t n = (size_t)classes * WF_LANES;
    for (size_t i = 0; i < n; i++) columns[i] = r_exp(columns[i]);
    for (int c = 0; c < classes; c++) total += load(columns + c * WF_LANES);
    return total;
}

/* Logits (rows, stride) -> gradient of the mean cross-entropy; `scale` is 1/batch. Examples are
 * brought into the lanes, WF_LANES at a time; lanes after the last example hold leftovers that
 * nobody reads. */
static void loss_gradient(network *net, const int32_t *labels, int rows, real scale) {
    const layer_state *last = &net->layers[net->n_layers - 1];
    const size_t stride = last->stride;
    const int classes = last->out;
    const real smoothing = (real)net->plan->desc->label_smoothing;
    const real off = scale * smoothing / (real)classes, on = scale * (1 - smoothing);
    real *columns = net->columns;
    for (int first = 0; first < rows; first += WF_LANES) {
        real *z = last->output + (size_t)first * stride;
        lanes_from_rows(z, stride, classes, columns);
        vreal factor = scale / exponentials(columns, classes);
        for (int c = 0; c < classes; c++)
            store(columns + c * WF_LANES, load(columns + c * WF_LANES) * factor - off);
        clear(columns + classes * WF_LANES, (stride - (size_t)classes) * WF_LANES);
        rows_from_lanes(columns, classes, z, stride);
        for (int r = 0; r < WF_LANES && first + r < rows; r++)
            z[(size_t)r * stride + (size_t)labels[first + r]] -= on;
    }
}

/* --- backward --------------------------------------------------------------------------------- */

/* From the gradient of the logits to that of all parameters; `add` to that of earlier examples. */
static void backward(network *net, int rows, bool add) {
    const wf_activation activation = net->plan->chain->activation;
    for (int l = net->n_layers - 1; l >= 0; l--) {
        layer_state *layer = &net->layers[l];
        const real *const *delta_rows =
            l + 1 < net->n_layers ? net->layers[l + 1].rows : net->output_rows;
        outer_product weights = {layer->rows,     rows, layer->in, layer->output, layer->stride,
                                 layer->gradient, add};
        outer_product_run(&weights);
        if (layer->bias)
            column_sums(layer->output, rows, layer->stride,
                        layer->gradient + (size_t)layer->in * layer->stride, add);
        if (l == 0) continue;
        layer_state *before = &net->layers[l - 1];
        rows_product inputs = {.a = delta_rows,
                               .rows = rows,
                               .depth = layer->out,
                               .b = layer->plain,
                               .stride = layer->stride_in,
                               .init = net->zeros,
                               .gate = activation == WF_ACT_RELU ? before->output : before->slope,
                               .out = before->output,
                               .finish = activation == WF_ACT_RELU       ? finish_gate
                                         : activation == WF_ACT_IDENTITY ? finish_plain
                                                                         : finish_multiply};
        if (inputs.gate == NULL) inputs.gate = before->output;
        rows_product_run(&inputs);
    }
}

/* W_l itself beside its transpose, for d_{l-1}. */
static void refresh_plain(network *net) {
    for (int l = 1; l < net->n_layers; l++) {
        layer_state *layer = &net->layers[l];
        for (int i = 0; i < layer->in; i++) {
            const real *from = layer->weight + (size_t)i * layer->stride;
            for (int u = 0; u < layer->out; u++)
                layer->plain[(size_t)u * layer->stride_in + (size_t)i] = from[u];
        }
    }
}

/* Gradient of the mean loss over examples order[0 .. batch-1]; false after a pause in the midst of
 * them. */
static bool batch_gradient(void *net_, const uint32_t *order, int batch, uint32_t epoch,
                           const wf_zoo_watch *watch) {
    (void)epoch;
    network *net = net_;
    const wf_zoo_examples *train = &net->plan->train;
    const real *x = train->x;
    const size_t inputs = (size_t)net->layers[0].in;
    const real scale = 1 / (real)batch;
    refresh_plain(net);
    for (int first = 0; first < batch; first += WF_ZOO_EXAMPLES) {
        if (watch->pause(watch->user, false)) return false;
        int rows = batch - first < WF_ZOO_EXAMPLES ? batch - first : WF_ZOO_EXAMPLES;
        int32_t labels[WF_ZOO_EXAMPLES];
        for (int e = 0; e < rows; e++) {
            net->layers[0].rows[e] = x + order[first + e] * inputs;
            labels[e] = train->y[order[first + e]];
        }
        forward(net, rows);
        loss_gradient(net, labels, rows, scale);
        backward(net, rows, first > 0);
    }
    return true;
}

/* --- what the driver calls -------------------------------------------------------------------- */

static size_t scratch_bytes(const wf_zoo_plan *plan) {
    network net;
    return lay_out(plan, NULL, &net);
}

static void update_all(void *net_, update_numbers now) {
    network *net = net_;
    trained_reals all = {net->n_reals, net->weight, net->first_moment, net->second_moment,
                         net->gradient};
    update_reals(net->plan->desc, now, &all);
}

static bool is_finite(const void *net_) {
    const network *net = net_;
    return all_finite(net->weight, net->n_reals);
}

static wf_zoo_state train(const wf_zoo_plan *plan, const wf_zoo_task *task, void *w,
                          wf_zoo_progress *progress, const wf_zoo_watch *watch, void *scratch) {
    network net;
    network_start(&net, plan, w, scratch);
    if (progress->updates > 0) {
        import_flat(&net, progress->first, net.first_moment);
        import_flat(&net, progress->second, net.second_moment);
    }
    course run = {.plan = plan,
                  .task = task,
                  .watch = watch,
                  .words = net.words,
                  .order = net.order,
                  .net = &net,
                  .gradient = batch_gradient,
                  .update = update_all,
                  .finite = is_finite};
    course_start(&run, progress->updates);
    wf_zoo_state state = course_run(&run);
    export_flat(&net, net.weight, w);
    if (state == WF_ZOO_WAITING) {
        export_flat(&net, net.first_moment, progress->first);
        export_flat(&net, net.second_moment, progress->second);
    }
    if (state != WF_ZOO_DIVERGED) progress->updates = run.rates.done;
    return state;
}

/* The most likely class; of equal ones the first. */
static int predicted(const real *logits, int classes) {
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (logits[c] > logits[best]) best = c;
    return best;
}

static bool judge(const wf_zoo_plan *plan, const void *w, uint8_t *errors, size_t *wrong,
                  const wf_zoo_watch *watch, void *scratch) {
    network net;
    network_start(&net, plan, w, scratch);
    const layer_state *last = &net.layers[net.n_layers - 1];
    const real *x = plan->test.x;
    size_t inputs = (size_t)net.layers[0].in, n = plan->test.n;
    *wrong = 0;
    for (size_t byte = 0; byte < (n + 7) / 8; byte++) errors[byte] = 0;
    for (size_t first = 0; first < n; first += WF_ZOO_EXAMPLES) {
        if (watch->pause(watch->user, false)) return false;
        size_t rows = n - first < WF_ZOO_EXAMPLES ? n - first : WF_ZOO_EXAMPLES;
        for (size_t e = 0; e < rows; e++) net.layers[0].rows[e] = x + (first + e) * inputs;
        forward(&net, (int)rows);
        for (size_t e = 0; e < rows; e++) {
            size_t at = first + e;
            if (predicted(last->output + e * last->stride, last->out) == plan->test.y[at]) continue;
            errors[at / 8] |= (uint8_t)(1u << at % 8);
            ++*wrong;
        }
    }
    return true;
}

const wf_zoo_kernels WF_FN(wf_zoo_kernels) = {sizeof(real), scratch_bytes, train, judge};
