#include "base/isa.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static wf_isa_id chosen;

static void choose(void) {
    wf_isa_id best = WF_ISA_BASE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* What x86-64-v3 and v4 let the compiler use; no processor has these without the rest. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        best = WF_ISA_AVX2;
    if (best == WF_ISA_AVX2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        best = WF_ISA_AVX512;
#endif
    const char *wish = getenv("WEFT_ISA");
    wf_isa_id limit = WF_ISA_AVX512;
    if (wish != NULL && strcmp(wish, "base") == 0) limit = WF_ISA_BASE;
    if (wish != NULL && strcmp(wish, "avx2") == 0) limit = WF_ISA_AVX2;
    chosen = best < limit ? best : limit;
}

wf_isa_id wf_isa(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return chosen;
}

const char *wf_isa_name(wf_isa_id isa) {
    return isa == WF_ISA_AVX512 ? "avx512" : isa == WF_ISA_AVX2 ? "avx2" : "base";
}
