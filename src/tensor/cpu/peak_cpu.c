/* peak_cpu: the rate of multiply-adds on registers alone, against which matrix products are
 * measured. */
#include "tensor/cpu/kernels.h"

double WF_FN(wf_fma_rounds)(size_t rounds) {
    enum { chains = 12 };
    vreal sum[chains], factor = {0}, addend = {0};
    factor += (real)0.999;
    addend += (real)0.001;
#pragma GCC unroll 16
    for (int i = 0; i < chains; i++) sum[i] = addend * (real)i;
    for (size_t r = 0; r < rounds; r++)
#pragma GCC unroll 16
        for (int i = 0; i < chains; i++) sum[i] = sum[i] * factor + addend;
    real total = 0;
#pragma GCC unroll 16
    for (int i = 0; i < chains; i++) total += vector_sum(sum[i]);
    /* The value is used, so that the loop stays. */
    return 2.0 * chains * WF_LANES * (double)rounds + (total == (real)12345 ? 1 : 0);
}
