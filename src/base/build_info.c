/* build_info: what this build has, one "name: value" a line; what a program checks at load. */
#include "base/cuda/device.h"
#include "base/curl/download.h"
#include "base/isa.h"
#include "base/mpi/mpi_ranks.h"
#include "base/nccl/nccl_ranks.h"
#include "weft/base.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

static char text[512];

static void compose(void) {
    snprintf(text, sizeof text,
             "compiler: %s\n"
             "instruction set: %s (WEFT_ISA=base|avx2|avx512 lowers it)\n"
             "cuda: %s\n"
             "mpi: %s\n"
             "nccl: %s\n"
             "downloads: %s\n"
             "zlib: %s\n"
             "jansson: %s\n",
#if defined(__clang__)
             __VERSION__,
#else
             "gcc " __VERSION__,
#endif
             wf_isa_name(wf_isa()), wf_cuda_description(), wf__mpi_description(),
             wf__nccl_description(), wf_download_description(), zlibVersion(), JANSSON_VERSION);
}

const char *wf_build_info(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, compose);
    return text;
}

int wf_abi_version(void) { return WF_ABI; }
const char *wf_version(void) { return WF_VERSION; }
void wf_free(void *memory) { free(memory); }
