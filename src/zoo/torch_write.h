/* torch_write: a state_dict as torch.save writes it; torch.load reads it, also with
 * weights_only. */
#pragma once

#include "base/safetensors.h"

/* Tensors are F32. Notes are pairs of key and text, kept as NAME/extra/KEY, which torch does not
 * look at. Atomic and durable. */
wf_status wf_torch_write(wf_ctx *ctx, const char *path, const wf_st_tensor *tensors, size_t n,
                         const char *const (*notes)[2], size_t n_notes);
