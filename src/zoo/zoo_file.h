/* zoo_file: collections as files; what the public header does not show. */
#ifndef WF_ZOO_FILE_H
#define WF_ZOO_FILE_H

#include "base/status.h"
#include "weft/zoo.h"

/* Copies the flat parameters of network `index` (0 .. count-1) to w. */
typedef void wf_zoo_source(void *user, size_t index, float *w);

/* wf_zoo_write for weights that do not lie in one matrix: each network is asked for once, so that
 * no second copy of the collection is needed. */
wf_status wf_zoo_write_from(wf_ctx *ctx, const char *path, const wf_graph *graph,
                            wf_zoo_source *source, void *user, size_t count,
                            const wf_zoo_extra *extra);

/* Learning rates and epoch counts [M] of an open collection; NULL when absent. */
const float *wf_zoo_rates(const wf_zoo *zoo);
const int32_t *wf_zoo_epochs(const wf_zoo *zoo);

#endif
