/* lstar_edges_cpu: the edge update of an lstar block, fused. Formula: wf_lstar_edges in
 * tensor/tape.h.
 *
 *   q1 = ee eb + ci[dst] + cj[src]  z1 = s(q1)  q2 = e2 z1 + c2  z2 = s(q2)  e' = e + e3 z2 + c3
 * Multiply-adds an edge at equal widths d: forward 8 d^2, backward 6 (again) + 16. */
#include "models/cpu/edge_tile.h"

typedef struct edge_mlp {
    const wf_op *op;
    const wf_tensor *e, *ci, *cj, *ee, *e2, *c2, *e3, *c3, *out;
    int de, hidden, ldh;
    edge_tile tile;
    real *z1, *z2, *o; /* (tile, ldh) twice, (tile, e->ld) */
} edge_mlp;

static bool mlp_start(edge_mlp *l, const wf_op *op, bool backward, wf_arena *arena) {
    *l = (edge_mlp){.op = op,
                    .e = op->in[0],
                    .ci = op->in[2],
                    .cj = op->in[3],
                    .ee = op->in[4],
                    .e2 = op->in[5],
                    .c2 = op->in[6],
                    .e3 = op->in[7],
                    .c3 = op->in[8],
                    .out = op->out[0]};
    l->de = l->e->cols;
    l->hidden = l->ee->rows;
    l->ldh = wf_pad(l->hidden);
    size_t count = (size_t)tile_rows * (size_t)l->ldh;
    l->z1 = scratch(arena, count);
    l->z2 = scratch(arena, count);
    l->o = scratch(arena, (size_t)tile_rows * (size_t)l->e->ld);
    return l->z1 != NULL && l->z2 != NULL && l->o != NULL &&
           tile_start(&l->tile, op, false, backward, arena);
}

static void mlp_hidden(edge_mlp *l, real *slope1, real *slope2) {
    int rows = l->tile.rows, first = l->tile.first;
    gemm_packed(l->z1, l->ldh, l->tile.eb, l->e->ld, l->ee->panels_t, rows, l->de, l->hidden,
                false);
    tile_act_args args = {.in = l->z1,
                          .out = l->z1,
                          .slope = slope1,
                          .ld = l->ldh,
                          .rows = rows,
                          .cols = l->hidden,
                          .a = l->ci,
                          .index_a = l->op->part->edge_dst + first,
                          .b = l->cj,
                          .index_b = l->op->part->edge_src + first};
    tile_act(l->op->act, &args);
    gemm_packed(l->z2, l->ldh, l->z1, l->ldh, l->e2->panels_t, rows, l->hidden, l->hidden, false);
    args.in = args.out = l->z2;
    args.slope = slope2;
    args.a = l->c2;
    args.b = NULL;
    args.index_a = args.index_b = NULL;
    tile_act(l->op->act, &args);
}

bool WF_FN(wf_lstar_edges_forward)(const wf_op *op, wf_arena *arena) {
    edge_mlp l;
    if (!mlp_start(&l, op, false, arena)) return false;
    const real *c3 = l.c3->data;
    while (tile_next(&l.tile)) {
        mlp_hidden(&l, NULL, NULL);
        gemm_packed(l.o, l.e->ld, l.z2, l.ldh, l.e3->panels_t, l.tile.rows, l.hidden, l.de, false);
        for (int r = 0; r < l.tile.rows; r++) {
            const real *in = row_of(l.e, l.tile.first + r), *o = l.o + (size_t)r * l.e->ld;
            real *out = row_of(l.out, l.tile.first + r);
            for (int c = 0; c < l.de; c++) out[c] = in[c] + o[c] + c3[c];
            for (int c = l.de; c < l.e->ld; c++) out[c] = 0;
        }
    }
    return true;
}

static void times(real *restrict x, const real *restrict slope, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] *= slope[i];
}

bool WF_FN(wf_lstar_edges_backward)(const wf_op *op, wf_arena *arena) {
    edge_mlp l;
    if (!mlp_start(&l, op, true, arena)) return false;
    size_t count = (size_t)tile_rows * (size_t)l.ldh;
    real *slope1 = scratch(arena, count), *slope2 = scratch(arena, count);
    real *dq = scratch(arena, count);
    if (slope1 == NULL || slope2 == NULL || dq == NULL) return false;
    const uint32_t *dst = op->part->edge_dst, *src = op->part->edge_src;
    int lde = l.e->ld;
    /* Padding of the slopes is never written by the activation: it must be finite. */
    memset(slope1, 0, count * sizeof(real));
    memset(slope2, 0, count * sizeof(real));
    while (tile_next(&l.tile)) {
        int rows = l.tile.rows, first = l.tile.first;
        size_t used = (size_t)rows * (size_t)l.ldh;
        mlp_hidden(&l, slope1, slope2);
        const real *de = grad_row(l.out, first);
        if (wanted(l.e3) && !weight_gradient(l.e3, de, lde, l.z2, l.ldh, rows, arena)) return false;
        if (wanted(l.c3)) column_sums(l.c3->grad, de, rows, l.de, lde);
        gemm_packed(dq, l.ldh, de, lde, l.e3->panels, rows, l.de, l.hidden, false);
        times(dq, slope2, used); /* dq2 */
        if (wanted(l.e2) && !weight_gradient(l.e2, dq, l.ldh, l.z1, l.ldh, rows, arena))
            return false;
        if (wanted(l.c2)) column_sums(l.c2->grad, dq, rows, l.hidden, l.ldh);
        gemm_packed(l.z2, l.ldh, dq, l.ldh, l.e2->panels, rows, l.hidden, l.hidden, false);
        times(l.z2, slope1, used); /* dq1 */
        for (int r = 0; r < rows; r++) {
            const real *dq1 = l.z2 + (size_t)r * l.ldh;
            if (wanted(l.ci)) row_add(grad_row(l.ci, dst[first + r]), dq1, l.hidden);
            if (wanted(l.cj)) row_add(grad_row(l.cj, src[first + r]), dq1, l.hidden);
        }
        if (wanted(l.ee) && !weight_gradient(l.ee, l.z2, l.ldh, l.tile.eb, lde, rows, arena))
            return false;
        gemm_packed(l.o, lde, l.z2, l.ldh, l.ee->panels, rows, l.hidden, l.de, false);
        tile_norm_backward(&l.tile, NULL, l.o, l.out->grad);
    }
    tile_finish_backward(&l.tile, op);
    return true;
}
