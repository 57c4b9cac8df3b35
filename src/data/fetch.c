/* fetch: data sets from OpenML and the American Community Survey.
 *
 *   23, openml:23        OpenML data set by number; SERVER/api/v1/json/data/23 names the file and
 *                        its MD5
 *   cmc, openml:cmc      the first active version of
 *                        SERVER/api/v1/json/data/list/data_name/cmc/limit/100
 *   acs:2018:CA          ACSIncome of a state:
 *                        SERVER/programs-surveys/acs/data/pums/2018/1-Year/csv_pca.zip
 *   http://..., https:// a file as it is
 * A finished file has FILE.fetch.json beside it: where it came from, its size, its SHA-256. While
 * both agree nothing is asked of the network. Unfinished files are FILE.part
 * (base/curl/download.h).
 * I1  One process at a time fetches a file: it holds the lock of FILE.
 * I2  The record is written before the file takes its name: a file without a record is somebody
 *     else's. Killed between the two, the next call fetches the file again. */
#include "data/fetch.h"

#include "base/curl/download.h"
#include "base/digest.h"
#include "base/io.h"
#include "base/json_text.h"
#include "base/md5.h"
#include "weft/text.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { longest_path = 4096, longest_answer = 16 << 20 };

static const size_t largest_download = (size_t)4 << 30; /* as large as a table may be */
static const char record_ending[] = ".fetch.json";
static const char openml[] = "https://www.openml.org", census[] = "https://www2.census.gov";

wf_fetch_desc wf_fetch_desc_default(void) { return (wf_fetch_desc){0}; }

void wf_fetched_free(wf_fetched *fetched) {
    if (fetched == NULL) return;
    free(fetched->path);
    *fetched = (wf_fetched){0};
}

/* --- what to fetch ---------------------------------------------------------------------------- */

static bool all_digits(const char *text) {
    return text[0] != 0 && text[strspn(text, "0123456789")] == 0;
}

/* A name as one part of a path: what is no letter, digit, '-', '_', bracket or inner '.' becomes
 * '_'. */
static void file_part(const char *name, char *out, size_t size) {
    size_t n = 0;
    for (; name[n] != 0 && n + 1 < size; n++) {
        bool plain = isalnum((unsigned char)name[n]) || strchr("-_()", name[n]) != NULL;
        out[n] = plain || (name[n] == '.' && n > 0) ? name[n] : '_';
    }
    out[n] = 0;
}

static void escape_url(const char *text, char *out, size_t size) {
    wf_text url = wf_text_start(out, size);
    for (; *text != 0; text++) {
        bool plain = isalnum((unsigned char)*text) || strchr("-_.~()", *text) != NULL;
        wf_text_add(&url, plain ? "%c" : "%%%02X", (unsigned char)*text);
    }
}

static wf_status ask_json(wf_ctx *ctx, const char *url, json_t **out) {
    char *text;
    *out = NULL;
    WF_TRY(wf_download_text(ctx, url, longest_answer, &text));
    wf_status status = wf_json_read(ctx, url, text, WF_ERR_INPUT, out);
    free(text);
    if (status != WF_ERR_INPUT) return status;
    return wf_fail(ctx, WF_ERR_INPUT, "%s: the answer is not JSON", url);
}

/* OpenML writes numbers as numbers or as strings. */
static long number_of(const json_t *value) {
    if (json_is_integer(value)) return (long)json_integer_value(value);
    const char *text = json_string_value(value);
    return text != NULL && all_digits(text) ? atol(text) : -1;
}

/* The lowest version of `name` that is active. */
static wf_status find_number(wf_ctx *ctx, const char *server, const char *name, long *number) {
    char escaped[512], url[1024];
    json_t *answer, *entry;
    size_t i;
    long best = -1;
    escape_url(name, escaped, sizeof escaped);
    snprintf(url, sizeof url, "%s/api/v1/json/data/list/data_name/%s/limit/100", server, escaped);
    *number = -1;
    WF_TRY(ask_json(ctx, url, &answer));
    json_array_foreach(json_object_get(json_object_get(answer, "data"), "dataset"), i, entry) {
        const char *found = json_string_value(json_object_get(entry, "name"));
        const char *status = json_string_value(json_object_get(entry, "status"));
        long version = number_of(json_object_get(entry, "version"));
        if (found == NULL || strcmp(found, name) != 0) continue;
        if (status != NULL && strcmp(status, "active") != 0) continue;
        if (best >= 0 && version >= best) continue;
        best = version;
        *number = number_of(json_object_get(entry, "did"));
    }
    json_decref(answer);
    if (*number >= 0) return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT, "OpenML has no active data set named '%s'; give its number",
                   name);
}

static void copy_text(const json_t *object, const char *key, char *out, size_t size) {
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(out, size, "%s", text != NULL ? text : "");
}

static wf_status describe_openml(wf_ctx *ctx, const char *server, long number, wf_fetch_plan *out) {
    char url[1024], name[128];
    json_t *answer;
    snprintf(url, sizeof url, "%s/api/v1/json/data/%ld", server, number);
    WF_TRY(ask_json(ctx, url, &answer));
    const json_t *about = json_object_get(answer, "data_set_description");
    char format[32];
    copy_text(about, "url", out->url, sizeof out->url);
    copy_text(about, "name", out->name, sizeof out->name);
    copy_text(about, "version", out->version, sizeof out->version);
    copy_text(about, "md5_checksum", out->md5, sizeof out->md5);
    copy_text(about, "default_target_attribute", out->target, sizeof out->target);
    copy_text(about, "format", format, sizeof format);
    json_decref(answer);
    /* An https address is never fetched over http. */
    if (strncasecmp(server, "https:", 6) == 0 && strncasecmp(out->url, "http:", 5) == 0) {
        char secure[sizeof out->url];
        snprintf(secure, sizeof secure, "https%.2040s", out->url + 4);
        memcpy(out->url, secure, sizeof secure);
    }
    if (out->url[0] == 0 || out->name[0] == 0)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: the answer describes no data set", url);
    if (format[0] != 0 && strcasecmp(format, "arff") != 0 && strcasecmp(format, "sparse_arff") != 0)
        return wf_fail(ctx, WF_ERR_UNSUPPORTED,
                       "OpenML %ld (%s) is stored as %s; weft reads ARFF only", number, out->name,
                       format);
    file_part(out->name, name, sizeof name);
    snprintf(out->file, sizeof out->file, "openml/%ld-%s.arff", number, name);
    return WF_OK;
}

static wf_status plan_openml(wf_ctx *ctx, const char *server, const char *what,
                             wf_fetch_plan *out) {
    long number;
    if (server == NULL) server = openml;
    if (all_digits(what)) number = atol(what);
    else WF_TRY(find_number(ctx, server, what, &number));
    return describe_openml(ctx, server, number, out);
}

/* "2018:CA" */
static wf_status plan_acs(wf_ctx *ctx, const char *server, const char *what, wf_fetch_plan *out) {
    char *end;
    long year = strtol(what, &end, 10);
    if (year < 2014 || year > 2100 || end[0] != ':' || !isalpha((unsigned char)end[1]) ||
        !isalpha((unsigned char)end[2]) || end[3] != 0)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "acs:%.40s: write acs:YEAR:STATE with a year from 2014 and two letters, as "
                       "acs:2018:CA",
                       what);
    out->year = (int)year;
    snprintf(out->state, sizeof out->state, "%c%c", toupper((unsigned char)end[1]),
             toupper((unsigned char)end[2]));
    snprintf(out->url, sizeof out->url,
             "%.1000s/programs-surveys/acs/data/pums/%ld/1-Year/csv_p%c%c.zip",
             server != NULL ? server : census, year, tolower((unsigned char)end[1]),
             tolower((unsigned char)end[2]));
    snprintf(out->name, sizeof out->name, "ACSIncome %ld %s", year, out->state);
    snprintf(out->target, sizeof out->target, "PINCP");
    snprintf(out->file, sizeof out->file, "acs-income/acsincome-%ld-%s.csv", year, out->state);
    return WF_OK;
}

static wf_status plan_url(wf_ctx *ctx, const char *url, wf_fetch_plan *out) {
    const char *slash = strrchr(url, '/');
    char name[128], bare[256];
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(slash + 1, "?#"), slash + 1);
    file_part(bare, name, sizeof name);
    if (strlen(url) >= sizeof out->url || name[0] == 0)
        return wf_fail(ctx, WF_ERR_USAGE, "%.200s: no file name at its end, or too long", url);
    out->address = true;
    snprintf(out->url, sizeof out->url, "%s", url);
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->file, sizeof out->file, "%s", name);
    return WF_OK;
}

static wf_status make_plan(wf_ctx *ctx, const char *what, const char *server, wf_fetch_plan *out) {
    *out = (wf_fetch_plan){0};
    if (strncmp(what, "http://", 7) == 0 || strncmp(what, "https://", 8) == 0)
        return plan_url(ctx, what, out);
    if (strncmp(what, "acs:", 4) == 0) return plan_acs(ctx, server, what + 4, out);
    if (strncmp(what, "openml:", 7) == 0) what += 7;
    if (what[0] == 0)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "which data set? An OpenML number or name, acs:YEAR:STATE, or an address");
    return plan_openml(ctx, server, what, out);
}

/* --- what is there already -------------------------------------------------------------------- */

static const char *folder_of(const wf_fetch_desc *desc) {
    const char *folder = desc->folder != NULL ? desc->folder : getenv("WEFT_DATA");
    return folder == NULL || folder[0] == 0 ? "." : folder;
}

/* Of what a record says, the digest itself left out. */
static wf_status record_digest(wf_ctx *ctx, const json_t *record, char out[33]) {
    static const char *const keys[] = {"url", "name",   "version",        "target",
                                       "md5", "sha256", "download_sha256"};
    wf_digest digest;
    WF_TRY(wf_digest_start(ctx, &digest));
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const char *value = json_string_value(json_object_get(record, keys[k]));
        if (value != NULL) wf_digest_add(&digest, value, strlen(value));
        wf_digest_add(&digest, "", 1);
    }
    wf_digest_end(&digest, out);
    out[WF_DIGEST_DIGITS] = '\0';
    return WF_OK;
}

/* The record beside a file; *out is NULL where there is none. Those of version 0.1 have no
 * digest. */
static wf_status read_record(wf_ctx *ctx, const char *path, json_t **out) {
    char *text, digest[33];
    size_t size;
    *out = NULL;
    if (!wf_file_exists(path)) return WF_OK;
    WF_TRY(wf_read_file(ctx, path, 1 << 20, &text, &size));
    wf_status status = wf_json_read(ctx, path, text, WF_ERR_INPUT, out);
    free(text);
    if (status == WF_OK) status = record_digest(ctx, *out, digest);
    if (status == WF_OK) {
        const char *recorded = json_string_value(json_object_get(*out, "digest"));
        bool whole = json_string_value(json_object_get(*out, "sha256")) != NULL;
        if (!whole || (recorded != NULL && strcmp(recorded, digest) != 0)) status = WF_ERR_INPUT;
    }
    if (status == WF_OK) return WF_OK;
    json_decref(*out);
    *out = NULL;
    if (status != WF_ERR_INPUT) return status;
    return wf_fail(ctx, status,
                   "%s is damaged; remove it and the file beside it, and they are fetched again",
                   path);
}

static void plan_from_record(const json_t *record, const char *file, wf_fetch_plan *out) {
    size_t length = strlen(file) - strlen(record_ending);
    copy_text(record, "url", out->url, sizeof out->url);
    copy_text(record, "name", out->name, sizeof out->name);
    copy_text(record, "version", out->version, sizeof out->version);
    copy_text(record, "target", out->target, sizeof out->target);
    copy_text(record, "md5", out->md5, sizeof out->md5);
    snprintf(out->file, sizeof out->file, "openml/%.*s", (int)length, file);
}

/* An OpenML set that was fetched before, by number ("23-...") or by the name in its record. */
static bool plan_from_cache(wf_ctx *ctx, const char *what, const wf_fetch_desc *desc,
                            wf_fetch_plan *out) {
    char folder[longest_path], path[longest_path + 300];
    if (strncmp(what, "openml:", 7) == 0) what += 7;
    *out = (wf_fetch_plan){0};
    snprintf(folder, sizeof folder, "%s/openml", folder_of(desc));
    DIR *list = opendir(folder);
    bool found = false;
    for (struct dirent *entry; list != NULL && !found && (entry = readdir(list)) != NULL;) {
        size_t length = strlen(entry->d_name), ending = strlen(record_ending), n = strlen(what);
        if (length <= ending || length > 200 ||
            strcmp(entry->d_name + length - ending, record_ending) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        json_t *record;
        if (read_record(ctx, path, &record) != WF_OK) continue;
        const char *name = json_string_value(json_object_get(record, "name"));
        found = all_digits(what) ? strncmp(entry->d_name, what, n) == 0 && entry->d_name[n] == '-'
                                 : name != NULL && strcmp(name, what) == 0;
        if (found) plan_from_record(record, entry->d_name, out);
        json_decref(record);
    }
    if (list != NULL) closedir(list);
    return found && out->url[0] != 0;
}

/* --- digests ---------------------------------------------------------------------------------- */

static wf_status take_digests(wf_ctx *ctx, const char *path, char sha[65], char md5[33],
                              uint64_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be read", path);
    static const size_t piece = 1 << 16;
    uint8_t *buffer = NULL;
    wf_status status = wf_alloc(ctx, piece, 1, "digest", &buffer);
    wf_sha256 sha_state;
    wf_md5 md5_state;
    wf_sha256_start(&sha_state);
    wf_md5_start(&md5_state);
    *bytes = 0;
    for (size_t got = 1; status == WF_OK && got > 0; *bytes += got) {
        got = fread(buffer, 1, piece, file);
        wf_sha256_add(&sha_state, buffer, got);
        wf_md5_add(&md5_state, buffer, got);
        if (wf_interrupted(ctx))
            status = wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while reading %s", path);
    }
    if (status == WF_OK && ferror(file))
        status = wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be read", path);
    wf_sha256_end(&sha_state, sha);
    wf_md5_end(&md5_state, md5);
    free(buffer);
    fclose(file);
    return status;
}

/* The part of a download against what its publisher, or the user, says. */
static wf_status check_download(wf_ctx *ctx, const wf_fetch_plan *plan, const wf_fetch_desc *desc,
                                const char *part, char sha[65], uint64_t *bytes) {
    char md5[33];
    WF_TRY(take_digests(ctx, part, sha, md5, bytes));
    bool published = plan->md5[0] != 0;
    if (published && strcasecmp(md5, plan->md5) != 0) {
        unlink(part);
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: the file has MD5 %s, but %s is published; it was damaged on the way or "
                       "replaced, and is thrown away",
                       plan->url, md5, plan->md5);
    }
    if (desc->sha256 == NULL || strcasecmp(desc->sha256, sha) == 0) return WF_OK;
    unlink(part);
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: the file has SHA-256 %s, but %s was asked for; it is thrown away",
                   plan->url, sha, desc->sha256);
}

/* --- the cache -------------------------------------------------------------------------------- */

typedef struct places {
    char folder[longest_path], path[longest_path], record[longest_path + 16],
        download[longest_path + 16], part[longest_path + 32];
    char made[longest_path + 16]; /* what becomes the file: the part, or what was made of it */
} places;

static wf_status set_places(wf_ctx *ctx, const wf_fetch_plan *plan, const wf_fetch_desc *desc,
                            places *out) {
    const char *folder = folder_of(desc);
    if (strlen(folder) + sizeof plan->file + 32 > longest_path)
        return wf_fail(ctx, WF_ERR_USAGE, "%.80s...: the path is too long", folder);
    const char *slash = strrchr(plan->file, '/');
    int inner = slash != NULL ? (int)(slash - plan->file) : 0;
    snprintf(out->folder, sizeof out->folder, "%s%s%.*s", folder, inner > 0 ? "/" : "", inner,
             plan->file);
    snprintf(out->path, sizeof out->path, "%s/%s", folder, plan->file);
    snprintf(out->record, sizeof out->record, "%s%s", out->path, record_ending);
    snprintf(out->download, sizeof out->download, "%s%s", out->path, plan->year != 0 ? ".zip" : "");
    snprintf(out->part, sizeof out->part, "%s.part", out->download);
    snprintf(out->made, sizeof out->made, "%s.part", out->path);
    return wf_make_folder(ctx, out->folder);
}

/* Is the file there as its record says? A damaged one is fetched again; `told`: with a warning. */
static wf_status look_in_cache(wf_ctx *ctx, const wf_fetch_plan *plan, const places *at,
                               const wf_fetch_desc *desc, bool told, wf_fetched *out) {
    char md5[33];
    bool *hit = &out->cached;
    *hit = false;
    if (!wf_file_exists(at->path)) return WF_OK;
    json_t *record;
    WF_TRY(read_record(ctx, at->record, &record));
    const char *expected = json_string_value(json_object_get(record, "sha256"));
    wf_status status = take_digests(ctx, at->path, out->sha256, md5, &out->bytes);
    if (status == WF_OK && expected == NULL)
        status = wf_fail(ctx, WF_ERR_USAGE,
                         "%s is there already, and not from weft data fetch; move it away, or give "
                         "another --out folder",
                         at->path);
    const char *url = json_string_value(json_object_get(record, "url"));
    if (status == WF_OK && plan->address && (url == NULL || strcmp(url, plan->url) != 0))
        status = wf_fail(ctx, WF_ERR_USAGE,
                         "%s is there already, from another address (%s); move it away, or give "
                         "another --out folder",
                         at->path, url != NULL ? url : "unknown");
    if (status == WF_OK) *hit = strcmp(expected, out->sha256) == 0;
    if (status == WF_OK && !*hit && told)
        wf_warn(ctx,
                "%s is not what was downloaded (SHA-256 %.12s..., expected %.12s...); it is "
                "fetched again",
                at->path, out->sha256, expected);
    const char *came = json_string_value(json_object_get(record, "download_sha256"));
    if (came == NULL) came = out->sha256;
    if (*hit && desc->sha256 != NULL && strcasecmp(desc->sha256, came) != 0)
        status = wf_fail(ctx, WF_ERR_INPUT, "%s has SHA-256 %s, but %s was asked for", at->path,
                         came, desc->sha256);
    json_decref(record);
    return status;
}

static bool put_text(json_t *json, const char *key, const char *text) {
    return json_object_set_new(json, key, json_string(text)) == 0;
}

/* download: SHA-256 of what was downloaded, where the file was made of it; else NULL. */
static wf_status write_record(wf_ctx *ctx, const wf_fetch_plan *plan, const places *at,
                              const wf_fetched *fetched, const char *download) {
    char digest[33], *text = NULL;
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I}", "url", plan->url, "name", plan->name,
                  "version", plan->version, "target", plan->target, "md5", plan->md5, "sha256",
                  fetched->sha256, "bytes", (json_int_t)fetched->bytes);
    bool whole = json != NULL &&
                 (download == NULL || put_text(json, "download_sha256", download)) &&
                 record_digest(ctx, json, digest) == WF_OK && put_text(json, "digest", digest);
    if (whole) text = wf_json_text(json, JSON_INDENT(1));
    json_decref(json);
    if (text == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", at->record);
    wf_status status = wf_write_file(ctx, at->record, text, strlen(text));
    free(text);
    return status;
}

/* --- all of it -------------------------------------------------------------------------------- */

static wf_status bring(wf_ctx *ctx, const wf_fetch_plan *plan, const wf_fetch_desc *desc,
                       const places *at, wf_fetched *out) {
    wf_downloaded download;
    char md5[33], sha[65];
    bool unpacks = plan->year != 0;
    WF_TRY(wf_download(ctx, plan->url, at->download, largest_download, &download));
    out->resumed = download.resumed;
    WF_TRY(check_download(ctx, plan, desc, at->part, sha, &out->bytes));
    memcpy(out->sha256, sha, sizeof sha);
    if (unpacks) {
        size_t rows;
        wf_status status = wf__acs_income(ctx, at->part, at->made, &rows);
        /* A file that is not a table of the survey is not resumed. */
        if (status == WF_ERR_INPUT) unlink(at->part);
        WF_TRY(status);
        WF_TRY(take_digests(ctx, at->made, out->sha256, md5, &out->bytes));
    }
    WF_TRY(write_record(ctx, plan, at, out, unpacks ? sha : NULL)); /* I2 */
    WF_TRY(wf_rename_whole(ctx, at->made, at->path));
    if (unpacks) unlink(at->part);
    return WF_OK;
}

/* A process that was killed behind its last step has left these beside the finished file. */
static void tidy(const places *at) {
    char tag[sizeof at->part + 4];
    snprintf(tag, sizeof tag, "%s.tag", at->part);
    unlink(tag);
    unlink(at->part);
    unlink(at->made);
    wf_remove_dead_lock(at->path);
}

/* Another process may have fetched the file while this one waited for the lock. */
static wf_status look_and_bring(wf_ctx *ctx, const wf_fetch_plan *plan, const wf_fetch_desc *desc,
                                const places *at, wf_fetched *out) {
    wf_lock *lock;
    WF_TRY(wf_lock_file(ctx, at->path, &lock)); /* I1 */
    wf_status status = look_in_cache(ctx, plan, at, desc, true, out);
    if (status == WF_OK && !out->cached) status = bring(ctx, plan, desc, at, out);
    wf_lock_free(lock);
    return status;
}

static wf_status copy_path(wf_ctx *ctx, const char *path, wf_fetched *out) {
    WF_TRY(wf_alloc(ctx, strlen(path) + 1, 1, "path", &out->path));
    strcpy(out->path, path);
    return WF_OK;
}

wf_status wf_data_fetch(wf_ctx *ctx, const char *what, const wf_fetch_desc *desc, wf_fetched *out) {
    wf_fetch_desc defaults = wf_fetch_desc_default();
    if (desc == NULL) desc = &defaults;
    *out = (wf_fetched){0};
    wf_fetch_plan plan;
    places *at;
    if (desc->sha256 != NULL &&
        (strlen(desc->sha256) != 64 || strspn(desc->sha256, "0123456789abcdefABCDEF") != 64))
        return wf_fail(ctx, WF_ERR_USAGE, "\"%.80s\" is no SHA-256; it has 64 hexadecimal digits",
                       desc->sha256);
    if (!plan_from_cache(ctx, what, desc, &plan)) WF_TRY(make_plan(ctx, what, desc->server, &plan));
    WF_TRY(wf_alloc(ctx, 1, sizeof *at, "paths", &at));
    wf_status status = set_places(ctx, &plan, desc, at);
    /* What is there needs no lock, and may lie in a folder that nobody can write to. */
    if (status == WF_OK) status = look_in_cache(ctx, &plan, at, desc, false, out);
    if (status == WF_OK && out->cached) tidy(at);
    if (status == WF_OK && !out->cached) status = look_and_bring(ctx, &plan, desc, at, out);
    if (status == WF_OK) status = copy_path(ctx, at->path, out);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, plan.name);
    snprintf(out->target, sizeof out->target, "%.*s", (int)sizeof out->target - 1, plan.target);
    free(at);
    return status;
}
