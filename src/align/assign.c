/* assign: exact linear assignment by shortest augmenting paths (Jonker and Volgenant 1987).
 *
 * Maximise sum_r score[r][match[r]] over permutations. Each column j has a price; a row's profit is its
 * best score[r][j] - price[j]. Throughout,
 *   I1  profit[r] >= score[r][j] - price[j] for all r, j (any prices satisfy it: profit is the row maximum);
 *   I2  a matched row is matched to a column where I1 holds with equality.
 * Both together prove that a complete matching is optimal. Three stages:
 *   1  prices from the column maxima;
 *   2  each free row bids for its best column, raises its price to where the second best becomes as good, and
 *      displaces the row that stood there; a bounded number of bids;
 *   3  rows still free are matched by shortest augmenting paths in the slacks profit - (score - price) >= 0. */
#include "align/assign.h"

#include "weft/align.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { unmatched = UINT32_MAX };

typedef struct assign_state {
    int n;
    const double *score;
    uint32_t *column_of; /* of a row */
    uint32_t *row_of;    /* of a column */
    uint32_t *previous;  /* row from which a column was reached */
    uint32_t *todo;      /* free rows, then columns not yet settled */
    uint32_t *settled;   /* columns in the order in which they were settled */
    double *price, *distance;
} assign_state;

size_t wf__assign_scratch(int n) { return (size_t)n * (2 * sizeof(double) + 4 * sizeof(uint32_t)); }

static assign_state lay_out(int n, const double *score, uint32_t *match, void *scratch) {
    assign_state s = {.n = n, .score = score, .column_of = match};
    s.price = scratch;
    s.distance = s.price + n;
    s.row_of = (uint32_t *)(s.distance + n);
    s.previous = s.row_of + n;
    s.todo = s.previous + n;
    s.settled = s.todo + n;
    for (int i = 0; i < n; i++) s.column_of[i] = s.row_of[i] = unmatched;
    return s;
}

static void start_prices(assign_state *s) {
    for (int j = 0; j < s->n; j++) s->price[j] = s->score[j];
    for (int r = 1; r < s->n; r++) {
        const double *row = s->score + (size_t)r * s->n;
        for (int j = 0; j < s->n; j++) s->price[j] = row[j] > s->price[j] ? row[j] : s->price[j];
    }
}

/* The best and the second best column of a row. */
static int best_column(const assign_state *s, uint32_t r, double *best, double *second) {
    const double *row = s->score + (size_t)r * s->n;
    int column = 0;
    *best = row[0] - s->price[0];
    *second = -INFINITY;
    for (int j = 1; j < s->n; j++) {
        double value = row[j] - s->price[j];
        if (value > *best) {
            *second = *best;
            *best = value;
            column = j;
        } else if (value > *second) {
            *second = value;
        }
    }
    return column;
}

/* Stage 2. Bids keep I1 and I2: the winner's profit becomes `second`, and the displaced row is free again.
 * Equal bests raise no price and could displace one another for ever, hence the bound. */
static void bid(assign_state *s) {
    int n = s->n, bids = 4 * n;
    uint32_t free_rows = (uint32_t)n;
    for (int i = 0; i < n; i++) s->todo[i] = (uint32_t)(n - 1 - i);
    while (free_rows > 0 && bids-- > 0) {
        uint32_t r = s->todo[--free_rows];
        double best, second;
        int j = best_column(s, r, &best, &second);
        uint32_t loser = s->row_of[j];
        if (loser != unmatched) {
            s->column_of[loser] = unmatched;
            s->todo[free_rows++] = loser;
        }
        if (n > 1) s->price[j] += best - second;
        s->row_of[j] = r;
        s->column_of[r] = (uint32_t)j;
    }
}

/* Stage 3: Dijkstra from row `start` to the nearest free column, then prices, then the path turned over. */
static void augment(assign_state *s, uint32_t start) {
    int n = s->n, open = n, n_settled = 0;
    for (int j = 0; j < n; j++) {
        s->todo[j] = (uint32_t)j;
        s->distance[j] = INFINITY;
    }
    double second, profit, reached = 0;
    best_column(s, start, &profit, &second);
    uint32_t row = start, sink;
    for (;;) {
        const double *score = s->score + (size_t)row * n;
        double nearest = INFINITY;
        int place = 0;
        for (int k = 0; k < open; k++) {
            uint32_t j = s->todo[k];
            double through = reached + (profit - (score[j] - s->price[j]));
            if (through < s->distance[j]) {
                s->distance[j] = through;
                s->previous[j] = row;
            }
            if (s->distance[j] < nearest ||
                (s->distance[j] == nearest && s->row_of[j] == unmatched)) {
                nearest = s->distance[j];
                place = k;
            }
        }
        sink = s->todo[place];
        s->todo[place] = s->todo[--open];
        reached = nearest;
        if (s->row_of[sink] == unmatched) break;
        s->settled[n_settled++] = sink;
        row = s->row_of[sink];
        profit = s->score[(size_t)row * n + sink] - s->price[sink];
    }
    for (int k = 0; k < n_settled; k++) {
        uint32_t j = s->settled[k];
        s->price[j] += reached - s->distance[j];
    }
    for (uint32_t column = sink;;) {
        uint32_t r = s->previous[column], next = s->column_of[r];
        s->row_of[column] = r;
        s->column_of[r] = column;
        if (r == start) return;
        column = next;
    }
}

double wf__assign(int n, const double *score, uint32_t *match, void *scratch) {
    assert(n >= 1);
    assign_state s = lay_out(n, score, match, scratch);
    start_prices(&s);
    bid(&s);
    for (uint32_t r = 0; r < (uint32_t)n; r++)
        if (s.column_of[r] == unmatched) augment(&s, r);
    double sum = 0;
    for (int r = 0; r < n; r++) sum += score[(size_t)r * n + match[r]];
    return sum;
}

wf_status wf_assign_max(wf_ctx *ctx, int n, const double *score, uint32_t *match) {
    if (n < 1)
        return wf_fail(ctx, WF_ERR_USAGE, "assignment of %d rows: at least one is needed", n);
    for (size_t i = 0; i < (size_t)n * n; i++)
        if (!isfinite(score[i]))
            return wf_fail(ctx, WF_ERR_USAGE,
                           "assignment: the score of row %zu, column %zu is not finite",
                           i / (size_t)n, i % (size_t)n);
    void *scratch = NULL;
    WF_TRY(wf_alloc(ctx, 1, wf__assign_scratch(n), "assignment", &scratch));
    wf__assign(n, score, match, scratch);
    free(scratch);
    return WF_OK;
}
