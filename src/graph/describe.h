/* describe: what the readers of descriptions (text, JSON) and the builder share. */
#pragma once

#include "base/arena.h"
#include "weft/graph.h"

enum {
    WF_MAX_LAYERS = 4096,
    WF_MAX_WIDTH = 1 << 20,
    WF_MAX_SIDE = 1 << 14, /* of an image, a kernel, a stride */
    WF_MAX_NAME = 200
};

/* A description that is being read. Layers and names lie in `arena`. */
typedef struct wf_draft {
    int channels, height, width; /* height 0: plain numbers */
    int n;
    wf_layer *layers;
    wf_arena arena;
} wf_draft;

wf_status wf__draft_build(wf_ctx *ctx, const wf_draft *draft, unsigned flags, wf_graph **out);

/* The graph of other layers, as many as `like` has, with its input. */
wf_status wf__graph_rebuild(wf_ctx *ctx, const wf_graph *like, const wf_layer *layers,
                            unsigned flags, wf_graph **out);

/* wf_graph_parse for text out of a file: it never names another file. */
wf_status wf__graph_parse_text(wf_ctx *ctx, const char *text, const char *activation,
                               unsigned flags, wf_graph **out);

wf_status wf__activation_parse(wf_ctx *ctx, const char *name, wf_activation *out);

/* How the op is written in texts and JSON: "linear", "conv", "add", "pass". */
const char *wf__op_name(wf_layer_kind op);

/* The text of a graph whose other fields are set; free(*out). */
wf_status wf__graph_text(wf_ctx *ctx, const wf_graph *graph, char **out);
