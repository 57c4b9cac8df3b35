/* match_plan: see match_plan.h for the layout. */
#include "align/match_plan.h"

#include <stdlib.h>
#include <string.h>

enum { align_floats = 16, most_tabled = 64 };

static size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* How a block's side takes part in the matching. */
typedef enum role { ROLE_NONE, ROLE_FIXED, ROLE_LINK, ROLE_REST } role;

static role role_of(const wf_block_side *side, int which) {
    if (side->orbit >= 0) return side->other_orbit < 0 ? ROLE_FIXED : ROLE_LINK;
    return side->other_orbit < 0 && which == WF_SIDE_DST ? ROLE_REST : ROLE_NONE;
}

static void place_orbits(wf_match_plan *plan) {
    for (int o = 0; o < plan->n_orbits; o++) {
        wf_match_orbit *orbit = &plan->orbits[o];
        orbit->n = wf__orbit_size(plan->graph, o);
        orbit->padded = (int)round_up((size_t)orbit->n, WF_MATCH_PAD);
        orbit->start = (int)wf_graph_perm_start(plan->graph, o);
        orbit->price = plan->prices;
        plan->prices += orbit->padded;
        if (orbit->padded > plan->widest) plan->widest = orbit->padded;
    }
}

/* Depths of the fixed products, links sorted by the orbit they score, length of the rest. */
static void collect_terms(wf_match_plan *plan) {
    for (int o = 0; o < plan->n_orbits; o++) {
        wf_match_orbit *orbit = &plan->orbits[o];
        orbit->first_link = plan->n_links;
        orbit->has_loop = wf__orbit_has_loop(plan->graph, o);
        for (int block = 0; block < plan->graph->n_blocks; block++)
            for (int s = 0; s < WF_SIDES; s++) {
                wf_block_side side = wf__block_side(plan->graph, block, s);
                if (side.orbit != o || !wf__block_matched(plan->graph, block)) continue;
                size_t depth = (size_t)side.n_other * side.coef;
                if (role_of(&side, s) == ROLE_FIXED) {
                    orbit->depth += depth;
                    continue;
                }
                plan->links[plan->n_links++] = (wf_match_link){.orbit = o,
                                                               .other = side.other_orbit,
                                                               .coef = side.coef,
                                                               .depth = depth,
                                                               .counted = s == WF_SIDE_DST};
                if (depth > plan->deepest) plan->deepest = depth;
            }
        orbit->n_links = plan->n_links - orbit->first_link;
    }
    for (int block = 0; block < plan->graph->n_blocks; block++) {
        wf_block_side side = wf__block_side(plan->graph, block, WF_SIDE_DST);
        if (role_of(&side, WF_SIDE_DST) == ROLE_REST && wf__block_matched(plan->graph, block))
            plan->rest += plan->graph->blocks[block].count;
    }
}

static size_t take(size_t *end, size_t floats) {
    size_t start = *end;
    *end += round_up(floats, align_floats);
    return start;
}

static void place_parts(wf_match_plan *plan) {
    for (int o = 0; o < plan->n_orbits; o++) {
        wf_match_orbit *orbit = &plan->orbits[o];
        orbit->a = take(&plan->query_floats, (size_t)orbit->n * orbit->depth);
        orbit->b = take(&plan->reference_floats, orbit->depth * (size_t)orbit->padded);
        orbit->score = take(&plan->score_floats, (size_t)orbit->n * (size_t)orbit->padded);
    }
    for (int l = 0; l < plan->n_links; l++) {
        wf_match_link *link = &plan->links[l];
        const wf_match_orbit *orbit = &plan->orbits[link->orbit];
        link->a = take(&plan->query_floats, (size_t)orbit->n * link->depth);
        link->b = take(&plan->reference_floats, link->depth * (size_t)orbit->padded);
    }
    plan->rest_a = take(&plan->query_floats, plan->rest);
    plan->rest_b = take(&plan->reference_floats, plan->rest);
}

wf_status wf__match_plan_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                              wf_match_plan *out) {
    *out = (wf_match_plan){.graph = graph, .desc = *desc, .n_orbits = graph->n_orbits, .widest = 1};
    wf_match_plan *plan = out;
    plan->n_units = (int)wf_graph_perm_size(graph);
    plan->tabled = desc->sweeps < most_tabled ? desc->sweeps : most_tabled;
    size_t orbits = (size_t)graph->n_orbits, runs = (size_t)desc->restarts + 1;
    wf_status status = WF_OK;
    WF_TRY_GOTO(wf_alloc(ctx, orbits, sizeof *plan->orbits, "matching", &plan->orbits), failed);
    WF_TRY_GOTO(
        wf_alloc(ctx, 2 * (size_t)graph->n_blocks, sizeof *plan->links, "matching", &plan->links),
        failed);
    WF_TRY_GOTO(wf_alloc(ctx, runs * (size_t)plan->tabled * orbits, sizeof(uint32_t), "matching",
                         &plan->order),
                failed);
    WF_TRY_GOTO(
        wf_alloc(ctx, runs * (size_t)plan->n_units, sizeof(uint32_t), "matching", &plan->start),
        failed);
    place_orbits(plan);
    collect_terms(plan);
    place_parts(plan);
    for (size_t restart = 0; restart < runs; restart++) {
        wf__match_start(graph, desc->seed, (uint32_t)restart,
                        plan->start + restart * (size_t)plan->n_units);
        for (int sweep = 0; sweep < plan->tabled; sweep++)
            wf__match_order(graph, desc->seed, (uint32_t)restart, (uint32_t)sweep,
                            plan->order +
                                (restart * (size_t)plan->tabled + (size_t)sweep) * orbits);
    }
    return WF_OK;
failed:
    wf__match_plan_close(plan);
    return status;
}

void wf__match_plan_close(wf_match_plan *plan) {
    free(plan->orbits);
    free(plan->links);
    free(plan->order);
    free(plan->start);
    *plan = (wf_match_plan){0};
}

/* out[unit*unit_out + column*column_out] for columns (other, k) of one side. */
static void copy_side(const wf_block_side *side, const float *w, float *out, size_t unit_out,
                      size_t column_out) {
    for (int unit = 0; unit < side->n; unit++) {
        const float *row = w + side->offset + (size_t)unit * side->unit_step;
        float *place = out + (size_t)unit * unit_out;
        for (int x = 0; x < side->n_other; x++)
            for (int k = 0; k < side->coef; k++) {
                *place = row[(size_t)x * side->other_step + (size_t)k];
                place += column_out;
            }
    }
}

static void pack(const wf_match_plan *plan, const float *w, bool query, float *record) {
    memset(record, 0, (query ? plan->query_floats : plan->reference_floats) * sizeof *record);
    float *rest = record + (query ? plan->rest_a : plan->rest_b);
    const wf_match_link *link = plan->links;
    for (int o = 0; o < plan->n_orbits; o++) {
        const wf_match_orbit *orbit = &plan->orbits[o];
        size_t padded = (size_t)orbit->padded, column = 0;
        for (int block = 0; block < plan->graph->n_blocks; block++)
            for (int s = 0; s < WF_SIDES; s++) {
                wf_block_side side = wf__block_side(plan->graph, block, s);
                if (side.orbit != o || !wf__block_matched(plan->graph, block)) continue;
                if (role_of(&side, s) == ROLE_LINK) {
                    if (query) copy_side(&side, w, record + link->a, link->depth, 1);
                    else copy_side(&side, w, record + link->b, 1, padded);
                    link++;
                } else {
                    if (query) copy_side(&side, w, record + orbit->a + column, orbit->depth, 1);
                    else copy_side(&side, w, record + orbit->b + column * padded, 1, padded);
                    column += (size_t)side.n_other * side.coef;
                }
            }
    }
    for (int block = 0; block < plan->graph->n_blocks; block++) {
        wf_block_side side = wf__block_side(plan->graph, block, WF_SIDE_DST);
        const wf_block *entry = &plan->graph->blocks[block];
        if (role_of(&side, WF_SIDE_DST) != ROLE_REST || !wf__block_matched(plan->graph, block))
            continue;
        memcpy(rest, w + entry->offset, entry->count * sizeof *rest);
        rest += entry->count;
    }
}

void wf__match_pack_query(const wf_match_plan *plan, const float *w, float *record) {
    pack(plan, w, true, record);
}

void wf__match_pack_reference(const wf_match_plan *plan, const float *w, float *record) {
    pack(plan, w, false, record);
}

/* Parts of one block of memory, each at a multiple of 64 bytes. With memory NULL only the size
 * is found. */
static size_t lay_out_work(const wf_match_plan *plan, uint8_t *memory, wf_match_work *work) {
    size_t widest = (size_t)plan->widest, units = (size_t)plan->n_units;
    const struct {
        void *part;
        size_t bytes;
    } parts[] = {{&work->score, widest * widest * sizeof(float)},
                 {&work->price, (size_t)plan->prices * sizeof(float)},
                 {&work->search, 4 * widest * sizeof(float)},
                 {&work->previous, widest * sizeof(int32_t)},
                 {&work->row_of, widest * sizeof(int32_t)},
                 {&work->free_rows, widest * sizeof(uint32_t)},
                 {&work->match, widest * sizeof(uint32_t)},
                 {&work->rows, plan->deepest * sizeof(uint32_t)},
                 {&work->from, units * sizeof(uint32_t)},
                 {&work->best_from, units * sizeof(uint32_t)},
                 {&work->order, (size_t)plan->n_orbits * sizeof(uint32_t)},
                 {&work->dirty, (size_t)plan->n_orbits * sizeof(bool)}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        void *place = memory == NULL ? NULL : memory + used;
        memcpy(parts[i].part, &place, sizeof place);
        used += round_up(parts[i].bytes, 64);
    }
    return used;
}

wf_status wf__match_work_open(wf_ctx *ctx, const wf_match_plan *plan, wf_match_work *out) {
    *out = (wf_match_work){0};
    size_t bytes = lay_out_work(plan, NULL, out);
    WF_TRY(wf_alloc(ctx, bytes, 1, "matching", &out->memory));
    lay_out_work(plan, out->memory, out);
    return WF_OK;
}

void wf__match_work_close(wf_match_work *work) {
    free(work->memory);
    *work = (wf_match_work){0};
}
