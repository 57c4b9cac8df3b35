/* zoo_paper_net: see zoo_paper_net.cuh. */
#include "zoo/cuda/zoo_paper_net.cuh"

namespace zoo_gpu {

/* Layers are those that conv_refuses admits. */
bool paper_takes(const wf_graph *graph) {
    using namespace paper;
    const int weights[] = {flat_w1, flat_w2, flat_w3, flat_linear};
    const int biases[] = {flat_b1, flat_b2, flat_b3, flat_linear + classes * channels3};
    const int channels[] = {3, channels1, channels2, channels3, classes};
    const wf_group *images = &graph->groups[0];
    if (graph->n_layers != 4 || (int)graph->n_params != n_params || graph->outputs != classes ||
        images->height != side || images->width != side)
        return false;
    for (int l = 0; l < 5; l++)
        if (graph->groups[l].n != channels[l]) return false;
    for (int l = 0; l < 3; l++)
        if (graph->layers[l].window.kernel[0] != 3 ||
            graph->layers[l].pool != (l == 2 ? WF_POOL_GLOBAL : WF_POOL_MAX))
            return false;
    for (int b = 0; b < graph->n_blocks; b++) {
        const wf_block *block = &graph->blocks[b];
        int expected = (block->kind == WF_BLOCK_BIAS ? biases : weights)[block->layer];
        if ((int)block->offset != expected) return false;
    }
    return graph->n_blocks == 8;
}

int paper_shared() { return paper::shared_bytes; }

cudaError_t paper_launch(const conv_plan &plan, const gpu_networks &networks, size_t count,
                         cudaStream_t stream) {
    auto kernel = paper::train<paper::no_clock>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             paper::shared_bytes);
    if (error != cudaSuccess) return error;
    kernel<<<(unsigned)count, paper::threads, (size_t)paper::shared_bytes, stream>>>(
        plan, networks, paper::no_clock());
    return cudaGetLastError();
}

} // namespace zoo_gpu
