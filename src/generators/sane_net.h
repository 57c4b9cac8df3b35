/* sane_net: the autoencoder of SANE (Schürholt et al. 2024). A network of P parameters is a
 * sequence of T tokens, one or more a unit: its incoming weights and bias, zeros after them.
 *
 *   encode  lin to `width`, + position, blocks, lin to the latent        (B * T, latent)
 *   decode  lin to `width`, + position, blocks, lin to a token           (B * T, token)
 *   position = [index + layer | channel], three learned tables of half the width, used both times
 *   block   x + attention(LN x), x + mlp(LN x), no biases, erf-GELU, four times the width
 *   head    all latents of a network: lin to 30, LN, ReLU, lin to 30, LN, ReLU; for the
 *           contrastive loss
 *
 * Loss of B networks with two views each, the second relabelled, both with multiplicative noise:
 *   contrast * NT-Xent(heads of views) + (1 - contrast) * mean over all entries of tokens of
 *   (view - decoded view)^2, zeros after a row included. */
#pragma once

#include "generators/phase_fit.h"

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "generators/sane.def"

typedef struct wf_sane_options {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "generators/sane.def"
} wf_sane_options;

/* How networks of an architecture become tokens. */
typedef struct wf_sane_tokens {
    int count, width;   /* T, numbers of a token */
    uint32_t *map;      /* [T * width] place in the flat vector; WF_NO_VALUE after a row */
    uint32_t *position; /* [3 * T] index of its unit, layer, channel */
    int rows[3];        /* of the three tables */
} wf_sane_tokens;
wf_status wf_sane_tokens_create(wf_ctx *ctx, const wf_graph *graph, int width, wf_sane_tokens *out);
void wf_sane_tokens_free(wf_sane_tokens *tokens);

typedef struct wf_sane_model {
    wf_sane_options options;
    const wf_graph *graph;
    wf_sane_tokens tokens;
    wf_net_place *decoder; /* declaring sets it */
    const float *networks; /* (N, P) standardised; held-out ones after the others */
    uint32_t *perm;        /* scratch of fill: a relabelling */
    float *flat;           /* and a network */
} wf_sane_model;

/* x (B, P) -> (B * T, latent), and back to (B, P). */
wf_tensor *wf_sane_encode(wf_net *net, const wf_sane_model *model, int networks, wf_tensor *x);
wf_tensor *wf_sane_decode(wf_net *net, const wf_sane_model *model, int networks, wf_tensor *z);
/* The phase "autoencoder", without updates and rate. */
void wf_sane_phase(const wf_sane_options *options, wf_phase *phase);
