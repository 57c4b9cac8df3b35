/* iou: functional similarity as overlap of errors (paper, appendix B.1):
 *     IoU(a, b) = |Ea and Eb| / |Ea or Eb|,   |Ea or Eb| = |Ea| + |Eb| - |Ea and Eb|,
 * and 0 where the union is empty. Only the intersection is counted per pair; a mask's own size is
 * counted once. */
#include "eval/iou.h"

#include "base/comm.h"
#include "base/pool.h"
#include "eval/cuda/eval_cuda.h"
#include "eval/eval_kernel.h"

#include <stdlib.h>
#include <string.h>

enum { queries_in_a_chunk = 8, refs_in_a_tile = 512, chunks_in_a_round = 64 };

double wf_error_iou(const uint8_t *a, const uint8_t *b, size_t bytes) {
    size_t both = 0, either = 0;
    for (size_t i = 0; i < bytes; i++) {
        both += (size_t)__builtin_popcount((unsigned)(a[i] & b[i]));
        either += (size_t)__builtin_popcount((unsigned)(a[i] | b[i]));
    }
    return either == 0 ? 0 : (double)both / (double)either;
}

size_t wf__mask_words(size_t bytes) { return (bytes + 7) / 8; }

wf_status wf__masks_widen(wf_ctx *ctx, const uint8_t *masks, size_t n, size_t bytes,
                          uint64_t **out) {
    size_t words = wf__mask_words(bytes);
    WF_TRY(wf_alloc(ctx, n * words, sizeof **out, "error masks", out));
    for (size_t i = 0; i < n; i++) memcpy(*out + i * words, masks + i * bytes, bytes);
    return WF_OK;
}

typedef struct iou_call {
    wf_eval_kernel kernel;
    const uint64_t *queries, *refs;
    size_t nq, nr, words, first;
    const int64_t *skip;
    uint32_t *size; /* [nr] bits in each reference mask */
    float *best;
    uint32_t *which;
} iou_call;

static void query_max(const iou_call *call, size_t q) {
    const uint64_t *query = call->queries + q * call->words;
    uint32_t own, overlap[refs_in_a_tile];
    call->kernel.overlaps(query, query, 1, call->words, &own);
    double best = -1;
    size_t which = 0;
    for (size_t first = 0; first < call->nr; first += refs_in_a_tile) {
        size_t count = call->nr - first < refs_in_a_tile ? call->nr - first : refs_in_a_tile;
        call->kernel.overlaps(query, call->refs + first * call->words, count, call->words, overlap);
        for (size_t k = 0; k < count; k++) {
            uint32_t either = own + call->size[first + k] - overlap[k];
            double iou = either == 0 ? 0 : (double)overlap[k] / (double)either;
            if (iou > best && (call->skip == NULL || call->skip[q] != (int64_t)(first + k))) {
                best = iou;
                which = first + k;
            }
        }
    }
    call->best[q] = (float)best;
    if (call->which != NULL) call->which[q] = (uint32_t)which;
}

static void query_chunk(void *call_, size_t chunk, int worker) {
    (void)worker;
    const iou_call *call = call_;
    size_t q = (call->first + chunk) * queries_in_a_chunk, end = q + queries_in_a_chunk;
    for (; q < end && q < call->nq; q++) query_max(call, q);
}

static wf_status iou_here(wf_ctx *ctx, const uint64_t *queries, size_t nq, const uint64_t *refs,
                          size_t nr, size_t words, const int64_t *skip, float *best,
                          uint32_t *which) {
    bool cuda;
    /* Time of a pair on one core: 3 ns, and 1 ns a word. */
    double seconds = (double)nq * (double)nr * (3e-9 + 1e-9 * (double)words);
    WF_TRY(wf_use_cuda_for(ctx, seconds, &cuda));
    wf_note_device(ctx, "errors", cuda);
    if (cuda) return wf_iou_max_cuda(ctx, queries, nq, refs, nr, words, skip, best, which);
    iou_call call = {
        WF_PICK_F32(wf__eval_kernel), queries, refs, nq, nr, words, 0, skip, NULL, best, which};
    WF_TRY(wf_alloc(ctx, nr, sizeof *call.size, "error masks", &call.size));
    for (size_t r = 0; r < nr; r++)
        call.kernel.overlaps(refs + r * words, refs + r * words, 1, words, &call.size[r]);
    size_t chunks = (nq + queries_in_a_chunk - 1) / queries_in_a_chunk;
    wf_meter meter = wf_meter_start(ctx, "comparing errors", "networks", (double)nq);
    wf_status status = WF_OK;
    while (call.first < chunks && status == WF_OK) {
        size_t count =
            chunks - call.first < chunks_in_a_round ? chunks - call.first : chunks_in_a_round;
        bool whole = wf_parallel_stoppable(ctx, count, query_chunk, &call);
        call.first += count;
        wf_meter_update(&meter, (double)(call.first * queries_in_a_chunk), NULL);
        if (!whole) status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while comparing errors");
    }
    if (status == WF_OK) wf_meter_end(&meter, (double)nq, NULL);
    free(call.size);
    return status;
}

wf_status wf__iou_max(wf_ctx *ctx, const uint64_t *queries, size_t nq, const uint64_t *refs,
                      size_t nr, size_t words, const int64_t *skip, float *best, uint32_t *which) {
    wf_range own = wf_share(ctx, nq);
    size_t first = own.first;
    wf_status status =
        iou_here(ctx, queries + first * words, own.last - first, refs, nr, words,
                 skip == NULL ? NULL : skip + first, best == NULL ? NULL : best + first,
                 which == NULL ? NULL : which + first);
    WF_TRY(wf_agree_rows(ctx, status, best, sizeof *best, nq));
    return wf_gather_rows(ctx, which, sizeof *which, nq);
}
