/* download: files over HTTP, resumed where they broke off. download_curl.c uses libcurl;
 * download_absent.c stands in for it in builds without. */
#pragma once

#include "base/status.h"

/* For `weft version`: "libcurl 7.88.1", or that there is none. It lies in a file of its own:
 * asking links no libcurl. */
const char *wf_download_description(void);

typedef struct wf_downloaded {
    uint64_t bytes;   /* of the whole file */
    uint64_t resumed; /* of them, those that an earlier call had brought */
} wf_downloaded;

/* Fetches `url` into `path`. While it lasts the bytes are in PATH.part, with the server's mark of
 * the version in PATH.part.tag; a later call asks for the rest, and begins anew when the server's
 * file has changed or it gives no parts. The finished file is still PATH.part: the caller checks
 * it and renames it. An empty file, and one of more than `limit` bytes, are refused. */
wf_status wf_download(wf_ctx *ctx, const char *url, const char *path, size_t limit,
                      wf_downloaded *out);

/* A small answer in memory, NUL-terminated; free(*out). More than `limit` bytes are refused. */
wf_status wf_download_text(wf_ctx *ctx, const char *url, size_t limit, char **out);
