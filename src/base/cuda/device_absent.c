/* A build without CUDA. */
#include "base/cuda/device.h"

bool wf_cuda_available(void) { return false; }

const char *wf_cuda_description(void) { return "this build has no CUDA"; }
