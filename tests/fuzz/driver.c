/* A fuzz target as a program of its own.
 *
 * With gcc, or any compiler without a fuzzer:
 *
 *     fuzz_x [FILE | FOLDER]...      FUZZ_RUNS=3000   FUZZ_SECONDS=   FUZZ_SEED=1
 *
 * runs the target on every file, on the target's own seeds, and on FUZZ_RUNS mutations of both, or
 * for FUZZ_SECONDS. The mutations depend on nothing but FUZZ_SEED and the inputs, so a failure
 * comes back. The input that failed is left in PROGRAM.crash; give that file as the only argument,
 * with FUZZ_RUNS=0, to rerun it.
 *
 * With clang -fsanitize=fuzzer -DFUZZ_LIBFUZZER libFuzzer has main, and this file gives it the
 * target's seeds, written to the first folder it is given, and one mutation in four. */
#include "driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { most_inputs = 1000, most_bytes = 1 << 16, seconds_per_run = 60 };

typedef struct input {
    uint8_t *bytes;
    size_t size;
} input;

static input inputs[most_inputs];
static size_t input_count;

#ifndef FUZZ_LIBFUZZER
/* --- what to do when the target dies ---------------------------------------------------------- */

static char crash_path[4096];
static const uint8_t *running;
static size_t running_size;

static void save_running(void) {
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    static const char words[] = "\nfuzz: the input of this failure is in ";
    bool written = fd >= 0 && write(fd, running, running_size) == (ssize_t)running_size &&
                   write(2, words, sizeof words - 1) > 0 &&
                   write(2, crash_path, strlen(crash_path)) > 0 && write(2, "\n", 1) > 0;
    if (!written) _exit(3);
    close(fd);
}

static void on_signal(int number) {
    save_running();
    signal(number, SIG_DFL);
    raise(number == SIGALRM ? SIGABRT : number);
}

/* The sanitizers' way to say that they are about to end the program. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void watch_deaths(const char *program) {
    snprintf(crash_path, sizeof crash_path, "%s.crash", program);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_running);
    else {
        signal(SIGSEGV, on_signal);
        signal(SIGBUS, on_signal);
        signal(SIGFPE, on_signal);
    }
    signal(SIGABRT, on_signal);
    signal(SIGALRM, on_signal);
}

/* The target sees a copy without a byte to spare, so that sanitizers notice a read after it. */
static void run(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) exit(4);
    if (size > 0) memcpy(copy, bytes, size);
    running = copy, running_size = size;
    alarm(seconds_per_run);
    LLVMFuzzerTestOneInput(copy, size);
    alarm(0);
    free(copy);
}

#endif

/* --- inputs ----------------------------------------------------------------------------------- */

static void add_input(const void *bytes, size_t size) {
    if (input_count == most_inputs) return;
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL) exit(4);
    if (size > 0) memcpy(copy, bytes, size);
    inputs[input_count++] = (input){copy, size};
}

static void add_seeds(void) {
    for (size_t i = 0, size; fuzz_seed; i++) {
        const char *bytes = fuzz_seed(i, &size);
        if (bytes == NULL) break;
        add_input(bytes, size);
    }
}

#ifndef FUZZ_LIBFUZZER
static void add_file(const char *path) {
    static uint8_t bytes[16 * most_bytes]; /* longer files are cut */
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    add_input(bytes, fread(bytes, 1, sizeof bytes, file));
    fclose(file);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Folders in order of names, so that every machine makes the same mutations. */
static void add_path(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    if (!S_ISDIR(info.st_mode)) {
        add_file(path);
        return;
    }
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') add_path(inner);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

#endif

/* --- mutations -------------------------------------------------------------------------------- */

static uint64_t random_state;

static size_t below(size_t n) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (size_t)((z ^ z >> 31) % n);
}

typedef struct mutant {
    uint8_t bytes[most_bytes];
    size_t size;
} mutant;

/* Puts `count` bytes in place of `gone` bytes at `at`. `bytes` must not point into the mutant. */
static void graft(mutant *m, size_t at, size_t gone, const void *bytes, size_t count) {
    if (gone > m->size - at) gone = m->size - at;
    if (m->size - gone + count > most_bytes) return;
    memmove(m->bytes + at + count, m->bytes + at + gone, m->size - at - gone);
    if (count > 0) memcpy(m->bytes + at, bytes, count);
    m->size += count - gone;
}

static void graft_word(mutant *m, size_t at) {
    static const char *const words[] = {
        "0",
        "-1",
        "1e999",
        "nan",
        "inf",
        "9223372036854775807",
        "18446744073709551616",
        "4294967296",
        "\"",
        "'",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "[[[[[[[[",
        "{\"a\":",
        ",",
        ":",
        "=",
        "#",
        "?",
        "%",
        "@",
        "\n",
        "\r\n",
        "\t",
        " ",
        "null",
        "true",
        "\xff",
        "\xc3\xa9",
        "\xef\xbb\xbf",
        "\\u0000",
        "\"\"",
        ".",
        "-",
        "..",
        "/",
        "PK\x03\x04",
        "PK\x01\x02",
        "PK\x05\x06",
        "F32",
        "I64",
    };
    const char *word = words[below(sizeof words / sizeof *words)];
    graft(m, at, below(2) * strlen(word), word, strlen(word));
}

/* Numbers where binary formats keep sizes and offsets. */
static void graft_number(mutant *m, size_t at) {
    static const uint64_t numbers[] = {
        0,          1,         2,        7,         0x7f,       0x80,
        0xff,       0x7fff,    0x8000,   0xffff,    0x7fffffff, 0x80000000,
        0xffffffff, 100000000, 1u << 20, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    uint64_t number = numbers[below(sizeof numbers / sizeof *numbers)];
    size_t width = (size_t)1 << below(4);
    uint8_t bytes[8];
    bool big = below(2) != 0;
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(number >> 8 * (big ? width - 1 - i : i));
    graft(m, at, width, bytes, width);
}

static void mutate_once(mutant *m) {
    static uint8_t part[most_bytes];
    size_t at = below(m->size + 1), last = m->size > 0 ? below(m->size) : 0;
    size_t length = 1 + below(m->size > 64 && below(4) != 0 ? 64 : m->size + 1);
    if (length > m->size - at) length = m->size - at;
    const input *other = &inputs[below(input_count)];
    switch (below(9)) {
    case 0:
        if (m->size > 0) m->bytes[last] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        if (m->size > 0) m->bytes[last] = (uint8_t)below(256);
        break;
    case 2: /* a digit stays a digit: numbers that lie */
        for (size_t i = 0; i < m->size; i++, last = (last + 1) % m->size) {
            if (m->bytes[last] < '0' || m->bytes[last] > '9') continue;
            m->bytes[last] = (uint8_t)('0' + below(10));
            break;
        }
        break;
    case 3: graft(m, at, length, NULL, 0); break;
    case 4: /* repeat a part somewhere else */
        memcpy(part, m->bytes + at, length);
        graft(m, below(m->size + 1), 0, part, length);
        break;
    case 5: graft_word(m, at); break;
    case 6: graft_number(m, below(2) ? at : at / 8 * 8); break;
    case 7: m->size = at; break;
    case 8:
        if (other->size == 0) break;
        last = below(other->size);
        length = 1 + below(other->size - last);
        graft(m, at, below(2) * length, other->bytes + last, length > 4096 ? 4096 : length);
        break;
    }
}

#ifdef FUZZ_LIBFUZZER

/* --- for libFuzzer ---------------------------------------------------------------------------- */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
int LLVMFuzzerInitialize(int *argc, char ***argv);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    static mutant m;
    if (seed % 4 != 0 || size > most_bytes) return LLVMFuzzerMutate(data, size, most);
    random_state = seed;
    m.size = size;
    memcpy(m.bytes, data, size);
    for (size_t times = 1 + below(4); times > 0; times--) mutate_once(&m);
    if (m.size > most) m.size = most;
    memcpy(data, m.bytes, m.size);
    return m.size;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = NULL;
    struct stat info;
    for (int i = *argc - 1; i > 0; i--)
        if ((*argv)[i][0] != '-' && stat((*argv)[i], &info) == 0 && S_ISDIR(info.st_mode))
            folder = (*argv)[i];
    add_seeds();
    for (size_t i = 0; folder != NULL && i < input_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *file = fopen(path, "wb");
        if (file == NULL) continue;
        fwrite(inputs[i].bytes, 1, inputs[i].size, file);
        fclose(file);
    }
    add_input("", 0);
    return 0;
}

#else

/* --- by itself -------------------------------------------------------------------------------- */

static void run_mutant(void) {
    static mutant m;
    const input *from = &inputs[below(input_count)];
    m.size = from->size < most_bytes ? from->size : most_bytes;
    memcpy(m.bytes, from->bytes, m.size);
    for (size_t times = 1 + below(1 + below(8)); times > 0; times--) mutate_once(&m);
    run(m.bytes, m.size);
}

static unsigned long setting(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoul(text, NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    watch_deaths(argv[0]);
    for (int i = 1; i < argc; i++) add_path(argv[i]);
    add_seeds();
    add_input("", 0);
    for (size_t i = 0; i < input_count; i++) run(inputs[i].bytes, inputs[i].size);
    unsigned long seconds = setting("FUZZ_SECONDS", 0), runs = 0;
    unsigned long most = setting("FUZZ_RUNS", seconds > 0 ? -1ul : 3000);
    time_t end = time(NULL) + (time_t)seconds;
    random_state = setting("FUZZ_SEED", 1);
    for (; runs < most && (seconds == 0 || time(NULL) < end); runs++) run_mutant();
    /* Past stdout, which a target may have silenced. */
    dprintf(STDOUT_FILENO, "%zu inputs, %lu mutations, no failure\n", input_count, runs);
    for (size_t i = 0; i < input_count; i++) free(inputs[i].bytes);
    return 0;
}
#endif
