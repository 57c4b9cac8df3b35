/* Files in and out: gzip, limits, replacement that never loses the old file, JSON lines,
 * SHA-256. */
#include "failing_malloc.h"
#include "ctx_fixture.h"
#include "base/io.h"
#include "base/json_text.h"
#include "base/utf8.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zlib.h>

/* System calls that fail when told to; 0: they do their work. */
static int access_fails, fstat_fails;

EXPORTED int access(const char *path, int mode) {
    if (access_fails == 0) return faccessat(AT_FDCWD, path, mode, 0);
    errno = access_fails;
    return -1;
}

EXPORTED int fstat(int fd, struct stat *info) {
    if (fstat_fails == 0) return fstatat(fd, "", info, AT_EMPTY_PATH);
    errno = fstat_fails;
    return -1;
}

static void put(const char *name, const void *bytes, size_t count) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

/* The file holds exactly `text`. Read without the functions under test. */
static void assert_holds(const char *name, const char *text) {
    char found[4096] = "";
    FILE *file = fopen(in_folder(name), "rb");
    if (file == NULL) fail_msg("%s is not there", name);
    size_t count = fread(found, 1, sizeof found - 1, file);
    fclose(file);
    assert_int_equal(count, strlen(text));
    assert_string_equal(found, text);
}

static int files_in(const char *path) {
    int count = 0;
    DIR *entries = opendir(path);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(entries);
    return count;
}

/* Runs `body` in a process of its own; its result is the exit code. */
static int in_child(int (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(body());
    int state;
    assert_int_equal(waitpid(child, &state, 0), child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state);
}

/* --- reading ---------------------------------------------------------------------------------- */

static void maps(void **state) {
    (void)state;
    wf_map map;
    put("a", "hello", 5);
    assert_ok(ctx, wf_map_open(ctx, in_folder("a"), &map));
    assert_int_equal(map.size, 5);
    assert_memory_equal(map.data, "hello", 5);
    wf_map_close(&map);
    wf_map_close(&map);
    put("empty", "", 0);
    assert_ok(ctx, wf_map_open(ctx, in_folder("empty"), &map));
    assert_int_equal(map.size, 0);
    assert_non_null(map.data);
    wf_map_close(&map);
    assert_fails(ctx, wf_map_open(ctx, in_folder("none"), &map), WF_ERR_INPUT, "/none: cannot be");
    assert_fails(ctx, wf_map_open(ctx, folder, &map), WF_ERR_INPUT, "is a folder");
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_fails(ctx, wf_map_open(ctx, in_folder("fifo"), &map), WF_ERR_INPUT, "pipe or device");
}

/* Whoever gets SIGBUS asks which file it came from. */
static void says_what_is_mapped(void **state) {
    (void)state;
    wf_map map[3];
    char name[4096];
    for (int i = 0; i < 3; i++) {
        char file[] = {(char)('a' + i), '\0'};
        put(file, "hello", 5);
        assert_ok(ctx, wf_map_open(ctx, in_folder(file), &map[i]));
    }
    for (int i = 0; i < 3; i++) {
        assert_true(wf_mapped_file(map[i].data + 4, name, sizeof name));
        assert_int_equal(name[strlen(name) - 1], 'a' + i);
        assert_false(wf_mapped_file(map[i].data + 5, name, sizeof name));
    }
    assert_true(wf_mapped_file(map[0].data, name, 4));
    assert_int_equal(strlen(name), 3);
    const uint8_t *gone = map[1].data;
    wf_map_close(&map[1]);
    assert_false(wf_mapped_file(gone, name, sizeof name));
    assert_true(wf_mapped_file(map[0].data, name, sizeof name));
    wf_map_close(&map[2]);
    wf_map_close(&map[0]);
    assert_false(wf_mapped_file(&gone, name, sizeof name));
}

static void fill(char *bytes, size_t count) {
    uint32_t x = 1;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (char)(x >> 28); /* compresses to about half */
    }
}

/* Appends one gzip member. */
static size_t pack(const char *bytes, size_t count, uint8_t *out, size_t room) {
    z_stream stream = {0};
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (Bytef *)(uintptr_t)bytes, stream.avail_in = (uInt)count;
    stream.next_out = out, stream.avail_out = (uInt)room;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return room - stream.avail_out;
}

static void reads_any_size(void **state) {
    (void)state;
    static const size_t sizes[] = {0,     1,     2,     3,     16383, 16384,  16385,
                                   65535, 65536, 65537, 98304, 98305, 131072, 300001};
    enum { most = 300001 };
    char *bytes = malloc(most), *found;
    uint8_t *packed = malloc(2 * most);
    size_t size;
    fill(bytes, most);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        put("plain", bytes, sizes[i]);
        put("packed", packed, pack(bytes, sizes[i], packed, 2 * most));
        for (int gzip = 0; gzip < 2; gzip++) {
            const char *path = in_folder(gzip ? "packed" : "plain");
            assert_ok(ctx, wf_read_file(ctx, path, sizes[i], &found, &size));
            assert_int_equal(size, sizes[i]);
            assert_memory_equal(found, bytes, size);
            assert_int_equal(found[size], 0);
            free(found);
            assert_ok(ctx, wf_read_file(ctx, path, SIZE_MAX, &found, &size));
            assert_int_equal(size, sizes[i]);
            free(found);
            if (sizes[i] == 0) continue;
            assert_fails(ctx, wf_read_file(ctx, path, sizes[i] - 1, &found, &size), WF_ERR_INPUT,
                         "holds more than");
            assert_null(found);
        }
    }
    free(bytes);
    free(packed);
}

static void reads_members_and_refuses_damage(void **state) {
    (void)state;
    enum { count = 3000 };
    char bytes[count], *found;
    uint8_t packed[4 * count];
    size_t size;
    fill(bytes, count);
    size_t first = pack(bytes, 1000, packed, sizeof packed);
    size_t middle = first + pack("", 0, packed + first, sizeof packed - first);
    size_t whole = middle + pack(bytes + 1000, 2000, packed + middle, sizeof packed - middle);
    const char *path = in_folder("members");
    put("members", packed, whole);
    assert_ok(ctx, wf_read_file(ctx, path, count, &found, &size));
    assert_int_equal(size, count);
    assert_memory_equal(found, bytes, count);
    free(found);
    for (size_t cut = 2; cut < whole; cut++) {
        put("members", packed, cut);
        wf_status status = wf_read_file(ctx, path, count, &found, &size);
        bool between = cut == first || cut == middle;
        if ((status == WF_OK) != between) fail_msg("cut at %zu: %s", cut, wf_last_error(ctx));
        if (!between) assert_non_null(strstr(wf_last_error(ctx), "ends in the middle"));
        free(found);
    }
    for (size_t at = whole - 8; at < whole; at++) { /* checksum and length of the last member */
        packed[at] ^= 0x10;
        put("members", packed, whole);
        packed[at] ^= 0x10;
        assert_fails(ctx, wf_read_file(ctx, path, count, &found, &size), WF_ERR_INPUT,
                     "damaged gzip data near unpacked byte 3000");
    }
    memcpy(packed + whole, "garbage", 7);
    put("members", packed, whole + 7);
    assert_fails(ctx, wf_read_file(ctx, path, count, &found, &size), WF_ERR_INPUT, "damaged gzip");
    put("members", "\x1f", 1);
    assert_ok(ctx, wf_read_file(ctx, path, count, &found, &size));
    assert_int_equal(size, 1);
    free(found);
}

static void bombs_are_cheap(void **state) {
    (void)state;
    enum { zeros = 64 << 20 };
    char *bytes = calloc(1, zeros), *found;
    uint8_t *packed = malloc(1 << 20);
    size_t count = pack(bytes, zeros, packed, 1 << 20), size;
    free(bytes);
    put("bomb", packed, count);
    free(packed);
    assert_fails(ctx, wf_read_file(ctx, in_folder("bomb"), 1000, &found, &size), WF_ERR_INPUT,
                 "holds more than 1000 bytes");
    assert_fails(ctx, wf_read_file(ctx, "/dev/zero", 100000, &found, &size), WF_ERR_INPUT,
                 "holds more than 100000 bytes");
    assert_fails(ctx, wf_read_file(ctx, in_folder("none"), 9, &found, &size), WF_ERR_INPUT,
                 "No such file");
    assert_fails(ctx, wf_read_file(ctx, folder, 9, &found, &size), WF_ERR_INPUT, "Is a directory");
}

static int feed_pipe(void) {
    uint8_t packed[100];
    size_t count = pack("drop by drop", 12, packed, sizeof packed);
    int fd = open(in_folder("drops"), O_WRONLY);
    for (size_t i = 0; i < count; i++) {
        if (write(fd, packed + i, 1) != 1) return 1;
        usleep(100);
    }
    return 0;
}

static void reads_pipes(void **state) {
    (void)state;
    assert_int_equal(mkfifo(in_folder("drops"), 0600), 0);
    pid_t child = fork();
    if (child == 0) _exit(feed_pipe());
    char *found;
    size_t size;
    assert_ok(ctx, wf_read_file(ctx, in_folder("drops"), 100, &found, &size));
    assert_string_equal(found, "drop by drop");
    free(found);
    waitpid(child, NULL, 0);
}

static wf_status read_once(wf_ctx *with, void *path) {
    char *found;
    size_t size;
    WF_TRY(wf_read_file(with, path, 1 << 20, &found, &size));
    free(found);
    return WF_OK;
}

/* What another program does to the file between two pieces of it. */
static enum { cuts, appends, rewrites } meddling;

static bool meddle(const char *bytes, size_t size, size_t fresh) {
    (void)bytes;
    if (size > fresh) return false;
    const char *path = in_folder("changing");
    int fd = open(path, meddling == appends ? O_WRONLY | O_APPEND : O_WRONLY);
    struct stat info;
    assert_true(fd >= 0 && fstat(fd, &info) == 0);
    if (meddling == cuts) assert_int_equal(ftruncate(fd, 0), 0);
    else assert_int_equal(write(fd, "!", 1), 1);
    info.st_mtim.tv_sec += 1; /* clocks of file systems are coarse */
    const struct timespec times[] = {info.st_atim, info.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    return false;
}

static void a_file_that_changes_is_refused(void **state) {
    (void)state;
    enum { many = 300000 };
    char *bytes = malloc(many), *text;
    size_t size;
    memset(bytes, 'x', many);
    for (meddling = cuts; meddling <= rewrites; meddling++) {
        put("changing", bytes, many);
        assert_fails(ctx, wf_read_until(ctx, in_folder("changing"), SIZE_MAX, meddle, &text, &size),
                     WF_ERR_INPUT, "changed by another program while it was read");
        assert_null(text);
    }
    fstat_fails = EIO;
    wf_status status = wf_read_file(ctx, in_folder("changing"), SIZE_MAX, &text, &size);
    fstat_fails = 0;
    assert_int_equal(status, WF_ERR_INPUT);
    free(bytes);
}

static void reading_survives_lack_of_memory(void **state) {
    (void)state;
    char bytes[50000], path[256];
    uint8_t packed[50000];
    fill(bytes, sizeof bytes);
    put("memory", packed, pack(bytes, sizeof bytes, packed, sizeof packed));
    snprintf(path, sizeof path, "%s", in_folder("memory"));
    fail_every_allocation(ctx, "gzip", read_once, path);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void replaces_only_at_commit(void **state) {
    (void)state;
    char sibling[64];
    snprintf(sibling, sizeof sibling, ".out.tmp.%ld", (long)getpid());
    put("out", "old", 3);
    assert_int_equal(chmod(in_folder("out"), 0640), 0);
    wf_writer writer;
    assert_ok(ctx, wf_writer_open(ctx, in_folder("out"), &writer));
    assert_ok(ctx, wf_writer_write(ctx, &writer, "new ", 4));
    assert_ok(ctx, wf_writer_write(ctx, &writer, "text", 4));
    assert_holds("out", "old");
    assert_true(wf_file_exists(in_folder(sibling)));
    wf_writer second;
    assert_fails(ctx, wf_writer_open(ctx, in_folder("out"), &second), WF_ERR_DISK,
                 "is being written by another call");
    wf_writer_abort(&second);
    assert_ok(ctx, wf_writer_commit(ctx, &writer));
    wf_writer_abort(&writer);
    assert_holds("out", "new text");
    assert_false(wf_file_exists(in_folder(sibling)));
    struct stat info;
    assert_int_equal(stat(in_folder("out"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    assert_ok(ctx, wf_writer_open(ctx, in_folder("out"), &writer));
    assert_ok(ctx, wf_writer_write(ctx, &writer, "third", 5));
    wf_writer_abort(&writer);
    wf_writer_abort(&writer);
    assert_holds("out", "new text");
    assert_false(wf_file_exists(in_folder(sibling)));
}

/* wf_stop_is_overdue: a large file is given up between two pieces, unless it saves much work; one
 * of a single piece is always written. */
static void an_overdue_stop_gives_up_large_files(void **state) {
    (void)state;
    wf_ctx *stopped = test_ctx();
    static const char large[1000] = "new";
    wf_stop_seconds = 0;
    wf_piece_bytes = 400;
    put("stop", "old", 3);
    int files = files_in(folder);
    wf_interrupt(stopped);
    usleep(1000);
    assert_fails(stopped, wf_write_file(stopped, in_folder("stop"), large, sizeof large),
                 WF_ERR_INTERRUPTED, "stop: interrupted while it was written");
    assert_holds("stop", "old");
    assert_ok(stopped, wf_write_file(stopped, in_folder("stop"), "small", 5));
    assert_holds("stop", "small");
    wf_stop_saves(stopped, 3600);
    assert_ok(stopped, wf_write_file(stopped, in_folder("stop"), large, sizeof large));
    assert_int_equal(files_in(folder), files);
    wf_stop_saves(stopped, 0);
    wf_interrupt_clear(stopped);
    assert_ok(stopped, wf_write_file(stopped, in_folder("stop"), large, sizeof large));
    unlink(in_folder("stop"));
    wf_stop_seconds = 1;
    wf_piece_bytes = 16 << 20;
    wf_ctx_free(stopped);
}

static void follows_links(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("deep")));
    put("deep/target", "old", 3);
    assert_int_equal(symlink("deep/target", in_folder("link")), 0);
    assert_ok(ctx, wf_write_file(ctx, in_folder("link"), "new", 3));
    assert_holds("deep/target", "new");
    struct stat info;
    assert_int_equal(lstat(in_folder("link"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(files_in(in_folder("deep")), 1);
}

/* A link to a file that is not there yet is written through, not replaced. */
static void follows_dangling_links(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("far")));
    assert_int_equal(symlink("far/second", in_folder("first")), 0);
    assert_int_equal(symlink("third", in_folder("far/second")), 0);
    assert_ok(ctx, wf_write_file(ctx, in_folder("first"), "new", 3));
    assert_holds("far/third", "new");
    const char *links[] = {"first", "far/second"};
    for (int i = 0; i < 2; i++) {
        struct stat info;
        assert_int_equal(lstat(in_folder(links[i]), &info), 0);
        assert_true(S_ISLNK(info.st_mode));
    }
    assert_int_equal(symlink("nowhere/file", in_folder("lost")), 0);
    assert_fails(ctx, wf_write_file(ctx, in_folder("lost"), "x", 1), WF_ERR_DISK, "No such");
    assert_int_equal(symlink("round", in_folder("round")), 0);
    assert_fails(ctx, wf_write_file(ctx, in_folder("round"), "x", 1), WF_ERR_DISK, "Too many");
}

/* What the system cannot say is not taken for "absent". */
static void unknown_is_not_absent(void **state) {
    (void)state;
    put("there", "x", 1);
    assert_true(wf_file_exists(in_folder("there")));
    assert_false(wf_file_exists(in_folder("not there")));
    assert_false(wf_file_exists(in_folder("there/below")));
    access_fails = EIO;
    assert_true(wf_file_exists(in_folder("not there")));
    access_fails = 0;
}

static void failing_fstat_leaves_nothing(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("bare")));
    fstat_fails = EIO;
    wf_status status = wf_write_file(ctx, in_folder("bare/file"), "x", 1);
    fstat_fails = 0;
    assert_fails(ctx, status, WF_ERR_DISK, "Input/output error");
    assert_int_equal(files_in(in_folder("bare")), 0);
}

static void bad_targets(void **state) {
    (void)state;
    static char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    put("file", "x", 1);
    assert_fails(ctx, wf_write_file(ctx, "", "x", 1), WF_ERR_USAGE, "does not name a file");
    assert_fails(ctx, wf_write_file(ctx, "x/", "x", 1), WF_ERR_USAGE, "does not name a file");
    assert_fails(ctx, wf_write_file(ctx, longer, "x", 1), WF_ERR_USAGE, "too long");
    longer[300] = '\0';
    assert_fails(ctx, wf_write_file(ctx, longer, "x", 1), WF_ERR_DISK, "File name too long");
    assert_fails(ctx, wf_write_file(ctx, folder, "x", 1), WF_ERR_DISK, "is a folder");
    assert_fails(ctx, wf_write_file(ctx, in_folder("none/x"), "x", 1), WF_ERR_DISK, "No such");
    assert_fails(ctx, wf_write_file(ctx, in_folder("file/x"), "x", 1), WF_ERR_DISK, "Not a dir");
    assert_ok(ctx, wf_write_file(ctx, "/dev/null", "x", 1));
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode)); /* written, not replaced */
    assert_fails(ctx, wf_write_file(ctx, "/dev/full", "x", 1), WF_ERR_DISK, "No space left");
    char *large = calloc(1, 1 << 20);
    assert_fails(ctx, wf_write_file(ctx, "/dev/full", large, 1 << 20), WF_ERR_DISK, "No space");
    free(large);
}

/* Half-way through a file the disk is full. */
static int write_too_much(void) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {100000, 100000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    char *large = calloc(1, 300000);
    int code = 0;
    if (wf_write_file(NULL, in_folder("full/kept"), large, 300000) != WF_ERR_DISK) code = 11;
    if (wf_write_file(NULL, in_folder("full/new"), large, 100001) != WF_ERR_DISK) code = 12;
    free(large);
    return code;
}

static void disk_full(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("full")));
    put("full/kept", "old", 3);
    assert_int_equal(in_child(write_too_much), 0);
    assert_holds("full/kept", "old");
    assert_int_equal(files_in(in_folder("full")), 1); /* no sibling, no new file */
}

/* As somebody who may not write here. */
static int write_forbidden(void) {
    if (getuid() == 0 && setuid(65534) != 0) return 10;
    if (wf_write_file(NULL, in_folder("closed/file"), "new", 3) != WF_ERR_DISK) return 11;
    if (wf_write_file(NULL, in_folder("open/kept"), "new", 3) != WF_ERR_DISK) return 12;
    if (wf_make_folder(NULL, in_folder("closed/more")) != WF_ERR_DISK) return 13;
    char *found;
    size_t size;
    if (wf_read_file(NULL, in_folder("open/secret"), 9, &found, &size) != WF_ERR_INPUT) return 15;
    return 0;
}

static void no_permission(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("closed")));
    assert_ok(ctx, wf_make_folder(ctx, in_folder("open")));
    put("closed/file", "old", 3);
    put("open/kept", "old", 3);
    put("open/secret", "old", 3);
    chmod(folder, 0755);
    chmod(in_folder("closed"), 0555);
    chmod(in_folder("open"), 0777);
    chmod(in_folder("open/kept"), 0444); /* the folder would let it be replaced */
    chmod(in_folder("open/secret"), 0000);
    assert_int_equal(in_child(write_forbidden), 0);
    assert_holds("closed/file", "old");
    assert_holds("open/kept", "old");
    assert_int_equal(files_in(in_folder("closed")), 1);
    assert_int_equal(files_in(in_folder("open")), 2);
    chmod(in_folder("closed"), 0755);
}

static int die_while_writing(void) {
    wf_writer writer;
    if (wf_writer_open(NULL, in_folder("dead/file"), &writer) != WF_OK) return 1;
    wf_writer_write(NULL, &writer, "half", 4);
    fflush(writer.file);
    raise(SIGKILL);
    return 2;
}

static void dead_siblings_are_removed(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("dead")));
    put("dead/file", "old", 3);
    assert_int_equal(in_child(die_while_writing), 1000 + SIGKILL);
    assert_holds("dead/file", "old");
    assert_int_equal(files_in(in_folder("dead")), 2);
    put("dead/.other.tmp.1", "x", 1);    /* another file's */
    put("dead/.file.tmp.1x", "x", 1);    /* nobody's */
    put("dead/.file.tmp.", "x", 1);      /* nobody's */
    put("dead/.file.tmp.999999", "", 0); /* dead */
    char own[64];
    snprintf(own, sizeof own, "dead/.file.tmp.%ld", (long)getpid());
    put(own, "x", 1); /* of a dead process with our number */
    wf_writer alive;  /* a living writer of another name, and of the same name in a child */
    assert_ok(ctx, wf_writer_open(ctx, in_folder("dead/living"), &alive));
    assert_ok(ctx, wf_write_file(ctx, in_folder("dead/file"), "new", 3));
    assert_holds("dead/file", "new");
    assert_ok(ctx, wf_writer_commit(ctx, &alive));
    assert_int_equal(files_in(in_folder("dead")), 5);
    assert_true(wf_file_exists(in_folder("dead/.other.tmp.1")));
    assert_true(wf_file_exists(in_folder("dead/.file.tmp.1x")));
    assert_true(wf_file_exists(in_folder("dead/.file.tmp.")));
}

/* Two processes write the same name: both finish, one of them wins whole. */
static int write_often(void) {
    char text[2000];
    memset(text, (int)('a' + getpid() % 26), sizeof text);
    for (int i = 0; i < 100; i++)
        if (wf_write_file(NULL, in_folder("race/file"), text, sizeof text) != WF_OK) return 1;
    return 0;
}

static void writers_do_not_meet(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("race")));
    pid_t child = fork();
    if (child == 0) _exit(write_often());
    assert_int_equal(in_child(write_often), 0);
    int code;
    waitpid(child, &code, 0);
    assert_int_equal(code, 0);
    assert_int_equal(files_in(in_folder("race")), 1);
    char *found;
    size_t size;
    assert_ok(ctx, wf_read_file(ctx, in_folder("race/file"), 2000, &found, &size));
    assert_int_equal(size, 2000);
    for (size_t i = 1; i < size; i++) assert_int_equal(found[i], found[0]);
    free(found);
}

/* --- locks ------------------------------------------------------------------------------------ */

static void locks(void **state) {
    (void)state;
    char who[64];
    snprintf(who, sizeof who, "process %ld on ", (long)getpid());
    wf_lock *lock, *second;
    assert_ok(ctx, wf_lock_file(ctx, in_folder("result"), &lock));
    assert_fails(ctx, wf_lock_file(ctx, in_folder("result"), &second), WF_ERR_LOCKED, who);
    assert_non_null(strstr(wf_last_error(ctx), "UTC; wait for it with --wait"));
    assert_null(second);
    assert_ok(ctx, wf_lock_file(ctx, in_folder("other"), &second));
    wf_lock_free(second);
    assert_int_equal(symlink("result", in_folder("by link")), 0);
    assert_fails(ctx, wf_lock_file(ctx, in_folder("by link"), &second), WF_ERR_LOCKED, who);
    assert_true(wf_file_exists(in_folder(".result.lock")));
    wf_lock_free(lock);
    assert_false(wf_file_exists(in_folder(".result.lock")));
    assert_ok(ctx, wf_lock_file(ctx, in_folder("by link"), &lock));
    wf_lock_free(lock);
    wf_lock_free(NULL);

    assert_ok(ctx, wf_make_folder(ctx, in_folder("run")));
    assert_ok(ctx, wf_lock_folder(ctx, in_folder("run"), &lock));
    assert_fails(ctx, wf_lock_folder(ctx, in_folder("run"), &second), WF_ERR_LOCKED, who);
    wf_lock_free(lock);
    assert_int_equal(files_in(in_folder("run")), 0);
    assert_fails(ctx, wf_lock_file(ctx, in_folder("run"), &lock), WF_ERR_DISK, "is a folder");
    assert_fails(ctx, wf_lock_folder(ctx, in_folder("none"), &lock), WF_ERR_DISK,
                 "none: there is no folder");
    assert_ok(ctx, wf_lock_file(ctx, "/dev/null", &lock));
    assert_ok(ctx, wf_lock_file(ctx, "/dev/null", &second));
    wf_lock_free(lock);
    wf_lock_free(second);
}

static int die_with_lock(void) {
    wf_lock *lock;
    if (wf_lock_file(ctx, in_folder("orphan"), &lock) != WF_OK) return 1;
    raise(SIGKILL);
    return 0;
}

static int count_with_lock(void) {
    wf_ctx *own;
    if (wf_ctx_create(&(wf_ctx_desc){.threads = 1, .wait_for_locks = true}, &own) != WF_OK)
        return 1;
    for (int i = 0; i < 40; i++) {
        wf_lock *lock;
        char *text;
        size_t size;
        if (wf_lock_file(own, in_folder("counter"), &lock) != WF_OK ||
            wf_read_file(own, in_folder("counter"), 100, &text, &size) != WF_OK)
            return 2;
        char next[32];
        int length = snprintf(next, sizeof next, "%d", atoi(text) + 1);
        free(text);
        if (wf_write_file(own, in_folder("counter"), next, (size_t)length) != WF_OK) return 3;
        wf_lock_free(lock);
    }
    return 0;
}

/* A killed holder's lock is free; of processes that wait for one, each gets it alone. */
static void locks_of_others(void **state) {
    (void)state;
    wf_lock *lock;
    assert_int_equal(in_child(die_with_lock), 1000 + SIGKILL);
    assert_true(wf_file_exists(in_folder(".orphan.lock")));
    assert_ok(ctx, wf_lock_file(ctx, in_folder("orphan"), &lock));
    wf_lock_free(lock);
    assert_false(wf_file_exists(in_folder(".orphan.lock")));

    put("counter", "0", 1);
    pid_t children[4];
    fflush(NULL);
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(count_with_lock());
    }
    for (int i = 0; i < 4; i++) {
        int code;
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_int_equal(code, 0);
    }
    assert_holds("counter", "160");
    assert_false(wf_file_exists(in_folder(".counter.lock")));
}

/* K3: of the output alone, or of all that lies in the folder. */
static void who_locks_sweeps(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("swept/below")));
    static const char *const dead[] = {"swept/.out.tmp.1", "swept/.out.lock", "swept/.two.tmp.1",
                                       "swept/below/.three.tmp.22", "swept/below/.three.lock"};
    static const char *const kept[] = {"swept/.tmp.1", "swept/a.lock", "swept/.lock.x",
                                       "swept/below/.lock"};
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++) put(dead[i], "x", 1);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) put(kept[i], "x", 1);
    wf_lock *lock, *living;
    assert_ok(ctx, wf_lock_file(ctx, in_folder("swept/out"), &lock));
    assert_false(wf_file_exists(in_folder(dead[0])));
    assert_true(wf_file_exists(in_folder(dead[2])));
    wf_lock_free(lock);
    assert_false(wf_file_exists(in_folder(dead[1])));
    wf_writer writer;
    assert_ok(ctx, wf_writer_open(ctx, in_folder("swept/below/own"), &writer));
    assert_ok(ctx, wf_lock_file(ctx, in_folder("swept/below/other"), &living));
    assert_ok(ctx, wf_lock_folder(ctx, in_folder("swept"), &lock));
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++)
        assert_false(wf_file_exists(in_folder(dead[i])));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        assert_true(wf_file_exists(in_folder(kept[i])));
    assert_true(wf_file_exists(writer.temporary));
    assert_true(wf_file_exists(in_folder("swept/below/.other.lock")));
    wf_writer_abort(&writer);
    wf_lock_free(living);
    wf_lock_free(lock);
}

static void interrupt_ctx(void *waiting, const char *sentence) {
    assert_non_null(strstr(sentence, "waiting"));
    wf_interrupt(*(wf_ctx **)waiting);
}

static void waiting_can_be_interrupted(void **state) {
    (void)state;
    wf_ctx *waiting;
    wf_ctx_desc desc = {.wait_for_locks = true, .warn = interrupt_ctx, .user = &waiting};
    assert_int_equal(wf_ctx_create(&desc, &waiting), WF_OK);
    wf_lock *lock, *second;
    assert_ok(ctx, wf_lock_file(ctx, in_folder("long"), &lock));
    assert_fails(waiting, wf_lock_file(waiting, in_folder("long"), &second), WF_ERR_INTERRUPTED,
                 "while waiting");
    wf_lock_free(lock);
    wf_ctx_free(waiting);
}

static void folders(void **state) {
    (void)state;
    assert_ok(ctx, wf_make_folder(ctx, in_folder("one/two//three/")));
    assert_ok(ctx, wf_make_folder(ctx, in_folder("one/two/three")));
    assert_true(wf_file_exists(in_folder("one/two/three")));
    assert_ok(ctx, wf_make_folder(ctx, "/"));
    assert_ok(ctx, wf_make_folder(ctx, "."));
    put("one/file", "x", 1);
    assert_fails(ctx, wf_make_folder(ctx, in_folder("one/file")), WF_ERR_DISK, "is a file where");
    assert_fails(ctx, wf_make_folder(ctx, in_folder("one/file/x")), WF_ERR_DISK, "is a file where");
    assert_fails(ctx, wf_make_folder(ctx, ""), WF_ERR_USAGE, "does not name a folder");
    assert_false(wf_file_exists(in_folder("one/four")));
}

/* --- JSON text -------------------------------------------------------------------------------- */

/* The text of a long array, or nothing. */
static wf_status text_once(wf_ctx *with, void *array) {
    (void)with;
    char *text = wf_json_text(array, JSON_COMPACT);
    if (text == NULL) return WF_ERR_MEMORY;
    bool whole = strlen(text) == 2 + 4 * 1000 - 1 && strncmp(text, "[555,555,", 9) == 0;
    free(text);
    return whole ? WF_OK : WF_ERR_INPUT;
}

static void json_text_is_whole_or_nothing(void **state) {
    (void)state;
    json_t *array = json_array();
    for (int i = 0; i < 1000; i++) json_array_append_new(array, json_integer(555));
    fail_every_allocation(ctx, "JSON text", text_once, array);
    json_decref(array);
}

/* --- SHA-256 and UTF-8 ------------------------------------------------------------------------ */

/* Known answers of FIPS 180-4's examples; the lengths round 55 and 64 from sha256sum. */
static void sha256(void **state) {
    (void)state;
    char hex[65];
    wf_sha256_hex("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    wf_sha256_hex("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    wf_sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    enum { count = 1000000 };
    char *text = malloc(count);
    memset(text, 'a', count);
    static const char million[] =
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    wf_sha256_hex(text, count, hex);
    assert_string_equal(hex, million);
    wf_sha256 hash;
    wf_sha256_start(&hash);
    for (size_t at = 0, step = 0; at < count; at += step, step = (step * 7 + 1) % 301) {
        if (step > count - at) step = count - at;
        wf_sha256_add(&hash, text + at, step);
    }
    wf_sha256_end(&hash, hex);
    assert_string_equal(hex, million);
    static const char *const lengths[] = {
        [55] = "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318",
        [63] = "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34",
        [64] = "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb",
        [65] = "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0",
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] == NULL) continue;
        wf_sha256_hex(text, i, hex);
        assert_string_equal(hex, lengths[i]);
    }
    free(text);
}

/* Every code point encodes to what is accepted; every other sequence of up to three bytes is
 * not. */
static void utf8(void **state) {
    (void)state;
    static uint8_t valid[1 << 24]; /* by the bytes of a sequence of one to three */
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        char text[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (size_t i = n, rest = c; i-- > 0; rest >>= 6)
            text[i] = (char)(i > 0 ? 0x80 | (rest & 63) : lead[n] | rest);
        assert_int_equal(wf_utf8_step(text, n), n);
        assert_int_equal(wf_utf8_step(text, n - 1), 0);
        if (n < 4)
            valid[(uint8_t)text[0] << 16 | (n > 1 ? (uint8_t)text[1] << 8 : 0) |
                  (n > 2 ? (uint8_t)text[2] : 0)] = (uint8_t)n;
    }
    for (uint32_t bytes = 0; bytes < 1 << 24; bytes++) {
        char text[3] = {(char)(bytes >> 16), (char)(bytes >> 8), (char)bytes};
        size_t expected = valid[bytes & 0xff0000] == 1   ? 1
                          : valid[bytes & 0xffff00] == 2 ? 2
                          : valid[bytes] == 3            ? 3
                                                         : 0;
        if (wf_utf8_step(text, 3) != expected) fail_msg("%06x", bytes);
    }
    assert_int_equal(wf_utf8_step("\xf0\x8f\xbf\xbf", 4), 0);
    assert_int_equal(wf_utf8_step("\xf4\x90\x80\x80", 4), 0);
    assert_int_equal(wf_utf8_step("\xf5\x80\x80\x80", 4), 0);
    assert_int_equal(wf_utf8_check("ab\xc3\xa9\xff", 5), 4);
    assert_int_equal(wf_utf8_check("ab\xc3\xa9", 4), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps),
        cmocka_unit_test(says_what_is_mapped),
        cmocka_unit_test(reads_any_size),
        cmocka_unit_test(reads_members_and_refuses_damage),
        cmocka_unit_test(bombs_are_cheap),
        cmocka_unit_test(reads_pipes),
        cmocka_unit_test(a_file_that_changes_is_refused),
        cmocka_unit_test(reading_survives_lack_of_memory),
        cmocka_unit_test(replaces_only_at_commit),
        cmocka_unit_test(an_overdue_stop_gives_up_large_files),
        cmocka_unit_test(follows_links),
        cmocka_unit_test(follows_dangling_links),
        cmocka_unit_test(unknown_is_not_absent),
        cmocka_unit_test(failing_fstat_leaves_nothing),
        cmocka_unit_test(bad_targets),
        cmocka_unit_test(disk_full),
        cmocka_unit_test(no_permission),
        cmocka_unit_test(dead_siblings_are_removed),
        cmocka_unit_test(writers_do_not_meet),
        cmocka_unit_test(locks),
        cmocka_unit_test(locks_of_others),
        cmocka_unit_test(who_locks_sweeps),
        cmocka_unit_test(waiting_can_be_interrupted),
        cmocka_unit_test(folders),
        cmocka_unit_test(json_text_is_whole_or_nothing),
        cmocka_unit_test(sha256),
        cmocka_unit_test(utf8),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
