/* gemm_cpu: the matrix product of gemm.h, and the packing of weights. */
#include "tensor/cpu/gemm.h"

void WF_FN(wf_gemm)(const gemm_args *args) {
    int width = wf_pad(args->n);
    for (int column = 0, panel = 0; column < width; column += gemm_panel, panel++) {
        int vectors = (width - column) / WF_LANES;
        if (vectors > gemm_vectors) vectors = gemm_vectors;
        ptrdiff_t b_k = args->b_k != 0 ? args->b_k : vectors * WF_LANES;
        const real *b = args->b + panel * args->b_panel + args->b_first * b_k;
        real *c = args->c + column;
        switch (vectors) {
        case 1: gemm_strip(args, c, b, b_k, 1); break;
        case 2: gemm_strip(args, c, b, b_k, 2); break;
#if WF_LANES == 16
        case 3: gemm_strip(args, c, b, b_k, 3); break;
        default: gemm_strip(args, c, b, b_k, 4); break;
#endif
        }
    }
}

void WF_FN(wf_pack_panels)(const real *b, ptrdiff_t row, ptrdiff_t column, int k, int n,
                           real *out) {
    int width = wf_pad(n);
    for (int first = 0; first < width; first += gemm_panel) {
        int columns = width - first < gemm_panel ? width - first : gemm_panel;
        for (int i = 0; i < k; i++)
            for (int j = 0; j < columns; j++)
                *out++ = first + j < n ? b[i * row + (first + j) * column] : 0;
    }
}

void WF_FN(wf_pack)(const wf_backend *self, const void *weight, int rows, int cols, void *panels,
                    void *panels_t);
void WF_FN(wf_pack)(const wf_backend *self, const void *weight, int rows, int cols, void *panels,
                    void *panels_t) {
    (void)self;
    if (panels != NULL) WF_FN(wf_pack_panels)(weight, cols, 1, rows, cols, panels);
    if (panels_t != NULL) WF_FN(wf_pack_panels)(weight, 1, cols, cols, rows, panels_t);
}
