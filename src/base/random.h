/* random: what is built on the streams of weft/rng.h. */
#ifndef WF_BASE_RANDOM_H
#define WF_BASE_RANDOM_H

#include "base/vmath.h"
#include "weft/rng.h"

#include <stddef.h>

/* Two standard normal deviates from two words (Box and Muller). u is in (0, 1]. */
static inline WF_HD void wf_box_muller(uint32_t a, uint32_t b, float *x, float *y) {
    float u = (float)((a >> 8) + 1) * 0x1p-24f;
    float radius = sqrtf(-2.0f * wf_logf(u));
    float turn = (float)(b >> 8) * 0x1p-24f;
    float sine, cosine;
    wf_sincos_turnf(turn, &sine, &cosine);
    *x = radius * cosine;
    *y = radius * sine;
}

/* out[i] is deviate i of the stream's address; the stream's position is ignored. Deviates 4k..4k+3 come from block k. */
void wf_rng_normals(const wf_rng *rng, float *out, size_t count);
/* The same numbers for i = first .. first+count-1. */
void wf_rng_normals_from(const wf_rng *rng, size_t first, float *out, size_t count);

/* A uniform permutation of 0..n-1 (Fisher and Yates), drawn from the stream. */
void wf_rng_shuffle(wf_rng *rng, uint32_t *order, uint32_t n);

#endif
