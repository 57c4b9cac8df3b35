/* zoo_course: what the kernels of both kinds of networks share: memory, the random order of
 * examples, activations with their slopes, optimisers, and the course of one network's updates. */
#pragma once

#include "zoo/zoo_engine.h"

#include "base/variant.h"
#include "weft/rng.h"

enum { word_blocks = 256 }; /* Philox blocks made at once */

/* --- memory ----------------------------------------------------------------------------------- */

typedef struct carver {
    char *base; /* NULL: only counts */
    size_t used;
} carver;

static void *carve(carver *from, size_t count, size_t size) {
    void *piece = from->base == NULL ? NULL : from->base + from->used;
    from->used += (count * size + 63) / 64 * 64;
    return piece;
}

static void clear(real *values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = 0;
}

/* --- random order ----------------------------------------------------------------------------- */

/* The words of stream (seed, network, WF_RNG_SHUFFLE, epoch) in order, many blocks at a time so
 * that the compiler computes them in vectors. Word w of block b lies at words[w * word_blocks +
 * b]. */
typedef struct word_stream {
    uint64_t seed;
    uint32_t network, epoch, block, next;
    uint32_t *words;
} word_stream;

static void refill(word_stream *stream) {
    uint32_t *words = stream->words;
    const uint32_t first = stream->block, epoch = stream->epoch, network_index = stream->network;
    const uint64_t seed = stream->seed;
    for (uint32_t b = 0; b < word_blocks; b++) {
        const uint32_t counter[4] = {first + b, epoch, network_index, WF_RNG_SHUFFLE};
        uint32_t out[4];
        wf_philox(counter, seed, out);
        words[b] = out[0];
        words[word_blocks + b] = out[1];
        words[2 * word_blocks + b] = out[2];
        words[3 * word_blocks + b] = out[3];
    }
    stream->block += word_blocks;
    stream->next = 0;
}

static inline uint32_t next_word(word_stream *stream) {
    if (stream->next == 4 * word_blocks) refill(stream);
    uint32_t i = stream->next++;
    return stream->words[(i & 3) * word_blocks + (i >> 2)];
}

/* wf_rng_below on these words; the division is left out where its result cannot matter. */
static inline uint32_t below(word_stream *stream, uint32_t n) {
    uint64_t product = (uint64_t)next_word(stream) * n;
    if ((uint32_t)product < n) {
        uint32_t floor = (0u - n) % n;
        while ((uint32_t)product < floor) product = (uint64_t)next_word(stream) * n;
    }
    return (uint32_t)(product >> 32);
}

/* The permutation that wf_rng_shuffle draws. */
static void shuffle_examples(word_stream *stream, uint32_t *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = below(stream, i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

/* --- activations ------------------------------------------------------------------------------ */

#ifdef WF_REAL_IS_DOUBLE
/* Phi(x) and exp(-x^2/2). */
static inline void normal_parts(real x, real *cdf, real *bell) {
    *bell = exp(-0.5 * x * x);
    *cdf = 0.5 * erfc(-x * 0.70710678118654752440);
}
#else
/* Abramowitz and Stegun 7.1.26: |error| of Phi <= 7.5e-8, and the exponential is needed anyway. */
static inline void normal_parts(real x, real *cdf, real *bell) {
    float size = fabsf(x) * 0.70710678f;
    float t = 1.0f / (1.0f + 0.3275911f * size);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    *bell = wf_expf(-size * size);
    float tail = 0.5f * p * t * *bell;
    *cdf = x < 0 ? tail : 1.0f - tail;
}
#endif

/* Whether the slope must be kept: that of relu and identity follows from the result. */
static bool has_slope(wf_activation activation) {
    return activation != WF_ACT_RELU && activation != WF_ACT_IDENTITY;
}

/* z -> act(z) in place, with its derivative beside it; not for relu and identity. */
static void activate(wf_activation activation, real *z, real *slope, size_t n) {
    switch (activation) {
    case WF_ACT_TANH:
        for (size_t i = 0; i < n; i++) {
            z[i] = r_tanh(z[i]);
            slope[i] = 1 - z[i] * z[i];
        }
        break;
    case WF_ACT_SIGMOID:
        for (size_t i = 0; i < n; i++) {
            z[i] = 1 / (1 + r_exp(-z[i]));
            slope[i] = z[i] * (1 - z[i]);
        }
        break;
    case WF_ACT_SILU:
        for (size_t i = 0; i < n; i++) {
            real gate = 1 / (1 + r_exp(-z[i])), y = z[i] * gate;
            slope[i] = gate + y * (1 - gate);
            z[i] = y;
        }
        break;
    case WF_ACT_GELU:
        for (size_t i = 0; i < n; i++) {
            real cdf, bell;
            normal_parts(z[i], &cdf, &bell);
            slope[i] = cdf + z[i] * bell * (real)0.39894228040143267794;
            z[i] = z[i] * cdf;
        }
        break;
    default: break;
    }
}

/* --- optimisers, with the semantics of torch.optim -------------------------------------------- */

typedef struct schedule {
    double lr;
    uint64_t updates, done; /* K in all, k so far */
    double power1, power2;  /* beta^k */
} schedule;

/* Arrays of the same length that an update goes over. */
typedef struct trained_reals {
    size_t n;
    real *weight, *first_moment, *second_moment;
    const real *gradient;
} trained_reals;

/* The numbers of one update. */
typedef struct update_numbers {
    real rate, root;
} update_numbers;

/* lr_k = lr/2 (1 + cos(pi k / K)) for update k = 0 .. K-1, or lr. */
static double next_rate(const wf_zoo_desc *desc, schedule *plan) {
    double k = (double)plan->done++;
    if (!desc->cosine) return plan->lr;
    return 0.5 * plan->lr * (1 + cos(3.14159265358979323846 * k / (double)plan->updates));
}

static update_numbers next_update(const wf_zoo_desc *desc, schedule *plan) {
    double lr = next_rate(desc, plan);
    if (desc->optimizer == WF_ZOO_SGD) return (update_numbers){(real)lr, 1};
    plan->power1 *= desc->beta1;
    plan->power2 *= desc->beta2;
    return (update_numbers){(real)(lr / (1 - plan->power1)), (real)(1 / sqrt(1 - plan->power2))};
}

/* w -= rate * m / (root * sqrt(v) + eps), the bias corrections folded into rate and root. */
static void adam_update(const wf_zoo_desc *desc, update_numbers now, const trained_reals *all) {
    const real rate = now.rate, root = now.root;
    const real beta1 = (real)desc->beta1, rest1 = (real)(1 - desc->beta1);
    const real beta2 = (real)desc->beta2, rest2 = (real)(1 - desc->beta2);
    const real eps = (real)desc->eps, decay = (real)desc->weight_decay;
    real *restrict w = all->weight, *restrict m = all->first_moment,
                   *restrict v = all->second_moment;
    const real *restrict gradient = all->gradient;
    for (size_t i = 0; i < all->n; i++) {
        real g = gradient[i] + decay * w[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        w[i] -= rate * m[i] / (root * r_sqrt(v[i]) + eps);
    }
}

static void sgd_update(const wf_zoo_desc *desc, update_numbers now, const trained_reals *all) {
    const real rate = now.rate;
    const real momentum = (real)desc->momentum, decay = (real)desc->weight_decay;
    const real ahead = desc->nesterov ? momentum : 0, at_once = desc->nesterov ? 1 : 0;
    const real kept = desc->nesterov ? ahead : 1;
    real *restrict w = all->weight, *restrict m = all->first_moment;
    const real *restrict gradient = all->gradient;
    for (size_t i = 0; i < all->n; i++) {
        real g = gradient[i] + decay * w[i];
        m[i] = momentum * m[i] + g;
        w[i] -= rate * (at_once * g + kept * m[i]);
    }
}

static void update_reals(const wf_zoo_desc *desc, update_numbers now, const trained_reals *all) {
    if (desc->optimizer == WF_ZOO_ADAM) adam_update(desc, now, all);
    else sgd_update(desc, now, all);
}

/* --- the course of updates -------------------------------------------------------------------- */

/* One network's training, with what it needs of a kernel. */
typedef struct course {
    const wf_zoo_plan *plan;
    const wf_zoo_task *task;
    const wf_zoo_watch *watch;
    uint32_t *words, *order; /* [4 * word_blocks], [n_train] */
    void *net;
    /* Gradient of the mean loss over examples order[0 .. batch-1]; false after a pause in the midst
     * of them. */
    bool (*gradient)(void *net, const uint32_t *order, int batch, uint32_t epoch,
                     const wf_zoo_watch *watch);
    void (*update)(void *net, update_numbers now);
    bool (*finite)(const void *net);
    schedule rates;
    size_t each; /* updates of an epoch */
} course;

static bool all_finite(const real *values, size_t n) {
    real sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i] * 0;
    return sum == 0;
}

/* From where an earlier call has paused. beta^k by the multiplications that made it then: the same
 * bits. */
static void course_start(course *run, uint64_t updates) {
    size_t n = run->plan->train.n, batch = (size_t)run->plan->desc->batch;
    run->each = (n + batch - 1) / batch;
    run->rates = (schedule){run->task->lr, (uint64_t)run->task->epochs * run->each, 0, 1, 1};
    for (; run->rates.done < updates; run->rates.done++) {
        run->rates.power1 *= run->plan->desc->beta1;
        run->rates.power2 *= run->plan->desc->beta2;
    }
}

/* The updates of one epoch that are still to be made, one at least unless the call is to stop;
 * false after a pause. */
static bool train_epoch(course *run) {
    const wf_zoo_desc *desc = run->plan->desc;
    size_t n = run->plan->train.n, batch = (size_t)desc->batch;
    uint32_t epoch = (uint32_t)(run->rates.done / run->each);
    word_stream stream = {desc->seed, run->task->index, epoch, 0, 4 * word_blocks, run->words};
    shuffle_examples(&stream, run->order, (uint32_t)n);
    for (size_t first = run->rates.done % run->each * batch; first < n; first += batch) {
        size_t rows = n - first < batch ? n - first : batch;
        if (!run->gradient(run->net, run->order + first, (int)rows, epoch, run->watch))
            return false;
        run->update(run->net, next_update(desc, &run->rates));
        if (run->watch->pause(run->watch->user, true)) return false;
    }
    return true;
}

/* Until the last update, a pause, or weights that are no longer finite. */
static wf_zoo_state course_run(course *run) {
    bool finite = true, whole = true;
    while (run->rates.done < run->rates.updates && finite && whole) {
        whole = train_epoch(run);
        if (run->rates.done % run->each == 0) finite = run->finite(run->net);
    }
    if (!finite) return WF_ZOO_DIVERGED;
    return run->rates.done < run->rates.updates ? WF_ZOO_WAITING : WF_ZOO_TRAINED;
}
