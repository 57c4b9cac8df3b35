/* backend: names of the operations, and the choice of the CPU backend. */
#include "tensor/tensor.h"

extern const wf_backend wf_backend_table_base_f32, wf_backend_table_base_f64;
#if defined(__x86_64__)
extern const wf_backend wf_backend_table_avx512_f32, wf_backend_table_avx2_f32;
#endif

const wf_backend *wf_backend_cpu_at(wf_isa_id isa) {
#if defined(__x86_64__)
    if (isa == WF_ISA_AVX512) return &wf_backend_table_avx512_f32;
    if (isa == WF_ISA_AVX2) return &wf_backend_table_avx2_f32;
#else
    (void)isa;
#endif
    return &wf_backend_table_base_f32;
}

const wf_backend *wf_backend_cpu(wf_dtype dtype) {
    return dtype == WF_F64 ? &wf_backend_table_base_f64 : wf_backend_cpu_at(wf_isa());
}

const char *wf_op_name(wf_op_kind kind) {
    static const char *const names[] = {
#define X(name, tolerance) #name,
#include "tensor/ops.def"
#include "tensor/fused.def"
#undef X
    };
    return names[kind];
}

double wf_op_tolerance(wf_op_kind kind) {
    static const double tolerances[] = {
#define X(name, tolerance) tolerance,
#include "tensor/ops.def"
#include "tensor/fused.def"
#undef X
    };
    return tolerances[kind];
}
