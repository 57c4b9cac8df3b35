/* tar: headers of 512 bytes, each followed by its file's bytes, filled up to 512; two blocks of
 * zeros at the end.
 *   0 name[100]  124 size[12] octal  148 checksum[8] octal  156 type  257 "ustar"  345 prefix[155]
 * The checksum is the sum of the header's bytes with eight spaces in place of itself. */
#include "base/tar.h"

#include <stdio.h>
#include <string.h>

enum { block = 512, name_size = 100, prefix_at = 345, prefix_size = 155 };

wf_tar wf_tar_start(const char *label, const void *bytes, size_t size) {
    return (wf_tar){.label = label, .bytes = bytes, .size = size};
}

/* Octal digits, spaces before them, a space or NUL after them or the end of the field. */
static bool read_octal(const uint8_t *field, int size, uint64_t *out) {
    int i = 0, digits = 0;
    *out = 0;
    while (i < size && field[i] == ' ') i++;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++, digits++)
        *out = *out * 8 + (uint64_t)(field[i] - '0');
    return digits > 0 && (i == size || field[i] == ' ' || field[i] == 0);
}

static bool is_zero(const uint8_t *header) {
    for (int i = 0; i < block; i++)
        if (header[i] != 0) return false;
    return true;
}

static bool has_checksum(const uint8_t *header) {
    uint64_t stated, sum = 0;
    for (int i = 0; i < block; i++) sum += i >= 148 && i < 156 ? ' ' : header[i];
    return read_octal(header + 148, 8, &stated) && stated == sum;
}

static void read_name(wf_tar *tar, const uint8_t *header) {
    size_t prefix = strnlen((const char *)header + prefix_at, prefix_size);
    size_t name = strnlen((const char *)header, name_size), used = 0;
    /* GNU's headers ("ustar  ") have other things there. */
    if (memcmp(header + 257, "ustar\0", 6) == 0 && prefix > 0) {
        memcpy(tar->name, header + prefix_at, prefix);
        tar->name[prefix] = '/';
        used = prefix + 1;
    }
    memcpy(tar->name + used, header, name);
    tar->name[used + name] = 0;
}

/* The header at tar->at, which moves past its contents. */
static wf_status read_entry(wf_ctx *ctx, wf_tar *tar, uint8_t *type) {
    const uint8_t *header = tar->bytes + tar->at;
    uint64_t size;
    if (!has_checksum(header))
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: not a tar archive, or damaged: the header at byte %zu has another "
                       "checksum",
                       tar->label, tar->at);
    read_name(tar, header);
    *type = header[156];
    if (!read_octal(header + 124, 12, &size))
        return wf_fail(ctx, WF_ERR_INPUT, "%s: entry %s has no octal size", tar->label, tar->name);
    tar->at += block;
    if (size > tar->size - tar->at)
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: entry %s has %llu bytes, but %zu are left; the archive is cut off",
                       tar->label, tar->name, (unsigned long long)size, tar->size - tar->at);
    tar->data = tar->bytes + tar->at;
    tar->data_size = (size_t)size;
    size_t filled = ((size_t)size + block - 1) / block * block;
    tar->at = filled < tar->size - tar->at ? tar->at + filled : tar->size;
    return WF_OK;
}

wf_status wf_tar_next(wf_ctx *ctx, wf_tar *tar, bool *more) {
    *more = false;
    for (;;) {
        if (tar->size - tar->at < block)
            return wf_fail(ctx, WF_ERR_INPUT,
                           "%s: the archive ends at byte %zu without its end mark; it is cut off",
                           tar->label, tar->size);
        if (is_zero(tar->bytes + tar->at)) return WF_OK;
        uint8_t type = 0;
        WF_TRY(read_entry(ctx, tar, &type));
        if (type == '0' || type == 0) break;
        if (type == '5' || type == 'x' || type == 'g') continue; /* folders, pax headers */
        return wf_fail(ctx, WF_ERR_INPUT,
                       "%s: entry %s is neither a file nor a folder (type 0x%02x); links and "
                       "devices are not read",
                       tar->label, tar->name, type);
    }
    *more = true;
    return WF_OK;
}
