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

static inline void fuzz_file_close(fuzz_file *file) { close(file->fd); }

#endif
