/* random: what is built on the streams of weft/rng.h. */
#pragma once

#include "base/vmath.h"
#include "weft/rng.h"

#include <stdbool.h>
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

/* out[i] is deviate i of the stream's address; the stream's position is ignored. Deviates
 * 4k..4k+3 come from block k. */
void wf_rng_normals(const wf_rng *rng, float *out, size_t count);
/* The same numbers for i = first .. first+count-1. */
void wf_rng_normals_from(const wf_rng *rng, size_t first, float *out, size_t count);

/* A uniform permutation of 0..n-1 (Fisher and Yates), drawn from the stream. */
void wf_rng_shuffle(wf_rng *rng, uint32_t *order, uint32_t n);

/* Place i of a permutation of 0..n-1 that belongs to the stream's address, without memory for
 * it: six Feistel rounds over the fewest bits, an even number, that hold n - 1; a result beyond
 * n - 1 goes through them again. */
static inline WF_HD uint32_t wf_rng_permuted(const wf_rng *rng, uint32_t n, uint32_t i) {
    uint32_t half = 1;
    while (half < 16 && (1u << (2 * half)) < n) half++;
    uint32_t mask = (1u << half) - 1;
    do {
        uint32_t left = i >> half, right = i & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t counter[4] = {(round << 16) + right, rng->step, rng->network, rng->purpose};
            uint32_t words[4];
            wf_philox(counter, rng->seed, words);
            uint32_t mixed = left ^ (words[0] & mask);
            left = right;
            right = mixed;
        }
        i = (left << half) + right;
    } while (i >= n);
    return i;
}

/* Place b of batch `batch_number` when `count` things are gone through in epochs, each in an
 * order of its own that belongs to (seed, epoch, purpose, step), in batches of `batch`. What is
 * left of an epoch after its last whole batch is dropped. With fewer things than a batch has
 * places, every batch is an epoch, and its order is repeated. */
static inline WF_HD uint32_t wf_epoch_place(uint64_t seed, wf_purpose purpose, uint32_t step,
                                            uint32_t count, uint32_t batch, uint64_t batch_number,
                                            uint32_t b) {
    uint32_t batches = count >= batch ? count / batch : 1;
    wf_rng order = wf_rng_at(seed, (uint32_t)(batch_number / batches), purpose, step);
    uint64_t place = batch_number % batches * batch + b;
    return wf_rng_permuted(&order, count, (uint32_t)(place % count));
}

/* The order that the hidden units of an orbit get in place `place` of a batch: unit u comes from
 * unit wf_rng_permuted(order, n, u). start: the orbit's first unit in a relabelling. */
static inline WF_HD wf_rng wf_relabel_order(uint64_t seed, uint32_t place, uint32_t batch,
                                            uint32_t update, uint32_t start) {
    return wf_rng_at(seed, place + start * batch, WF_RNG_VIEW, update);
}

/* Whether hidden unit `unit` has its signs flipped in place `place` of a batch. */
static inline WF_HD bool wf_random_flip(uint64_t seed, uint32_t place, uint32_t update,
                                        uint32_t unit) {
    uint32_t counter[4] = {unit / 128, update, place, WF_RNG_SIGN}, word[4];
    wf_philox(counter, seed, word);
    return (word[unit / 32 % 4] >> unit % 32 & 1) != 0;
}

/* Orders of networks and of noise vectors that know nothing of each other. */
static inline WF_HD uint32_t wf_epoch_network(uint64_t seed, uint32_t count, uint32_t batch,
                                              uint32_t update, uint32_t place) {
    return wf_epoch_place(seed, WF_RNG_EPOCH, 0, count, batch, update, place);
}
static inline WF_HD uint32_t wf_epoch_noise(uint64_t seed, uint32_t count, uint32_t batch,
                                            uint32_t update, uint32_t place) {
    return wf_epoch_place(seed, WF_RNG_EPOCH, 1, count, batch, update, place);
}
