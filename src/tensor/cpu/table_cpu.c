/* table_cpu: the CPU backend as one table per variant. */
#include "tensor/cpu/kernels.h"

void WF_FN(wf_pack)(const wf_backend *self, const void *weight, int rows, int cols, void *panels,
                    void *panels_t);
extern const wf_backend WF_FN(wf_backend_table);

#define stringify_(x) #x
#define stringify(x) stringify_(x)

const wf_backend WF_FN(wf_backend_table) = {
    .name = "cpu " stringify(WF_VARIANT),
    .forward =
        {
#define X(name, tolerance) WF_FN(wf_##name##_forward),
#include "tensor/ops.def"
#undef X
        },
    .backward =
        {
#define X(name, tolerance) WF_FN(wf_##name##_backward),
#include "tensor/ops.def"
#undef X
        },
    .pack = WF_FN(wf_pack),
    .fma_rounds = WF_FN(wf_fma_rounds),
};
