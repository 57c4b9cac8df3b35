/* torch_file: the tensors of one torch.save file (zip container, torch 1.6 and later), in the
 * order of their dictionary. The file holds a dictionary of tensors, or a dictionary in which
 * exactly one value, or the one called state_dict, is such a dictionary ({"model": {...}}).
 * Tensors come out contiguous, whatever their strides were. */
#pragma once

#include "base/safetensors.h"

typedef struct wf_torch_file wf_torch_file;

wf_status wf_torch_open(wf_ctx *ctx, const char *path, wf_torch_file **out);
/* The same over bytes in memory (fuzzing, tests); borrowed. */
wf_status wf_torch_parse(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                         wf_torch_file **out);
void wf_torch_close(wf_torch_file *file);
size_t wf_torch_count(const wf_torch_file *file);
const wf_st_tensor *wf_torch_at(const wf_torch_file *file, size_t index);

/* A note that weft keeps in the .pt files it writes (torch_write.h); *out is NULL where there is
 * none, else free() it. */
wf_status wf_torch_note(wf_ctx *ctx, wf_torch_file *file, const char *key, char **out);

/* Does the file look like the work of torch.save, this container or the one before it? */
wf_status wf_torch_recognise(wf_ctx *ctx, const char *path, bool *out);
