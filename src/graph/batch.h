/* batch: from descriptions to the ragged batch that a velocity field works on. */
#pragma once

#include "base/arena.h"
#include "tensor/ragged.h"
#include "weft/graph.h"

/* graphs: n pointers, read here and not kept. Everything is allocated from `arena`. */
wf_status wf_batch_build(wf_ctx *ctx, wf_arena *arena, const wf_graph *const *graphs, int n,
                         wf_batch *out);
