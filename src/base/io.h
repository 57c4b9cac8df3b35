/* io: whole files in, whole files out; what the program may use of it is in weft/file.h. */
#pragma once

#include "base/status.h"
#include "weft/file.h"

#include <stdio.h>

/* A read-only mapping; an empty file maps to size 0. Sentences name the path. A file that is made
 * shorter while it is mapped ends the process with SIGBUS: see wf_mapped_file in weft/file.h. */
typedef struct wf_map {
    const uint8_t *data;
    size_t size;
    struct map_note *note; /* io's own; NULL without a mapping */
} wf_map;
wf_status wf_map_open(wf_ctx *ctx, const char *path, wf_map *out);
/* open() of a file that another host may have made a moment ago, with O_RDONLY, O_CLOEXEC and
 * `flags`. */
int wf_open_to_read(const char *path, int flags);
/* WF_ERR_INPUT with the sentence for a file that cannot be opened, from errno: where only
 * PATH.safetensors is there, it names that. */
wf_status wf_fail_to_open(wf_ctx *ctx, const char *path);
void wf_map_close(wf_map *map);
/* Whole pages of bytes from .. to-1 leave this process. The page cache keeps them, and reading them
 * brings them back. For passes over files that may be larger than memory. */
void wf_map_give_back(const wf_map *map, size_t from, size_t to);

/* In a context of several ranks (base/comm.h) opening, closing, locking, making and removing files
 * are collective: a change is made by rank 0 when all ranks have reached it, and all get its
 * status. So all ranks see the same files. */

/* Durable replacement: written to a sibling, fsync, rename, fsync of the folder. Until commit the
 * old file stands; abort (or a killed process) leaves at most a sibling named ".NAME.tmp.PID",
 * which the next writer of NAME removes. A large file goes to the disk in pieces while it is
 * written; between two of them an overdue stop ends it (WF_ERR_INTERRUPTED). */
typedef struct wf_writer {
    FILE *file;      /* NULL on ranks other than 0 */
    size_t unsynced; /* bytes of the last piece */
    char path[4096], temporary[4096];
    wf_ctx *shared; /* opened by all ranks together, and not yet closed; else NULL */
} wf_writer;
extern size_t wf_piece_bytes; /* 16 MB */
wf_status wf_writer_open(wf_ctx *ctx, const char *path, wf_writer *out);
/* The file that wf_writer_open would replace, links followed; "" for a device or pipe, which is
 * written in place. Fails where wf_writer_open would because of the path: before long work, not
 * after it. */
wf_status wf_writer_target(wf_ctx *ctx, const char *path, char out[4096]);
/* Removes the siblings of the file `path` that no living writer has; those of all files in a
 * folder. */
void wf_remove_dead_siblings_of(const char *path);
void wf_remove_dead_siblings(const char *folder);
/* Brings to the disk what happened to the names beside `path`, as well as it can. */
void wf_sync_names(const char *path);
/* The whole file `from` reaches the disk and takes the name `path` in the same folder. */
wf_status wf_rename_whole(wf_ctx *ctx, const char *from, const char *path);
/* Removes the mark that a killed holder of the file's lock has left (lock.c). */
void wf_remove_dead_lock(const char *path);
/* Is this the lock of that file, whatever the path? Of a rank that holds none: false. */
bool wf_lock_is_of(const wf_lock *lock, const char *path);
wf_status wf_writer_write(wf_ctx *ctx, wf_writer *writer, const void *bytes, size_t count);
wf_status wf_writer_commit(wf_ctx *ctx, wf_writer *writer);
void wf_writer_abort(wf_writer *writer); /* harmless after commit */

/* wf_read_file, which `enough` may end early: it is asked after each piece, with the `fresh` last
 * of all `size` bytes so far. Packed files can be far larger than they look. */
typedef bool wf_enough(const char *bytes, size_t size, size_t fresh);
wf_status wf_read_until(wf_ctx *ctx, const char *path, size_t limit, wf_enough *enough, char **out,
                        size_t *size);

/* Calls `take` for every name in a folder but "." and "..", in no order, until one fails. That the
 * system could not read the folder to its end is a failure too. */
typedef wf_status wf_take_name(void *user, const char *name);
wf_status wf_list_folder(wf_ctx *ctx, const char *folder, wf_take_name *take, void *user);

/* SHA-256 piece by piece. */
typedef struct wf_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} wf_sha256;
void wf_sha256_start(wf_sha256 *hash);
void wf_sha256_add(wf_sha256 *hash, const void *bytes, size_t count);
void wf_sha256_end(wf_sha256 *hash, char out[65]);
