/* matcher: the fast matching as an object, for loops that match pairs of one architecture at
 * every step. */
#pragma once

#include "align/match.h"

typedef struct wf_matcher wf_matcher;

/* Borrows graph. Serves calls made with contexts of no more threads than this one has. */
wf_status wf__matcher_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                           wf_matcher **out);
void wf__matcher_close(wf_matcher *matcher);

/* Permute each b[k] in place so that it matches a[k * a_step] (a_step 1: pairs; 0: all match one
 * network). Allocates nothing. */
wf_status wf__matcher_run(wf_ctx *ctx, wf_matcher *matcher, const float *a, size_t a_step, float *b,
                          size_t count);
/* The same without touching b: relabelling k as `from` of align/match.h, at from + k * stride. */
wf_status wf__matcher_find(wf_ctx *ctx, wf_matcher *matcher, const float *a, size_t a_step,
                           const float *b, size_t count, uint32_t *from, size_t stride);
