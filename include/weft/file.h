/* weft/file.h: whole files in, whole files out, durably.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_FILE_H
#define WEFT_FILE_H

#include "weft/base.h"

WF_BEGIN_C

/* Written to a sibling, fsync, rename, fsync of the folder: the file appears whole or not at all.
 * Returns WF_OK, WF_ERR_DISK or WF_ERR_MEMORY; what stood there before stays on failure. */
WF_API wf_status wf_write_file(wf_ctx *ctx, const char *path, const void *bytes, size_t count);
/* The whole of a file, NUL-terminated after its end, gunzipped when it is gzip; at most `limit`
 * bytes. free(*out).
 * Returns WF_OK, WF_ERR_INPUT (missing, too long, damaged gzip) or WF_ERR_MEMORY; *out is then
 * NULL. */
WF_API wf_status wf_read_file(wf_ctx *ctx, const char *path, size_t limit, char **out,
                              size_t *size);
/* Fails for JSON which, once read, would take far more memory than text of its size should: an
 * empty object is two bytes of text and 250 bytes of memory. Call it before jansson reads the text.
 * Returns WF_OK or WF_ERR_INPUT. */
WF_API wf_status wf_json_check(wf_ctx *ctx, const char *label, const char *text, size_t size);
/* Returns WF_OK or WF_ERR_DISK. */
WF_API wf_status wf_make_folder(wf_ctx *ctx, const char *path); /* with its parents */
/* A file, or a folder with all that is in it; one that is not there is fine.
 * Returns WF_OK or WF_ERR_DISK. */
WF_API wf_status wf_remove(wf_ctx *ctx, const char *path);
/* False only when the system says that there is no such file. When it cannot tell (an I/O error, a
 * closed folder) the answer is true: opening the file then reports the error, and nothing that may
 * be there is replaced. */
WF_API bool wf_file_exists(const char *path);

/* Which file weft has mapped at an address; false: none. For a handler of SIGBUS, which the system
 * sends when a mapped file becomes shorter or its disk fails. weft's program prints a sentence and
 * ends; another program may decide otherwise. May be called from a handler. */
WF_API bool wf_mapped_file(const void *address, char *out, size_t size);

/* Only one process at a time makes an output: a file, or everything in a folder. A lock on a path
 * where wf_write_file could not write is refused. The lock is held until wf_lock_free, or until the
 * process ends, however it ends. While another process holds it, the call returns WF_ERR_LOCKED
 * with a sentence that says which process, on which machine and since when; where the context waits
 * for locks, the call warns and waits. */
typedef struct wf_lock wf_lock;
/* *out is the caller's: wf_lock_free(). Returns WF_OK, WF_ERR_LOCKED, WF_ERR_INTERRUPTED (while
 * waiting), WF_ERR_DISK or WF_ERR_MEMORY; *out is then NULL. */
WF_API wf_status wf_lock_file(wf_ctx *ctx, const char *path, wf_lock **out);
/* *out is the caller's: wf_lock_free(). Returns as wf_lock_file. */
WF_API wf_status wf_lock_folder(wf_ctx *ctx, const char *path, wf_lock **out);
/* Accepts NULL. */
WF_API void wf_lock_free(wf_lock *lock);

/* A folder below $TMPDIR or /tmp for files that nobody keeps. Those of one name that killed
 * processes of this user have left are removed by wf_scratch_make and wf_scratch_sweep. */
typedef struct wf_scratch wf_scratch;
/* name: how the folder's begins, ".weft_plan": with a dot, so that no folder that people make is
 * taken for one of these. *out is the caller's: wf_scratch_free().
 * Returns WF_OK, WF_ERR_DISK or WF_ERR_MEMORY; *out is then NULL. */
WF_API wf_status wf_scratch_make(wf_ctx *ctx, const char *name, wf_scratch **out);
WF_API const char *wf_scratch_path(const wf_scratch *scratch); /* as long as it lives */
/* Removes the folder with all that is in it; accepts NULL. */
WF_API void wf_scratch_free(wf_scratch *scratch);
WF_API void wf_scratch_sweep(const char *name);

/* A file's digest, 32 hexadecimal digits and a NUL: XXH3 of 128 bits over its bytes. It detects
 * damaged and swapped files, not forged ones. Returns WF_OK, WF_ERR_INPUT, WF_ERR_INTERRUPTED or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_file_digest(wf_ctx *ctx, const char *path, char out[33]);
/* safetensors files of weft hold a digest of themselves. *known false: there is none, because
 * another program or version 0.1 wrote the file. Returns WF_OK, WF_ERR_INPUT (no such file, or its
 * content is not what was written), WF_ERR_INTERRUPTED or WF_ERR_MEMORY. */
WF_API wf_status wf_file_verify(wf_ctx *ctx, const char *path, bool *known);

/* SHA-256 as 64 hex digits. */
WF_API void wf_sha256_hex(const void *bytes, size_t count, char out[65]);

WF_END_C

#endif
