#include "base/random.h"

void wf_rng_normals_from(const wf_rng *rng, size_t first, float *out, size_t count) {
    for (size_t i = 0; i < count;) {
        size_t position = first + i;
        uint32_t counter[4] = {(uint32_t)(position / 4), rng->step, rng->network, rng->purpose};
        uint32_t word[4];
        wf_philox(counter, rng->seed, word);
        float deviate[4];
        wf_box_muller(word[0], word[1], &deviate[0], &deviate[1]);
        wf_box_muller(word[2], word[3], &deviate[2], &deviate[3]);
        for (size_t lane = position % 4; lane < 4 && i < count; lane++) out[i++] = deviate[lane];
    }
}

void wf_rng_normals(const wf_rng *rng, float *out, size_t count) {
    wf_rng_normals_from(rng, 0, out, count);
}

void wf_rng_shuffle(wf_rng *rng, uint32_t *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = wf_rng_below(rng, i);
        uint32_t kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}
