/* A build without CUDA (base/cuda/absent.h). */
#include "base/cuda/absent.h"
#include "zoo/cuda/zoo_cuda.h"

ABSENT(wf_zoo_cuda_run, const wf_zoo_plan *plan, const wf_zoo_piece *piece)
