#include "generators/pdiff_net.h"

#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const wf_layer_options plain = {.init = WF_INIT_TORCH, .matrix = true};

/* NAME.conv, NAME.norm, unit */
static wf_tensor *convolve(wf_net *net, int index, wf_tensor *x, int length, int out, int stride,
                           bool transposed, wf_tape_act unit) {
    wf_conv1d_desc desc = {.length = length, .kernel = 7, .stride = stride, .padding = 3};
    desc.output_padding = transposed ? stride - 1 : 0;
    char conv[32], norm[32];
    snprintf(conv, sizeof conv, "%d.conv", index);
    snprintf(norm, sizeof norm, "%d.norm", index);
    x = transposed ? wf_layer_conv1d_transposed(net, conv, x, out, &desc, plain)
                   : wf_layer_conv1d(net, conv, x, out, &desc, plain);
    x = wf_layer_batch_norm(net, norm, x);
    return wf_activation_op(net->tape, x, unit);
}

static wf_tensor *convolve_to_one(wf_net *net, const char *name, wf_tensor *x, int length) {
    wf_conv1d_desc desc = {.length = length, .kernel = 7, .stride = 1, .padding = 3};
    return wf_layer_conv1d(net, name, x, 1, &desc, plain);
}

wf_tensor *wf_pdiff_encode(wf_net *net, const wf_pdiff_model *model, wf_tensor *x) {
    int c = model->options.channels, length = model->padded;
    const int widths[] = {c, 2 * c, 4 * c, 4 * c, c / 2};
    wf_tensor *h = wf_to_tokens(net->tape, x, length, 1, NULL);
    wf_net_scope(net, "encoder.");
    for (int k = 0; k < 5; k++, length /= 2)
        h = convolve(net, k, h, length, widths[k], 2, false, WF_TAPE_ACT_LEAKY_RELU);
    h = wf_from_tokens(net->tape, h, length, length * widths[4], NULL, NULL);
    h = wf_layer_linear(net, "out", h, model->options.latent, plain);
    wf_tensor *mu = wf_layer_linear(net, "mu", h, model->options.latent, plain);
    wf_layer_linear(net, "log_var", h, model->options.latent, plain);
    wf_net_scope(net, NULL);
    return mu;
}

wf_tensor *wf_pdiff_decode(wf_net *net, const wf_pdiff_model *model, wf_tensor *z) {
    int c = model->options.channels, length = model->padded / 32;
    const int widths[] = {4 * c, 4 * c, 2 * c, c, c};
    wf_net_scope(net, "decoder.");
    wf_tensor *h = wf_layer_linear(net, "in", z, length * (c / 2), plain);
    h = wf_to_tokens(net->tape, h, length, c / 2, NULL);
    for (int k = 0; k < 5; k++, length *= 2)
        h = convolve(net, k, h, length, widths[k], 2, true, WF_TAPE_ACT_ELU);
    h = convolve_to_one(net, "out", h, length);
    wf_net_scope(net, NULL);
    return wf_from_tokens(net->tape, h, length, length, NULL, NULL);
}

wf_tensor *wf_pdiff_noise(wf_net *net, const wf_pdiff_model *model, wf_tensor *x, wf_tensor *t) {
    int c = model->options.channels, latent = model->options.latent;
    const int widths[] = {c, 2 * c, 4 * c, 8 * c, 4 * c, 2 * c, c};
    wf_tape *tape = net->tape;
    wf_tensor *step = wf_time_features(tape, t, model->options.time, 1000);
    step = wf_layer_mlp(net, "time", step, latent, latent, WF_TAPE_ACT_SILU, plain);
    step = wf_to_tokens(tape, step, latent, 1, NULL);
    wf_tensor *h = wf_to_tokens(tape, x, latent, 1, NULL), *kept[3] = {0};
    for (int k = 0; k < 7; k++) {
        if (k >= 5) h = wf_residual(tape, h, kept[7 - k], NULL, 0, NULL);
        h = wf_add_column(tape, h, step);
        h = convolve(net, k, h, latent, widths[k], 1, false, WF_TAPE_ACT_ELU);
        if (k < 3) kept[k] = h;
    }
    h = wf_residual(tape, h, kept[0], NULL, 0, NULL);
    h = convolve_to_one(net, "7.conv", wf_add_column(tape, h, step), latent);
    return wf_from_tokens(tape, h, latent, latent, NULL, NULL);
}

/* --- the autoencoder: noisy networks, networks, noise of latents ------------------------------ */

static int vae_shapes(const void *self, int n, wf_phase_shape out[WF_PHASE_INPUTS]) {
    const wf_pdiff_model *model = self;
    out[0] = out[1] = (wf_phase_shape){n, model->padded};
    out[2] = (wf_phase_shape){n, model->options.latent};
    return 3;
}

static void vae_fill(const void *self, const wf_phase_batch *batch,
                     float *const in[WF_PHASE_INPUTS]) {
    const wf_pdiff_model *model = self;
    size_t p = (size_t)model->params, n = (size_t)model->padded;
    size_t latent = (size_t)model->options.latent;
    for (size_t b = 0; b < (size_t)batch->n; b++) {
        wf_rng rng = wf_rng_at(batch->seed, (uint32_t)b, WF_RNG_NOISE, batch->update);
        float *noisy = in[0] + b * n, *clean = in[1] + b * n, *z = in[2] + b * latent;
        memset(clean, 0, n * sizeof *clean);
        memcpy(clean, model->networks + batch->networks[b] * p, p * sizeof *clean);
        wf_rng_normals(&rng, noisy, n);
        wf_rng_normals_from(&rng, (n + 3) / 4 * 4, z, latent);
        for (size_t i = 0; i < n; i++)
            noisy[i] = clean[i] + (float)model->options.input_noise * noisy[i];
        for (size_t i = 0; i < latent; i++) z[i] *= (float)model->options.latent_noise;
    }
}

static wf_phase_loss vae_loss(wf_net *net, const void *self, int n,
                              wf_tensor *const in[WF_PHASE_INPUTS]) {
    const wf_pdiff_model *model = self;
    (void)n;
    wf_tensor *z = wf_pdiff_encode(net, model, in[0]);
    z = wf_residual(net->tape, z, in[2], NULL, 0, NULL);
    if (net->declares) *model->decoder = wf_net_here(net);
    wf_tensor *made = wf_pdiff_decode(net, model, z);
    return (wf_phase_loss){{wf_mse(net->tape, made, in[1], NULL)}, {1}};
}

static wf_status vae_draw(wf_ctx *ctx, const void *self, wf_phase_draw *out) {
    const wf_pdiff_model *model = self;
    (void)ctx;
    *out = (wf_phase_draw){.law = WF_PHASE_NOISY,
                           .rows = model->networks,
                           .width = (uint32_t)model->params,
                           .padded = (uint32_t)model->padded,
                           .latent = (uint32_t)model->options.latent,
                           .noise = (float)model->options.input_noise,
                           .latent_noise = (float)model->options.latent_noise};
    return WF_OK;
}

/* --- the diffusion: noisy latents, steps, noise ----------------------------------------------- */

static int ddpm_shapes(const void *self, int n, wf_phase_shape out[WF_PHASE_INPUTS]) {
    const wf_pdiff_model *model = self;
    out[0] = out[2] = (wf_phase_shape){n, model->options.latent};
    out[1] = (wf_phase_shape){n, 1};
    return 3;
}

static void ddpm_fill(const void *self, const wf_phase_batch *batch,
                      float *const in[WF_PHASE_INPUTS]) {
    const wf_pdiff_model *model = self;
    size_t latent = (size_t)model->options.latent;
    for (size_t b = 0; b < (size_t)batch->n; b++) {
        wf_rng time = wf_rng_at(batch->seed, (uint32_t)b, WF_RNG_TIME, batch->update);
        wf_rng rng = wf_rng_at(batch->seed, (uint32_t)b, WF_RNG_NOISE, batch->update);
        uint32_t step = wf_rng_below(&time, (uint32_t)model->options.diffusion_steps);
        const float *z = model->latents + batch->networks[b] * latent;
        float *noisy = in[0] + b * latent, *noise = in[2] + b * latent;
        float signal = (float)sqrt(model->kept[step]);
        float spread = (float)sqrt(1 - model->kept[step]);
        in[1][b] = (float)step / (float)model->options.diffusion_steps;
        wf_rng_normals(&rng, noise, latent);
        for (size_t i = 0; i < latent; i++) noisy[i] = signal * z[i] + spread * noise[i];
    }
}

static wf_phase_loss ddpm_loss(wf_net *net, const void *self, int n,
                               wf_tensor *const in[WF_PHASE_INPUTS]) {
    (void)n;
    wf_tensor *noise = wf_pdiff_noise(net, self, in[0], in[1]);
    return (wf_phase_loss){{wf_mse(net->tape, noise, in[2], NULL)}, {1}};
}

static wf_status ddpm_draw(wf_ctx *ctx, const void *self, wf_phase_draw *out) {
    const wf_pdiff_model *model = self;
    (void)ctx;
    *out = (wf_phase_draw){.law = WF_PHASE_DIFFUSED,
                           .rows = model->latents,
                           .width = (uint32_t)model->options.latent,
                           .steps = (uint32_t)model->options.diffusion_steps,
                           .kept = model->kept};
    return WF_OK;
}

void wf_pdiff_phases(const wf_pdiff_options *options, wf_phase phases[2]) {
    phases[0] = (wf_phase){.name = "vae",
                           .doing = "training the autoencoder",
                           .shapes = vae_shapes,
                           .fill = vae_fill,
                           .loss = vae_loss,
                           .draw = vae_draw,
                           .seed = options->seed,
                           .decay_all = true};
    phases[1] = (wf_phase){.name = "ddpm",
                           .doing = "training the diffusion of latents",
                           .shapes = ddpm_shapes,
                           .fill = ddpm_fill,
                           .loss = ddpm_loss,
                           .draw = ddpm_draw,
                           .seed = options->seed + 1,
                           .decay_all = true};
}
