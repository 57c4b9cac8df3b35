/* A build without CUDA; wf_use_cuda has already said so to the user. */
#include "eval/cuda/eval_cuda.h"

static wf_status absent(wf_ctx *ctx) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED, "device cuda: this build has no CUDA");
}

wf_status wf_iou_max_cuda(wf_ctx *ctx, const uint64_t *queries, size_t nq, const uint64_t *refs,
                          size_t nr, size_t words, const int64_t *skip, float *best,
                          uint32_t *which) {
    (void)queries, (void)nq, (void)refs, (void)nr, (void)words, (void)skip, (void)best, (void)which;
    return absent(ctx);
}

wf_status wf_error_masks_cuda(wf_ctx *ctx, const wf_graph *graph, const float *weights, size_t n,
                              const wf_dataset *data, uint8_t *errors) {
    (void)graph, (void)weights, (void)n, (void)data, (void)errors;
    return absent(ctx);
}
