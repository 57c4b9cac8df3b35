/* flow_sampling: the sampling settings that a flow was made for, kept in its file (weft/flow.h).
 *
 * They are metadata "sample.KEY" beside the configuration. Training neither reads nor compares
 * them. The seed is not kept, because a user who asks for more networks wants different ones. */
#include "base/safetensors.h"
#include "flow/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static bool is_kept(const wf_setting *row) {
    return row->stage == WF_STAGE_SAMPLING && row->type != WF_SETTING_SEED;
}

void wf_flow_sampling(const wf_flow *flow, wf_sample_desc *out) {
    *out = wf_sample_desc_default();
    /* Noise of refinement is matched where the flow was trained on matched noise. */
    out->refine_matched = wf_flow_trained_with(flow)->coupling == WF_COUPLING_MATCHED;
    for (const wf_setting *row = wf_sample_settings(); row->key != NULL; row++) {
        const char *text = is_kept(row) ? wf_flow_meta(flow, row->meta) : NULL;
        if (text != NULL) wf_setting_parse(row, text, out);
    }
}

static const wf_setting *row_of(const char *key) {
    for (const wf_setting *row = wf_sample_settings(); row->key != NULL; row++)
        if (is_kept(row) && strcmp(row->meta, key) == 0) return row;
    return NULL;
}

static bool same_settings(const wf_st_file *file, const wf_sample_desc *desc) {
    char buffer[WF_SETTING_BUFFER];
    for (const wf_setting *row = wf_sample_settings(); row->key != NULL; row++) {
        const char *text = wf_st_meta(file, row->meta);
        if (is_kept(row) && (text == NULL || strcmp(text, wf_setting_text(row, desc, buffer)) != 0))
            return false;
    }
    return true;
}

/* All metadata but older settings, then these. `texts` keeps the values. */
static wf_status list_meta(wf_ctx *ctx, const wf_st_file *file, const wf_sample_desc *desc,
                           const char *(*meta)[2], size_t *n, wf_meta *texts) {
    char buffer[WF_SETTING_BUFFER];
    *n = 0;
    for (size_t i = 0; i < wf_st_meta_count(file); i++) {
        wf_st_meta_at(file, i, &meta[*n][0], &meta[*n][1]);
        if (row_of(meta[*n][0]) == NULL) (*n)++;
    }
    for (const wf_setting *row = wf_sample_settings(); row->key != NULL; row++)
        if (is_kept(row))
            WF_TRY(wf_meta_add(ctx, texts, row->meta, "%s", wf_setting_text(row, desc, buffer)));
    for (size_t i = 0; i < texts->n; i++, (*n)++) {
        meta[*n][0] = texts->pairs[i][0];
        meta[*n][1] = texts->pairs[i][1];
    }
    return WF_OK;
}

wf_status wf_flow_keep_sampling(wf_ctx *ctx, const char *path, const wf_sample_desc *desc) {
    wf_st_file *file;
    wf_st_tensor *tensors = NULL;
    const char *(*meta)[2] = NULL;
    wf_meta texts = {0};
    size_t n, n_rows = 0;
    WF_TRY(wf_st_open(ctx, path, &file));
    wf_status status = WF_OK;
    if (same_settings(file, desc)) goto done;
    for (const wf_setting *row = wf_sample_settings(); row->key != NULL; row++) n_rows++;
    WF_TRY_GOTO(wf_st_verify(ctx, file, NULL), done);
    WF_TRY_GOTO(wf_alloc(ctx, wf_st_count(file), sizeof *tensors, "flow", &tensors), done);
    WF_TRY_GOTO(wf_alloc(ctx, wf_st_meta_count(file) + n_rows, sizeof *meta, "flow", &meta), done);
    for (size_t i = 0; i < wf_st_count(file); i++) tensors[i] = *wf_st_at(file, i);
    WF_TRY_GOTO(list_meta(ctx, file, desc, meta, &n, &texts), done);
    status = wf_st_write(ctx, path, tensors, wf_st_count(file), (const char *const(*)[2])meta, n);
done:
    wf_meta_free(&texts);
    free(meta);
    free(tensors);
    wf_st_close(file);
    return status;
}
