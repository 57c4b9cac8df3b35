/* fetch_acs: the ACSIncome table of a state, out of the Census Bureau's zip of person records (see
 * fetch.h).
 *
 * Each CSV member is unpacked piece by piece and cut into lines, so that memory does not depend on
 * its size; the table is kept only when sizes and CRCs of all of them are right. Folktables
 * applies the same filter and the same order of columns; a missing code is -1 there and here. */
#include "base/c_locale.h"
#include "base/io.h"
#include "base/zip.h"
#include "data/data_table.h"
#include "data/fetch.h"
#include "weft/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { AGEP, COW, SCHL, MAR, OCCP, POBP, RELP, WKHP, SEX, RAC1P, PINCP, PWGTP, n_columns };
static const char *const column_names[n_columns] = {
    "AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P", "PINCP", "PWGTP"};
enum { longest_line = 1 << 20, most_cells = 4096 };
/* zip shrinks these tables to a sixth or an eighth. An archive that claims to unpack to more than
 * 32 times (the file and 2 MiB) was made to keep the reader busy. */
enum { most_unpacked = 32, least_unpacked = 1 << 21 };
static const double largest = 1e9; /* no code, weight or income of the survey is near it */

typedef struct reader {
    wf_ctx *ctx;
    const char *path;
    wf_acs_put *put;
    void *user;
    int place[n_columns]; /* cell of each column in this member; -1: not there */
    bool in_rows;         /* the header is behind us */
    char *line;           /* of the member, as far as it has arrived */
    size_t length, number, rows;
} reader;

static wf_status damaged(const reader *in, const char *what) {
    return wf_fail(in->ctx, WF_ERR_INPUT, "%s: %s; fetch it again", in->path, what);
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
                           "%s: line %zu: %s is '%.20s', no number of the survey; fetch it "
                           "again",
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
    return in->put(in->user, row, text.length);
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

static wf_status take_piece(void *in_, const uint8_t *bytes, size_t count) {
    reader *in = in_;
    if (wf_interrupted(in->ctx))
        return wf_fail(in->ctx, WF_ERR_INTERRUPTED, "interrupted while reading %s", in->path);
    return take_bytes(in, (const char *)bytes, count);
}

static bool is_csv(const wf_zip_entry *entry) {
    return entry->name_length > 4 &&
           strncasecmp(entry->name + entry->name_length - 4, ".csv", 4) == 0;
}

static wf_status take_zip(reader *in, const wf_zip *zip) {
    size_t members = 0, unpacked = 0;
    for (size_t i = 0; i < zip->n; i++) {
        if (!is_csv(&zip->entries[i])) continue;
        unpacked += zip->entries[i].size;
        if (unpacked / most_unpacked > zip->size + least_unpacked)
            return damaged(in, "its tables unpack to far more than a survey's do");
        in->in_rows = false;
        in->length = in->number = 0;
        WF_TRY(wf_zip_stream(in->ctx, zip, i, take_piece, in));
        if (in->length > 0) WF_TRY(take_line(in));
        members++;
    }
    if (members == 0) return damaged(in, "there is no CSV file in it");
    return in->rows > 0 ? WF_OK : damaged(in, "no person in it belongs to ACSIncome");
}

wf_status wf__acs_read(wf_ctx *ctx, const char *label, const void *bytes, size_t size,
                       wf_acs_put *put, void *user, size_t *rows) {
    static const char header[] = "AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP\n";
    wf_zip zip;
    reader in = {.ctx = ctx, .path = label, .put = put, .user = user};
    *rows = 0;
    WF_TRY(wf_zip_open(ctx, label, bytes, size, &zip));
    wf_status status = wf_alloc_raw(ctx, longest_line, 1, "unpacking", &in.line);
    if (status == WF_OK) {
        locale_t before = wf_c_locale_enter();
        status = put(user, header, sizeof header - 1);
        if (status == WF_OK) status = take_zip(&in, &zip);
        wf_c_locale_leave(before);
        free(in.line);
    }
    *rows = in.rows;
    wf_zip_close(&zip);
    return status;
}

typedef struct output {
    wf_ctx *ctx;
    wf_writer writer;
} output;

static wf_status write_line(void *out_, const char *line, size_t length) {
    output *out = out_;
    return wf_writer_write(out->ctx, &out->writer, line, length);
}

wf_status wf__acs_income(wf_ctx *ctx, const char *zip_path, const char *csv_path, size_t *rows) {
    wf_map map;
    output out = {.ctx = ctx};
    WF_TRY(wf_map_open(ctx, zip_path, &map));
    wf_status status = wf_writer_open(ctx, csv_path, &out.writer);
    if (status == WF_OK) {
        status = wf__acs_read(ctx, zip_path, map.data, map.size, write_line, &out, rows);
        if (status == WF_OK) status = wf_writer_commit(ctx, &out.writer);
        wf_writer_abort(&out.writer);
    }
    wf_map_close(&map);
    return status;
}
