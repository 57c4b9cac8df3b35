/* net_kernels: any described network (graph/graph.h) trained from its first update to its last, and
 * judged.
 *
 * A batch is cut into tiles of NET_TILE examples. One layer makes, for each tile,
 *   sums    linear or convolution (net_tiles.h; a linear layer is a convolution with one tap for
 *           each place of its source), add, pass
 *   norm    batch norm: over the whole batch, so all its tiles are kept; layer norm: of each
 *           example
 *   act     in place; slope beside it unless it follows from the result
 *   pool    to values of their own
 * and backward the same in turn. Networks without a batch norm carry one tile after another through
 * all layers; with one, all tiles go through a layer together (a wave).
 *
 * Parameters, gradient and moments are flat, in the order of the graph. Running statistics are part
 * of the weights and no optimiser touches them.
 * I1  The last tile of a batch may have fewer examples. The other lanes hold zeros as inputs,
 *     and their gradient of the loss is zero, so they add nothing; norms leave them out.
 * I2  All sums run in a fixed order: the bits depend on the network's own data and on nothing else.
 */
#include "zoo/cpu/net_backward.h"

/* --- batches ---------------------------------------------------------------------------------- */

/* How an example is changed: numbers from (seed, network, WF_RNG_AUGMENT, epoch), block
 * `example`. */
typedef struct change {
    bool flip;
    int down, right; /* pixels that the window moves from the image's own place */
} change;

static change change_of(const wf_zoo_plan *plan, uint32_t index, uint32_t epoch, uint32_t example) {
    const uint32_t counter[4] = {example, epoch, index, WF_RNG_AUGMENT};
    const uint32_t span = 2 * (uint32_t)plan->desc->crop + 1;
    uint32_t word[4];
    wf_philox(counter, plan->desc->seed, word);
    return (change){plan->desc->flip && (word[0] & 1) != 0,
                    (int)((uint64_t)word[1] * span >> 32) - plan->desc->crop,
                    (int)((uint64_t)word[2] * span >> 32) - plan->desc->crop};
}

/* Position i of a side of n pixels, reflected at both ends without repeating them. */
static int reflected(int i, int n) {
    if (i < 0) i = -i;
    return i < n ? i : 2 * (n - 1) - i;
}

/* Lane `lane` of a tile of inputs; `how` NULL: the example as it is. Plain inputs that are images
 * in the data are one place with a unit for each pixel. */
static void load_example(network *net, int tile, int lane, const real *x, const change *how) {
    const wf_group *input = &net->plan->graph->groups[0];
    const net_values *to = &net->values[0];
    real *out = tile_of(to, tile) + lane;
    size_t inner = places(input);
    if (how == NULL) {
        for (size_t u = 0; u < (size_t)input->n; u++)
            for (size_t p = 0; p < inner; p++) out[p * to->place + u * NET_TILE] = x[u * inner + p];
        return;
    }
    const int *image = net->plan->image;
    size_t at = 0;
    for (int c = 0; c < image[0]; c++, x += image[1] * image[2])
        for (int row = 0; row < image[1]; row++) {
            const real *from_row = x + reflected(row + how->down, image[1]) * image[2];
            for (int column = 0; column < image[2]; column++, at++) {
                int from = how->flip ? image[2] - 1 - column : column;
                size_t unit = at / inner, place = at % inner;
                out[place * to->place + unit * NET_TILE] =
                    from_row[reflected(from + how->right, image[2])];
            }
        }
}

static void clear_lanes(network *net, int tile, int first) {
    const wf_group *input = &net->plan->graph->groups[0];
    const net_values *to = &net->values[0];
    for (size_t p = 0; p < places(input) && first < NET_TILE; p++)
        for (int u = 0; u < input->n; u++)
            clear(tile_of(to, tile) + p * to->place + u * NET_TILE + first,
                  (size_t)(NET_TILE - first));
}

typedef struct training {
    network net;
    uint32_t index;
} training;

/* The next tiles of a batch, at most a wave, into the lanes; *count examples. */
static int load_wave(training *t, const uint32_t *order, int left, uint32_t epoch, int *count) {
    network *net = &t->net;
    const wf_zoo_plan *plan = net->plan;
    const real *x = plan->train.x;
    bool changed = plan->desc->flip || plan->desc->crop > 0;
    size_t inputs = (size_t)plan->graph->inputs;
    int n_tiles = tiles_of(left) < net->wave ? tiles_of(left) : net->wave;
    *count = left < n_tiles * NET_TILE ? left : n_tiles * NET_TILE;
    for (int e = 0; e < *count; e++) {
        change how = {0};
        if (changed) how = change_of(plan, t->index, epoch, order[e]);
        net->labels[e] = plan->train.y[order[e]];
        load_example(net, e / NET_TILE, e % NET_TILE, x + order[e] * inputs, changed ? &how : NULL);
    }
    for (int tile = 0; tile < n_tiles; tile++) {
        int rest = *count - tile * NET_TILE;
        net->rows[tile] = rest < NET_TILE ? rest : NET_TILE;
        clear_lanes(net, tile, net->rows[tile]);
    }
    return n_tiles;
}

static bool batch_gradient(void *training_, const uint32_t *order, int batch, uint32_t epoch,
                           const wf_zoo_watch *watch) {
    training *t = training_;
    network *net = &t->net;
    const real scale = 1 / (real)batch;
    pack_weights(net);
    clear(net->gradient, net->n_params);
    for (int first = 0, count; first < batch; first += count) {
        if (watch->pause(watch->user, false)) return false;
        int n_tiles = load_wave(t, order + first, batch - first, epoch, &count);
        forward(net, n_tiles, true);
        for (int tile = 0; tile < n_tiles; tile++) loss_gradient(net, tile, scale);
        for (int g = 0; g <= net->n_layers; g++) net->reached[g] = false;
        for (int l = net->n_layers - 1; l >= 0; l--) backward_layer(net, l, n_tiles);
    }
    return true;
}

/* --- what the driver calls -------------------------------------------------------------------- */

static size_t scratch_bytes(const wf_zoo_plan *plan) {
    network net;
    return lay_out(plan, NULL, &net);
}

/* Every block but the running statistics. */
static void update_all(void *training_, update_numbers now) {
    network *net = &((training *)training_)->net;
    const wf_graph *graph = net->plan->graph;
    for (int b = 0; b < graph->n_blocks; b++) {
        size_t at = graph->blocks[b].offset;
        if (!wf_block_trained(&graph->blocks[b])) continue;
        trained_reals all = {graph->blocks[b].count, net->weight + at, net->first_moment + at,
                             net->second_moment + at, net->gradient + at};
        update_reals(net->plan->desc, now, &all);
    }
}

static bool is_finite(const void *training_) {
    const network *net = &((const training *)training_)->net;
    return all_finite(net->weight, net->n_params);
}

static wf_zoo_state train(const wf_zoo_plan *plan, const wf_zoo_task *task, void *w,
                          wf_zoo_progress *progress, const wf_zoo_watch *watch, void *scratch) {
    training t = {.index = task->index};
    network *net = &t.net;
    network_start(net, plan, w, scratch);
    size_t bytes = net->n_params * sizeof(real);
    if (progress->updates > 0) {
        memcpy(net->first_moment, progress->first, bytes);
        memcpy(net->second_moment, progress->second, bytes);
    }
    course run = {.plan = plan,
                  .task = task,
                  .watch = watch,
                  .words = net->words,
                  .order = net->order,
                  .net = &t,
                  .gradient = batch_gradient,
                  .update = update_all,
                  .finite = is_finite};
    course_start(&run, progress->updates);
    wf_zoo_state state = course_run(&run);
    memcpy(w, net->weight, bytes);
    if (state == WF_ZOO_WAITING) {
        memcpy(progress->first, net->first_moment, bytes);
        memcpy(progress->second, net->second_moment, bytes);
    }
    if (state != WF_ZOO_DIVERGED) progress->updates = run.rates.done;
    return state;
}

/* The most likely class of an example; of equal ones the first. */
static int predicted(const real *logits, int classes) {
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (logits[c * NET_TILE] > logits[best * NET_TILE]) best = c;
    return best;
}

static bool judge(const wf_zoo_plan *plan, const void *w, uint8_t *errors, size_t *wrong,
                  const wf_zoo_watch *watch, void *scratch) {
    network net;
    network_start(&net, plan, w, scratch);
    pack_weights(&net);
    const real *x = plan->test.x;
    size_t inputs = (size_t)plan->graph->inputs, n = plan->test.n;
    *wrong = 0;
    for (size_t byte = 0; byte < (n + 7) / 8; byte++) errors[byte] = 0;
    for (size_t first = 0; first < n; first += NET_TILE) {
        if (watch->pause(watch->user, false)) return false;
        net.rows[0] = n - first < NET_TILE ? (int)(n - first) : NET_TILE;
        for (int e = 0; e < net.rows[0]; e++)
            load_example(&net, 0, e, x + (first + (size_t)e) * inputs, NULL);
        clear_lanes(&net, 0, net.rows[0]);
        forward(&net, 1, false);
        for (int e = 0; e < net.rows[0]; e++) {
            size_t at = first + (size_t)e;
            const real *logits = tile_of(&net.values[net.n_layers], 0) + e;
            if (predicted(logits, plan->graph->outputs) == plan->test.y[at]) continue;
            errors[at / 8] |= (uint8_t)(1u << at % 8);
            ++*wrong;
        }
    }
    return true;
}

const wf_zoo_kernels WF_FN(wf_net_kernels) = {sizeof(real), scratch_bytes, train, judge};
