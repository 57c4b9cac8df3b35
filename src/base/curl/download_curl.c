/* download_curl: HTTP with libcurl.
 *
 * A redirect never leads from https to http, and certificates are checked. A broken transfer is
 * resumed a few times, then left for the next call. Only bytes of the same version of the file are
 * appended to PATH.part: the server's ETag (or date) is sent back as If-Range, and the answer is
 * used only when it is 206 and begins where PATH.part ends. PATH.part.tag holds that mark and how
 * many bytes have reached the disk; what a killed process or a power loss left behind them is cut
 * off. It is written every save_seconds. */
#include "base/curl/download.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { attempts = 3, longest_path = 4096 };
static const double save_seconds = 5;

typedef struct parts {
    char file[longest_path], tag[longest_path];
} parts;

typedef struct transfer {
    wf_ctx *ctx;
    CURL *curl;
    wf_meter meter;
    FILE *file;         /* NULL: into `text` */
    const parts *parts; /* of the file */
    double saved;       /* when what has arrived was last noted */
    uint64_t offset;    /* bytes that were there before this attempt */
    uint64_t received;  /* in this attempt */
    int64_t range;      /* where the server's part begins; -1: not said */
    char tag[256];      /* ETag or Last-Modified of this answer */
    char *text;
    size_t size, limit;
    bool checked; /* the answer's place in the file is settled */
    bool misfit;  /* the server sent another part than was asked for */
    bool too_long;
    int write_error; /* errno of a write that failed, or 0 */
    char reason[CURL_ERROR_SIZE];
} transfer;

static void start_library(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

/* One header line: "Name: value\r\n". */
static bool header_value(const char *line, size_t length, const char *name, char *out,
                         size_t size) {
    size_t n = strlen(name);
    if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return false;
    line += n + 1, length -= n + 1;
    while (length > 0 && (*line == ' ' || *line == '\t')) line++, length--;
    while (length > 0 && (line[length - 1] == '\r' || line[length - 1] == '\n')) length--;
    if (length >= size) return false;
    memcpy(out, line, length);
    out[length] = 0;
    return true;
}

static size_t on_header(char *line, size_t size, size_t count, void *transfer_) {
    transfer *t = transfer_;
    size_t length = size * count;
    char value[256];
    if (length > 5 && strncmp(line, "HTTP/", 5) == 0) t->range = -1, t->tag[0] = 0; /* a redirect */
    if (header_value(line, length, "Content-Range", value, sizeof value) &&
        strncmp(value, "bytes ", 6) == 0)
        t->range = (int64_t)strtoll(value + 6, NULL, 10);
    if (header_value(line, length, "ETag", value, sizeof value) && strncmp(value, "W/", 2) != 0)
        memcpy(t->tag, value, sizeof value);
    if (t->tag[0] == 0 && header_value(line, length, "Last-Modified", value, sizeof value))
        memcpy(t->tag, value, sizeof value);
    return length;
}

/* Before the first byte of an attempt: does the answer go after what is there? */
static bool settle_place(transfer *t) {
    long code = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    t->checked = true;
    if (t->offset == 0 || (code == 206 && t->range == (int64_t)t->offset)) return true;
    t->offset = 0; /* the whole file again */
    t->misfit = code == 206;
    return !t->misfit && ftruncate(fileno(t->file), 0) == 0 && fseek(t->file, 0, SEEK_SET) == 0;
}

/* How many bytes have reached the disk, and of which version of the file. */
static void write_tag(const parts *p, const char *tag, uint64_t bytes) {
    FILE *file = tag[0] != 0 ? fopen(p->tag, "w") : NULL;
    if (file == NULL) { /* without a mark the next call begins anew */
        unlink(p->tag);
        return;
    }
    bool written = fprintf(file, "%s\n%llu\n", tag, (unsigned long long)bytes) > 0;
    if (fclose(file) != 0 || !written) unlink(p->tag);
}

static bool reach_disk(const transfer *t) {
    return fflush(t->file) == 0 && (fdatasync(fileno(t->file)) == 0 || errno == EINVAL);
}

static size_t on_body(char *bytes, size_t size, size_t count, void *transfer_) {
    transfer *t = transfer_;
    size_t length = size * count;
    if (t->file != NULL && !t->checked && !settle_place(t)) return 0;
    if (length > t->limit - (t->file == NULL ? t->size : t->offset + t->received)) {
        t->too_long = true;
        return 0;
    }
    if (t->file == NULL) {
        char *grown = realloc(t->text, t->size + length + 1);
        if (grown == NULL) {
            t->write_error = ENOMEM;
            return 0;
        }
        t->text = grown;
        memcpy(t->text + t->size, bytes, length);
        t->size += length;
        t->text[t->size] = 0;
        return length;
    }
    if (fwrite(bytes, 1, length, t->file) != length) {
        t->write_error = errno != 0 ? errno : EIO;
        return 0;
    }
    t->received += length;
    if (wf_seconds() - t->saved > save_seconds) {
        if (reach_disk(t)) write_tag(t->parts, t->tag, t->offset + t->received);
        t->saved = wf_seconds();
    }
    return length;
}

static int on_progress(void *transfer_, curl_off_t total, curl_off_t done, curl_off_t up_total,
                       curl_off_t up) {
    transfer *t = transfer_;
    (void)up_total, (void)up;
    if (t->file != NULL) {
        t->meter.total = total > 0 ? (double)total + (double)t->offset : 0;
        wf_meter_update(&t->meter, (double)done + (double)t->offset, NULL);
    }
    return wf_interrupted(t->ctx) ? 1 : 0;
}

static wf_status transfer_open(transfer *t, const char *url) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_library);
    t->curl = curl_easy_init();
    if (t->curl == NULL) return wf_fail(t->ctx, WF_ERR_MEMORY, "%s: out of memory", url);
    curl_easy_setopt(t->curl, CURLOPT_URL, url);
    bool secure = strncasecmp(url, "https:", 6) == 0;
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(t->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(t->curl, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
#else
    long protocols = secure ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS;
    curl_easy_setopt(t->curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(t->curl, CURLOPT_REDIR_PROTOCOLS, protocols);
#endif
    const char *certificates = getenv("SSL_CERT_FILE");
    if (certificates != NULL) curl_easy_setopt(t->curl, CURLOPT_CAINFO, certificates);
    curl_easy_setopt(t->curl, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)t->limit);
    curl_easy_setopt(t->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(t->curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(t->curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(t->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(t->curl, CURLOPT_LOW_SPEED_TIME, 60L);
    curl_easy_setopt(t->curl, CURLOPT_USERAGENT, "weft/" WF_VERSION);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->reason);
    curl_easy_setopt(t->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(t->curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFODATA, t);
    return WF_OK;
}

/* Failures to verify the server's certificate. Trying again does not help. */
static bool is_untrusted(CURLcode code) {
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_ISSUER_ERROR || code == CURLE_SSL_CRL_BADFILE ||
           code == CURLE_SSL_INVALIDCERTSTATUS || code == CURLE_SSL_PINNEDPUBKEYNOTMATCH;
}

/* A sentence for a transfer that ended with `code`. */
static wf_status transfer_fault(const transfer *t, const char *url, CURLcode code) {
    long answer = 0;
    if (t->too_long || code == CURLE_FILESIZE_EXCEEDED)
        return wf_fail(t->ctx, WF_ERR_INPUT, "%s: the answer is longer than %zu bytes", url,
                       t->limit);
    if (is_untrusted(code))
        return wf_fail(t->ctx, WF_ERR_FAILED,
                       "%s: the server's certificate is not accepted: %s; nothing was taken from "
                       "it. Is the address right, and are this machine's clock and certificates "
                       "(ca-certificates) up to date?",
                       url, t->reason[0] != 0 ? t->reason : curl_easy_strerror(code));
    if (code == CURLE_UNSUPPORTED_PROTOCOL)
        return wf_fail(t->ctx, WF_ERR_FAILED,
                       "%s: the server leads to an address that is not https (%s), and what was "
                       "asked for over https is not taken from one",
                       url, t->reason[0] != 0 ? t->reason : "refused");
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &answer);
    const char *reason = t->reason[0] != 0 ? t->reason : curl_easy_strerror(code);
    if (code == CURLE_OUT_OF_MEMORY || t->write_error == ENOMEM)
        return wf_fail(t->ctx, WF_ERR_MEMORY, "%s: out of memory", url);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return wf_fail(t->ctx, WF_ERR_INTERRUPTED,
                       "interrupted while downloading %s; the same command goes on from there",
                       url);
    /* OpenML answers 412 where it knows no such data set. */
    if (code == CURLE_HTTP_RETURNED_ERROR && (answer == 404 || answer == 412))
        return wf_fail(t->ctx, WF_ERR_INPUT, "%s: the server has no such file or data set (%ld)",
                       url, answer);
    return wf_fail(t->ctx, WF_ERR_FAILED,
                   "%s: %s; try again when the connection works, the same command goes on from "
                   "what has arrived",
                   url, reason);
}

wf_status wf_download_text(wf_ctx *ctx, const char *url, size_t limit, char **out) {
    transfer t = {.ctx = ctx, .limit = limit};
    *out = NULL;
    WF_TRY(transfer_open(&t, url));
    CURLcode code = curl_easy_perform(t.curl);
    wf_status status = WF_OK;
    if (code != CURLE_OK) status = transfer_fault(&t, url, code);
    else if (t.text == NULL) status = wf_fail(ctx, WF_ERR_INPUT, "%s: the answer is empty", url);
    curl_easy_cleanup(t.curl);
    if (status == WF_OK) *out = t.text;
    else free(t.text);
    return status;
}

/* --- files ------------------------------------------------------------------------------------ */

/* *bytes: of the file; all that are there where the mark does not say (version 0.1). */
static void read_tag(const parts *p, char out[256], uint64_t *bytes) {
    FILE *file = fopen(p->tag, "r");
    unsigned long long count;
    out[0] = 0;
    *bytes = UINT64_MAX;
    if (file == NULL) return;
    if (fgets(out, 256, file) == NULL) out[0] = 0;
    out[strcspn(out, "\r\n")] = 0;
    if (fscanf(file, "%llu", &count) == 1) *bytes = count;
    fclose(file);
}

/* One request for what is missing. */
static CURLcode attempt(transfer *t, const parts *p, wf_downloaded *out) {
    char range[64], condition[300], tag[256];
    struct curl_slist *headers = NULL;
    uint64_t noted;
    read_tag(p, tag, &noted);
    fseek(t->file, 0, SEEK_END);
    uint64_t there = (uint64_t)ftell(t->file);
    t->offset = there < noted ? there : noted;
    t->received = 0;
    t->checked = t->misfit = false;
    t->saved = wf_seconds();
    if (t->offset > t->limit || tag[0] == 0) t->offset = 0; /* it cannot be the same file */
    if (t->offset < there) {
        if (ftruncate(fileno(t->file), (off_t)t->offset) != 0) return CURLE_WRITE_ERROR;
        fseek(t->file, 0, SEEK_END);
    }
    uint64_t had = t->offset;
    if (had > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)had);
        snprintf(condition, sizeof condition, "If-Range: %s", tag);
        headers = curl_slist_append(NULL, condition);
        if (headers == NULL) return CURLE_OUT_OF_MEMORY;
    }
    curl_easy_setopt(t->curl, CURLOPT_RANGE, had > 0 ? range : NULL);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers);
    CURLcode code = curl_easy_perform(t->curl);
    curl_slist_free_all(headers);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, NULL);
    errno = 0;
    if (!reach_disk(t) && t->write_error == 0) t->write_error = errno != 0 ? errno : EIO;
    if (t->checked) write_tag(p, t->misfit ? "" : t->tag, t->offset + t->received);
    out->bytes = t->offset + t->received;
    return code;
}

static wf_status run_attempts(transfer *t, const char *url, const parts *p, wf_downloaded *out) {
    CURLcode code = CURLE_OK;
    for (int i = 0; i < attempts; i++) {
        code = attempt(t, p, out);
        if (i == 0 || t->offset == 0) out->resumed = t->offset;
        long answer = 0;
        curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &answer);
        if (t->write_error != 0) {
            errno = t->write_error;
            return wf_fail_errno(t->ctx, WF_ERR_DISK, "%s: cannot be written", p->file);
        }
        if (code == CURLE_OK && out->bytes == 0) {
            unlink(p->file);
            return wf_fail(t->ctx, WF_ERR_INPUT, "%s: the server sent an empty file", url);
        }
        if (code == CURLE_OK) return WF_OK;
        if (t->too_long || code == CURLE_FILESIZE_EXCEEDED) {
            unlink(p->file); /* no beginning of a file that is wanted */
            unlink(p->tag);
            break;
        }
        bool past_the_end = code == CURLE_HTTP_RETURNED_ERROR && answer == 416;
        if (past_the_end) unlink(p->tag); /* the next attempt begins anew */
        bool broken = code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR ||
                      code == CURLE_GOT_NOTHING || code == CURLE_WRITE_ERROR;
        if (!past_the_end && !broken) break;
    }
    return transfer_fault(t, url, code);
}

wf_status wf_download(wf_ctx *ctx, const char *url, const char *path, size_t limit,
                      wf_downloaded *out) {
    parts p;
    *out = (wf_downloaded){0};
    if (strlen(path) + 16 > longest_path)
        return wf_fail(ctx, WF_ERR_USAGE, "%.80s...: the path is too long", path);
    snprintf(p.file, sizeof p.file, "%s.part", path);
    snprintf(p.tag, sizeof p.tag, "%s.part.tag", path);
    transfer t = {.ctx = ctx, .limit = limit, .parts = &p};
    t.file = fopen(p.file, "ab+");
    if (t.file == NULL) return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", p.file);
    t.meter = wf_meter_start(ctx, "downloading", "bytes", 0);
    wf_status status = transfer_open(&t, url);
    if (status == WF_OK) status = run_attempts(&t, url, &p, out);
    if (t.curl != NULL) curl_easy_cleanup(t.curl);
    if (status == WF_OK) wf_meter_end(&t.meter, (double)out->bytes, NULL);
    if (fclose(t.file) != 0 && status == WF_OK)
        status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", p.file);
    if (status == WF_OK) unlink(p.tag);
    return status;
}
