/* mma: 16 x 16 x 16 products of a warp (nvcuda::wmma). Every lane holds whole matrices. */
#ifndef WF_EMULATOR_MMA_H
#define WF_EMULATOR_MMA_H

#include "cuda_bf16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = row_major> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "the only shape there is");
    float x[16][16];
};

template <class F> void fill_fragment(F &f, float value) {
    for (auto &row : f.x) std::fill(row, row + 16, value);
}

template <class Use>
void load_matrix_sync(fragment<Use, 16, 16, 16, __nv_bfloat16, row_major> &f,
                      const __nv_bfloat16 *from, unsigned ld) {
    __syncwarp();
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) f.x[r][c] = __bfloat162float(from[r * ld + c]);
}
template <class Use>
void load_matrix_sync(fragment<Use, 16, 16, 16, __nv_bfloat16, col_major> &f,
                      const __nv_bfloat16 *from, unsigned ld) {
    __syncwarp();
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) f.x[r][c] = __bfloat162float(from[c * ld + r]);
}

template <class A, class B, class C> void mma_sync(C &d, const A &a, const B &b, const C &c) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sum = c.x[i][j];
            for (int k = 0; k < 16; k++) sum += a.x[i][k] * b.x[k][j];
            d.x[i][j] = sum;
        }
}

template <class F> void store_matrix_sync(float *to, const F &f, unsigned ld, layout_t layout) {
    for (unsigned r = 0; r < 16; r++)
        for (unsigned c = 0; c < 16; c++)
            to[layout == mem_row_major ? r * ld + c : c * ld + r] = f.x[r][c];
    __syncwarp();
}

} // namespace wmma
} // namespace nvcuda

#endif
