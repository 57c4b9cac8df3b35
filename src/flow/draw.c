#include "flow/draw.h"

#include "base/pool.h"
#include "base/random.h"
#include "flow/match_ahead.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t largest_network(const wf_training_set *set) {
    size_t largest = 0;
    for (int s = 0; s < set->n_families; s++)
        if (set->families[s].graph->n_params > largest) largest = set->families[s].graph->n_params;
    return largest;
}

static wf_status draw_alloc(wf_ctx *ctx, wf_draw *draw) {
    size_t batch = (size_t)draw->batch, cond = (size_t)draw->set->cond_size;
    size_t all = batch * largest_network(draw->set);
    const char *what = "training batch";
    wf_flow_batch *flow = &draw->flow;
    float **arrays[] = {&flow->w0, &flow->w1, &flow->wt, &flow->x, &flow->f};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        WF_TRY(wf_alloc(ctx, all, sizeof(float), what, arrays[i]));
    WF_TRY(wf_alloc(ctx, batch, sizeof(float), what, &flow->t));
    WF_TRY(wf_alloc(ctx, batch, sizeof *flow->scale, what, &flow->scale));
    WF_TRY(wf_alloc(ctx, batch, sizeof *flow->axes, what, &flow->axes));
    WF_TRY(wf_alloc(ctx, batch, sizeof *flow->loss_weights, what, &flow->loss_weights));
    WF_TRY(wf_alloc(ctx, batch, sizeof(double), what, &flow->loss));
    if (cond > 0) {
        WF_TRY(wf_alloc(ctx, batch * cond, sizeof(float), what, &flow->cond));
        WF_TRY(wf_alloc(ctx, batch, 1, what, &flow->drop));
    }
    WF_TRY(wf_alloc(ctx, batch, sizeof *draw->graphs, what, &draw->graphs));
    WF_TRY(wf_alloc(ctx, batch, sizeof(uint32_t), what, &draw->source));
    WF_TRY(wf_alloc(ctx, batch, sizeof(uint32_t), what, &draw->network));
    return wf_alloc(ctx, batch, sizeof(uint32_t), what, &draw->order);
}

/* One matcher for each architecture that has hidden units. */
static wf_status open_matchers(wf_ctx *ctx, wf_draw *draw, const wf_fit_desc *desc) {
    const wf_training_set *set = draw->set;
    wf_match_desc match = wf_match_desc_default();
    match.sweeps = desc->match_sweeps;
    match.seed = desc->seed;
    WF_TRY(wf_alloc(ctx, (size_t)set->n_families, sizeof *draw->matchers, "matching",
                    &draw->matchers));
    for (int s = 0; s < set->n_families; s++)
        if (set->families[s].graph->n_orbits > 0)
            WF_TRY(wf__matcher_open(ctx, set->families[s].graph, &match, &draw->matchers[s]));
    return WF_OK;
}

wf_status wf_draw_create(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *desc,
                         wf_draw *out) {
    *out = (wf_draw){.set = set,
                     .batch = (int)desc->batch,
                     .seed = desc->seed,
                     .source_std = desc->source_std,
                     .cond_drop = desc->cond_drop,
                     .noise_table = (uint32_t)desc->noise_table,
                     .epochs = desc->epochs,
                     .relabel = desc->relabel,
                     .signs = desc->signs,
                     .time_law = desc->time_law,
                     .shape_fixed = set->n_families == 1};
    out->flow.shape = &out->shape;
    wf_status status = draw_alloc(ctx, out);
    if (status == WF_OK && desc->coupling == WF_COUPLING_MATCHED)
        status = open_matchers(ctx, out, desc);
    if (status == WF_OK && (out->relabel || out->signs)) {
        out->most_units = wf_match_units(set) + 1;
        status = wf_alloc(ctx, (size_t)wf_ctx_threads(ctx) * out->most_units, sizeof *out->units,
                          "relabellings", &out->units);
    }
    if (status == WF_OK && out->shape_fixed) {
        for (int b = 0; b < out->batch; b++) out->graphs[b] = set->families[0].graph;
        status = wf_batch_build(ctx, &out->shape_arena, out->graphs, out->batch, &out->shape);
    }
    if (status != WF_OK) wf_draw_free(out);
    return status;
}

void wf_draw_free(wf_draw *draw) {
    for (int s = 0; draw->matchers != NULL && s < draw->set->n_families; s++)
        wf__matcher_close(draw->matchers[s]);
    wf_flow_batch *flow = &draw->flow;
    void *memory[] = {flow->w0,       flow->w1,     flow->wt,      flow->x,
                      flow->f,        flow->t,      flow->scale,   flow->loss,
                      flow->cond,     flow->drop,   flow->axes,    (void *)flow->loss_weights,
                      draw->graphs,   draw->source, draw->network, draw->order,
                      draw->matchers, draw->units};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    wf_arena_free(&draw->shape_arena);
    *draw = (wf_draw){0};
}

void wf_draw_split(const wf_ctx *ctx, wf_draw *draw, wf_field *field) {
    draw->split = wf_split_start(ctx, field);
    if (draw->split.field == NULL) return;
    draw->flow.split = &draw->split;
    if (draw->shape.n_graphs > 0) wf_split_batch(&draw->split, &draw->shape);
}

/* The places that this rank fills. */
static wf_range places_of(const wf_draw *draw) {
    if (draw->flow.split == NULL) return (wf_range){0, (size_t)draw->batch};
    return wf_split_networks(&draw->split, draw->split.rank);
}

void wf_draw_order(const wf_training_set *set, int batch, const uint32_t *source, uint32_t *order) {
    int place = 0;
    for (int s = 0; s < set->n_families; s++)
        for (int b = 0; b < batch; b++)
            if (set->sources[source[b]].family == s) order[place++] = (uint32_t)b;
}

static void choose_networks(wf_draw *draw, uint32_t update) {
    const wf_training_set *set = draw->set;
    for (int b = 0; b < draw->batch; b++) {
        wf_rng rng = wf_rng_at(draw->seed, (uint32_t)b, WF_RNG_BATCH, update);
        draw->source[b] = draw->only != NULL ? draw->only[b % draw->n_only]
                                             : wf_draw_source(set, draw->batch, update, b);
        const wf_training_source *source = &set->sources[draw->source[b]];
        if (draw->held_out)
            draw->network[b] = (uint32_t)((size_t)(b / draw->n_only) % source->held_out_count);
        else if (draw->epochs)
            draw->network[b] = wf_epoch_network(draw->seed, (uint32_t)source->count,
                                                (uint32_t)draw->batch, update, (uint32_t)b);
        else draw->network[b] = wf_rng_below(&rng, (uint32_t)source->count);
    }
    wf_draw_order(set, draw->batch, draw->source, draw->order);
}

static int place_family(const wf_draw *draw, int place) {
    return draw->set->sources[draw->source[draw->order[place]]].family;
}

typedef struct fill_call {
    wf_draw *draw;
    uint32_t update;
    size_t first;
} fill_call;

static float draw_time(const wf_draw *draw, wf_rng *rng) {
    if (draw->time_law == WF_TIME_UNIFORM) return wf_rng_uniform(rng);
    if (draw->time_law == WF_TIME_LATE) return fmaxf(wf_rng_uniform(rng), wf_rng_uniform(rng));
    uint32_t a = wf_rng_u32(rng), b = wf_rng_u32(rng);
    float deviate, other;
    wf_box_muller(a, b, &deviate, &other);
    return 1 / (1 + wf_expf(-deviate));
}

/* Vector k of a fixed noise table is stream (seed, k, WF_RNG_NOISE, last step), which no update
 * uses. So the table needs no memory. */
static void draw_noise(const wf_draw *draw, wf_rng *choice, uint32_t place, uint32_t update,
                       float *out, size_t n) {
    wf_rng rng = wf_rng_at(draw->seed, place, WF_RNG_NOISE, update);
    if (draw->noise_table > 0) {
        uint32_t which = draw->epochs ? wf_epoch_noise(draw->seed, draw->noise_table,
                                                       (uint32_t)draw->batch, update, place)
                                      : wf_rng_below(choice, draw->noise_table);
        rng = wf_rng_at(draw->seed, which, WF_RNG_NOISE, UINT32_MAX);
    }
    wf_rng_normals(&rng, out, n);
}

/* Flips the signs of all weights and biases of some hidden units, by place and update. */
static void flip_signs(const wf_draw *draw, const wf_graph *graph, uint32_t place, uint32_t update,
                       float *w) {
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        int to = graph->groups[block->dst].orbit, from = graph->groups[block->src].orbit;
        uint32_t to_first = to < 0 ? 0 : (uint32_t)wf_graph_perm_start(graph, to);
        uint32_t from_first = from < 0 ? 0 : (uint32_t)wf_graph_perm_start(graph, from);
        uint32_t n_src = (uint32_t)graph->groups[block->src].n;
        for (uint32_t i = 0; i < block->count; i++) {
            bool flip = to >= 0 && wf_random_flip(draw->seed, place, update, to_first + i / n_src);
            if (from >= 0 && wf_random_flip(draw->seed, place, update, from_first + i % n_src))
                flip = !flip;
            if (flip) w[block->offset + i] = -w[block->offset + i];
        }
    }
}

/* A copy of w1 with hidden units in an order, and with signs, that belong to the place and the
 * update. */
static void draw_copy(const wf_draw *draw, const wf_graph *graph, uint32_t place, uint32_t update,
                      int worker, const float *w1, float *out) {
    uint32_t *from = draw->units + (size_t)worker * draw->most_units;
    for (int o = 0; o < graph->n_orbits; o++) {
        uint32_t start = (uint32_t)graph->orbit_start[o];
        uint32_t n = (uint32_t)graph->orbit_start[o + 1] - start;
        wf_rng order = wf_relabel_order(draw->seed, place, (uint32_t)draw->batch, update, start);
        for (uint32_t u = 0; u < n; u++)
            from[start + u] = draw->relabel ? wf_rng_permuted(&order, n, u) : u;
    }
    wf_graph_permute_inverse(graph, from, w1, out);
    if (draw->signs) flip_signs(draw, graph, place, update, out);
}

static void fill_place(void *arg, size_t chunk, int worker) {
    const fill_call *call = arg;
    wf_draw *draw = call->draw;
    size_t place = call->first + chunk;
    const wf_training_set *set = draw->set;
    wf_flow_batch *flow = &draw->flow;
    uint32_t drawn = draw->order[place], source = draw->source[drawn], b = (uint32_t)place;
    const wf_training_source *from = &set->sources[source];
    const wf_family *family = &set->families[from->family];
    size_t n = family->graph->n_params, start = draw->shape.param_start[place];
    if (draw->units != NULL) {
        float *original = flow->w0 + start; /* free until the noise is drawn */
        wf_source_network(set, from, draw->held_out, draw->network[drawn], original);
        draw_copy(draw, family->graph, b, call->update, worker, original, flow->w1 + start);
    } else wf_source_network(set, from, draw->held_out, draw->network[drawn], flow->w1 + start);
    wf_rng rng = wf_rng_at(draw->seed, b, WF_RNG_TIME, call->update);
    flow->t[place] = draw_time(draw, &rng);
    flow->axes[place] = wf_principal_axes(&family->principal, family->graph);
    flow->loss_weights[place] = family->loss_weights;
    draw_noise(draw, &rng, b, call->update, flow->w0 + start, n);
    if (draw->source_std != 1)
        for (size_t i = start; i < start + n; i++) flow->w0[i] *= (float)draw->source_std;
    if (flow->cond == NULL) return;
    size_t k = (size_t)set->cond_size;
    memcpy(flow->cond + place * k, set->cond + source * k, k * sizeof(float));
    rng = wf_rng_at(draw->seed, b, WF_RNG_DROP, call->update);
    flow->drop[place] = wf_rng_uniform(&rng) < draw->cond_drop;
}

/* Matches the noise of each family's networks, which are neighbours, to their targets. With `from`
 * only the relabellings are wanted. */
static wf_status match_noise(wf_ctx *ctx, wf_draw *draw, uint32_t *from, size_t units) {
    wf_range own = places_of(draw);
    int end = (int)own.last;
    for (int first = (int)own.first, to; first < end; first = to) {
        int family = place_family(draw, first);
        for (to = first + 1; to < end && place_family(draw, to) == family;) to++;
        wf_matcher *matcher = draw->matchers[family];
        if (matcher == NULL) continue;
        size_t start = draw->shape.param_start[first], count = (size_t)(to - first);
        const float *w1 = draw->flow.w1 + start;
        float *w0 = draw->flow.w0 + start;
        if (from == NULL) WF_TRY(wf__matcher_run(ctx, matcher, w1, 1, w0, count));
        else
            WF_TRY(wf__matcher_find(ctx, matcher, w1, 1, w0, count, from + (size_t)first * units,
                                    units));
    }
    return WF_OK;
}

static wf_status fill_batch(wf_ctx *ctx, wf_draw *draw, size_t update) {
    choose_networks(draw, (uint32_t)update);
    if (!draw->shape_fixed) {
        for (int b = 0; b < draw->batch; b++)
            draw->graphs[b] = draw->set->families[place_family(draw, b)].graph;
        wf_arena_reset(&draw->shape_arena);
        WF_TRY(wf_batch_build(ctx, &draw->shape_arena, draw->graphs, draw->batch, &draw->shape));
    }
    if (draw->flow.split != NULL) wf_split_batch(&draw->split, &draw->shape);
    wf_range own = places_of(draw);
    fill_call call = {draw, (uint32_t)update, own.first};
    wf_parallel(ctx, own.last - own.first, fill_place, &call);
    return WF_OK;
}

wf_status wf_draw_batch(wf_ctx *ctx, wf_draw *draw, size_t update) {
    WF_TRY(fill_batch(ctx, draw, update));
    return draw->matchers != NULL ? match_noise(ctx, draw, NULL, 0) : WF_OK;
}

wf_status wf_draw_relabellings(wf_ctx *ctx, wf_draw *draw, size_t update, uint32_t *from,
                               size_t units) {
    WF_TRY(fill_batch(ctx, draw, update));
    return match_noise(ctx, draw, from, units);
}
