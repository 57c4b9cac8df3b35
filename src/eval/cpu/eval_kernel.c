/* eval_kernel: overlaps of bit masks. */
#include "eval/eval_kernel.h"

#include "base/variant.h"

#ifndef WF_REAL_IS_DOUBLE

static inline uint32_t overlap_of(const uint64_t *a, const uint64_t *b, size_t words) {
    uint32_t bits = 0;
    for (size_t i = 0; i < words; i++) bits += (uint32_t)__builtin_popcountll(a[i] & b[i]);
    return bits;
}

static void overlaps(const uint64_t *query, const uint64_t *masks, size_t count, size_t words,
                     uint32_t *overlap) {
    for (size_t k = 0; k < count; k++) overlap[k] = overlap_of(query, masks + k * words, words);
}

const wf_eval_kernel WF_FN(wf__eval_kernel) = {overlaps};

#endif
