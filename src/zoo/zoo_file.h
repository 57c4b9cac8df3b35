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

/* A collection written while its networks still appear, in any order. `extra` says which columns
 * there will be; what stands in them is looked at by commit alone, and must have the same
 * columns. Until then nothing stands at `path`. */
typedef struct wf_zoo_stream wf_zoo_stream;
wf_status wf_zoo_stream_open(wf_ctx *ctx, const char *path, const wf_graph *graph, size_t count,
                             const wf_zoo_extra *extra, wf_zoo_stream **out);
/* Networks first .. first+count-1 from weights (count, n_params). Any thread may call; the
 * result is 0 or an errno. */
int wf_zoo_stream_put(const wf_zoo_stream *stream, size_t first, size_t count,
                      const float *weights);
int wf_zoo_stream_get(const wf_zoo_stream *stream, size_t index, float *w);
/* Both free the stream; the second takes NULL. */
wf_status wf_zoo_stream_commit(wf_ctx *ctx, wf_zoo_stream *stream, const wf_zoo_extra *extra);
void wf_zoo_stream_abort(wf_zoo_stream *stream);

/* wf_st_verify of its file. */
wf_status wf_zoo_verify(wf_ctx *ctx, const wf_zoo *zoo);

/* Its metadata one by one. */
size_t wf_zoo_meta_count(const wf_zoo *zoo);
void wf_zoo_meta_at(const wf_zoo *zoo, size_t index, const char **key, const char **value);

/* Learning rates and epoch counts [M] of an open collection; NULL when absent. */
const float *wf_zoo_rates(const wf_zoo *zoo);
const int32_t *wf_zoo_epochs(const wf_zoo *zoo);

#endif
