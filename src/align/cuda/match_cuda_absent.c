/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "align/cuda/match_cuda.h"

bool wf_match_cuda_fits(const wf_graph *graph, const wf_match_desc *desc) { return false; }
ABSENT(wf_match_cuda_open, const wf_graph *graph, const wf_match_desc *desc, size_t pairs,
       wf_match_cuda **out)
void wf_match_cuda_close(wf_match_cuda *matcher) {}
ABSENT(wf_match_cuda_run, wf_match_cuda *matcher, const float *a, size_t a_step, const float *b,
       size_t count, float *out, void *stream)
ABSENT(wf_match_pairs_cuda, const wf_graph *graph, const float *a, size_t a_step, float *b,
       size_t count, const wf_match_desc *desc)
ABSENT(wf_wcs_max_cuda, const wf_graph *graph, const float *queries, size_t nq, const float *refs,
       size_t nr, const int64_t *skip, const wf_match_desc *desc, float *best, uint32_t *which)
