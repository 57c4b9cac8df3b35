/* bayes_net: a Bayesian network over discrete columns: learned by hill climbing, drawn from row by
 * row.
 *
 *   codes (V, N)  column-major: value of variable v in row r, 0 .. card[v]-1
 *   edge (V, V)   edge[p * V + c]: p is a parent of c; no directed cycles
 * Score of a structure (BIC): sum over variables of  log-likelihood - 1/2 log N * q (card - 1), q
 * the number of configurations of the parents. Steps: add, drop or reverse one edge; the best of
 * all of them is taken until none gains. Probabilities: (count + prior) / (configuration's count +
 * prior * card). */
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "weft/rng.h"

typedef struct wf_bayes_net {
    size_t variables, rows;
    const int32_t *codes;
    const int32_t *card;
    int class_variable; /* a parent of every other variable throughout; -1: none */
    int max_parents;    /* besides the class */
    uint8_t *edge;
    double *local;       /* [V] score of each family */
    double bic;          /* their sum */
    uint32_t *order;     /* [V] parents before children */
    double **cumulative; /* [V] (q, card): running sums of the probabilities, the last exactly 1 */
    wf_arena arena;
} wf_bayes_net;

/* Fills edge, local, bic and order; codes and card are borrowed. Free with wf__bayes_net_free, also
 * after a failure. */
wf_status wf__bayes_net_learn(wf_ctx *ctx, wf_bayes_net *net);
wf_status wf__bayes_net_tables(wf_ctx *ctx, wf_bayes_net *net, double prior);
/* One row: values [V]. */
void wf__bayes_net_draw(const wf_bayes_net *net, wf_rng *rng, int32_t *values);
void wf__bayes_net_free(wf_bayes_net *net);
