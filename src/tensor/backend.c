/* backend: names of the operations, and the choice of the CPU backend. */
#include "base/isa.h"
#include "tensor/tensor.h"

extern const wf_backend wf_backend_table_base_f32, wf_backend_table_base_f64;
#if defined(__x86_64__)
extern const wf_backend wf_backend_table_avx512_f32, wf_backend_table_avx2_f32;
#endif

const wf_backend *wf_backend_cpu(wf_dtype dtype) {
    if (dtype == WF_F64) return &wf_backend_table_base_f64;
    return WF_PICK_F32(&wf_backend_table);
}

const char *wf_op_name(wf_op_kind kind) {
    static const char *const names[] = {
#define X(name, tolerance) #name,
#include "tensor/ops.def"
#undef X
    };
    return names[kind];
}

double wf_op_tolerance(wf_op_kind kind) {
    static const double tolerances[] = {
#define X(name, tolerance) tolerance,
#include "tensor/ops.def"
#undef X
    };
    return tolerances[kind];
}
