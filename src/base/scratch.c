/* scratch: folders for files that nobody keeps, below $TMPDIR or /tmp.
 *
 * S1  Who works in a folder holds a lock (flock) on FOLDER/.lock. A folder that nobody has locked
 *     belongs to a killed process, and is removed by wf_scratch_sweep.
 * S2  Another process may sweep a folder before its maker has locked it. A maker that cannot lock
 *     its folder makes another. */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { longest_path = 4096, attempts = 100 };

struct wf_scratch {
    int fd;
    char path[longest_path];
};

static const char *root_folder(void) {
    const char *root = getenv("TMPDIR");
    return root != NULL && root[0] != '\0' && strlen(root) < longest_path / 2 ? root : "/tmp";
}

/* -1: another process has the lock, or the folder is gone. Where the file system knows no locks
 * (*known false) nobody has it. */
static int lock_folder(const char *folder, bool *known) {
    char path[longest_path + 8];
    struct stat info;
    snprintf(path, sizeof path, "%s/.lock", folder);
    *known = true;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!locked) *known = errno != ENOLCK && errno != ENOTSUP && errno != ENOSYS;
    if ((locked || !*known) && fstat(fd, &info) == 0 && info.st_nlink > 0) return fd;
    close(fd);
    return -1;
}

typedef struct sweep {
    const char *root, *name;
} sweep;

static wf_status sweep_folder(void *sweep_, const char *entry) {
    const sweep *at = sweep_;
    size_t length = strlen(at->name);
    char path[longest_path];
    struct stat info;
    bool known;
    if (strncmp(entry, at->name, length) != 0 || entry[length] != '_') return WF_OK;
    if (snprintf(path, sizeof path, "%s/%s", at->root, entry) >= longest_path) return WF_OK;
    if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return WF_OK;
    int fd = lock_folder(path, &known);
    if (fd < 0) return WF_OK;
    if (known) wf_remove(NULL, path);
    close(fd);
    return WF_OK;
}

void wf_scratch_sweep(const char *name) {
    sweep at = {root_folder(), name};
    if (wf_list_folder(NULL, at.root, sweep_folder, &at) != WF_OK) return; /* next time */
}

wf_status wf_scratch_make(wf_ctx *ctx, const char *name, wf_scratch **out) {
    wf_scratch *scratch;
    bool known;
    *out = NULL;
    wf_scratch_sweep(name);
    WF_TRY(wf_alloc(ctx, 1, sizeof *scratch, "temporary folder", &scratch));
    scratch->fd = -1;
    for (int i = 0; i < attempts && scratch->fd < 0; i++) {
        snprintf(scratch->path, sizeof scratch->path, "%s/%.64s_XXXXXX", root_folder(), name);
        if (mkdtemp(scratch->path) == NULL) break;
        scratch->fd = lock_folder(scratch->path, &known);
        if (scratch->fd < 0) {
            int code = errno;
            wf_remove(NULL, scratch->path);
            errno = code;
        }
    }
    if (scratch->fd >= 0) {
        *out = scratch;
        return WF_OK;
    }
    wf_status status =
        wf_fail_errno(ctx, WF_ERR_DISK, "no temporary folder can be made in %s", root_folder());
    free(scratch);
    return status;
}

const char *wf_scratch_path(const wf_scratch *scratch) { return scratch->path; }

void wf_scratch_free(wf_scratch *scratch) {
    if (scratch == NULL) return;
    wf_remove(NULL, scratch->path);
    close(scratch->fd);
    free(scratch);
}
