/* weft/field.h: description of a velocity field: layout, widths, encoders, conditions. */
#ifndef WEFT_FIELD_H
#define WEFT_FIELD_H

#include "weft/graph.h"

WF_BEGIN_C

typedef enum wf_layout { WF_LAYOUT_LEAN, WF_LAYOUT_LSTAR } wf_layout;
typedef enum wf_messages { WF_MESSAGES_SUM, WF_MESSAGES_MEAN, WF_MESSAGES_ATTENTION } wf_messages;
typedef enum wf_encoder {
    WF_ENCODER_SINE,
    WF_ENCODER_FOURIER,
    WF_ENCODER_SCALAR
} wf_encoder; /* SCALAR: lin(coef, d), no sine */
typedef enum wf_field_act {
    WF_FIELD_ACT_DEFAULT,
    WF_FIELD_ACT_SILU,
    WF_FIELD_ACT_GELU
} wf_field_act; /* DEFAULT: lstar SiLU, lean tanh-GELU */
typedef enum wf_cond_kind {
    WF_COND_NONE,
    WF_COND_LINEAR, /* lin(K, T), added to the time embedding (one-hot task) */
    WF_COND_MLP /* lin(K, T) SiLU lin(T, T), concatenated with the time embedding, fused by lin(2T, T) (scalar domain) */
} wf_cond_kind;

typedef struct wf_field_desc {
    wf_layout layout;
    int node, edge, time; /* widths; global width = edge width, message width = node width */
    int blocks;
    wf_messages messages;
    wf_encoder encoder;
    wf_field_act activation;
    wf_cond_kind cond;
    int cond_size; /* K; 0 with WF_COND_NONE */
    int fold_rows; /* parameters of a folded row (785 for MNIST); 0: no folding */
    int max_coef;  /* 1 for MLPs; 9 adds the encoder and readout of 3x3 kernels */
    uint64_t seed; /* initial weights */
} wf_field_desc;
WF_API wf_field_desc wf_field_desc_default(void); /* lean, 64/64/64 x 8, sum, sine, no condition */

/* Trainable parameters, without building anything. */
WF_API wf_status wf_field_count(wf_ctx *ctx, const wf_field_desc *desc, size_t *out);

WF_END_C

#endif
