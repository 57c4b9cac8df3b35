/* weft/rng.h: Philox4x32-10 addressed by (seed, network, purpose, step).
 *
 * Every random number of weft has an address, so network 17 is the same network whatever the batch,
 * thread, shard or restart, on the CPU and on the GPU. A stream is the sequence of 128-bit blocks
 *     philox(key = seed, counter = (index, step, network, purpose)),   index = 0, 1, 2 ...
 * The header is plain C that nvcc also compiles.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_RNG_H
#define WEFT_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define WF_HD __host__ __device__
#else
#define WF_HD
#endif

/* Values are part of the file formats: never renumber. */
typedef enum wf_purpose {
    WF_RNG_INIT = 1,       /* initial weights of a collection's network (step = parameter tensor) */
    WF_RNG_SHUFFLE = 2,    /* order of its training examples (step = epoch) */
    WF_RNG_HYPER = 3,      /* its learning rate and epoch count */
    WF_RNG_DATA = 4,       /* built-in data sets */
    WF_RNG_SPLIT = 5,      /* train/test split */
    WF_RNG_FIELD_INIT = 6, /* initial weights of a velocity field (network = tensor) */
    WF_RNG_BATCH = 7,      /* which networks a step draws (step = update) */
    WF_RNG_NOISE = 8,      /* w0 of the flow (network = place in the batch, step = update) */
    WF_RNG_TIME = 9,       /* t of the flow */
    WF_RNG_DROP = 10,      /* condition dropout */
    WF_RNG_SAMPLE = 11,    /* source noise of generated networks (network = its index) */
    WF_RNG_REFINE = 12,    /* fresh noise of refinement (step = cycle) */
    WF_RNG_MATCH = 13,     /* layer order of a Re-Basin sweep (step = sweep, network = restart) */
    WF_RNG_CLOUD = 14,     /* reference cloud */
    WF_RNG_JWS = 15,       /* subsets of the cloud (step = b) */
    WF_RNG_CONTROL = 16,   /* control generators */
    WF_RNG_FOURIER = 17,   /* frozen Fourier features */
    WF_RNG_DROPOUT = 18,   /* tensor/tensor.h, wf_dropout_key */
    WF_RNG_EPOCH = 19,     /* order of networks or noise vectors in an epoch (network = epoch) */
    WF_RNG_VIEW = 20,      /* relabelled copies of a network (SANE; train.relabel) */
    WF_RNG_AUGMENT = 21,   /* flips and crops of a collection's network (step = epoch) */
    WF_RNG_COST = 22,      /* what errors in a layer cost (step = layer + 1; 0: the inputs) */
    WF_RNG_SIGN = 23,      /* copies of a network with signs flipped (train.signs) */
    WF_RNG_TEST = 99
} wf_purpose;

typedef struct wf_rng {
    uint64_t seed;
    uint32_t network, purpose, step;
    uint32_t index; /* next block */
    uint32_t word[4];
    uint32_t left; /* words not yet drawn */
} wf_rng;

/* The two halves of a 64-bit product. */
static inline WF_HD void wf_philox_mul(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
    uint64_t product = (uint64_t)a * b;
    *high = (uint32_t)(product >> 32);
    *low = (uint32_t)product;
}

/* One block of 128 random bits: ten rounds of Philox4x32. out may be counter. */
static inline WF_HD void wf_philox(const uint32_t counter[4], uint64_t key, uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t high0, low0, high1, low1;
        wf_philox_mul(0xD2511F53u, c0, &high0, &low0);
        wf_philox_mul(0xCD9E8D57u, c2, &high1, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The beginning of a stream; it owns nothing. */
static inline WF_HD wf_rng wf_rng_at(uint64_t seed, uint32_t network, wf_purpose purpose,
                                     uint32_t step) {
    wf_rng rng = {seed, network, (uint32_t)purpose, step, 0, {0, 0, 0, 0}, 0};
    return rng;
}

/* The next 32 bits. */
static inline WF_HD uint32_t wf_rng_u32(wf_rng *rng) {
    if (rng->left == 0) {
        uint32_t counter[4] = {rng->index++, rng->step, rng->network, rng->purpose};
        wf_philox(counter, rng->seed, rng->word);
        rng->left = 4;
    }
    return rng->word[4 - rng->left--];
}

/* In [0, 1): 24 bits, exact in float. */
static inline WF_HD float wf_rng_uniform(wf_rng *rng) {
    return (float)(wf_rng_u32(rng) >> 8) * (1.0f / 16777216); /* 2^-24 */
}

/* In [0, n), n > 0, without bias (multiply and reject). */
static inline WF_HD uint32_t wf_rng_below(wf_rng *rng, uint32_t n) {
    uint32_t high, low, floor = (0u - n) % n;
    do wf_philox_mul(wf_rng_u32(rng), n, &high, &low);
    while (low < floor);
    return high;
}

#endif
