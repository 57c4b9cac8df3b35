/* pdiff_net: the two networks of P-diff (Wang et al. 2024, code of 2025): a convolutional
 * autoencoder of networks, and a diffusion model of its latents. B networks of P parameters,
 * standardised, zeros after them up to n, a multiple of 64; c channels.
 *
 *   encode  (B, n): 5 x [Conv1d 7, stride 2; batch norm; LeakyReLU] of c, 2c, 4c, 4c, c/2 channels,
 *           lin to the latent; mu = lin, log-variance = lin, which nothing reads
 *   decode  lin back, 5 x [transposed Conv1d 7, stride 2; batch norm; ELU] of 4c, 4c, 2c, c, c,
 *           Conv1d 7
 *   noise   latent as a sequence of one channel, 8 x Conv1d 7 of c, 2c, 4c, 8c, 4c, 2c, c, 1 with
 *           batch norm and ELU but for the last; the embedded step is added to every convolution's
 *           input, and outputs 3, 2, 1 to the inputs of the last three */
#pragma once

#include "generators/phase_fit.h"

typedef struct wf_pdiff_options {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "generators/pdiff.def"
} wf_pdiff_options;

/* What both phases read. */
typedef struct wf_pdiff_model {
    wf_pdiff_options options;
    int params, padded;    /* P, n */
    wf_net_place *decoder; /* where decode begins in the autoencoder; declaring sets it */
    const float *networks; /* (N, P) standardised; held-out ones after the others */
    const float *latents;  /* (N, latent) their mu; for the second phase */
    const double *kept;    /* [diffusion_steps] product of 1 - beta up to each step */
} wf_pdiff_model;

wf_tensor *wf_pdiff_encode(wf_net *net, const wf_pdiff_model *model, wf_tensor *x);
wf_tensor *wf_pdiff_decode(wf_net *net, const wf_pdiff_model *model, wf_tensor *z);
/* The noise in x (B, latent) at steps t (B, 1), as shares of the diffusion's steps. */
wf_tensor *wf_pdiff_noise(wf_net *net, const wf_pdiff_model *model, wf_tensor *x, wf_tensor *t);
/* The phases "vae" and "ddpm", without updates and rates. */
void wf_pdiff_phases(const wf_pdiff_options *options, wf_phase phases[2]);
