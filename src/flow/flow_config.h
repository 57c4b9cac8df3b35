/* flow_config: settings as "key = value" strings in the metadata of a file, by the rows of a table
 * (weft/settings.h), and the checks of wf_fit_desc and wf_sample_desc. */
#pragma once

#include "base/safetensors.h"
#include "weft/flow.h"

/* A growing list of owned strings, laid out for wf_st_write. Zero-initialised: empty. */
typedef struct wf_meta {
    size_t n, capacity;
    char *(*pairs)[2];
    const wf_setting **rows; /* the setting that a pair is; NULL: none */
} wf_meta;
wf_status wf_meta_add(wf_ctx *ctx, wf_meta *meta, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void wf_meta_free(wf_meta *meta);

/* The settings of `rows` that files keep. */
wf_status wf_config_put(wf_ctx *ctx, wf_meta *meta, const wf_setting *rows, const void *desc);
/* A setting that the file lacks has the value that files without it had. WF_ERR_INPUT: one is
 * malformed. */
wf_status wf_config_get(wf_ctx *ctx, const char *path, const wf_st_file *file,
                        const wf_setting *rows, void *desc);
/* Every pair of `meta` must stand in the file with the same value, but for notes, which may change
 * between the pieces of one run (updates, log_every, paths). WF_ERR_USAGE names the first that
 * differs. */
wf_status wf_config_compare(wf_ctx *ctx, const char *path, const wf_st_file *file,
                            const wf_meta *meta);

/* Ranges, and settings that need each other. WF_ERR_USAGE says what is wrong and what is
 * allowed. */
wf_status wf_fit_check(wf_ctx *ctx, const wf_fit_desc *fit);
wf_status wf_sample_check(wf_ctx *ctx, const wf_sample_desc *desc);
/* fast: whether the field may round to bf16. may: whether the loop in question could use it. */
wf_status wf_choose_precision(wf_ctx *ctx, wf_precision asked, bool on_gpu, bool may, bool *fast);
