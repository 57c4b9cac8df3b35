/* zoo_cuda: trains some networks on the GPU: chooses the kernel, draws the initial state, trains
 * the networks in waves and copies the results back.
 *
 *   zoo_small        tensor cores, bf16 hi + lo; two or three layers of few units after many
 *                    inputs, one to eight blocks a network
 *   zoo_large_input  the same for any other network whose first layer holds most of its parameters
 *   zoo_block        fp32; any other MLP, and every one if desc.fp32 asks for it
 *   zoo_conv         tensor cores, bf16; chains of convolutions with a linear layer behind them
 *   zoo_paper_net    the same for the paper's network for CIFAR-10, three times as fast
 *
 * Only inputs, labels and indices are uploaded: initial weights and shuffles are drawn on the
 * device from the same Philox addresses that the CPU uses.
 *   I1  a network's bits depend on nothing but itself: not on the wave, nor on its neighbours */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zoo/cuda/zoo_block.cuh"
#include "zoo/cuda/zoo_conv.cuh"
#include "zoo/cuda/zoo_small.cuh"
#include "zoo/cuda/zoo_start.cuh"
#include "zoo/cuda/zoo_large_input.cuh"

#include "base/cuda/device.cuh"
#include "base/backlog.h"

extern "C" {
#include "base/pool.h"
#include "zoo/cuda/zoo_cuda.h"
}

using namespace zoo_gpu;

namespace {

enum { scan_rows = 256 };
const size_t wave_bytes = (size_t)4 << 30; /* of shuffles and spilled state on the device */
const size_t all_bytes = (size_t)16 << 30; /* of shuffles, when all are drawn at once */
const size_t fewest_waves = 8;             /* so that results are written while others train */
const size_t least_wave = 512;             /* networks that keep the device busy */
const double look_flops = 1e9;             /* of a network's updates between two looks at `stop` */

int padded4(int n) { return (n + 3) / 4 * 4; }

/* What all kernels need to know; each chooses its own rows and places in memory. */
gpu_plan base_plan(const wf_zoo_plan *host, bool judged) {
    const wf_zoo_desc *desc = host->desc;
    gpu_plan plan = {};
    plan.n_params = (int)host->graph->n_params;
    plan.batch = desc->batch;
    plan.n_train = (int)host->train.n, plan.n_test = judged ? (int)host->test.n : 0;
    plan.inputs = host->graph->inputs;
    plan.classes = host->graph->outputs;
    plan.optimizer = desc->optimizer, plan.nesterov = desc->nesterov, plan.cosine = desc->cosine;
    plan.momentum = (float)desc->momentum, plan.weight_decay = (float)desc->weight_decay;
    plan.smoothing = (float)desc->label_smoothing;
    plan.beta1 = (float)desc->beta1, plan.rest1 = (float)(1 - desc->beta1);
    plan.beta2 = (float)desc->beta2, plan.rest2 = (float)(1 - desc->beta2);
    plan.eps = (float)desc->eps;
    return plan;
}

/* The same with the layers of a chain. */
gpu_plan chain_plan(const wf_zoo_plan *host, bool judged) {
    const wf_zoo_chain *chain = host->chain;
    gpu_plan plan = base_plan(host, judged);
    plan.n_layers = chain->n_layers;
    plan.activation = chain->activation;
    bool tells = chain->activation != WF_ACT_GELU && chain->activation != WF_ACT_SILU;
    for (int l = 0; l < chain->n_layers; l++) {
        const wf_zoo_layer *from = &chain->layers[l];
        gpu_layer &to = plan.layer[l];
        to.in = from->in, to.out = from->out;
        to.in_padded = padded4(from->in), to.out_padded = padded4(from->out);
        to.stride_in = to.in_padded + 4, to.stride_out = to.out_padded + 4;
        to.flat_weight = (int)from->weight_offset;
        to.flat_bias = from->bias ? (int)from->bias_offset : -1;
        to.slope = tells ? -1 : 0; /* 0: wants a place */
        to.in_quads = divisor_of(to.in_padded / 4);
        to.out_pairs = divisor_of(to.out_padded / 2);
        to.out_quads = divisor_of(to.out_padded / 4);
    }
    return plan;
}

start_plan start_of(const wf_zoo_plan *host, const wf_graph *graph) {
    start_plan plan = {};
    plan.seed = host->desc->seed;
    plan.n_params = (int)graph->n_params;
    plan.n_blocks = graph->n_blocks;
    plan.n_train = (int)host->train.n;
    double entering = 1; /* a layer's weight stands before its bias */
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        if (block->kind == WF_BLOCK_WEIGHT)
            entering = (double)graph->groups[block->src].n * block->coef;
        plan.blocks[b] =
            start_block{(int)block->offset, (int)block->count, (float)(1 / sqrt(entering))};
    }
    return plan;
}

/* --- inputs that are whole multiples of 1/255 (pixels) or of 1 -------------------------------- */

struct scan {
    const float *x;
    size_t n, inputs;
    float factor;
    uint8_t *is_whole; /* [chunks] */
};

void scan_chunk(void *scan_, size_t chunk, int worker) {
    (void)worker;
    const scan *s = (const scan *)scan_;
    size_t first = chunk * scan_rows, last = first + scan_rows < s->n ? first + scan_rows : s->n;
    bool whole = true;
    for (size_t i = first * s->inputs; whole && i < last * s->inputs; i++) {
        float scaled = s->x[i] * s->factor, nearest = rintf(scaled);
        whole = nearest >= 0 && nearest <= 255 && fabsf(scaled - nearest) <= 1e-5f * nearest;
    }
    s->is_whole[chunk] = whole;
}

wf_status all_whole(wf_ctx *ctx, const wf_zoo_examples &examples, size_t inputs, float factor,
                    bool *out) {
    size_t chunks = (examples.n + scan_rows - 1) / scan_rows;
    scan s = {(const float *)examples.x, examples.n, inputs, factor, NULL};
    WF_TRY(wf_alloc(ctx, chunks + 1, 1, "a look at the inputs", &s.is_whole));
    wf_parallel(ctx, chunks, scan_chunk, &s);
    for (size_t c = 0; c < chunks; c++) *out = *out && s.is_whole[c];
    free(s.is_whole);
    return WF_OK;
}

/* One plane of bf16 where inputs are bytes times a factor, else two. */
wf_status choose_planes(wf_ctx *ctx, const wf_zoo_plan *host, large_input_plan *plan) {
    const float factors[] = {1, 255};
    size_t inputs = (size_t)host->chain->layers[0].in;
    plan->planes = 2;
    plan->scale = 1;
    for (float factor : factors) {
        bool whole = true;
        WF_TRY(all_whole(ctx, host->train, inputs, factor, &whole));
        if (whole) WF_TRY(all_whole(ctx, host->test, inputs, factor, &whole));
        if (!whole) continue;
        plan->planes = 1;
        plan->scale = 1 / factor;
        break;
    }
    return WF_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

struct gpu_memory {
    void *piece[32];
    int used;
};

cudaError_t take(gpu_memory *memory, size_t bytes, void *out) {
    void *p = NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);
    if (error == cudaSuccess) memory->piece[memory->used++] = p;
    memcpy(out, &p, sizeof p);
    return error;
}

cudaError_t take_copy(gpu_memory *memory, const void *from, size_t bytes, void *out) {
    cudaError_t error = take(memory, bytes, out);
    if (error != cudaSuccess || bytes == 0) return error;
    void *to;
    memcpy(&to, out, sizeof to);
    return cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
}

/* --- waves ------------------------------------------------------------------------------------ */

/* One wave on the device. There are two: while one trains, the results of the other are copied
 * back. */
struct wave_set {
    cudaStream_t stream;
    size_t start, n; /* of the waiting networks */
    gpu_task *tasks;
    float *flat, *spill;
    uint16_t *order16;
    uint32_t *order32;
    uint32_t *broken, *wrong;
    uint8_t *errors;
};

struct engine {
    wf_ctx *ctx;
    const wf_zoo_plan *host;
    const wf_zoo_piece *piece;
    bool stop;    /* the piece said so */
    size_t count; /* networks that wait, at places [count] of the piece */
    size_t *places;
    gpu_task *tasks;
    bool is_large_input, is_small, is_conv;
    large_input_plan large; /* of both */
    small_plan small;
    block_plan block;
    conv_plan conv;
    start_plan start;
    gpu_memory memory;
    size_t wave; /* networks of one */
    wave_set sets[2];
    wf_backlog backlog;                 /* of least_wave networks */
    double since;                       /* the end of the last wave */
    uint32_t *halt;                     /* a word of the host that kernels read */
    bool unfinished;                    /* networks that were begun */
    size_t order_bytes;                 /* of a network */
    void *orders;                       /* of all networks; NULL: each wave has its own */
    uint32_t *host_broken, *host_wrong; /* [wave] */
    size_t error_bytes;
    int processors; /* of the device; with convolutions */
};

/* Numbers that the kernels count in 32 bits. */
wf_status check_counts(const engine *e) {
    if (e->host->graph->n_params > INT32_MAX / 8 || e->host->train.n > INT32_MAX ||
        e->host->test.n > INT32_MAX)
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: networks or data sets that count beyond 2^31");
    double updates = ceil((double)e->host->train.n / e->host->desc->batch) *
                     fmax(e->host->desc->epochs, e->host->desc->epochs_max);
    if (updates > INT32_MAX)
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED, "device cuda: more than 2^31 updates");
    return WF_OK;
}

wf_status choose_conv(engine *e) {
    int layer, limit = 0, device = 0;
    const wf_graph *graph = e->piece->graph;
    const char *why = conv_refuses(graph, &layer);
    if (why != NULL)
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED, "device cuda: layer %d of %.200s: %s", layer,
                       graph->text, why);
    if (e->host->desc->fp32)
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: convolutions are trained in bf16 alone, zoo.fp32 is yes");
    e->conv.net = base_plan(e->host, e->piece->scores != NULL);
    e->start = start_of(e->host, graph);
    WF_CUDA_TRY(e->ctx, cudaGetDevice(&device));
    WF_CUDA_TRY(e->ctx,
                cudaDeviceGetAttribute(&e->processors, cudaDevAttrMultiProcessorCount, device));
    WF_CUDA_TRY(e->ctx,
                cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (!conv_choose(&e->conv, graph, e->host->desc, limit))
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: %.200s needs %d bytes of shared memory, this device has %d",
                       graph->text, e->conv.shared_bytes, limit);
    e->is_conv = true;
    return WF_OK;
}

wf_status choose_kernel(engine *e) {
    const wf_zoo_chain *chain = e->host->chain;
    WF_TRY(check_counts(e));
    if (chain == NULL) return choose_conv(e);
    if (chain->n_layers > max_layers)
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED, "device cuda: networks of more than %d layers",
                       max_layers);
    gpu_plan base = chain_plan(e->host, e->piece->scores != NULL);
    e->start = start_of(e->host, e->piece->graph);
    const gpu_layer &first = base.layer[0];
    bool mostly_first = 2 * (size_t)first.in * first.out >= chain->n_params && first.in >= 16;
    bool usual_eps = e->host->desc->optimizer != WF_ZOO_ADAM || e->host->desc->eps >= 1e-15;
    if (mostly_first && usual_eps && !e->host->desc->fp32) {
        e->large.rest = base;
        WF_TRY(choose_planes(e->ctx, e->host, &e->large));
        e->small.large = e->large;
        e->is_small = small_choose(&e->small, can_cluster());
        if (e->is_small) e->large = e->small.large;
        e->is_large_input = e->is_small || large_input_choose(&e->large, can_cluster());
    }
    if (e->is_large_input) return WF_OK;
    e->block.net = base;
    if (!block_choose(&e->block))
        return wf_fail(e->ctx, WF_ERR_UNSUPPORTED,
                       "device cuda: layers of %s are too wide for the shared memory of a block",
                       e->piece->graph->text);
    return WF_OK;
}

gpu_plan *common_plan(engine *e) {
    if (e->is_conv) return &e->conv.net;
    return e->is_large_input ? &e->large.rest : &e->block.net;
}

/* Inputs and labels on the device, for the chosen kernel. */
wf_status bring_data(engine *e) {
    wf_ctx *ctx = e->ctx;
    gpu_plan *plan = common_plan(e);
    const wf_zoo_plan *host = e->host;
    size_t row = sizeof(float) * (size_t)plan->inputs, n = (size_t)plan->n_train,
           n_test = (size_t)plan->n_test;
    gpu_memory *memory = &e->memory;
    WF_CUDA_TRY(ctx, take_copy(memory, host->train.x, row * n, &plan->x_train));
    WF_CUDA_TRY(ctx, take_copy(memory, host->train.y, sizeof(int32_t) * n, &plan->y_train));
    WF_CUDA_TRY(ctx, take_copy(memory, host->test.x, row * n_test, &plan->x_test));
    WF_CUDA_TRY(ctx, take_copy(memory, host->test.y, sizeof(int32_t) * n_test, &plan->y_test));
    if (!e->is_large_input) return WF_OK;
    large_input_plan *large = &e->large;
    size_t width = sizeof(__nv_bfloat16) * large->planes * large->ranks * large->columns;
    __nv_bfloat16 *train, *test;
    WF_CUDA_TRY(ctx, take(memory, width * n, &train));
    WF_CUDA_TRY(ctx, take(memory, width * n_test, &test));
    WF_CUDA_TRY(ctx, split_into_planes(*large, plan->x_train, n, train));
    WF_CUDA_TRY(ctx, split_into_planes(*large, plan->x_test, n_test, test));
    large->x_train = train, large->x_test = test;
    return WF_OK;
}

/* Adam's corrections of every update, the same for all networks. */
wf_status bring_corrections(engine *e) {
    gpu_plan *plan = common_plan(e);
    size_t n = ((size_t)plan->n_train + plan->batch - 1) / plan->batch * plan->epochs_max;
    float2 *corrections;
    WF_TRY(wf_alloc(e->ctx, n, sizeof *corrections, "corrections of updates", &corrections));
    double power1 = 1, power2 = 1;
    for (size_t k = 0; k < n; k++) {
        power1 *= e->host->desc->beta1, power2 *= e->host->desc->beta2;
        corrections[k] = make_float2((float)(1 / (1 - power1)), (float)(1 / sqrt(1 - power2)));
    }
    cudaError_t error =
        take_copy(&e->memory, corrections, n * sizeof *corrections, &plan->corrections);
    free(corrections);
    WF_CUDA_TRY(e->ctx, error);
    return WF_OK;
}

/* Networks of a wave: several waves, each large enough, and within the memory meant for them.
 * A network of convolutions takes a minute and a multiprocessor to itself: one for each. */
size_t wave_size(const engine *e, size_t bytes_each) {
    size_t wave = (e->count + fewest_waves - 1) / fewest_waves;
    if (wave < least_wave) wave = least_wave;
    if (e->is_conv) wave = (size_t)e->processors;
    if (wave > wave_bytes / bytes_each) wave = wave_bytes / bytes_each;
    if (wave < 1) wave = 1;
    return wave < e->count ? wave : e->count;
}

/* Shuffles are at `order`, two bytes an index if that is enough. */
void point_orders(const engine *e, void *order, uint16_t **order16, uint32_t **order32) {
    bool narrow = e->host->train.n <= 65536;
    *order16 = narrow ? (uint16_t *)order : NULL;
    *order32 = narrow ? NULL : (uint32_t *)order;
}

/* A long shuffle takes the same time alone as beside ten thousand others, so all are drawn together
 * if they fit. */
wf_status draw_orders(engine *e) {
    wf_ctx *ctx = e->ctx;
    size_t free_bytes = 0, total = 0;
    WF_CUDA_TRY(ctx, cudaMemGetInfo(&free_bytes, &total));
    if (e->count * e->order_bytes > all_bytes || e->count * e->order_bytes > free_bytes / 2)
        return WF_OK;
    gpu_task *tasks;
    uint16_t *order16;
    uint32_t *order32;
    WF_CUDA_TRY(ctx, take(&e->memory, e->count * e->order_bytes, &e->orders));
    WF_CUDA_TRY(ctx, take_copy(&e->memory, e->tasks, e->count * sizeof(gpu_task), &tasks));
    point_orders(e, e->orders, &order16, &order32);
    WF_CUDA_TRY(ctx, start_orders(e->start, tasks, e->count, order16, order32, 0));
    WF_CUDA_TRY(ctx, cudaStreamSynchronize(0));
    return WF_OK;
}

wf_status take_set(engine *e, wave_set *set, size_t spill_bytes) {
    wf_ctx *ctx = e->ctx;
    const gpu_plan *plan = common_plan(e);
    gpu_memory *memory = &e->memory;
    size_t wave = e->wave;
    WF_CUDA_TRY(ctx, cudaStreamCreateWithFlags(&set->stream, cudaStreamNonBlocking));
    if (e->orders == NULL) {
        void *order;
        WF_CUDA_TRY(ctx, take(memory, wave * e->order_bytes, &order));
        point_orders(e, order, &set->order16, &set->order32);
    }
    WF_CUDA_TRY(ctx, take(memory, wave * spill_bytes, &set->spill));
    WF_CUDA_TRY(ctx, take(memory, wave * plan->n_params * sizeof(float), &set->flat));
    WF_CUDA_TRY(ctx, take(memory, wave * sizeof(gpu_task), &set->tasks));
    WF_CUDA_TRY(ctx, take(memory, wave * sizeof(uint32_t), &set->broken));
    WF_CUDA_TRY(ctx, take(memory, wave * sizeof(uint32_t), &set->wrong));
    WF_CUDA_TRY(ctx, take(memory, wave * e->error_bytes, &set->errors));
    return WF_OK;
}

wf_status take_waves(engine *e) {
    gpu_plan *plan = common_plan(e);
    plan->epochs_max = 1;
    for (size_t k = 0; k < e->count; k++)
        if (e->tasks[k].epochs > plan->epochs_max) plan->epochs_max = e->tasks[k].epochs;
    e->start.epochs_max = plan->epochs_max;
    WF_TRY(bring_corrections(e));
    e->order_bytes = (size_t)plan->epochs_max * plan->n_train * (plan->n_train <= 65536 ? 2 : 4);
    WF_TRY(draw_orders(e));
    size_t spill_bytes = e->is_large_input ? 0 : sizeof(float) * block_spill(e->block);
    if (e->is_conv) spill_bytes = sizeof(float) * conv_state(e->conv);
    e->wave = wave_size(e, (e->orders ? 1 : e->order_bytes) + spill_bytes);
    int sets = e->wave < e->count ? 2 : 1;
    for (int i = 0; i < sets; i++) WF_TRY(take_set(e, &e->sets[i], spill_bytes));
    WF_TRY(wf_alloc(e->ctx, e->wave, sizeof(uint32_t), "networks", &e->host_broken));
    return wf_alloc(e->ctx, e->wave, sizeof(uint32_t), "networks", &e->host_wrong);
}

/* How many networks of the wave from k on are also neighbours in the piece. */
size_t neighbours_from(const engine *e, size_t k, size_t end) {
    size_t n = 1;
    while (k + n < end && e->places[k + n] == e->places[k] + n) n++;
    return n;
}

/* Copies something of `bytes` a network between a wave and the piece. */
cudaError_t move_rows(const engine *e, const wave_set *set, size_t bytes, void *device, void *piece,
                      cudaMemcpyKind kind) {
    cudaError_t error = cudaSuccess;
    size_t end = set->start + set->n;
    for (size_t k = set->start; k < end && error == cudaSuccess;) {
        size_t together = neighbours_from(e, k, end);
        char *d = (char *)device + (k - set->start) * bytes,
             *h = (char *)piece + e->places[k] * bytes;
        bool up = kind == cudaMemcpyHostToDevice;
        error = cudaMemcpyAsync(up ? d : h, up ? h : d, together * bytes, kind, set->stream);
        k += together;
    }
    return error;
}

/* Updates between two looks at e->halt: often enough for a network of any size, and never so often
 * that the look, which crosses the bus, costs anything. */
int look_every(const engine *e) {
    if (e->is_conv) return 1; /* an update is milliseconds */
    double flops = 6.0 * (double)e->host->graph->n_params * e->host->desc->batch;
    return (int)fmax(1, fmin(64, look_flops / flops));
}

/* Waits for a wave, and tells it to stop when that is asked for. */
cudaError_t wait_for(engine *e, cudaStream_t stream) {
    for (;;) {
        cudaError_t state = cudaStreamQuery(stream);
        if (state != cudaErrorNotReady) return state;
        if (wf_interrupted(e->ctx)) *(volatile uint32_t *)e->halt = 1;
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
}

/* Queues the whole training of a wave. */
wf_status start_wave(engine *e, wave_set *set) {
    wf_ctx *ctx = e->ctx;
    size_t row = sizeof(float) * e->host->graph->n_params, n = set->n;
    cudaStream_t stream = set->stream;
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(set->tasks, e->tasks + set->start, n * sizeof(gpu_task),
                                     cudaMemcpyHostToDevice, stream));
    if (e->piece->fresh)
        WF_CUDA_TRY(ctx, start_weights(e->start, set->tasks, n, set->flat, stream));
    else
        WF_CUDA_TRY(ctx,
                    move_rows(e, set, row, set->flat, e->piece->weights, cudaMemcpyHostToDevice));
    if (e->orders != NULL)
        point_orders(e, (char *)e->orders + set->start * e->order_bytes, &set->order16,
                     &set->order32);
    else
        WF_CUDA_TRY(ctx, start_orders(e->start, set->tasks, n, set->order16, set->order32, stream));
    WF_CUDA_TRY(ctx, cudaMemsetAsync(set->broken, 0, n * sizeof(uint32_t), stream));
    WF_CUDA_TRY(ctx, cudaMemsetAsync(set->wrong, 0, n * sizeof(uint32_t), stream));
    gpu_networks networks = {set->tasks, set->order16, set->order32, set->flat,    set->broken,
                             set->wrong, set->errors,  e->halt,      look_every(e)};
    if (e->is_conv) {
        e->conv.state = set->spill;
        WF_CUDA_TRY(ctx, conv_launch(e->conv, networks, n, stream));
    } else if (e->is_small) {
        e->small.large = e->large;
        WF_CUDA_TRY(ctx, small_launch(e->small, networks, n, stream));
    } else if (e->is_large_input) {
        WF_CUDA_TRY(ctx, large_input_launch(e->large, networks, n, stream));
    } else {
        e->block.spill = set->spill;
        WF_CUDA_TRY(ctx, block_launch(e->block, networks, n, stream));
    }
    return WF_OK;
}

/* Waits for a wave and takes its results. */
wf_status end_wave(engine *e, wave_set *set) {
    wf_ctx *ctx = e->ctx;
    const wf_zoo_piece *piece = e->piece;
    size_t row = sizeof(float) * e->host->graph->n_params, n = set->n;
    set->n = 0;
    wave_set results = *set;
    results.n = n;
    WF_CUDA_TRY(ctx,
                move_rows(e, &results, row, set->flat, piece->weights, cudaMemcpyDeviceToHost));
    if (piece->scores != NULL)
        WF_CUDA_TRY(ctx, move_rows(e, &results, e->error_bytes, set->errors, piece->errors,
                                   cudaMemcpyDeviceToHost));
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(e->host_broken, set->broken, n * sizeof(uint32_t),
                                     cudaMemcpyDeviceToHost, set->stream));
    WF_CUDA_TRY(ctx, cudaMemcpyAsync(e->host_wrong, set->wrong, n * sizeof(uint32_t),
                                     cudaMemcpyDeviceToHost, set->stream));
    WF_CUDA_TRY(ctx, wait_for(e, set->stream));
    double now = wf_seconds();
    wf_backlog_took(&e->backlog, (n + least_wave - 1) / least_wave, now - e->since);
    e->since = now;
    size_t whole = n; /* networks before the first that is not finished */
    for (size_t k = 0; k < n; k++) {
        size_t i = e->places[set->start + k];
        if (e->host_broken[k] == GPU_UNFINISHED) {
            if (whole == n) whole = k;
            continue;
        }
        piece->state[i] = e->host_broken[k] ? WF_ZOO_DIVERGED : WF_ZOO_TRAINED;
        if (piece->scores != NULL)
            piece->scores[i] = (float)(1 - (double)e->host_wrong[k] / (double)e->host->test.n);
    }
    if (e->unfinished) whole = 0;
    e->unfinished = e->unfinished || whole < n;
    if (whole == 0) return WF_OK;
    size_t done = set->start + whole;
    if (piece->meter) wf_meter_update(piece->meter, (double)(piece->done_before + done), NULL);
    /* All up to here is done: waves end in the order they began in. */
    if (piece->finished) piece->finished(piece->user, e->places[done - 1] + 1);
    if (piece->tick && !piece->tick(piece->user)) e->stop = true;
    return WF_OK;
}

wf_status run_waves(engine *e) {
    WF_CUDA_TRY(e->ctx, cudaMallocHost(&e->halt, sizeof *e->halt));
    *e->halt = 0;
    WF_TRY(bring_data(e));
    WF_TRY(take_waves(e));
    size_t start = 0;
    e->since = wf_seconds();
    for (int which = 0;; which ^= 1) {
        wave_set *set = &e->sets[which], *other = &e->sets[which ^ 1];
        bool stop = e->stop || wf_interrupted(e->ctx);
        if (start < e->count && !stop) {
            set->start = start;
            size_t most = e->count - start < e->wave ? e->count - start : e->wave;
            set->n =
                least_wave * wf_backlog_next(&e->backlog, (most + least_wave - 1) / least_wave);
            if (set->n > most) set->n = most;
            start += set->n;
            WF_TRY(start_wave(e, set));
        }
        if (other->n > 0) WF_TRY(end_wave(e, other));
        else if (set->n == 0) break;
    }
    if (start == e->count && !e->unfinished) return WF_OK;
    return wf_fail(e->ctx, WF_ERR_INTERRUPTED, "interrupted");
}

wf_status gather(engine *e) {
    const wf_zoo_piece *piece = e->piece;
    WF_TRY(wf_alloc(e->ctx, e->count, sizeof(size_t), "networks", &e->places));
    WF_TRY(wf_alloc(e->ctx, e->count, sizeof(gpu_task), "networks", &e->tasks));
    size_t k = 0;
    for (size_t i = 0; i < piece->count; i++) {
        if (piece->state[i] != WF_ZOO_WAITING) continue;
        wf_zoo_task task = wf_zoo_task_of(e->host->desc, piece->index[i]);
        e->places[k] = i;
        e->tasks[k++] = gpu_task{task.index, task.epochs, task.lr};
    }
    return WF_OK;
}

} // namespace

extern "C" wf_status wf_zoo_cuda_run(wf_ctx *ctx, const wf_zoo_plan *plan,
                                     const wf_zoo_piece *piece) {
    engine *e;
    wf_cuda_device *device;
    WF_TRY(wf_ctx_cuda(ctx, &device));
    WF_TRY(wf_alloc(ctx, 1, sizeof *e, "networks", &e));
    e->ctx = ctx, e->host = plan, e->piece = piece;
    e->error_bytes = piece->scores != NULL ? piece->error_bytes : 0;
    for (size_t i = 0; i < piece->count; i++) e->count += piece->state[i] == WF_ZOO_WAITING;
    wf_status status = e->count == 0 ? WF_OK : choose_kernel(e);
    if (status == WF_OK && e->count > 0) status = gather(e);
    if (status == WF_OK && e->count > 0) status = run_waves(e);
    for (wave_set &set : e->sets) /* a failure may have left one running */
        if (set.stream != NULL) cudaStreamSynchronize(set.stream), cudaStreamDestroy(set.stream);
    for (int i = 0; i < e->memory.used; i++) cudaFree(e->memory.piece[i]);
    cudaFreeHost(e->halt);
    free(e->places), free(e->tasks), free(e->host_broken), free(e->host_wrong);
    free(e);
    return status;
}
