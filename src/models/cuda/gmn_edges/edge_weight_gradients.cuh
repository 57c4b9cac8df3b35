/* edge_weight_gradients: weight gradients dW += dy' x over the edges, from bf16 operands that edge
 * kernels leave in memory.
 *
 * An image is a matrix (64 * tiles, cols) in bf16 in memory, each tile laid out as in shared
 * memory: strips of 64 columns, a strip 64 rows x 128 bytes, with the 16-byte word w of row r at w
 * ^ (r % 8) (the 128-byte swizzle). Within 32 columns the order is such that a lane's fragments are
 * one word: see image_column. */
#pragma once

#include "tensor/cuda/tensor_cores/mma.cuh"
#include "tensor/cuda/runtime/op_kernels.cuh"

namespace wf_gpu {

enum { image_strip_bytes = 64 * 128 };

/* Bytes of one tile of an image. The images of a tile are neighbours in memory, so that few pages
 * are written at a time: from one tile to the next it is the sum over all images. */
__host__ __device__ constexpr size_t image_bytes(int cols) {
    return (size_t)(cols / 64) * image_strip_bytes;
}
/* The column at a position of an image's row. */
__host__ __device__ constexpr int image_column(int place) {
    return place / 32 * 32 + place % 8 / 4 * 16 + place % 32 / 8 * 4 + place % 4;
}

/* dw (m, n) += sum of dy[k]' x[k], db (m) += sums of dy[k]; either may be NULL. m and n are
 * multiples of 64, n at most 256. */
struct outer_product {
    const unsigned char *dy[2], *x[2];
    int images; /* how many of each: 1 or 2 */
    int m, n;
    float *dw, *db;
    int ld; /* of dw */
};
enum { most_outer_products = 4, outer_bytes = 144 << 10 /* of shared memory */ };
/* Launches the products of images that begin at `images`, beside what follows. They work in this
 * operation's scratch (lend_scratch). */
bool outer_products(const outer_product *products, int count, const unsigned char *images,
                    int tiles, size_t tile_bytes, wf_arena *arena);

#ifdef __CUDACC__
/* The address of a lane's word of columns 32i .. 32i+31, for row 16 * warp + g + 8 * k. */
__device__ inline unsigned char *image_word(unsigned char *tile, int i, int k) {
    int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x % 128 / 32) * 16 + lane / 4 + 8 * k;
    return tile + i / 2 * image_strip_bytes + row * 128 + ((i % 2 * 4 + lane % 4) ^ (row % 8)) * 16;
}
/* Stores fragments 2i and 2i + 1 of a warp's rows. They are not read before the kernel ends, so
 * they may leave L2 first. */
__device__ inline void store_image(unsigned char *tile, int i, const mma::fragment &x,
                                   const mma::fragment &y) {
    __stcs((uint4 *)image_word(tile, i, 0), uint4{x.r[0], x.r[2], y.r[0], y.r[2]});
    __stcs((uint4 *)image_word(tile, i, 1), uint4{x.r[1], x.r[3], y.r[1], y.r[3]});
}
#endif

} // namespace wf_gpu
