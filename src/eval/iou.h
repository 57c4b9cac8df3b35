/* iou: maximum overlap of error masks. */
#pragma once

#include "weft/eval.h"

/* Masks as rows of 64-bit words, unused bits zero; free(*out). */
wf_status wf__masks_widen(wf_ctx *ctx, const uint8_t *masks, size_t n, size_t bytes,
                          uint64_t **out);
size_t wf__mask_words(size_t bytes);

/* For each of nq masks the largest IoU over nr masks, and the first that has it. skip as in
 * wf_wcs_max. */
wf_status wf__iou_max(wf_ctx *ctx, const uint64_t *queries, size_t nq, const uint64_t *refs,
                      size_t nr, size_t words, const int64_t *skip, float *best, uint32_t *which);
