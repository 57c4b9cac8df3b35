/* lstar_back: what the backward kernels of an lstar block share: slopes kept aside, units that leave as images. */
#ifndef WF_TENSOR_CUDA_LSTAR_BACK_CUH
#define WF_TENSOR_CUDA_LSTAR_BACK_CUH

#include "tensor/cuda/octet_tile.cuh"
#include "tensor/cuda/outer_cuda.cuh"

namespace wf_gpu {

inline float *wanted_grad(const wf_tensor *tensor) {
    return wanted(tensor) ? grad_of(tensor) : NULL;
}

__device__ inline uint4 bits_of(const mma::fragment &f) {
    return uint4{f.r[0], f.r[1], f.r[2], f.r[3]};
}
__device__ inline float2 halves(uint32_t bits) {
    return float2{__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
/* acc[2j], acc[2j+1] *= a fragment */
__device__ inline void scale_by(octet::piece_acc &acc, int j, const uint4 &f) {
    float2 x = halves(f.x), y = halves(f.y), z = halves(f.z), w = halves(f.w);
    acc[2 * j][0] *= x.x;
    acc[2 * j][1] *= x.y;
    acc[2 * j][2] *= y.x;
    acc[2 * j][3] *= y.y;
    acc[2 * j + 1][0] *= z.x;
    acc[2 * j + 1][1] *= z.y;
    acc[2 * j + 1][2] *= w.x;
    acc[2 * j + 1][3] *= w.y;
}
__device__ inline uint32_t add_pairs(uint32_t x, uint32_t y) {
    float2 a = halves(x), b = halves(y);
    return mma::pack(a.x + b.x, a.y + b.y);
}

/* y = s(acc) to fragments and the image, s' to the stash. */
__device__ inline void units_and_slopes(octet::piece_acc &acc, int k, mma::fragment *y,
                                        unsigned char *image, uint4 *stash) {
#pragma unroll
    for (int j = 0; j < octet::piece_groups; j++) {
        float slope[2][4];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[2 * j + t][i] = mma::fast_unit<false>(acc[2 * j + t][i], &slope[t][i]);
        y[j] = mma::fragment_of(acc[2 * j], acc[2 * j + 1]);
        stash[(octet::piece_groups * k + j) * octet::group_threads] =
            bits_of(mma::fragment_of(slope[0], slope[1]));
    }
#pragma unroll
    for (int j = 0; j < octet::piece_groups; j += 2)
        store_image(image, (octet::piece_groups * k + j) / 2, y[j], y[j + 1]);
}

/* All of a tile's columns, as the same lane stored them. */
template <int Columns>
__device__ inline void load_tile(const unsigned char *images, int tile,
                                 mma::fragment (&to)[Columns / 16]) {
    const unsigned char *from = images + (size_t)tile * (Columns / 64) * image_strip_bytes;
#pragma unroll
    for (int i = 0; i < Columns / 32; i++) load_image(from, i, &to[2 * i], &to[2 * i + 1]);
}
template <int Columns>
__device__ inline void store_tile(unsigned char *images, int tile,
                                  const mma::fragment (&from)[Columns / 16]) {
    unsigned char *to = images + (size_t)tile * (Columns / 64) * image_strip_bytes;
#pragma unroll
    for (int i = 0; i < Columns / 32; i++) store_image(to, i, from[2 * i], from[2 * i + 1]);
}

} // namespace wf_gpu
#endif
