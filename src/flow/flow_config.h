/* flow_config: the configuration of a flow as "key = value" strings in its file.
 * One table lists every setting of wf_field_desc and wf_fit_desc; writing, reading and comparing walk it. */
#ifndef WF_FLOW_CONFIG_H
#define WF_FLOW_CONFIG_H

#include "base/safetensors.h"
#include "weft/flow.h"

/* A growing list of owned strings, laid out for wf_st_write. Zero-initialised: empty. */
typedef struct wf_meta {
    size_t n, capacity;
    char *(*pairs)[2];
} wf_meta;
wf_status wf_meta_add(wf_ctx *ctx, wf_meta *meta, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void wf_meta_free(wf_meta *meta);

wf_status wf_config_put(wf_ctx *ctx, wf_meta *meta, const wf_field_desc *field,
                        const wf_fit_desc *fit);
/* Fails with WF_ERR_INPUT, naming the key, when one is missing or malformed. */
wf_status wf_config_get(wf_ctx *ctx, const char *path, const wf_st_file *file, wf_field_desc *field,
                        wf_fit_desc *fit);
/* Every pair of `meta` must stand in the file with the same value, but for settings that may change between the
 * pieces of one run (updates, save_seconds, log_every, limit, paths). WF_ERR_USAGE names the first that differs. */
wf_status wf_config_compare(wf_ctx *ctx, const char *path, const wf_st_file *file,
                            const wf_meta *meta);

/* Ranges of both descriptions' numbers. WF_ERR_USAGE says which is wrong and what is allowed. */
wf_status wf_fit_check(wf_ctx *ctx, const wf_fit_desc *fit);
wf_status wf_sample_check(wf_ctx *ctx, const wf_sample_desc *desc);
/* fast: whether the field may round to bf16. may: whether the loop in question could use it. */
wf_status wf_choose_precision(wf_ctx *ctx, wf_precision asked, bool on_gpu, bool may, bool *fast);

#endif
