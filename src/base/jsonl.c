/* jsonl: logs of one JSON object a line.
 *
 * J1  Lines are whole: a line is one write at the end of the file, under a lock; a write that fails
 *     half-way is taken back. What a dead process left of a line is cut off before the next. */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { tail_bytes = 4096 };

/* Where the last newline of the file ends, 0 when there is none. */
static bool end_of_lines(int fd, off_t size, off_t *end) {
    char tail[tail_bytes];
    while (size > 0) {
        size_t take = size < tail_bytes ? (size_t)size : tail_bytes;
        off_t from = size - (off_t)take;
        ssize_t got = pread(fd, tail, take, from);
        if (got != (ssize_t)take) return false;
        const char *newline = memrchr(tail, '\n', take);
        if (newline != NULL) {
            *end = from + (newline - tail) + 1;
            return true;
        }
        size = from;
    }
    *end = 0;
    return true;
}

/* Invariant J1. A last line that only lacks its newline (an edited file) gets it; *lead says so. */
static bool mend_tail(int fd, off_t *size, bool *lead) {
    off_t end;
    *lead = false;
    if (!end_of_lines(fd, *size, &end)) return false;
    if (end == *size) return true;
    FILE *file = fdopen(dup(fd), "r");
    if (file == NULL) return false;
    json_t *line = fseeko(file, end, SEEK_SET) == 0 ? json_loadf(file, 0, NULL) : NULL;
    fclose(file);
    *lead = line != NULL;
    json_decref(line);
    if (*lead) return true;
    *size = end;
    return ftruncate(fd, end) == 0;
}

static bool append(int fd, const char *text, size_t length) {
    struct stat info;
    if (fstat(fd, &info) != 0) return false;
    if (!S_ISREG(info.st_mode)) return write(fd, text + 1, length - 1) == (ssize_t)length - 1;
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR) continue;
    if (fstat(fd, &info) != 0) return false;
    off_t size = info.st_size;
    bool lead;
    if (!mend_tail(fd, &size, &lead)) return false;
    if (!lead) text++, length--;
    errno = 0;
    ssize_t written = write(fd, text, length);
    if (written == (ssize_t)length) return true;
    int code = written < 0 ? errno : ENOSPC;
    if (ftruncate(fd, size) != 0) code = errno;
    errno = code;
    return false;
}

/* json_dumps would do, but writes on where a request for memory failed and drops what did not fit;
 * with a buffer of ours there is no such request. */
wf_status wf_jsonl_append(wf_ctx *ctx, const char *path, const struct json_t *object) {
    size_t length = json_dumpb(object, NULL, 0, JSON_COMPACT);
    if (length == 0) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for a line", path);
    char *text; /* newline, line, newline: the first is for a file that lacks its last one */
    WF_TRY(wf_alloc(ctx, length + 3, 1, path, &text));
    text[0] = text[length + 1] = '\n';
    wf_status status = WF_OK;
    if (json_dumpb(object, text + 1, length, JSON_COMPACT) != length) {
        status = wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for a line", path);
    } else {
        int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || !append(fd, text, length + 2))
            status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
        if (fd >= 0) close(fd);
        if (status == WF_OK) wf_log(ctx, path, "", text + 1);
    }
    free(text);
    return status;
}
