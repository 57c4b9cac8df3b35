/* lock: one process at a time makes an output.
 *
 * The mark of an output is a small file beside it, locked (flock) by its holder and saying who that
 * is:
 *
 *   FOLDER/.lock, or FOLDER/.NAME.lock      "process 4711 on node3 since 2026-11-18 02:47:10 UTC"
 *
 * K1  The lock counts, not the file: a file that a killed process left is not locked, and the next
 *     holder takes it over.
 * K2  Only the holder removes the file, while it still has the lock. A process that gets a lock
 *     checks that the file still has its name. If not, an earlier holder has removed it, and the
 *     process begins again.
 * K3  A process that takes a lock removes what killed processes have left of the output (io.c, I2).
 *     If the output is complete, no later writer would do it. */
#include "base/comm.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { max_path = 4096, who_bytes = 256, poll_ms = 100 };

struct wf_lock {
    int fd;
    char path[max_path]; /* of the small file */
};

/* The file behind the links of `path`, and where its mark lies; "" when it is a device or pipe,
 * which needs none. */
static wf_status mark_of_file(wf_ctx *ctx, const char *path, char target[max_path],
                              char out[max_path]) {
    WF_TRY(wf_writer_target(ctx, path, target));
    out[0] = '\0';
    if (target[0] == '\0') return WF_OK;
    const char *slash = strrchr(target, '/'), *name = slash != NULL ? slash + 1 : target;
    if (snprintf(out, max_path, "%.*s.%s.lock", (int)(name - target), target, name) >= max_path)
        return wf_fail(ctx, WF_ERR_USAGE, "%.60s...: the path is too long", path);
    return WF_OK;
}

static wf_status mark_of_folder(wf_ctx *ctx, const char *path, char out[max_path]) {
    if (snprintf(out, max_path, "%s/.lock", path) >= max_path)
        return wf_fail(ctx, WF_ERR_USAGE, "%.60s...: the path is too long", path);
    return WF_OK;
}

static void write_who(int fd) {
    char text[who_bytes], host[64] = "?", since[32] = "?";
    time_t now = time(NULL);
    struct tm utc;
    if (gethostname(host, sizeof host) != 0) strcpy(host, "?");
    host[sizeof host - 1] = '\0';
    if (gmtime_r(&now, &utc) != NULL) strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", &utc);
    int length =
        snprintf(text, sizeof text, "process %ld on %s since %s", (long)getpid(), host, since);
    /* The text is for people only: where the disk is full, the lock is taken without it. */
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length) errno = 0;
}

static void read_who(int fd, char out[who_bytes]) {
    ssize_t length = pread(fd, out, who_bytes - 1, 0);
    if (length <= 0) length = snprintf(out, who_bytes, "another process");
    out[length] = '\0';
}

typedef enum attempt { TAKEN, HELD, AGAIN, CANNOT } attempt;

static attempt try_once(const char *path, int *fd, char who[who_bytes]) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0) return CANNOT;
    struct stat info;
    attempt result = TAKEN;
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        result = errno == EWOULDBLOCK ? HELD : errno == EINTR ? AGAIN : CANNOT;
        if (result == HELD) read_who(*fd, who);
    } else if (fstat(*fd, &info) != 0) result = CANNOT;
    else if (info.st_nlink == 0) result = AGAIN; /* K2 */
    if (result == TAKEN) return result;
    int code = errno;
    close(*fd);
    *fd = -1;
    errno = code;
    return result;
}

static wf_status take(wf_ctx *ctx, const char *path, wf_lock *lock) {
    char who[who_bytes];
    for (bool told = false;;) {
        attempt result = try_once(lock->path, &lock->fd, who);
        if (result == TAKEN) {
            write_who(lock->fd);
            return WF_OK;
        }
        if (result == AGAIN) continue;
        if (result == CANNOT && (errno == ENOLCK || errno == ENOTSUP || errno == ENOSYS)) {
            wf_warn(ctx,
                    "%s: this file system has no locks; take care that no other process writes it",
                    path);
            return WF_OK;
        }
        const char *slash = strrchr(lock->path, '/');
        if (result == CANNOT && errno == ENOENT && slash != NULL)
            return wf_fail(ctx, WF_ERR_DISK, "%s: there is no folder %.*s; make it first", path,
                           (int)(slash - lock->path), lock->path);
        if (result == CANNOT) return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be locked", path);
        if (!wf_ctx_waits(ctx))
            return wf_fail(
                ctx, WF_ERR_LOCKED,
                "%s is being made by %s; wait for it with --wait, or give another output", path,
                who);
        if (!told) wf_warn(ctx, "%s is being made by %s; waiting", path, who);
        told = true;
        if (wf_interrupted(ctx))
            return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while waiting for %s", path);
        nanosleep(&(struct timespec){0, poll_ms * 1000000L}, NULL);
    }
}

/* --- what killed processes have left ---------------------------------------------------------- */

static const char mark_ending[] = ".lock";

/* Removes a mark that no process holds: takes the lock first (K2). */
static void remove_dead_mark(const char *path) {
    int fd;
    char who[who_bytes];
    if (access(path, F_OK) != 0 || try_once(path, &fd, who) != TAKEN) return;
    unlink(path);
    close(fd);
}

void wf_remove_dead_lock(const char *path) {
    char target[max_path], mark[max_path];
    if (mark_of_file(NULL, path, target, mark) == WF_OK && mark[0] != '\0') remove_dead_mark(mark);
}

/* Siblings and marks in a folder and those below it: all of it is the holder's. */
typedef struct sweep {
    const char *folder;
    int depth;
} sweep;

static void sweep_folder(sweep at);

static wf_status sweep_entry(void *sweep_, const char *name) {
    const sweep *at = sweep_;
    enum { deepest = 4 };
    char path[max_path];
    size_t length = strlen(name), end = sizeof mark_ending - 1;
    struct stat info;
    if (snprintf(path, sizeof path, "%s/%s", at->folder, name) >= max_path) return WF_OK;
    if (name[0] != '.') {
        if (at->depth < deepest && lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
            sweep_folder((sweep){path, at->depth + 1});
    } else if (length > end + 1 && strcmp(name + length - end, mark_ending) == 0)
        remove_dead_mark(path);
    return WF_OK;
}

static void sweep_folder(sweep at) {
    wf_remove_dead_siblings(at.folder);
    /* Errors are ignored: what cannot be read now is removed next time. */
    if (wf_list_folder(NULL, at.folder, sweep_entry, &at) != WF_OK) return;
}

/* --- taking and giving back ------------------------------------------------------------------- */

typedef struct wanted_lock {
    const char *path;
    bool folder;
    wf_lock *lock;
} wanted_lock;

static wf_status find_mark(wf_ctx *ctx, const wanted_lock *wanted, char target[max_path]) {
    if (wanted->folder) return mark_of_folder(ctx, wanted->path, wanted->lock->path);
    return mark_of_file(ctx, wanted->path, target, wanted->lock->path);
}

static wf_status lock_take(wf_ctx *ctx, void *wanted_) {
    const wanted_lock *wanted = wanted_;
    char target[max_path];
    WF_TRY(find_mark(ctx, wanted, target));
    if (wanted->lock->path[0] == '\0') return WF_OK;
    WF_TRY(take(ctx, wanted->path, wanted->lock));
    if (wanted->folder) sweep_folder((sweep){wanted->path, 0});
    else wf_remove_dead_siblings_of(target);
    return WF_OK;
}

/* The ranks read what rank 0 writes: all must see its mark. */
static wf_status see_mark(wf_ctx *ctx, const wanted_lock *wanted) {
    if (wf_ctx_ranks(ctx) == 1) return WF_OK;
    char target[max_path];
    wf_status status = find_mark(ctx, wanted, target);
    const char *mark = wanted->lock->path;
    if (status == WF_OK && mark[0] != '\0' && !wf_file_exists(mark))
        status = wf_fail(ctx, WF_ERR_INPUT,
                         "%s is in another folder here than on rank 0 (%s); give one that all "
                         "hosts share",
                         wanted->path, wf_comm_host(wf__ctx_comm(ctx), 0));
    return wf_agree(ctx, status);
}

/* Rank 0 holds the lock for all ranks. */
static wf_status lock_create(wf_ctx *ctx, const char *path, bool folder, wf_lock **out) {
    wf_lock *lock;
    *out = NULL;
    WF_TRY(wf_alloc(ctx, 1, sizeof *lock, path, &lock));
    lock->fd = -1;
    wanted_lock wanted = {path, folder, lock};
    wf_status status = wf_rank_0_does(ctx, lock_take, &wanted);
    if (status == WF_OK) status = see_mark(ctx, &wanted);
    if (status == WF_OK) *out = lock;
    else wf_lock_free(lock);
    return status;
}

wf_status wf_lock_file(wf_ctx *ctx, const char *path, wf_lock **out) {
    return lock_create(ctx, path, false, out);
}

wf_status wf_lock_folder(wf_ctx *ctx, const char *path, wf_lock **out) {
    return lock_create(ctx, path, true, out);
}

bool wf_lock_is_of(const wf_lock *lock, const char *path) {
    char target[max_path], mark[max_path];
    struct stat held, named;
    return lock != NULL && lock->fd >= 0 && mark_of_file(NULL, path, target, mark) == WF_OK &&
           mark[0] != '\0' && fstat(lock->fd, &held) == 0 && stat(mark, &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

void wf_lock_free(wf_lock *lock) {
    if (lock == NULL) return;
    if (lock->fd >= 0) {
        unlink(lock->path); /* K2 */
        close(lock->fd);
    }
    free(lock);
}
