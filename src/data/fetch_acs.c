/* fetch_acs: the ACSIncome table of a state, out of the Census Bureau's zip of person records (see fetch.h).
 *
 * The zip is mapped; each CSV member is inflated piece by piece and cut into lines, so that memory does not depend on its size.
 * Folktables applies the same filter and the same order of columns; a missing code is -1 there and here. */
#include "base/c_locale.h"
#include "base/io.h"
#include "data/data_table.h"
#include "data/fetch.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

enum { AGEP, COW, SCHL, MAR, OCCP, POBP, RELP, WKHP, SEX, RAC1P, PINCP, PWGTP, n_columns };
static const char *const column_names[n_columns] = {
    "AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P", "PINCP", "PWGTP"};
enum { longest_line = 1 << 20, piece = 1 << 16, most_cells = 4096 };
static const double largest = 1e9; /* no code, weight or income of the survey is near it */

typedef struct reader {
    wf_ctx *ctx;
    const char *path;
    wf_writer *writer;
    int place[n_columns]; /* cell of each column in this member; -1: not there */
    bool in_rows;         /* the header is behind us */
    char *line;           /* of the member, as far as it has arrived */
    size_t length, number, rows;
} reader;

static uint32_t read_u16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t read_u32(const uint8_t *at) { return read_u16(at) | read_u16(at + 2) << 16; }

static wf_status damaged(const reader *in, const char *what) {
    return wf_fail(in->ctx, WF_ERR_INPUT, "%s: %s; remove it and fetch again", in->path, what);
}

/* Cuts the line at its commas; cells lose their quotes. */
static int cut_line(char *line, char **cells) {
    int count = 0;
    for (char *at = line; count < most_cells;) {
        char *end = at + strcspn(at, ",");
        bool last = *end == 0;
        *end = 0;
        if (*at == '"' && end > at + 1 && end[-1] == '"') at++, end[-1] = 0;
        cells[count++] = at;
        if (last) break;
        at = end + 1;
    }
    return count;
}

static wf_status take_header(reader *in, char **cells, int count) {
    for (int k = 0; k < n_columns; k++) {
        in->place[k] = -1;
        for (int c = 0; c < count; c++)
            if (strcmp(cells[c], column_names[k]) == 0) in->place[k] = c;
        if (in->place[k] < 0)
            return wf_fail(in->ctx, WF_ERR_INPUT, "%s: no column %s in the person records%s",
                           in->path, column_names[k],
                           k == RELP ? "; from 2019 on the survey codes relationships otherwise "
                                       "(RELSHIPP), and ACSIncome is not defined"
                                     : "");
    }
    in->in_rows = true;
    return WF_OK;
}

static wf_status take_row(reader *in, char **cells, int count) {
    double value[n_columns];
    bool given[n_columns];
    for (int k = 0; k < n_columns; k++) {
        value[k] = -1;
        given[k] = in->place[k] < count && cells[in->place[k]][0] != 0;
        if (given[k] &&
            (!wf__parse_number(cells[in->place[k]], &value[k]) || fabs(value[k]) > largest))
            return wf_fail(in->ctx, WF_ERR_INPUT,
                           "%s: line %zu: %s is '%.20s', no number of the survey; remove the file "
                           "and fetch again",
                           in->path, in->number, column_names[k], cells[in->place[k]]);
    }
    bool kept = given[AGEP] && value[AGEP] > 16 && given[PINCP] && value[PINCP] > 100 &&
                given[WKHP] && value[WKHP] > 0 && given[PWGTP] && value[PWGTP] >= 1;
    if (!kept) return WF_OK;
    char row[512];
    wf_text text = wf_text_start(row, sizeof row);
    for (int k = AGEP; k <= RAC1P; k++) wf_text_add(&text, "%.1f,", value[k]);
    wf_text_add(&text, "%s\n", value[PINCP] > 50000 ? "True" : "False");
    in->rows++;
    return wf_writer_write(in->ctx, in->writer, row, text.length);
}

static wf_status take_line(reader *in) {
    char *cells[most_cells];
    in->number++;
    if (in->length > 0 && in->line[in->length - 1] == '\r') in->length--;
    in->line[in->length] = 0;
    in->length = 0;
    if (in->line[0] == 0) return WF_OK;
    int count = cut_line(in->line, cells);
    return in->in_rows ? take_row(in, cells, count) : take_header(in, cells, count);
}

static wf_status take_bytes(reader *in, const char *bytes, size_t count) {
    while (count > 0) {
        const char *end = memchr(bytes, '\n', count);
        size_t here = end != NULL ? (size_t)(end - bytes) : count;
        if (in->length + here >= longest_line) return damaged(in, "a line is far too long");
        memcpy(in->line + in->length, bytes, here);
        in->length += here;
        if (end == NULL) return WF_OK;
        WF_TRY(take_line(in));
        bytes += here + 1, count -= here + 1;
    }
    return WF_OK;
}

/* A deflated or stored member. */
static wf_status take_member(reader *in, const uint8_t *data, size_t size, bool deflated) {
    in->in_rows = false;
    in->length = in->number = 0;
    wf_status status = WF_OK;
    if (!deflated) status = take_bytes(in, (const char *)data, size);
    else {
        char *out;
        WF_TRY(wf_alloc(in->ctx, piece, 1, "unpacking", &out));
        z_stream stream = {.next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)size};
        int code = inflateInit2(&stream, -MAX_WBITS);
        while (status == WF_OK && code == Z_OK) {
            stream.next_out = (Bytef *)out;
            stream.avail_out = piece;
            code = inflate(&stream, Z_NO_FLUSH);
            if (code == Z_OK || code == Z_STREAM_END)
                status = take_bytes(in, out, piece - stream.avail_out);
            if (status == WF_OK && wf_interrupted(in->ctx))
                status = wf_fail(in->ctx, WF_ERR_INTERRUPTED, "interrupted while unpacking");
        }
        inflateEnd(&stream);
        free(out);
        if (status == WF_OK && code != Z_STREAM_END)
            status = damaged(in, "its packed data end early or are damaged");
    }
    if (status == WF_OK && in->length > 0) status = take_line(in);
    return status;
}

static bool is_csv(const uint8_t *name, size_t length) {
    return length > 4 && strncasecmp((const char *)name + length - 4, ".csv", 4) == 0;
}

/* One entry of the central directory at *at; *at moves behind it. */
static wf_status take_entry(reader *in, const wf_map *map, size_t *at, size_t *members) {
    if (*at + 46 > map->size || read_u32(map->data + *at) != 0x02014b50)
        return damaged(in, "its directory is damaged");
    const uint8_t *entry = map->data + *at;
    uint32_t method = read_u16(entry + 10), packed = read_u32(entry + 20);
    size_t name_length = read_u16(entry + 28), local = read_u32(entry + 42);
    *at += 46 + name_length + read_u16(entry + 30) + read_u16(entry + 32);
    if (*at > map->size) return damaged(in, "its directory is damaged");
    if (!is_csv(entry + 46, name_length)) return WF_OK;
    if (packed == UINT32_MAX || local == UINT32_MAX || (method != 0 && method != 8))
        return wf_fail(in->ctx, WF_ERR_UNSUPPORTED, "%s: packed in a way weft does not know",
                       in->path);
    if (local + 30 > map->size || read_u32(map->data + local) != 0x04034b50)
        return damaged(in, "a member is damaged");
    size_t start = local + 30 + read_u16(map->data + local + 26) + read_u16(map->data + local + 28);
    if (start > map->size || packed > map->size - start) return damaged(in, "a member is cut off");
    (*members)++;
    return take_member(in, map->data + start, packed, method == 8);
}

/* The end record lies within the last 64 KiB. */
static wf_status find_directory(const reader *in, const wf_map *map, size_t *start,
                                size_t *entries) {
    size_t lowest = map->size > 66000 ? map->size - 66000 : 0;
    for (size_t at = map->size >= 22 ? map->size - 22 : 0; map->size >= 22; at--) {
        if (read_u32(map->data + at) == 0x06054b50) {
            *entries = read_u16(map->data + at + 10);
            *start = read_u32(map->data + at + 16);
            return WF_OK;
        }
        if (at == lowest) break;
    }
    return damaged(in, "it is no zip file, or is cut off");
}

static wf_status take_zip(reader *in, const wf_map *map) {
    size_t at = 0, entries = 0, members = 0;
    WF_TRY(find_directory(in, map, &at, &entries));
    for (size_t i = 0; i < entries; i++) WF_TRY(take_entry(in, map, &at, &members));
    if (members == 0) return damaged(in, "there is no CSV file in it");
    return WF_OK;
}

wf_status wf__acs_income(wf_ctx *ctx, const char *zip_path, const char *csv_path, size_t *rows) {
    static const char header[] = "AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP\n";
    wf_map map;
    wf_writer writer;
    reader in = {.ctx = ctx, .path = zip_path, .writer = &writer};
    WF_TRY(wf_map_open(ctx, zip_path, &map));
    wf_status status = wf_alloc(ctx, longest_line, 1, "unpacking", &in.line);
    if (status == WF_OK) status = wf_writer_open(ctx, csv_path, &writer);
    if (status == WF_OK) {
        locale_t before = wf_c_locale_enter();
        status = wf_writer_write(ctx, &writer, header, sizeof header - 1);
        if (status == WF_OK) status = take_zip(&in, &map);
        wf_c_locale_leave(before);
        if (status == WF_OK) status = wf_writer_commit(ctx, &writer);
        wf_writer_abort(&writer);
    }
    *rows = in.rows;
    free(in.line);
    wf_map_close(&map);
    return status;
}
