/* Bytes as a file that readers can open by its path. */
#ifndef WF_FUZZ_FILE_H
#define WF_FUZZ_FILE_H

#include "driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct fuzz_file {
    int fd;
    char path[64];
} fuzz_file;

static inline bool fuzz_file_open(fuzz_file *file, const uint8_t *data, size_t size) {
    file->fd = memfd_create("fuzz", 0);
    if (file->fd < 0) return false;
    snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
    if (write(file->fd, data, size) == (ssize_t)size) return true;
    close(file->fd);
    return false;
}

/* Renames the digest in a safetensors file's metadata: with it nearly every mutation would be
 * refused for it, and the readers behind would not be reached. */
static inline void fuzz_forget_digest(char *bytes, size_t size) {
    char *at = bytes != NULL ? memmem(bytes, size, "weft.digest", 11) : NULL;
    if (at != NULL) at[10] = 'u';
}

static inline void fuzz_file_close(fuzz_file *file) { close(file->fd); }

#endif
