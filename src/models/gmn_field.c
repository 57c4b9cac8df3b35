/* gmn_field: the graph metanetwork behind models/field.h. It cuts a batch into parts, packs the
 * weights once for all of them, runs the parts on the pool, and adds their gradients in part
 * order. */
#include "base/pool.h"
#include "base/random.h"
#include "models/cuda/gmn_cuda.h"
#include "models/gmn_part.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    least_edges = 800,
    most_parts = WF_FIELD_PARTS,
    parts_of_large_fields = 8,
    large_field = 4000000,
    reduce_span = 16384
};
static const double fourier_std = 3.0;
enum { most_coef = 1024 }; /* of max_coef and kernel_2 .. kernel_4 in field.def */

/* What the tape of a part tells of its stages. */
typedef struct part_watch {
    struct gmn_field *field;
    const gmn_part *part;
} part_watch;

typedef struct gmn_field {
    wf_field base;
    gmn_layout layout;
    size_t size; /* of a real */
    size_t *panel_offset;
    void *panels, *fourier;
    gmn_part parts[most_parts];
    part_watch watches[most_parts];
    atomic_int unfinished[WF_TAPE_STAGES]; /* parts of this rank, by stage */
    int n_parts;
    int first_part, last_part; /* those of the last forward */
    bool ready;                /* a forward with keep stands */
    bool on_gpu;               /* where it was */
    uint32_t update;           /* its number: dropout's key points here */
    gmn_inputs inputs;
    gmn_cuda_cache gpu;
} gmn_field;

static gmn_field *own(wf_field *field) { return (gmn_field *)field; }
static const gmn_field *own_const(const wf_field *field) { return (const gmn_field *)field; }

/* Whether kernels read a tensor as a matrix: all but biases and vectors. */
static bool packed(const wf_field_tensor *tensor) { return tensor->cols > 1 || tensor->decay; }

static void gmn_free(wf_field *base);

/* A file may lie about widths: its count is compared before anything of that size is allocated. */
static wf_status check_params(wf_ctx *ctx, const wf_field_desc *desc, size_t params) {
    size_t needed;
    if (params == 0) return WF_OK;
    WF_TRY(wf_field_count(ctx, desc, &needed));
    if (needed == params) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "the field it describes has %zu parameters, the file stores %zu", needed,
                   params);
}

static wf_status gmn_create(wf_ctx *ctx, const wf_field_kind *kind, const void *options,
                            const wf_graph *graph, wf_dtype dtype, size_t params, wf_field **out) {
    const wf_field_desc *desc = options;
    (void)graph; /* it takes any */
    *out = NULL;
    WF_TRY(check_params(ctx, desc, params));
    gmn_field *field;
    WF_TRY(wf_alloc(ctx, 1, sizeof *field, "a velocity field", &field));
    wf_status status;
    WF_TRY_GOTO(wf__gmn_layout_create(ctx, desc, &field->layout), bad);
    field->base = (wf_field){.kind = kind,
                             .dtype = dtype,
                             .params = field->layout.params,
                             .tensors = field->layout.tensors,
                             .n_tensors = field->layout.count,
                             .cond_size = desc->cond == WF_COND_NONE ? 0 : desc->cond_size,
                             .folds = desc->fold_rows > 0,
                             .seed = desc->seed};
    field->size = dtype == WF_F64 ? sizeof(double) : sizeof(float);
    size_t total = 0;
    WF_TRY_GOTO(wf_alloc(ctx, (size_t)field->layout.count, sizeof *field->panel_offset,
                         "the field's panels", &field->panel_offset),
                bad);
    for (int i = 0; i < field->layout.count; i++) {
        const wf_field_tensor *tensor = &field->layout.tensors[i];
        field->panel_offset[i] = total;
        if (packed(tensor))
            total += wf_panel_size(tensor->rows, tensor->cols) +
                     wf_panel_size(tensor->cols, tensor->rows);
    }
    WF_TRY_GOTO(wf_alloc(ctx, total, field->size, "the field's packed weights", &field->panels),
                bad);
    if (desc->encoder == WF_ENCODER_FOURIER) {
        size_t count = wf__gmn_fourier_size(desc);
        WF_TRY_GOTO(wf_alloc(ctx, count, field->size, "Fourier features", &field->fourier), bad);
        wf_rng rng = wf_rng_at(desc->seed, 0, WF_RNG_FOURIER, 0);
        wf_fill_normals(dtype, field->fourier, count, &rng, fourier_std);
    }
    *out = &field->base;
    return WF_OK;
bad:
    gmn_free(&field->base);
    return status;
}

static void gmn_free(wf_field *base) {
    gmn_field *field = own(base);
    for (int i = 0; i < most_parts; i++) {
        wf_tape_free(&field->parts[i].tape);
        free(field->parts[i].grad);
    }
    wf__gmn_cuda_cache_free(&field->gpu);
    wf__gmn_layout_free(&field->layout);
    free(field->panel_offset);
    free(field->panels);
    free(field->fourier);
    free(field);
}

static void gmn_init(const wf_field *field, uint64_t seed, void *params) {
    wf_params_init(field->tensors, field->n_tensors, field->dtype, seed, params);
}

/* Whether edges with so many coefficients have an encoder and a readout. */
static bool has_code(const wf_field_desc *desc, int coef) {
    int kernels[WF_KERNELS], n = wf__gmn_kernels(desc, kernels);
    bool found = coef == 1;
    for (int k = 0; k < n; k++) found = found || kernels[k] == coef;
    return found;
}

/* --- checks of a batch ------------------------------------------------------------------------ */
static wf_status check_batch(wf_ctx *ctx, const gmn_field *field, const wf_batch *batch,
                             const void *cond) {
    const wf_field_desc *desc = &field->layout.desc;
    if (batch->n_graphs < 1) return wf_fail(ctx, WF_ERR_SHAPE, "field: a batch without networks");
    if (batch->n_params > INT32_MAX || batch->n_edges > INT32_MAX / 4)
        return wf_fail(ctx, WF_ERR_SHAPE,
                       "field: %zu parameters in one batch are too many; use smaller batches",
                       batch->n_params);
    for (size_t b = 0; b < batch->n_blocks; b++)
        if (!has_code(desc, batch->blocks[b].coef))
            return wf_fail(ctx, WF_ERR_SHAPE,
                           "field: edges of %d coefficients; this field has no code for them, only "
                           "for 1 and the kernels that it was fitted to",
                           batch->blocks[b].coef);
    for (int f = 0; f < batch->n_folds; f++) {
        int row = batch->folds[f].n_src + (batch->folds[f].has_bias ? 1 : 0);
        if (row > desc->fold_rows)
            return wf_fail(ctx, WF_ERR_SHAPE,
                           "field: a folded row has %d parameters, this field's has %d; set "
                           "fold_rows or do not fold",
                           row, desc->fold_rows);
    }
    for (int r = 0; r < batch->n_node_roles; r++)
        if (batch->node_roles[r].type < 0 || batch->node_roles[r].type >= GMN_NODE_TYPES)
            return wf_fail(ctx, WF_ERR_SHAPE, "field: node type %d, there are %d",
                           batch->node_roles[r].type, GMN_NODE_TYPES);
    for (int r = 0; r < batch->n_edge_roles; r++)
        if (batch->edge_roles[r].type < 0 || batch->edge_roles[r].type >= GMN_EDGE_TYPES)
            return wf_fail(ctx, WF_ERR_SHAPE, "field: edge type %d, there are %d",
                           batch->edge_roles[r].type, GMN_EDGE_TYPES);
    if (desc->cond != WF_COND_NONE && cond == NULL)
        return wf_fail(ctx, WF_ERR_SHAPE, "field: it takes a condition of %d values, none given",
                       desc->cond_size);
    return WF_OK;
}

/* --- parts ------------------------------------------------------------------------------------ */
/* Contiguous graphs of about equal work, by the batch alone. */
static void cut(gmn_field *field, const wf_batch *batch) {
    int parts = field->layout.params > large_field ? parts_of_large_fields : most_parts;
    if (parts > batch->n_graphs) parts = batch->n_graphs;
    /* Each part has a gradient to clear and to add, so small batches have few parts. */
    if ((size_t)parts > batch->n_edges / least_edges + 1)
        parts = (int)(batch->n_edges / least_edges) + 1;
    double total = (double)batch->n_edges + 4 * (double)batch->n_nodes;
    int graph = 0;
    for (int p = 0; p < parts; p++) {
        gmn_part *part = &field->parts[p];
        part->first_graph = graph;
        int least = graph + 1, most = batch->n_graphs - (parts - 1 - p);
        graph = least;
        while (graph < most &&
               (double)batch->edge_start[graph] + 4 * (double)batch->node_start[graph] <
                   total * (p + 1) / parts)
            graph++;
        part->last_graph = graph;
    }
    field->parts[parts - 1].last_graph = batch->n_graphs;
    field->n_parts = parts;
}

static void pack_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    gmn_field *field = arg;
    const gmn_inputs *in = &field->inputs;
    const wf_field_tensor *tensor = &field->layout.tensors[chunk];
    if (!packed(tensor)) return;
    char *panels = (char *)field->panels + field->panel_offset[chunk] * field->size;
    char *panels_t = panels + wf_panel_size(tensor->rows, tensor->cols) * field->size;
    in->backend->pack(in->backend, (const char *)in->params + tensor->offset * field->size,
                      tensor->rows, tensor->cols, in->keep ? panels : NULL, panels_t);
}

static void forward_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    gmn_field *field = arg;
    wf__gmn_part_forward(&field->parts[field->first_part + (int)chunk], &field->inputs);
}

static wf_status check_parts(wf_ctx *ctx, const gmn_field *field) {
    for (int p = field->first_part; p < field->last_part; p++)
        if (field->parts[p].tape.failed)
            return wf_fail(ctx, WF_ERR_MEMORY,
                           "field: no memory for the activations of the batch; use smaller batches "
                           "or a smaller field");
    return WF_OK;
}

static gmn_cuda_desc cuda_desc(const gmn_field *field) {
    return (gmn_cuda_desc){
        .field = &field->base, .layout = &field->layout, .fourier = field->fourier};
}

static wf_status gmn_forward(wf_ctx *ctx, wf_field *base, const void *params,
                             const wf_field_input *input, void *v) {
    gmn_field *field = own(base);
    const wf_batch *batch = input->batch;
    bool keep = input->keep;
    field->ready = false;
    field->on_gpu = false;
    WF_TRY(check_batch(ctx, field, batch, input->cond));
    bool drops = input->training && field->layout.desc.dropout > 0;
    /* Programs over host arrays have no dropout, those of training loops do. */
    if (field->base.dtype == WF_F32 && !drops) WF_TRY(wf_use_cuda(ctx, &field->on_gpu));
    if (field->on_gpu) {
        gmn_cuda_desc desc = cuda_desc(field);
        WF_TRY(wf__gmn_cuda_field_forward(ctx, &field->gpu, &desc, params, input, v));
        field->ready = keep;
        return WF_OK;
    }
    cut(field, batch);
    field->update = input->update;
    field->first_part = input->last_part > 0 ? input->first_part : 0;
    field->last_part = input->last_part > 0 ? input->last_part : field->n_parts;
    for (int p = field->first_part; keep && p < field->last_part; p++)
        if (field->parts[p].grad == NULL)
            WF_TRY(wf_alloc(ctx, field->layout.params, field->size, "partial gradients",
                            &field->parts[p].grad));
    field->inputs = (gmn_inputs){.layout = &field->layout,
                                 .backend = wf_backend_cpu(field->base.dtype),
                                 .dtype = field->base.dtype,
                                 .params = params,
                                 .panel_offset = field->panel_offset,
                                 .panels = field->panels,
                                 .fourier = field->fourier,
                                 .batch = batch,
                                 .w = input->w,
                                 .t = input->t,
                                 .cond = input->cond,
                                 .drop = input->drop,
                                 .dropout = {input->seed, drops ? &field->update : NULL, 0},
                                 .keep = keep,
                                 .v = v,
                                 .watched = ctx};
    wf_parallel(ctx, (size_t)field->layout.count, pack_chunk, field);
    wf_parallel(ctx, (size_t)(field->last_part - field->first_part), forward_chunk, field);
    WF_TRY(check_parts(ctx, field));
    field->ready = keep;
    return WF_OK;
}

static wf_status gmn_record(wf_ctx *ctx, const wf_field *base, const wf_field_program_desc *desc,
                            wf_field_program **out) {
    const gmn_field *field = own_const(base);
    *out = NULL;
    /* Conditions lie in the program's buffers: anything but NULL stands for them here. */
    WF_TRY(check_batch(ctx, field, desc->batch, field));
    gmn_cuda_desc own_desc = cuda_desc(field);
    return wf__gmn_cuda_create(ctx, &own_desc, desc, out);
}

/* --- backward --------------------------------------------------------------------------------- */
typedef struct backward_work {
    gmn_field *field;
    const void *dv;
    void *grad, *dw;
} backward_work;

static int stage_of(const void *watch_, const void *grad) {
    const part_watch *watch = watch_;
    const wf_field *base = &watch->field->base;
    const char *first = watch->part->grad, *at = grad;
    if (at < first) return -1;
    int tensor =
        wf_params_find(base->tensors, base->n_tensors, (size_t)(at - first) / watch->field->size);
    return tensor < 0 ? -1 : base->stages.of[tensor];
}

/* The last part tells the caller. A part that is told of one stage has told of those before it, so
 * the caller hears of them in their order. */
static void stage_is_over(void *watch_, int stage) {
    const part_watch *watch = watch_;
    const wf_field_stages *stages = &watch->field->base.stages;
    if (atomic_fetch_sub(&watch->field->unfinished[stage], 1) == 1)
        stages->over(stages->user, stage);
}

static void watch_stages(gmn_field *field) {
    int parts = field->last_part - field->first_part, count = field->base.stages.count;
    for (int stage = 0; stage < count; stage++) atomic_store(&field->unfinished[stage], parts);
    for (int p = field->first_part; p < field->last_part; p++) {
        field->watches[p] = (part_watch){field, &field->parts[p]};
        field->parts[p].tape.stages =
            (wf_tape_stages){count, stage_of, stage_is_over, &field->watches[p]};
    }
}

static void backward_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    backward_work *work = arg;
    gmn_part *part = &work->field->parts[work->field->first_part + (int)chunk];
    wf__gmn_part_backward(part, &work->field->inputs, work->dv, work->dw);
}

#define REDUCE(type)                                                                               \
    do {                                                                                           \
        type *out = (type *)work->grad + first;                                                    \
        memcpy(out, (const type *)work->field->parts[0].grad + first, count * sizeof(type));       \
        for (int p = 1; p < work->field->n_parts; p++) {                                           \
            const type *partial = (const type *)work->field->parts[p].grad + first;                \
            for (size_t i = 0; i < count; i++) out[i] += partial[i];                               \
        }                                                                                          \
    } while (0)

static void reduce_chunk(void *arg, size_t chunk, int worker) {
    (void)worker;
    backward_work *work = arg;
    size_t first = chunk * reduce_span, count = work->field->layout.params - first;
    if (count > reduce_span) count = reduce_span;
    if (work->field->base.dtype == WF_F64) REDUCE(double);
    else REDUCE(float);
}

static wf_status gmn_backward(wf_ctx *ctx, wf_field *base, const void *dv, void *grad, void *dw) {
    gmn_field *field = own(base);
    if (!field->ready)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "field: backward without a forward that keeps activations");
    field->ready = false;
    if (field->on_gpu) return wf__gmn_cuda_field_backward(ctx, &field->gpu, dv, grad, dw);
    backward_work work = {field, dv, grad, dw};
    watch_stages(field);
    wf_parallel(ctx, (size_t)(field->last_part - field->first_part), backward_chunk, &work);
    WF_TRY(check_parts(ctx, field));
    if (field->last_part - field->first_part < field->n_parts) return WF_OK;
    wf_parallel(ctx, (field->layout.params + reduce_span - 1) / reduce_span, reduce_chunk, &work);
    return WF_OK;
}

static int gmn_parts(wf_field *base, const wf_batch *batch, int start[WF_FIELD_PARTS + 1]) {
    gmn_field *field = own(base);
    cut(field, batch);
    for (int p = 0; p < field->n_parts; p++) start[p] = field->parts[p].first_graph;
    start[field->n_parts] = batch->n_graphs;
    return field->n_parts;
}

static bool gmn_add(wf_field *base, size_t first, size_t n, float *running, bool fresh) {
    const gmn_field *field = own(base);
    for (int p = field->first_part; p < field->last_part; p++) {
        const float *partial = (const float *)field->parts[p].grad + first;
        if (fresh && p == field->first_part) memcpy(running, partial, n * sizeof *running);
        else
            for (size_t i = 0; i < n; i++) running[i] += partial[i];
    }
    return true;
}

static double gmn_flops(const wf_field *base) {
    const gmn_field *field = own_const(base);
    if (field->on_gpu) return wf__gmn_cuda_cache_flops(&field->gpu);
    double sum = 0;
    for (int p = field->first_part; p < field->last_part; p++)
        sum += wf_tape_flops(&field->parts[p].tape);
    return sum;
}

/* --- what is fitted --------------------------------------------------------------------------- */

static wf_status adapt_conditions(wf_ctx *ctx, wf_field_desc *desc, int cond_size) {
    if (desc->cond == WF_COND_NONE && (desc->cond_size != 0 || cond_size != 0))
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "conditions have %d numbers, but model.cond is none; set it to linear or mlp",
            desc->cond_size != 0 ? desc->cond_size : cond_size);
    if (desc->cond == WF_COND_NONE) return WF_OK;
    if (desc->cond_size == 0) desc->cond_size = cond_size;
    if (desc->cond_size == 0)
        return wf_fail(
            ctx, WF_ERR_USAGE,
            "model.cond is set; say how many numbers a condition has in model.cond_size");
    if (cond_size == 0 || cond_size == desc->cond_size) return WF_OK;
    return wf_fail(ctx, WF_ERR_USAGE, "conditions have %d numbers, model.cond_size is %d",
                   cond_size, desc->cond_size);
}

/* Edges carry one number, or a kernel; the field gets an encoder and a readout for each size. */
static wf_status adapt_kernels(wf_ctx *ctx, wf_field_desc *desc, const wf_graph *graph) {
    int *const more[WF_KERNELS] = {&desc->max_coef, &desc->kernel_2, &desc->kernel_3,
                                   &desc->kernel_4};
    for (int b = 0; b < graph->n_blocks; b++) {
        int kernels[WF_KERNELS], coef = graph->blocks[b].coef;
        if (graph->blocks[b].folded || has_code(desc, coef)) continue;
        int n = wf__gmn_kernels(desc, kernels);
        if (n == WF_KERNELS || coef > most_coef)
            return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                           "%.200s: %s has edges of %d coefficients; gmn takes kernels of at most "
                           "%d sizes beside single weights, of at most %d coefficients",
                           graph->text, graph->blocks[b].name, coef, WF_KERNELS, most_coef);
        *more[n] = coef;
    }
    return WF_OK;
}

/* Conditions are as long as given; a folded row is as long as the longest. */
static wf_status gmn_adapt(wf_ctx *ctx, void *options, const wf_graph *const *graphs, int n_graphs,
                           int cond_size) {
    wf_field_desc *desc = options;
    WF_TRY(adapt_conditions(ctx, desc, cond_size));
    for (int g = 0; g < n_graphs; g++) WF_TRY(adapt_kernels(ctx, desc, graphs[g]));
    for (int g = 0; desc->fold && g < n_graphs; g++) {
        const wf_graph *graph = graphs[g];
        if (graph->n_orbits == 0)
            return wf_fail(ctx, WF_ERR_USAGE, "model.fold needs a hidden layer; %s has none",
                           graph->text);
        int rows = wf_graph_fold_rows(graph);
        if (rows > desc->fold_rows) desc->fold_rows = rows;
    }
    return WF_OK;
}

/* --- the table -------------------------------------------------------------------------------- */

/* Roughly what a block holds of the edges' features. */
static size_t gmn_bytes(const wf_field *base, const wf_graph *graph) {
    enum { copies_of_edges = 6 };
    size_t edge = (size_t)own_const(base)->layout.desc.edge;
    return graph->n_params * edge * sizeof(float) * copies_of_edges;
}

const wf_field_kind wf__field_gmn = {
    .name = "gmn",
    .about = "flow whose field is a graph metanetwork: equivariant, any architecture, conditions",
    .traits = WF_GENERATOR_ANY_ARCHITECTURE | WF_GENERATOR_CONDITIONS | WF_GENERATOR_EQUIVARIANT,
    .settings = wf_field_settings,
    .options_size = sizeof(wf_field_desc),
    .adapt = gmn_adapt,
    .create = gmn_create,
    .free = gmn_free,
    .init = gmn_init,
    .forward = gmn_forward,
    .backward = gmn_backward,
    .parts = gmn_parts,
    .add = gmn_add,
    .tells_stages = true,
    .flops = gmn_flops,
    .bytes = gmn_bytes,
    .record = gmn_record};
