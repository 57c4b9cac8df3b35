/* eval_kernel: the inner loops of evaluation that are built once per instruction set. */
#pragma once

#include "base/isa.h"

#include <stddef.h>
#include <stdint.h>

typedef struct wf_eval_kernel {
    /* Bits in which each of `count` masks of `words` words agrees with `query`: both set. */
    void (*overlaps)(const uint64_t *query, const uint64_t *masks, size_t count, size_t words,
                     uint32_t *overlap);
} wf_eval_kernel;

extern const wf_eval_kernel wf__eval_kernel_base_f32;
#if defined(__x86_64__)
extern const wf_eval_kernel wf__eval_kernel_avx2_f32, wf__eval_kernel_avx512_f32;
#endif
