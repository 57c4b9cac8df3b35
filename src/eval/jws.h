/* jws: joint Wasserstein similarity of score vectors. */
#pragma once

#include "weft/eval.h"

typedef struct wf_jws {
    double full, spread;  /* spread: standard deviation of 1 - W2/sqrt 3 over the subsets */
    double raw, no_sqrt3; /* ablations */
} wf_jws;

/* points (n, 3) of networks, cloud (m, 3) of the reference, both unscaled. When n > m, every subset
 * takes m of the n points. */
wf_status wf__jws(wf_ctx *ctx, const double *points, size_t n, const double *cloud, size_t m,
                  const double scales[3], int subsets, uint64_t seed, wf_jws *out);
