/* assign: exact linear assignment by shortest augmenting paths (Jonker and Volgenant 1987).
 *
 * Maximise sum_r score[r][match[r]] over permutations. Each column j has a price; a row's profit
 * is its best score[r][j] - price[j]. Throughout,
 *   I1  profit[r] >= score[r][j] - price[j] for all r, j (any prices satisfy it: profit is the
 *       row maximum);
 *   I2  a matched row is matched to a column where I1 holds with equality.
 * Both together prove that a complete matching is optimal. Three stages:
 *   1  prices from the column maxima, or those of a similar problem;
 *   2  each free row bids for its best column, raises its price to where the second best becomes
 *      as good, and displaces the row that stood there; a bounded number of bids;
 *   3  rows still free are matched by shortest augmenting paths in the slacks profit - (score -
 *      price) >= 0.
 * Distances are kept without the start row's profit, which cancels wherever two of them are
 * subtracted. Predecessors are not stored but found again at the end, on the path alone: the row
 * whose slack gives the very same sum. */
#include "align/assign.h"

#include "weft/align.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { unmatched = UINT32_MAX };

typedef struct assign_state {
    size_t n;
    const double *score;
    wf_assign_kernel kernel;
    uint32_t *column_of; /* of a row */
    uint32_t *row_of;    /* of a column */
    uint32_t *free_rows;
    uint32_t *settled; /* columns in the order in which they were settled */
    uint32_t *visited; /* rows in the order in which they were scanned */
    double *price;
    double *open;     /* price, or infinity where the column is settled */
    double *distance; /* infinity where the column is settled */
    double *reached;  /* distance of each settled column, in order */
    double *base;     /* of each visited row: distance of its column + its profit */
} assign_state;

enum { double_arrays = 5, index_arrays = 4 };

size_t wf__assign_scratch(int n) {
    return (size_t)n * (double_arrays * sizeof(double) + index_arrays * sizeof(uint32_t));
}

static assign_state lay_out(int n, const double *score, uint32_t *match, void *scratch) {
    assign_state s = {.n = (size_t)n,
                      .score = score,
                      .kernel = WF_PICK_F32(wf__assign_kernel),
                      .column_of = match};
    s.price = scratch;
    s.open = s.price + n;
    s.distance = s.open + n;
    s.reached = s.distance + n;
    s.base = s.reached + n;
    s.row_of = (uint32_t *)(s.base + n);
    s.free_rows = s.row_of + n;
    s.settled = s.free_rows + n;
    s.visited = s.settled + n;
    for (int i = 0; i < n; i++) s.column_of[i] = s.row_of[i] = unmatched;
    return s;
}

static const double *row_of_scores(const assign_state *s, uint32_t r) {
    return s->score + (size_t)r * s->n;
}

static void start_prices(assign_state *s) {
    memcpy(s->price, s->score, s->n * sizeof *s->price);
    for (uint32_t r = 1; r < s->n; r++) {
        const double *row = row_of_scores(s, r);
        for (size_t j = 0; j < s->n; j++) s->price[j] = row[j] > s->price[j] ? row[j] : s->price[j];
    }
}

/* distance[j] = price[j] - score[r][j]: what row r forgoes at column j, up to its profit. */
static double forgone(assign_state *s, uint32_t r, uint32_t *place) {
    for (size_t j = 0; j < s->n; j++) s->distance[j] = INFINITY;
    return s->kernel.relax(s->n, row_of_scores(s, r), s->price, 0, s->distance, place);
}

/* Stage 2. Bids keep I1 and I2: the winner's second best becomes as good as its best, and the
 * displaced row is free again. Two equally good bids raise no price and could displace each other
 * for ever, hence the bound. */
static void bid(assign_state *s) {
    size_t bids = 4 * s->n, free_rows = s->n;
    for (size_t i = 0; i < s->n; i++) s->free_rows[i] = (uint32_t)(s->n - 1 - i);
    while (free_rows > 0 && bids-- > 0) {
        uint32_t r = s->free_rows[--free_rows], j, other;
        double best = forgone(s, r, &j);
        s->distance[j] = INFINITY;
        if (s->n > 1) s->price[j] += s->kernel.least(s->n, s->distance, &other) - best;
        uint32_t loser = s->row_of[j];
        if (loser != unmatched) {
            s->column_of[loser] = unmatched;
            s->free_rows[free_rows++] = loser;
        }
        s->row_of[j] = r;
        s->column_of[r] = j;
    }
}

/* The first of the `count` rows scanned so far that brought `column` to `distance`. */
static uint32_t predecessor(const assign_state *s, uint32_t column, double distance, size_t count) {
    size_t k = 0;
    while (k + 1 < count &&
           (s->base[k] - row_of_scores(s, s->visited[k])[column]) + s->price[column] != distance)
        k++;
    return s->visited[k];
}

/* Stage 3: Dijkstra from row `start` to the nearest free column, then the path flipped, then
 * prices. */
static void augment(assign_state *s, uint32_t start) {
    memcpy(s->open, s->price, s->n * sizeof *s->open);
    uint32_t column;
    double reached = forgone(s, start, &column);
    size_t n_settled = 0;
    s->visited[0] = start;
    s->base[0] = 0;
    while (s->row_of[column] != unmatched) {
        uint32_t row = s->row_of[column];
        s->reached[n_settled] = reached;
        s->settled[n_settled++] = column;
        double base = reached + (row_of_scores(s, row)[column] - s->price[column]);
        s->visited[n_settled] = row;
        s->base[n_settled] = base;
        s->open[column] = s->distance[column] = INFINITY;
        reached = s->kernel.relax(s->n, row_of_scores(s, row), s->open, base, s->distance, &column);
    }
    /* Settled column k is owned by visited row k + 1, so the walk back goes down that list. */
    double distance = reached;
    for (size_t known = n_settled + 1;;) {
        uint32_t row = predecessor(s, column, distance, known), next = s->column_of[row];
        s->row_of[column] = row;
        s->column_of[row] = column;
        if (row == start) break;
        do known--;
        while (s->settled[known - 1] != next);
        column = next;
        distance = s->reached[known - 1];
    }
    for (size_t k = 0; k < n_settled; k++) s->price[s->settled[k]] += reached - s->reached[k];
}

static double solve(assign_state *s) {
    bid(s);
    for (uint32_t r = 0; r < s->n; r++)
        if (s->column_of[r] == unmatched) augment(s, r);
    double sum = 0;
    for (uint32_t r = 0; r < s->n; r++) sum += row_of_scores(s, r)[s->column_of[r]];
    return sum;
}

double wf__assign(int n, const double *score, uint32_t *match, void *scratch) {
    assert(n >= 1);
    assign_state s = lay_out(n, score, match, scratch);
    start_prices(&s);
    return solve(&s);
}

double wf__assign_warm(int n, const double *score, double *price, uint32_t *match, void *scratch) {
    assert(n >= 1);
    assign_state s = lay_out(n, score, match, scratch);
    memcpy(s.price, price, (size_t)n * sizeof *price);
    double sum = solve(&s);
    memcpy(price, s.price, (size_t)n * sizeof *price);
    return sum;
}

wf_status wf_assign_max(wf_ctx *ctx, int n, const double *score, uint32_t *match) {
    if (n < 1)
        return wf_fail(ctx, WF_ERR_USAGE, "assignment of %d rows: at least one is needed", n);
    for (size_t i = 0; i < (size_t)n * (size_t)n; i++)
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
