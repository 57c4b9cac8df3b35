/* variant: one source, several builds.
 *
 * Every file in a cpu/ folder is compiled once per variant: avx512_f32, avx2_f32, base_f32 for
 * speed, base_f64 for gradient checks. The build defines WF_VARIANT, WF_REAL and WF_LANES (reals
 * in a vector). Such a file names its functions with WF_FN(name) and publishes them in one table;
 * a plain file picks the table with wf_isa(). */
#pragma once

#include "base/isa.h"

#ifdef WF_VARIANT

#include "base/vmath.h"

#define WF_PASTE_(a, b) a##_##b
#define WF_PASTE(a, b) WF_PASTE_(a, b)
#define WF_FN(name) WF_PASTE(name, WF_VARIANT)

typedef WF_REAL real;
/* One vector register; vreal_u may be loaded from any address. */
typedef real vreal __attribute__((vector_size(WF_LANES * sizeof(real))));
typedef real vreal_u
    __attribute__((vector_size(WF_LANES * sizeof(real)), aligned(sizeof(real)), may_alias));

#ifdef WF_REAL_IS_DOUBLE
static inline real r_exp(real x) { return exp(x); }
static inline real r_tanh(real x) { return tanh(x); }
static inline real r_sin(real x) { return sin(x); }
static inline real r_cos(real x) { return cos(x); }
static inline real r_sqrt(real x) { return sqrt(x); }
static inline real r_log(real x) { return log(x); }
static inline real r_normal_cdf(real x, real *bell) {
    *bell = exp(-0.5 * x * x);
    return 0.5 * erfc(-x * 0.7071067811865476);
}
#else
static inline real r_exp(real x) { return wf_expf(x); }
static inline real r_tanh(real x) { return wf_tanhf(x); }
static inline real r_sin(real x) { return wf_sinf(x); }
static inline real r_cos(real x) { return wf_cosf(x); }
static inline real r_sqrt(real x) { return sqrtf(x); }
static inline real r_log(real x) { return wf_logf(x); }
static inline real r_normal_cdf(real x, real *bell) { return wf_normal_cdff(x, bell); }
#endif

#endif
