/* io: whole files in (mapped, or read and gunzipped), whole files out (atomic and durable).
 *
 * I1  A file under its own name is always whole: bytes go to ".NAME.tmp.PID", reach the disk, and
 *     only then take the name.
 * I2  A living writer holds a lock (flock) on its sibling. A sibling that nobody has locked belongs
 *     to a dead process and is removed by the next writer of NAME. Process numbers alone would not
 *     do: containers start at the same ones again and again. */
#include "base/io.h"

#include "base/comm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* --- mapped files ----------------------------------------------------------------------------- */

/* All mappings, for wf_mapped_file. A thread that holds the flag touches no mapping, so a handler
 * of SIGBUS may wait for it. */
typedef struct map_note {
    struct map_note *next, **self; /* self: what points here */
    const uint8_t *data;
    size_t size;
    char path[];
} map_note;
static map_note *mapped;
static atomic_flag mapped_busy = ATOMIC_FLAG_INIT;

static void enter_mapped(void) {
    while (atomic_flag_test_and_set(&mapped_busy)) sched_yield();
}

static void leave_mapped(void) { atomic_flag_clear(&mapped_busy); }

static map_note *note_mapping(const uint8_t *data, size_t size, const char *path) {
    map_note *note = malloc(sizeof *note + strlen(path) + 1);
    if (note == NULL) return NULL;
    *note = (map_note){.self = &mapped, .data = data, .size = size};
    strcpy(note->path, path);
    enter_mapped();
    note->next = mapped;
    if (mapped != NULL) mapped->self = &note->next;
    mapped = note;
    leave_mapped();
    return note;
}

static void forget_mapping(map_note *note) {
    enter_mapped();
    *note->self = note->next;
    if (note->next != NULL) note->next->self = note->self;
    leave_mapped();
    free(note);
}

bool wf_mapped_file(const void *address, char *out, size_t size) {
    enter_mapped();
    const map_note *note = mapped;
    while (note != NULL && (uintptr_t)address - (uintptr_t)note->data >= note->size)
        note = note->next;
    if (note != NULL && size > 0) {
        size_t length = strnlen(note->path, size - 1);
        memcpy(out, note->path, length);
        out[length] = '\0';
    }
    leave_mapped();
    return note != NULL;
}

/* --- names ------------------------------------------------------------------------------------ */

static void open_and_close(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) close(fd);
}

/* A host of a network file system remembers that a name was absent, for up to a minute. Who opens
 * the folders above it makes the host ask the server. */
static void look_again(const char *path) {
    char folder[4096];
    size_t length = strlen(path);
    if (length >= sizeof folder) return;
    if (path[0] != '/') open_and_close(".");
    for (size_t i = 1; i < length; i++) {
        if (path[i] != '/') continue;
        memcpy(folder, path, i);
        folder[i] = '\0';
        open_and_close(folder);
    }
}

bool wf_file_exists(const char *path) {
    if (access(path, F_OK) == 0) return true;
    if (errno == ENOENT) {
        look_again(path);
        if (access(path, F_OK) == 0) return true;
    }
    return errno != ENOENT && errno != ENOTDIR;
}

int wf_open_to_read(const char *path, int flags) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0 && errno == ENOENT && wf_file_exists(path))
        fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    return fd;
}

/* Commands add the ending where an output's name has none, so people leave it out later. */
wf_status wf_fail_to_open(wf_ctx *ctx, const char *path) {
    int error = errno;
    char whole[4096];
    int length = snprintf(whole, sizeof whole, "%s.safetensors", path);
    if (error == ENOENT && length < (int)sizeof whole && wf_file_exists(whole))
        return wf_fail(ctx, WF_ERR_INPUT, "there is no file %s; did you mean %s?", path, whole);
    errno = error;
    return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be opened", path);
}

wf_status wf_map_open(wf_ctx *ctx, const char *path, wf_map *out) {
    static const uint8_t nothing[1];
    *out = (wf_map){nothing, 0, NULL};
    /* O_NONBLOCK: a pipe without a writer must be refused below, not waited for. */
    int fd = wf_open_to_read(path, O_NONBLOCK);
    if (fd < 0) return wf_fail_to_open(ctx, path);
    struct stat info;
    wf_status status = WF_OK;
    if (fstat(fd, &info) != 0) {
        status = wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be examined", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = wf_fail(ctx, WF_ERR_INPUT, "%s: is %s; a plain file is needed", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "a pipe or device");
    } else if ((uintmax_t)info.st_size > SIZE_MAX / 2) {
        status = wf_fail(ctx, WF_ERR_INPUT, "%s: %jd bytes are too many for this machine", path,
                         (intmax_t)info.st_size);
    } else if (info.st_size > 0) {
        size_t size = (size_t)info.st_size;
        void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        map_note *note = data == MAP_FAILED ? NULL : note_mapping(data, size, path);
        if (data == MAP_FAILED)
            status = wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be mapped", path);
        else if (note == NULL) {
            munmap(data, size);
            status = wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", path);
        } else *out = (wf_map){data, size, note};
    }
    close(fd);
    return status;
}

void wf_map_close(wf_map *map) {
    if (map->note != NULL) {
        forget_mapping(map->note);
        munmap((void *)(uintptr_t)map->data, map->size);
    }
    *map = (wf_map){NULL, 0, NULL};
}

void wf_map_give_back(const wf_map *map, size_t from, size_t to) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE); /* the mapping begins at a page */
    from = (from + page - 1) / page * page;
    to = to / page * page;
    if (map->note == NULL || to > map->size || from >= to) return;
    (void)madvise((void *)(uintptr_t)(map->data + from), to - from, MADV_DONTNEED);
}

size_t wf_piece_bytes = 16 << 20;

/* --- reading ---------------------------------------------------------------------------------- */

/* A growing buffer that never holds more than limit + 1 bytes (one more shows that there is more),
 * and a NUL after them. */
typedef struct wf_buffer {
    const char *path;
    char *bytes;
    size_t size, capacity, limit;
    wf_enough *enough; /* NULL: everything is wanted */
    bool over;         /* it was enough */
    size_t packed;     /* bytes of gzip that went in */
} wf_buffer;

/* gzip shrinks tables to a fifth or a tenth. A file that grows beyond 32 times its size and 48 MB
 * was made to exhaust memory. */
enum { unpacked_factor = 32, unpacked_floor = 48 << 20 };

/* `fresh` bytes have arrived. */
static wf_status buffer_grew(wf_ctx *ctx, wf_buffer *buffer, size_t fresh) {
    buffer->size += fresh;
    /* What is small is read to its end: it may be needed to save work. */
    if (buffer->size > wf_piece_bytes && wf_interrupted(ctx))
        return wf_fail(ctx, WF_ERR_INTERRUPTED, "interrupted while reading %s", buffer->path);
    buffer->over = buffer->enough != NULL && buffer->enough(buffer->bytes, buffer->size, fresh);
    if (buffer->packed == 0 || buffer->size < unpacked_floor ||
        (buffer->size - unpacked_floor) / unpacked_factor <= buffer->packed)
        return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: unpacks to more than %d times its size; if that is right, give it unpacked",
                   buffer->path, unpacked_factor);
}

static wf_status buffer_room(wf_ctx *ctx, wf_buffer *buffer) {
    if (buffer->size > buffer->limit)
        return wf_fail(ctx, WF_ERR_INPUT, "%s: holds more than %zu bytes, the most allowed here",
                       buffer->path, buffer->limit);
    if (buffer->size < buffer->capacity) return WF_OK;
    size_t capacity = buffer->capacity == 0 ? 16384 : 2 * buffer->capacity;
    if (capacity > buffer->limit) capacity = buffer->limit + 1;
    char *bytes = realloc(buffer->bytes, capacity + 1);
    if (bytes == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory (%zu bytes)", buffer->path,
                       capacity + 1);
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return WF_OK;
}

static wf_status read_some(wf_ctx *ctx, const char *path, int fd, void *to, size_t room,
                           size_t *count) {
    *count = 0;
    if (room > 1 << 30) room = 1 << 30;
    ssize_t got;
    do got = read(fd, to, room);
    while (got < 0 && errno == EINTR);
    if (got < 0) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be read", path);
    *count = (size_t)got;
    return WF_OK;
}

static wf_status read_plain(wf_ctx *ctx, int fd, wf_buffer *buffer) {
    while (!buffer->over) {
        WF_TRY(buffer_room(ctx, buffer));
        size_t count = 0;
        WF_TRY(read_some(ctx, buffer->path, fd, buffer->bytes + buffer->size,
                         buffer->capacity - buffer->size, &count));
        if (count == 0) return WF_OK;
        WF_TRY(buffer_grew(ctx, buffer, count));
    }
    return WF_OK;
}

enum { packed_bytes = 65536 };

/* Everything zlib makes of its current input goes to the buffer. *member_over: no member is
 * open. */
static wf_status inflate_input(wf_ctx *ctx, z_stream *stream, wf_buffer *buffer,
                               bool *member_over) {
    while (!buffer->over && (stream->avail_in > 0 || (!*member_over && stream->avail_out == 0))) {
        if (*member_over) {
            if (inflateReset(stream) != Z_OK)
                return wf_fail(ctx, WF_ERR_INPUT, "%s: zlib refused to go on", buffer->path);
            *member_over = false;
        }
        WF_TRY(buffer_room(ctx, buffer));
        size_t room = buffer->capacity - buffer->size;
        if (room > packed_bytes) room = packed_bytes;
        stream->next_out = (Bytef *)buffer->bytes + buffer->size;
        stream->avail_out = (uInt)room;
        int result = inflate(stream, Z_NO_FLUSH);
        WF_TRY(buffer_grew(ctx, buffer, room - stream->avail_out));
        if (result == Z_STREAM_END) *member_over = true;
        else if (result == Z_MEM_ERROR)
            return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory in zlib", buffer->path);
        else if (result == Z_BUF_ERROR) break; /* needs more input */
        else if (result != Z_OK)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: damaged gzip data near unpacked byte %zu: %s",
                           buffer->path, buffer->size,
                           stream->msg != NULL ? stream->msg : "not understood");
    }
    return WF_OK;
}

/* Members in a row are one file, as gunzip has it; bytes that are no member are
 * damage. */
static wf_status read_gzip(wf_ctx *ctx, int fd, uint8_t *packed, size_t count, wf_buffer *buffer) {
    z_stream stream = {0};
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: zlib cannot start", buffer->path);
    bool member_over = false;
    wf_status status = WF_OK;
    stream.avail_out = 1;
    while (count > 0 && !buffer->over) {
        buffer->packed += count;
        stream.next_in = packed;
        stream.avail_in = (uInt)count;
        WF_TRY_GOTO(inflate_input(ctx, &stream, buffer, &member_over), done);
        WF_TRY_GOTO(read_some(ctx, buffer->path, fd, packed, packed_bytes, &count), done);
    }
    if (buffer->over) status = WF_OK;
    else if (!member_over)
        status =
            wf_fail(ctx, WF_ERR_INPUT,
                    "%s: the gzip data ends in the middle; the file is cut short", buffer->path);
    else status = buffer_room(ctx, buffer);
done:
    inflateEnd(&stream);
    return status;
}

static wf_status read_stream(wf_ctx *ctx, int fd, wf_buffer *buffer) {
    uint8_t *packed;
    WF_TRY(wf_alloc(ctx, packed_bytes, 1, buffer->path, &packed));
    size_t count = 0, more = 1;
    wf_status status = WF_OK;
    while (count < 2 && more > 0) { /* the mark of gzip; a pipe may bring it byte by byte */
        WF_TRY_GOTO(read_some(ctx, buffer->path, fd, packed + count, packed_bytes - count, &more),
                    done);
        count += more;
    }
    if (count >= 2 && packed[0] == 0x1f && packed[1] == 0x8b) {
        status = read_gzip(ctx, fd, packed, count, buffer);
        goto done;
    }
    for (size_t taken = 0; taken < count;) {
        WF_TRY_GOTO(buffer_room(ctx, buffer), done);
        size_t take = buffer->capacity - buffer->size;
        if (take > count - taken) take = count - taken;
        memcpy(buffer->bytes + buffer->size, packed + taken, take);
        WF_TRY_GOTO(buffer_grew(ctx, buffer, take), done);
        taken += take;
    }
    status = read_plain(ctx, fd, buffer);
done:
    free(packed);
    return status;
}

wf_status wf_read_file(wf_ctx *ctx, const char *path, size_t limit, char **out, size_t *size) {
    return wf_read_until(ctx, path, limit, NULL, out, size);
}

/* All of an open file. Another program may write to it meanwhile. Then the start of one file and
 * the end of another were read, and the content need not show that. */
static wf_status read_unchanged(wf_ctx *ctx, int fd, wf_buffer *buffer) {
    struct stat before, behind;
    bool known = fstat(fd, &before) == 0;
    if (known) WF_TRY(read_stream(ctx, fd, buffer));
    if (!known || fstat(fd, &behind) != 0)
        return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be examined", buffer->path);
    if (!S_ISREG(before.st_mode) ||
        (before.st_size == behind.st_size && before.st_mtim.tv_sec == behind.st_mtim.tv_sec &&
         before.st_mtim.tv_nsec == behind.st_mtim.tv_nsec))
        return WF_OK;
    return wf_fail(ctx, WF_ERR_INPUT,
                   "%s: was changed by another program while it was read; try again when that is "
                   "done",
                   buffer->path);
}

wf_status wf_read_until(wf_ctx *ctx, const char *path, size_t limit, wf_enough *enough, char **out,
                        size_t *size) {
    *out = NULL;
    *size = 0;
    int fd = wf_open_to_read(path, 0);
    if (fd < 0) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be opened", path);
    wf_buffer buffer = {
        .path = path, .limit = limit < SIZE_MAX / 4 ? limit : SIZE_MAX / 4, .enough = enough};
    wf_status status = read_unchanged(ctx, fd, &buffer);
    close(fd);
    if (status != WF_OK) {
        free(buffer.bytes);
        return status;
    }
    buffer.bytes[buffer.size] = '\0';
    *out = buffer.bytes;
    *size = buffer.size;
    return WF_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Cuts "a/b/name" into folder "a/b" and "name"; the folder of "name" is ".". */
static const char *split_path(const char *path, char folder[4096]) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        strcpy(folder, ".");
        return path;
    }
    size_t length = slash == path ? 1 : (size_t)(slash - path);
    memcpy(folder, path, length);
    folder[length] = '\0';
    return slash + 1;
}

/* Some file systems cannot sync a folder and say EINVAL: then there is nothing to be done. */
static bool sync_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno == EACCES;
    bool done = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
    int code = errno;
    close(fd);
    errno = code;
    return done;
}

void wf_sync_names(const char *path) {
    char folder[4096];
    if (strlen(path) >= sizeof folder) return;
    split_path(path, folder);
    sync_folder(folder);
}

wf_status wf_list_folder(wf_ctx *ctx, const char *folder, wf_take_name *take, void *user) {
    DIR *entries = opendir(folder);
    if (entries == NULL) return wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be read", folder);
    wf_status status = WF_OK;
    for (;;) {
        errno = 0; /* readdir says nothing else of a failure */
        const struct dirent *entry = readdir(entries);
        if (entry == NULL && errno != 0)
            status = wf_fail_errno(ctx, WF_ERR_INPUT, "%s: cannot be read to its end", folder);
        if (entry == NULL) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = take(user, entry->d_name);
        if (status != WF_OK) break;
    }
    closedir(entries);
    return status;
}

/* ".NAME.tmp.DIGITS"; name NULL: any name. */
static bool is_sibling(const char *entry, const char *name) {
    size_t length = strlen(entry), digits = 0;
    while (digits < length && strchr("0123456789", entry[length - 1 - digits]) != NULL) digits++;
    if (entry[0] != '.' || digits == 0 || length < digits + 7) return false;
    size_t end = length - digits - 5; /* of ".NAME" */
    if (strncmp(entry + end, ".tmp.", 5) != 0) return false;
    return name == NULL || (strlen(name) == end - 1 && strncmp(entry + 1, name, end - 1) == 0);
}

/* Invariant I2. Removes nothing it cannot lock. name NULL: any. */
static void remove_dead(const char *folder, const char *name) {
    DIR *entries = opendir(folder);
    if (entries == NULL) return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (!is_sibling(entry->d_name, name)) continue;
        int fd =
            openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(entries), entry->d_name, 0);
        close(fd);
    }
    closedir(entries);
}

void wf_remove_dead_siblings_of(const char *path) {
    char real[PATH_MAX], folder[PATH_MAX];
    if (realpath(path, real) == NULL) snprintf(real, sizeof real, "%s", path);
    remove_dead(folder, split_path(real, folder));
}

void wf_remove_dead_siblings(const char *folder) { remove_dead(folder, NULL); }

/* A locked new sibling. Between creation and lock another writer may take it for dead and remove
 * it; the link count shows that, and the next attempt makes a new one. */
static int create_sibling(const char *temporary, mode_t mode) {
    for (int attempt = 0; attempt < 100; attempt++) {
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0) return -1;
        int locked;
        do locked = flock(fd, LOCK_EX);
        while (locked != 0 && errno == EINTR);
        struct stat info;
        if (fstat(fd, &info) != 0) {
            int code = errno;
            unlink(temporary);
            close(fd);
            errno = code;
            return -1;
        }
        if (info.st_nlink > 0) {
            if (mode != 0 && fchmod(fd, mode) != 0) errno = 0; /* the usual mode will do */
            return fd;
        }
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

/* Follows links whose end is not there yet: path becomes the name of the file that is to be made.
 * realpath follows the others. */
static wf_status follow_links(wf_ctx *ctx, char path[4096]) {
    enum { most_links = 40 };
    for (int links = 0; links < most_links; links++) {
        char target[4096], folder[4096];
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0) return WF_OK; /* no link, or nothing there */
        target[length] = '\0';
        split_path(path, folder);
        int used = target[0] == '/' ? snprintf(path, 4096, "%s", target)
                                    : snprintf(path, 4096, "%s/%s", folder, target);
        if (used < 0 || used >= 4096 - 32 || path[used - 1] == '/')
            return wf_fail(ctx, WF_ERR_DISK, "%.60s...: is a link to no file name", path);
    }
    errno = ELOOP;
    return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
}

/* Where the bytes go. A link is followed, so that it survives; a device or pipe is written in
 * place. */
static wf_status find_target(wf_ctx *ctx, const char *path, wf_writer *writer, mode_t *mode) {
    *mode = 0;
    size_t length = strlen(path);
    if (length == 0 || path[length - 1] == '/')
        return wf_fail(ctx, WF_ERR_USAGE, "\"%s\" does not name a file", path);
    if (length >= sizeof writer->path - 32)
        return wf_fail(ctx, WF_ERR_USAGE, "%.60s...: the path is too long", path);
    strcpy(writer->path, path);
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno == ENOENT) return follow_links(ctx, writer->path);
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    }
    if (S_ISDIR(info.st_mode))
        return wf_fail(ctx, WF_ERR_DISK, "%s: is a folder; give a file name", path);
    if (access(path, W_OK) != 0)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    if (!S_ISREG(info.st_mode)) {
        writer->path[0] = '\0';
        return WF_OK;
    }
    *mode = info.st_mode & 0777;
    char real[PATH_MAX];
    if (realpath(path, real) == NULL)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be resolved", path);
    length = strlen(real);
    if (length < sizeof writer->path - 32) memcpy(writer->path, real, length + 1);
    return WF_OK;
}

wf_status wf_writer_target(wf_ctx *ctx, const char *path, char out[4096]) {
    wf_writer writer;
    mode_t mode;
    WF_TRY(find_target(ctx, path, &writer, &mode));
    strcpy(out, writer.path);
    return WF_OK;
}

typedef struct opening {
    const char *path;
    wf_writer *out;
} opening;

static wf_status open_sibling(wf_ctx *ctx, void *opening_) {
    const char *path = ((opening *)opening_)->path;
    wf_writer *out = ((opening *)opening_)->out;
    mode_t mode;
    WF_TRY(find_target(ctx, path, out, &mode));
    int fd;
    if (out->path[0] == '\0') {
        fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        char folder[4096];
        const char *name = split_path(out->path, folder);
        remove_dead(folder, name);
        snprintf(out->temporary, sizeof out->temporary, "%.*s.%s.tmp.%ld", (int)(name - out->path),
                 out->path, name, (long)getpid());
        fd = create_sibling(out->temporary, mode);
        if (fd < 0 && errno == EEXIST)
            return wf_fail(ctx, WF_ERR_DISK, "%s: is being written by another call", path);
    }
    if (fd < 0) return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    out->file = fdopen(fd, "wb");
    if (out->file != NULL) return WF_OK;
    wf_status status = wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    if (out->temporary[0] != '\0') unlink(out->temporary);
    close(fd);
    return status;
}

wf_status wf_writer_open(wf_ctx *ctx, const char *path, wf_writer *out) {
    out->file = NULL;
    out->unsynced = 0;
    out->path[0] = out->temporary[0] = '\0';
    out->shared = NULL;
    bool together = wf_writes_together(ctx);
    WF_TRY(wf_rank_0_does(ctx, open_sibling, &(opening){path, out}));
    if (together) out->shared = ctx;
    return WF_OK;
}

static const char *writer_name(const wf_writer *writer) {
    return writer->path[0] != '\0' ? writer->path : "the device";
}

/* Pieces are sent to the disk as they come, so that the end waits for the last piece only. */
static wf_status end_piece(wf_ctx *ctx, wf_writer *writer) {
    writer->unsynced = 0;
    if (wf_stop_is_overdue(ctx))
        return wf_fail(ctx, WF_ERR_INTERRUPTED, "%s: interrupted while it was written",
                       writer_name(writer));
    bool in_place = writer->temporary[0] == '\0';
    if (in_place || (fflush(writer->file) == 0 && fdatasync(fileno(writer->file)) == 0))
        return WF_OK;
    return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", writer_name(writer));
}

wf_status wf_writer_write(wf_ctx *ctx, wf_writer *writer, const void *bytes, size_t count) {
    if (writer->file == NULL) return WF_OK; /* another rank writes it */
    for (const char *at = bytes; count > 0;) {
        size_t room = wf_piece_bytes - writer->unsynced, some = count < room ? count : room;
        if (fwrite(at, 1, some, writer->file) != some)
            return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", writer_name(writer));
        at += some;
        count -= some;
        writer->unsynced += some;
        if (writer->unsynced == wf_piece_bytes) WF_TRY(end_piece(ctx, writer));
    }
    return WF_OK;
}

static void remove_sibling(wf_writer *writer) {
    if (writer->file == NULL) return;
    if (writer->temporary[0] != '\0') unlink(writer->temporary);
    fclose(writer->file);
    writer->file = NULL;
}

static wf_status replace_file(wf_ctx *ctx, wf_writer *writer) {
    bool in_place = writer->temporary[0] == '\0';
    bool written = fflush(writer->file) == 0 && !ferror(writer->file);
    if (!written && errno == 0) errno = EIO;
    if (written && !in_place)
        written = fsync(fileno(writer->file)) == 0 && rename(writer->temporary, writer->path) == 0;
    if (!written) {
        wf_status status =
            wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", writer_name(writer));
        remove_sibling(writer);
        return status;
    }
    bool closed = fclose(writer->file) == 0; /* the lock ends here, after the rename */
    writer->file = NULL;
    if (!closed && in_place)
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", writer_name(writer));
    if (in_place) return WF_OK;
    char folder[4096];
    split_path(writer->path, folder);
    if (!sync_folder(folder))
        return wf_fail_errno(ctx, WF_ERR_DISK, "%s: its folder cannot be synced", writer->path);
    return WF_OK;
}

wf_status wf_rename_whole(wf_ctx *ctx, const char *from, const char *path) {
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be opened", from);
    bool named = fsync(fd) == 0 && rename(from, path) == 0;
    int code = errno;
    close(fd);
    errno = code;
    if (!named) return wf_fail_errno(ctx, WF_ERR_DISK, "%s: cannot be written", path);
    char folder[4096];
    split_path(path, folder);
    if (sync_folder(folder)) return WF_OK;
    return wf_fail_errno(ctx, WF_ERR_DISK, "%s: its folder cannot be synced", path);
}

wf_status wf_writer_commit(wf_ctx *ctx, wf_writer *writer) {
    wf_ctx *shared = writer->shared;
    writer->shared = NULL;
    if (shared != NULL) {
        wf_status met = wf_barrier(shared);
        if (met != WF_OK) remove_sibling(writer);
        WF_TRY(met);
    }
    wf_status status = writer->file != NULL ? replace_file(ctx, writer) : WF_OK;
    return shared != NULL ? wf_from_rank_0(shared, status) : status;
}

/* Where rank 0 aborts, the others may be waiting in commit. */
void wf_writer_abort(wf_writer *writer) {
    wf_ctx *shared = writer->shared;
    writer->shared = NULL;
    remove_sibling(writer);
    if (shared == NULL || wf_ctx_rank(shared) != 0) return;
    char sentence[WF_COMM_SENTENCE];
    snprintf(sentence, sizeof sentence, "%s", wf_last_error(shared));
    if (wf_barrier(shared) == WF_OK)
        wf_from_rank_0(shared, wf_fail(shared, WF_ERR_DISK, "%s", sentence));
}

wf_status wf_write_file(wf_ctx *ctx, const char *path, const void *bytes, size_t count) {
    wf_writer writer;
    WF_TRY(wf_writer_open(ctx, path, &writer));
    wf_status status = wf_writer_write(ctx, &writer, bytes, count);
    if (status == WF_OK) status = wf_writer_commit(ctx, &writer);
    else wf_writer_abort(&writer);
    return status;
}

static wf_status make_one_folder(wf_ctx *ctx, const char *path) {
    if (mkdir(path, 0777) == 0) {
        wf_sync_names(path); /* a folder that is lost will be made again */
        return WF_OK;
    }
    int code = errno;
    struct stat info;
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return WF_OK;
        return wf_fail(ctx, WF_ERR_DISK, "%s: is a file where a folder is needed", path);
    }
    errno = code;
    return wf_fail_errno(ctx, WF_ERR_DISK, "%s: the folder cannot be made", path);
}

static wf_status make_folders(wf_ctx *ctx, void *path_) {
    const char *path = path_;
    char part[4096];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return wf_fail(ctx, WF_ERR_USAGE, "\"%.60s\" does not name a folder", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        if (path[i - 1] == '/') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        WF_TRY(make_one_folder(ctx, part));
    }
    return WF_OK;
}

wf_status wf_make_folder(wf_ctx *ctx, const char *path) {
    return wf_rank_0_does(ctx, make_folders, (void *)(uintptr_t)path);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static wf_status remove_all(wf_ctx *ctx, void *path_) {
    const char *path = path_;
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return WF_OK;
    return wf_fail_errno(ctx, WF_ERR_DISK, "%s cannot be removed", path);
}

wf_status wf_remove(wf_ctx *ctx, const char *path) {
    return wf_rank_0_does(ctx, remove_all, (void *)(uintptr_t)path);
}
