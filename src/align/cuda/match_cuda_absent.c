/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "align/cuda/match_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

bool wf_match_cuda_fits(const wf_graph *graph, const wf_match_desc *desc) {
    (void)graph, (void)desc;
    return false;
}

wf_status wf_match_cuda_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                             size_t pairs, wf_match_cuda **out) {
    (void)graph, (void)desc, (void)pairs;
    *out = NULL;
    return absent(ctx);
}

void wf_match_cuda_close(wf_match_cuda *matcher) { (void)matcher; }

wf_status wf_match_cuda_run(wf_ctx *ctx, wf_match_cuda *matcher, const float *a, size_t a_step,
                            const float *b, size_t count, float *out, void *stream) {
    (void)matcher, (void)a, (void)a_step, (void)b, (void)count, (void)out, (void)stream;
    return absent(ctx);
}

wf_status wf_match_pairs_cuda(wf_ctx *ctx, const wf_graph *graph, const float *a, size_t a_step,
                              float *b, size_t count, const wf_match_desc *desc) {
    (void)graph, (void)a, (void)a_step, (void)b, (void)count, (void)desc;
    return absent(ctx);
}

wf_status wf_wcs_max_cuda(wf_ctx *ctx, const wf_graph *graph, const float *queries, size_t nq,
                          const float *refs, size_t nr, const int64_t *skip,
                          const wf_match_desc *desc, float *best, uint32_t *which) {
    (void)graph, (void)queries, (void)nq, (void)refs, (void)nr, (void)skip, (void)desc, (void)best,
        (void)which;
    return absent(ctx);
}
