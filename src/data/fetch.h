/* fetch: what wf_data_fetch is made of. */
#pragma once

#include "base/status.h"
#include "weft/data.h"

/* What is to be fetched, and what is known about it beforehand. */
typedef struct wf_fetch_plan {
    char url[2048], file[256]; /* file: below the folder, "openml/23-cmc.arff" */
    char name[128], version[32], target[128];
    char md5[33]; /* "": not published */
    bool address; /* an address was asked for: another one's file of the same name will not do */
    char state[3];
    int year; /* ACS: unpacked and filtered after the download; 0: taken as it is */
} wf_fetch_plan;

/* From the person records of a state (a zip of one or more CSV files) to the ACSIncome table: rows
 * with AGEP > 16, PINCP > 100, WKHP > 0, PWGTP >= 1; ten columns and PINCP as True or False (above
 * 50,000 dollars). Codes are written as 1.0. */
wf_status wf__acs_income(wf_ctx *ctx, const char *zip_path, const char *csv_path, size_t *rows);
/* The same from bytes in memory; the table goes to `put`, line by line, and is only then good when
 * the call returns WF_OK. */
typedef wf_status wf_acs_put(void *user, const char *line, size_t length);
wf_status wf__acs_read(wf_ctx *ctx, const char *label, const void *zip, size_t size,
                       wf_acs_put *put, void *user, size_t *rows);
