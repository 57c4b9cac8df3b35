/* layers: networks written once, as a function that calls layers in order.
 *
 *     static wf_tensor *two_layers(wf_net *net, wf_tensor *x) {
 *         x = wf_layer_linear(net, "in", x, 64, (wf_layer_options){.init = WF_INIT_TORCH});
 *         x = wf_activation_op(net->tape, x, WF_TAPE_ACT_SILU);
 *         return wf_layer_linear(net, "out", x, 10, (wf_layer_options){.init = WF_INIT_ZERO});
 *     }
 *
 * The function is walked in two ways. Under wf_net_declare tensors have shapes alone, and every
 * layer appends its parameters to a list: names, places, initial values, and so the count, without
 * memory for any of them. Under wf_net_start the same calls record operations on a tape, and each
 * layer takes the next tensors of the list. The order of calls must be the same. */
#pragma once

#include "nn/params.h"
#include "tensor/tape.h"

WF_BEGIN_C

typedef struct wf_net {
    wf_tape *tape; /* of the caller */
    wf_params *list;
    bool declares;
    char scope[40]; /* "blocks.3." */
    /* recording */
    const void *params;
    wf_tensor **views; /* of the parameters, one a tensor of the list */
    int next;
    bool training;      /* dropout works, batch norm uses the batch */
    wf_dropout_key key; /* with training */
    int sites;          /* dropouts so far */
    /* Running statistics of batch norms: no parameters, but kept with them. */
    wf_params *buffers;
    void *statistics; /* the flat array of these; recording changes it with training */
    int next_buffer;
} wf_net;

/* Walk a model for its parameters, which `list` collects. */
void wf_net_declare(wf_net *net, wf_tape *tape, wf_params *list);
/* Record it with these parameters; the tape is started, and keeps what backward needs or not. key:
 * of dropout, NULL: none. */
void wf_net_start(wf_net *net, wf_tape *tape, const wf_params *list, const void *params,
                  const wf_dropout_key *key);
/* After a recording whose tape keeps: grad (params), overwritten, from the gradients of outputs
 * that the caller has set. */
bool wf_net_backward(wf_net *net, void *grad);
/* The same in two steps, where processes share the rows of a batch; on the CPU, in float. First
 * the gradients of activations. Then what this recording's rows add to `running`, which holds
 * parameters first .. first+n-1: whole rows of tensors. The rows are added one after another as
 * wf_net_backward does, so that a sum that passes from process to process has the bits of one.
 * One operation reads a parameter. */
bool wf_net_backward_activations(wf_net *net);
bool wf_net_add_gradient(wf_net *net, size_t first, size_t n, float *running);

/* Names of what follows begin with this; NULL: with nothing. "blocks.%d." */
void wf_net_scope(wf_net *net, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A place between two layers. A recording that begins there runs the layers after it alone, as
 * a decoder without its encoder; it has no backward. */
typedef struct wf_net_place {
    int tensor, buffer;
} wf_net_place;
wf_net_place wf_net_here(const wf_net *net);
void wf_net_go(wf_net *net, wf_net_place place);

/* [sequences * tokens]: the sequence of each row, or its place in the sequence. In the backend's
 * memory. */
const uint32_t *wf_net_sequences(wf_net *net, int sequences, int tokens);
const uint32_t *wf_net_places(wf_net *net, int sequences, int tokens);

typedef enum wf_init {
    WF_INIT_TORCH,  /* uniform in 1 / sqrt(inputs), bias too: PyTorch's layers */
    WF_INIT_ZERO,   /* weight and bias */
    WF_INIT_XAVIER, /* uniform in sqrt(6 / (inputs + outputs)), bias zero */
    WF_INIT_NORMAL  /* of std `std`, bias zero */
} wf_init;
typedef struct wf_layer_options {
    wf_init init;
    double std;
    bool no_bias;
    bool matrix; /* Muon's where it is used */
} wf_layer_options;

/* NAME.weight (out, in), NAME.bias (out) */
wf_tensor *wf_layer_linear(wf_net *net, const char *name, wf_tensor *x, int out,
                           wf_layer_options options);
/* NAME.0, act, NAME.2: to `hidden` columns and back to `out`. */
wf_tensor *wf_layer_mlp(wf_net *net, const char *name, wf_tensor *x, int hidden, int out,
                        wf_tape_act act, wf_layer_options options);
/* Sinusoids of t (B, 1), then NAME.0, SiLU, NAME.2, all of `width`. */
wf_tensor *wf_layer_time(wf_net *net, const char *name, wf_tensor *t, int width,
                         wf_layer_options options);
/* Refuse a model.time that is odd, and model.heads that do not divide model.width. */
wf_status wf_layer_check_time(wf_ctx *ctx, int width);
wf_status wf_layer_check_heads(wf_ctx *ctx, int width, int heads);
/* LN(x) * NAME.weight + NAME.bias */
wf_tensor *wf_layer_layer_norm(wf_net *net, const char *name, wf_tensor *x, bool bias, double eps);
/* NAME.qkv (3D, D), attention of all tokens of a sequence, NAME.proj (D, D). last: of proj. */
wf_tensor *wf_layer_attention(wf_net *net, const char *name, wf_tensor *x, int heads, int tokens,
                              wf_layer_options options, wf_layer_options last);
/* A table of `rows` learned vectors: NAME (rows, cols), normal with this std. */
wf_tensor *wf_layer_table(wf_net *net, const char *name, int rows, int cols, double std);
/* NAME.weight, NAME.bias (C), and the buffers NAME.running_mean, NAME.running_var (C). A net with
 * batch norms sets net->buffers after wf_net_declare and wf_net_start, and net->statistics after
 * the latter. */
wf_tensor *wf_layer_batch_norm(wf_net *net, const char *name, wf_tensor *x);
/* NAME.weight (out, kernel * C), the taps of PyTorch's (out, C, kernel) one after another;
 * NAME.bias (out). init TORCH: PyTorch's. */
wf_tensor *wf_layer_conv1d(wf_net *net, const char *name, wf_tensor *x, int out,
                           const wf_conv1d_desc *desc, wf_layer_options options);
/* NAME.weight (C, kernel * out), PyTorch's (C, out, kernel); NAME.bias (out). */
wf_tensor *wf_layer_conv1d_transposed(wf_net *net, const char *name, wf_tensor *x, int out,
                                      const wf_conv1d_desc *desc, wf_layer_options options);
/* Nothing unless training. */
wf_tensor *wf_layer_dropout(wf_net *net, wf_tensor *x, double p);

WF_END_C
