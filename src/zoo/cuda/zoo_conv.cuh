/* zoo_conv: chains of convolutions, one block a network, on tensor cores; see zoo_conv.cu. */
#pragma once

#include "zoo/cuda/zoo_layers.cuh"

#include "weft/rng.h"

namespace zoo_gpu {

enum {
    conv_warps = 8,
    conv_threads = 32 * conv_warps,
    most_convs = 6,
    most_kernel = 5,
    most_patch = 80,    /* weights of a unit of the first layer, padded */
    most_channels = 128 /* of a layer, padded */
};

/* Values of an image, bf16: pixel (y, x) begins at at + ((y + halo) row + x + halo) pitch. The halo
 * is zero. A pitch is an odd number of 16 bytes, so eight neighbours are in different banks. */
struct conv_image {
    int at, pitch, row, halo;
};

struct conv_layer {
    int in, out; /* channels; of the first layer `in` is a patch: channels x kernel x kernel */
    int in_padded, out_padded; /* to multiples of 16 */
    int kernel, taps;          /* of the first layer 1, 1 */
    int height, width;         /* of what it reads, and of its sums */
    int tiles_across, tiles;   /* of 2 x 8 pixels */
    bool pooled;               /* 2 x 2, maximum */
    int next_height, next_width;
    int flat_weight, flat_bias; /* in the flat vector; flat_bias < 0: none */
    int weight, weight_pitch;   /* bytes; (taps, out_padded) rows of in_padded */
    int bias;                   /* bytes; [out_padded] float */
    conv_image values;          /* what it reads; not of the first layer */
    conv_image delta;           /* gradient of its sums; not of the first layer */
    int choice; /* bytes; (next_height, next_width, out_padded): 0 to 3, which of the four is the
                   largest; 4 more where it is above zero */
};

struct conv_plan {
    gpu_plan net; /* what all kernels know; its layers are not used */
    int n_convs;
    conv_layer layer[most_convs];
    int channels, kernel; /* of the images; of the first layer */
    int flip, crop;
    uint64_t seed;
    int image;                         /* bytes; (channels, height, width) bf16 */
    int patches, patch_pitch, d_pitch; /* of each warp: 16 patches, then 16 gradients */
    int warp_bytes;                    /* of them, or of a warp's partial sum */
    int first_delta;                   /* gradient of the first layer's values after pooling */
    int linear_weight, linear_bias;    /* in the flat vector; linear_bias < 0: none */
    int linear;                        /* bytes; weights (classes, in), then biases, float */
    int sums, means, slopes, logits;   /* bytes; of the global average and behind it, float */
    int bias_parts;                    /* bytes; (warps, 16) float */
    int gradient;                      /* bytes, flat; -1: in `state` */
    int shared_bytes;
    bool is_paper; /* zoo_paper_net.cuh's network: that kernel, whose shared memory has places of
                      its own */
    float *state;  /* (count, 3, n_params): moments, gradient */
};

/* How an image is changed, as on the CPU (cpu/net_kernels.c): numbers from (seed, network,
 * WF_RNG_AUGMENT, epoch), block `example`. */
struct image_change {
    bool flip;
    int down, right;
};

__device__ inline image_change change_of(const conv_plan &plan, uint32_t network, uint32_t epoch,
                                         uint32_t example) {
    const uint32_t counter[4] = {example, epoch, network, WF_RNG_AUGMENT};
    const uint32_t span = 2 * (uint32_t)plan.crop + 1;
    uint32_t word[4];
    wf_philox(counter, plan.seed, word);
    return image_change{plan.flip && (word[0] & 1) != 0,
                        (int)((uint64_t)word[1] * span >> 32) - plan.crop,
                        (int)((uint64_t)word[2] * span >> 32) - plan.crop};
}

/* Position i of a side of n pixels, reflected at both ends without repeating them. */
__device__ inline int reflected(int i, int n) {
    if (i < 0) i = -i;
    return i < n ? i : 2 * (n - 1) - i;
}

/* Why networks of this graph are not for this kernel; NULL: they are. */
const char *conv_refuses(const wf_graph *graph, int *layer);

/* Fills all but the addresses in device memory; false: it takes more than shared_limit bytes. */
bool conv_choose(conv_plan *plan, const wf_graph *graph, const wf_zoo_desc *desc, int shared_limit);

/* Floats of `state` for each network. */
inline size_t conv_state(const conv_plan &plan) { return 3 * (size_t)plan.net.n_params; }

/* Whether zoo_paper_net has this network, and its shared memory. */
bool paper_takes(const wf_graph *graph);
int paper_shared();
cudaError_t paper_launch(const conv_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream);

cudaError_t conv_launch(const conv_plan &plan, const gpu_networks &networks, size_t count,
                        cudaStream_t stream);

} // namespace zoo_gpu
