/* isa: which instruction set the CPU kernels use. */
#pragma once

typedef enum wf_isa { WF_ISA_BASE, WF_ISA_AVX2, WF_ISA_AVX512 } wf_isa_id;

/* The best this machine has, or less when the environment says WEFT_ISA=base|avx2|avx512. Fixed at
 * the first call. */
wf_isa_id wf_isa(void);
const char *wf_isa_name(wf_isa_id isa);

/* Picks fn_avx512_f32, fn_avx2_f32 or fn_base_f32, all of which the caller has declared. */
#if defined(__x86_64__)
#define WF_PICK_F32(fn)                                                                            \
    (wf_isa() == WF_ISA_AVX512 ? fn##_avx512_f32                                                   \
     : wf_isa() == WF_ISA_AVX2 ? fn##_avx2_f32                                                     \
                               : fn##_base_f32)
#else
#define WF_PICK_F32(fn) (fn##_base_f32)
#endif
