/* download_absent: builds without libcurl. */
#include "base/curl/download.h"

static wf_status absent(wf_ctx *ctx, const char *url) {
    return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                   "%s: this build of weft has no libcurl and cannot download; install "
                   "libcurl4-openssl-dev and build again, or fetch the file by hand",
                   url);
}

wf_status wf_download(wf_ctx *ctx, const char *url, const char *path, size_t limit,
                      wf_downloaded *out) {
    (void)path, (void)limit;
    *out = (wf_downloaded){0};
    return absent(ctx, url);
}

wf_status wf_download_text(wf_ctx *ctx, const char *url, size_t limit, char **out) {
    (void)limit;
    *out = NULL;
    return absent(ctx, url);
}
